"""A coordinator that stays and cannot write its log, and those that only look like it."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord_wire.forensics.detectors import detect
from kcoord_wire.forensics.model import Finding, Outage, SightingKind
from tests.support.exchange_script import Script

UNAVAILABLE, LOADING, MOVED = 15, 14, 16


def stable() -> Script:
    script = Script()
    script.form("c1", "c2", owners={"c1": {"orders": [0]}, "c2": {"orders": [1]}})
    for client in ("c1", "c2"):
        script.beats(client, 1_000, 60_000, 1)
    script.commit("c1", 5_000, {0: 10})
    script.commit("c1", 50_000, {0: 90})
    return script


def refused(script: Script, error: int = UNAVAILABLE, took_ms: int = 5_000, **fields: Any) -> None:
    for number, ms in enumerate((20_000, 24_000, 28_000)):
        script.add(
            "OffsetCommit", "c1", ms + 100 * number, ms + 100 * number + took_ms, error_code=error, generation_id=1,
            connection="10.0.0.1:4009-10.0.9.9:9092#9", **fields,
        )  # fmt: skip


def outages(script: Script) -> list[Outage]:
    return script.history().outages


@pytest.mark.parametrize("took_ms", [1, 2_900, 5_000])
def test_a_coordinator_that_stays_cannot_write(took_ms: int) -> None:
    script = stable()
    refused(script, took_ms=took_ms)
    [outage] = outages(script)
    assert (outage.kind, outage.broker, outage.rebalance) == ("log not written", "10.0.9.9:9092", None)
    assert "could not write its log (__consumer_offsets)" in outage.text
    assert "3 OffsetCommit were refused with 15 COORDINATOR_NOT_AVAILABLE" in outage.text
    assert ("after 5.0 s each" in outage.text) is (took_ms == 5_000)
    [found] = [finding for finding in findings(script) if finding.detector == "outage"]
    assert "restarted" not in found.advice
    assert "min.insync.replicas" in found.advice


@pytest.mark.parametrize(("took_ms", "is_write"), [(5_000, True), (1_200, True), (3, False)])
def test_a_heartbeat_waits_for_the_writes_before_it(took_ms: int, is_write: bool) -> None:
    script = stable()
    for client in ("c1", "c2"):
        script.add("Heartbeat", client, 20_300, 20_300 + took_ms, generation_id=1, error_code=UNAVAILABLE)
    assert [outage.kind for outage in outages(script)].count("log not written") == is_write


def findings(script: Script) -> list[Finding]:
    return detect(script.history())


@pytest.mark.parametrize("other", [LOADING, MOVED])
def test_a_broker_that_loads_is_another_matter(other: int) -> None:
    script = stable()
    refused(script)
    script.beat("c2", 26_500, 1, error=other)
    assert "log not written" not in [outage.kind for outage in outages(script)]


def test_a_broker_that_went_down_is_another_matter() -> None:
    script = stable()
    refused(script)
    script.closed("c1", 25_000, kind=SightingKind.REFUSED, connection="10.0.0.1:4010-10.0.9.9:9092#10")
    assert "log not written" not in [outage.kind for outage in outages(script)]


def test_another_broker_afterwards_is_a_move() -> None:
    script = Script()
    script.form("c1", "c2", owners={"c1": {"orders": [0]}, "c2": {"orders": [1]}})
    for client in ("c1", "c2"):
        script.beats(client, 1_000, 19_000, 1)
        for ms in range(35_000, 60_000, 1_000):
            script.beat(client, ms, 1, connection=f"10.0.0.{client[1]}:5000-10.0.9.8:9092#{client}")
    refused(script, took_ms=1)
    assert "log not written" not in [outage.kind for outage in outages(script)]
