"""Outages that others have had: the pipeline finds them in the frames, says what they were and names who was behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache

import pyarrow as pa
import pytest

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.detectors import detect
from kcoord_wire.forensics.model import Finding, GroupHistory
from kcoord_wire.worlds.group.world import Cluster
from tests.truth import incidents
from tests.truth.labels import labels_of
from tests.truth.pipeline import exchanges_of, histories_of
from tests.truth.scorer import Score, Tolerance, compare
from tests.truth.world import Recorder

MS = 1_000_000
Played = tuple[Cluster, GroupHistory, pa.Table, dict[str, list[Finding]]]


@cache
def played(incident: Callable[[], tuple[Cluster, Recorder]]) -> Played:
    """What happened, and what the frames tell of it."""
    sim, recorder = incident()
    sim.__exit__(None, None, None)
    exchanges, topics, losses = exchanges_of(recorder.frames("incident"))
    assert losses == []
    (history,) = histories_of(exchanges, topics).values()
    findings: dict[str, list[Finding]] = {}
    for finding in detect(history, exchanges):
        findings.setdefault(finding.detector, []).append(finding)
    return sim, history, exchanges, findings


ALL = [incidents.never_completes, incidents.storm, incidents.silent_leader, incidents.disagreement]


@pytest.mark.parametrize("incident", ALL, ids=lambda incident: incident.__name__)
def test_every_rebalance_of_an_incident_is_explained_as_it_was(
    incident: Callable[[], tuple[Cluster, Recorder]],
) -> None:
    sim, history, _, _ = played(incident)
    score = Score()
    score.add(compare("incident", labels_of(sim), {"group": history}, Tolerance(5, 9_000), lambda _: True))
    assert (score.missed, score.invented) == (0, 0)
    assert score.agreement == 1.0, [comparison.cell for comparison in score.wrong]


def test_84_members_never_complete_a_rebalance() -> None:
    _, history, exchanges, findings = played(incidents.never_completes)
    assert max(generation.members for generation in history.generations) == 84
    assert len({life.client_host for life in history.members}) == 168, "84 before, 84 after the restart"
    subscriptions = {tuple(life.topics) for life in history.members}
    assert len(subscriptions) == 7

    outage = [rebalance for rebalance in history.rebalances if rebalance.assignor == "sticky"]
    assert {rebalance.outcome for rebalance in outage} == {"interrupted"}
    assert outage[-1].started_ns - outage[0].started_ns > 15 * 60_000 * MS
    causes = [rebalance.cause for rebalance in outage if rebalance.cause != Cause.NEW_MEMBER]
    assert causes == [Cause.SYNC_EXPIRED, Cause.REBALANCE_TIMEOUT], "each 15 minutes after the one before"
    assert not any(row.from_ns < outage[-1].started_ns for row in history.ownership), "nothing was assigned"
    asked = exchanges["asked_ns"].to_pylist()
    assert max(asked) - min(asked) > 45 * 60_000 * MS

    last = history.rebalances[-1]
    assert (last.assignor, last.outcome, last.members_after) == ("roundrobin", "stable", 84)
    assert last.duration_ms is not None
    assert last.duration_ms < 10_000

    (stuck,) = findings["stuck_completing"]
    assert stuck.severity == "critical"
    assert stuck.value == pytest.approx(15 * 60_000, rel=0.01), "the rebalance timeout, in ms"
    assert "sticky" in stuck.text
    brief = next(
        rebalance for rebalance in outage if rebalance.duration_ms is not None and rebalance.duration_ms < 1_000
    )
    clients = {life.member_id: life.client_id for life in history.members}
    leaders = {rebalance.leader_id for rebalance in outage}
    assert all(str(clients[leader]) in stuck.text for leader in leaders - {brief.leader_id})
    (late,) = findings["stuck_preparing"]
    assert str(clients[brief.leader_id]) in late.text, "it computes on when the next rebalance waits for it"


def test_200_rebalances_in_ten_minutes() -> None:
    _, history, _, findings = played(incidents.storm)
    assert len(history.rebalances) >= 200
    assert history.rebalances[-1].started_ns - history.rebalances[0].started_ns < 10 * 60_000 * MS
    assert not any(rebalance.outcome == "stable" for rebalance in history.rebalances)
    removed = Counter(gone.why for rebalance in history.rebalances for gone in rebalance.removed)
    assert removed["session timeout"] > 190, "a leader each time"
    (storm,) = findings["storm"]
    assert storm.severity == "critical"
    assert storm.value >= 150
    assert storm.to_ns is not None
    assert storm.to_ns - storm.from_ns <= 10 * 60_000 * MS
    assert findings["flapping_member"], "the leaders that were thrown out came back"


def test_a_leader_that_sends_heartbeats_but_no_assignment() -> None:
    _, history, exchanges, findings = played(incidents.silent_leader)
    (rebalance,) = [
        each for each in history.rebalances if (each.syncing_ms or 0) > 60_000 or each.cause == "sync timeout"
    ]
    assert rebalance.cause == Cause.SYNC_EXPIRED
    before = history.rebalances[rebalance.number - 2]
    assert (before.outcome, before.leader_id) == ("interrupted", rebalance.member_id)
    assert [(gone.member_id, gone.why) for gone in rebalance.removed] == [(before.leader_id, "sync timeout")]
    (stuck,) = findings["stuck_completing"]
    assert stuck.value == pytest.approx(5 * 60_000, rel=0.01)
    assert stuck.subject == rebalance.client_id
    heartbeats = exchanges.filter(pa.compute.equal(exchanges["member_id"], before.leader_id))
    asked = [row for row in heartbeats.to_pylist() if row["api"] == "Heartbeat" and row["asked_ns"] > before.started_ns]
    assert len(asked) > 50, "it was alive"


def test_a_cooperative_group_that_never_agrees() -> None:
    _, history, _, findings = played(incidents.disagreement)
    rounds = [each for each in history.rebalances if each.cause == Cause.COOPERATIVE_FOLLOW_UP]
    assert len(rounds) >= 35
    assert all(rebalance.cooperative for rebalance in rounds if rebalance.outcome == "stable")
    (loop,) = findings["cooperative_loop"]
    assert loop.severity == "critical"
    assert loop.value == len(rounds)
    assert loop.rebalances == [rebalance.number for rebalance in rounds]
