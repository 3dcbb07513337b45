"""Records of a share group: one member has a record at a time, and what is acknowledged is not delivered again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcoord_wire.coordinator.core.apis import Refused
from kcoord_wire.coordinator.share.share_partition import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    TERMINAL,
    Acknowledgement,
    Acquired,
    AcquireMode,
    ShareLimits,
    SharePartition,
    Span,
    State,
    StateRange,
)
from kcoord_wire.protocol.error_codes import ErrorCode

LIMITS = ShareLimits(record_locks=100, delivery_count=3, lock_ms=1_000)


def fetched(first: int, last: int, size: int = 10) -> list[Span]:
    """Return the batches of a log with so many records each that are read from an offset on."""
    return [Span(at, at + size - 1) for at in range(first - first % size, last + 1, size)]


def acquire(partition: SharePartition, member: str = "m1", now: int = 0, end: int = 29, **how: Any) -> list[Acquired]:
    """Acquire what a log of `end` + 1 records has."""
    offset = partition.next_offset
    asked = {"max_records": 500, "batch_size": 500} | how
    return partition.acquire(member, fetched(offset, end), offset, now=now, **asked)


def acknowledge(
    partition: SharePartition, first: int, last: int, *types: int, member: str = "m1", now: int = 0
) -> bool:
    return partition.acknowledge(member, [Acknowledgement(first, last, types)], now)


def states(partition: SharePartition) -> str:
    """Return a letter for the state of each record from the start offset on: a, A(cquired), d(one)."""
    letters = {State.AVAILABLE: "a", State.ACQUIRED: "A", State.ACKNOWLEDGED: "d", State.ARCHIVED: "x"}
    return "".join(letters[state] for _, state, _, _ in partition.states())


def test_what_is_accepted_moves_the_start_offset() -> None:
    partition = SharePartition(0, LIMITS)
    assert acquire(partition) == [Acquired(0, 29, 1)]
    assert acquire(partition, "m2") == []
    acknowledge(partition, 0, 9, ACCEPT)
    acknowledge(partition, 20, 24, REJECT)
    assert (partition.start_offset, partition.end_offset) == (10, 30)
    assert states(partition) == "A" * 10 + "x" * 5 + "A" * 5
    assert partition.done == 5
    acknowledge(partition, 10, 19, *[GAP, ACCEPT] * 5)
    acknowledge(partition, 25, 29, ACCEPT)
    assert (partition.start_offset, partition.end_offset, partition.done, partition.in_flight) == (30, 30, 0, 0)
    assert acknowledge(partition, 0, 29, ACCEPT) is False  # it was done already, as for Kafka


def test_a_released_record_comes_again_until_the_limit() -> None:
    partition = SharePartition(0, LIMITS)
    deliveries = []
    for _ in range(3):
        (got,) = acquire(partition, max_records=1, end=0, mode=AcquireMode.RECORD_LIMIT)
        deliveries.append(got.deliveries)
        acknowledge(partition, 0, 0, RELEASE)
    assert deliveries == [1, 2, 3]
    assert (partition.start_offset, partition.next_offset) == (1, 1)


def test_a_lock_that_runs_out_frees_the_records() -> None:
    partition = SharePartition(0, LIMITS)
    acquire(partition, now=5)
    assert partition.deadline == 1_005
    assert not partition.expire(1_004)
    acknowledge(partition, 10, 19, RENEW, now=500)
    assert partition.expire(1_005)
    assert states(partition) == "a" * 10 + "A" * 10 + "a" * 10
    assert partition.deadline == 1_500
    assert acquire(partition, "m2", now=1_005, end=9) == [Acquired(0, 9, 2)]
    with pytest.raises(Refused) as refused:
        acknowledge(partition, 0, 9, ACCEPT)
    assert refused.value.error == ErrorCode.INVALID_RECORD_STATE
    assert partition.expire(1_500)
    assert partition.deadline == 2_005


def test_the_end_of_a_session_frees_its_records() -> None:
    partition = SharePartition(0, LIMITS)
    acquire(partition, max_records=10)
    acquire(partition, "m2")
    assert partition.release("m1")
    assert not partition.release("m1")
    assert states(partition) == "a" * 10 + "A" * 20
    for _ in range(30):
        acquire(partition, end=9)
        partition.release("m1")
    assert partition.start_offset == 10  # delivered three times, each


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (Acknowledgement(9, 0, (ACCEPT,)), ErrorCode.INVALID_REQUEST),
        (Acknowledgement(0, 9, ()), ErrorCode.INVALID_REQUEST),
        (Acknowledgement(0, 9, (ACCEPT, ACCEPT)), ErrorCode.INVALID_REQUEST),
        (Acknowledgement(0, 0, (5,)), ErrorCode.INVALID_REQUEST),
        (Acknowledgement(25, 30, (ACCEPT,)), ErrorCode.INVALID_REQUEST),
        (Acknowledgement(40, 41, (ACCEPT,)), ErrorCode.INVALID_REQUEST),
        (Acknowledgement(20, 29, (ACCEPT,)), ErrorCode.INVALID_RECORD_STATE),
    ],
)
def test_a_wrong_acknowledgement_changes_nothing(asked: Acknowledgement, error: ErrorCode) -> None:
    partition = SharePartition(0, LIMITS)
    acquire(partition)
    acknowledge(partition, 20, 29, RELEASE)
    before = states(partition)
    with pytest.raises(Refused) as refused:
        partition.acknowledge("m1", [Acknowledgement(0, 0, (ACCEPT,)), asked], 0)
    assert (refused.value.error, states(partition)) == (error, before)
    with pytest.raises(Refused, match="owner"):
        acknowledge(partition, 0, 0, ACCEPT, member="m2")


def test_acquire_modes() -> None:
    partition = SharePartition(0, LIMITS)
    assert acquire(partition, max_records=12) == [Acquired(0, 19, 1)]  # up to the end of a batch
    assert acquire(partition, max_records=3, mode=AcquireMode.RECORD_LIMIT) == [Acquired(20, 22, 1)]
    assert states(partition) == "A" * 23 + "a" * 7
    assert acquire(partition, "m2", max_records=2, mode=AcquireMode.RECORD_LIMIT) == [Acquired(23, 24, 1)]
    assert acquire(SharePartition(0, LIMITS), batch_size=5) == [
        Acquired(0, 9, 1),
        Acquired(10, 19, 1),
        Acquired(20, 29, 1),
    ]


def test_only_so_many_records_are_in_flight() -> None:
    partition = SharePartition(0, LIMITS)
    assert acquire(partition, end=199) == [Acquired(0, 99, 1)]
    assert not partition.can_acquire
    assert acquire(partition, end=199) == []
    acknowledge(partition, 50, 50, RELEASE)
    assert partition.can_acquire
    assert acquire(partition, end=199) == [Acquired(50, 50, 2)]
    acknowledge(partition, 0, 9, ACCEPT)
    assert acquire(partition, end=199) == [Acquired(100, 109, 1)]


def test_records_that_fail_often_are_delivered_alone() -> None:
    partition = SharePartition(0, ShareLimits(delivery_count=5, lock_ms=1_000))
    sizes = []
    for _ in range(8):
        sizes.append(sum(got.last - got.first + 1 for got in acquire(partition, end=9)))
        partition.expire(partition.deadline or 0)
    assert sizes == [10, 10, 10, 5, 1, 1, 1, 1]
    assert partition.start_offset == 4
    assert [count for _, _, count, _ in partition.states()] == [4, 3, 3, 3, 3, 3]


def test_records_that_the_log_has_no_longer_are_done() -> None:
    partition = SharePartition(0, LIMITS)
    acquire(partition)
    assert partition.begin_at(15)
    assert not partition.begin_at(15)
    assert (partition.start_offset, states(partition)) == (15, "A" * 15)
    acknowledge(partition, 0, 19, ACCEPT)  # those before the start are skipped
    assert partition.start_offset == 20
    partition.release("m1")
    assert partition.begin_at(50)
    assert (partition.start_offset, partition.end_offset, partition.next_offset) == (50, 50, 50)
    partition.restore(0, [])
    acquire(partition)
    acknowledge(partition, 0, 29, RELEASE)
    assert partition.acquire("m1", [Span(25, 29)], 0, max_records=9, batch_size=9, now=0)[0].first == 25  # compacted
    assert partition.start_offset == 25


def test_aborted_records_are_not_for_the_member() -> None:
    partition = SharePartition(0, LIMITS)
    got = acquire(partition)
    assert partition.archive("m1", [Span(5, 9), Span(20, 29)], got) == [Acquired(0, 4, 1), Acquired(10, 19, 1)]
    acknowledge(partition, 0, 4, ACCEPT)
    assert (partition.start_offset, states(partition)) == (10, "A" * 10 + "x" * 10)
    acknowledge(partition, 10, 19, ACCEPT)
    assert partition.start_offset == 30


def test_what_is_kept_is_short() -> None:
    partition = SharePartition(0, LIMITS)
    acquire(partition)
    acknowledge(partition, 5, 9, *[ACCEPT] * 5)
    acknowledge(partition, 10, 14, RELEASE)
    acquire(partition, "m2", end=19)
    ranges = partition.snapshot()
    assert ranges == [StateRange(5, 9, State.ACKNOWLEDGED, 1), StateRange(10, 14, State.AVAILABLE, 1)]
    partition.restore(partition.start_offset, ranges)
    assert states(partition) == "a" * 5 + "d" * 5 + "a" * 5
    assert acquire(partition, "m3", end=19) == [Acquired(0, 4, 1), Acquired(10, 14, 2), Acquired(15, 19, 1)]


def test_a_hole_in_the_log_is_not_kept_record_by_record() -> None:
    partition = SharePartition(0)
    partition.restore(0, [StateRange(10**7, 10**7 + 9, State.ACKNOWLEDGED, 1)])
    got = partition.acquire("m1", [Span(10**7 - 5, 10**7 + 9)], 0, max_records=500, batch_size=500, now=0)
    assert got == [Acquired(10**7 - 5, 10**7 - 1, 1)]
    assert partition.start_offset == 10**7 - 5


@dataclass
class Model:
    """Each record by itself: state, deliveries, and who has it."""

    end: int = 40
    start: int = 0
    now: int = 0
    records: dict[int, tuple[State, int, str]] = field(default_factory=dict)
    until: dict[int, int] = field(default_factory=dict)

    def of(self, offset: int) -> tuple[State, int, str]:
        return self.records.get(offset, (State.AVAILABLE, 0, ""))

    def free(self, offset: int, *, delivered: bool) -> None:
        state, count, _ = self.of(offset)
        assert state is State.ACQUIRED
        ends = delivered and count >= LIMITS.delivery_count
        self.records[offset] = (State.ARCHIVED if ends else State.AVAILABLE, count if delivered else count - 1, "")

    def acquired(self, member: str, got: list[Acquired]) -> int:
        count = 0
        for first, last, deliveries in got:
            for offset in range(first, last + 1):
                state, before, _ = self.of(offset)
                assert (state, before + 1) == (State.AVAILABLE, deliveries)
                self.records[offset] = (State.ACQUIRED, deliveries, member)
                self.until[offset] = self.now + LIMITS.lock_ms
                count += 1
        return count

    def check(self, partition: SharePartition) -> None:
        known = dict(self.records)
        for offset, state, count, member in partition.states():
            assert self.of(offset) == (state, count, member), offset
            known.pop(offset, None)
        assert all(state in TERMINAL for offset, (state, _, _) in known.items() if offset < partition.start_offset)
        assert partition.start_offset >= self.start
        self.start = partition.start_offset


OFFSETS = st.integers(0, 39)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("fetch"), st.sampled_from("ab"), st.integers(1, 25), st.sampled_from(AcquireMode)),
        st.tuples(st.just("ack"), st.sampled_from("ab"), OFFSETS, st.integers(0, 12), st.integers(0, 4)),
        st.tuples(st.just("release"), st.sampled_from("ab")),
        st.tuples(st.just("pass"), st.sampled_from((300, 1_000))),
        st.tuples(st.just("trim"), OFFSETS),
        st.tuples(st.just("restart")),
    ),
    max_size=25,
)


def step(partition: SharePartition, model: Model, kind: str, *arguments: Any) -> None:
    if kind == "fetch":
        fetch(partition, model, *arguments)
    elif kind == "ack":
        member, first, more, how = arguments
        try:
            acknowledge(partition, first, first + more, how, member=member, now=model.now)
        except Refused:
            return
        for offset in range(max(first, model.start), first + more + 1):
            state, count, holder = model.of(offset)
            assert (state, holder) == (State.ACQUIRED, member)
            if how == RENEW:
                model.until[offset] = model.now + LIMITS.lock_ms
            elif how == RELEASE:
                model.free(offset, delivered=True)
            else:
                model.records[offset] = (State.ACKNOWLEDGED if how == ACCEPT else State.ARCHIVED, count, "")
    elif kind == "release":
        partition.release(arguments[0])
        for offset, (_, _, holder) in list(model.records.items()):
            if holder == arguments[0]:
                model.free(offset, delivered=True)
    elif kind == "pass":
        model.now += arguments[0]
        partition.expire(model.now)
        for offset, (state, _, _) in list(model.records.items()):
            if state is State.ACQUIRED and model.until[offset] <= model.now:
                model.free(offset, delivered=True)
    elif kind == "trim":
        partition.begin_at(arguments[0])
        for offset in range(arguments[0]):
            if model.of(offset)[0] not in TERMINAL:
                model.records[offset] = (State.ARCHIVED, model.of(offset)[1], "")
    else:
        partition.restore(partition.start_offset, partition.snapshot())
        for offset, (state, _, _) in list(model.records.items()):
            if state is State.ACQUIRED:
                model.free(offset, delivered=False)


def fetch(partition: SharePartition, model: Model, member: str, most: int, mode: AcquireMode) -> None:
    offset = partition.next_offset
    got = acquire(partition, member, model.now, model.end - 1, max_records=most, mode=mode, batch_size=7)
    count = model.acquired(member, got)
    assert count or offset >= model.end
    assert mode is AcquireMode.BATCH_OPTIMIZED or count <= most


@settings(deadline=None, max_examples=150)
@given(STEPS)
def test_records_go_the_way_of_a_simple_model(steps: list[tuple[Any, ...]]) -> None:
    partition, model = SharePartition(0, LIMITS), Model()
    for each in steps:
        step(partition, model, *each)
        model.check(partition)
    for _ in range(200):  # in the end everything is done
        if partition.start_offset >= model.end:
            break
        offset = partition.next_offset
        for first, last, _ in acquire(partition, "c", model.now, model.end - 1):
            acknowledge(partition, first, last, ACCEPT, member="c", now=model.now)
        model.now += 300
        partition.expire(model.now)
    assert partition.start_offset >= model.end, offset
