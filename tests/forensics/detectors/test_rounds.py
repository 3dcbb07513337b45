"""Rounds: which SyncGroup belongs to which list of members."""

from __future__ import annotations

from kcoord_wire.forensics.detectors.rounds import label, read_rounds
from kcoord_wire.forensics.model import Exchange, table_of
from tests.support.detector_groups import exchange, given, leader_join

CLAIMS = {"a": ({"orders": [1]}, 3), "b": ({}, -1)}


def test_a_sync_belongs_to_the_last_list_before_it() -> None:
    rows = [
        given("a", 6, 4, {"a": {"orders": [0, 1]}}),
        leader_join("a", 1, 4, CLAIMS),
        leader_join("a", 5, 4, CLAIMS),  # the same generation again, after the coordinator had lost the first
        leader_join("b", 8, 5, CLAIMS),
        given("a", 9, 5, {"a": {"orders": [7]}}),  # not the leader of 5
    ]
    first, second, third = read_rounds(table_of(Exchange, rows))
    assert (first.is_synced, first.given) == (False, None)
    assert second.given == {"a-id": {("orders", 0), ("orders", 1)}}
    assert second.owners == {("orders", 0): ["a-id"], ("orders", 1): ["a-id"]}
    assert (third.leader, third.is_synced) == ("b", False)


def test_claims_say_what_subscriptions_say() -> None:
    (round_,) = read_rounds(table_of(Exchange, [leader_join("a", 1, 4, CLAIMS, rack="r1")]))
    claim = round_.claims["a-id"]
    assert (claim.partitions, claim.generation, claim.has_rack) == ({("orders", 1)}, 3, True)
    assert (round_.claims["b-id"].generation, round_.claimants) == (None, {("orders", 1): ["a-id"]})


def test_answers_to_followers_and_refused_joins_are_no_rounds() -> None:
    follower = exchange("JoinGroup", 1, new_generation_id=4, members=[])
    refused = exchange("JoinGroup", 2, error_code=25)
    assert read_rounds(table_of(Exchange, [follower, refused])) == []
    assert read_rounds(None) == []


def test_labels_are_sorted() -> None:
    assert label({("b", 1), ("a", 10), ("a", 9)}) == ["a-9", "a-10", "b-1"]
