"""The coordinator's log loses nothing it was asked to keep, and refuses to load what no crash can have made of it.

Files are torn, flipped, swapped and failed under it byte by byte and call by call; a model test does all of that in any
order and compares what is recovered with a dict.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from errno import EIO, ENOSPC
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

import kcoord_wire as kw
from kcoord_wire.coordinator.core.events import LogRecord, Producer
from kcoord_wire.coordinator.log.batches import LogBatch, Visibility, batches_without_gap
from kcoord_wire.coordinator.log.store import Store
from kcoord_wire.kernel.disk import Disk, FolderDisk, MemoryDisk
from kcoord_wire.kernel.virtual.disk import VirtualDisk
from kcoord_wire.log.tail import CorruptLogError
from kcoord_wire.records import (
    ControlType,
    Record,
    RecordBatch,
    SegmentReader,
    decode_offsets_record,
    end_transaction_record,
)
from tests.support.logs import (
    FIRST,
    NOW,
    STATES,
    WRITES,
    State,
    batches,
    begun,
    commit,
    content,
    disk_of,
    log_of,
    recovered,
    removal,
    state,
    write,
)


class PowerCut(BaseException):
    """The machine stops between two calls of the disk."""


class Killed(BaseException):
    """The process stops there; the machine goes on."""


class TrapDisk(VirtualDisk):
    """A disk that raises an error at the operation number `left`, counted from 1, among those named `only`. What is no
    `Exception` stops the process: nothing that it still tries changes the disk until `restart` or `crash`.

    :ivar seen: the operations so far
    :ivar before: called instead before each of them, if it is set
    """

    def __init__(self) -> None:
        super().__init__(Random(1))
        self.left = 0
        self.error: BaseException | None = None
        self.only: str | None = None
        self.stopped: BaseException | None = None
        self.seen: list[str] = []
        self.before: Callable[[str], None] | None = None

    def trap(self, at: int, error: BaseException, only: str | None = None) -> None:
        self.left, self.error, self.only = at, error, only

    def crashed(self, seed: int) -> None:
        self.random = Random(seed)
        self.crash()

    def restart(self) -> None:
        self.stopped = None
        super().restart()

    def spend(self, operation: str) -> None:
        if self.stopped is not None:
            self.is_off = True
            raise self.stopped
        self.seen.append(operation)
        if self.before is not None:
            self.before(operation)
        elif self.error is not None and self.only in (None, operation):
            self.left -= 1
            if self.left == 0:
                error, self.error = self.error, None
                self.stopped = None if isinstance(error, Exception) else error
                raise error


# ---- writing


@pytest.fixture(params=["file", "memory"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    disk: Disk = FolderDisk(tmp_path / "data" / "kcoord") if request.param == "file" else MemoryDisk()
    yield disk
    disk.close()


def test_what_was_written_comes_back_without_what_it_replaced(disk: Disk) -> None:
    store, found = recovered(disk)
    assert found == {}
    for records in WRITES:
        write(store, records)
    again, found = recovered(disk)
    assert found == STATES[-1]
    size = disk.sizes()[FIRST]
    assert again.recovered._asdict() == {"records": 2, "ignored": 0, "bytes": size, "truncated": 0}
    write(again, [commit("d", 0, 9)])
    last = Store(disk).recover()
    assert last == [commit("b", 1, 4), commit("a", 0, 6), commit("d", 0, 9)]


def test_the_log_is_where_kafka_has_it_and_as_kafka_writes_it(tmp_path: Path) -> None:
    store, _ = recovered(FolderDisk(tmp_path / "__consumer_offsets-0"))
    member = kw.GroupMetadataValueMemberMetadata(member_id="m", client_id="c", client_host="/::1", assignment=b"x")
    value = kw.GroupMetadataValue(protocol_type="share", generation=3, protocol="p", leader="m", members=[member])
    write(store, [LogRecord(kw.GroupMetadataKey(group="a"), value)], [commit("a", 0, 1), removal("a", 1)])
    store.close()
    with (tmp_path / "__consumer_offsets-0" / FIRST).open("rb") as file:
        (batch,) = SegmentReader(file)
    assert isinstance(batch, RecordBatch)
    assert (batch.magic, batch.base_offset, batch.last_offset, batch.attributes) == (2, 0, 2, 0)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (-1, -1, -1)
    assert {record.timestamp for record in batch.records} == {batch.max_timestamp} == {NOW}
    contents = [decode_offsets_record(record.key, record.value) for record in batch.records]
    assert [(c.kind, c.value_version) for c in contents] == [
        ("GroupMetadata", 3),
        ("OffsetCommit", 3),
        ("OffsetCommit", None),
    ]
    assert contents[0].value == value


def test_appends_that_wait_for_one_write_share_a_batch() -> None:
    disk = TrapDisk()
    store, _ = recovered(disk)
    disk.seen.clear()
    write(store, *([commit("a", n, n), commit("b", n, n)] for n in range(50)))
    assert disk.seen == ["append", "sync"]
    (batch,) = batches(content(disk)[FIRST])
    assert [record.offset for record in batch.records] == list(range(100))


def test_an_append_is_not_divided_and_a_batch_has_a_limit() -> None:
    disk = MemoryDisk()
    store = Store(disk, batch_bytes=200)
    store.recover()
    write(store, [commit("a", 0, 1)], [commit("a", n, n) for n in range(9)], [commit("b", 0, 1)], [commit("b", 1, 1)])
    assert [len(batch.records) for batch in batches(content(disk)[FIRST])] == [1, 9, 2]


def test_a_sync_says_which_appends_it_covers() -> None:
    store, _ = recovered(MemoryDisk())
    assert store.begin_sync() is None
    first = begun(store, [commit("a", 0, 1)], [commit("a", 0, 2)])
    assert first.last == 2
    store.append([commit("a", 0, 3)], NOW)
    assert store.begin_sync() is None, "one at a time"
    first.run()
    store.end_sync(first)
    assert write(store, []).last == 4
    assert store.begin_sync() is None
    third = begun(store, [])
    assert third.last == 5
    third.run()
    assert store.recover() == [commit("a", 0, 3)]
    assert write(store, [commit("a", 0, 4)]).last == 1, "counted anew"


def test_a_record_that_cannot_be_written_is_refused_alone() -> None:
    disk = MemoryDisk()
    store, _ = recovered(disk)
    with pytest.raises(kw.EncodeError):
        store.append([commit("a", 0, 1), commit("a", 1 << 40, 1)], NOW)
    write(store, [commit("a", 0, 2)])
    assert recovered(disk)[1] == {("a", 0): 2}
    assert Store(disk).recovered.records == 0


def test_segments_are_named_by_their_first_offset(disk: Disk) -> None:
    store = Store(disk, segment_bytes=300)
    store.recover()
    for n in range(20):
        write(store, [commit("a", n % 3, n), commit("b", n % 3, n)])
    names = sorted(disk.sizes())
    assert len(names) > 5
    files = content(disk)
    assert [batches(files[name])[0].base_offset for name in names] == [int(name[:20]) for name in names]
    assert max(disk.sizes().values()) <= 300
    assert recovered(disk)[1] == {(group, n % 3): n for group in "ab" for n in (18, 19, 17)}


# ---- a disk that fails


@pytest.mark.parametrize(("call", "errno"), [("append", ENOSPC), ("append", EIO), ("sync", EIO)])
def test_after_a_failure_nothing_is_written_until_recovery(call: str, errno: int) -> None:
    disk = TrapDisk()
    store = Store(disk)
    store.recover()
    write(store, [commit("a", 0, 1)])
    before = content(disk)
    disk.trap(1, OSError(errno, "planted"), call)
    sync = begun(store, [commit("a", 0, 2)])
    with pytest.raises(OSError, match="planted"):
        sync.run()
    assert content(disk) == before, "what may not be durable is gone at once"
    store.append([commit("a", 0, 3)], NOW)
    assert store.begin_sync() is None
    with pytest.raises(OSError, match="recovered"):
        sync.run()
    with pytest.raises(OSError, match="recovered"):
        store.compact()
    assert state(store.recover()) == {("a", 0): 1}
    with pytest.raises(OSError, match="without this sync"):
        sync.run()
    write(store, [commit("a", 0, 4)])
    assert [record.offset for batch in batches(content(disk)[FIRST]) for record in batch.records] == [0, 1]
    assert recovered(disk)[1] == {("a", 0): 4}


@pytest.mark.parametrize("recovery", range(1, 4))
def test_recovery_may_fail_too_and_be_tried_again(recovery: int) -> None:
    disk = TrapDisk()
    store = Store(disk, segment_bytes=1)
    store.recover()
    write(store, [commit("a", 0, 1)])
    sync = begun(store, [commit("a", 0, 2)])

    def fail(call: str) -> None:
        if call in ("sync", "truncate"):
            raise OSError(EIO, "planted")

    disk.before = fail
    with pytest.raises(OSError, match="planted"):
        sync.run()
    disk.before = None
    disk.trap(recovery, OSError(EIO, "planted"))
    with pytest.raises(OSError, match="planted"):
        store.recover()
    assert state(store.recover()) == {("a", 0): 1}
    write(store, [commit("a", 0, 5)])
    assert recovered(disk)[1] == {("a", 0): 5}


@pytest.mark.parametrize("call", ["open", "sync_names"])
def test_a_segment_that_cannot_be_begun(call: str) -> None:
    disk = TrapDisk()
    store = Store(disk, segment_bytes=1)
    store.recover()
    write(store, [commit("a", 0, 1)])
    disk.trap(1, OSError(ENOSPC, "planted"), call)
    with pytest.raises(OSError, match="planted"):
        write(store, [commit("a", 0, 2)])
    assert state(store.recover()) == {("a", 0): 1}
    write(store, [commit("a", 0, 3)])
    write(store, [commit("a", 0, 4)])
    assert recovered(disk)[1] == {("a", 0): 4}


# ---- compaction


def test_compaction_keeps_the_last_record_of_every_key(disk: Disk) -> None:
    store = Store(disk, segment_bytes=400)
    store.recover()
    for n in range(40):
        write(store, [commit("a", n % 4, n)], [commit("gone", n % 2, n), removal("gone", n % 2)])
    before = Store(disk).recover()
    store.compact()
    assert sorted(disk.sizes()) == [FIRST, f"{120:020}.log"]
    found = batches(content(disk)[FIRST])
    assert [record.offset for batch in found for record in batch.records] == [108, 111, 114, 117]
    assert (found[0].base_offset, found[-1].last_offset) == (0, 119)
    assert Store(disk).recover() == before
    write(store, [commit("a", 0, 99)])
    store.compact()
    assert recovered(disk)[1] == {("a", 0): 99, ("a", 1): 37, ("a", 2): 38, ("a", 3): 39}
    assert recovered(disk)[0].recovered.records == 4


def test_compaction_of_nothing() -> None:
    disk = MemoryDisk()
    store, _ = recovered(disk)
    store.compact()
    assert disk.sizes() == {FIRST: 0}
    write(store, [commit("a", 0, 1)], [removal("a", 0)])
    store.compact()
    store.compact()
    (batch,) = batches(content(disk)[FIRST])
    assert (batch.records, batch.base_offset, batch.last_offset) == ((), 0, 1)
    assert recovered(disk)[1] == {}


def test_compaction_is_due_when_most_of_the_log_is_old() -> None:
    disk = MemoryDisk()
    store = Store(disk, min_compaction_bytes=10_000)
    store.recover()
    written = 0
    while not store.compaction_due():
        write(store, [commit("a", written % 5, written)])
        written += 1
    assert 10_000 < disk.sizes()[FIRST] < 10_200
    again = Store(disk, min_compaction_bytes=10_000)
    again.recover()
    assert not again.compaction_due() or disk.sizes()[FIRST] > 10_000
    store.compact()
    assert not store.compaction_due()
    for n in range(400):
        write(store, [commit(f"new{n}", 0, n)])
    assert store.compaction_due(), "more than the least and more than there was"
    store.compact()
    size = sum(disk.sizes().values())
    assert size > 20_000
    while not store.compaction_due():
        write(store, [commit("a", 0, 1)] * 10)
    assert sum(disk.sizes().values()) > 2 * size


def test_a_damaged_log_is_not_compacted() -> None:
    disk = MemoryDisk()
    store, _ = recovered(disk)
    write(store, [commit("a", 0, 1)])
    write(store, [commit("a", 0, 2)])
    disk._files[FIRST].data[70] ^= 1
    with pytest.raises(CorruptLogError):
        store.compact()
    assert sorted(disk.sizes()) == [FIRST, f"{2:020}.log"]


def test_a_log_that_has_become_shorter_is_not_compacted() -> None:
    disk = MemoryDisk()
    store, _ = recovered(disk)
    write(store, [commit("a", 0, 1)])
    size = disk.sizes()[FIRST]
    write(store, [commit("a", 0, 2)])
    disk._files[FIRST].truncate(size)
    with pytest.raises(CorruptLogError, match="ends at offset 1"):
        store.compact()
    assert content(disk)[FIRST] == log_of([commit("a", 0, 1)])[0]


def test_appends_go_on_during_a_compaction() -> None:
    """The compaction is held where it writes, while syncs and new segments pass it."""
    disk = TrapDisk()
    reached, go_on = threading.Event(), threading.Event()

    def hold(call: str) -> None:
        if call == "rename" and not go_on.is_set():
            raise AssertionError("renamed too early")
        if call == "append" and threading.current_thread() is compaction:
            reached.set()
            assert go_on.wait(30)

    store = Store(disk, segment_bytes=300)
    compaction = threading.Thread(target=store.compact)
    disk.before = hold
    store.recover()
    for n in range(10):
        write(store, [commit("a", n, n)])
    compaction.start()
    assert reached.wait(30)
    for n in range(10):
        write(store, [commit("b", n, n)], [commit("a", n, 100 + n)])
    go_on.set()
    compaction.join(30)
    assert not compaction.is_alive()
    expected = {("a", n): 100 + n for n in range(10)} | {("b", n): n for n in range(10)}
    assert recovered(disk)[1] == expected
    assert store._bytes == sum(disk.sizes().values())
    store.compact()
    assert recovered(disk)[1] == expected
    assert store._bytes == sum(disk.sizes().values())


def compactible() -> tuple[TrapDisk, Store, State]:
    disk = TrapDisk()
    store = Store(disk, segment_bytes=300, batch_bytes=200, min_compaction_bytes=1000)
    store.recover()
    for n in range(16):
        write(store, [commit("a", n % 5, n), commit("gone", n % 2, n)], [removal("gone", n % 2), commit("b", n, n)])
    return disk, store, recovered(disk)[1]


def steps_of_a_compaction() -> int:
    disk, store, _ = compactible()
    disk.seen.clear()
    store.compact()
    return len(disk.seen)


STEPS = steps_of_a_compaction()


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_a_crash_at_every_step_of_a_compaction(step: int) -> None:
    for seed in range(25):
        disk, store, expected = compactible()
        disk.trap(step, PowerCut())
        with pytest.raises(PowerCut):
            store.compact()
        disk.crashed(seed)
        store = Store(disk, segment_bytes=300)
        if seed % 2:  # and another in the recovery from it
            disk.trap(1 + seed % 8, PowerCut())
            try:
                store.recover()
            except PowerCut:
                disk.crashed(~seed)
                store = Store(disk, segment_bytes=300)
        disk.error = None
        assert state(store.recover()) == expected
        assert all(name.endswith(".log") for name in disk.sizes())
        write(store, [commit("z", 0, seed)])
        store.compact()
        assert recovered(disk)[1] == {**expected, ("z", 0): seed}


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_an_error_at_every_step_of_a_compaction(step: int) -> None:
    disk, store, expected = compactible()
    assert store.compaction_due()
    disk.trap(step, OSError(ENOSPC, "planted"))
    with pytest.raises(OSError, match="planted"):
        store.compact()
    assert recovered(disk_of(content(disk)))[1] == expected, "had the process died"
    assert not store.compaction_due(), "not again at once"
    try:
        write(store, [commit("z", 0, 1)])
    except OSError:
        assert state(store.recover()) == expected
        write(store, [commit("z", 0, 1)])
    assert not any(name.endswith(".swap") for name in disk.sizes())
    store.compact()
    assert recovered(disk)[1] == {**expected, ("z", 0): 1}
    assert sorted(disk.sizes())[0] == FIRST


def test_a_swap_file_without_what_follows_it() -> None:
    data, _ = log_of(*WRITES)
    disk = disk_of({FIRST: data, FIRST.replace(".log", ".swap"): data})
    before = content(disk)
    with pytest.raises(CorruptLogError, match="no segment follows"):
        Store(disk).recover()
    assert content(disk) == before


def test_a_damaged_swap_file_removes_nothing() -> None:
    data, _ = log_of(*WRITES)
    files = {FIRST: data, FIRST.replace(".log", ".swap"): data[:-1], f"{sum(map(len, WRITES)):020}.log": b""}
    disk = disk_of(files)
    with pytest.raises(CorruptLogError):
        Store(disk).recover()
    assert content(disk) == files


def test_a_gap_wider_than_a_batch() -> None:
    far = (1 << 31) + 7
    kept = [Record(b"a", b"1", NOW, 3), Record(b"b", b"2", NOW, far), Record(b"c", b"3", NOW, 5 * far)]
    found = batches(b"".join(batches_without_gap([(record, None) for record in kept], 6 * far, 100)))
    assert [record for batch in found for record in batch.records] == kept
    assert found[0].base_offset == 0
    assert [batch.base_offset for batch in found[1:]] == [batch.last_offset + 1 for batch in found[:-1]]
    assert found[-1].last_offset == 6 * far - 1


# ---- all of it in any order


STEP = st.sampled_from([0, 0, 0, *range(1, 14)])  # 0: nothing fails
ERROR = st.sampled_from([OSError(EIO, "planted"), PowerCut(), Killed()])


class Log(RuleBasedStateMachine):
    """A store on a disk that loses power, beside the states that it may come back with.

    ``states[0]`` is acknowledged; each later one has one more append of those that are not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.disk = TrapDisk()
        self.states: list[State] = [{}]
        self.start()

    def start(self) -> None:
        self.store = Store(self.disk, segment_bytes=600, batch_bytes=300)
        self.recover()

    def recover(self) -> None:
        found = state(self.store.recover())
        assert found in self.states
        self.states = [found]
        assert all(name.endswith(".log") for name in self.disk.sizes())
        assert self.store._bytes == sum(self.disk.sizes().values())

    @rule(
        records=st.lists(
            st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(0, 99), st.booleans()), max_size=4
        ),
        padding=st.sampled_from([0, 0, 10, 700]),
    )
    def append(self, records: list[tuple[str, int, int, bool]], padding: int) -> None:
        made = [
            commit(group, n, offset, "x" * padding) if keep else removal(group, n) for group, n, offset, keep in records
        ]
        self.store.append(made, NOW)
        following = dict(self.states[-1])
        for key, value in made:
            if value is None:
                following.pop((key.group, key.partition), None)
            else:
                following[key.group, key.partition] = value.offset
        self.states.append(following)

    @rule(step=STEP, error=ERROR, seed=st.integers(0))
    def sync(self, step: int, error: BaseException, seed: int) -> None:
        sync = self.store.begin_sync()
        if sync is None:
            return
        try:
            self.trapped(sync.run, step, error, seed)
        except OSError:
            self.recover()
        else:
            if sync is self.store._under_way:
                self.store.end_sync(sync)
                self.states = self.states[-1:]

    @rule(step=STEP, error=ERROR, seed=st.integers(0))
    def compact(self, step: int, error: BaseException, seed: int) -> None:
        with suppress(OSError):  # where that concerns anyone, the next sync fails
            self.trapped(self.store.compact, step, error, seed)

    def trapped(self, call: Callable[[], None], step: int, error: BaseException, seed: int) -> None:
        self.disk.trap(step, error)
        try:
            call()
        except PowerCut:
            self.disk.crashed(seed)
            self.start()
        except Killed:
            self.disk.restart()
            self.start()
        finally:
            self.disk.error = None

    @rule(seed=st.integers(0))
    def lose_power(self, seed: int) -> None:
        self.disk.crashed(seed)
        self.start()

    @rule()
    def kill(self) -> None:
        self.start()

    @rule()
    @precondition(lambda self: len(self.states) > 1)
    def give_up(self) -> None:
        self.recover()
        assert len(self.states) == 1


Log.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
test_any_order = Log.TestCase


def test_many_crashes_with_large_writes() -> None:
    """Writes of several sectors, torn anywhere: nothing acknowledged is lost, nothing torn is taken for damage."""
    random = Random(1)
    disk = VirtualDisk(random)
    store, acknowledged = recovered(disk)
    for round_ in range(1500):
        for _ in range(random.randrange(3)):
            n = random.randrange(20)
            write(store, [commit("a", n, round_, "x" * random.randrange(900))])
            acknowledged["a", n] = round_
        if random.random() < 0.02:
            store.compact()
        waiting = {("a", random.randrange(20)): -round_ for _ in range(random.randrange(1, 6))}
        sync = begun(store, [commit(g, n, offset, "y" * random.randrange(900)) for (g, n), offset in waiting.items()])
        file = store._file
        assert file is not None
        file.append(sync.batches[0].encode())  # as far as the write comes
        disk.crash()
        store, found = recovered(disk)
        assert found in (acknowledged, {**acknowledged, **waiting})
        acknowledged = found


KEYS = (b"a", b"b")
BATCH_STEPS = st.one_of(
    st.tuples(st.just("plain"), st.sampled_from(KEYS), st.booleans()),
    st.tuples(st.just("pending"), st.integers(1, 2), st.sampled_from(KEYS)),
    st.tuples(st.just("end"), st.integers(1, 2), st.booleans()),
)


def batch_of(step: tuple[str, Any, Any], offset: int) -> RecordBatch:
    kind, first, second = step
    if kind == "plain":
        batch = LogBatch([Record(first, b"%d" % offset if second else None, 1, offset)])
    elif kind == "pending":
        batch = LogBatch([Record(second, b"%d" % offset, 1, offset)], Producer(first, 0))
    else:
        control = ControlType.COMMIT if second else ControlType.ABORT
        batch = LogBatch([end_transaction_record(control, 0, offset=offset)], Producer(first, 0), is_marker=True)
    return batches(batch.encode())[0]


def counts(steps: list[tuple[str, object, object]], key: bytes) -> int | None:
    """Return the offset of the record of a key that counts: of all that are committed the greatest, unless that is a
    tombstone or a later tombstone stands after it."""
    found: int | None = None
    for offset, (kind, first, second) in enumerate(steps):
        if kind == "plain" and first == key:
            found = offset if second else None
        elif kind == "end" and second:
            begin = max((at for at in range(offset) if steps[at][:2] == ("end", first)), default=-1)
            mine = [at for at in range(begin + 1, offset) if steps[at] == ("pending", first, key)]
            deleted = max((at for at in range(offset) if steps[at] == ("plain", key, False)), default=-1)
            if mine and mine[-1] > deleted and (found is None or mine[-1] > found):
                found = mine[-1]
    return found


@given(st.lists(BATCH_STEPS, max_size=12))
@settings(max_examples=300, deadline=None)
def test_what_counts_is_what_the_rule_says(steps: list[tuple[str, object, object]]) -> None:
    visible = Visibility(lambda batch, record: record.value)
    for offset, step in enumerate(steps):
        visible.add(batch_of(step, offset))
    for key in KEYS:
        kept = visible.latest.get(key)
        assert (None if kept is None else kept.offset) == counts(steps, key)
        assert kept is None or kept.what == b"%d" % kept.offset


def test_open_records_come_in_their_order_with_what_is_later() -> None:
    visible = Visibility(lambda batch, record: record.value)
    steps = [("pending", 2, b"b"), ("pending", 1, b"a"), ("plain", b"b", True)]
    for offset, step in enumerate(steps):
        visible.add(batch_of(step, offset))
    found = [(producer.producer_id, key, kept.offset, kept.what) for producer, key, kept in visible.open_records()]
    assert found == [(2, b"b", 0, b"2"), (1, b"a", 1, b"1")]
