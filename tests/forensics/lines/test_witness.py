"""A capture and the broker's log of the same incident, real ones: the log is a second witness."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path

from kcoord_wire.forensics import analyze
from kcoord_wire.forensics.lines.witness import join_witnesses
from kcoord_wire.forensics.model import Cause, GroupHistory
from tests.support.text_logs import history_of, parse

INCIDENTS = Path(__file__).parents[2] / "data" / "incidents"
CAPTURE, LOG = INCIDENTS / "outage-kill.pcap.gz", INCIDENTS / "outage-kill.log.gz"
GROUP = "broker-outage-confluent-6s"


@cache
def analyzed(*paths: Path, timezone: str = "UTC") -> dict[str, GroupHistory]:
    found = analyze(list(paths), groups=[GROUP], timezone=timezone).histories
    return {history.group.origin: history for history in found}


def histories(*paths: Path, timezone: str = "UTC") -> dict[str, GroupHistory]:
    return deepcopy(analyzed(*paths, timezone=timezone))


def test_the_brokers_reason_stands_beside_the_wires_rebalance() -> None:
    wire = histories(CAPTURE, LOG)["wire"]
    alone = histories(CAPTURE)["wire"]
    assert [row.cause for row in wire.rebalances] == [row.cause for row in alone.rebalances]
    for row in wire.rebalances:
        assert any("the log has it too" in fact.text and "reason: " in fact.text for fact in row.evidence)


def test_a_log_in_a_wrong_zone_is_joined_and_said() -> None:
    wire = histories(CAPTURE, LOG, timezone="-03:00")["wire"]
    assert any("180 min ahead" in sentence and "--timezone" in sentence for sentence in wire.group.blind)
    facts = [fact for row in wire.rebalances for fact in row.evidence if "the log has it too" in fact.text]
    assert facts
    assert all(abs(fact.time_ns - wire.rebalances[0].started_ns) < 600 * 10**9 for fact in facts)


def test_the_text_stays_for_rebalances_that_the_wire_lacks() -> None:
    assert len(histories(CAPTURE, LOG)["text"].rebalances) > len(histories(CAPTURE)["wire"].rebalances)
    wire, text = histories(CAPTURE)["wire"], histories(LOG)["text"]
    on_wire = {row.generation_id for row in wire.rebalances}
    shorter = replace(text, rebalances=[row for row in text.rebalances if row.generation_id in on_wire])
    assert [history.group.origin for history in join_witnesses([wire, shorter])] == ["wire"]


def test_another_cause_in_the_log_is_only_evidence() -> None:
    wire, text = histories(CAPTURE)["wire"], histories(LOG)["text"]
    text.rebalances[0].cause = Cause.SESSION_EXPIRED
    join_witnesses([wire, text])
    assert wire.rebalances[0].cause == Cause.NEW_MEMBER
    assert any("names another cause: session timeout" in fact.text for fact in wire.rebalances[0].evidence)


def test_an_unknown_cause_is_taken_from_the_log() -> None:
    wire, text = histories(CAPTURE)["wire"], histories(LOG)["text"]
    wire.rebalances[1].cause, wire.rebalances[1].confidence = Cause.UNKNOWN, 0.2
    join_witnesses([wire, text])
    assert (wire.rebalances[1].cause, wire.rebalances[1].confidence) == (Cause.NEW_MEMBER, 0.9)


def test_groups_of_other_names_stay_apart() -> None:
    line = "[2026-11-22 12:00:00,000] INFO Preparing to rebalance group other with old generation 0"
    other = history_of(parse(line))
    assert len(join_witnesses([histories(CAPTURE)["wire"], other])) == 2
