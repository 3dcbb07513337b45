"""All groups of a cluster, from polls to histories: the core of the watch.

    watched = Watched("127.0.0.1:9092")
    for change in watched.take(poll):
        print(change.text)
    histories = watched.histories()

Laws:

* Pure: polls and their times come in; changes, a snapshot and histories go out.
* Memory is bounded by `Limits`, however long the watch runs: of a watch with many groups each group keeps fewer rows.
* `Watched.snapshot` is a value: another thread may read it while polls come in.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from kcoord_wire.forensics.detectors import detect
from kcoord_wire.forensics.model import GroupHistory, Rebalance
from kcoord_wire.report.formatting import shown
from kcoord_wire.watch.causes import who
from kcoord_wire.watch.changes import Change, ChangeKind
from kcoord_wire.watch.group import GroupWatch
from kcoord_wire.watch.seen import Missed, Place, Poll, Unanswered

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

    def take(self, poll: Poll, *, left_out: int = 0) -> list[Change]:
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
            changes += group.take(now, seen, is_new=is_new)
            if group_id in poll.committed:
                changes += group.take_offsets(now, poll.committed[group_id], poll.ends)
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
