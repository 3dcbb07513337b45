"""A growing folder of recordings as a stream: every record once, across cuts, rotation, deletion and restarts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxFiles, ReadMaxRows

from kcoord_wire.forensics.model import Frame
from kcoord_wire.forensics.sources.frames import read_frames
from kcoord_wire.recorder.recording import RecordingWriter, read_recording, recording_files
from kcoord_wire.spark import streams
from kcoord_wire.spark.rows import spark_schema
from kcoord_wire.spark.streams import DataLossError, RecordingStream
from tests.support.sparks import NOT_CONNECTED, once_connected, read_available

ALL = ReadAllAvailable()
Rows = list[dict[str, Any]]
BEGAN_NS = 1_763_737_200_000_000_000
NAME = "10.0.0.1:5000-10.0.0.2:9092#{}"


def record(writer: RecordingWriter, first: int, count: int, step_ns: int = 1) -> None:
    """Write numbered frames, on connections that open and close; a negative step is a clock that runs back."""
    for n in range(first, first + count):
        if n % 7 == 0:
            writer.opened(n, NAME.format(n), BEGAN_NS + n * step_ns)
        direction = "request" if n % 2 else "response"
        writer.frame(n - n % 7, direction, n.to_bytes(4, "big") * (1 + n % 5), BEGAN_NS + n * step_ns)
        if n % 7 == 6:
            writer.closed(n - 6, BEGAN_NS + n * step_ns, by="client" if n % 2 else "broker", reset=n % 3 == 0)
    writer.flush()


def stream(folder: Path, **options: str) -> RecordingStream:
    return RecordingStream({"path": str(folder), **options}, spark_schema(Frame))


def follow(
    reader: RecordingStream, start: dict[str, Any], limit: ReadLimit
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """One batch: the offset behind it, and its rows."""
    end = reader.latestOffset(start, limit)
    batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
    return end, [row for batch in batches for row in batch.to_pylist()]


def whole(folder: Path) -> Rows:
    """What the batch source gives for the same files."""
    return [row for path in recording_files(folder) for batch in read_frames(path) for row in batch.to_pylist()]


LIMITS = [ALL, ReadMaxRows(1), ReadMaxRows(17), ReadMaxBytes(1), ReadMaxBytes(700), ReadMaxFiles(1), ReadMaxFiles(3)]


@pytest.mark.parametrize("limit", LIMITS, ids=repr)
def test_every_row_is_read_once(tmp_path: Path, limit: ReadLimit) -> None:
    """The folder grows between batches, and each batch is asked of a reader that knows nothing but the offset."""
    chosen = random.Random(repr(limit))
    rows: Rows = []
    place = stream(tmp_path).initialOffset()
    with RecordingWriter(tmp_path, max_file_bytes=1500) as writer:
        done = 0
        while done < 120:
            count = chosen.randrange(30)
            record(writer, done, count)
            done += count
            for _ in range(chosen.randrange(5)):
                place, new = follow(stream(tmp_path), place, limit)
                rows += new
    assert len(recording_files(tmp_path)) > 3
    while True:
        end, new = follow(stream(tmp_path), place, limit)
        rows += new
        if end == place:
            break
        place = end
    assert rows == whole(tmp_path)


@pytest.mark.parametrize("step_ns", [1, -1, 0])
def test_a_clock_set_back_loses_no_row(tmp_path: Path, step_ns: int) -> None:
    with RecordingWriter(tmp_path, max_file_bytes=400) as writer:
        record(writer, 0, 70, step_ns)
    assert len(recording_files(tmp_path)) > 5
    _, rows = follow(stream(tmp_path), stream(tmp_path).initialOffset(), ALL)
    assert rows == whole(tmp_path)
    opened = [row["connection"] for row in rows if row["direction"] == "opened"]
    assert opened == [NAME.format(n) for n in range(0, 70, 7)]
    assert [int.from_bytes(row["frame"][:4], "big") for row in rows if row["frame"]] == list(range(70))


def test_a_torn_tail_waits_and_becomes_damage(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path / "full") as writer:
        record(writer, 0, 20)
    [full] = recording_files(tmp_path / "full")
    folder = tmp_path / "cut"
    folder.mkdir()
    cut = folder / full.name
    data = full.read_bytes()
    place, rows = stream(folder).initialOffset(), []
    for end in range(0, len(data) - 5, 11):
        cut.write_bytes(data[:end])
        place, new = follow(stream(folder), place, ALL)
        rows += new
    assert all(row["error"] is None for row in rows)
    with RecordingWriter(folder) as writer:
        record(writer, 20, 5)
    place, new = follow(stream(folder), place, ALL)
    assert [*rows, *new] == whole(folder)
    [damage] = [row for row in new if row["error"] is not None]
    assert damage["direction"] == "damage"
    assert damage["lost"] == len(cut.read_bytes()) - damage["position"]


@pytest.mark.parametrize("seed", range(6))
def test_a_batch_has_the_same_rows_whenever_it_is_read(tmp_path: Path, seed: int) -> None:
    """The file is damaged, and its growth is cut anywhere; each batch is read at once, and again by a new worker when
    all is there, as after a crash before its commit."""
    chosen = random.Random(seed)
    with RecordingWriter(tmp_path / "full") as writer:
        record(writer, 0, 60)
    [full] = recording_files(tmp_path / "full")
    data = bytearray(full.read_bytes())
    for _ in range(6):
        data[chosen.randrange(40, len(data))] ^= 1 << chosen.randrange(8)
    folder = tmp_path / "growing"
    folder.mkdir()
    growing = folder / full.name
    batches = []
    place = stream(folder).initialOffset()
    for size in [*sorted(chosen.sample(range(len(data)), 40)), len(data)]:
        growing.write_bytes(data[:size])
        limit = chosen.choice([ALL, ReadMaxBytes(chosen.randrange(1, 200)), ReadMaxRows(chosen.randrange(1, 4))])
        end, rows = follow(stream(folder), place, limit)
        batches.append((place, end, rows))
        place = end
    with RecordingWriter(folder) as writer:
        record(writer, 60, 5)
    end, rows = follow(stream(folder), place, ALL)
    batches.append((place, end, rows))
    reader = stream(folder)
    for start, end, rows in batches:
        streams._cursors.clear()
        again = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
        assert [row for batch in again for row in batch.to_pylist()] == rows
    assert [row for _, _, rows in batches for row in rows] == whole(folder)
    assert any(row["direction"] == "damage" for row in whole(folder))


def test_the_driver_reads_no_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for the offsets nor for the parts; only a limit of rows is counted."""
    with RecordingWriter(tmp_path, max_file_bytes=900) as writer:
        record(writer, 0, 40)
    monkeypatch.setattr(streams, "read_recording", None)
    reader = stream(tmp_path)
    place = reader.initialOffset()
    for limit in (ReadMaxBytes(700), ReadMaxFiles(1), ALL):
        end = reader.latestOffset(place, limit)
        assert reader.partitions(place, end)
        place = end
    assert place == reader.reportLatestOffset()
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(place, ALL) == place


def test_a_worker_reads_each_byte_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has read of a file is not read again for the names of the connections."""
    read: list[int] = []

    def counted(path: str, *, start: int) -> Any:
        for found in read_recording(path, start=start):
            read.append(found.position)
            yield found

    monkeypatch.setattr(streams, "read_recording", counted)
    place, records = stream(tmp_path).initialOffset(), 0
    with RecordingWriter(tmp_path) as writer:
        for first in range(0, 100, 10):
            record(writer, first, 10)
            place, _ = follow(stream(tmp_path), place, ALL)
            records = sum(1 for _ in read_recording(writer.path))
    assert len(read) == len(set(read)) == records


def test_a_writer_may_cut_off_what_never_was_whole(tmp_path: Path) -> None:
    """Its disk is full: the offset is behind the place to which it cuts its file back."""
    with RecordingWriter(tmp_path) as writer:
        record(writer, 0, 10)
    [path] = recording_files(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data + data[40:60])
    torn, rows = follow(stream(tmp_path), stream(tmp_path).initialOffset(), ALL)
    path.write_bytes(data)
    place, none = follow(stream(tmp_path), torn, ALL)
    assert (none, place["files"][path.name]["position"]) == ([], len(data))
    with RecordingWriter(tmp_path) as writer:
        record(writer, 10, 10)
    _, new = follow(stream(tmp_path), place, ALL)
    assert [*rows, *new] == whole(tmp_path)


def test_a_torn_header_waits(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path) as writer:
        record(writer, 0, 3)
    [path] = recording_files(tmp_path)
    data = path.read_bytes()
    place = stream(tmp_path).initialOffset()
    for size in (0, 7, 20):
        path.write_bytes(data[:size])
        assert follow(stream(tmp_path), place, ALL) == (place, [])
    path.write_bytes(data)
    assert follow(stream(tmp_path), place, ALL)[1] == whole(tmp_path)


def by_source(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: (row["source"], row["seq"]))


@pytest.mark.parametrize("limit", [ALL, ReadMaxRows(5), ReadMaxBytes(300), ReadMaxFiles(2)], ids=repr)
def test_recorders_that_come_later_and_go(tmp_path: Path, limit: ReadLimit) -> None:
    """A pattern of folders, and one that comes after the stream has begun; a finished file is deleted."""
    pattern = tmp_path / "recorder-*" / "frames"
    place, rows = stream(pattern).initialOffset(), []
    assert follow(stream(pattern), place, limit) == (place, [])
    writers = [RecordingWriter(tmp_path / f"recorder-{number}" / "frames", max_file_bytes=1200) for number in (1, 2)]
    (tmp_path / "notes").mkdir()
    deleted: Rows = []
    for turn in range(4):
        if turn == 2:
            writers.append(RecordingWriter(tmp_path / "recorder-0" / "frames", max_file_bytes=1200))
        for writer in writers:
            record(writer, 14 * turn, 14)
        while True:
            end, new = follow(stream(pattern), place, limit)
            rows += new
            if end == place:
                break
            place = end
        if turn == 1:
            first, *rest = recording_files(writers[0].folder)
            assert rest
            deleted = [row for row in whole(writers[0].folder) if row["source"] == str(first)]
            first.unlink()
    for writer in writers:
        writer.close()
    expected = [row for writer in writers for row in whole(writer.folder)]
    assert by_source(rows) == by_source([*deleted, *expected])
    assert {name.split("/")[0] for name in place["files"]} == {"recorder-0", "recorder-1", "recorder-2"}


def test_a_busy_recorder_leaves_room_for_others(tmp_path: Path) -> None:
    for name, count in (("a", 200), ("b", 20), ("c", 20)):
        with RecordingWriter(tmp_path / name) as writer:
            record(writer, 0, count)
    for limit in (ReadMaxBytes(600), ReadMaxRows(9), ReadMaxFiles(3)):
        reader = stream(tmp_path / "*")
        end, rows = follow(reader, reader.initialOffset(), limit)
        assert len(end["files"]) == len({row["source"] for row in rows}) == 3
        if isinstance(limit, ReadMaxRows):
            assert len(rows) == 9


def test_offsets_of_other_versions(tmp_path: Path) -> None:
    """Those of the first version had the number of rows, and none of their own."""
    with RecordingWriter(tmp_path) as writer:
        record(writer, 0, 9)
        place, rows = follow(stream(tmp_path), stream(tmp_path).initialOffset(), ALL)
        old = {"files": {name: {**item, "rows": len(rows)} for name, item in place["files"].items()}}
        record(writer, 9, 9)
    _, new = follow(stream(tmp_path), old, ALL)
    assert [*rows, *new] == whole(tmp_path)
    with pytest.raises(ValueError, match=r"offsets of version 3, and this kcoord_wire reads versions 1 and 2"):
        stream(tmp_path).latestOffset({**place, "version": 3}, ALL)


def test_a_finished_file_may_be_deleted(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path, max_file_bytes=600) as writer:
        record(writer, 0, 40)
        first, *_, newest = recording_files(tmp_path)
        place, rows = follow(stream(tmp_path), stream(tmp_path).initialOffset(), ALL)
        old = [row for row in whole(tmp_path) if row["source"] == str(first)]
        first.unlink()
        record(writer, 40, 40)
        place, new = follow(stream(tmp_path), place, ALL)
        rows += new
    expected = old + whole(tmp_path)
    assert rows == expected
    assert first.name not in place["files"]
    assert newest.name in place["files"]


@pytest.mark.parametrize("fault", ["is gone", "has become shorter", "was replaced by another file"])
def test_lost_files_end_the_query_or_are_ignored(tmp_path: Path, fault: str) -> None:
    with RecordingWriter(tmp_path) as writer:
        record(writer, 0, 10)
        place, _ = follow(stream(tmp_path), stream(tmp_path).initialOffset(), ALL)
        record(writer, 10, 10)
    [path] = recording_files(tmp_path)
    if fault == "is gone":
        path.unlink()
    elif fault == "has become shorter":
        path.write_bytes(path.read_bytes()[:200])
    else:
        path.unlink()
        with RecordingWriter(tmp_path) as writer:
            record(writer, 50, 3)
    with pytest.raises(DataLossError, match=f"{path.name} {fault}"):
        stream(tmp_path).latestOffset(place, ALL)
    _, rows = follow(stream(tmp_path, failOnDataLoss="false"), place, ALL)
    assert rows == (whole(tmp_path) if fault.startswith("was replaced") else [])


def test_a_file_removed_between_plan_and_task(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path) as writer:
        record(writer, 0, 10)
    for fails in ("true", "false"):
        reader = stream(tmp_path, failOnDataLoss=fails)
        start = reader.initialOffset()
        [part] = reader.partitions(start, reader.latestOffset(start, ALL))
        [path] = recording_files(tmp_path)
        kept = path.read_bytes()
        path.unlink()
        if fails == "true":
            with pytest.raises(DataLossError, match="is gone"):
                list(reader.read(part))
        else:
            assert list(reader.read(part)) == []
        path.write_bytes(kept)


def test_a_refused_connection_is_a_row(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path) as writer:
        writer.refused(1, NAME.format(1), "Connection refused", BEGAN_NS)
    reader = stream(tmp_path)
    _, [row] = follow(reader, reader.initialOffset(), ALL)
    assert [row] == whole(tmp_path)
    assert (row["direction"], row["connection"], row["error"]) == ("refused", NAME.format(1), "Connection refused")


def test_latest_reads_only_new_records(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path) as writer:
        record(writer, 0, 14)
        reader = stream(tmp_path, startingOffsets="latest")
        place = reader.initialOffset()
        assert follow(reader, place, ALL) == (place, [])
        record(writer, 14, 7)
    _, rows = follow(reader, place, ALL)
    assert rows == whole(tmp_path)[-len(rows) :]
    assert [row["direction"] for row in rows] == ["opened", *["response", "request"] * 3, "response", "closed"]


def test_available_now_reads_what_exists(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path, max_file_bytes=800) as writer:
        record(writer, 0, 30)
        expected = whole(tmp_path)
        reader = stream(tmp_path)
        reader.prepareForTriggerAvailableNow()
        record(writer, 30, 60)
    place, rows = reader.initialOffset(), []
    for _ in range(100):
        end, new = follow(reader, place, ReadMaxRows(9))
        if end == place:
            break
        rows += new
        place = end
    assert rows == expected
    _, rest = follow(stream(tmp_path), place, ALL)
    assert [*rows, *rest] == whole(tmp_path)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"maxBytesPerTrigger": "0"}, "maxBytesPerTrigger must be a number above 0, not '0'"),
        ({"maxRowsPerTrigger": "1k"}, "maxRowsPerTrigger must be a number above 0, not '1k'"),
        (
            {"maxRowsPerTrigger": "1", "maxFilesPerTrigger": "1"},
            "maxFilesPerTrigger and maxRowsPerTrigger: give",
        ),
        ({"failOnDataLoss": "no"}, "failOnDataLoss must be true or false, not 'no'"),
        ({"startingOffsets": "now"}, "startingOffsets must be earliest or latest, not 'now'"),
        ({"ports": "9092"}, "the stream source kcoord has no option 'ports'; its options are path, failOnDataLoss"),
        ({"path": ""}, "needs a path"),
    ],
)
def test_wrong_stream_options_are_named(tmp_path: Path, options: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        stream(tmp_path, **options) if "path" not in options else RecordingStream(options, spark_schema(Frame))
    assert stream(tmp_path, maxBytesPerTrigger="64m").getDefaultReadLimit() == ReadMaxBytes(64 << 20)


def test_a_query_resumes_at_its_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    """The first run is before any recorder; the third finds the last batch of the second uncommitted, as in a crash."""
    folder, out, checkpoint = tmp_path / "recorders" / "one" / "frames", tmp_path / "out", tmp_path / "checkpoint"
    pattern = str(tmp_path / "recorders" / "*" / "frames")

    def run() -> int:
        frames = spark.readStream.format("kcoord").option("maxBytesPerTrigger", "3k").load(pattern)
        written = frames.writeStream.format("parquet").option("checkpointLocation", str(checkpoint))
        query = read_available(written, out)
        return sum(progress.numInputRows > 0 for progress in query.recentProgress)

    assert run() == 0
    folder.mkdir(parents=True)
    assert run() == 0
    with pytest.raises(PySparkException, match="has no source in it"):
        spark.read.format("kcoord").load(pattern).count()
    with RecordingWriter(folder, max_file_bytes=2500) as writer:
        record(writer, 0, 60)
        assert run() > 1
        commits = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        for path in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
            path.unlink()
        record(writer, 60, 60)
        run()
    assert len(recording_files(folder)) > 2
    rows = spark.read.parquet(str(out)).orderBy("source", "seq").collect()
    assert [row.asDict() for row in rows] == whole(folder)


@pytest.mark.parametrize(("text", "calls"), [(NOT_CONNECTED, 5), ("has no source in it", 1)])
def test_only_what_did_not_connect_is_started_again(text: str, calls: int) -> None:
    started = 0

    def start() -> None:
        nonlocal started
        started += 1
        raise PySparkException(f"terminated with exception: {text}.")

    with pytest.raises(PySparkException, match=text):
        once_connected(start)
    assert started == calls
