"""A process runs its machine: not while it is paused, never after it was killed, and on time."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from kcoord_wire.kernel.machines import Tick
from kcoord_wire.kernel.virtual.clock import BREAKS, EPOCH_MS, VirtualClock
from kcoord_wire.kernel.virtual.processes import Process
from kcoord_wire.kernel.virtual.scripts import ViolationError


class Echo:
    """A machine that wants a `Tick` whenever the test says so, and gives each event back as an effect."""

    deadline: int | None = None

    def handle(self, event: Any, now: int) -> list[tuple[int, Any]]:
        if isinstance(event, Tick):
            self.deadline = None
        return [(now - EPOCH_MS, event)]


class EchoProcess(Process):
    def __init__(self, clock: VirtualClock) -> None:
        self.echo = Echo()
        self.effects: list[Any] = []
        self.changes = 0
        super().__init__(clock, "p", "10.0.1.2", self.echo, Random(1))

    def carry_out(self, effect: Any) -> None:
        self.effects.append(effect)

    def changed(self) -> None:
        self.changes += 1


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def process(clock: VirtualClock) -> EchoProcess:
    return EchoProcess(clock)


def test_a_paused_process_gets_its_events_when_it_resumes(clock: VirtualClock, process: EchoProcess) -> None:
    process.pause(50)
    process.deliver("a")
    process.pause(20)
    clock.run(49)
    assert process.is_paused
    assert process.effects == []
    clock.run(1)
    assert process.effects == [(50, "a"), (50, Tick())]
    assert [line.what for line in clock.trace] == ["pauses", "pauses", "resumes"]
    assert process.changes == 3


def test_a_pause_can_be_ended_early(clock: VirtualClock, process: EchoProcess) -> None:
    process.pause(50)
    process.deliver("a")
    clock.run(10)
    process.resume()
    clock.run(100)
    assert process.effects == [(10, "a"), (10, Tick())]


def test_a_killed_process_gets_nothing(clock: VirtualClock, process: EchoProcess) -> None:
    process.echo.deadline = EPOCH_MS + 5
    process.deliver("a")
    process.kill()
    process.deliver("b")
    process.pause(10)
    clock.run(100)
    assert process.effects == [(0, "a")]
    assert not process.is_paused


def test_a_tick_comes_at_the_deadline_and_no_earlier(clock: VirtualClock, process: EchoProcess) -> None:
    process.echo.deadline = EPOCH_MS + 30
    process.deliver("a")
    process.echo.deadline = EPOCH_MS + 10  # brought forward: the plan for 30 is void
    process.deliver("b")
    clock.run(5)
    process.echo.deadline = EPOCH_MS + 60  # put off
    clock.run(100)
    assert process.effects == [(0, "a"), (0, "b"), (60, Tick())]


def test_a_trace_ends_with_the_event_that_broke_a_law(
    clock: VirtualClock, process: EchoProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: EchoProcess) -> None:
        self._clock.record("p", "is checked")
        raise ViolationError("one owner", "planted")

    monkeypatch.setattr(EchoProcess, "handled", refuse)
    with pytest.raises(ViolationError, match="planted"):
        process.deliver("a")
    assert [line[1:] for line in clock.trace] == [("p", "is checked", None), ("p", BREAKS, "a")]
