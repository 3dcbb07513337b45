"""Members of a Marshal group in virtual time, over a log in memory: one thread, no clock, faults by script.

    world = MarshalScript(topics={"orders": 2})
    a = world.start("a", greedy=True)
    world.run(5_000)
    assert world.held_by("orders", 0) is a

Time is that of the broker that appends, ms since the Unix epoch. Each member has its own monotonic clock and its own
wall clock. After every event the world checks that no two members may work on one partition.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from kcoord_wire.kernel.machines import Ended, LogEvent, Shutdown, Tick
from kcoord_wire.marshal import member_events as events
from kcoord_wire.marshal.log import Appended, AppendFailed
from kcoord_wire.marshal.member import MarshalMember
from kcoord_wire.marshal.member_events import MemberSettings, Tenure
from kcoord_wire.marshal.state import Entry, Rules

EPOCH_MS = 1_795_000_000_000


@dataclass(frozen=True)
class Fate:
    """What happens to one append.

    :ivar lands_after: ms from the request, for each copy; empty for an append that never lands
    :ivar answer_after: ms from the request; None for an answer that is lost: the member gets a failure then
    """

    lands_after: tuple[int, ...] = (5,)
    answer_after: int | None = 10


LOST = Fate((), None)
FAILURE_AFTER_MS = 500
"""When a member gives up an append that is not answered."""


@dataclass(eq=False)
class ScriptedMember:
    """A process with a member.

    :ivar origin_ms: of its monotonic clock
    :ivar wall_error_ms: of its wall clock
    :ivar fetching: next offset of each tenure that was started and not stopped
    :ivar effects: everything that it has done, with the time
    """

    name: str
    machine: MarshalMember
    origin_ms: int
    wall_error_ms: int = 0
    fetching: dict[Tenure, int] = field(default_factory=dict)
    effects: list[tuple[int, Any]] = field(default_factory=list)
    read_to: dict[int, int] = field(default_factory=dict)
    waiting: list[Any] | None = None  # events during a pause
    is_alive: bool = True
    ticks_at: int | None = None
    cut_off_until: int = 0

    def done(self, kind: type) -> list[Any]:
        """Return its effects of a kind, in order."""
        return [effect for _, effect in self.effects if isinstance(effect, kind)]

    def noted(self, what: str) -> list[LogEvent]:
        return [note for note in self.done(LogEvent) if note.what == what]


class MarshalScript:
    """The world.

    :ivar now: ms since the Unix epoch, the broker's clock
    :ivar log: the entries of each coordination partition
    :ivar positions: where the group's topics start, by topic and partition (`FindStart` with an unknown offset)
    :ivar fate: of each append; a test may replace it
    :ivar violations: of the law that no two members work on one partition; they fail the test unless not `is_judged`
    """

    def __init__(
        self,
        topics: Mapping[str, int],
        *,
        partitions: int = 4,
        is_append_time: bool = True,
        find_start: Callable[[events.FindStart], Any] | None = None,
        **settings: Any,
    ) -> None:
        self.now = EPOCH_MS
        self.topics = dict(topics)
        self.log: list[list[Entry]] = [[] for _ in range(partitions)]
        self.members: dict[str, ScriptedMember] = {}
        self.fate: Callable[[ScriptedMember, Any], Fate] = lambda member, message: Fate()
        self.is_append_time = is_append_time
        self.is_judged = True
        self.violations: list[str] = []
        self._find_start = find_start or (lambda request: events.StartFound(request.request, request.offset))
        self._settings = {"heartbeat_interval_ms": 10_000, "pass_ms": 400, "claim_timeout_ms": 3_000} | settings
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._serial = count()
        self._trimmed: dict[int, int] = {}

    # ---- members

    def start(self, name: str, *, client: str = "", wall_error_ms: int = 0, **settings: Any) -> ScriptedMember:
        """Start a member; its client id is its name."""
        values: dict[str, Any] = {"topics": tuple(self.topics), "group_id": "group"} | self._settings | settings
        values["rules"] = Rules(values.get("rules", Rules.DOCUMENT))
        made = MemberSettings(client_id=client or name, instance_id=f"i-{name}", partitions=len(self.log), **values)
        member = ScriptedMember(name, MarshalMember(made), 1_000 + 777 * len(self.members), wall_error_ms)
        self.members[name] = member
        self.give(member, events.WallClock(EPOCH_MS + wall_error_ms - member.origin_ms))
        self._later(5, lambda: self.give(member, events.TopicPartitions(self.topics)))
        return member

    def give(self, member: ScriptedMember, event: Any) -> None:
        """Let a member handle an event; a paused one does it later, a dead one never."""
        if member.waiting is not None:
            member.waiting.append(event)
            return
        if not member.is_alive:
            return
        for effect in member.machine.handle(event, self._clock(member)):
            member.effects.append((self.now, effect))
            self._carry_out(member, effect)
        self._plan_tick(member)
        self._check()

    def kill(self, member: ScriptedMember) -> None:
        member.is_alive = False

    def pause(self, member: ScriptedMember, ms: int) -> None:
        """Stop a process for so long; what has come meanwhile it finds all at once."""
        member.waiting = []
        self._later(ms, lambda: self._resume(member))

    def cut_off(self, member: ScriptedMember, ms: int) -> None:
        """Let nothing pass between a member and the log for so long; what it appends meanwhile is lost."""
        member.cut_off_until = self.now + ms

    def set_wall_clock(self, member: ScriptedMember, error_ms: int) -> None:
        """Set a member's wall clock so far ahead of the broker's."""
        member.wall_error_ms = error_ms
        self.give(member, events.WallClock(EPOCH_MS + error_ms - member.origin_ms))

    def shut_down(self, member: ScriptedMember) -> None:
        self.give(member, Shutdown())

    def work(self, member: ScriptedMember, records: int, *, processed: int | None = None) -> None:
        """Deliver the next records of each tenure, and let the application process all, or so many, of each."""
        for tenure, first in list(member.fetching.items()):
            offsets = list(range(first, first + records))
            member.fetching[tenure] = first + records
            self.give(member, events.Delivered(tenure, offsets, first + records))
            self.give(member, events.Processed(tenure, offsets[:processed]))

    # ---- what there is to see

    def may_work(self, member: ScriptedMember, topic: str, partition: int) -> bool:
        """Whether the member's application may work on a partition now."""
        return any(
            member.machine.is_held(tenure, self._clock(member))
            for tenure in member.machine.tenures()
            if (tenure.topic, tenure.partition) == (topic, partition)
        )

    def held_by(self, topic: str, partition: int) -> ScriptedMember | None:
        """Return the member whose application may work on a partition."""
        alive = (member for member in self.members.values() if member.is_alive)
        return next((member for member in alive if self.may_work(member, topic, partition)), None)

    def shares(self) -> dict[str, int]:
        """How many partitions each member may work on."""
        return {
            name: sum(member.machine.is_held(each, self._clock(member)) for each in member.machine.tenures())
            for name, member in self.members.items()
        }

    def entries(self, kind: type | None = None) -> list[Entry]:
        """Return what has landed, in the order of time."""
        landed = sorted((entry for log in self.log for entry in log), key=lambda entry: entry.time_ms)
        return [entry for entry in landed if kind is None or isinstance(entry.message, kind)]

    # ---- time

    def run(self, ms: int) -> None:
        """Let so much time pass."""
        self.run_until(lambda: False, ms)

    def run_until(self, holds: Callable[[], bool], within_ms: int) -> bool:
        """Let time pass until something holds; return whether it did."""
        end = self.now + within_ms
        while not (found := holds()) and self._queue and self._queue[0][0] <= end:
            when, _, action = heapq.heappop(self._queue)
            self.now = max(self.now, when)
            action()
        if not found:
            self.now = end
            self._check()
        assert self.violations == [] or not self.is_judged
        return found

    def land(self, partition: int, message: Any) -> Entry:
        """Append an entry of any sender now; members read it soon."""
        log = self.log[partition]
        time_ms = self.now if self.is_append_time else message.time * 1_000
        entry = Entry(partition, len(log), time_ms, self.is_append_time, message)
        log.append(entry)
        for member in self.members.values():
            self._later(5, partial(self._poll, member, partition, len(log)))
        return entry

    def trim(self, partition: int, below: int) -> None:
        """Retention removes the entries below an offset; members that start later do not see them."""
        self._trimmed[partition] = below

    def _clock(self, member: ScriptedMember) -> int:
        return self.now - EPOCH_MS + member.origin_ms

    def _later(self, ms: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + ms, next(self._serial), action))

    def _plan_tick(self, member: ScriptedMember) -> None:
        deadline = member.machine.deadline
        if deadline is None or (member.ticks_at is not None and member.ticks_at <= deadline):
            return
        member.ticks_at = deadline
        self._later(max(0, deadline - self._clock(member)), lambda: self._tick(member, deadline))

    def _tick(self, member: ScriptedMember, planned: int) -> None:
        if member.ticks_at == planned:
            member.ticks_at = None
            self.give(member, Tick())

    def _resume(self, member: ScriptedMember) -> None:
        waiting, member.waiting = member.waiting or [], None
        for event in waiting:
            self.give(member, event)

    def _check(self) -> None:
        """No two members may work on one partition at one time."""
        working: dict[tuple[str, int], str] = {}
        for member in self.members.values():
            if not member.is_alive:
                continue
            now = self._clock(member)
            for tenure in member.machine.tenures():
                place = (tenure.topic, tenure.partition)
                if (
                    member.machine.is_held(tenure, now)
                    and (other := working.setdefault(place, member.name)) != member.name
                ):
                    self.violations.append(f"{self.now - EPOCH_MS}: {place} is held by {other} and {member.name}")

    # ---- effects

    def _carry_out(self, member: ScriptedMember, effect: Any) -> None:
        if isinstance(effect, events.Append):
            self._append(member, effect)
        elif isinstance(effect, events.ReadToEnd):
            self._later(5, lambda: self._read_to_end(member, effect))
        elif isinstance(effect, events.FindStart):
            self._later(5, lambda: self.give(member, self._find_start(effect)))
        elif isinstance(effect, events.StartFetching):
            member.fetching[effect.tenure] = effect.offset
        elif isinstance(effect, events.StopFetching):
            member.fetching.pop(effect.tenure, None)
        elif isinstance(effect, Ended):
            member.is_alive = False

    def _append(self, member: ScriptedMember, effect: events.Append) -> None:
        fate = self.fate(member, effect.message) if self.now >= member.cut_off_until else LOST
        offsets: list[int] = []
        for after in fate.lands_after:
            self._later(after, lambda: offsets.append(self.land(effect.partition, effect.message).offset))
        if fate.answer_after is None:
            failed = AppendFailed(effect.request, "no answer", may_have_landed=True)
            self._later(FAILURE_AFTER_MS, lambda: self.give(member, failed))
        else:
            assert min(fate.lands_after) <= fate.answer_after, "an append is acknowledged after it has landed"
            self._later(fate.answer_after, lambda: self.give(member, Appended(effect.request, offsets[0])))

    def _read_to_end(self, member: ScriptedMember, effect: events.ReadToEnd) -> None:
        if self.now < member.cut_off_until:
            self._later(member.cut_off_until - self.now, lambda: self._read_to_end(member, effect))
            return
        end = len(self.log[effect.partition])
        self._poll(member, effect.partition, end)
        self.give(member, events.CaughtUp(effect.request, end))

    def _poll(self, member: ScriptedMember, partition: int, end: int) -> None:
        if self.now < member.cut_off_until:
            self._later(member.cut_off_until - self.now, lambda: self._poll(member, partition, end))
            return
        start = member.read_to.get(partition, self._trimmed.get(partition, 0))
        if start < end:
            member.read_to[partition] = end
            self.give(member, events.Entries(self.log[partition][start:end]))
