"""The loop that runs a machine on a log.

Reading a log to its end, and running an admin on one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire.kernel.machines import Ended, Shutdown, Tick
from kcoord_wire.marshal.admin import (
    Admin,
    AdminSettings,
    Finished,
    GroupPauser,
    PositionSetter,
    Progressed,
    Result,
    Step,
)
from kcoord_wire.marshal.context import TopicPartition
from kcoord_wire.marshal.hosting import LogHost, LogReader, run_admin, wall_ms
from kcoord_wire.marshal.inbox import TopicsError
from kcoord_wire.marshal.log import Appended, AppendFailed, LogError
from kcoord_wire.marshal.member_events import (
    Append,
    CaughtUp,
    Entries,
    LossReason,
    ReadToEnd,
    StopFetching,
    Tenure,
    WallClock,
)
from kcoord_wire.marshal.memory import MemoryBroker, MemoryLog
from kcoord_wire.marshal.observer import Observer
from kcoord_wire.marshal.world_state import Place, Rules, WorldState
from kcoord_wire.messages.marshal import ClaimingPartition, Heartbeat

HEARTBEAT = Heartbeat(time=1, instance_id="i", client_id="c", group_id="g", topic="t", current_offset=3)


class Scripted:
    """A machine that answers events by a function and remembers them."""

    def __init__(self, react: Callable[[Any], Sequence[Any]]) -> None:
        self.events: list[Any] = []
        self.deadline: int | None = None
        self._react = react
        self._depth = 0

    def handle(self, event: Any, now: int) -> Sequence[Any]:
        assert self._depth == 0, "an event within an event"
        self._depth += 1
        self.events.append(event)
        effects = self._react(event)
        self._depth -= 1
        return effects

    def kinds(self) -> list[type]:
        return [type(event) for event in self.events]


def broker() -> MemoryBroker:
    made = MemoryBroker()
    made.create("__marshal", 2)
    return made


def started(machine: Scripted, log: MemoryLog | None = None, **clocks: Callable[[], int]) -> LogHost:
    host = LogHost(machine, log or MemoryLog(broker()), execute=lambda effect: None, **clocks)
    host.start({0, 1})
    return host


def at_first(*effects: Any) -> Scripted:
    """A machine that wants these effects when it starts."""
    return Scripted(lambda event: effects if isinstance(event, WallClock) else [])


def test_entries_come_before_the_answer_to_read_to_end() -> None:
    def react(event: Any) -> Sequence[Any]:
        match event:
            case WallClock():
                return [Append(1, HEARTBEAT, request=1)]
            case Appended():
                return [ReadToEnd(1, request=2)]
            case CaughtUp():
                return [Ended()]
        return []

    there = broker()
    machine = Scripted(react)
    host = started(machine, MemoryLog(there))
    while not host.has_ended:
        host.step(1)
    [entry] = [entry for event in machine.events if isinstance(event, Entries) for entry in event.entries]
    assert (entry.partition, entry.message) == (1, HEARTBEAT)
    kinds = machine.kinds()
    assert kinds.index(Entries) < kinds.index(CaughtUp)
    assert machine.events[-1] == CaughtUp(2, 1)


def test_a_gap_at_the_end_of_the_log_is_the_end_too() -> None:
    there = broker()
    there.append("__marshal", 0, b"x")
    there.skip("__marshal", 0, 5)
    machine = at_first(ReadToEnd(0, 1))
    host = started(machine, MemoryLog(there))
    for _ in range(100):
        host.step(0.01)
    assert machine.events[-1] == CaughtUp(1, 6)


def test_failed_appends_reach_the_machine() -> None:
    machine = at_first(Append(9, HEARTBEAT, 7))
    host = started(machine)
    host.step(0)
    [failed] = [event for event in machine.events if isinstance(event, AppendFailed)]
    assert (failed.request, failed.may_have_landed) == (7, False)


def test_an_end_that_nobody_knows_is_asked_for_again() -> None:
    class Forgetful(MemoryLog):
        asked = 0

        def end(self, partition: int, seconds: float = 5.0) -> int:
            self.asked += 1
            if self.asked < 3:
                raise TimeoutError
            return super().end(partition)

    machine = at_first(ReadToEnd(0, 1))
    host = started(machine, Forgetful(broker()))
    for _ in range(3):
        host.step(0)
    assert machine.events[-1] == CaughtUp(1, 0)


def test_one_question_for_an_end_serves_all_reads_of_it() -> None:
    class Counting(MemoryLog):
        def __init__(self, there: MemoryBroker) -> None:
            super().__init__(there)
            self.asked: list[int] = []

        def end(self, partition: int, seconds: float = 5.0) -> int:
            self.asked.append(partition)
            return super().end(partition)

    reads = [ReadToEnd(partition, request) for request, partition in enumerate((0, 1, 0, 0))]
    machine = at_first(*reads)
    log = Counting(broker())
    host = started(machine, log)
    host.step(0)
    assert sorted(event.request for event in machine.events if isinstance(event, CaughtUp)) == [0, 1, 2, 3]
    assert log.asked == [0, 1]


def test_ticks_come_when_the_deadline_has_passed() -> None:
    now = 0
    machine = Scripted(lambda event: [])
    host = started(machine, clock=lambda: now, wall=lambda: now)
    machine.deadline = 40
    host.step(0)
    assert Tick not in machine.kinds()
    now = 40
    host.step(10)  # does not wait: the deadline is over
    assert Tick in machine.kinds()


def test_a_wall_clock_that_was_set_is_announced() -> None:
    ahead = 1_000
    machine = Scripted(lambda event: [])
    host = started(machine, clock=lambda: 5, wall=lambda: 5 + ahead)
    ahead += 400  # drift
    host.step(0)
    ahead += 60_000
    host.step(0)
    assert machine.events == [WallClock(1_000), WallClock(61_400)]


def test_other_effects_go_to_the_caller() -> None:
    stop = StopFetching(Tenure("t", 0, 1), LossReason.TAKEN, 0)
    machine = at_first(stop)
    seen: list[Any] = []

    def execute(effect: Any) -> None:
        seen.append(effect)
        host.handle(Shutdown())  # within the handling of WallClock

    host = LogHost(machine, MemoryLog(broker()), execute)
    host.start({0})
    assert seen == [stop]
    assert machine.kinds() == [WallClock, Shutdown]


PLACE = TopicPartition("t", 0)
SETTINGS = AdminSettings("g", "a0", 1, heartbeat_interval_ms=1_000)


def broker_administration(*messages: object) -> MemoryBroker:
    made = MemoryBroker()
    made.create("__marshal", 1)
    for message in messages:
        made.append("__marshal", 0, kw.encode(message, 0))
    return made


def claim(kind: type, **fields: int) -> object:
    who = {"instance_id": "i1", "client_id": "c1", "group_id": "g", "topic": "t"}
    return kind(time=int(time.time()), **who, **fields)


def run(machine: Admin, there: MemoryBroker, **how: Any) -> Finished:
    quiet: dict[str, Any] = {
        "commit": lambda offsets: None,
        "progress": lambda step: None,
        "is_interrupted": lambda: False,
    }
    return run_admin(machine, MemoryLog(there), **quiet | how)


def read(there: MemoryBroker) -> Observer:
    observer = Observer(WorldState(Rules.DOCUMENT, 1, 1))
    LogReader(MemoryLog(there), [observer]).read_to_end()
    return observer


def test_reading_goes_on_where_it_has_ended() -> None:
    there = broker_administration(claim(ClaimingPartition))
    observers = [Observer(WorldState(rules, 1, 1)) for rules in Rules]
    reader = LogReader(MemoryLog(there), observers)
    assert [reader.read_to_end(), reader.read_to_end()] == [1, 0]
    there.append("__marshal", 0, kw.encode(claim(Heartbeat, current_offset=9), 0))
    there.skip("__marshal", 0)
    assert reader.read_to_end() == 1
    assert [each.world.claims[Place("g", "t", 0)].current_offset for each in observers] == [9, 9]


def test_an_end_that_does_not_come_is_an_error() -> None:
    class Silent(MemoryLog):
        def poll(self, seconds: float) -> list[object]:  # type: ignore[override]  # it never has any
            return []

    reader = LogReader(Silent(broker_administration(claim(ClaimingPartition))), [])
    with pytest.raises(LogError, match=r"not reached within 0\.01 s"):
        reader.read_to_end(0.01)


def test_positions_of_a_dead_member_are_set() -> None:
    there = broker_administration(claim(ClaimingPartition), claim(Heartbeat, current_offset=7))
    commits: list[Mapping[TopicPartition, int]] = []
    steps: list[Progressed] = []
    machine = PositionSetter(SETTINGS, {PLACE: 3})
    finished = run(machine, there, commit=commits.append, progress=steps.append)
    assert finished.failure == ""
    assert [(each.old, each.new, each.result) for each in finished.positions] == [(7, 3, Result.SET)]
    assert commits == [{PLACE: 3}]
    assert Step.WAIT in [each.step for each in steps]  # until it was stale
    observer = read(there)
    assert observer.world.claims[Place("g", "t", 0)].current_offset == 3
    assert not observer.world.is_paused("g", 0, wall_ms())


def test_a_refused_commit_and_an_interrupt_give_back() -> None:
    def refuse(offsets: Mapping[TopicPartition, int]) -> None:
        raise TopicsError("the group has members")

    for is_interrupted, reason in ((False, "the group has members"), (True, "it was interrupted")):
        there = broker_administration()
        machine = PositionSetter(SETTINGS, {PLACE: 3})
        finished = run(machine, there, commit=refuse, is_interrupted=partial(bool, is_interrupted))
        assert reason in finished.failure
        assert read(there).world.is_paused("g", 0, wall_ms()) is False


def test_a_pause_needs_no_reading() -> None:
    there = broker_administration(claim(ClaimingPartition))
    finished = run(GroupPauser(SETTINGS, wall_ms() + 60_000, [0]), there)
    assert finished.failure == ""
    assert read(there).world.is_paused("g", 0, wall_ms())
