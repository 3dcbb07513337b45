"""One scenario through everything: played, labelled, its frames or records explained, the explanation judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.forensics.exchanges.matcher import Matcher
from kcoord_wire.forensics.log.history import log_histories
from kcoord_wire.forensics.model import Exchange, GroupHistory, Loss, TopicSighting, arrow_schema
from kcoord_wire.forensics.wire.history import wire_history
from tests.truth.labels import Label, labels_of
from tests.truth.records import in_the_records, log_verdicts
from tests.truth.scenarios import Scenario, play
from tests.truth.scorer import Tolerance, Verdict, judge
from tests.truth.world import log_rows

__all__ = ["Origin", "Outcome", "exchanges_of", "histories_of", "on_the_wire", "run"]

Origin = Literal["wire", "log"]


@dataclass
class Outcome:
    """What came of a scenario.

    :ivar labels: what was, without what this source cannot show
    :ivar hidden: how many rebalances that is
    :ivar rows: how many frames or records were looked at
    """

    scenario: Scenario
    labels: list[Label]
    hidden: int
    histories: dict[str, GroupHistory]
    verdicts: list[Verdict]
    losses: list[Loss]
    rows: int


def exchanges_of(frames: Sequence[pa.RecordBatch]) -> tuple[pa.Table, pa.Table, list[Loss]]:
    """Exchanges, sightings of topics, and what was lost."""
    matcher = Matcher()
    told = [matcher.feed(batch) for batch in frames]
    told.append(matcher.finish())
    exchanges = pa.Table.from_batches([batch for batch, _ in told], schema=arrow_schema(Exchange))
    topics = pa.Table.from_batches([batch for _, batch in told], schema=arrow_schema(TopicSighting))
    return exchanges, topics, list(matcher.losses)


def histories_of(exchanges: pa.Table, topics: pa.Table) -> dict[str, GroupHistory]:
    """The histories of all groups, by group."""
    groups = sorted(set(exchanges["group_id"].to_pylist()))
    return {group: wire_history(exchanges.filter(pc.equal(exchanges["group_id"], group)), topics) for group in groups}


def on_the_wire(labels: Sequence[Label], exchanges: pa.Table) -> list[Label]:
    """Those that a frame can show: a group whose last member falls silent becomes empty without one."""
    last: dict[str, int] = {}
    times = zip(*(exchanges[name].to_pylist() for name in ("group_id", "asked_ns", "answered_ns")), strict=True)
    for group_id, asked, answered in times:
        last[group_id] = max(last.get(group_id, 0), asked, answered or 0)
    return [label for label in labels if last.get(label.group_id, 0) >= label.started_ms * 1_000_000]


def run(scenario: Scenario, origin: Origin = "wire") -> Outcome:
    """Play it and judge what is inferred."""
    sim, recorder = play(scenario)
    with sim:
        labels = labels_of(sim)
        heartbeat = max(process.options.heartbeat_interval_ms for process in sim.processes.values())
        tolerance = Tolerance(scenario.latency_ms[1], heartbeat)
        if origin == "log":
            records = log_rows(sim)
            histories = {history.group.group_id: history for history in log_histories(records)}
            shown = in_the_records(labels)
            verdicts = log_verdicts(scenario.name, shown, histories, tolerance)
            return Outcome(scenario, shown, len(labels) - len(shown), histories, verdicts, [], records.num_rows)
        rows = recorder.rows()
        frames = recorder.frames(scenario.name)
    exchanges, topics, losses = exchanges_of(frames)
    shown = on_the_wire(labels, exchanges)
    histories = histories_of(exchanges, topics)
    said = b"\n".join(frame for _, _, way, frame in rows if way in ("request", "response"))
    verdicts = judge(scenario.name, shown, histories, tolerance, lambda member_id: member_id.encode() in said)
    return Outcome(scenario, shown, len(labels) - len(shown), histories, verdicts, losses, len(rows))
