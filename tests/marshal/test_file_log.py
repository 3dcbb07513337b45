"""The log in a folder: several processes, crashes, retention, other readers of its files; and logs by their URLs."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from kcoord_wire.forensics.sources.files import find_sources
from kcoord_wire.forensics.sources.frames import read_log
from kcoord_wire.kernel.disk import FolderDisk
from kcoord_wire.marshal import file_log
from kcoord_wire.marshal.file_log import FileLog, open_log
from kcoord_wire.marshal.kafka_log import KafkaLog
from kcoord_wire.marshal.log import Appended, AppendFailed, LogError, RawEntry
from tests.support.fixtures import StartCoordinator
from tests.support.log_contract import append, read, values
from tests.support.processes import Process

APPENDER = """
import sys
from kcoord_wire.marshal.file_log import FileLog
log = FileLog(sys.argv[1])
results = []
for number in range(int(sys.argv[3])):
    log.append(number, 0, b"%s %d" % (sys.argv[2].encode(), number), results.append)
    log.poll(0)
    print(results[-1].offset, flush=True)
log.close()
"""
FIRST = "00000000000000000000.log"


def appender(folder: Path, name: str, count: int) -> Process:
    return Process([sys.executable, "-c", APPENDER, str(folder), name, str(count)])


@contextmanager
def opened(folder: Path, **settings: int) -> Iterator[FileLog]:
    """A log that reads its first partition."""
    with closing(FileLog(folder, **settings)) as log:
        log.read_from_start([0])
        yield log


def fill(folder: Path, *entries: bytes, **settings: int) -> list[Appended | AppendFailed]:
    with closing(FileLog(folder, **settings)) as log:
        return append(log, 0, *entries)


def contents(folder: Path, **settings: int) -> list[RawEntry]:
    with opened(folder, **settings) as log:
        return read(log, 0)


def test_processes_append_to_one_log(tmp_path: Path) -> None:
    fill(tmp_path, b"first")
    processes = [appender(tmp_path, name, 50) for name in ("one", "two")]
    offsets = [int(line) for process in processes for line in process.finish()[1].split()]
    assert sorted(offsets) == list(range(1, 101))
    found = values(contents(tmp_path))
    for name in (b"one", b"two"):
        assert [value for value in found if value and value.startswith(name)] == [
            b"%s %d" % (name, n) for n in range(50)
        ]


def test_a_killed_process_loses_no_entry_that_it_was_promised(tmp_path: Path) -> None:
    process = appender(tmp_path, "doomed", 100_000)
    promised = [int(process.line()) for _ in range(20)]
    promised += [int(line) for line in process.end(signal.SIGKILL)[1].split("\n")[:-1]]
    found = values(contents(tmp_path))
    assert found[: len(promised)] == [b"doomed %d" % number for number in range(len(promised))]
    fill(tmp_path, b"next")
    assert contents(tmp_path)[-1].value == b"next"


@pytest.mark.parametrize("lost", [1, 20, 68])
def test_a_torn_entry_is_not_returned_and_is_cut_off(tmp_path: Path, lost: int) -> None:
    fill(tmp_path, b"whole", b"torn")
    segment = tmp_path / "__marshal-0" / FIRST
    os.truncate(segment, segment.stat().st_size - lost)
    with opened(tmp_path) as reader:
        assert values(read(reader, 0)) == [b"whole"]
        fill(tmp_path, b"after")
        assert [(entry.offset, entry.value) for entry in read(reader, 0)] == [(1, b"after")]
    assert values(contents(tmp_path)) == [b"whole", b"after"]


def test_damage_in_the_middle_is_an_error(tmp_path: Path) -> None:
    fill(tmp_path, b"one", b"two", b"three")
    segment = tmp_path / "__marshal-0" / FIRST
    data = bytearray(segment.read_bytes())
    data[data.index(b"two")] ^= 1
    segment.write_bytes(data)
    with pytest.raises(LogError, match=rf"{FIRST} at byte \d+"):
        contents(tmp_path)
    (failed,) = fill(tmp_path, b"four")
    assert isinstance(failed, AppendFailed)
    assert not failed.may_have_landed


def test_old_full_segments_are_removed(tmp_path: Path) -> None:
    settings = {"segment_bytes": 200, "retention_ms": 60_000}
    fill(tmp_path, b"a", b"b", b"c", b"d", **settings)
    segments = sorted((tmp_path / "__marshal-0").glob("*.log"))
    assert len(segments) == 2
    an_hour_ago = time.time() - 3600
    os.utime(segments[0], (an_hour_ago, an_hour_ago))
    fill(tmp_path, b"e", b"f", b"g", **settings)
    entries = contents(tmp_path, **settings)
    assert (entries[0].offset, entries[-1].value) == (int(segments[1].stem), b"g")


@pytest.mark.parametrize("operation", ["open", "remove", "sync_names"])
@pytest.mark.parametrize("successes", [0, 1])
def test_a_segment_that_was_not_begun_loses_no_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, successes: int
) -> None:
    settings = {"segment_bytes": 100, "retention_ms": 60_000}
    fill(tmp_path, b"a", b"b", b"c", b"d", **settings)
    an_hour_ago = time.time() - 3600
    for segment in (tmp_path / "__marshal-0").glob("*.log"):
        os.utime(segment, (an_hour_ago, an_hour_ago))
    left, succeed = successes, getattr(FolderDisk, operation)

    def fail(*arguments: object, **named: object) -> object:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, "the disk is full")
        return succeed(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(FolderDisk, operation, fail)
        (failed,) = fill(tmp_path, b"refused", **settings)
    assert isinstance(failed, AppendFailed)
    assert fill(tmp_path, b"e", **settings) == [Appended(0, 4)]
    assert contents(tmp_path, **settings)[-1].value == b"e"


def test_an_entry_needs_a_durable_name_of_its_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(disk: FolderDisk) -> None:
        raise OSError(errno.EIO, "the disk has failed")

    FileLog(tmp_path).close()
    (tmp_path / "__marshal-0" / FIRST).touch()  # another process was killed right after that
    with monkeypatch.context() as patch:
        patch.setattr(FolderDisk, "sync_names", fail)
        (failed,) = fill(tmp_path, b"refused")
    assert isinstance(failed, AppendFailed)
    assert [entry.value for entry in contents(tmp_path)] == []
    assert fill(tmp_path, b"a") == [Appended(0, 0)]


def test_a_log_keeps_its_number_of_partitions(tmp_path: Path) -> None:
    FileLog(tmp_path, 3).close()
    assert FileLog(tmp_path, 8).partitions == 3
    with pytest.raises(LogError, match="1 to 1000 partitions, not 0"):
        FileLog(tmp_path, 0)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(LogError, match="file"):
        FileLog(tmp_path / "file")


def test_a_folder_that_stays_locked_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_log, "_LOCK_SECONDS", 0.05)
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(LogError, match="held the log's lock"):
            FileLog(tmp_path)


def test_a_lock_that_is_held_delays_and_never_hangs(tmp_path: Path) -> None:
    log = FileLog(tmp_path)
    log.read_from_start([0])
    results: list[Appended | AppendFailed] = []
    fill(tmp_path, b"x")
    with (tmp_path / "__marshal-0" / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert list(log.poll(0.05)) == []
        with pytest.raises(TimeoutError, match="held the log's lock"):
            log.end(0, 0.05)
    assert values(read(log, 0)) == [b"x"]
    log.append(1, 0, b"y", results.append)
    log.close()
    assert results == [Appended(1, 1)]


def test_a_disk_that_times_out_may_have_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ETIMEDOUT, "the disk of the network has not answered")

    with opened(tmp_path) as log, monkeypatch.context() as patch:
        append(log, 0, b"a")
        patch.setattr(os, "fsync", fail)
        (failed,) = append(log, 0, b"b")
        assert isinstance(failed, AppendFailed)
        assert failed.may_have_landed
        patch.setattr(FolderDisk, "read", fail)
        with pytest.raises(LogError, match="has not answered"):
            log.end(0)


def test_times_do_not_go_back_with_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, b"a")
    monkeypatch.setattr(time, "time_ns", lambda: 1_000_000_000)
    fill(tmp_path, b"b")
    first, second = contents(tmp_path)
    assert second.time_ms == first.time_ms


def test_the_pipeline_reads_the_folder_as_segments(tmp_path: Path) -> None:
    log = FileLog(tmp_path, 4)
    append(log, 2, b"Heartbeat/1/1795224460/i/c/g/t/0/5", b"junk")
    append(log, 3, b"other")
    log.close()
    sources = find_sources([tmp_path])
    assert [(source.kind, source.path.parent.name) for source in sources] == [
        ("log", "__marshal-2"),
        ("log", "__marshal-3"),
    ]
    rows = pa.Table.from_batches(read_log(sources[0].path)).to_pylist()
    assert [(row["partition"], row["offset"], row["key"], row["value"]) for row in rows] == [
        (2, 0, None, b"Heartbeat/1/1795224460/i/c/g/t/0/5"),
        (2, 1, None, b"junk"),
    ]


def test_a_folder_is_a_log(tmp_path: Path) -> None:
    for form in ("file:{}", "file://{}"):
        log = open_log(form.format(tmp_path / "a log").replace(" ", "%20"))
        assert isinstance(log, FileLog)
        log.close()
    assert [path.name for path in tmp_path.iterdir()] == ["a log"]


def test_a_topic_is_a_log(coordinator: StartCoordinator) -> None:
    address = coordinator(topics={"__marshal": 4, "another": 2}).address
    for path, partitions in (("", 4), ("/", 4), ("/__marshal", 4), ("/another", 2)):
        log = open_log(f"kafka://{address}{path}")
        assert isinstance(log, KafkaLog)
        assert log.partitions == partitions
        log.close()


@pytest.mark.parametrize(
    "url", ["", "kafka", "kafka:host/t", "kafka:///t", "kafka://h:1/a/b", "file", "file:relative", "x:/y"]
)
def test_another_url_is_an_error(url: str) -> None:
    with pytest.raises(LogError, match="names no log: kafka://HOST:PORT"):
        open_log(url)
