"""The tables of one group while its source is read: members, owners, pauses, states, generations, rebalances.

Records of both protocols, polls of the Admin API and lines of logs write into a `HistoryBuilder`; Marshal's claims take
their rebalances, generations and states from it, and captures their states and the sums of their pauses.

Laws:

* Time never decreases.
* One rebalance is under way at a time: one that another cuts off is ``interrupted``. Only claims, of which several may
  wait for a new holder, are added with `HistoryBuilder.add`.
* A member that gives up a partition and gets it back at the same moment has held it all the time; intervals of no
  length are dropped.
* A group whose members have left is stopped, not paused: its pauses end when it is empty.
* When moves are counted, a static member is the same one whatever its member id.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import fsum
from typing import Any, Final

from kcoord_wire.forensics.model import (
    NS_PER_MS,
    Awaited,
    CommitRow,
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
    end_rebalance,
    new_rebalance,
)
from kcoord_wire.protocol.wording import noted

_LEAST_WAIT_NS: Final = 1_000 * NS_PER_MS

GONE: Final = "left or timed out"
"""`MemberLife.why_left` where the source does not show which."""

Place = tuple[str, int]
"""A topic and a partition."""

StateMove = tuple[int, str | None, int | None]
"""When a group has entered a state, with which generation; None: from then on its state is not known, or it is gone."""


class HistoryBuilder:
    """Collects the tables of one group, see the laws of the module.

    :ivar members: members of the group, by member id
    :ivar lives: all that there were
    :ivar held: what each partition's present owner holds
    :ivar paused: the pauses of partitions that had an owner and have none
    :ivar protocol_type: of the group; None while it is not known
    :ivar notes: sentences for `GroupSummary.blind`, with how often each applies
    :ivar rebalances: so far
    :ivar generations: so far
    """

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.members: dict[str, MemberLife] = {}
        self.lives: list[MemberLife] = []
        self.held: dict[Place, Ownership] = {}
        self.paused: dict[Place, Pause] = {}
        self.protocol_type: str | None = None
        self.notes: Counter[str] = Counter()
        self.rebalances: list[Rebalance] = []
        self.generations: list[Generation] = []
        self._number = 0
        self._current: Rebalance | None = None
        self._before: dict[Place, str] = {}
        self._states: list[StateMove] = []
        self._left: dict[str, MemberLife] = {}
        self._ownership: list[Ownership] = []
        self._pauses: list[Pause] = []
        self._former: dict[Place, Ownership] = {}

    # ---- rebalances

    @property
    def current(self) -> Rebalance | None:
        """The rebalance that is under way."""
        return self._current if self._current is not None and self._current.outcome == "open" else None

    @property
    def number(self) -> int | None:
        """Number of the last rebalance."""
        return self._number or None

    def open(self, started_ns: int, **columns: Any) -> Rebalance:
        """Begin a rebalance, see `add`; one that is under way is cut off."""
        self.close(started_ns, "interrupted")
        self._current = self.add(started_ns, **columns)
        return self._current

    def add(self, started_ns: int, **columns: Any) -> Rebalance:
        """Add a rebalance with these columns of `model.new_rebalance`; what moves from now on is counted as its."""
        self._number += 1
        rebalance = new_rebalance(group_id=self.group_id, number=self._number, started_ns=started_ns, **columns)
        self.rebalances.append(rebalance)
        self._before = self.owners()
        return rebalance

    def close(self, at: int, outcome: str, rebalance: Rebalance | None = None) -> None:
        """End a rebalance, or the one that is under way if there is one, and count its moves."""
        rebalance = rebalance or self.current
        if rebalance is not None:
            end_rebalance(rebalance, at, outcome)
            self.count_moves(rebalance)

    def abandon(self) -> None:
        """The rebalance under way has no end: the group is gone, or has changed its protocol."""
        self._current = None

    def count_moves(self, rebalance: Rebalance) -> None:
        """Set how many partitions have moved since the last rebalance began."""
        before = self._before
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

    def begin_generation(
        self,
        generation_id: int,
        joined_ns: int,
        *,
        stable_ns: int | None = None,
        assignor: str | None = None,
        leader_id: str | None = None,
        members: int,
        partitions: int = 0,
    ) -> None:
        """Record a generation; the one before it ends. The parameters are columns of `Generation`."""
        self.end_generation(joined_ns)
        row = Generation(
            self.group_id, generation_id, joined_ns, stable_ns, None, assignor, leader_id, members, partitions
        )
        self.generations.append(row)

    def end_generation(self, at: int) -> None:
        if self.generations and self.generations[-1].ended_ns is None:
            self.generations[-1].ended_ns = at

    def empty(self, at: int, generation_id: int | None) -> None:
        self.end_generation(at)
        self.enter(at, "Empty", generation_id)

    # ---- states

    @property
    def state(self) -> str | None:
        """The present state of the group; None before the first, and where it does not exist."""
        return self._states[-1][1] if self._states else None

    def enter(self, at: int, state: str | None, generation_id: int | None) -> None:
        """Record the state of the group from now on; None: the group does not exist any more."""
        if not self._states or self._states[-1][1:] != (state, generation_id):
            self._states.append((at, state, generation_id))

    @property
    def states(self) -> list[StateInterval]:
        """The states so far."""
        return state_intervals(self.group_id, self._states)

    # ---- members

    def see(self, at: int, life: MemberLife) -> MemberLife:
        """Record a member as `life` describes it; `joined_ns` and the first generation count only if it is new."""
        known = self.members.get(life.member_id)
        if known is None:
            self.members[life.member_id] = life
            self._left.pop(life.member_id, None)
            self.lives.append(life)
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

    def revoked(self, member_id: str, from_ns: int, to_ns: int) -> None:
        """Note that the others waited for a member to give up partitions (KIP-848), if it took a second or longer.

        :param from_ns: since when it had to
        """
        row = next((row for row in reversed(self.rebalances) if row.started_ns <= from_ns), None)
        life = self.members.get(member_id)
        if row is not None and life is not None and to_ns - from_ns >= _LEAST_WAIT_NS:
            ms = (to_ns - from_ns) / NS_PER_MS
            wait = Awaited(member_id, life.client_id, life.client_host, from_ns, ms, "revoking", None)
            row.waited_for = sorted([*row.waited_for, wait], key=lambda each: -each.ms)

    def key_of(self, member_id: str) -> str:
        """Return what identifies a member across restarts: its instance id, else its member id."""
        life = self.members.get(member_id)
        return f"instance {life.instance_id}" if life is not None and life.instance_id is not None else member_id

    def named(self, member_id: str) -> str:
        life = self.members.get(member_id)
        return member_id if life is None else name_of(life)

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

    # ---- the group

    def deleted(self, at: int) -> None:
        for member_id in list(self.members):
            self.lose(at, member_id, GONE)
        for pause in self.paused.values():
            pause.to_ns = at
        self.paused.clear()
        self.end_generation(at)
        self.enter(at, None, None)

    def trim(self, most: int) -> bool:
        """Drop the older half of each table that has more than `most` rows, but for rows that are still open; return
        whether any was dropped. For a source that goes on for days."""
        tables: list[list[Any]] = [self.rebalances, self.generations, self.lives, self._ownership, self._pauses]
        if max(map(len, [*tables, self._states])) <= most:
            return False
        for rows in tables:
            if len(rows) > most:
                half = len(rows) // 2
                rows[:half] = [row for row in rows[:half] if _end_of(row) is None]
        if len(self._states) > most:
            del self._states[: len(self._states) // 2]
        self._left.clear()
        return True

    def _end_pauses_of_stopped_groups(self) -> None:
        """End each pause where the group became empty, unless a member had failed by then."""
        failed = {life.left_ns for life in self.lives if life.why_left == "session timeout"}
        stopped = [at for at, state, _ in self._states if state == "Empty" and at not in failed]
        for pause in self._pauses:
            at = bisect_left(stopped, pause.from_ns)
            if at < len(stopped) and (pause.to_ns is None or stopped[at] < pause.to_ns):
                pause.to_ns, pause.next_member_id = stopped[at], None

    def summary(
        self,
        first_ns: int,
        last_ns: int,
        blind: list[str],
        *,
        origin: str,
        exchanges: int = 0,
        commits: int = 0,
        paused_ms: float | None = None,
    ) -> GroupSummary:
        """Return the row of the group, with the sizes of its tables."""
        return GroupSummary(
            group_id=self.group_id,
            origin=origin,
            protocol_type=self.protocol_type,
            first_ns=first_ns,
            last_ns=last_ns,
            members=len(self.lives),
            generations=len(self.generations),
            rebalances=len(self.rebalances),
            exchanges=exchanges,
            commits=commits,
            paused_ms=paused_ms,
            blind=blind + [noted(note, count) for note, count in sorted(self.notes.items())],
        )

    def history(
        self, first_ns: int, last_ns: int, commits: list[CommitRow], blind: list[str], *, origin: str = "log"
    ) -> GroupHistory:
        """Return the tables; later records change their rows."""
        self._end_pauses_of_stopped_groups()
        pauses = [item for item in self._pauses if item.from_ns != item.to_ns]
        add_pauses((row for row in self.rebalances if row.cooperative and row.outcome == "stable"), pauses)
        count = sum(row.commits for row in commits)
        summary = self.summary(first_ns, last_ns, blind, origin=origin, commits=count, paused_ms=paused_ms(pauses))
        return GroupHistory(
            group=summary,
            rebalances=self.rebalances,
            generations=self.generations,
            states=self.states,
            members=self.lives,
            ownership=[item for item in self._ownership if item.from_ns != item.to_ns],
            pauses=pauses,
            commits=commits,
        )


def _end_of(row: Any) -> int | None:
    names = ("to_ns", "left_ns", "ended_ns")
    end: int | None = next(getattr(row, name) for name in names if hasattr(row, name))
    return end


def state_intervals(group_id: str, moves: Sequence[StateMove], *, has_moments: bool = False) -> list[StateInterval]:
    """Return the intervals between moves from state to state.

    :param moves: in order of time
    :param has_moments: keep intervals of no length
    """
    ends = [*(at for at, _, _ in moves[1:]), None]
    return [
        StateInterval(group_id, state, at, end, generation_id)
        for (at, state, generation_id), end in zip(moves, ends, strict=False)
        if state is not None and (has_moments or at != end)
    ]


def add_pauses(rebalances: Iterable[Rebalance], pauses: Iterable[Pause], until_ns: int | None = None) -> None:
    """Set how long partitions were paused in each of these rebalances.

    :param until_ns: to which a pause without an end counts; None: it does not count
    """
    of_rebalance: defaultdict[int | None, list[Pause]] = defaultdict(list)
    for pause in pauses:
        of_rebalance[pause.rebalance].append(pause)
    for rebalance in rebalances:
        rebalance.paused_ms = paused_ms(of_rebalance[rebalance.number], until_ns)


def paused_ms(pauses: Iterable[Pause], until_ns: int | None = None) -> float:
    """Return the length of all these pauses together; `until_ns` as in `add_pauses`."""
    ends = ((row.from_ns, until_ns if row.to_ns is None else row.to_ns) for row in pauses)
    return fsum(max(to_ns - from_ns, 0) / NS_PER_MS for from_ns, to_ns in ends if to_ns is not None)


def removed_members(lives: Iterable[MemberLife]) -> list[RemovedMember]:
    """Return these members as `Rebalance.removed` lists them."""
    return [RemovedMember(life.member_id, life.client_id, life.client_host, life.why_left or GONE) for life in lives]


def identity_of(member_id: str | None, *known: Mapping[str, MemberLife]) -> Identity:
    """Return the member of that id as a rebalance names its trigger, from the first mapping that has it."""
    life = next((lives[member_id] for lives in known if member_id in lives), None) if member_id is not None else None
    if life is None:
        return Identity(member_id)
    return Identity(member_id, life.client_id, life.client_host, life.instance_id)


def name_of(life: MemberLife) -> str:
    """Return the name that people know a member by, with the instance id of a static one."""
    name = life.client_id or life.member_id
    return name if life.instance_id is None else f"{name} (instance {life.instance_id})"
