"""Positions that were set: who, from where to where, how many records, and that reading on is none."""

from __future__ import annotations

from kcoord_wire.forensics.model import OffsetReset, ResetKind
from tests.support.detector_groups import SECOND, group, of


def reset(partition: int, at_s: float, kind: ResetKind, before: int, after: int | None, who: str = "c9") -> OffsetReset:
    return OffsetReset("billing", "orders", partition, int(at_s * SECOND), kind, before, after, who, "10.0.0.9", None)


def test_an_operators_reset_is_one_finding_with_from_and_to() -> None:
    resets = [reset(n, 7, ResetKind.ADMIN, 500, 0) for n in range(4)]
    [found] = of("offset_reset", group(resets=resets))
    assert found.text == (
        "c9 (10.0.0.9), no member of the group, set the committed offset of 4 partitions: orders-0 from 500 to 0, "
        "orders-1 from 500 to 0, orders-2 from 500 to 0 ...; 2,000 records are read again."
    )
    assert (found.severity, found.subject, found.value, found.from_ns) == ("warning", "c9", 4.0, 7 * SECOND)
    assert "--reset-offsets" in found.advice
    assert len(found.evidence) == 4


def test_resets_of_other_clients_kinds_and_times_stay_apart() -> None:
    resets = [
        reset(0, 1, ResetKind.ADMIN, 500, 0),
        reset(1, 1, ResetKind.ADMIN, 500, 0, who="c8"),
        reset(2, 1, ResetKind.COMMIT, 500, 0),
        reset(3, 30, ResetKind.ADMIN, 500, 0),
        reset(3, 31, ResetKind.ADMIN, 600, 0),
    ]
    assert len(of("offset_reset", group(resets=resets))) == 5


def test_skipped_records_are_counted_and_gone_offsets_named() -> None:
    found = of(
        "offset_reset",
        group(
            resets=[
                reset(0, 1, ResetKind.OUT_OF_RANGE, 100, 350),
                reset(1, 2, ResetKind.UNSEEN, 500, None),
                reset(1, 90, ResetKind.SEEK, 500, 400),
            ]
        ),
    )
    by_kind = {each.from_ns: each for each in found}
    assert "250 records are skipped" in by_kind[SECOND].text
    assert "from 500 to none" in by_kind[2 * SECOND].text
    assert by_kind[90 * SECOND].severity == "info"


def test_a_group_without_resets_has_no_finding() -> None:
    assert of("offset_reset", group()) == []
