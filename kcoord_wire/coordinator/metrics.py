"""What the coordinator counts, for Prometheus.

Laws:

* Counting costs an addition or a dict entry and takes no lock: one thread counts, the scraping thread reads copies.
  Samples, labels and text are made at a scrape.
* Counting needs only Python; samples need prometheus-client, see `kcoord_wire.kernel.metrics`.

========================================  =========================================================================
sample                                    what it is
========================================  =========================================================================
kcoord_connections                        connections that are open
kcoord_connections_accepted_total         connections that were accepted
kcoord_connections_closed_total           connections that the server has closed, by ``reason``
kcoord_unfinished_bytes                   bytes of requests that have not arrived whole, or wait behind others
kcoord_received_bytes_total               bytes of requests
kcoord_sent_bytes_total                   bytes of responses
kcoord_requests_total                     responses, by ``api`` and ``error``
kcoord_request_seconds                    from a request to its response, by ``api``; JoinGroup, SyncGroup and Fetch
                                          wait for others; a repeated Heartbeat counts as answered at once
kcoord_groups                             groups by ``state``
kcoord_members                            members of all groups
kcoord_rebalances_total                   rebalances that have ended, by ``trigger`` and ``outcome``
kcoord_rebalance_seconds                  their duration, by ``phase``: join, sync, whole
kcoord_members_removed_total              members that were removed during rebalances, by ``why``
kcoord_transactional_ids                  transactional ids by ``state`` of their transaction; those in Ongoing are open
kcoord_transactions_begun_total           transactions that have begun
kcoord_transactions_ended_total           transactions whose outcome was decided, by ``outcome``: committed, aborted,
                                          fenced (by a new producer), timed out
kcoord_sync_seconds                       duration of one write to the log and its fsync
kcoord_sync_appends                       appends in one such write
kcoord_log_bytes                          size of the log
kcoord_faults_total                       faults injected, by ``action``
========================================  =========================================================================
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kcoord_wire.coordinator.core.events import RebalanceAccount
from kcoord_wire.kernel.metrics import Exporter, Value, family
from kcoord_wire.kernel.peers import PeerCounters
from kcoord_wire.protocol.api_keys import ApiKey, api_name
from kcoord_wire.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_SECONDS: Final = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0)
_COUNTS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)

# The lists of a response whose parts have errors; other responses have one error, at the top.
_PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "ProduceResponse": ("responses", "partition_responses"),
    "AddPartitionsToTxnResponse": ("results_by_topic_v3_and_below", "results_by_partition"),
    "TxnOffsetCommitResponse": ("topics", "partitions"),
    "FetchResponse": ("responses", "partitions"),
    "ListOffsetsResponse": ("topics", "partitions"),
    "MetadataResponse": ("topics",),
    "OffsetCommitResponse": ("topics", "partitions"),
    "FindCoordinatorResponse": ("coordinators",),
    "LeaveGroupResponse": ("members",),
    "DescribeGroupsResponse": ("groups",),
    "ConsumerGroupDescribeResponse": ("groups",),
    "ShareGroupDescribeResponse": ("groups",),
    "StreamsGroupDescribeResponse": ("groups",),
    "OffsetForLeaderEpochResponse": ("topics", "partitions"),
    "DeleteGroupsResponse": ("results",),
    "OffsetDeleteResponse": ("topics", "partitions"),
    "CreateTopicsResponse": ("topics",),
    "DeleteTopicsResponse": ("responses",),
    "CreatePartitionsResponse": ("results",),
    "DescribeConfigsResponse": ("results",),
    "AlterConfigsResponse": ("responses",),
    "DeleteRecordsResponse": ("topics", "partitions"),
    "DescribeProducersResponse": ("topics", "partitions"),
    "CreateAclsResponse": ("results",),
    "DeleteAclsResponse": ("filter_results",),
    "DescribeTopicPartitionsResponse": ("topics",),
    "IncrementalAlterConfigsResponse": ("responses",),
}


def first_error(response: Any) -> int:
    """Return the error code to count a response by: the one at the top, else the first of its parts."""
    code: int = getattr(response, "error_code", 0)
    name = type(response).__name__
    if code:
        return code
    if name == "OffsetFetchResponse":
        return _first_error_of(response.topics, ("partitions",)) or _first_error_of(
            response.groups, ("topics", "partitions")
        )
    path = _PARTS.get(name)
    return 0 if path is None else _first_error_of(getattr(response, path[0]), path[1:])


def _first_error_of(parts: Sequence[Any], path: tuple[str, ...]) -> int:
    for part in parts:
        code: int = getattr(part, "error_code", 0) or getattr(part, "partition_error_code", 0)
        code = code or (_first_error_of(getattr(part, path[0]), path[1:]) if path else 0)
        if code:
            return code
    return 0


class Histogram:
    """Counts values in buckets.

    :ivar bounds: the greatest value of each bucket but the last, ascending
    :ivar counts: number of values in each bucket; the last is for those above all bounds
    :ivar total: the sum of the values
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = _SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self, more: int = 0) -> list[tuple[str, float]]:
        """Return cumulative counts by upper bound, as Prometheus expects them.

        :param more: values in the first bucket, besides those that were counted
        """
        so_far, buckets = more, []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), list(self.counts), strict=True):
            so_far += count
            buckets.append((bound, float(so_far)))
        return buckets

    def sample(self, more: int = 0) -> Value:
        """Return the buckets and the sum, for `family`; see `buckets`."""
        return self.buckets(more), self.total


class GroupCounts(NamedTuple):
    """The groups at one moment.

    :ivar groups: their number, by the name of the state
    :ivar members: of all groups together
    """

    groups: Mapping[str, int]
    members: int


class TransactionCounts(NamedTuple):
    """The transactions at one moment, and those since the start.

    :ivar states: number of transactional ids, by the name of the state
    :ivar begun: transactions that have begun
    :ivar ended: transactions whose outcome was decided, by outcome
    """

    states: Mapping[str, int]
    begun: int
    ended: Mapping[str, int]


class Metrics(Exporter):
    """The counters of one coordinator. The server changes the public ones itself.

    :ivar peers: counts connections and their bytes
    :ivar faults: injected, by action
    :ivar read_groups: counts the groups; called at each scrape, in the scraping thread
    :ivar read_transactions: counts transactions; called likewise
    :ivar read_log_bytes: size of the log; called likewise
    """

    def __init__(self) -> None:
        self.peers: PeerCounters = PeerCounters()
        self.faults: defaultdict[str, int] = defaultdict(int)
        self.read_groups: Callable[[], GroupCounts] = lambda: GroupCounts({}, 0)
        self.read_transactions: Callable[[], TransactionCounts] = lambda: TransactionCounts({}, 0, {})
        self.read_log_bytes: Callable[[], int] = lambda: 0
        self._requests: defaultdict[tuple[int, int], int] = defaultdict(int)
        self._latencies: defaultdict[int, Histogram] = defaultdict(Histogram)
        self._repeated = 0
        self._rebalances: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._removed: defaultdict[str, int] = defaultdict(int)
        self._durations = {phase: Histogram() for phase in ("join", "sync", "whole")}
        self._sync_seconds = Histogram()
        self._sync_appends = Histogram(_COUNTS)

    def count_request(self, api_key: int, error_code: int, seconds: float) -> None:
        """Count a response.

        :param error_code: see `first_error`
        :param seconds: since the request's last byte arrived
        """
        self._requests[api_key, error_code] += 1
        self._latencies[api_key].observe(seconds)

    def count_repeated(self, received: int, sent: int) -> None:
        """Count a Heartbeat that was answered as the one before on its connection, which `count_request` has counted.
        It was answered as it came: in the time of the first bucket, which is not added up.

        :param received: bytes of its frame
        :param sent: bytes of its answer's
        """
        peers = self.peers
        peers.received_bytes += received
        peers.sent_bytes += sent
        self._repeated += 1

    def count_sync(self, seconds: float, appends: int) -> None:
        """Count a write to the log."""
        self._sync_seconds.observe(seconds)
        self._sync_appends.observe(appends)

    def count_rebalance(self, rebalance: RebalanceAccount) -> None:
        """Count a rebalance that has ended."""
        self._rebalances[str(rebalance.trigger), rebalance.outcome or ""] += 1
        for removal in rebalance.removed:
            self._removed[removal.why] += 1
        for histogram, milliseconds in zip(self._durations.values(), durations(rebalance), strict=True):
            if milliseconds is not None:
                histogram.observe(milliseconds / 1000)

    # ---- samples

    def collect(self) -> Iterable[Metric]:
        """Yield the current samples."""
        counter, gauge, histogram = (partial(family, kind) for kind in ("Counter", "Gauge", "Histogram"))
        groups, members = self.read_groups()
        peers = self.peers
        yield gauge("connections", "Connections that are open", {(): peers.open})
        yield gauge("unfinished_bytes", "Bytes of requests that have not arrived whole", {(): peers.unfinished.held})
        yield counter("connections_accepted", "Connections that were accepted", {(): peers.accepted})
        yield counter("connections_closed", "Connections closed by the server", _labelled(peers.closed), "reason")
        yield counter("received_bytes", "Bytes of requests", {(): peers.received_bytes})
        yield counter("sent_bytes", "Bytes of responses", {(): peers.sent_bytes})
        repeated = {int(ApiKey.HEARTBEAT): self._repeated}
        requests = {
            (api_name(key), _error_name(code)): count + (0 if code else repeated.get(key, 0))
            for (key, code), count in list(self._requests.items())
        }
        yield counter("requests", "Responses", requests, "api", "error")
        latencies = {
            (api_name(key),): latency.sample(repeated.get(key, 0)) for key, latency in list(self._latencies.items())
        }
        yield histogram("request_seconds", "From a request to its response", latencies, "api")
        yield gauge("groups", "Groups", {(state,): count for state, count in groups.items()}, "state")
        yield gauge("members", "Members of all groups", {(): members})
        yield counter("rebalances", "Rebalances that have ended", dict(self._rebalances), "trigger", "outcome")
        phases = {(phase,): duration.sample() for phase, duration in self._durations.items()}
        yield histogram("rebalance_seconds", "Duration of rebalances", phases, "phase")
        yield counter("members_removed", "Members removed during rebalances", _labelled(self._removed), "why")
        states, begun, ended = self.read_transactions()
        yield gauge("transactional_ids", "Transactional ids", _labelled(states), "state")
        yield counter("transactions_begun", "Transactions that have begun", {(): begun})
        yield counter("transactions_ended", "Transactions whose outcome was decided", _labelled(ended), "outcome")
        yield histogram(
            "sync_seconds", "Duration of a write to the log and its fsync", {(): self._sync_seconds.sample()}
        )
        yield histogram("sync_appends", "Appends in one write to the log", {(): self._sync_appends.sample()})
        yield gauge("log_bytes", "Size of the log", {(): self.read_log_bytes()})
        yield counter("faults", "Faults injected", _labelled(self.faults), "action")


def _labelled(counts: Mapping[str, int]) -> dict[tuple[str], int]:
    return {(label,): count for label, count in list(counts.items())}


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def durations(rebalance: RebalanceAccount) -> tuple[int | None, int | None, int | None]:
    """Return the milliseconds of the join phase, the sync phase and the whole; None for what has not ended."""
    started, joined, ended = rebalance.started_at, rebalance.joined_at, rebalance.ended_at
    return (
        None if joined is None else joined - started,
        None if joined is None or ended is None else ended - joined,
        None if ended is None else ended - started,
    )
