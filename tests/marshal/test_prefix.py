"""The position over records that are processed in any order, next to a plain list of what is not processed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcoord_wire.marshal.holding import AckTracker, PrefixError


def test_position_waits_for_the_oldest_record() -> None:
    prefix = AckTracker(5)
    prefix.delivered([5, 6, 7], 8)
    prefix.processed(7)
    prefix.processed(6)
    assert (prefix.position, prefix.in_flight) == (5, 1)
    prefix.processed(5)
    assert (prefix.position, prefix.in_flight) == (8, 0)


def test_position_passes_gaps_of_compaction_and_control_records() -> None:
    prefix = AckTracker(0)
    prefix.delivered([4, 9], 12)
    assert prefix.position == 4  # nothing is below the first record
    prefix.processed(4)
    assert prefix.position == 9
    prefix.processed(9)
    assert prefix.position == 12
    prefix.delivered([], 20)
    assert prefix.position == 20


@pytest.mark.parametrize(
    ("offset", "words"),
    [
        (4, "was not delivered: the tenure has started at offset 5"),
        (5, "was processed before"),
        (7, "or there is none"),
        (9, "was not delivered: the next one is at offset 9 or above"),
    ],
)
def test_processed_record_that_is_not_in_flight_is_refused(offset: int, words: str) -> None:
    prefix = AckTracker(5)
    prefix.delivered([5, 6, 8], 9)
    prefix.processed(5)
    with pytest.raises(PrefixError, match=words):
        prefix.processed(offset)
    assert (prefix.position, prefix.in_flight) == (6, 2)


@pytest.mark.parametrize(("offsets", "end"), [([4], 9), ([6, 6], 9), ([7, 6], 9), ([6, 7], 7), ([], 4)])
def test_delivery_out_of_order_is_refused_as_a_whole(offsets: list[int], end: int) -> None:
    prefix = AckTracker(5)
    with pytest.raises(PrefixError):
        prefix.delivered(offsets, end)
    assert (prefix.position, prefix.in_flight) == (5, 0)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_position_is_the_first_offset_that_is_not_processed(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, 5))
    prefix, end, unprocessed, before = AckTracker(start), start, list[int](), start
    for _ in range(data.draw(st.integers(1, 30))):
        if unprocessed and data.draw(st.booleans()):
            offset = data.draw(st.sampled_from(unprocessed))
            unprocessed.remove(offset)
            prefix.processed(offset)
        else:
            gaps = data.draw(st.lists(st.integers(0, 3), max_size=4))
            offsets: list[int] = []
            for gap in gaps:
                offsets.append(end + gap)
                end = offsets[-1] + 1
            end += data.draw(st.integers(0, 2))
            prefix.delivered(offsets, end)
            unprocessed += offsets
        assert prefix.position == min(unprocessed, default=end) >= before
        assert prefix.in_flight == len(unprocessed)
        before = prefix.position
