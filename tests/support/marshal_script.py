"""Machines of Marshal by script: the processes and the log of `worlds.marshal`, whose appends end as a test says.

    world = MarshalScript(topics={"orders": 2})
    a = world.start("a", greedy=True)
    world.run(5_000)
    assert world.held_by("orders", 0) is a

Time is that of the broker that appends, ms since the Unix epoch. Each process has its own monotonic clock and its own
wall clock. After every event of a member the world checks that no two may work on one partition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import kcoord_wire as kw
from kcoord_wire.kernel.machines import Ended, LogEvent, Machine, Shutdown
from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.marshal import member_events as events
from kcoord_wire.marshal.log import Appended, AppendFailed
from kcoord_wire.marshal.member import MarshalMember
from kcoord_wire.marshal.member_events import MemberSettings, Tenure
from kcoord_wire.marshal.values import read_value
from kcoord_wire.marshal.world_state import Entry, Rules
from kcoord_wire.worlds.marshal.processes import LocalClock, LogProcess
from kcoord_wire.worlds.marshal.virtual_log import VirtualLog

LATENCY_MS = 5


@dataclass(frozen=True)
class Fate:
    """What happens to one append.

    :ivar lands_after: ms from the request, for each copy; empty for an append that never lands
    :ivar answer_after: ms from the request; None for an answer that is lost: the sender gets a failure then
    """

    lands_after: tuple[int, ...] = (LATENCY_MS,)
    answer_after: int | None = 2 * LATENCY_MS


LOST = Fate((), None)


class ScriptedLog(VirtualLog):
    """A log whose appends have the fates that a test gives them.

    :ivar fate: of an append, by the name of its sender and the message
    """

    def __init__(self, clock: VirtualClock, partitions: int, timeout_ms: int, *, is_append_time: bool) -> None:
        self.fate: Callable[[str, Any], Fate] = lambda name, message: Fate()
        self.on_append: Callable[[Entry], None] = lambda entry: None
        super().__init__(
            clock,
            Random(0),
            partitions,
            [0],
            timeout_ms,
            lambda entry: self.on_append(entry),
            is_append_time=is_append_time,
            latency_ms=(LATENCY_MS, LATENCY_MS),
        )

    def append(
        self,
        writer: str,
        partition: int,
        value: bytes | None,
        time_ms: int,
        request: int = 0,
        done: Callable[[Appended | AppendFailed], None] | None = None,
        *,
        is_cut_off: bool = False,
    ) -> None:
        assert done is not None
        fate = LOST if is_cut_off else self.fate(writer, read_value(value))
        offsets: list[int] = []

        def land() -> None:
            offsets.append(self.end(partition))
            self._land(partition, value, time_ms, request, None)

        for after in fate.lands_after:
            self.clock.after(after, land)
        if fate.answer_after is None:
            failed = AppendFailed(request, "no answer", may_have_landed=bool(fate.lands_after))
            self.clock.after(self._timeout_ms, done, failed)
        else:
            assert min(fate.lands_after) <= fate.answer_after, "an append is acknowledged after it has landed"
            self.clock.after(fate.answer_after, lambda: done(Appended(request, offsets[0])))

    def land(self, partition: int, message: Any) -> Entry:
        """Append an entry of any sender now: a message, or bytes that are none."""
        value = message if isinstance(message, bytes | None) else kw.encode(message, 0)
        time_ms = self.clock.time_ms if isinstance(message, bytes | None) else message.time * 1_000
        self._land(partition, value, time_ms, 0, None)
        (entry,) = self.entries(partition, self.end(partition) - 1, self.end(partition))
        return entry

    def landed(self, kind: type | None = None) -> list[Entry]:
        """Return what has landed, in the order of time."""
        logs = [entry for number in range(self.partitions) for entry in self.entries(number, 0, self.end(number))]
        landed = sorted(logs, key=lambda entry: entry.time_ms)
        return [entry for entry in landed if kind is None or isinstance(entry.message, kind)]


class ScriptedProcess(LogProcess):
    """A process of any machine.

    :param handles: called with the process and each effect that is not about the log
    :param check: called after each event
    :ivar effects: everything that it has done, with the time
    """

    def __init__(
        self,
        world: ScriptedWorld,
        name: str,
        machine: Machine,
        handles: Callable[[Any, Any], None],
        *,
        origin_ms: int = 1_000,
        wall_error_ms: int = 0,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.effects: list[tuple[int, Any]] = []
        self._handles = handles
        self._check = check
        lag = (LATENCY_MS, LATENCY_MS)
        local = LocalClock(origin_ms, 0, wall_error_ms)
        super().__init__(world.log, name, machine, local, Random(0), lag, range(world.log.partitions))

    def carry_out(self, effect: Any) -> None:
        self.effects.append((self._clock.time_ms, effect))
        if isinstance(effect, events.Append | events.ReadToEnd | LogEvent | Ended):
            super().carry_out(effect)
        else:
            self._handles(self, effect)

    def handled(self) -> None:
        self._check()

    def later(self, ms: int, event: Any) -> None:
        """Deliver an event after so long."""
        self._clock.after(ms, self.deliver, event)

    def done(self, kind: type) -> list[Any]:
        """Return its effects of a kind, in order."""
        return [effect for _, effect in self.effects if isinstance(effect, kind)]

    def noted(self, what: str) -> list[LogEvent]:
        return [note for note in self.done(LogEvent) if note.what == what]


class ScriptedWorld:
    """A log and what runs on it.

    :ivar now: ms since the Unix epoch, the broker's clock
    """

    def __init__(self, partitions: int, timeout_ms: int = 500, *, is_append_time: bool = True) -> None:
        self.clock = VirtualClock()
        self.log = ScriptedLog(self.clock, partitions, timeout_ms, is_append_time=is_append_time)

    @property
    def now(self) -> int:
        return self.clock.time_ms

    def run(self, ms: int) -> None:
        """Let so much time pass."""
        self.clock.run(ms)

    def run_until(self, holds: Callable[[], bool], within_ms: int) -> bool:
        """Let time pass until something holds; return whether it did."""
        end = self.now + within_ms
        try:
            self.clock.run_until(holds, within_ms)
        except TimeoutError:
            self.run(end - self.now)
            return False
        return True

    def entries(self, kind: type | None = None) -> list[Entry]:
        """Return what has landed, in the order of time."""
        return self.log.landed(kind)

    def land(self, partition: int, message: Any) -> Entry:
        """Append an entry of any sender now; members read it soon."""
        return self.log.land(partition, message)


_ENDLESS = 1 << 40


class ScriptedMember(ScriptedProcess):
    """A process with a member.

    :ivar fetching: next offset of each tenure that was started and not stopped
    """

    def __init__(self, world: MarshalScript, name: str, settings: MemberSettings, wall_error_ms: int) -> None:
        self.member = MarshalMember(settings)
        self.fetching: dict[Tenure, int] = {}
        self._world = world
        super().__init__(
            world,
            name,
            self.member,
            ScriptedMember._application,
            origin_ms=1_000 + 777 * len(world.members),
            wall_error_ms=wall_error_ms,
            check=world.check,
        )
        self.later(LATENCY_MS, events.TopicPartitions(world.topics))

    def _application(self, effect: Any) -> None:
        if isinstance(effect, events.FindStart):
            self._clock.after(LATENCY_MS, lambda: self.deliver(self._world.find_start(effect)))
        elif isinstance(effect, events.StartFetching):
            self.fetching[effect.tenure] = effect.offset
        elif isinstance(effect, events.StopFetching):
            self.fetching.pop(effect.tenure, None)

    def held(self) -> list[Tenure]:
        """Return the tenures on which its application may work now."""
        now = self.local.monotonic(self._clock.time_ms)
        return [tenure for tenure in self.member.tenures() if self.member.is_held(tenure, now)]

    def work(self, records: int, *, processed: int | None = None) -> None:
        """Deliver the next records of each tenure, and let the application process all, or so many, of each."""
        for tenure, first in list(self.fetching.items()):
            offsets = list(range(first, first + records))
            self.fetching[tenure] = first + records
            self.deliver(events.Delivered(tenure, offsets, first + records))
            self.deliver(events.Processed(tenure, offsets[:processed]))


class MarshalScript(ScriptedWorld):
    """Members of a group.

    :ivar fate: of each append, by its member and the message; a test may replace it
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
        super().__init__(partitions, is_append_time=is_append_time)
        self.topics = dict(topics)
        self.members: dict[str, ScriptedMember] = {}
        self.fate: Callable[[ScriptedMember, Any], Fate] = lambda member, message: Fate()
        self.log.fate = lambda name, message: self.fate(self.members[name], message)
        self.is_judged = True
        self.violations: list[str] = []
        self.find_start = find_start or (lambda request: events.StartFound(request.request, 0, _ENDLESS))
        self._settings = {"heartbeat_interval_ms": 10_000, "pass_ms": 400, "claim_timeout_ms": 3_000} | settings

    def start(self, name: str, *, client: str = "", wall_error_ms: int = 0, **settings: Any) -> ScriptedMember:
        """Start a member; its client id is its name."""
        values: dict[str, Any] = {"topics": tuple(self.topics), "group_id": "group"} | self._settings | settings
        values["rules"] = Rules(values.get("rules", Rules.DOCUMENT))
        made = MemberSettings(
            client_id=client or name, instance_id=f"i-{name}", partitions=self.log.partitions, **values
        )
        member = self.members[name] = ScriptedMember(self, name, made, wall_error_ms)
        return member

    def shut_down(self, member: ScriptedMember) -> None:
        member.deliver(Shutdown())

    # ---- what there is to see

    def working(self) -> Sequence[ScriptedMember]:
        """Return the members that are alive and have not ended."""
        return [member for member in self.members.values() if member.is_working]

    def held_by(self, topic: str, partition: int) -> ScriptedMember | None:
        """Return the member whose application may work on a partition."""
        place = (topic, partition)
        return next((member for member in self.working() if any(each[:2] == place for each in member.held())), None)

    def shares(self) -> dict[str, int]:
        """How many partitions each member may work on."""
        return {name: len(member.held()) for name, member in self.members.items()}

    def run_until(self, holds: Callable[[], bool], within_ms: int) -> bool:
        found = super().run_until(holds, within_ms)
        self.check()
        assert self.violations == [] or not self.is_judged
        return found

    def run(self, ms: int) -> None:
        super().run(ms)
        self.check()
        assert self.violations == [] or not self.is_judged

    def check(self) -> None:
        """No two members may work on one partition at one time."""
        working: dict[tuple[str, int], str] = {}
        for member in self.working():
            for topic, partition, _ in member.held():
                other = working.setdefault((topic, partition), member.name)
                if other != member.name:
                    self.violations.append(f"{self.clock.now}: {topic}-{partition} is held by {other}, {member.name}")


def one_member(partitions: int = 1, **settings: Any) -> tuple[MarshalScript, ScriptedMember]:
    """Return a world with one member, which had a second to claim the partitions of ``orders``."""
    world = MarshalScript({"orders": partitions}, **settings)
    member = world.start("a")
    world.run(1_000)
    return world, member
