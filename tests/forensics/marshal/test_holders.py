"""Generations, rebalances, ownership and pauses, from claims."""

from __future__ import annotations

from typing import Any

from kcoord_wire.forensics.marshal.claims import Holders
from kcoord_wire.forensics.model import Cause, ClaimRow

MS = 1_000_000


def claim(partition: int, who: str, start: int, end: int | None, **other: Any) -> ClaimRow:
    """A claim of client ``a`` by instance ``a1`` from `start` to `end`, in ms."""
    fields: dict[str, Any] = {"began": "claimed", "ended": "open" if end is None else "released", **other}
    to_ns = None if end is None else end * MS
    return ClaimRow("g", "t", partition, who[:-1], who, start, start * MS, to_ns, **fields)


def holders(*claims: ClaimRow) -> Holders:
    made = Holders("g", claims)
    made.close()
    return made


def causes(made: Holders) -> list[tuple[str, float | None, str]]:
    return [(row.cause, row.duration_ms, row.outcome) for row in made.tables.rebalances]


def test_a_generation_ends_when_the_holding_clients_change() -> None:
    made = holders(claim(0, "a1", 0, None), claim(1, "a1", 5, 40), claim(2, "b1", 20, None))
    found = [
        (row.generation_id, row.joined_ns, row.ended_ns, row.members, row.partitions) for row in made.tables.generations
    ]
    assert found == [(1, 0, 20 * MS, 1, 2), (2, 20 * MS, None, 2, 2)]
    assert [row.generation_id for row in made.ownership] == [1, 1, 2]
    assert causes(made) == [(Cause.NEW_MEMBER, 0.0, "stable"), (Cause.NEW_MEMBER, 0.0, "stable")]


def test_a_departure_lasts_until_its_partitions_have_holders() -> None:
    made = holders(
        claim(0, "a1", 0, 10), claim(1, "a1", 0, 20), claim(9, "b1", 0, None),
        claim(0, "b1", 15, None), claim(1, "b1", 50, None),
    )  # fmt: skip
    [_, left] = made.tables.rebalances
    assert (left.cause, left.duration_ms, left.moved, left.paused_ms) == (Cause.MEMBER_LEFT, 30.0, 1, 30.0)
    assert [(row.partition, row.from_ns, row.to_ns, row.next_member_id, row.rebalance) for row in made.pauses] == [
        (0, 10 * MS, 15 * MS, "b1", None),
        (1, 20 * MS, 50 * MS, "b1", 2),
    ]


def test_a_stale_holder_is_a_session_timeout() -> None:
    made = holders(claim(0, "a1", 0, 10, ended="stale"), claim(1, "b1", 0, None))
    assert causes(made)[1] == (Cause.SESSION_EXPIRED, None, "open")
    assert [row.why for row in made.tables.rebalances[1].removed] == ["session timeout"]
    [pause] = made.pauses
    assert (pause.to_ns, pause.next_member_id, pause.rebalance) == (None, None, 2)


def test_a_restart_is_one_rebalance_and_no_generation() -> None:
    made = holders(
        claim(0, "a1", 0, 10, ended="taken over"), claim(1, "a1", 0, 14, ended="taken over"),
        claim(0, "a2", 10, None, began="restarted"), claim(1, "a2", 14, None, began="restarted"),
    )  # fmt: skip
    assert len(made.tables.generations) == 1
    assert causes(made) == [(Cause.NEW_MEMBER, 0.0, "stable"), (Cause.STATIC_REPLACED, 4.0, "stable")]
    assert made.pauses == []


def test_a_group_without_holders_is_empty() -> None:
    made = holders(claim(0, "a1", 0, 10), claim(0, "b1", 30, None))
    assert [(row.state, row.from_ns, row.to_ns) for row in made.tables.states] == [
        ("Stable", 0, 10 * MS),
        ("Empty", 10 * MS, 30 * MS),
        ("Stable", 30 * MS, None),
    ]
    assert causes(made)[1] == (Cause.MEMBER_LEFT, 0.0, "empty")


def test_a_claim_without_length_leaves_its_partition_free() -> None:
    made = holders(claim(0, "a1", 0, 10), claim(0, "b1", 10, 10), claim(1, "c1", 0, None))
    [pause] = made.pauses
    assert (pause.former_member_id, pause.from_ns, pause.to_ns) == ("b1", 10 * MS, None)
    assert len(made.ownership) == 3


def test_the_order_of_the_claims_does_not_matter() -> None:
    rows = [claim(n % 3, f"{'abc'[n % 3]}1", n * 10, n * 10 + 12) for n in range(0, 30, 3)]
    rows += [claim(n, "d1", n, None) for n in range(5, 9)]
    one, other = holders(*rows), holders(*rows[::-1])
    assert one.tables.rebalances == other.tables.rebalances
    assert one.pauses == other.pauses
    assert one.tables.generations == other.tables.generations
