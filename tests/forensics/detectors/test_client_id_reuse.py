"""Two live instances with one client id."""

from __future__ import annotations

from kcoord_wire.forensics.detectors import findings_of
from kcoord_wire.forensics.model import Finding
from tests.support.marshal_rows import history_of


def found(*lives: tuple[str, str, int, int]) -> list[Finding]:
    """What is found of instances, each with its client id, that send every second from one to another."""
    lines = [
        (second, f"Heartbeat/1/{{}}/{instance}/{client}/g/t/{n}/0")
        for n, (instance, client, since, until) in enumerate(lives)
        for second in range(since, until)
    ]
    return findings_of("client_id_reuse", history_of(sorted(lines), first=9))


def test_two_processes_with_one_client_id_are_found() -> None:
    [finding] = found(("i1", "c", 0, 100), ("i2", "c", 40, 90), ("i3", "d", 0, 100))
    assert (finding.subject, finding.severity, finding.value) == ("c", "critical", 49.0)
    assert "several instances at a time" in finding.text


def test_a_short_life_within_a_long_one_is_found() -> None:
    assert [finding.value for finding in found(("i1", "c", 0, 200), ("i2", "c", 5, 6), ("i3", "c", 50, 80))] == [29.0]


def test_a_restart_is_no_reuse() -> None:
    assert found(("i1", "c", 0, 50), ("i2", "c", 48, 100), ("i3", "c", 101, 120)) == []


def test_client_ids_of_their_own_are_no_reuse() -> None:
    assert found(("i1", "c", 0, 50), ("i2", "d", 0, 50)) == []
