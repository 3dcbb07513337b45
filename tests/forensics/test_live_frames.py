"""The rebalances of a growing recording: those of the whole, whatever the pieces in which it comes."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcoord_wire.forensics.analysis import analyze_frames
from kcoord_wire.forensics.final_rebalances import Explained
from kcoord_wire.forensics.live_frames import IDLE_NS, LiveFrames
from kcoord_wire.forensics.model import Frame, Rebalance, arrow_schema, table_of
from kcoord_wire.forensics.sources.frames import read_frames
from kcoord_wire.recorder.recording import RecordingWriter, recording_files
from kcoord_wire.worlds.group.members import MemberOptions
from kcoord_wire.worlds.group.world import Cluster
from tests.support import live_readers
from tests.support.clusters import QUICK
from tests.support.live_readers import in_order, of_histories, pieces
from tests.support.recordings import recording_tap

DATA = Path(__file__).parents[1] / "data"
SOURCES = sorted([*(DATA / "captures").glob("*.pcap"), *(DATA / "recordings").glob("*.kcrec")])
SECOND = 1_000_000_000
MINUTE = 60 * SECOND
WINDOW = 10 * MINUTE
ELSEWHERE = "10.9.9.9:1-10.9.9.9:9092#{}"
"""A connection of no group, whose opening lets time pass and no more."""


def later(rows: pa.Table, passed_ns: int) -> pa.Table:
    """A frame after a table's last."""
    [last] = [Frame(**row) for row in rows.slice(rows.num_rows - 1).to_pylist()]
    time_ns = max(rows["time_ns"].to_pylist()) + passed_ns
    frame = Frame(last.source, last.seq + 1, 0, time_ns, ELSEWHERE.format(last.seq), "opened", b"")
    return pa.concat_tables([rows, table_of(Frame, [frame])])


@cache
def source(path: Path) -> pa.Table:
    """The frames of a source, and time to see them all."""
    rows = pa.Table.from_batches(read_frames(path)).cast(arrow_schema(Frame))
    return later(rows, 12 * MINUTE)


def whole(rows: pa.Table) -> list[Explained]:
    return of_histories(analyze_frames(rows.to_batches()).histories)


def follow(parts: Iterable[pa.Table], window_ns: int = WINDOW) -> list[Explained]:
    return live_readers.follow(LiveFrames, parts, window_ns)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_the_rows_are_those_of_the_whole_source(path: Path) -> None:
    rows = source(path)
    found = follow([rows])
    assert in_order(found) == whole(rows)
    assert len(found) >= 3


@pytest.mark.parametrize("window_s", [600, 10, 3])
@pytest.mark.parametrize("path", SOURCES[::2], ids=lambda path: path.stem)
def test_pieces_and_restarts_change_nothing(path: Path, window_s: int) -> None:
    rows = source(path)
    expected = follow([rows], window_s * SECOND)
    assert follow(pieces(rows, random.Random(path.stem), 60), window_s * SECOND) == expected


@settings(max_examples=8)
@given(cuts=st.sets(st.integers(1, 340), max_size=12), killed=st.sets(st.integers(0, 20)), window_s=st.integers(2, 30))
def test_a_kill_anywhere_changes_nothing(cuts: set[int], killed: set[int], window_s: int) -> None:
    """Cut anywhere, and killed before the state of a piece is kept, which then is read again."""
    rows = source(DATA / "captures" / "cooperative.pcap")
    places = [0, *sorted(cuts), rows.num_rows]
    parts = [rows.slice(start, end - start) for start, end in pairwise(places)]
    times = iter(range(10_000))
    found = live_readers.follow(LiveFrames, parts, window_s * SECOND, lambda: next(times) in killed)
    assert found == follow([rows], window_s * SECOND)


def known(row: Rebalance) -> Rebalance:
    """All columns but those in which the batch sees what happened later."""
    return replace(row, paused_ms=None, lag_grown=None, caught_up_ns=None)


@cache
def restarts(folder: Path) -> pa.Table:
    """Two hours of a group of which members are restarted, and some die."""
    options = MemberOptions(session_timeout_ms=20_000, rebalance_timeout_ms=90_000, heartbeat_interval_ms=2_000)
    writer = RecordingWriter(folder)
    with writer, Cluster(5, topics={"a": 4, "b": 8}, config=QUICK, tap=recording_tap(writer)) as cluster:
        for name in ("m1", "m2", "m3"):
            cluster.member(name, options)
        cluster.run(600_000)
        for number in range(12):
            name = f"m{number % 3 + 1}"
            down_ms = 40_000 if number % 4 == 3 else 7_000
            cluster.run(cluster.shut_down(name) + down_ms)
            cluster.member(name, options)
            cluster.run(200_000 + 40_000 * number)
    return pa.Table.from_batches(batch for path in recording_files(folder) for batch in read_frames(path))


def test_a_window_is_enough_of_a_long_recording(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The state holds two windows, of which each has the same size: it does not grow with the recording."""
    rows = later(restarts(tmp_path_factory.mktemp("long")), 12 * MINUTE)
    reader, found, sizes = LiveFrames(2 * MINUTE), [], []
    for part in pieces(rows, random.Random(1), 2_000):
        reader.read(part)
        found += reader.events()
        state = reader.state
        reader = LiveFrames.restored(state, 2 * MINUTE)
        sizes.append(len(state))
    expected = whole(rows)
    assert [known(each.rebalance) for each in found] == [known(each.rebalance) for each in expected]
    assert len(found) > 20
    half = len(sizes) // 2
    assert max(sizes[half:]) < 1.2 * max(sizes[:half])


def test_a_rebalance_comes_when_its_window_is_over() -> None:
    path = DATA / "recordings" / "unsubscribed.kcrec"
    rows = source(path).slice(0, source(path).num_rows - 1)
    ended = [each.rebalance.ended_ns for each in whole(rows)]
    last = max(rows["time_ns"].to_pylist())
    for passed, is_there in ((9 * MINUTE, False), (10 * MINUTE + 59 * SECOND, True)):
        found = follow([later(rows, passed)])
        assert bool(found) is is_there
    assert [each.rebalance.ended_ns for each in found] == [at for at in ended if at + WINDOW <= last + 10 * MINUTE]
    assert follow([rows]) == []


def test_what_comes_late_counts() -> None:
    """As from a file that was copied late: the frames of one connection, when the others have ended."""
    rows = source(DATA / "recordings" / "static-java.kcrec")
    first = pc.equal(rows["connection"], rows["connection"][0])
    rest = rows.filter(pc.invert(first))
    late = rest.slice(0, rest.num_rows - 1), rows.filter(first), rest.slice(rest.num_rows - 1)
    assert in_order(follow(late)) == whole(rows)


def test_a_silent_group_leaves_its_number() -> None:
    """For as long as a broker keeps its offsets; then it begins anew. Nothing lets time pass between its days."""
    rows = source(DATA / "recordings" / "unsubscribed.kcrec")
    rows = rows.slice(0, rows.num_rows - 1)
    count = len(whole(rows))
    reader, numbers = LiveFrames(MINUTE), []
    for days in (0, 6, 14, 30):
        times = pc.add(rows["time_ns"], days * 24 * 60 * MINUTE)
        reader.read(rows.set_column(rows.schema.get_field_index("time_ns"), rows.schema.field("time_ns"), times))
        numbers += [each.rebalance.number for each in reader.events()]
        reader = LiveFrames.restored(reader.state, MINUTE)
    assert numbers == [*range(1, 2 * count + 1), *range(1, count + 1)]


def test_a_connection_that_is_not_heard_of_is_forgotten() -> None:
    """With its requests: a recorder that was killed has written no end of its connections."""
    rows = source(DATA / "captures" / "cooperative.pcap")
    asked = rows.filter(pc.equal(rows["direction"], "request"))
    names = [name.encode() for name in asked["connection"].unique().to_pylist()]
    reader = LiveFrames()
    reader.read(asked)
    state = reader.state
    assert all(name in state for name in names)
    reader.read(later(asked, IDLE_NS + MINUTE))
    again = LiveFrames.restored(reader.state)
    assert not any(name in again.state for name in names)
    assert len(again.state) < len(LiveFrames().state) + 2_000


def test_a_state_of_another_layout_is_refused() -> None:
    state = LiveFrames().state
    assert LiveFrames.restored(state).state == state
    for other in (state.replace(b"LiveFrames 1", b"LiveFrames 9"), b"LiveLog 1\n\x80\x04pickled"):
        with pytest.raises(ValueError, match=r"this kcoord_wire reads 'LiveFrames 1': go on with the version that"):
            LiveFrames.restored(other)
