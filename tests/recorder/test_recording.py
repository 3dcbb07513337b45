"""The recorded-frame format: what was written is read, however the file is damaged, and losses have their place."""

from __future__ import annotations

import errno
import io
import os
import random
import re
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kcoord_wire as kw
from kcoord_wire.recorder import recording
from kcoord_wire.recorder.recording import (
    MAX_BODY,
    Damage,
    Direction,
    Recorded,
    RecordingError,
    RecordingHeader,
    RecordingWriter,
    is_recording,
    is_repeated,
    names_at,
    read_header,
    read_recording,
    recording_files,
    refusal,
    scan_recording,
)

FILE_HEADER, RECORD = 36, 36
NAME = "127.0.0.1:50000-127.0.0.1:9092#1"
BODIES = (b"", b"a", b"join" * 20, bytes(range(256)), b"\xf5KR\n" * 3)


def written(folder: Path, bodies: tuple[bytes, ...] = BODIES) -> bytes:
    """The bytes of a file with one connection and those frames, requests and responses in turn."""
    with RecordingWriter(folder) as writer:
        writer.opened(1, NAME, 1_000)
        for number, body in enumerate(bodies):
            writer.frame(1, "response" if number % 2 else "request", body, 2_000 + number)
        writer.closed(1, 9_000)
        path = writer.path
    return path.read_bytes()


def read(data: bytes, start: int = 0) -> list[Recorded | Damage]:
    return list(read_recording(io.BytesIO(data), start=start))


def expect_all_accounted(data: bytes, found: list[Recorded | Damage], start: int = FILE_HEADER) -> None:
    """Records and damage lie one after the other, and every byte is in one of them."""
    ends = [start] if not found or found[0].position else [0]
    for piece in found:
        assert piece.position == ends[-1]
        ends.append(piece.end if isinstance(piece, Recorded) else piece.position + piece.size)
    if len(data) >= start:
        assert ends[-1] == len(data)


def records(found: list[Recorded | Damage]) -> list[Recorded]:
    return [piece for piece in found if isinstance(piece, Recorded)]


def damage(found: list[Recorded | Damage]) -> list[Damage]:
    return [piece for piece in found if isinstance(piece, Damage)]


@pytest.fixture
def data(tmp_path: Path) -> bytes:
    return written(tmp_path)


def test_what_was_written_is_read(data: bytes) -> None:
    found = read(data)
    assert [(r.connection, r.direction, r.body, r.time_ns, r.size) for r in records(found)] == [
        (1, "opened", NAME.encode(), 1_000, len(NAME)),
        *((1, "response" if n % 2 else "request", body, 2_000 + n, len(body)) for n, body in enumerate(BODIES)),
        (1, "closed", b"", 9_000, 0),
    ]
    assert not damage(found)
    expect_all_accounted(data, found)
    for record in records(found):
        assert read(data, record.end) == [r for r in records(found) if r.position >= record.end]


def test_the_layout_is_as_documented(tmp_path: Path) -> None:
    """Read by hand, with nothing of the module but its documentation; golden but for the times and the checksums."""
    data = written(tmp_path, (b"frame",))
    assert data[:12] == bytes.fromhex("896b637265630d0a 0001 0001")
    assert int.from_bytes(data[12:16], "big") == 1
    assert data[16:24] == data[24:32]
    assert data[32:36] == bitwise_crc32c(data[:32]).to_bytes(4, "big")
    at = FILE_HEADER + RECORD + len(NAME)
    assert data[at : at + 4] == bytes.fromhex("f54b520a")
    assert data[at + 4 : at + 8] == bitwise_crc32c(data[at + 8 : at + RECORD + 5]).to_bytes(4, "big")
    assert data[at + 8 : at + 32].hex(" ", 4) == "00000005 00000005 00000000 000007d0 00000001 03000000"
    assert data[at + 32 : at + 36] == bitwise_crc32c(data[at + 8 : at + 32]).to_bytes(4, "big")
    assert data[at + 36 : at + 41] == b"frame"
    assert len(data) == at + 41 + RECORD


def test_endings_say_who_and_how_and_refusals_why(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path) as writer:
        for number in range(1, 5):
            writer.opened(number, f"c{number}", 1)
        writer.closed(1, 2, by="client")
        writer.closed(2, 3, by="broker", reset=True)
        writer.closed(3, 4)
        writer.refused(5, "10.0.0.1:5-kafka-1:9092#5", "Connection refused", 5)
        writer.foreign(4, "client", "TLS", 6)
        path = writer.path
    data = path.read_bytes()
    endings = [r for r in records(read(data)) if r.direction not in ("opened", "request", "response")]
    assert [(r.connection, r.direction, r.by) for r in endings] == [
        (1, "closed", "client"),
        (2, "reset", "broker"),
        (3, "closed", None),
        (5, "refused", None),
        (4, "foreign", "client"),
    ]
    assert refusal(endings[-2].body) == ("10.0.0.1:5-kafka-1:9092#5", "Connection refused")
    assert [data[r.position + 28 : r.position + 30].hex() for r in endings] == ["0202", "020c", "0200", "0210", "0222"]
    assert endings[-1].body == b"TLS"
    assert names_at(path, len(data)) == {4: "c4"}


def bitwise_crc32c(data: bytes) -> int:
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def test_cut_at_every_byte(data: bytes) -> None:
    whole = records(read(data))
    for size in range(len(data)):
        found = read(data[:size])
        assert records(found) == [record for record in whole if record.end <= size]
        losses = damage(found)
        ends = [FILE_HEADER, *(record.end for record in whole)]
        assert bool(losses) == (size not in (0, *ends)), "what ends with a record is whole"
        assert all(loss.at_end and loss.position + loss.size == size for loss in losses)
        expect_all_accounted(data[:size], found)


def test_every_byte_flipped(data: bytes) -> None:
    whole = records(read(data))
    for place in range(len(data)):
        for mask in (0x01, 0x80, 0xFF):
            broken = bytearray(data)
            broken[place] ^= mask
            if 8 <= place < 10:
                continue  # tested below with the checksum
            found = read(bytes(broken))
            assert records(found) == [record for record in whole if not record.position <= place < record.end]
            (loss,) = damage(found)
            assert loss.position <= place < loss.position + loss.size
            expect_all_accounted(bytes(broken), found)


def test_another_version_is_refused(data: bytes, tmp_path: Path) -> None:
    newer = data[:9] + b"\x02" + data[10:32]
    newer += bitwise_crc32c(newer).to_bytes(4, "big") + data[36:]
    with pytest.raises(RecordingError, match="version 2; only version 1"):
        read(newer)
    flipped = read(data[:9] + b"\x02" + data[10:])
    assert flipped[0] == Damage(0, 36, "the file's header is damaged, or this is not a recording")
    assert records(flipped) == records(read(data))


def test_a_wrong_file() -> None:
    assert read(b"") == []
    for text in (b"GET / HTTP/1.1\r\n\r\n", b"x" * 3_000_000, bytes(1000), b"\xf5KR\n" * 1000):
        (loss,) = read(text)
        assert isinstance(loss, Damage)
        assert (loss.position, loss.size) == (0, len(text))
        assert not is_recording(text)


@given(st.data())
def test_garbage_between_records(tmp_path_factory: pytest.TempPathFactory, draw: st.DataObject) -> None:
    data = written(tmp_path_factory.mktemp("garbage"))
    whole = records(read(data))
    at = draw.draw(st.integers(0, len(whole) - 1))
    garbage = draw.draw(st.binary(min_size=1, max_size=100) | st.just(b"\xf5KR\n" * 9) | st.just(data[36:60]))
    place = whole[at].end
    broken = data[:place] + garbage + data[place:]
    found = read(broken)
    assert [r[1:] for r in records(found)] == [r[1:] for r in whole]
    assert sum(loss.size for loss in damage(found)) == len(garbage)
    expect_all_accounted(broken, found)


@given(st.data())
def test_bytes_lost_in_the_middle(tmp_path_factory: pytest.TempPathFactory, draw: st.DataObject) -> None:
    data = written(tmp_path_factory.mktemp("lost"))
    whole = records(read(data))
    last = len(data) - 2 * RECORD - 300  # what claims to be longer than all that follows is taken for torn
    begin = draw.draw(st.integers(FILE_HEADER, last))
    end = draw.draw(st.integers(begin, last))
    broken = data[:begin] + data[end:]
    found = read(broken)
    read_again = [r[1:] for r in records(found)]
    assert all(r[1:] in read_again for r in whole if r.end <= begin or r.position >= end)
    assert all(r in [each[1:] for each in whole] for r in read_again)
    expect_all_accounted(broken, found)


def test_many_flipped_bytes(tmp_path: Path) -> None:
    chance = random.Random(4)
    data = written(tmp_path, tuple(chance.randbytes(chance.randrange(200)) for _ in range(2_000)))
    whole = records(read(data))
    broken = bytearray(data)
    places = sorted(chance.randrange(FILE_HEADER, len(data)) for _ in range(len(data) // 100))
    for place in places:
        broken[place] ^= chance.randrange(1, 256)
    found = read(bytes(broken))
    hit = {r.position for r in whole for place in places if r.position <= place < r.end}
    unhit = [r for r in whole if r.position not in hit]
    sound = [r for r in whole if bytes(broken[r.position : r.end]) == data[r.position : r.end]]  # hit twice, and mended
    assert records(found) in (unhit, sound)
    expect_all_accounted(bytes(broken), found)


@given(st.lists(st.tuples(st.sampled_from(["request", "response"]), st.binary(max_size=300), st.integers(0, 2**62))))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, frames: list[tuple[Direction, bytes, int]]) -> None:
    folder = tmp_path_factory.mktemp("round")
    with RecordingWriter(folder, max_file_bytes=1_000) as writer:
        for number, (direction, body, time_ns) in enumerate(frames):
            writer.frame(number % 3, direction, body, time_ns)
    files = recording_files(folder)
    found = [piece for file in files for piece in read_recording(file)]
    assert [(r.direction, r.body, r.time_ns) for r in records(found)] == frames
    assert not damage(found)
    assert all(file.stat().st_size <= 1_000 for file in files)


# ---- sizes


def test_a_record_larger_than_a_read(tmp_path: Path) -> None:
    bodies = (b"small", os.urandom(3_000_000), b"small again", bytes(20_000_000))
    data = written(tmp_path, bodies)
    assert [r.body for r in records(read(data))[1:-1]] == list(bodies)
    place = data.index(b"small again") - RECORD - 10
    broken = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
    found = read(broken)
    assert [r.body for r in records(found)[1:-1]] == [bodies[0], bodies[2], bodies[3]]
    expect_all_accounted(broken, found)


def test_a_claimed_length_allocates_nothing(data: bytes) -> None:
    class Watched(io.BytesIO):
        most = 0

        def read(self, size: int | None = -1) -> bytes:
            assert size is not None
            self.most = max(self.most, size)
            return super().read(size)

    at = FILE_HEADER + RECORD + len(NAME)
    for length in (0xFFFFFFFF, MAX_BODY + 1, MAX_BODY):
        head = length.to_bytes(4, "big") + data[at + 12 : at + 32]
        head += bitwise_crc32c(head).to_bytes(4, "big")
        file = Watched(data[: at + 4] + bytes(4) + head + data[at + 36 :])
        found = list(read_recording(file))
        assert file.most <= 16 << 20
        if length > MAX_BODY:
            assert f"claims {length} bytes, more than {MAX_BODY}" in damage(found)[0].why
            assert len(records(found)) == 1 + len(BODIES)
        else:
            assert damage(found)[0].at_end, "it may still come"


def test_time_is_linear_in_hostile_bytes(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sound headers in a row, each claiming much of the file for a body that its checksum is not of."""
    head = (1_000_000).to_bytes(4, "big") + bytes(20)
    fake = b"\xf5KR\n" + bytes(4) + head + bitwise_crc32c(head).to_bytes(4, "big")
    hostile = data[:FILE_HEADER] + fake * 60_000 + data[FILE_HEADER:]
    real, checked = recording._crc32c(), 0

    def counting(piece: bytes, before: int = 0) -> int:
        nonlocal checked
        checked += len(piece)
        return real(piece, before)

    monkeypatch.setattr(recording, "_crc32c", lambda: counting)
    found = read(hostile)
    assert checked < 50 * len(hostile)
    expect_all_accounted(hostile, found)


def test_a_cut_frame_has_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MAX_BODY", 10)
    with RecordingWriter(tmp_path) as writer:
        writer.frame(1, "request", b"beginning", 1, size=5_000_000)
        writer.frame(1, "request", b"longer than ten", 1)
        path = writer.path
    assert [(r.body, r.size) for r in records(list(read_recording(path)))] == [
        (b"beginning", 5_000_000),
        (b"longer tha", 15),
    ]


# ---- files


@pytest.fixture
def rotated(tmp_path: Path) -> list[Path]:
    """Files of at most 1,000 bytes but for one record, while the connections 1 and 3 are open."""
    with RecordingWriter(tmp_path, max_file_bytes=1_000) as writer:
        for connection in (1, 2, 3):
            writer.opened(connection, f"c{connection}", connection)
        writer.closed(2, 4)
        for number in range(100):
            writer.frame(1, "request", bytes(100), 1_000 + number)
        writer.frame(3, "response", bytes(5_000), 5_000)
        writer.frame(3, "response", b"last", 5_001)
    return recording_files(tmp_path)


def test_files_are_rotated_by_size(rotated: list[Path]) -> None:
    assert rotated == sorted(rotated[0].parent.iterdir())
    assert [file.name for file in rotated][:2] == ["frames-000001.kcrec", "frames-000002.kcrec"]
    found = [records(list(read_recording(file))) for file in rotated]
    for file, inside in zip(rotated[1:], found[1:], strict=True):
        assert file.stat().st_size <= 1_000 or len(inside) == 3, "a large record is alone"
    times = [record.time_ns for inside in found for record in inside if record.direction in ("request", "response")]
    assert times == [*range(1_000, 1_100), 5_000, 5_001]


def test_each_file_repeats_the_open_connections(rotated: list[Path]) -> None:
    for file in rotated[1:]:
        found = records(list(read_recording(file)))
        assert [(record.connection, record.direction, record.body, record.time_ns) for record in found[:2]] == [
            (1, "opened", b"c1", 1),
            (3, "opened", b"c3", 3),
        ]
        assert names_at(file, found[-1].position) == {1: "c1", 3: "c3"}


def test_files_are_numbered_and_name_their_writer(rotated: list[Path]) -> None:
    headers = [header for file in rotated if (header := read_header(file))]
    assert [header.number for header in headers] == list(range(1, len(rotated) + 1))
    assert len({header.writer_ns for header in headers}) == 1


def test_repeated_openings_are_marked(tmp_path: Path) -> None:
    """Also where the clock was set back, which makes an opening older than its file."""
    with RecordingWriter(tmp_path, max_file_bytes=200) as writer:
        writer.opened(1, "c1", 9_000)
        for time_ns in (5_000, 5_001, 5_002):
            writer.frame(1, "request", bytes(100), time_ns)
        writer.opened(2, "c2", 3)
    found = [(read_header(file), r) for file in recording_files(tmp_path) for r in records(list(read_recording(file)))]
    openings = [(r.connection, r.marked, is_repeated(r, header)) for header, r in found if r.direction == "opened"]
    assert openings[0] == (1, False, False)
    assert set(openings[1:-1]) == {(1, True, True)}
    assert openings[-1] == (2, False, False)
    assert not any(r.marked for _, r in found if r.direction != "opened")


@pytest.mark.parametrize(("began_ns", "time_ns", "repeated"), [(1, 0, False), (5, 4, True), (5, 5, False)])
def test_older_files_repeat_openings_of_an_earlier_time(began_ns: int, time_ns: int, repeated: bool) -> None:
    header = RecordingHeader(2, 1, began_ns, marks_repeats=False)
    record = Recorded(36, time_ns, 1, "opened", b"c1", 2)
    assert is_repeated(record, header) is repeated
    assert not is_repeated(record._replace(direction="closed"), header)


def test_names_alone_do_not_fill_files(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path, max_file_bytes=500) as writer:
        for connection in range(50):
            writer.opened(connection, "a name of some length", 0)
    files = recording_files(tmp_path)
    assert len(files) <= 50
    assert len(records(list(read_recording(files[-1])))) == 50


def test_files_are_rotated_by_time(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path, max_file_seconds=60) as writer:
        began = read_header(writer.path)
        assert began is not None
        for seconds in (0, 59, 60, 61, 119, 120, 500):
            writer.frame(1, "request", str(seconds).encode(), began.began_ns + seconds * 10**9)
    bodies = [[r.body.decode() for r in records(list(read_recording(file)))] for file in recording_files(tmp_path)]
    assert bodies == [["0", "59"], ["60", "61", "119"], ["120"], ["500"]]


def test_a_writer_continues_the_numbers_of_another(tmp_path: Path) -> None:
    first = written(tmp_path)
    torn = tmp_path / "frames-000001.kcrec"
    torn.write_bytes(first[:-5])
    (tmp_path / "frames-000007.kcrec").touch()
    (tmp_path / "frames-x.kcrec").write_text("not ours")
    with RecordingWriter(tmp_path) as writer:
        assert writer.path.name == "frames-000008.kcrec"
        writer.frame(1, "request", b"new", 1)
    assert torn.read_bytes() == first[:-5]
    assert [path.name for path in recording_files(tmp_path)] == [f"frames-00000{n}.kcrec" for n in (1, 7, 8)]
    assert read_header(tmp_path / "frames-000007.kcrec") is None


def test_files_beyond_a_million_keep_their_order(tmp_path: Path) -> None:
    for number in (1_000_000, 999_999):
        (tmp_path / f"frames-{number:06}.kcrec").touch()
    with RecordingWriter(tmp_path) as writer:
        assert writer.path.name == "frames-1000001.kcrec"
    assert [path.stem for path in recording_files(tmp_path)] == ["frames-999999", "frames-1000000", "frames-1000001"]


def test_a_folder_has_one_writer(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path), pytest.raises(BlockingIOError, match="another recorder writes to this folder"):
        RecordingWriter(tmp_path)
    RecordingWriter(tmp_path).close()
    assert len(recording_files(tmp_path)) == 2


def test_a_file_is_read_while_it_is_written(tmp_path: Path) -> None:
    """A reader that starts anew from where it was has every record once, and in order."""
    total = 20_000
    writer = RecordingWriter(tmp_path, flush_at=5_000)
    path = writer.path

    def write() -> None:
        with writer:
            for number in range(total):
                writer.frame(1, "request", number.to_bytes(4, "big") * (number % 40 + 1), number)

    thread = threading.Thread(target=write)
    thread.start()
    position, seen = 0, []
    while len(seen) < total:
        end, count = scan_recording(path, position, 1_000)
        assert count <= 1_000
        if not count:
            continue
        pieces = []
        for piece in read_recording(path, start=position):
            if piece.position >= end:
                break
            assert isinstance(piece, Recorded)
            pieces.append(piece)
        assert len(pieces) == count
        seen += [piece.time_ns for piece in pieces]
        position = end
    thread.join()
    assert seen == list(range(total))
    assert scan_recording(path, position, 10) == (position, 0)


def test_a_scan_passes_damage_once(data: bytes) -> None:
    whole = records(read(data))
    broken = bytearray(data)
    broken[whole[2].position + RECORD] ^= 1
    file = bytes(broken)
    assert scan_recording(io.BytesIO(file), 0, 100) == (len(file), len(whole))
    assert scan_recording(io.BytesIO(file), whole[2].position, 1) == (whole[2].end, 1)
    assert scan_recording(io.BytesIO(file[:-1]), 0, 100) == (whole[-1].position, len(whole) - 1)
    assert scan_recording(io.BytesIO(file), 0, 0) == (0, 0)


# ---- disks


def refusing(after: int) -> Callable[[int, memoryview], int]:
    """A disk that takes so many bytes, the last of them in part, and no more."""
    real, left = os.write, after

    def write(fd: int, data: memoryview) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = real(fd, data[:left])
        left -= taken
        return taken

    return write


def test_a_full_disk_raises_and_leaves_a_sound_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = RecordingWriter(tmp_path)
    writer.frame(1, "request", b"fits", 1)
    writer.flush()
    monkeypatch.setattr(recording.os, "write", refusing(100))
    writer.frame(1, "request", b"fits, too", 2)
    writer.frame(1, "request", bytes(100), 2)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            writer.flush()
    monkeypatch.undo()
    with pytest.raises(OSError, match="No space left"):
        writer.write(writer.drain())
    writer.close()
    found = list(read_recording(tmp_path / "frames-000001.kcrec"))
    assert [piece.body for piece in found if isinstance(piece, Recorded)] == [b"fits", b"fits, too"]
    assert not damage(found)


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        RecordingWriter(tmp_path / "file")
    with pytest.raises(NotADirectoryError):
        RecordingWriter(tmp_path / "file" / "inside")


def test_flushes_are_durable_where_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(recording.os, "fsync", synced.append)
    with RecordingWriter(tmp_path, fsync=True, max_file_bytes=200) as writer:
        assert len(synced) == 2, "the name and the header"
        for number in range(4):
            writer.frame(1, "request", bytes(100), number)
            writer.flush()
    assert len(synced) == 2 + 4 + 3, "each flush, and the name of each new file"


def test_positions_increase(data: bytes) -> None:
    assert all(a.position < b.position for a, b in pairwise(read(data)))


# ---- the document


def test_the_documented_example_reads_a_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document = (Path(__file__).parents[2] / "docs" / "recording-format.md").read_text(encoding="utf-8")
    example = re.findall(r"```python\n(.*?)```", document, re.S)[0]
    monkeypatch.chdir(tmp_path)
    with RecordingWriter("recording") as writer:
        writer.opened(7, "a-b#7", 1)
        request = kw.encode_request(kw.HeartbeatRequest(group_id="g"), 4, client_id="me")
        writer.frame(7, "request", request, 2)
    with recording_files("recording")[0].open("ab") as file:
        file.write(b"noise")
    exec(compile(example, "recording-format.md", "exec"), {})
    shown, damage = capsys.readouterr().out.splitlines()
    assert shown.startswith("2 7 me HeartbeatRequest(group_id='g'")
    assert damage.startswith("recording/frames-000001.kcrec: 5 bytes at ")
