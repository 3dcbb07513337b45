"""The stored incidents are judged as docs/incidents.md says, or better; the judge finds what it has to find."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcoord_wire.forensics.analysis import Analysis
from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.model import Finding, Outage
from tests.incidents import report
from tests.incidents.judge import RULES, Verdict, judge
from tests.incidents.labels import LOG, Act, Run, read_incidents
from tests.incidents.lossy import judge_lossy
from tests.support.histories import START, typical


@pytest.fixture(scope="module")
def judged() -> dict[str, Verdict]:
    verdicts = [*report.judge_all(read_incidents()).verdicts, *judge_lossy()]
    return {verdict.run.group: verdict for verdict in verdicts}


def test_every_run_is_right_but_those_of_the_page(judged: dict[str, Verdict]) -> None:
    assert {name for name, verdict in judged.items() if not verdict.is_good} <= report.known_faults()


def test_no_critical_finding_is_false(judged: dict[str, Verdict]) -> None:
    assert [text for verdict in judged.values() for text in verdict.false_criticals] == []


def test_every_kind_of_the_stored_runs_has_a_rule(judged: dict[str, Verdict]) -> None:
    assert {verdict.run.kind for verdict in judged.values()} <= RULES.keys()
    assert all(verdict.run.victims for verdict in judged.values() if RULES[verdict.run.kind].essential)


# ---- the judge itself, on a history whose second rebalance is blamed on billing-2


RUN = Run("billing", "killed", "confluent", 10_000, ["billing-2"], START, START + 60_000_000_000)
FOUND = Finding(
    group_id="billing",
    detector="made_up",
    severity="critical",
    from_ns=START,
    to_ns=None,
    subject=None,
    text="",
    advice="",
    value=1.0,
    threshold=1.0,
    rebalances=[],
    evidence=[],
)


def judged_as(
    kind: str, *findings: Finding, cause: Cause = Cause.SESSION_EXPIRED, victim: str = "billing-2"
) -> Verdict:
    history = typical()
    row = replace(history.rebalances[0], cause=cause, client_id="billing-2", detail="it died", started_ns=START)
    history = replace(history, findings=list(findings), rebalances=[row], outages=[])
    return judge(Analysis([history]), replace(RUN, kind=kind, victims=[victim]))


def test_a_cause_that_names_the_victim_is_enough() -> None:
    assert judged_as("killed").is_good


def test_a_cause_of_another_client_is_wrong_blame() -> None:
    verdict = judged_as("killed", victim="billing-1")
    assert verdict.missing
    assert verdict.wrong


def test_a_broker_fault_blamed_on_a_client_is_wrong() -> None:
    history = replace(typical(), findings=[], outages=[])
    blamed = replace(history.rebalances[0], cause=Cause.SESSION_EXPIRED, detail="it sent nothing", started_ns=START)
    act = Act(START, "kill -9", "127.0.0.1:9092", START + 1)
    run = replace(RUN, kind="broker outage", victims=["127.0.0.1:9092"], acts=[act])
    assert judge(Analysis([replace(history, rebalances=[blamed])]), run).wrong
    late = replace(blamed, started_ns=START + 2)
    assert not judge(Analysis([replace(history, rebalances=[late])]), run).wrong


def test_an_outage_has_to_name_the_broker() -> None:
    history = replace(typical(), findings=[], rebalances=[])
    outage = Outage("billing", "broker down", START, START + 1, "127.0.0.1:9092", [], "it was away", None, [])
    act = Act(START, "kill -9", "127.0.0.1:9092", START + 1)
    run = replace(RUN, kind="broker outage", victims=["127.0.0.1:9092"], acts=[act])
    assert judge(Analysis([replace(history, outages=[outage])]), run).is_good
    assert judge(Analysis([replace(history, outages=[replace(outage, broker="127.0.0.1:9093")])]), run).missing
    assert judge(Analysis([history]), run).missing


def test_a_critical_beside_the_essential_is_false() -> None:
    verdict = judged_as("killed", replace(FOUND, text="the coordinator lost its log"))
    assert verdict.names
    assert len(verdict.false_criticals) == 1


def test_a_warning_in_a_healthy_group_is_wrong() -> None:
    healthy = judged_as("healthy", cause=Cause.NEW_MEMBER)
    assert healthy.is_good
    assert judged_as("healthy", replace(FOUND, severity="warning"), cause=Cause.NEW_MEMBER).wrong


def test_advice_to_shorten_polls_harms_a_crash_loop() -> None:
    found = replace(FOUND, text="billing-2 came back 8 times", advice="Shorten max.poll.interval.ms.")
    verdict = judged_as("crash loop", found, cause=Cause.NEW_MEMBER)
    assert verdict.names
    assert verdict.harmful


def test_the_first_sentence_is_graded_by_itself() -> None:
    said = replace(FOUND, text="billing-2 was killed, and its partitions waited 10 s for its session timeout")
    assert judged_as("killed", said).grade == "first"
    assert judged_as("killed", replace(said, text=said.text.replace("billing-2", "billing-1"))).grade == "somewhere"
    assert judged_as("killed", replace(said, text="billing-2 joined"), cause=Cause.NEW_MEMBER).grade == "wrong"
    assert judged_as("healthy", said, cause=Cause.NEW_MEMBER).grade != "first"


def test_a_shutdown_that_is_called_a_deploy_is_false() -> None:
    found = replace(FOUND, severity="info", text="a deploy, one after another: 2 of 2 members were replaced")
    assert judged_as("killed", found).false
    assert not judged_as("deploy", found, cause=Cause.NEW_MEMBER).false


def test_of_the_brokers_logs_alone_less_is_asked() -> None:
    history = replace(typical(), findings=[], outages=[])
    removed = replace(history.rebalances[0], cause=Cause.SESSION_EXPIRED, client_id="billing-2", started_ns=START)
    analysis = Analysis(
        [replace(history, rebalances=[replace(removed, detail="its session timeout of 10 s was over")])]
    )
    assert judge(analysis, RUN).missing
    assert not judge(analysis, replace(RUN, reads=[LOG])).missing


def test_a_group_that_is_not_reported_is_missed() -> None:
    assert judge(Analysis([]), replace(RUN, kind="healthy")).missing == ["the group itself"]
