"""Logs as sources: recognised by their text, packed, in folders, damaged; time zones."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from kcoord_wire.forensics import analyze
from kcoord_wire.forensics.sources.files import find_sources
from kcoord_wire.forensics.sources.lines import parse_zone, read_lines
from tests.support.text_logs import recorded

LINE = b"[2026-11-22 12:00:03,123] INFO Stabilized group g generation 5 (kafka.coordinator.group.GroupCoordinator)\n"


def test_rotated_and_packed_logs_of_a_folder_are_found(tmp_path: Path) -> None:
    for name in ("server.log", "server.log.1", "server.log.2026-11-22-12", "app-json.log"):
        (tmp_path / name).write_bytes(LINE)
    (tmp_path / "old.log.gz").write_bytes(gzip.compress(LINE))
    (tmp_path / "diary.txt").write_bytes(b"the group met\n")
    (tmp_path / "server.bin").write_bytes(LINE)
    found = find_sources([tmp_path])
    assert {source.kind for source in found} == {"text"}
    assert len(found) == 5


def test_a_packed_log_that_is_cut_short_is_read_so_far(tmp_path: Path) -> None:
    path = tmp_path / "server.log.gz"
    path.write_bytes(gzip.compress(LINE + b"".join(b"%d\n" % number for number in range(50_000)))[:-400])
    analysis = analyze([path])
    assert analysis.histories
    assert "cut short" in analysis.losses[0].what


def test_lines_without_a_date_are_a_loss_with_a_place(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(b"12:00:03 Stabilized group g generation 5\n")
    analysis = analyze([path])
    assert not analysis.histories
    assert "without a date" in analysis.losses[0].what


def test_batches_are_bounded() -> None:
    [path] = (path for path in recorded("broker-4.1.0") if "kip848" not in path.name)
    sizes = [batch.num_rows for batch in read_lines(path, batch_rows=10)]
    assert max(sizes) == 10
    assert sum(sizes) > 50


@pytest.mark.parametrize(("zone", "hours"), [("UTC", 0), ("+02:00", 2), ("-0330", -3.5), ("Asia/Tokyo", 9)])
def test_a_zone_shifts_times_that_state_none(tmp_path: Path, zone: str, hours: float) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(LINE)
    [plain], [shifted] = ([b["time_ns"][0].as_py() for b in read_lines(path, timezone=z)] for z in ("UTC", zone))
    assert plain - shifted == hours * 3600 * 10**9


@pytest.mark.parametrize("zone", ["", "Mars", "+25:00", "../etc/passwd", "x" * 5000])
def test_an_unknown_zone_is_a_clear_error(zone: str) -> None:
    with pytest.raises(ValueError, match="is no time zone"):
        parse_zone(zone)
