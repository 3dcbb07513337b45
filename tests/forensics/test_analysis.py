"""The plain path: files to histories and tables, in one process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoord_wire import forensics
from kcoord_wire.forensics.analysis import TABLES, add_lag, analyze, analyze_records, by_group, tables_of, write_tables
from kcoord_wire.forensics.model import GroupHistory, Lag, Loss, Rebalance, arrow_schema
from kcoord_wire.forensics.records.reader import NO_ENDS
from kcoord_wire.forensics.sources.files import SourceError, find_sources
from kcoord_wire.forensics.sources.frames import read_frames, read_log
from kcoord_wire.recorder.recording import RecordingWriter

DATA = Path(__file__).resolve().parents[1] / "data"
CAPTURES = sorted((DATA / "captures").glob("*.pcap"))
LOGS = sorted((DATA / "consumer_groups").rglob("*.log"))


@given(st.lists(st.sampled_from([None, "", "a", "b", "B", "ä"])), st.integers(1, 5))
def test_by_group_gives_each_group_its_rows(names: list[str | None], chunk: int) -> None:
    rows = pa.table({"number": pa.array(range(len(names)), pa.int64())})
    pieces = [pa.array(names[at : at + chunk], pa.string()) for at in range(0, len(names), chunk)]
    found = [piece["number"].to_pylist() for piece in by_group(rows, pa.chunked_array(pieces, pa.string()))]
    expected = [[n for n, name in enumerate(names) if name == group] for group in sorted({*names} - {None}, key=str)]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: path.stem)
def test_a_capture_and_its_recording_agree(capture: Path, tmp_path: Path) -> None:
    """The frames of a capture, written as a recording: the same history, but for where the frames are."""
    with RecordingWriter(tmp_path / "recording", max_file_bytes=20_000) as writer:
        numbers: dict[str, int] = {}
        for batch in read_frames(capture):
            for row in batch.to_pylist():
                number = numbers.setdefault(row["connection"], len(numbers) + 1)
                match row["direction"]:
                    case "opened":
                        writer.opened(number, row["connection"], row["time_ns"])
                    case "closed":
                        writer.closed(number, row["time_ns"], by=row["by"])
                    case direction:
                        writer.frame(number, direction, row["frame"], row["time_ns"])
    assert len(list((tmp_path / "recording").iterdir())) > 1
    captured, recorded = analyze([capture]), analyze([tmp_path / "recording"])
    assert recorded.losses == captured.losses == []
    assert [told(h) for h in recorded.histories] == [told(h) for h in captured.histories]
    assert recorded.counts["exchanges"] == captured.counts["exchanges"] > 0


def told(history: GroupHistory) -> list[object]:
    rebalances = [
        (r.number, r.generation_id, r.started_ns, r.ended_ns, r.cause, r.client_id, r.detail, r.moved, r.paused_ms)
        for r in history.rebalances
    ]
    findings = [(f.detector, f.severity, f.text) for f in history.findings]
    return [history.group, rebalances, history.ownership, history.pauses, history.states, history.commits, findings]


def test_only_the_groups_that_are_asked_for() -> None:
    assert [h.group.group_id for h in analyze(CAPTURES[:1], groups=["billing"]).histories] == ["billing"]
    assert analyze(CAPTURES[:1], groups=["shipping"]).histories == []
    everything = {h.group.group_id for h in analyze(LOGS).histories}
    one = min(everything)
    assert len(everything) > 1
    assert {h.group.group_id for h in analyze(LOGS, groups=[one]).histories} == {one}


def test_captures_and_logs_at_once() -> None:
    both = analyze([*CAPTURES[:1], *LOGS])
    assert {history.group.origin for history in both.histories} == {"wire", "log"}
    assert both.counts["sources"] == 1 + len(LOGS)
    assert both.counts["bytes"] == sum(path.stat().st_size for path in [CAPTURES[0], *LOGS])


def test_records_of_a_live_topic_tell_what_its_segments_tell() -> None:
    live = analyze_records(batch for path in LOGS for batch in read_log(path))
    assert [h.rebalances for h in live.histories] == [h.rebalances for h in analyze(LOGS).histories]


def test_progress_ends_with_all_bytes() -> None:
    steps: list[tuple[str, int, int]] = []
    analyze(CAPTURES, progress=lambda what, done, total: steps.append((what, done, total)))
    total = sum(path.stat().st_size for path in CAPTURES)
    assert steps[0] == (CAPTURES[0].name, 0, total)
    assert steps[-1][1:] == (total, total)
    assert [done for _, done, _ in steps] == sorted(done for _, done, _ in steps)


def test_tables_are_parquet_files_of_the_declared_schemas(tmp_path: Path) -> None:
    analysis = analyze(CAPTURES[:1])
    losses = [Loss("a.pcap", 7, "cut", 3)]
    written = write_tables(analysis.histories, losses, tmp_path / "report")
    assert sorted(path.stem for path in written) == sorted([*TABLES, "losses"])
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == sorted(path.name for path in written)
    tables = tables_of(analysis.histories, losses)
    for path in written:
        assert pq.read_table(path).equals(tables[path.stem])
    assert tables["rebalances"].schema.equals(arrow_schema(Rebalance))
    assert tables["rebalances"].num_rows == len(analysis.histories[0].rebalances) > 0
    write_tables([], [], tmp_path / "report")
    assert pq.read_table(tmp_path / "report" / "rebalances.parquet").num_rows == 0


def test_the_numbered_files_of_tcpdump_count_in_a_folder(tmp_path: Path) -> None:
    for name in ("trace.pcap", "trace.pcap1", "trace.pcap10", "trace.pcap2", "notes.txt1"):
        (tmp_path / name).write_bytes(CAPTURES[0].read_bytes()[:24])
    names = [source.path.name for source in find_sources([tmp_path])]
    assert names == ["trace.pcap", "trace.pcap1", "trace.pcap2", "trace.pcap10"]


def test_the_package_gives_its_names_when_they_are_used() -> None:
    code = (
        "import sys, kcoord_wire.forensics as f; assert 'pyarrow' not in sys.modules; "
        "assert set(f.__all__) <= set(dir(f)); from kcoord_wire.forensics import analyze, write_tables; "
        f"print(len(analyze([{str(CAPTURES[0])!r}]).histories))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "1\n"
    with pytest.raises(AttributeError, match="nothing"):
        forensics.nothing  # noqa: B018


def test_a_table_that_cannot_be_written_leaves_no_part(tmp_path: Path) -> None:
    (tmp_path / "members.parquet").mkdir()
    with pytest.raises(OSError, match=r"members\.parquet"):
        write_tables([], [], tmp_path)
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("wrong", ["missing.pcap", "empty.pcap", "picture.pcap", "folder"])
def test_what_is_no_source_is_named(wrong: str, tmp_path: Path) -> None:
    (tmp_path / "empty.pcap").touch()
    (tmp_path / "picture.pcap").write_bytes(b"\xff\xd8\xff\xe0\x00\x10JFIF\x00")
    (tmp_path / "folder").mkdir()
    with pytest.raises((SourceError, FileNotFoundError), match=wrong.replace(".", r"\.")):
        analyze([tmp_path / wrong])


def test_the_lag_of_a_cluster_joins_the_histories_of_its_log() -> None:
    segment = next((DATA / "consumer_groups" / "kafka-4.1.0").rglob("*.log"))
    histories = analyze([segment]).histories
    chosen = next(history for history in histories if history.commits)
    assert NO_ENDS in chosen.group.blind
    name = chosen.group.group_id
    rows = [Lag(name, "orders", 0, 1, 5, None, 9, 4, "m"), Lag(name, "orders", 1, 1, 9, None, 9, 0, "m")]
    add_lag(histories, [*rows, Lag("another", "orders", 0, 1, 5, None, 9, 4, None)])
    assert chosen.lag == rows
    assert [(row.partition, row.status, row.lag) for row in chosen.partitions] == [(0, "UNKNOWN", 4), (1, "OK", 0)]
    assert NO_ENDS not in chosen.group.blind
    assert all(history.lag == [] for history in histories if history is not chosen)
