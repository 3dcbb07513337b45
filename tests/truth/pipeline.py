"""One scenario through all stages: played, labelled, its frames or records explained, the result compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.forensics.exchanges.matcher import Matcher
from kcoord_wire.forensics.model import Exchange, GroupHistory, Loss, Sighting, arrow_schema
from kcoord_wire.forensics.records.reader import log_histories
from kcoord_wire.forensics.wire.history import explain_group
from kcoord_wire.forensics.wire.traffic import read_sightings
from tests.truth.labels import Label, labels_of
from tests.truth.records import in_the_records, log_comparisons
from tests.truth.scenarios import Scenario, play
from tests.truth.scorer import Comparison, Tolerance, compare
from tests.truth.world import log_rows

Origin = Literal["wire", "log"]


@dataclass
class Outcome:
    """The result of a scenario.

    :ivar labels: the rebalances that the source can show
    :ivar hidden: how many others there were
    :ivar rows: how many frames or records were read
    """

    scenario: Scenario
    labels: list[Label]
    hidden: int
    histories: dict[str, GroupHistory]
    comparisons: list[Comparison]
    losses: list[Loss]
    rows: int


def exchanges_of(frames: Sequence[pa.RecordBatch]) -> tuple[pa.Table, pa.Table, list[Loss]]:
    """Match frames: exchanges, sightings of topics, and what was lost."""
    matcher = Matcher()
    matched = [matcher.feed(batch) for batch in frames]
    matched.append(matcher.finish())
    exchanges = pa.Table.from_batches([batch for batch, _ in matched], schema=arrow_schema(Exchange))
    topics = pa.Table.from_batches([batch for _, batch in matched], schema=arrow_schema(Sighting))
    return exchanges, topics, list(matcher.losses)


def histories_of(exchanges: pa.Table, topics: pa.Table) -> dict[str, GroupHistory]:
    """The histories of all groups, by group."""
    return {group: history for group, (history, _) in explained(exchanges, topics).items()}


def explained(exchanges: pa.Table, topics: pa.Table) -> dict[str, tuple[GroupHistory, dict[int, str]]]:
    """The same, with the rule behind each rebalance."""
    sightings = read_sightings(topics)
    groups = sorted(set(exchanges["group_id"].to_pylist()))
    return {
        group: explain_group(exchanges.filter(pc.equal(exchanges["group_id"], group)), sightings) for group in groups
    }


def on_the_wire(labels: Sequence[Label], exchanges: pa.Table) -> list[Label]:
    """Return those that a frame can show: a group whose last member falls silent becomes empty without one."""
    last: dict[str, int] = {}
    times = zip(*(exchanges[name].to_pylist() for name in ("group_id", "asked_ns", "answered_ns")), strict=True)
    for group_id, asked, answered in times:
        last[group_id] = max(last.get(group_id, 0), asked, answered or 0)
    return [label for label in labels if last.get(label.group_id, 0) >= label.started_ms * 1_000_000]


def run(scenario: Scenario, origin: Origin = "wire") -> Outcome:
    """Play a scenario and compare what is inferred with what happened."""
    sim, recorder = play(scenario)
    with sim:
        labels = labels_of(sim)
        heartbeat = max(process.options.heartbeat_interval_ms for process in sim.processes.values())
        tolerance = Tolerance(scenario.latency_ms[1], heartbeat)
        if origin == "log":
            records = log_rows(sim)
            histories = {history.group.group_id: history for history in log_histories(records)}
            shown = in_the_records(labels)
            comparisons = log_comparisons(scenario.name, shown, histories, tolerance)
            return Outcome(scenario, shown, len(labels) - len(shown), histories, comparisons, [], records.num_rows)
        rows = recorder.rows()
        frames = recorder.frames(scenario.name)
    exchanges, topics, losses = exchanges_of(frames)
    shown = on_the_wire(labels, exchanges)
    groups = explained(exchanges, topics)
    histories = {group: history for group, (history, _) in groups.items()}
    rules = {group: found for group, (_, found) in groups.items()}
    said = b"\n".join(frame for _, _, way, frame in rows if way in ("request", "response"))
    comparisons = compare(
        scenario.name, shown, histories, tolerance, lambda member_id: member_id.encode() in said, rules
    )
    return Outcome(scenario, shown, len(labels) - len(shown), histories, comparisons, losses, len(rows))
