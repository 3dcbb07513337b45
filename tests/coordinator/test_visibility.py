"""Which records of a log count, compared with a slow reading of the rule."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kcoord_wire.coordinator.log.store import Visibility
from kcoord_wire.records import ControlType, Record, RecordBatch, encode_batch, end_transaction_record, read_records

KEYS = (b"a", b"b")
STEPS = st.one_of(
    st.tuples(st.just("plain"), st.sampled_from(KEYS), st.booleans()),
    st.tuples(st.just("pending"), st.integers(1, 2), st.sampled_from(KEYS)),
    st.tuples(st.just("end"), st.integers(1, 2), st.booleans()),
)


def batch_of(step: tuple[str, object, object], offset: int) -> RecordBatch:
    kind, first, second = step
    if kind == "plain":
        data = encode_batch([Record(first, b"%d" % offset if second else None, 1, offset)])  # type: ignore[arg-type] # a key
    elif kind == "pending":
        data = encode_batch(
            [Record(second, b"%d" % offset, 1, offset)],  # type: ignore[arg-type] # a key
            transactional=True,
            producer_id=first,  # type: ignore[arg-type] # an id
            producer_epoch=0,
        )
    else:
        control = ControlType.COMMIT if second else ControlType.ABORT
        data = encode_batch(
            [end_transaction_record(control, 0, offset=offset)],
            transactional=True,
            control=True,
            producer_id=first,  # type: ignore[arg-type] # an id
            producer_epoch=0,
        )
    (batch,) = read_records(data)
    assert isinstance(batch, RecordBatch)
    return batch


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


@given(st.lists(STEPS, max_size=12))
@settings(max_examples=300, deadline=None)
def test_what_counts_is_what_the_rule_says(steps: list[tuple[str, object, object]]) -> None:
    visible = Visibility(lambda batch, record: record.value)
    for offset, step in enumerate(steps):
        visible.take(batch_of(step, offset))
    for key in KEYS:
        kept = visible.latest.get(key)
        assert (None if kept is None else kept.offset) == counts(steps, key)
        assert kept is None or kept.what == b"%d" % kept.offset


def test_open_records_come_in_their_order_with_what_is_later() -> None:
    visible = Visibility(lambda batch, record: record.value)
    steps = [("pending", 2, b"b"), ("pending", 1, b"a"), ("plain", b"b", True)]
    for offset, step in enumerate(steps):
        visible.take(batch_of(step, offset))
    found = [(producer.producer_id, key, kept.offset, kept.what) for producer, key, kept in visible.open_records()]
    assert found == [(2, b"b", 0, b"2"), (1, b"a", 1, b"1")]
