"""Histories of classic groups from records written by hand."""

from __future__ import annotations

import pytest

from kcoord_wire import messages as m
from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.model import Rebalance
from kcoord_wire.forensics.records.reader import log_history
from kcoord_wire.records import encode_offsets_record
from tests.support.offsets_log import NOW, generation, table


def rebalances(*records: tuple[bytes, bytes | None]) -> list[Rebalance]:
    return log_history(table(records)).rebalances


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_a_generation(version: int) -> None:
    first = generation(1, {"a-1": [0, 1], "b-1": [2]}, version=version)
    second = generation(2, {"a-1": [0, 1, 2]}, version=version)
    one, two = rebalances(first, second)
    assert (one.cause, one.members_after, one.assignor, one.leader_id) == (Cause.NEW_MEMBER, 2, "range", "a-1")
    assert (two.cause, two.client_id, two.client_host, two.moved) == (Cause.MEMBER_LEFT, "b", "10.0.0.1", 1)
    assert two.confidence == 0.5
    assert "does not show" in two.detail


def test_joins_are_answered_before_the_assignment_is_written() -> None:
    """Kafka's `current_state_timestamp` tells when, where it was before."""
    joined = (NOW + 500_000_000) // 1_000_000
    records = [generation(1, {"a-1": [0]}), generation(2, {"a-1": [0]}, current_state_timestamp=joined)]
    one, two = log_history(table(records, step=1_000_000_000)).rebalances
    assert (one.joined_ns, one.syncing_ms) == (None, None)
    assert (two.joined_ns, two.started_ns, two.syncing_ms) == (joined * 1_000_000, joined * 1_000_000, 500.0)


def test_removed_members_stand_in_the_order_of_the_group() -> None:
    many = {f"{name}-1": [number] for number, name in enumerate("hcafgbed")}
    records = generation(1, many), generation(1, {"h-1": [0]}), generation(2, {"h-1": [0]})
    assert [gone.member_id for gone in rebalances(*records)[1].removed] == list(many)[1:]


def test_causes_between_the_same_members() -> None:
    start = generation(1, {"a-1": [0], "b-1": [1]})
    cases: list[tuple[tuple[bytes, bytes | None], Cause]] = [
        (generation(2, {"a-1": [0], "b-1": [1]}), Cause.LEADER_REJOINED),
        (generation(2, {"a-1": [0, 2], "b-1": [1]}), Cause.TOPICS_CHANGED),
        (generation(2, {"a-1": [0], "b-1": []}), Cause.TOPICS_CHANGED),
        (generation(2, {"a-1": [0], "b-1": [1]}, topics=["t", "u"]), Cause.SUBSCRIPTION_CHANGED),
        (generation(2, {"a-1": [0], "b-1": [1]}, protocol="roundrobin"), Cause.ASSIGNORS_CHANGED),
        (generation(2, {"a-1": [0], "b-1": [1]}, leader="b-1"), Cause.LEADER_REJOINED),
    ]
    for record, cause in cases:
        assert rebalances(start, record)[1].cause is cause


def test_joining_without_partitions_is_not_cooperative() -> None:
    """They offer an eager assignor, too."""
    start = generation(1, {"a-1": [0, 1]}, protocol="cooperative-sticky")
    both = generation(2, {"a-1": [0], "b-1": [1]}, protocol="cooperative-sticky")
    alone = generation(2, {"b-1": [1]}, protocol="cooperative-sticky")
    assert [r.cooperative for r in rebalances(start, both)] == [True, False]
    assert [r.cooperative for r in rebalances(start, alone)] == [True, True]


def test_the_end_of_a_group() -> None:
    deleted = (generation(1, {})[0], None)
    history = log_history(table([generation(0, {}), generation(1, {"a-1": [0]}), generation(2, {}), deleted]))
    assert [(state.state, state.to_ns is None) for state in history.states] == [
        ("Empty", False),
        ("Stable", False),
        ("Empty", False),
    ]
    assert history.pauses == [], "it was stopped before it was deleted"
    anew = log_history(table([generation(7, {"a-1": [0]}), deleted, generation(1, {"b-1": [0]})]))
    assert [item.cause for item in anew.rebalances] == [Cause.UNKNOWN, Cause.NEW_MEMBER]
    assert [life.left_ns is None for life in anew.members] == [False, True]
    back = log_history(table([generation(7, {"a-1": [0]}), generation(1, {"b-1": [0]})]))
    assert [item.cause for item in back.rebalances] == [Cause.UNKNOWN, Cause.NEW_MEMBER]


def test_other_protocol_types_have_members_without_partitions() -> None:
    key, raw = generation(1, {"a-1": []})
    value = m.GroupMetadataValue(
        protocol_type="connect",
        generation=1,
        protocol="sessioned",
        leader="a",
        members=[m.GroupMetadataValueMemberMetadata(member_id="a", subscription=b"\0\2any", assignment=b"x")],
    )
    key, raw = encode_offsets_record(m.GroupMetadataKey(group="g"), value)
    history = log_history(table([(key, raw)]))
    assert history.group.protocol_type == "connect"
    assert history.rebalances[0].cooperative is None
    assert history.ownership == []
