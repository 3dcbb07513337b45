"""Virtual time passes from one planned action to the next."""

from __future__ import annotations

import pytest

from kcoord_wire.kernel.virtual.clock import EPOCH_MS, TraceLine, VirtualClock


def test_actions_happen_by_time_and_then_in_order() -> None:
    clock = VirtualClock()
    seen: list[tuple[int, str]] = []
    for name, ms in (("late", 30), ("first", 10), ("second", 10)):
        clock.after(ms, lambda name: seen.append((clock.now, name)), name)
    clock.at(EPOCH_MS + 20, lambda: clock.after(0, seen.append, (clock.now, "planned by an action")))
    clock.run(25)
    assert seen == [(10, "first"), (10, "second"), (20, "planned by an action")]
    assert clock.now == 25
    clock.clear()
    clock.run(100)
    assert len(seen) == 3


def test_run_until_returns_the_time_it_took() -> None:
    clock = VirtualClock()
    done: list[int] = []
    clock.after(40, done.append, 1)
    clock.after(50, done.append, 2)
    assert clock.run_until(lambda: bool(done), 1_000) == 40
    assert done == [1]
    with pytest.raises(TimeoutError, match="not within 5 ms"):
        clock.run_until(lambda: len(done) == 2, 5)
    with pytest.raises(TimeoutError):
        clock.run_until(lambda: len(done) == 3, 1_000)


def test_time_does_not_run_backwards() -> None:
    with pytest.raises(ValueError, match="cannot pass by -1 ms"):
        VirtualClock().run(-1)


def test_the_trace_has_the_time_of_each_line() -> None:
    clock = VirtualClock()
    clock.run(7)
    clock.record("m1", "crashes")
    clock.record("m1", "starts", {"a": 1})
    assert clock.trace == [TraceLine(7, "m1", "crashes"), TraceLine(7, "m1", "starts", {"a": 1})]
    assert str(clock.trace[1]).split() == ["7", "m1", "starts", "{'a':", "1}"]
