"""The groups of a watch for Prometheus.

========================================  =========================================================================
sample                                    what it is
========================================  =========================================================================
kcoord_watch_up                           1 if the last poll was answered
kcoord_watch_polls_total                  polls, by ``outcome``: answered, missed
kcoord_watch_groups                       groups that are watched
kcoord_watch_groups_left_out              groups that are not, beyond the limit of the watch
kcoord_watch_last_answer_seconds          when the last answer came, in seconds since 1970
kcoord_group_state                        1 for the ``state`` that the ``group`` is in, 0 for the others; none of it
                                          while the group is not described
kcoord_group_members                      members of the ``group``
kcoord_group_lag                          records behind, by ``group`` and ``topic``
kcoord_group_growing_partitions           partitions of the ``group`` that grow behind
kcoord_group_paused_partitions            partitions of the ``group`` that had an owner and have none
kcoord_group_rebalances_total             rebalances that have ended, by ``group`` and ``cause``
kcoord_group_rebalancing_seconds_total    time that the ``group`` was seen rebalancing
========================================  =========================================================================

Laws:

* Series are bounded: groups by the limit of the watch, states and causes by their lists, topics by `MOST_TOPICS` of a
  group; the lag of further topics is summed under the topic ``(other)``.
* Every label is escaped by prometheus-client. A group that is gone has no series.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from kcoord_wire.kernel.metrics import Exporter, family
from kcoord_wire.watch.groups import GroupView, Snapshot

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

MOST_TOPICS: Final = 100
OTHER_TOPICS: Final = "(other)"  # no topic can have this name
STATES: Final = ("Empty", "PreparingRebalance", "CompletingRebalance", "Reconciling", "Stable")


class WatchMetrics(Exporter):
    """What a snapshot shows.

    :param read: returns the present one; called at each scrape, in the scraping thread
    """

    def __init__(self, read: Callable[[], Snapshot]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Yield the current samples."""
        now = self._read()
        gauge, counter = partial(family, "Gauge"), partial(family, "Counter")
        answered, missed = now.polls
        polls = {("answered",): answered, ("missed",): missed}
        yield gauge("watch_up", "Whether the last poll was answered", {(): float(answered > 0 and not now.unanswered)})
        yield counter("watch_polls", "Polls", polls, "outcome")
        yield gauge("watch_groups", "Groups that are watched", {(): len(now.groups)})
        yield gauge("watch_groups_left_out", "Groups that are not watched", {(): now.left_out})
        if now.answered_ns is not None:
            yield gauge("watch_last_answer_seconds", "When the last answer came", {(): now.answered_ns / 1e9})
        described = [view for view in now.groups if view.state is not None]
        states = {(view.group_id, name): float(view.state == name) for view in described for name in STATES}
        yield gauge("group_state", "State of the group", states, "group", "state")
        members = {(view.group_id,): len(view.members) for view in described}
        yield gauge("group_members", "Members", members, "group")
        lags = {(view.group_id, topic): lag for view in now.groups for topic, lag in _by_topic(view)}
        yield gauge("group_lag", "Records behind", lags, "group", "topic")
        growing = {(view.group_id,): len(view.growing) for view in now.groups}
        yield gauge("group_growing_partitions", "Partitions that grow behind", growing, "group")
        paused = {(view.group_id,): view.paused for view in described}
        yield gauge("group_paused_partitions", "Partitions that had an owner and have none", paused, "group")
        causes = {(view.group_id, cause): count for view in now.groups for cause, count in view.causes.items()}
        yield counter("group_rebalances", "Rebalances that have ended", causes, "group", "cause")
        times = {(view.group_id,): view.rebalancing_ms / 1000 for view in now.groups}
        yield counter("group_rebalancing_seconds", "Time that it was seen rebalancing", times, "group")


def _by_topic(view: GroupView) -> Iterator[tuple[str, int]]:
    lags: Counter[str] = Counter()
    for (topic, _), lag in view.lags.items():
        lags[topic] += lag
    most = lags.most_common()
    yield from most[:MOST_TOPICS]
    if most[MOST_TOPICS:]:
        yield OTHER_TOPICS, sum(lag for _, lag in most[MOST_TOPICS:])
