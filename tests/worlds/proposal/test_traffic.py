"""The bytes of a rebalance: the document's quadratic against linear, at sizes that a test has time for."""

from __future__ import annotations

import pytest

from kcoord_wire.worlds.proposal.traffic import MEASURED, Measured, Traffic, make_topics, measure

SMALL = 340


def _growth(name: str, metadata_bytes: int = SMALL) -> float:
    """By how much the traffic grows from 8 to 80 members."""
    few, many = (measure(MEASURED[name], members, metadata_bytes).total for members in (8, 80))
    return many / few


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("all members", 70, 100),
        ("all members, compressed", 60, 100),
        ("all members, responses compressed", 15, 100),
        ("subscription hash", 55, 100),
        ("single assignor, without GroupMembers", 8, 12),
        ("released", 8, 12),
    ],
)
def test_traffic_grows_with_the_square_or_with_the_members(name: str, least: float, most: float) -> None:
    assert least < _growth(name) < most


def test_the_drawn_group_members_are_quadratic() -> None:
    """Each Joined response lists the ids of all members, so that the sketch is not linear as it is drawn."""
    assert _growth("single assignor") > 20


def test_large_metadata_is_sent_once_to_the_synchronizer() -> None:
    """The ratio of the document's example, with a tenth of its members and of its metadata."""
    all_members, single = (measure(MEASURED[name], 10, 10_000) for name in ("all members", "single assignor"))
    assert all_members.to_coordinator == pytest.approx(10 * 10_000, rel=0.1)
    assert all_members.to_members == pytest.approx(10 * 10 * 10_000, rel=0.1)
    assert single.to_members == pytest.approx(10 * 10_000, rel=0.25)


def test_a_hash_does_not_grow_with_the_subscription() -> None:
    small, large = (measure(MEASURED["subscription hash"], 5, size) for size in (340, 34_000))
    assert small == large


def test_same_arguments_same_numbers() -> None:
    assert measure(MEASURED["released"], 4, SMALL) == measure(MEASURED["released"], 4, SMALL)
    assert Traffic(1, 2).total == 3


def test_topics_fill_the_metadata_and_reach_all_members() -> None:
    for members, size in ((2, 340), (100, 340), (100, 100_000)):
        topics = make_topics(members, size)
        assert abs(sum(len(name) + 2 for name in topics) - size) < 34
        assert {len(name) for name in topics} == {32}
        assert sum(topics.values()) >= members


def test_another_variant_is_an_error() -> None:
    with pytest.raises(ValueError, match="no variant is called 'no_such'"):
        measure(Measured("no_such"), 2, SMALL)
