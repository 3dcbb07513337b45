"""What the records of one group have told so far: members, who held what, pauses, generations, rebalances.

`log_classic` and `log_consumer` both write into it, for a group may go from one protocol to the other and keep its
members and what they hold.

Laws:

* Time does not go back: a record with an earlier timestamp than the one before it counts as of that one.
* Who gives up a partition and gets it back at the same moment has held it all the time; what lasts no time is dropped.
* A static member is the same to whoever counts moves, whatever its member id.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import fsum
from typing import Any, Final, NamedTuple

from kcoord_wire.forensics.model import (
    Cause,
    CommitRow,
    Evidence,
    Generation,
    GroupHistory,
    GroupSummary,
    Identity,
    MemberLife,
    Ownership,
    Pause,
    Rebalance,
    RemovedMember,
    StateInterval,
)

__all__ = ["GONE", "MS", "CommitTimes", "Departed", "Entry", "Ledger", "Place", "counted"]

MS: Final = 1_000_000
GONE: Final = "left or timed out"
"""Why a member has gone, where the records do not say."""

_STEADY: Final = 3  # commits that make a habit
_LEAST_SESSION_MS: Final = 1_000  # no broker lets a session be shorter in practice

Place = tuple[str, int]
"""A topic and a partition."""


class Entry(NamedTuple):
    """A record of a group: when, where, and an `OffsetsRecord`."""

    at: int
    source: str
    offset: int
    record: Any

    def evidence(self, text: str) -> Evidence:
        """This record as a fact behind a claim."""
        return Evidence(self.at, self.source, self.offset, text)


class Departed(NamedTuple):
    """A member that is gone: the likeliest cause, how sure that is, `MemberLife.why_left`, and a sentence."""

    cause: Cause
    confidence: float
    why: str
    text: str


class CommitTimes:
    """When each partition of a group was committed.

    :param times: ns, ascending within each partition
    :param ranges: where in `times` a partition's are
    """

    def __init__(self, times: Sequence[int] = (), ranges: Mapping[Place, tuple[int, int]] | None = None) -> None:
        self._times = times
        self._ranges = ranges or {}

    def between(self, place: Place, since: int, until: int) -> tuple[int, int, int]:
        """How many commits there were from `since` to `until`, and the first and the last; 0, 0, 0 for none."""
        start, end = self._ranges.get(place, (0, 0))
        first = bisect_left(self._times, since, start, end)
        after = bisect_right(self._times, until, start, end)
        return (after - first, self._times[first], self._times[after - 1]) if after > first else (0, 0, 0)


class Ledger:
    """See the head of the module.

    :ivar members: who is in the group, by member id
    :ivar held: who holds what
    :ivar paused: what was held and is not
    :ivar notes: what was found that cannot be told, with how often
    """

    def __init__(self, group_id: str, commits: CommitTimes) -> None:
        self.group_id = group_id
        self.commits = commits
        self.members: dict[str, MemberLife] = {}
        self.held: dict[Place, Ownership] = {}
        self.paused: dict[Place, Pause] = {}
        self.protocol_type: str | None = None
        self.notes: Counter[str] = Counter()
        self.rebalances: list[Rebalance] = []
        self.generations: list[Generation] = []
        self._states: list[StateInterval] = []
        self._lives: list[MemberLife] = []
        self._left: dict[str, MemberLife] = {}
        self._ownership: list[Ownership] = []
        self._pauses: list[Pause] = []
        self._former: dict[Place, Ownership] = {}

    # ---- members

    def see(self, at: int, life: MemberLife) -> MemberLife:
        """A record tells of a member, as `life` has it; its `joined_ns` and first generation count if it is new."""
        known = self.members.get(life.member_id)
        if known is None:
            self.members[life.member_id] = life
            self._left.pop(life.member_id, None)
            self._lives.append(life)
            return life
        for name in ("client_id", "client_host", "instance_id", "session_timeout_ms", "rebalance_timeout_ms"):
            setattr(known, name, getattr(life, name))
        known.topics, known.assignors, known.protocol = life.topics, life.assignors, life.protocol
        known.last_generation_id = life.last_generation_id
        known.last_seen_ns = at
        return known

    def lose(self, at: int, member_id: str, why: str, rebalance: int | None = None) -> MemberLife | None:
        """A member is gone; what it held is free, by the rebalance of this number."""
        life = self.members.pop(member_id, None)
        if life is not None:
            life.left_ns = at
            life.why_left = why
            self._left[member_id] = life
        for place in [place for place, item in self.held.items() if item.member_id == member_id]:
            self.release(at, place, rebalance)
        return life

    def revive(self, at: int) -> None:
        """Whoever has gone at this moment has not: the group has gone over to the other protocol."""
        for member_id, life in list(self._left.items()):
            if life.left_ns == at:
                life.left_ns = life.why_left = None
                self.members[member_id] = self._left.pop(member_id)
        for place, pause in list(self.paused.items()):
            if pause.from_ns == at and pause.former_member_id in self.members:
                self.give(at, place, pause.former_member_id, 0)

    def identified(self, member_id: str | None, life: MemberLife | None) -> Identity:
        """The member that triggered a rebalance; `life` is None where only its id is known."""
        if life is None:
            return Identity(member_id)
        return Identity(member_id, life.client_id, life.client_host, life.instance_id)

    def identity(self, member_id: str) -> str:
        """What stays of a member when it restarts: its instance id, else its member id."""
        life = self.members.get(member_id)
        return f"instance {life.instance_id}" if life is not None and life.instance_id is not None else member_id

    def departed(self, member_id: str, at: int, session_ms: int | None) -> Departed:
        """Why a member may have gone by `at`, told by the commits of what it holds; to be asked before `lose`.

        A commit keeps a session alive: within a session timeout after one, the session cannot have run out. Who has
        committed steadily and then not for that long, was most likely not there any more.
        """
        mine = [(place, item.from_ns) for place, item in self.held.items() if item.member_id == member_id]
        counts = [self.commits.between(place, since, at) for place, since in mine]
        last = max((last for count, _, last in counts if count), default=None)
        timeout = max(session_ms or 0, _LEAST_SESSION_MS) * MS
        who = self.named(member_id)
        if last is None:
            text = f"{who} is gone; the log does not tell whether it left, timed out or was removed"
            return Departed(Cause.MEMBER_LEFT, 0.5, GONE, text)
        quiet = (at - last) // MS
        if at - last < timeout:
            text = f"{who} is gone; it committed {quiet} ms before, so its session had not run out"
            return Departed(Cause.MEMBER_LEFT, 0.9, "left", text)
        if session_ms is not None and any(
            count >= _STEADY and (last - first) / (count - 1) * 2 < timeout for count, first, last in counts
        ):
            text = f"{who} is gone; it had committed steadily, and then not for {quiet} ms, longer than its session"
            return Departed(Cause.SESSION_EXPIRED, 0.75, "session timeout", text)
        text = f"{who} is gone, {quiet} ms after its last commit; whether it left or timed out, the log does not tell"
        return Departed(Cause.MEMBER_LEFT, 0.5, GONE, text)

    def removed(self, lives: Iterable[MemberLife]) -> list[RemovedMember]:
        """These members, as a rebalance names who it has cost."""
        return [
            RemovedMember(life.member_id, life.client_id, life.client_host, life.why_left or GONE) for life in lives
        ]

    def named(self, member_id: str) -> str:
        """A member as people call it."""
        life = self.members.get(member_id)
        if life is None:
            return member_id
        name = life.client_id or member_id
        return f"{name} (instance {life.instance_id})" if life.instance_id is not None else name

    # ---- what they hold

    def give(self, at: int, place: Place, member_id: str, generation_id: int) -> None:
        """A member holds a partition from now on."""
        current = self.held.get(place)
        if current is not None:
            if current.member_id == member_id:
                return
            current.to_ns = at
        pause = self.paused.pop(place, None)
        if pause is not None:
            pause.to_ns = at
            pause.next_member_id = member_id
            if pause.from_ns == at and pause.former_member_id == member_id:
                former = self._former[place]
                former.to_ns = None
                self.held[place] = former
                return
        life = self.members.get(member_id)
        client_id = None if life is None else life.client_id
        item = Ownership(self.group_id, place[0], place[1], member_id, client_id, generation_id, at, None)
        self.held[place] = item
        self._ownership.append(item)

    def release(self, at: int, place: Place, rebalance: int | None) -> None:
        """Nobody holds a partition from now on, by the rebalance of this number."""
        item = self.held.pop(place, None)
        if item is not None:
            item.to_ns = at
            self._former[place] = item
            pause = Pause(self.group_id, *place, at, None, item.member_id, None, rebalance)
            self.paused[place] = pause
            self._pauses.append(pause)

    def owners(self) -> dict[Place, str]:
        """Who holds each partition, or held it last, as `identity`."""
        places = {place: self.identity(pause.former_member_id) for place, pause in self.paused.items()}
        return places | {place: self.identity(item.member_id) for place, item in self.held.items()}

    def count_moves(self, before: Mapping[Place, str], rebalance: Rebalance) -> None:
        """Tell of a rebalance what has moved since `before`, as `owners` gave it."""
        after = {place: self.identity(item.member_id) for place, item in self.held.items()}
        moved = [place for place, owner in after.items() if before.get(place, owner) != owner]
        rebalance.moved = len(moved)
        stayed = {self.identity(member_id): life for member_id, life in self.members.items()}
        share = len(after) // max(len(stayed), 1)
        had = Counter(before.values())
        lost = Counter(
            before[place] for place in moved if before[place] in stayed and place[0] in stayed[before[place]].topics
        )
        rebalance.moved_needlessly = sum(max(count - max(had[owner] - share, 0), 0) for owner, count in lost.items())

    # ---- the group

    def state(self, at: int, name: str | None, generation_id: int | None) -> None:
        """The group is in a state from now on; None: it is no more."""
        if self._states and self._states[-1].to_ns is None:
            if (self._states[-1].state, self._states[-1].generation_id) == (name, generation_id):
                return
            self._states[-1].to_ns = at
        if name is not None:
            self._states.append(StateInterval(self.group_id, name, at, None, generation_id))

    def generation(self, generation: Generation) -> None:
        """A generation has begun, and so ended the one before."""
        self.end_generation(generation.joined_ns)
        self.generations.append(generation)

    def end_generation(self, at: int) -> None:
        """The generation there was is over."""
        if self.generations and self.generations[-1].ended_ns is None:
            self.generations[-1].ended_ns = at

    def deleted(self, at: int) -> None:
        """The group is no more."""
        for member_id in list(self.members):
            self.lose(at, member_id, GONE)
        for pause in self.paused.values():
            pause.to_ns = at
        self.paused.clear()
        self.end_generation(at)
        self.state(at, None, None)

    def history(self, first_ns: int, last_ns: int, commits: list[CommitRow], blind: list[str]) -> GroupHistory:
        """All of it; to be called once, at the end."""
        pauses = [item for item in self._pauses if item.from_ns != item.to_ns]
        for rebalance in self.rebalances:
            if rebalance.cooperative and rebalance.outcome == "stable":
                mine = [item for item in pauses if item.rebalance == rebalance.number and item.to_ns is not None]
                rebalance.paused_ms = fsum(((item.to_ns or 0) - item.from_ns) / MS for item in mine)
        summary = GroupSummary(
            group_id=self.group_id,
            origin="log",
            protocol_type=self.protocol_type,
            first_ns=first_ns,
            last_ns=last_ns,
            members=len(self._lives),
            generations=len(self.generations),
            rebalances=len(self.rebalances),
            exchanges=0,
            commits=sum(row.commits for row in commits),
            paused_ms=fsum((item.to_ns - item.from_ns) / MS for item in pauses if item.to_ns is not None),
            blind=blind + [counted(note, count) for note, count in sorted(self.notes.items())],
        )
        return GroupHistory(
            group=summary,
            rebalances=self.rebalances,
            generations=self.generations,
            states=[item for item in self._states if item.from_ns != item.to_ns],
            members=self._lives,
            ownership=[item for item in self._ownership if item.from_ns != item.to_ns],
            pauses=pauses,
            commits=commits,
        )


def counted(note: str, count: int) -> str:
    """A note with how often it applies: ``{}`` in it is the number, ``{s}`` the s of a plural."""
    return note.replace("{}", f"{count:,}").replace("{s}", "" if count == 1 else "s")
