"""Who holds what: valid claims, disputed ones, and Kafka's formats of user data."""

from __future__ import annotations

import pytest

from kcoord_wire.assignors import MemberSubscription
from kcoord_wire.assignors.sticky import (
    Claim,
    generation_user_data,
    holdings,
    sticky_user_data,
    with_generation_from_user_data,
    with_owned_from_user_data,
)

COUNTS = {"a": 4, "b": 2}
BOTH = frozenset(COUNTS)

# What Kafka 3.9.2's StickyAssignor and CooperativeStickyAssignor put into subscriptions, with OWNED and generation 7.
OWNED = {"a": [1, 3], "b": [0]}
STICKY_DATA = bytes.fromhex("00000002000161000000020000000100000003000162000000010000000000000007")
COOPERATIVE_DATA = bytes.fromhex("00000007")


def test_valid_claims_are_taken_as_they_are() -> None:
    claims = [Claim({"a": [0, 2]}, 1), Claim({"a": (3,), "b": range(2)}, 1), Claim({}, -1)]
    found = holdings(COUNTS, [BOTH] * 3, claims)
    assert all(held is claim.owned for held, claim in zip(found.held, claims, strict=True)), "and not copied"
    assert (found.free, found.claimed) == ({"a": [1]}, {})


@pytest.mark.parametrize(
    ("claims", "held", "claimed"),
    [
        pytest.param([(OWNED, 4), (OWNED, 5)], [{}, OWNED], {}, id="the higher generation holds"),
        pytest.param([(OWNED, 5), (OWNED, 4)], [OWNED, {}], {}, id="whatever the order"),
        pytest.param([(OWNED, 5), (OWNED, 5)], [{}, {}], {"a": {1, 3}, "b": {0}}, id="equal generations hold nothing"),
        pytest.param(
            [(OWNED, 5), ({"a": [3]}, 5)], [{"a": [1], "b": [0]}, {}], {"a": {3}}, id="only what both claim is free"
        ),
        pytest.param(
            [(OWNED, 5), (OWNED, 5), (OWNED, 6)], [{}, {}, OWNED], {}, id="a third one with a higher generation holds"
        ),
        pytest.param([(OWNED, 2), ({"b": [1]}, 7)], [OWNED, {"b": [1]}], {}, id="a stale claim counts if it is alone"),
        pytest.param([({"a": [-1, 3, 4]}, 1)], [{"a": [3]}], {}, id="partitions that do not exist"),
        pytest.param([({"a": [2], "gone": [0]}, 1)], [{"a": [2]}], {}, id="a deleted topic"),
        pytest.param([({"a": [2, 2]}, 1)], [{"a": [2]}], {}, id="a partition listed twice"),
    ],
)
def test_claims_are_sorted_out(
    claims: list[tuple[dict[str, list[int]], int]],
    held: list[dict[str, list[int]]],
    claimed: dict[str, set[int]],
) -> None:
    found = holdings(COUNTS, [BOTH] * len(claims), [Claim(*each) for each in claims])
    assert (found.held, found.claimed) == (held, claimed)
    taken = {(topic, number) for mine in held for topic, numbers in mine.items() for number in numbers}
    free = {(topic, number) for topic, numbers in found.free.items() for number in numbers}
    assert (taken | free, taken & free) == (
        {(topic, n) for topic, count in COUNTS.items() for n in range(count)},
        set(),
    )


def test_a_member_loses_what_it_no_longer_subscribes_to() -> None:
    """The partition is claimed all the same: the member works on it until it has its new assignment."""
    found = holdings(COUNTS, [frozenset("b"), BOTH], [Claim(OWNED, 5), Claim({"a": [1]}, 4)])
    assert (found.held, found.claimed) == ([{"b": [0]}, {}], {"a": {1, 3}})


def test_user_data_is_that_of_kafkas_sticky_assignors() -> None:
    assert sticky_user_data(["a", "b"], OWNED, 7) == STICKY_DATA
    assert sticky_user_data(["a", "b"], {}, -1) == b""
    assert generation_user_data(["a", "b"], OWNED, 7) == COOPERATIVE_DATA
    assert with_owned_from_user_data(MemberSubscription(["a"], user_data=STICKY_DATA)) == (OWNED, 7)
    assert with_owned_from_user_data(MemberSubscription(["a"], user_data=STICKY_DATA[:-4])) == (OWNED, -1), "version 0"
    member = MemberSubscription(["a"], OWNED, user_data=COOPERATIVE_DATA)
    assert with_generation_from_user_data(member) == (OWNED, 7)


def test_fields_of_the_subscription_come_before_user_data() -> None:
    member = MemberSubscription(["a"], {"a": [0]}, generation=9, user_data=STICKY_DATA)
    assert with_owned_from_user_data(member) == ({"a": [0]}, 9)
    member = MemberSubscription(["a"], {"a": [0]}, generation=9, user_data=COOPERATIVE_DATA)
    assert with_generation_from_user_data(member) == ({"a": [0]}, 9)


LIES = STICKY_DATA[:9] + b"\x7f\xff\xff\xff" + STICKY_DATA[13:]
CUT = [STICKY_DATA[:end] for end in range(len(STICKY_DATA)) if end != len(STICKY_DATA) - 4]


@pytest.mark.parametrize("data", [*CUT, LIES, b"\x7f\xff\xff\xff" * 20, b"\xff" * 40])
def test_user_data_that_is_cut_off_or_wrong_is_ignored(data: bytes) -> None:
    assert with_owned_from_user_data(MemberSubscription(["a"], user_data=data)) == ({}, -1)
    if len(data) != 4:
        assert with_generation_from_user_data(MemberSubscription(["a"], user_data=data)) == ({}, -1)
