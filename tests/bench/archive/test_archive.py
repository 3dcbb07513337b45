"""The archive's captures are sound, and what a run takes is measured."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from kcoord_wire.capture.pcap import read_packets
from kcoord_wire.forensics.analysis import analyze
from kcoord_wire.forensics.sources.frames import read_frames
from tests.support.recordings import record_capture

from ..spark.measure import watched
from . import group
from .analyze import DATA, spent, write_together
from .bench import Report
from .captures import COMMITS, REJOINS, SHAPES, write_captures, write_hours
from .live import markdown
from .live_measure import VARIANTS, _follow, _plainly, _source
from .measure import processor_time


def test_captures_show_what_was_written(tmp_path: Path) -> None:
    rounds, groups, members = REJOINS + 3, 2, 3
    each = 2 * (1 + 1 / 2 + 2 / REJOINS)
    size = write_captures(tmp_path / "captures", round(2 * groups * members * rounds * each), 2, groups, members)
    assert size == sum(path.stat().st_size for path in (tmp_path / "captures").iterdir())
    found = analyze([tmp_path / "captures"])
    assert found.losses == []
    assert len(found.histories) == 2 * groups
    for history in found.histories:
        assert len(history.members) == members
        assert [rebalance.generation_id for rebalance in history.rebalances] == [1, 2]
        assert len(history.commits) > rounds


@pytest.mark.parametrize("shape", SHAPES)
def test_a_skewed_archive_has_nine_tenths_in_one_place(shape: str, tmp_path: Path) -> None:
    write_hours(tmp_path / "captures", 6_000, 2, shape)
    files = sorted((tmp_path / "captures").rglob("*.pcap"))
    names = (name for file in files for batch in read_frames(file) for name in batch["connection"].to_pylist())
    found = Counter(name.rpartition("#")[0] for name in names)
    assert 5_000 < found.total() < 8_000
    histories = analyze([tmp_path / "captures"]).histories
    shares = {
        "connection": max(found.values()) / found.total(),
        "group": max(history.group.exchanges for history in histories) * 2 / found.total(),
    }
    for kind, share in shares.items():
        assert (share > 0.8) == (kind == shape or shape == "connection")


def test_processor_time_is_that_of_this_process() -> None:
    before = processor_time(os.getpid())
    sum(range(10_000_000))
    after = processor_time(os.getpid())
    assert after["driver"] > before["driver"]
    assert after["jvm"] >= 0


def test_what_a_start_takes_is_said_apart() -> None:
    case = {"variants": {"spark": {"start": {"driver": 1.0, "jvm": 9.0, "workers": 2.0}}}}
    [said, _] = Report({"cases": {"few": case, "of an older run": {"variants": {"spark": {}}}}}).starts()
    assert said.endswith(": few 1.00 / 9.00 / 2.00.")


def test_what_the_driver_receives_is_counted(tmp_path: Path) -> None:
    write_captures(tmp_path / "captures", 2_000, 2, 1, 2)
    found = watched("written", tmp_path / "captures", tmp_path, module="tests.bench.archive.measure")
    assert found["frames"] == analyze([tmp_path / "captures"]).counts["frames"]
    assert found["tasks"] > 2
    assert found["received"] > 100 * found["tasks"]


def test_what_a_group_takes_is_measured(tmp_path: Path) -> None:
    assert group._history(str(group._packed(tmp_path, 3_000))) == 1_600
    sizes = [{"exchanges": 1_000, "bytes": 900_000}, {"exchanges": 3_000, "bytes": 1_200_000}]
    made = {"date": "2026-01-01", "machine": {"processor": "P", "cores": 2}, "spark": "4.3", "sizes": sizes}
    assert "150 bytes for each further exchange." in group.summary(made)
    assert [met for _, met, _ in group.targets(made)] == [True, False]


def test_a_recording_that_is_followed_has_its_final_rebalances(tmp_path: Path) -> None:
    rounds, members = 3 * REJOINS + 3, 2
    write_captures(tmp_path / "captures", round(2 * members * rounds * (1 + 1 / COMMITS + 2 / REJOINS)), 1, 1, members)
    [capture] = (tmp_path / "captures").iterdir()
    frames = tmp_path / "frames"
    record_capture(frames, capture)
    followed, whole = _follow(frames, tmp_path), _plainly(frames, tmp_path)
    assert 0 < followed["rebalances"] < whole["rebalances"]
    assert followed["state"] > 1_000
    planned = _source(frames, tmp_path)
    spent = {"driver": 0.5, "jvm": 0.0, "workers": 2.0}
    found = {"source": planned, "follow": followed, "spark": whole, "plain": whole}
    variants = {name: {"spent": spent, **found[name]} for name in VARIANTS}
    machine = {"processor": "P", "cores": 2, "system": "Linux"}
    text = markdown({"date": "2026-01-01", "machine": machine, "spark": "4.3", "bytes": 2 << 20, "variants": variants})
    assert f"| 250 / 0 / 1e+03 | {whole['rebalances']} | - |" in text
    assert "planning a batch of 2.00 MiB in at most 0.02 s of the driver" in text


def test_the_incidents_become_one_capture(tmp_path: Path) -> None:
    paths = sorted((DATA / "incidents").glob("outage-freeze-*.pcap.gz"))
    count = write_together(paths, tmp_path / "both.pcap")
    with (tmp_path / "both.pcap").open("rb") as file:
        times = [packet.time_ns for packet in read_packets(file, pytest.fail)]
    assert len(times) == count > 0
    assert times == sorted(times)
    names = {history.group.group_id for path in paths for history in analyze([path]).histories}
    assert {history.group.group_id for history in analyze([tmp_path / "both.pcap"]).histories} == names


def test_what_a_process_takes_is_measured() -> None:
    small, large = (spent([sys.executable, "-c", f"(b'x' * {size}).count(b'x')"]) for size in (1, 1 << 28))
    assert large.memory - small.memory > 1 << 27
    assert large.seconds > small.seconds > 0
    with pytest.raises(subprocess.CalledProcessError):
        spent([sys.executable, "-c", "exit(3)"])
