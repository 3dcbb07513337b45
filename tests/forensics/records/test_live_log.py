"""The rebalances of a growing log: those of the whole log, whatever the pieces in which it comes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from kcoord_wire import messages as m
from kcoord_wire.forensics.detectors import detect
from kcoord_wire.forensics.final_rebalances import Explained
from kcoord_wire.forensics.live_log import LiveLog
from kcoord_wire.forensics.model import Rebalance
from kcoord_wire.forensics.records.reader import log_histories
from kcoord_wire.forensics.sources.frames import read_log
from kcoord_wire.records import encode_offsets_record
from tests.support import live_readers
from tests.support.live_readers import in_order, of_histories, pieces
from tests.support.offsets_log import CONSUMER_GROUPS, MINUTE, generation, table

LOGS = sorted(CONSUMER_GROUPS.rglob("*.log"))
HOUR = 60 * MINUTE
SECOND = 1_000_000_000
LATER = encode_offsets_record(m.GroupMetadataKey(group="later"), None)
"""A tombstone of another group: all that it does is to let time pass."""


def at(rows: pa.Table, time_ns: int, pairs: Sequence[tuple[bytes | None, bytes | None]] = (LATER,)) -> pa.Table:
    """Records behind those of a table, all written at that time."""
    first = max(rows["offset"].to_pylist(), default=-1) + 1
    more = table(pairs, first=first)
    times = pa.array([time_ns] * len(pairs), pa.int64())
    more = more.set_column(more.schema.get_field_index("time_ns"), "time_ns", times)
    return pa.concat_tables([rows, more.cast(rows.schema)])


def log(path: Path) -> pa.Table:
    """The log of a broker, and a record a day later."""
    rows = pa.Table.from_batches(read_log(path))
    return at(rows, max(rows["time_ns"].to_pylist()) + 24 * HOUR)


def whole(rows: pa.Table) -> list[Explained]:
    """What the whole log shows."""
    histories = list(log_histories(rows))
    for history in histories:
        history.findings = detect(history)
    return of_histories(histories)


def follow(parts: Iterator[pa.Table], window_ns: int) -> list[Explained]:
    return live_readers.follow(LiveLog, parts, window_ns)


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.parts[-3])
def test_the_rows_are_those_of_the_whole_log(path: Path) -> None:
    rows = log(path)
    found = follow(iter([rows]), HOUR)
    assert in_order(found) == whole(rows)
    assert len(found) >= 10


@pytest.mark.parametrize("window_ns", [HOUR, 5 * SECOND, SECOND // 10], ids=str)
@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.parts[-3])
def test_pieces_and_restarts_change_nothing(path: Path, window_ns: int) -> None:
    """Each record comes twice, too, as from a source that reads again what was not committed."""
    rows = log(path)
    expected = follow(iter([rows]), window_ns)
    for most in (1, 7, 100):
        assert follow(pieces(rows, random.Random(most), most), window_ns) == expected
    again = (part for piece in pieces(rows, random.Random(5), 20) for part in (piece, piece))
    assert follow(again, window_ns) == expected


@pytest.mark.parametrize("window_ns", [5 * SECOND, SECOND, SECOND // 10], ids=str)
@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.parts[-3])
def test_a_short_window_loses_no_rebalance(path: Path, window_ns: int) -> None:
    """What it does not see any more are commits from before a member's newest record, and long pauses."""
    rows = log(path)

    def known(row: Rebalance) -> tuple[object, ...]:
        return (row.group_id, row.number, row.generation_id, row.started_ns, row.ended_ns, row.outcome, row.cause)

    found = in_order(follow(iter([rows]), window_ns))
    assert [known(each.rebalance) for each in found] == [known(each.rebalance) for each in whole(rows)]


def test_a_rebalance_comes_when_its_window_is_over() -> None:
    start = 28_000_000 * MINUTE
    rows = at(table([]), start, [generation(1, {"a": [0, 1]})])
    for minutes, is_there in ((9, False), (10, True)):
        found = follow(iter([at(rows, start + minutes * MINUTE)]), 10 * MINUTE)
        assert bool(found) is is_there
    assert follow(iter([rows]), 10 * MINUTE) == []
    reader = LiveLog(10 * MINUTE)
    reader.read(at(rows, start + HOUR))
    assert [each.rebalance.number for each in reader.events()] == [1]
    assert reader.events() == []


def test_the_state_is_what_a_live_group_needs() -> None:
    """A group that rebalances all day keeps the last generation; a deleted one, nothing."""
    reader, rows = LiveLog(MINUTE), table([])
    start = 28_000_000 * MINUTE
    sizes, numbers = [], []
    for number in range(1, 600):
        members = {f"m{number % 3}": [0], f"n{number % 2}": [1]}
        rows = at(rows.slice(max(rows.num_rows - 1, 0)), start + number * MINUTE, [generation(number, members)])
        reader.read(rows)
        numbers += [each.rebalance.number for each in reader.events()]
        sizes.append(len(reader.state))
    assert numbers == list(range(1, numbers[-1] + 1))
    assert numbers[-1] > 590
    assert max(sizes[300:]) < 1.1 * max(sizes[:10])
    key, _ = generation(1, {"a": [0]})
    end = at(rows, start + 700 * MINUTE, [(key, None)])
    reader.read(at(end, start + 800 * MINUTE))
    assert len(reader.state) < min(sizes) / 2


def test_a_state_of_another_layout_is_refused() -> None:
    state = LiveLog().state
    assert LiveLog.restored(state).state == state
    for other in (state.replace(b"LiveLog 1", b"LiveLog 9"), b"\x80\x04pickled"):
        with pytest.raises(ValueError, match=r"this kcoord_wire reads 'LiveLog 1': go on with the version that wrote"):
            LiveLog.restored(other)
