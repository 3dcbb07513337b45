"""The brokers of a cluster, and which of them leads what.

Brokers are counted from 0 here; their node ids are in their endpoints. One process holds one cluster state, so every
broker has every partition: a broker is a place where requests arrive.

Laws:

* A topic has as many replicas as it was created with, on the brokers that a client has named, if it has: where none of
  these runs, the partition has no leader. A reassignment names other ones, and is complete at once, also where they are
  stopped: every broker has every record.
* The leader of a partition is the first running broker of its replicas, so it is the same whatever happened before, and
  a broker that runs again leads what it led. `Leaders.move` puts a broker first until the partition is reassigned.
* The broker that leads a group's partition of ``__consumer_offsets`` coordinates the group, and the one that leads a
  transactional id's partition of ``__transaction_state`` that id (`partition_of`).
* A single broker that loads nothing serves whatever it is asked: `Brokers.is_plain` says so in one comparison.
* The machines see only what the broker coordinates (`route`). The rest is answered NOT_COORDINATOR (16) or
  COORDINATOR_LOAD_IN_PROGRESS (14), in the order of the request; while its group is loaded a Heartbeat is answered
  without an error, as by Kafka, so that members do not give up their generation.
* ListGroups and ListTransactions list what the broker coordinates: clients ask every broker.

Partitions of topics have other brokers for leaders, too; the topics answer that for each partition by itself.

Source: kafka `ReplicationControlManager.java`, `StripedReplicaPlacer.java`, `PartitionLeaderStrategy`,
`GroupCoordinatorService.java`, `CoordinatorRuntime.java`, `KafkaApis.scala`; KIP-631.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from zlib import crc32

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.apis import Kind, Split, api_of, id_of, refusal, refuse_request
from kcoord_wire.coordinator.core.config import Endpoint
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.protocol.key_partitions import partition_of

NO_LEADER: Final = -1
OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
SHARES_TOPIC: Final = "__share_group_state"
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, SHARES_TOPIC})
_TOPIC_NAME: Final = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}\Z")


@dataclass(frozen=True, slots=True)
class Placement:
    """Which brokers have the partitions of a topic.

    :ivar replicas: how many brokers each has; None for all
    :ivar assigned: the brokers of partitions for which a client has named them, the preferred leader first
    """

    replicas: int | None = None
    assigned: Mapping[int, Sequence[int]] = field(default_factory=dict)

    def among(self, brokers: int) -> Placement:
        """Return what is left of it in a cluster of so many brokers: one that was started again may have fewer."""
        there = {at: [broker for broker in own if broker < brokers] for at, own in self.assigned.items()}
        replicas = None if self.replicas is None else min(self.replicas, brokers)
        return Placement(replicas, {at: own for at, own in there.items() if own})


EVERYWHERE: Final = Placement()


def is_topic_name(name: str) -> bool:
    """Return whether Kafka allows a topic of this name (``Topic.java``)."""
    return _TOPIC_NAME.match(name) is not None


class Leaders:
    """Who leads the partitions of one topic.

    :param name: of the topic; topics begin at different brokers
    :param runs: for each broker whether it leads what it may; shared with `Brokers`
    :param placement: which brokers have them
    :ivar of: for each partition the broker that leads it; `NO_LEADER` if none runs
    :ivar placement: likewise
    """

    __slots__ = ("_first", "_moved", "_runs", "of", "placement")

    def __init__(self, name: str, partitions: int, runs: Sequence[bool], placement: Placement = EVERYWHERE) -> None:
        self.of: list[int] = []
        self.placement: Placement = placement.among(len(runs))
        self._first = crc32(name.encode())
        self._moved: dict[int, int] = {}
        self._runs = runs
        self.grow(partitions)

    def grow(self, count: int, placement: Placement | None = None) -> None:
        """Add partitions.

        :param placement: of all, with the new ones; None where no brokers are named for these
        """
        if placement is not None:
            self.placement = placement
        self.of += [self._elected(partition) for partition in range(len(self.of), len(self.of) + count)]

    def replicas(self, partition: int) -> list[int]:
        """Return the brokers of a partition, the preferred leader first; the others follow in another order each time
        around, so that what a broker leads spreads over all others when it stops."""
        if assigned := self.placement.assigned.get(partition):
            replicas = [*assigned]
        else:
            brokers = len(self._runs)
            turn, first = divmod(self._first + partition, brokers)
            others = [(first + 1 + (turn + at) % (brokers - 1)) % brokers for at in range(brokers - 1)]
            replicas = [first, *others][: self.placement.replicas]
        if (moved := self._moved.get(partition)) is not None:
            replicas = [moved, *(broker for broker in replicas if broker != moved)][: len(replicas)]
        return replicas

    def placed(self, on: Mapping[int, Sequence[int]]) -> Placement:
        """Return the placement with other brokers of some partitions. A partition that is added later has as many
        replicas as the first one has then."""
        known, first = self.placement, self.replicas(0)
        if len(on.get(0, first)) != len(first):
            known = Placement(len(on[0]), {partition: self.replicas(partition) for partition in range(len(self.of))})
        return replace(known, assigned={**known.assigned, **on})

    def reassign(self, on: Mapping[int, Sequence[int]]) -> list[int]:
        """Put partitions on other brokers; `elect` makes the first that runs their leader.

        :returns: those that lose a broker and keep their leader, who leads in a new epoch then, so that the replica
            that is gone cannot be taken for one (``PartitionChangeBuilder.java``)
        """
        smaller = [at for at, brokers in on.items() if not set(brokers).issuperset(self.replicas(at))]
        self.placement = self.placed(on).among(len(self._runs))
        for partition in on:
            self._moved.pop(partition, None)
        return [partition for partition in smaller if self._elected(partition) == self.of[partition]]

    def partition_of(self, key: str) -> int:
        """Return the partition of an internal topic that a group or transactional id belongs to."""
        return partition_of(key, len(self.of))

    def move(self, partition: int, to: int) -> None:
        """Prefer a broker from now on; `elect` makes it the leader."""
        self._moved[partition] = to

    def elect(self) -> list[int]:
        """Elect the leaders anew, and return the partitions that have another one now."""
        elected = [self._elected(partition) for partition in range(len(self.of))]
        changed = [partition for partition, leader in enumerate(elected) if leader != self.of[partition]]
        self.of[:] = elected
        return changed

    def _elected(self, partition: int) -> int:
        return next((broker for broker in self.replicas(partition) if self._runs[broker]), NO_LEADER)


class Brokers:
    """All brokers of a cluster.

    :param endpoints: of each broker
    :param offsets_partitions: of ``__consumer_offsets`` (``offsets.topic.num.partitions``)
    :param transactions_partitions: of ``__transaction_state`` (``transaction.state.log.num.partitions``)
    :param shares_partitions: of ``__share_group_state`` (``share.coordinator.state.topic.num.partitions``)
    :ivar endpoints: may be replaced while it runs
    :ivar groups: the leaders of ``__consumer_offsets``, which coordinate groups
    :ivar transactions: likewise of ``__transaction_state``
    :ivar shares: likewise of ``__share_group_state``
    :ivar loading: partitions of ``__consumer_offsets`` whose groups are being read from the log
    :ivar has_groups: whether a client has looked for the coordinator of a group, or the log has groups: from then on
        ``__consumer_offsets`` is among all topics, because Kafka creates it then
    :ivar has_transactions: likewise of a transactional id, and ``__transaction_state``
    :ivar has_shares: likewise of a share partition, and ``__share_group_state``
    :ivar is_plain: whether any request may be served by the broker that receives it
    """

    def __init__(
        self,
        endpoints: Iterable[Endpoint],
        *,
        offsets_partitions: int = 50,
        transactions_partitions: int = 50,
        shares_partitions: int = 50,
    ) -> None:
        self.endpoints: list[Endpoint] = list(endpoints)
        self.loading: frozenset[int] = frozenset()
        self.has_groups = self.has_transactions = self.has_shares = False
        self.is_plain: bool = len(self.endpoints) == 1
        self._runs = [True] * len(self.endpoints)
        self.groups: Leaders = self.place(OFFSETS_TOPIC, offsets_partitions)
        self.transactions: Leaders = self.place(TRANSACTIONS_TOPIC, transactions_partitions)
        self.shares: Leaders = self.place(SHARES_TOPIC, shares_partitions)

    # ---- brokers

    def node_of(self, broker: int) -> int:
        """Return the node id of a broker; -1 of `NO_LEADER`."""
        return NO_LEADER if broker == NO_LEADER else self.endpoints[broker].node_id

    def with_node(self, node_id: int) -> int:
        """Return the broker with a node id.

        :raises ValueError: there is no such broker
        """
        known = [endpoint.node_id for endpoint in self.endpoints]
        if type(node_id) is not int or node_id not in known:
            raise ValueError(f"there is no broker {node_id!r}; there are {known[0]} to {known[-1]}")
        return known.index(node_id)

    @property
    def running(self) -> list[int]:
        """The brokers that run, in order; the first is the controller."""
        return [broker for broker, runs in enumerate(self._runs) if runs]

    def runs(self, broker: int) -> bool:
        """Return whether a broker runs."""
        return self._runs[broker]

    def set_running(self, broker: int, runs: bool) -> None:
        """Note that a broker has begun or ceased to run; `Leaders.elect` draws the consequences for each topic."""
        self._runs[broker] = runs

    def place(self, name: str, partitions: int, placement: Placement = EVERYWHERE) -> Leaders:
        """Return the leaders of a new topic."""
        return Leaders(name, partitions, self._runs, placement)

    # ---- coordinators

    def set_loading(self, partitions: Iterable[int]) -> None:
        """Note which partitions of ``__consumer_offsets`` are being read."""
        self.loading = frozenset(partitions)
        self.is_plain = len(self.endpoints) == 1 and not self.loading

    def coordinator_of(self, leaders: Leaders, key: str) -> Endpoint | None:
        """Return the broker that coordinates a group or transactional id; None if none runs."""
        leader = leaders.of[leaders.partition_of(key)]
        return None if leader == NO_LEADER else self.endpoints[leader]

    def refuses(self, leaders: Leaders, key: str, broker: int) -> ErrorCode:
        """Return why a broker cannot serve a group or transactional id: NOT_COORDINATOR, or for a group
        COORDINATOR_LOAD_IN_PROGRESS; NONE if it can."""
        partition = leaders.partition_of(key)
        if leaders.of[partition] != broker:
            return ErrorCode.NOT_COORDINATOR
        is_loading = leaders is self.groups and partition in self.loading
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_loading else ErrorCode.NONE


def route(brokers: Brokers, request: Any, version: int, broker: int) -> Split:
    """Split a request for a coordinator into what the broker that has received it may serve, and what it refuses."""
    api = api_of(request)
    if api is None or api.coordinator is None:
        return request, None
    is_group = api.coordinator is Kind.GROUP
    leaders = brokers.groups if is_group else brokers.transactions
    if api.listed is not None:
        return request, api.leave_out(lambda name: brokers.refuses(leaders, name, broker))
    if api.batch_from is not None and version >= api.batch_from:
        return api.batches[0].split(request, version, lambda item: brokers.refuses(leaders, id_of(item), broker))
    name = getattr(request, api.group if is_group else api.transaction)
    # A transactional id is None for an idempotent producer, empty for a broker's batch.
    error = brokers.refuses(leaders, name, broker) if name or is_group else ErrorCode.NONE
    if not error:
        return request, None
    if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and isinstance(request, m.HeartbeatRequest):
        return refuse_request(m.HeartbeatResponse())
    return refuse_request(refusal(request, version, error))
