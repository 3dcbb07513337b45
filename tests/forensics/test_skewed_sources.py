"""One capture as two, of two hosts with clocks that differ: it says the same, and which clock is off."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kcoord_wire.forensics.analysis import Analysis, analyze_frames
from kcoord_wire.forensics.exchanges.matcher import Matcher
from kcoord_wire.forensics.model import GroupHistory
from kcoord_wire.forensics.sources.frames import read_frames
from kcoord_wire.report.digest import digest_of

INCIDENTS = Path(__file__).parents[1] / "data" / "incidents"


def connections_of(client: str, frames: list[pa.RecordBatch]) -> list[str]:
    matcher = Matcher()
    rows = [matcher.feed(batch) for batch in frames] + [matcher.finish()]
    of_client = [part.filter(pc.equal(part["client_id"], client))["connection"] for row in rows for part in row]
    return sorted({name for names in of_client for name in names.to_pylist()})


def apart(frames: list[pa.RecordBatch], connections: list[str], ahead_ns: int) -> list[pa.RecordBatch]:
    """The frames of some connections in a source of their own, whose clock is ahead."""
    found = []
    for batch in frames:
        of_pod = pc.is_in(batch["connection"], value_set=pa.array(connections, pa.string()))
        pod = batch.filter(of_pod)
        for name, column in (
            ("source", pa.array(["pod.pcap"] * len(pod), pa.string())),
            ("time_ns", pc.add(pod["time_ns"], ahead_ns)),
        ):
            at = pod.schema.get_field_index(name)
            pod = pod.set_column(at, pod.schema.field(at), column)
        found += [batch.filter(pc.invert(of_pod)), pod]
    return found


def story(history: GroupHistory) -> list[tuple[str, str | None, str]]:
    return [(row.cause, row.client_id, row.outcome) for row in history.rebalances]


_TIME = re.compile(r"\d\d:\d\d:\d\d")


@pytest.mark.parametrize("ahead_s", [3.0, -7.5])
@pytest.mark.parametrize(
    ("incident", "group", "client"),
    [
        ("fenced-epoch", "fenc", "fe-1"),
        ("slow-revocation", "slow848", "k-2"),
        ("cut", "killed-aiokafka", "first"),
        ("cut", "frozen-aiokafka", "second"),
    ],
)
def test_a_clock_that_is_off_changes_no_story(incident: str, group: str, client: str, ahead_s: float) -> None:
    frames = list(read_frames(INCIDENTS / f"{incident}.pcap.gz"))
    names = connections_of(client, frames)

    def analyzed(ahead_ns: int) -> Analysis:
        return analyze_frames(apart(frames, names, ahead_ns), groups=[group])

    [right], [off] = (analyzed(ahead_ns).histories for ahead_ns in (0, round(ahead_s * 1e9)))
    assert story(off) == story(right)
    first, wanted = (_TIME.sub("", digest_of(each).headline.text) for each in (off, right))  # as the other clock has it
    assert first.startswith("the clock of") or first[:40] == wanted[:40]
    [said] = [finding for finding in off.findings if finding.detector == "source_clocks"]
    assert said.value / 1_000 == pytest.approx(abs(ahead_s), abs=1.0)
    assert not [finding for finding in right.findings if finding.detector == "source_clocks"]
