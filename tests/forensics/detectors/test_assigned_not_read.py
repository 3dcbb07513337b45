"""The detector assigned_not_read: partitions of an assignment whose offsets are never fetched."""

from __future__ import annotations

import pytest

from kcoord_wire.forensics.model import Exchange, OffsetsCommitted
from tests.support.detector_groups import exchange, given, group, leader_join, life, of

HISTORY = group(100, members=[life("c1"), life("c2")])
ROUND = [leader_join("c1", 10, 5, {"c1": ({"orders": [0]}, 4)}), given("c1", 11, 5, {"c1": {"orders": [0, 1, 2]}})]


def fetch(at_s: float, *numbers: int, api: str = "OffsetFetch", **more: object) -> Exchange:
    return exchange(api, at_s, member_id="", offsets=[OffsetsCommitted("orders", n, 7, 0) for n in numbers], **more)


@pytest.mark.parametrize(
    ("rows", "missing"),
    [
        ([fetch(12, 1, 2)], []),
        ([fetch(12, 1), fetch(13, 2)], []),
        ([fetch(12, 1), fetch(13, 2, api="OffsetCommit")], []),
        ([fetch(12, 2)], ["orders-1"]),
        ([fetch(12, 0, api="OffsetCommit")], ["orders-1", "orders-2"]),
        ([], []),  # the capture may not have its fetches, or it keeps offsets elsewhere
        ([fetch(12, 1, 2, client_id="c2")], []),
    ],
)
def test_partitions_that_are_left_out_are_found(rows: list[Exchange], missing: list[str]) -> None:
    findings = of("assigned_not_read", HISTORY, [*ROUND, *rows])
    assert [finding.text for finding in findings] == (
        [
            f"{len(missing)} partition{'s are' if len(missing) > 1 else ' is'} assigned to c1 and not read: "
            f"{', '.join(missing)}"
        ]
        if missing
        else []
    )


def test_a_generation_that_is_over_soon_proves_nothing() -> None:
    following = leader_join("c1", 19, 6, {"c1": ({"orders": [0]}, 5)})
    assert of("assigned_not_read", HISTORY, [*ROUND, fetch(12, 2), following]) == []
