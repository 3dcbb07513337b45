"""Deadlines of a machine without a clock."""

from __future__ import annotations

from functools import partial

from kcoord_wire.kernel.timers import Timers


def test_late_timers_run_in_the_order_of_their_deadlines() -> None:
    timers = Timers()
    ran: list[str] = []
    moved = timers.start(5, partial(ran.append, "moved to 20"))
    timers.move(moved, 20)
    timers.start(10, partial(ran.append, "at 10"))
    timers.run_due(30)
    assert ran == ["at 10", "moved to 20"]
    assert timers.next is None


def test_timers_that_will_not_fire_are_not_kept() -> None:
    timers = Timers()
    kept = timers.start(1_000, lambda: None)
    for _ in range(10_000):
        timers.start(1 << 40, lambda: None).cancel()
        kept = timers.move(timers.move(kept, 2_000), 1_000)
    assert len(timers) < 1_000
    assert timers.next == 1_000
