"""Racks: when they matter, and which partitions are near which member."""

from __future__ import annotations

import pytest

from kcoord_wire.assignors.nearness import Nearness

COUNTS = {"t": 3}
SPREAD = {"t": [["r1", "r2"], ["r2", "r3"], ["r3"]]}


@pytest.mark.parametrize(
    ("member_racks", "racks"),
    [
        pytest.param(["r1", "r2"], {}, id="racks of partitions unknown"),
        pytest.param([None, ""], SPREAD, id="racks of members unknown"),
        pytest.param(["elsewhere", None], SPREAD, id="no member near a replica"),
        pytest.param(["r1", "r2"], {"t": [["r1", "r2"]] * 3}, id="replicas of all partitions in the same racks"),
    ],
)
def test_racks_that_make_no_difference(member_racks: list[str | None], racks: dict[str, list[list[str]]]) -> None:
    assert Nearness.where_racks_matter(COUNTS, member_racks, racks) is None


def test_partitions_near_a_member() -> None:
    near = Nearness.where_racks_matter(COUNTS, ["r2", None, "r9"], SPREAD)
    assert near is not None
    assert [near.of(member, "t") for member in range(3)] == [{0, 1}, None, set()]
    assert near.replicas("t", 2) == {"r3"}


def test_a_list_that_is_too_short_or_long() -> None:
    near = Nearness.where_racks_matter(COUNTS, ["r1"], {"t": [["r1"]]})
    assert near is not None
    assert (near.of(0, "t"), near.replicas("t", 2)) == ({0}, set())
    near = Nearness.where_racks_matter(COUNTS, ["r1"], {"t": [["r1"], [], [], ["r1"]]})
    assert near is not None
    assert near.of(0, "t") == {0}


def test_members_are_paired_with_near_partitions() -> None:
    near = Nearness.where_racks_matter(COUNTS, ["r3", "r1", "r2"], SPREAD)
    assert near is not None
    assert near.pair("t", range(3), {0: 1, 1: 1, 2: 1}) == {0: [2], 1: [0], 2: [1]}
    assert near.pair("t", range(3), {1: 3}) == {1: [0, 1, 2]}
