"""The change from the classic protocol to KIP-848, or back."""

from __future__ import annotations

import pytest

from kcoord_wire.forensics.model import MemberLife
from tests.support.detector_groups import group, life, of


def classic(name: str, from_s: float, to_s: float | None = None) -> MemberLife:
    return life(name, from_s, to_s)


def modern(name: str, from_s: float, to_s: float | None = None) -> MemberLife:
    return life(name, from_s, to_s, member_id=f"{name}-848", protocol="consumer")


@pytest.mark.parametrize(
    ("members", "text"),
    [
        (
            [classic("a", 0, 50), classic("b", 0), classic("c", 0), modern("a", 55)],
            "from classic to consumer (KIP-848): 1 of 3 members use it at the end, b, c not yet",
        ),
        (
            [classic("a", 0, 50), classic("b", 0, 70), modern("a", 55), modern("b", 75)],
            "from classic to consumer (KIP-848): it is complete, all 2 members use it, after 20.0 s",
        ),
        (
            [modern("a", 0, 50), modern("b", 0), classic("a", 55)],
            "from consumer (KIP-848) to classic: 1 of 2 members use it at the end, b not yet",
        ),
        (
            [classic("a", 0, 50), classic("b", 0, 90), modern("a", 55, 90)],
            "from classic to consumer (KIP-848): 1 of 2 members used it when the group was shut down",
        ),
    ],
)
def test_the_change_says_how_far_it_has_come(members: list[MemberLife], text: str) -> None:
    [found] = of("protocol_change", group(100, members=members))
    assert (found.severity, found.text) == ("info", f"the group changes its protocol {text}")


def test_a_group_of_one_protocol_changes_nothing() -> None:
    assert of("protocol_change", group(100, members=[classic("a", 0, 50), classic("a", 55)])) == []
    assert of("protocol_change", group(100)) == []
