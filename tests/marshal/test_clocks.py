"""How far clocks are off, by the times in messages."""

from __future__ import annotations

from kcoord_wire.marshal.context import Clocks

LANDED = 1_795_000_000_900


def test_a_right_clock_is_not_reported() -> None:
    clocks = Clocks(5_000)
    for seconds in range(100):
        landed = LANDED + seconds * 1_000
        assert clocks.measure("c", "i", landed // 1_000, landed + 1_500) is None
    assert clocks.senders["i"].ahead_ms == -2_400


def test_a_clock_that_is_ahead_is_reported_once() -> None:
    clocks = Clocks(5_000)
    sender = clocks.measure("c", "i", LANDED // 1_000 + 60, LANDED)
    assert sender is not None
    assert (sender.client_id, sender.instance_id, sender.ahead_ms) == ("c", "i", 59_100)
    assert clocks.measure("c", "i", LANDED // 1_000 + 60, LANDED) is None


def test_one_late_landing_does_not_make_a_clock_slow() -> None:
    clocks = Clocks(5_000)
    assert clocks.measure("c", "i", LANDED // 1_000 - 60, LANDED) is None
    assert clocks.measure("c", "i", LANDED // 1_000, LANDED) is None
    assert clocks.measure("c", "i", LANDED // 1_000 - 60, LANDED) is None
    assert clocks.measure("c", "i", LANDED // 1_000 - 60, LANDED) is not None


def test_only_a_clock_that_is_surely_ahead_is_corrected() -> None:
    clocks = Clocks(5_000)
    clocks.measure("slow", "s", LANDED // 1_000 - 60, LANDED)
    clocks.measure("fast", "f", LANDED // 1_000 + 60, LANDED)
    assert [clocks.surely_ahead_ms(name) for name in ("s", "f", "unknown")] == [0, 59_100, 0]
