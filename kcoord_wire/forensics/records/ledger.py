"""What the records of one group have shown so far: members, owners, pauses, generations, rebalances.

`classic` and `kip848` both write into it, because a group may change from one protocol to the other and keep its
members and what they hold. `kcoord_wire.watch` writes into it what polls of the Admin API show.

Laws:

* Time never decreases: a record with an earlier timestamp than the record before it counts at that record's time.
* A member that gives up a partition and gets it back at the same moment has held it all the time; intervals of no
  length are dropped.
* A group whose members have left is stopped, not paused: its pauses end when it is empty.
* When moves are counted, a static member is the same one whatever its member id.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import fsum
from typing import Any, Final, NamedTuple

from kcoord_wire.forensics.model import (
    NS_PER_MS,
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

GONE: Final = "left or timed out"
"""`MemberLife.why_left` where the records do not show which."""

_STEADY: Final = 3  # commits that make a habit
_LEAST_SESSION_MS: Final = 1_000  # brokers allow no shorter session in practice
_LISTED: Final = 8  # names in a sentence
_EXPLAINED: Final = 4  # departures in a sentence

Place = tuple[str, int]
"""A topic and a partition."""


class Entry(NamedTuple):
    """A record of a group.

    :ivar at: its time, in nanoseconds since 1970
    :ivar source: file, or topic and partition, that it is from
    :ivar offset: of the record
    :ivar record: an `OffsetsRecord`
    """

    at: int
    source: str
    offset: int
    record: Any

    def evidence(self, text: str) -> Evidence:
        """Return this record as evidence for what `text` says."""
        return Evidence(self.at, self.source, self.offset, text)


class Explanation(NamedTuple):
    """Why a generation or an epoch began: as `Rebalance` has it."""

    cause: Cause
    confidence: float
    detail: str
    member_id: str | None = None


class Departed(NamedTuple):
    """A member that is gone.

    :ivar cause: likeliest cause
    :ivar confidence: in that cause
    :ivar why: as `MemberLife.why_left`
    :ivar text: the same in a sentence
    """

    life: MemberLife
    cause: Cause
    confidence: float
    why: str
    text: str


class CommitTimes:
    """When each partition of a group was committed.

    :param times: nanoseconds since 1970, ascending within each partition
    :param ranges: start and end of each partition's part of `times`
    """

    def __init__(self, times: Sequence[int] = (), ranges: Mapping[Place, tuple[int, int]] | None = None) -> None:
        self._times = times
        self._ranges = ranges or {}

    def between(self, place: Place, since: int, until: int) -> tuple[int, int, int]:
        """Return how many commits there were from `since` to `until`, the first and the last; 0, 0, 0 for none."""
        start, end = self._ranges.get(place, (0, 0))
        first = bisect_left(self._times, since, start, end)
        after = bisect_right(self._times, until, start, end)
        return (after - first, self._times[first], self._times[after - 1]) if after > first else (0, 0, 0)


class Ledger:
    """Collects the tables of one group from what its records show, see the laws of the module.

    :ivar commits: when the group's partitions were committed
    :ivar members: members of the group, by member id
    :ivar held: what each partition's present owner holds
    :ivar paused: the pauses of partitions that had an owner and have none
    :ivar protocol_type: of the group; None while it is not known
    :ivar notes: sentences for `GroupSummary.blind`, with how often each applies
    :ivar rebalances: so far
    :ivar generations: so far
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
        """Record a member as `life` describes it; `joined_ns` and the first generation count only if it is new."""
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
        """Remove a member and release what it held, in the rebalance of that number."""
        life = self.members.pop(member_id, None)
        if life is not None:
            life.left_ns = at
            life.why_left = why
            self._left[member_id] = life
        for place in [place for place, item in self.held.items() if item.member_id == member_id]:
            self.release(at, place, rebalance)
        return life

    def revive(self, at: int) -> None:
        """Restore the members that were removed at this moment: the group has changed to the other protocol."""
        for member_id, life in list(self._left.items()):
            if life.left_ns == at:
                life.left_ns = life.why_left = None
                self.members[member_id] = self._left.pop(member_id)
        for place, pause in list(self.paused.items()):
            if pause.from_ns == at and pause.former_member_id in self.members:
                self.give(at, place, pause.former_member_id, 0)

    def key_of(self, member_id: str) -> str:
        """Return what identifies a member across restarts: its instance id, else its member id."""
        life = self.members.get(member_id)
        return f"instance {life.instance_id}" if life is not None and life.instance_id is not None else member_id

    def departed(self, life: MemberLife, at: int) -> Departed:
        """Explain why a member may be gone by `at`, from the commits of what it holds; call it before `lose`.

        A commit keeps a session alive: within a session timeout after one, the session cannot have expired. A member
        that committed steadily and then not for that long was most likely not running any more.
        """
        mine = [(place, item.from_ns) for place, item in self.held.items() if item.member_id == life.member_id]
        counts = [self.commits.between(place, since, at) for place, since in mine]
        last = max((last for count, _, last in counts if count), default=None)
        timeout = max(life.session_timeout_ms or 0, _LEAST_SESSION_MS) * NS_PER_MS
        who = self.named(life.member_id)
        if last is None:
            text = f"{who} is gone; the log does not show whether it left, timed out or was removed"
            return Departed(life, Cause.MEMBER_LEFT, 0.5, GONE, text)
        quiet = (at - last) // NS_PER_MS
        if at - last < timeout:
            text = f"{who} is gone; it committed {quiet} ms before, so its session had not run out"
            return Departed(life, Cause.MEMBER_LEFT, 0.9, "left", text)
        if life.session_timeout_ms is not None and any(
            count >= _STEADY and (last - first) / (count - 1) * 2 < timeout for count, first, last in counts
        ):
            text = f"{who} is gone; it had committed steadily, and then not for {quiet} ms, longer than its session"
            return Departed(life, Cause.SESSION_EXPIRED, 0.75, "session timeout", text)
        text = f"{who} is gone, {quiet} ms after its last commit; the log does not show whether it left or timed out"
        return Departed(life, Cause.MEMBER_LEFT, 0.5, GONE, text)

    def named(self, member_id: str) -> str:
        life = self.members.get(member_id)
        return member_id if life is None else name_of(life)

    # ---- rebalances

    def begin_generation(
        self, generation_id: int, rebalance: Rebalance, stable_ns: int | None, partitions: int
    ) -> None:
        """Record the generation that a rebalance leads to; the one before it ends."""
        self.end_generation(rebalance.started_ns)
        self.generations.append(
            Generation(
                group_id=self.group_id,
                generation_id=generation_id,
                joined_ns=rebalance.started_ns,
                stable_ns=stable_ns,
                ended_ns=None,
                assignor=rebalance.assignor,
                leader_id=rebalance.leader_id,
                members=rebalance.members_after,
                partitions=partitions,
            )
        )

    def end_generation(self, at: int) -> None:
        if self.generations and self.generations[-1].ended_ns is None:
            self.generations[-1].ended_ns = at

    def empty(self, at: int, generation_id: int) -> None:
        self.end_generation(at)
        self.state(at, "Empty", generation_id)

    # ---- owners

    def give(self, at: int, place: Place, member_id: str, generation_id: int) -> None:
        """Record that a member holds a partition from now on."""
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
        """Record that a partition has no owner from now on, because of the rebalance of that number."""
        item = self.held.pop(place, None)
        if item is not None:
            item.to_ns = at
            self._former[place] = item
            pause = Pause(self.group_id, *place, at, None, item.member_id, None, rebalance)
            self.paused[place] = pause
            self._pauses.append(pause)

    def owners(self) -> dict[Place, str]:
        """Return the owner of each partition, or its last one, as `key_of` identifies it."""
        places = {place: self.key_of(pause.former_member_id) for place, pause in self.paused.items()}
        return places | {place: self.key_of(item.member_id) for place, item in self.held.items()}

    def count_moves(self, before: Mapping[Place, str], rebalance: Rebalance) -> None:
        """Set how many partitions a rebalance has moved since `before`, which `owners` returned."""
        after = {place: self.key_of(item.member_id) for place, item in self.held.items()}
        moved = [place for place, owner in after.items() if before.get(place, owner) != owner]
        rebalance.moved = len(moved)
        stayed = {self.key_of(member_id): life for member_id, life in self.members.items()}
        share = len(after) // max(len(stayed), 1)
        had = Counter(before.values())
        lost = Counter(
            before[place] for place in moved if before[place] in stayed and place[0] in stayed[before[place]].topics
        )
        rebalance.moved_needlessly = sum(max(count - max(had[owner] - share, 0), 0) for owner, count in lost.items())

    # ---- the group

    def state(self, at: int, name: str | None, generation_id: int | None) -> None:
        """Record the state of the group from now on; None: the group does not exist any more."""
        if self._states and self._states[-1].to_ns is None:
            if (self._states[-1].state, self._states[-1].generation_id) == (name, generation_id):
                return
            self._states[-1].to_ns = at
        if name is not None:
            self._states.append(StateInterval(self.group_id, name, at, None, generation_id))

    def deleted(self, at: int) -> None:
        for member_id in list(self.members):
            self.lose(at, member_id, GONE)
        for pause in self.paused.values():
            pause.to_ns = at
        self.paused.clear()
        self.end_generation(at)
        self.state(at, None, None)

    def trim(self, most: int) -> bool:
        """Drop the older half of each table that has more than `most` rows, but for rows that are still open; return
        whether any was dropped. For a source that goes on for days."""
        tables: list[list[Any]] = [self.rebalances, self.generations, self._states, self._lives, self._ownership]
        sizes = [len(rows) for rows in (*tables, self._pauses)]
        if max(sizes) <= most:
            return False
        for rows in (*tables, self._pauses):
            if len(rows) > most:
                half = len(rows) // 2
                rows[:half] = [row for row in rows[:half] if _end_of(row) is None]
        self._left.clear()
        return True

    def _end_pauses_of_stopped_groups(self) -> None:
        """End each pause where the group became empty, unless a member had failed by then."""
        failed = {life.left_ns for life in self._lives if life.why_left == "session timeout"}
        stopped = [row.from_ns for row in self._states if row.state == "Empty" and row.from_ns not in failed]
        for pause in self._pauses:
            at = bisect_left(stopped, pause.from_ns)
            if at < len(stopped) and (pause.to_ns is None or stopped[at] < pause.to_ns):
                pause.to_ns, pause.next_member_id = stopped[at], None

    def history(
        self, first_ns: int, last_ns: int, commits: list[CommitRow], blind: list[str], *, origin: str = "log"
    ) -> GroupHistory:
        """Return the tables; later records change their rows."""
        self._end_pauses_of_stopped_groups()
        pauses = [item for item in self._pauses if item.from_ns != item.to_ns]
        for rebalance in self.rebalances:
            if rebalance.cooperative and rebalance.outcome == "stable":
                rebalance.paused_ms = _paused_ms(item for item in pauses if item.rebalance == rebalance.number)
        summary = GroupSummary(
            group_id=self.group_id,
            origin=origin,
            protocol_type=self.protocol_type,
            first_ns=first_ns,
            last_ns=last_ns,
            members=len(self._lives),
            generations=len(self.generations),
            rebalances=len(self.rebalances),
            exchanges=0,
            commits=sum(row.commits for row in commits),
            paused_ms=_paused_ms(pauses),
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


def _end_of(row: Any) -> int | None:
    names = ("to_ns", "left_ns", "ended_ns")
    end: int | None = next(getattr(row, name) for name in names if hasattr(row, name))
    return end


def _paused_ms(pauses: Iterable[Pause]) -> float:
    return fsum((item.to_ns - item.from_ns) / NS_PER_MS for item in pauses if item.to_ns is not None)


def removed_members(lives: Iterable[MemberLife]) -> list[RemovedMember]:
    """Return these members as `Rebalance.removed` lists them."""
    return [RemovedMember(life.member_id, life.client_id, life.client_host, life.why_left or GONE) for life in lives]


def identity_of(member_id: str | None, *known: Mapping[str, MemberLife]) -> Identity:
    """Return the member of that id as a rebalance names its trigger, from the first mapping that has it."""
    life = next((lives[member_id] for lives in known if member_id in lives), None) if member_id is not None else None
    if life is None:
        return Identity(member_id)
    return Identity(member_id, life.client_id, life.client_host, life.instance_id)


def explain_departures(gone: Mapping[str, Departed]) -> Explanation:
    """Return why a generation began after these departures: the likeliest cause, and all of them in the sentence."""
    ordered = sorted(gone.items(), key=lambda item: (-item[1].confidence, item[0]))
    best = ordered[0][1]
    detail = "; ".join(departed.text for _, departed in ordered[:_EXPLAINED])
    if len(ordered) > _EXPLAINED:
        detail += f"; and {len(ordered) - _EXPLAINED} more"
    return Explanation(best.cause, best.confidence, detail, only([member_id for member_id, _ in ordered]))


def name_of(life: MemberLife) -> str:
    """Return the name that people know a member by, with the instance id of a static one."""
    name = life.client_id or life.member_id
    return name if life.instance_id is None else f"{name} (instance {life.instance_id})"


def listed(names: Iterable[str]) -> str:
    """Return names in order, the first eight where there are more."""
    ordered = sorted(names)
    more = len(ordered) - _LISTED
    return ", ".join(ordered[:_LISTED]) + (f" and {more} more" if more > 0 else "")


def only(member_ids: Collection[str]) -> str | None:
    """Return the one member id there is; None for several, and for none."""
    return next(iter(member_ids)) if len(member_ids) == 1 else None


def counted(note: str, count: int) -> str:
    """Return a note with how often it applies: ``{}`` stands for the number, ``{s}`` for the s of a plural."""
    return note.replace("{}", f"{count:,}").replace("{s}", "" if count == 1 else "s")
