"""The order of moments."""

from __future__ import annotations

from kcoord_wire.forensics.wire.signs import BEGIN, END, UNKNOWN_SEQ, Moment, end_of


def test_frames_with_one_time_stamp_keep_their_order() -> None:
    assert sorted([Moment(5, "b", 1), Moment(5, "a", 9), Moment(4, "z", 7)]) == [(4, "z", 7), (5, "a", 9), (5, "b", 1)]


def test_a_timer_ends_behind_every_frame_of_its_time() -> None:
    assert Moment(5, "zzz", UNKNOWN_SEQ) < end_of(5) < Moment(6, "", 0)
    assert BEGIN < end_of(5) < END
