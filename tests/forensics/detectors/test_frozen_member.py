"""Frozen members: a silence that the same member ends, while others are heard."""

from __future__ import annotations

from collections.abc import Iterable

from kcoord_wire.forensics.model import Exchange
from tests.support.detector_groups import exchange, group, life, of


def beats(client: str, seconds: Iterable[float]) -> list[Exchange]:
    return [exchange("Heartbeat", at, client_id=client, member_id=f"{client}-id") for at in seconds]


WITH_A_GAP = [*range(0, 30, 3), *range(50, 90, 3)]


def test_a_member_that_goes_on_after_a_silence() -> None:
    history = group(90, members=[life("c1"), life("c2")])
    (found,) = of("frozen_member", history, beats("c1", WITH_A_GAP) + beats("c2", range(0, 90, 3)))
    assert (found.severity, found.subject) == ("warning", "c1"), "23 s of a session of 45 s"
    assert found.text == (
        "c1 (10.0.0.1) was silent for 23.0 s, with a heartbeat every 3.0 s before, and then went on as the same "
        "process: it was frozen, or its network carried nothing"
    )
    shorter = beats("c1", [*range(0, 30, 3), *range(40, 90, 3)]) + beats("c2", range(0, 90, 3))
    (found,) = of("frozen_member", history, shorter)
    assert found.severity == "info"


def test_a_member_that_was_removed_meanwhile() -> None:
    history = group(90, members=[life("c1", 0, 35, session_timeout_ms=120_000), life("c2")])
    (found,) = of("frozen_member", history, beats("c1", WITH_A_GAP) + beats("c2", range(0, 90, 3)))
    assert found.severity == "warning"
    assert "when the coordinator had removed it" in found.text


def test_a_gap_in_the_capture_is_not_a_silence() -> None:
    history = group(90, members=[life("c1"), life("c2")])
    assert of("frozen_member", history, beats("c1", WITH_A_GAP) + beats("c2", WITH_A_GAP)) == []


def test_waiting_for_a_response_is_not_a_silence() -> None:
    history = group(90, members=[life("c1"), life("c2")])
    waits = exchange("JoinGroup", 28, answered_ns=int(49.5e9))
    assert of("frozen_member", history, [*beats("c1", WITH_A_GAP), waits, *beats("c2", range(0, 90, 3))]) == []


def test_a_member_that_left_is_not_silent() -> None:
    history = group(90, members=[life("c1", 0, 27), life("c2")])
    assert of("frozen_member", history, beats("c1", WITH_A_GAP) + beats("c2", range(0, 90, 3))) == []
    assert of("frozen_member", history, [exchange("JoinGroup", 1, member_id="")]) == []
    assert of("frozen_member", history) == []
