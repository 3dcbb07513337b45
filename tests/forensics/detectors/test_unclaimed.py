"""Partitions without a claim, and released ones that nobody reclaims."""

from __future__ import annotations

from kcoord_wire.forensics.detectors import findings_of
from kcoord_wire.forensics.model import Finding
from tests.support.marshal_rows import NOW, history_of

Line = tuple[float, str]


def holds(partition: int, who: str, since: int, until: int, *, is_released: bool = True) -> list[Line]:
    """A claim with a heartbeat each 20 s."""
    ids = f"i-{who}/{who}/g/t/{partition}"
    beats = [(second + 0.1, f"Heartbeat/1/{{}}/{ids}/7") for second in range(since, until, 20)]
    released = [(until, f"ReleasingPartition/1/{{}}/{ids}/8")] if is_released else []
    return [(since, f"ClaimingPartition/1/{{}}/{ids}"), *beats, *released]


def found(detector: str, *claims: list[Line]) -> list[Finding]:
    lines = sorted(line for claim in claims for line in claim)
    return findings_of(detector, history_of(lines))


def test_a_stale_partition_that_stays_free_is_found() -> None:
    claims = [holds(0, "a", 0, 100, is_released=False), holds(1, "b", 0, 600)]
    [finding] = found("unclaimed_partition", *claims)
    assert (finding.subject, finding.severity, finding.to_ns is None) == ("t", "warning", False)
    assert "1 partition had no claim, although others of the topic were claimed: t-0" in finding.text
    assert finding.threshold == 60.0
    assert finding.value == 399.9  # stale 120 s after the heartbeat at 80.1 s; until b releases at 600 s
    assert found("released_not_reclaimed", *claims) == []


def test_a_partition_that_nobody_ever_claimed_is_found() -> None:
    [finding] = found("unclaimed_partition", holds(0, "a", 0, 300), holds(2, "b", 10, 301, is_released=False))
    assert "t-1" in finding.text
    assert [evidence.text for evidence in finding.evidence] == ["t-1 was never claimed"]
    assert finding.severity == "critical"


def test_a_gap_within_an_interval_is_normal() -> None:
    assert found("unclaimed_partition", holds(0, "a", 0, 100), holds(0, "b", 150, 300), holds(1, "c", 0, 300)) == []


def test_a_long_gap_that_ended_is_a_warning() -> None:
    [finding] = found("unclaimed_partition", holds(0, "a", 0, 100), holds(0, "b", 200, 300), holds(1, "c", 0, 300))
    assert (finding.severity, finding.value) == ("warning", 100.0)


def test_a_group_that_stopped_is_not_reported() -> None:
    claims = [holds(0, "a", 0, 100), holds(1, "b", 0, 100)]
    late = [(900.0, "Presence/1/{}/i-z/z/g/t/0/5")]
    for detector in ("unclaimed_partition", "released_not_reclaimed"):
        assert found(detector, *claims, late) == []


def test_a_released_partition_that_nobody_claims_is_found() -> None:
    claims = [holds(0, "a", 0, 100), holds(1, "b", 0, 400, is_released=False)]
    [finding] = found("released_not_reclaimed", *claims)
    assert (finding.severity, finding.to_ns, finding.subject) == ("critical", None, "t")
    assert "1 partition was released by a and not claimed again: t-0" in finding.text
    assert found("unclaimed_partition", *claims) == []


def test_a_released_partition_that_is_claimed_again_is_normal() -> None:
    assert found("released_not_reclaimed", holds(0, "a", 0, 100), holds(0, "b", 130, 400), holds(1, "b", 0, 400)) == []


def test_a_paused_group_has_its_time_to_claim_again() -> None:
    halt = [(90.0, f"ReleaseGroup/1/{{}}/x/admin/g//0/{NOW + 500}")]
    before = [holds(0, "a", 0, 100), holds(1, "b", 0, 101)]
    after = [holds(1, "b", 505, 700, is_released=False)]
    assert found("unclaimed_partition", halt, *before, *after, holds(0, "a", 510, 700, is_released=False)) == []
    [finding] = found("released_not_reclaimed", halt, *before, holds(1, "b", 505, 700, is_released=False))
    assert finding.from_ns == (NOW + 505) * 1_000_000_000
