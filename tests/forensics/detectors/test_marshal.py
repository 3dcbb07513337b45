"""Clocks that are ahead or behind, of members of Marshal.

Two live instances with one client id.

Partitions without a claim, and released ones that nobody reclaims.
"""

from __future__ import annotations

import pytest

from kcoord_wire.forensics.detectors import findings_of
from kcoord_wire.forensics.marshal.reader import ClaimRules
from kcoord_wire.forensics.model import Finding
from tests.support.detector_groups import group, life
from tests.support.marshal_rows import NOW, history_of


def found(ahead: str, judge: ClaimRules | None = None, *, is_append_time: bool = True) -> list[Finding]:
    """What is found of three members that send each second, one of them with a clock so many s ahead."""
    lines = [
        (second + n / 10, f"Heartbeat/1/{{{ahead if n == 1 else ''}}}/i{n}/c{n}/g/t/{n}/0")
        for second in range(60)
        for n in range(3)
    ]
    return findings_of("clock_skew", history_of(lines, judge, first=9, is_append_time=is_append_time))


@pytest.mark.parametrize("is_append_time", [True, False])
@pytest.mark.parametrize(("ahead", "threshold"), [("+8", 2.0), ("-12", 5.0)])
def test_a_clock_that_is_off_is_named(ahead: str, threshold: float, is_append_time: bool) -> None:
    [finding] = found(ahead, is_append_time=is_append_time)
    assert (finding.subject, finding.threshold) == ("c1", threshold)
    assert finding.value == pytest.approx(abs(int(ahead)), abs=1.5)


@pytest.mark.parametrize("is_append_time", [True, False])
@pytest.mark.parametrize("ahead", ["", "+1", "-3"])
def test_small_differences_are_normal(ahead: str, is_append_time: bool) -> None:
    assert found(ahead, is_append_time=is_append_time) == []


@pytest.mark.parametrize(
    ("ahead", "rules", "severity"),
    [
        ("+8", "library", "critical"),
        ("-12", "library", "warning"),
        ("-70", "library", "critical"),
        ("+8", "document", "warning"),
    ],
)
def test_the_library_suffers_where_no_margin_is_left(ahead: str, rules: str, severity: str) -> None:
    assert [finding.severity for finding in found(ahead, ClaimRules(rules))] == [severity]


def test_members_of_other_protocols_have_no_such_clock() -> None:
    assert findings_of("clock_skew", group(members=[life("m")])) == []


def reuse_found(*lives: tuple[str, str, int, int]) -> list[Finding]:
    """What is reuse_found of instances, each with its client id, that send every second from one to another."""
    lines = [
        (second, f"Heartbeat/1/{{}}/{instance}/{client}/g/t/{n}/0")
        for n, (instance, client, since, until) in enumerate(lives)
        for second in range(since, until)
    ]
    return findings_of("client_id_reuse", history_of(sorted(lines), first=9))


def test_two_processes_with_one_client_id_are_found() -> None:
    [finding] = reuse_found(("i1", "c", 0, 100), ("i2", "c", 40, 90), ("i3", "d", 0, 100))
    assert (finding.subject, finding.severity, finding.value) == ("c", "critical", 49.0)
    assert "several instances at a time" in finding.text


def test_a_short_life_within_a_long_one_is_found() -> None:
    assert [finding.value for finding in reuse_found(("i1", "c", 0, 200), ("i2", "c", 5, 6), ("i3", "c", 50, 80))] == [
        29.0
    ]


def test_a_restart_is_no_reuse() -> None:
    assert reuse_found(("i1", "c", 0, 50), ("i2", "c", 48, 100), ("i3", "c", 101, 120)) == []


def test_members_of_other_protocols_may_share_a_client_id() -> None:
    assert findings_of("client_id_reuse", group(members=[life("m"), life("m", member_id="m-2")])) == []


def test_client_ids_of_their_own_are_no_reuse() -> None:
    assert reuse_found(("i1", "c", 0, 50), ("i2", "d", 0, 50)) == []


Line = tuple[float, str]


def holds(partition: int, who: str, since: int, until: int, *, is_released: bool = True) -> list[Line]:
    """A claim with a heartbeat each 20 s."""
    ids = f"i-{who}/{who}/g/t/{partition}"
    beats = [(second + 0.1, f"Heartbeat/1/{{}}/{ids}/7") for second in range(since, until, 20)]
    released = [(until, f"ReleasingPartition/1/{{}}/{ids}/8")] if is_released else []
    return [(since, f"ClaimingPartition/1/{{}}/{ids}"), *beats, *released]


def free_found(detector: str, *claims: list[Line]) -> list[Finding]:
    lines = sorted(line for claim in claims for line in claim)
    return findings_of(detector, history_of(lines))


def test_a_stale_partition_that_stays_free_is_found() -> None:
    claims = [holds(0, "a", 0, 100, is_released=False), holds(1, "b", 0, 600)]
    [finding] = free_found("unclaimed_partition", *claims)
    assert (finding.subject, finding.severity, finding.to_ns is None) == ("t", "warning", False)
    assert "1 partition had no claim, although others of the topic were claimed: t-0" in finding.text
    assert finding.threshold == 60.0
    assert finding.value == 399.9  # stale 120 s after the heartbeat at 80.1 s; until b releases at 600 s
    assert free_found("released_not_reclaimed", *claims) == []


def test_a_partition_that_nobody_ever_claimed_is_found() -> None:
    [finding] = free_found("unclaimed_partition", holds(0, "a", 0, 300), holds(2, "b", 10, 301, is_released=False))
    assert "t-1" in finding.text
    assert [evidence.text for evidence in finding.evidence] == ["t-1 was never claimed"]
    assert finding.severity == "critical"


def test_a_gap_within_an_interval_is_normal() -> None:
    assert (
        free_found("unclaimed_partition", holds(0, "a", 0, 100), holds(0, "b", 150, 300), holds(1, "c", 0, 300)) == []
    )


def test_a_long_gap_that_ended_is_a_warning() -> None:
    [finding] = free_found("unclaimed_partition", holds(0, "a", 0, 100), holds(0, "b", 200, 300), holds(1, "c", 0, 300))
    assert (finding.severity, finding.value) == ("warning", 100.0)


def test_a_group_that_stopped_is_not_reported() -> None:
    claims = [holds(0, "a", 0, 100), holds(1, "b", 0, 100)]
    late = [(900.0, "Presence/1/{}/i-z/z/g/t/0/5")]
    for detector in ("unclaimed_partition", "released_not_reclaimed"):
        assert free_found(detector, *claims, late) == []


def test_a_released_partition_that_nobody_claims_is_found() -> None:
    claims = [holds(0, "a", 0, 100), holds(1, "b", 0, 400, is_released=False)]
    [finding] = free_found("released_not_reclaimed", *claims)
    assert (finding.severity, finding.to_ns, finding.subject) == ("critical", None, "t")
    assert "1 partition was released by a and not claimed again: t-0" in finding.text
    assert free_found("unclaimed_partition", *claims) == []


def test_a_released_partition_that_is_claimed_again_is_normal() -> None:
    assert (
        free_found("released_not_reclaimed", holds(0, "a", 0, 100), holds(0, "b", 130, 400), holds(1, "b", 0, 400))
        == []
    )


def test_a_paused_group_has_its_time_to_claim_again() -> None:
    halt = [(90.0, f"ReleaseGroup/1/{{}}/x/admin/g//0/{NOW + 500}")]
    before = [holds(0, "a", 0, 100), holds(1, "b", 0, 101)]
    after = [holds(1, "b", 505, 700, is_released=False)]
    assert free_found("unclaimed_partition", halt, *before, *after, holds(0, "a", 510, 700, is_released=False)) == []
    [finding] = free_found("released_not_reclaimed", halt, *before, holds(1, "b", 505, 700, is_released=False))
    assert finding.from_ns == (NOW + 505) * 1_000_000_000
