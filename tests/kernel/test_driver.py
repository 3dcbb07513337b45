"""The driver of machines on an event loop, their clock, and their log."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

import pytest

from kcoord_wire.kernel.driver import Driver, log_event, monotonic_ms
from kcoord_wire.kernel.machines import LogEvent, Tick
from kcoord_wire.kernel.virtual.loop import VirtualWorld


def test_the_clock_goes_on_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    suspended_ns = 3_600 * 10**9
    clocks = {time.CLOCK_MONOTONIC: 5 * 10**9, time.CLOCK_BOOTTIME: 5 * 10**9 + suspended_ns}
    monkeypatch.setattr(time, "monotonic_ns", lambda: clocks[time.CLOCK_MONOTONIC])
    monkeypatch.setattr(time, "clock_gettime_ns", clocks.__getitem__)
    assert monotonic_ms() == 3_605_000


def test_a_note_is_one_printable_line_with_its_facts(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "a host"):
        log_event(
            logging.getLogger("a host"), LogEvent(logging.WARNING, "member failed", {"member": "a\nb", "epoch": 3})
        )
    [line] = caplog.records
    assert line.getMessage() == "member failed member=a\\nb epoch=3"
    assert (line.levelno, line.what, line.facts) == (logging.WARNING, "member failed", {"member": "a\nb", "epoch": 3})


class Echo:
    """A machine whose effects are the events, with their times; `deadline` is the test's."""

    def __init__(self) -> None:
        self.deadline: int | None = None
        self.seen: list[tuple[Any, int]] = []

    def handle(self, event: Any, now: int) -> Sequence[Any]:
        self.seen.append((event, now))
        if isinstance(event, Exception):
            raise event
        return [event]


def run(scenario: Any) -> None:
    VirtualWorld().run(scenario())


def test_effects_events_come_after_and_errors_go_to_the_owner() -> None:
    async def scenario() -> None:
        carried: list[Any] = []
        failed: list[Any] = []

        def execute(machine: Any, effect: Any, cause: Any) -> None:
            if effect == "first":
                driver.deliver("second", to=other, cause=7)
            carried.append((machine, effect, cause))

        machine, other = Echo(), Echo()
        driver = Driver(machine, other, execute=execute, failed=lambda *told: failed.append(told))
        driver.deliver("first", to=machine)
        assert carried == [(machine, "first", None), (other, "second", 7)]
        error = LookupError()
        driver.deliver(error, to=other, cause=8)
        assert failed == [(error, 8)]
        driver.deliver("to all")
        assert [each.seen[-1][0] for each in (machine, other)] == ["to all"] * 2
        driver.stop()
        driver.deliver("too late", to=machine)
        assert machine.seen[-1][0] == "to all"

    run(scenario)


def test_a_machine_gets_its_tick_at_its_deadline_and_not_before() -> None:
    async def scenario() -> None:
        machine, other = Echo(), Echo()
        other.deadline = monotonic_ms() + 3_600_000

        def execute(_machine: Any, effect: Any, _cause: Any) -> None:
            machine.deadline = monotonic_ms() + 80 if effect == "begin" else None

        driver = Driver(machine, other, execute=execute, failed=lambda *_: None)
        driver.deliver("begin", to=machine)
        await asyncio.sleep(1)
        (_, began), tick = machine.seen
        assert tick == (Tick(), began + 80)
        assert other.seen == []
        machine.deadline = monotonic_ms() + 80
        driver.wind()
        driver.stop()
        await asyncio.sleep(1)
        assert len(machine.seen) == 2

    run(scenario)
