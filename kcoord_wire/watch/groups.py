"""All groups of a cluster, from polls to histories: the core of the watch, and its samples for Prometheus.

    watched = Watched("127.0.0.1:9092")
    for change in watched.update(poll):
        print(change.text)
    histories = watched.histories()

Laws:

* Pure: polls and their times come in; changes, a snapshot and histories go out.
* Memory is bounded by `Limits`, however long the watch runs: of a watch with many groups each group keeps fewer rows.
* `Watched.snapshot` is a value: another thread may read it while polls come in.

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

* Series are bounded: groups by the limit of the watch, states and causes by their lists, topics by `MOST_TOPICS` of a
  group; the lag of further topics is summed under the topic ``(other)``.
* Every label is escaped by prometheus-client. A group that is gone has no series.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from kcoord_wire.forensics.detectors import detect
from kcoord_wire.forensics.model import GroupHistory, Rebalance
from kcoord_wire.kernel.metrics import Exporter, family
from kcoord_wire.report.formatting import shown
from kcoord_wire.watch.polled_group import Change, ChangeKind, GroupWatch
from kcoord_wire.watch.seen import Missed, Place, Poll, Unanswered, who

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


_LEAST_ROWS: Final = 100  # of a table, however many groups there are


@dataclass(frozen=True, slots=True)
class Limits:
    """What is kept.

    :ivar groups: that are watched, and as many again that are gone
    :ivar rows: of each table, over all groups
    :ivar lag_rows: of the table `lag`, over all groups
    """

    groups: int = 500
    rows: int = 100_000
    lag_rows: int = 500_000


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member now. `places` are those it holds, `lag` is their sum; None where no offset is known."""

    name: str
    places: tuple[Place, ...]
    lag: int | None


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group now.

    :ivar state: None where the last poll did not describe it; `unanswered` says why
    :ivar since_ns: first poll that showed the state
    :ivar is_older: that was the first poll of all, so that the group may have been in it for long
    :ivar waits_for: members that the rebalance under way may wait for
    :ivar lags: by partition, where an offset is committed
    :ivar growing: partitions that grow behind, with records a second, the fastest first
    :ivar paused: partitions that had an owner and have none
    :ivar causes: rebalances that have ended, by cause
    :ivar rebalancing_ms: time that it was seen rebalancing
    """

    group_id: str
    state: str | None
    since_ns: int
    is_older: bool
    protocol: str
    assignor: str | None
    members: tuple[MemberView, ...]
    waits_for: tuple[str, ...]
    rebalance: Rebalance | None
    lags: Mapping[Place, int]
    growing: tuple[tuple[Place, float], ...]
    paused: int
    causes: Mapping[str, int]
    rebalancing_ms: float
    unanswered: str | None

    @property
    def lag(self) -> int | None:
        """The sum over the partitions; None where no offset is known."""
        return sum(self.lags.values()) if self.lags else None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The groups after the last poll, in order of their names.

    :ivar answered_ns: of the last poll that was answered; None before
    :ivar unanswered: why the last one was not; None if it was
    :ivar polls: so far, answered and not
    :ivar left_out: groups beyond `Limits.groups`
    """

    groups: tuple[GroupView, ...] = ()
    answered_ns: int | None = None
    unanswered: str | None = None
    polls: tuple[int, int] = (0, 0)
    left_out: int = 0


@dataclass(slots=True)
class Watched:
    """Follows all groups.

    :param source: ``host:port`` of the cluster
    :ivar snapshot: what is known now
    """

    source: str
    limits: Limits = field(default_factory=Limits)
    snapshot: Snapshot = field(default_factory=Snapshot)
    _groups: dict[str, GroupWatch] = field(default_factory=dict)
    _gone: dict[str, GroupWatch] = field(default_factory=dict)

    def wanted(self, group_ids: Collection[str]) -> list[str]:
        """Return which of these groups are watched: those that already are first, then by name."""
        return sorted(group_ids, key=lambda each: (each not in self._groups, each))[: self.limits.groups]

    def update(self, poll: Poll, *, left_out: int = 0) -> list[Change]:
        """Take in the answers of a poll; return what has changed.

        :param left_out: groups that were not asked about, beyond the limit
        """
        now, changes = poll.time_ns, []
        last = self.snapshot
        if last.unanswered is not None:
            changes.append(Change(now, None, ChangeKind.ANSWERED, f"{self.source} answers again"))
        for group_id in self._groups.keys() - poll.groups.keys() - poll.unanswered.keys():
            group = self._groups.pop(group_id)
            self._gone[group_id] = group
            changes += group.gone(now)
        for group_id, why in sorted(poll.unanswered.items()):
            group = self._group(group_id, now)
            changes += group.miss(now, why, None if group.seen is None else group.seen.coordinator)
        for group_id, seen in sorted(poll.groups.items()):
            is_new = group_id not in self._groups and last.answered_ns is not None
            group = self._group(group_id, now)
            changes += group.update(now, seen, is_new=is_new)
            if group_id in poll.committed:
                changes += group.update_offsets(now, poll.committed[group_id], poll.ends)
        self._trim()
        answered, missed = last.polls
        self.snapshot = Snapshot(self._views(), now, None, (answered + 1, missed), left_out)
        return changes

    def miss(self, missed: Missed) -> list[Change]:
        """Take in that no broker answered; return what has changed."""
        now, last = missed.time_ns, self.snapshot
        changes = []
        if last.unanswered is None:
            text = f"{missed.broker} does not answer: {shown(missed.text, 200)}"
            changes.append(Change(now, None, ChangeKind.UNANSWERED, text))
        for group in self._groups.values():
            group.miss(now, Unanswered("broker down", missed.text), missed.broker)
        answered, count = last.polls
        self.snapshot = Snapshot(self._views(), last.answered_ns, missed.text, (answered, count + 1), last.left_out)
        return changes

    def histories(self) -> list[GroupHistory]:
        """Return the history of each group, with its findings, in order of their names."""
        histories = []
        for _, group in sorted((self._gone | self._groups).items()):
            history = group.history()
            history.findings = detect(history)
            histories.append(history)
        return histories

    def _group(self, group_id: str, now: int) -> GroupWatch:
        if group_id in self._gone:  # deleted, and there again
            self._groups[group_id] = self._gone.pop(group_id)
        if group_id not in self._groups:
            self._groups[group_id] = GroupWatch(group_id, self.source, now)
        return self._groups[group_id]

    def _trim(self) -> None:
        while len(self._gone) > self.limits.groups:
            del self._gone[next(iter(self._gone))]
        count = max(len(self._groups) + len(self._gone), 1)
        for group in (*self._groups.values(), *self._gone.values()):
            group.trim(max(self.limits.rows // count, _LEAST_ROWS), max(self.limits.lag_rows // count, _LEAST_ROWS))

    def _views(self) -> tuple[GroupView, ...]:
        return tuple(_view(group) for _, group in sorted(self._groups.items()))


def _view(group: GroupWatch) -> GroupView:
    seen = group.seen
    lags = {place: row.lag for place, row in group.lag.now.items() if row.lag is not None}
    members = []
    for member in () if seen is None else seen.members.values():
        places = tuple(group.held_by(member.member_id))
        known = [lags[place] for place in places if place in lags]
        members.append(MemberView(who(member), places, sum(known) if known else None))
    return GroupView(
        group_id=group.group_id,
        state=None if seen is None or group.unanswered is not None else seen.state,
        since_ns=group.since_ns,
        is_older=group.is_older,
        protocol="" if seen is None else seen.protocol,
        assignor=None if seen is None else seen.assignor,
        members=tuple(sorted(members, key=lambda each: each.name)),
        waits_for=tuple(sorted(who(member) for member in group.waits_for)),
        rebalance=group.rebalance,
        lags=lags,
        growing=tuple(group.lag.growth()),
        paused=group.paused,
        causes=dict(group.causes),
        rebalancing_ms=group.rebalancing_ns / 1e6,
        unanswered=None if group.unanswered is None else group.unanswered.text,
    )


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
