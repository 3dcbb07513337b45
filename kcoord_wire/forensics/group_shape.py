"""What a group looks like from outside: its size, its settings, and how long its applications take for a rebalance.

Laws:

* A fact is measured in the source or it is absent; every fact says where it is from.
* Durations are medians, so that a stalled member does not decide them.
* Only the classic protocol has these facts: in KIP-848 no member joins or syncs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.forensics.model import NS_PER_MS, Generation, GroupHistory, MemberLife
from kcoord_wire.protocol.error_codes import ErrorCode

_COLUMNS: Final = ["api", "connection", "asked_ns", "answered_ns", "error_code", "member_id", "assignment"]
_READ: Final = ["JoinGroup", "SyncGroup", "Heartbeat", "OffsetFetch"]
_SHORT_MS: Final = 10  # a client that opens nothing before it fetches offsets does so in less


class Fact(NamedTuple):
    """Something that was observed of a group.

    :ivar name: ``members``, ``topics`` (name to number of partitions), ``assignor``, ``is_cooperative``, ``is_static``,
        ``library``, ``session_timeout_ms``, ``rebalance_timeout_ms``, ``heartbeat_interval_ms``; ``revoke_ms`` and
        ``assign_ms``, for one partition; ``poll_ms``, from the news of a rebalance to the JoinGroup of a member that
        gave up nothing; ``down_ms``, from a member's LeaveGroup to its next JoinGroup
    :ivar value: as the name says
    :ivar source: what it was taken from, in words
    """

    name: str
    value: Any
    source: str


def shape_of(history: GroupHistory, exchanges: pa.Table) -> list[Fact]:
    """Return the facts about a group, in the order of `Fact.name`'s list; absent ones are left out.

    :param exchanges: rows of `Exchange` of the group
    """
    stable = [each for each in history.generations if each.stable_ns is not None and each.assignor]
    facts = [*_of_generations(history, stable), *_of_members(history.members)]
    is_cooperative = any(fact.name == "is_cooperative" and fact.value for fact in facts)
    facts += _durations(_watch(exchanges, is_cooperative=is_cooperative), is_cooperative=is_cooperative)
    return [*facts, *_absences(history.members)]


def _of_generations(history: GroupHistory, stable: Sequence[Generation]) -> Iterator[Fact]:
    if not stable:
        return
    largest = max(stable, key=lambda each: each.members)
    yield Fact("members", largest.members, f"generation {largest.generation_id}, the largest")
    topics: dict[str, set[int]] = {}
    for row in history.ownership:
        topics.setdefault(row.topic, set()).add(row.partition)
    counts = {topic: len(numbers) for topic, numbers in sorted(topics.items())}
    yield Fact("topics", counts, f"{sum(counts.values())} partitions that SyncGroup assigned")
    last = stable[-1]
    yield Fact("assignor", last.assignor, f"chosen for generation {last.generation_id}")
    known = [each.cooperative for each in history.rebalances if each.cooperative is not None]
    if known:
        yield Fact("is_cooperative", known[-1], "what members kept during the last rebalance")


def _of_members(members: Sequence[MemberLife]) -> Iterator[Fact]:
    static = sum(life.instance_id is not None for life in members)
    if members:
        yield Fact("is_static", static * 2 > len(members), f"{static} of {len(members)} members have an instance id")
    for name in ("library", "session_timeout_ms", "rebalance_timeout_ms"):
        values = Counter(value for life in members if (value := getattr(life, name)) is not None)
        for value, count in values.most_common(1):
            yield Fact(name, value, f"JoinGroup of {count} of {len(members)} members")


def _absences(members: Sequence[MemberLife]) -> Iterator[Fact]:
    """How long members were away that left and came back: by instance id, or by client id and host."""
    lives: dict[Any, list[MemberLife]] = {}
    for life in sorted(members, key=lambda life: life.joined_ns):
        lives.setdefault(life.instance_id or (life.client_id, life.client_host), []).append(life)
    away = []
    for same in lives.values():
        for before, after in pairwise(same):
            if before.left_ns is not None and before.why_left == "left" and after.joined_ns >= before.left_ns:
                away.append((after.joined_ns - before.left_ns) / NS_PER_MS)
    if away:
        yield Fact("down_ms", round(median(away)), f"LeaveGroup to the next JoinGroup of a client, {_times(away)}")


# ---- durations, from the requests of single members


@dataclass(slots=True)
class _Measured:
    """What was measured, in ms.

    :ivar heartbeats: between two heartbeats of a member in one generation
    :ivar rejoined: from the news of a rebalance to the member's JoinGroup, and how many partitions it had
    :ivar gave_up: from an assignment that takes partitions away to the follow-up JoinGroup, and how many it took
    :ivar opened: from an assignment to the fetch of its offsets, and how many partitions are new in it
    """

    heartbeats: list[float] = field(default_factory=list)
    rejoined: list[tuple[float, int]] = field(default_factory=list)
    gave_up: list[tuple[float, int]] = field(default_factory=list)
    opened: list[tuple[float, int]] = field(default_factory=list)


@dataclass(slots=True)
class _Member:
    """A member, as its requests show it so far; times in ns.

    :ivar owned: its partitions after the last SyncGroup
    :ivar heartbeat_at: when it sent its last heartbeat of the generation
    :ivar notified_at: when its heartbeat returned the rebalance that it has not joined yet
    :ivar lost: when the last assignment took partitions away, and how many
    """

    owned: set[tuple[str, int]] = field(default_factory=set)
    heartbeat_at: int | None = None
    notified_at: int | None = None
    lost: tuple[int, int] | None = None


class _Watcher:
    """Follows the members of a group through its exchanges in order of time."""

    def __init__(self, *, is_cooperative: bool) -> None:
        self.found = _Measured()
        self._is_cooperative = is_cooperative
        self._members: dict[str, _Member] = {}
        self._assigned: dict[str, tuple[int, int]] = {}  # by connection: when the last assignment came, new partitions

    def add(self, row: dict[str, Any]) -> None:
        """Take in one exchange."""
        if row["api"] == "OffsetFetch":
            since, count = self._assigned.pop(row["connection"], (0, 0))
            if count:
                self.found.opened.append(((row["asked_ns"] - since) / NS_PER_MS, count))
        elif row["member_id"]:
            member = self._members.setdefault(row["member_id"], _Member())
            {"Heartbeat": self._heartbeat, "JoinGroup": self._join, "SyncGroup": self._sync}[row["api"]](member, row)

    def _heartbeat(self, member: _Member, row: dict[str, Any]) -> None:
        if member.heartbeat_at is not None:
            self.found.heartbeats.append((row["asked_ns"] - member.heartbeat_at) / NS_PER_MS)
        member.heartbeat_at = row["asked_ns"]
        if row["error_code"] == ErrorCode.REBALANCE_IN_PROGRESS and member.notified_at is None:
            member.notified_at = row["answered_ns"]

    def _join(self, member: _Member, row: dict[str, Any]) -> None:
        self._assigned.pop(row["connection"], None)
        if member.notified_at is not None:
            self.found.rejoined.append(((row["asked_ns"] - member.notified_at) / NS_PER_MS, len(member.owned)))
        elif member.lost is not None and self._is_cooperative:
            since, count = member.lost
            self.found.gave_up.append(((row["asked_ns"] - since) / NS_PER_MS, count))
        member.heartbeat_at = member.notified_at = member.lost = None
        if not self._is_cooperative:
            member.owned = set()

    def _sync(self, member: _Member, row: dict[str, Any]) -> None:
        if row["assignment"] is None or row["answered_ns"] is None:
            return
        owned = {(each["topic"], number) for each in row["assignment"] for number in each["partitions"]}
        gone, new = member.owned - owned, owned - member.owned
        member.owned, member.heartbeat_at = owned, None
        member.lost = (row["answered_ns"], len(gone)) if gone else None
        self._assigned[row["connection"]] = (row["answered_ns"], len(new))


def _watch(exchanges: pa.Table, *, is_cooperative: bool) -> _Measured:
    wanted = exchanges.select(_COLUMNS).filter(pc.is_in(exchanges["api"], pa.array(_READ)))
    watcher = _Watcher(is_cooperative=is_cooperative)
    for row in wanted.sort_by("asked_ns").to_pylist():
        watcher.add(row)
    return watcher.found


def _durations(watched: _Measured, *, is_cooperative: bool) -> Iterator[Fact]:
    if watched.heartbeats:
        text = f"between two heartbeats of a member, {_times(watched.heartbeats)}"
        yield Fact("heartbeat_interval_ms", round(median(watched.heartbeats)), text)
    what = "assignment that took partitions" if is_cooperative else "news of a rebalance"
    if each := _per_partition(watched.gave_up if is_cooperative else watched.rejoined):
        text = f"{what} to the member's JoinGroup, divided by its partitions, {_times(each)}"
        yield Fact("revoke_ms", round(median(each)), text)
    each = _per_partition(watched.opened)
    if each and median(ms for ms, _ in watched.opened) >= _SHORT_MS:
        text = f"assignment to the fetch of its offsets, divided by its partitions, {_times(each)}"
        yield Fact("assign_ms", round(median(each)), text)
    empty = [ms for ms, count in watched.rejoined if ms >= 0 and (is_cooperative or count == 0)]
    if empty:
        text = f"news of a rebalance to the JoinGroup of a member that gave up nothing, {_times(empty)}"
        yield Fact("poll_ms", round(median(empty)), text)


def _per_partition(measured: Iterable[tuple[float, int]]) -> list[float]:
    """The durations by partition; a negative one is of a heartbeat that was answered after the JoinGroup."""
    return [ms / count for ms, count in measured if ms >= 0 and count > 0]


def _times(measured: Sequence[float]) -> str:
    """How often, and from the least to the most."""
    once = len(measured) == 1
    span = f"{measured[0]:,.0f} ms" if once else f"{min(measured):,.0f} to {max(measured):,.0f} ms"
    return f"{'once' if once else f'{len(measured)} times'}, {span}"
