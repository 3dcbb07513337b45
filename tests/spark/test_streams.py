"""A growing folder of recordings as a stream: every record once, across cuts, rotation, deletion and restarts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxFiles, ReadMaxRows

from kcoord_wire.forensics.model import Frame
from kcoord_wire.forensics.sources.frames import read_frames
from kcoord_wire.recorder.recording import RecordingWriter, recording_files
from kcoord_wire.spark.rows import spark_schema
from kcoord_wire.spark.streams import DataLossError, RecordingStream

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
    """The second run finds the last batch of the first without its commit, as after a crash."""
    folder, out, checkpoint = tmp_path / "recording", tmp_path / "out", tmp_path / "checkpoint"

    def run() -> int:
        frames = spark.readStream.format("kcoord").option("maxBytesPerTrigger", "3k").load(str(folder))
        written = frames.writeStream.format("parquet").option("checkpointLocation", str(checkpoint))
        query = written.trigger(availableNow=True).start(str(out))
        query.awaitTermination()
        return len(query.recentProgress)

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
