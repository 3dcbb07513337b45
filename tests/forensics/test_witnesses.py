"""A capture and a broker's log of one group: one history, with both as witnesses."""

from __future__ import annotations

import gzip
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from kcoord_wire.forensics import analyze
from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.detectors import detect
from kcoord_wire.forensics.model import GroupHistory, Hole
from kcoord_wire.forensics.witnesses import join_witnesses
from kcoord_wire.report.digest import digest_of
from tests.support.text_logs import history_of, parse

INCIDENTS = Path(__file__).parents[1] / "data" / "incidents"
CAPTURE, LOG = INCIDENTS / "outage-kill.pcap.gz", INCIDENTS / "outage-kill.log.gz"
GROUP = "broker-outage-confluent-6s"


@cache
def analyzed(*paths: Path, timezone: str = "UTC") -> dict[str, GroupHistory]:
    found = analyze(list(paths), groups=[GROUP], timezone=timezone).histories
    return {history.group.origin: history for history in found}


def histories(*paths: Path, timezone: str = "UTC") -> dict[str, GroupHistory]:
    return deepcopy(analyzed(*paths, timezone=timezone))


def joined(wire: GroupHistory, text: GroupHistory) -> GroupHistory:
    [history] = join_witnesses([wire, text])
    return history


def test_the_brokers_reason_stands_beside_the_wires_rebalance() -> None:
    wire = histories(CAPTURE, LOG)["wire"]
    alone = {row.generation_id: row.cause for row in histories(CAPTURE)["wire"].rebalances}
    assert {row.generation_id: row.cause for row in wire.rebalances if row.generation_id in alone} == alone
    for row in wire.rebalances:
        assert any("reason: " in fact.text for fact in row.evidence)


def test_there_is_one_history_with_what_only_the_log_has() -> None:
    found = histories(CAPTURE, LOG)
    assert list(found) == ["wire"]
    wire, text = found["wire"], histories(LOG)["text"]
    assert {row.generation_id for row in wire.rebalances} >= {row.generation_id for row in text.rebalances}
    assert [row.number for row in wire.rebalances] == list(range(1, len(wire.rebalances) + 1))
    assert any("in the log alone" in sentence for sentence in wire.group.blind)
    numbers = {row.number: row for row in wire.rebalances}
    for outage in wire.outages:
        assert outage.rebalance is None or numbers[outage.rebalance].cause == Cause.OUTAGE
    alone = histories(CAPTURE)["wire"]
    generations = {row.number: row.generation_id for row in alone.rebalances}
    assert [generations.get(pause.rebalance or 0) for pause in alone.pauses] == [
        None if pause.rebalance is None else numbers[pause.rebalance].generation_id for pause in wire.pauses
    ]


def test_a_log_in_a_wrong_zone_is_joined_and_said() -> None:
    right, wire = histories(CAPTURE, LOG)["wire"], histories(CAPTURE, LOG, timezone="-03:00")["wire"]
    [said] = [finding for finding in wire.findings if finding.detector == "source_clocks"]
    assert "180 min ahead of" in said.text
    assert "--timezone" in said.text
    times = [[round(row.started_ns / 1e9) for row in history.rebalances] for history in (right, wire)]
    assert times[0] == times[1]
    assert [row.cause for row in wire.rebalances] == [row.cause for row in right.rebalances]


def test_what_the_wire_shows_outright_stays() -> None:
    wire, text = histories(CAPTURE)["wire"], histories(LOG)["text"]
    text.rebalances[0].cause = Cause.SESSION_EXPIRED
    first = joined(wire, text).rebalances[0]
    assert (first.cause, first.confidence) == (Cause.NEW_MEMBER, 1.0)
    assert any("names another cause: session timeout" in fact.text for fact in first.evidence)


def test_what_the_broker_states_beats_an_inference() -> None:
    wire, text = histories(CAPTURE)["wire"], histories(LOG)["text"]
    wire.rebalances[0].cause, wire.rebalances[0].confidence = Cause.SESSION_EXPIRED, 0.95
    first = joined(wire, text).rebalances[0]
    assert (first.cause, first.confidence) == (Cause.NEW_MEMBER, 1.0)
    assert "The coordinator states: Adding new member" in first.detail


def test_a_cause_that_says_why_is_not_beaten() -> None:
    wire, text = histories(CAPTURE)["wire"], histories(LOG)["text"]
    row = next(row for row in wire.rebalances if row.cause == Cause.OUTAGE)
    stated = next(each for each in text.rebalances if each.generation_id == row.generation_id)
    assert stated.cause in (Cause.SESSION_EXPIRED, Cause.NEW_MEMBER)
    assert stated.confidence > row.confidence
    assert any(
        each.cause == Cause.OUTAGE and each.generation_id == row.generation_id for each in joined(wire, text).rebalances
    )


def test_an_unknown_cause_is_taken_from_the_log() -> None:
    wire, text = histories(CAPTURE)["wire"], histories(LOG)["text"]
    wire.rebalances[1].cause, wire.rebalances[1].confidence = Cause.UNKNOWN, 0.2
    generation = wire.rebalances[1].generation_id
    row = next(row for row in joined(wire, text).rebalances if row.generation_id == generation)
    assert (row.cause, row.confidence) == (Cause.NEW_MEMBER, 0.9)


def test_a_log_that_is_seconds_off_is_corrected() -> None:
    wire, text = histories(CAPTURE)["wire"], histories(LOG)["text"]
    for row in text.rebalances:
        row.started_ns += 3 * 10**9
        row.ended_ns = None if row.ended_ns is None else row.ended_ns + 3 * 10**9
    right = joined(deepcopy(wire), histories(LOG)["text"])
    off = joined(wire, text)
    assert [row.started_ns for row in off.rebalances] == [row.started_ns for row in right.rebalances]
    assert any(finding.detector == "source_clocks" and "3.0 s ahead" in finding.text for finding in off.findings)


def test_a_log_without_more_changes_no_number() -> None:
    wire, text = histories(CAPTURE)["wire"], histories(LOG)["text"]
    on_wire = {row.generation_id for row in wire.rebalances}
    shorter = replace(text, rebalances=[row for row in text.rebalances if row.generation_id in on_wire])
    before = [(row.number, row.generation_id) for row in wire.rebalances]
    assert [(row.number, row.generation_id) for row in joined(wire, shorter).rebalances] == before


def test_groups_of_other_names_stay_apart() -> None:
    line = "[2026-11-22 12:00:00,000] INFO Preparing to rebalance group other with old generation 0"
    other = history_of(parse(line))
    assert len(join_witnesses([histories(CAPTURE)["wire"], other])) == 2


# ---- a member that was fenced because it gave partitions up too slowly, on the wire and in the broker's words

FENCED, BROKER = INCIDENTS / "fenced-epoch.pcap.gz", INCIDENTS / "fenced-epoch.log.gz"


def without_the_first(tmp_path: Path, packets: int) -> Path:
    """The capture from a later packet on: the join of the member, with its rebalance timeout, is not in it."""
    data = gzip.decompress(FENCED.read_bytes())
    at = 24
    for _ in range(packets):
        at += 16 + int.from_bytes(data[at + 8 : at + 12], "little")
    cut = tmp_path / "cut.pcap"
    cut.write_bytes(data[:24] + data[at:])
    return cut


@pytest.mark.parametrize("packets", [0, 400])
def test_the_brokers_words_win(packets: int, tmp_path: Path) -> None:
    [history] = analyze([without_the_first(tmp_path, packets), BROKER], groups=["fenc"]).histories
    assert history.group.origin == "wire"
    [row] = [row for row in history.rebalances if row.cause == Cause.REBALANCE_TIMEOUT]
    assert (row.client_id, row.confidence) == ("fe-1", 1.0)
    assert "fe-1 (10.77.0.105) was removed because it failed to transition from epoch 1 within 8000ms" in row.detail
    said = digest_of(history).headline.text
    assert said.startswith("fe-1 (10.77.0.105) was fenced: it did not give up partitions within its rebalance timeout")
    assert Cause.SESSION_EXPIRED not in [row.cause for row in history.rebalances]


def test_what_the_log_says_of_the_coordinator_confirms_an_outage() -> None:
    """Packets are missing at the time of an outage: the log shows it all the same."""
    group = "broker-outage-java-restart"
    files = [INCIDENTS / f"outage-restart.{kind}.gz" for kind in ("pcap", "log")]
    wire, text = (
        next(each for each in analyze([path], groups=[group]).histories if each.group.group_id == group)
        for path in files
    )
    wire.holes = [Hole(group, 0, 2**62, "", None, [], "1 packet is missing")]
    wire.outages = [replace(row, kind="silence") for row in wire.outages]  # that only missing answers show
    wire.findings = detect(wire)
    assert [each.severity for each in wire.findings if each.detector == "outage"] == ["info"]
    found = joined(wire, text).findings
    [outage] = [each for each in found if each.detector == "outage"]
    assert outage.severity == "warning"
    assert "as the log has it, the group had no coordinator for 7.7 s" in outage.text
    assert not [each for each in found if each.detector == "logged_coordinator"]
