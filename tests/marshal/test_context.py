"""What the parts of a member share: stamps, jitter and the estimate of the log's time.

How far clocks are off, by the times in messages.
"""

from __future__ import annotations

from typing import Any

import pytest

from kcoord_wire.marshal.context import Clocks, Context, TopicPartition
from kcoord_wire.marshal.member_events import Delivery, MemberSettings, RangeClaims
from kcoord_wire.marshal.world_state import Entry, Rules
from kcoord_wire.messages.marshal import Heartbeat

WALL = 1_795_000_000_900
PLACE = TopicPartition("orders", 0)


def context_of(instance_id: str = "i", **settings: object) -> Context:
    made = Context(MemberSettings("g", "c", instance_id, ("orders",), partitions=1, **settings))  # type: ignore[arg-type]  # any setting
    made.ahead_ms = WALL
    return made


@pytest.mark.parametrize("ms", [0, -1_000, 999, 1_500])
def test_a_heartbeat_interval_has_whole_seconds(ms: int) -> None:
    with pytest.raises(ValueError, match="whole seconds"):
        context_of(heartbeat_interval_ms=ms)


def test_stamps_are_never_ahead_of_the_wall_clock() -> None:
    context = context_of()
    assert context.message(Heartbeat, PLACE).time == WALL // 1_000
    assert context.message(Heartbeat, PLACE, not_before=WALL // 1_000 + 7).time == WALL // 1_000 + 7


def test_a_claim_waits_for_a_later_second_than_the_last_message() -> None:
    context = context_of()
    assert context.can_claim_now(PLACE)
    context.message(Heartbeat, PLACE)
    assert not context.can_claim_now(PLACE)
    assert context.can_claim_now(TopicPartition("orders", 1))
    context.now = 100
    assert context.can_claim_now(PLACE)


def test_jitter_differs_from_draw_to_draw_and_by_instance() -> None:
    one, other = context_of("a"), context_of("b")
    drawn = [one.jitter(100, 200) for _ in range(1_000)]
    assert set(drawn) == set(range(100, 201))
    assert drawn != [other.jitter(100, 200) for _ in range(1_000)]


def test_the_log_s_time_goes_on_between_entries() -> None:
    """The wall clock is an hour behind, so the last entry's time counts, and what has passed since."""
    context = context_of()
    context.state.apply(Entry(0, 0, WALL + 3_600_000, True, "garbage"), 0)
    context.read_at[0] = context.now = 500
    context.now = 2_500
    assert context.log_now(0) == WALL + 3_600_000 + 2_000


def test_the_log_s_time_of_an_old_log_is_the_wall_clock() -> None:
    context = context_of()
    context.state.apply(Entry(0, 0, WALL - 3_600_000, True, "garbage"), 0)
    context.read_at[0] = 0
    assert context.log_now(0) == WALL
    context.clocks.measure("c", "i", WALL // 1_000, WALL - 3_600_000)
    assert abs(context.log_now(0) - (WALL - 3_600_000)) < 1_000, "less the measured error of the wall clock"


def test_the_library_judges_by_the_wall_clock_in_seconds() -> None:
    assert context_of(rules=Rules.LIBRARY).log_now(0) == WALL // 1_000


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


@pytest.mark.parametrize("other", [{"rules": Rules.LIBRARY}, {"delivery": Delivery.AT_MOST_ONCE}])
def test_ranges_go_with_one_set_of_rules(other: Any) -> None:
    with pytest.raises(ValueError, match="rules of the document, and delivered at least once"):
        context_of(ranges=RangeClaims(), **other)


def test_ranges_go_with_no_presence() -> None:
    with pytest.raises(ValueError, match="presence, balance"):
        context_of(ranges=RangeClaims(), presence=True)


def test_presence_has_the_time_of_the_wall_clock() -> None:
    made = context_of()
    made.now, made.ahead_ms = 2_000, 5_999
    assert made.presence("orders", 3).time == 7
