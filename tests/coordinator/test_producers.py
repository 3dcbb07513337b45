"""Idempotent producers: what they send twice is stored once, and their sequences and epochs go on without a gap."""

from __future__ import annotations

from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.broker import Broker, sequenced


def test_a_batch_that_is_sent_twice_is_stored_once(broker: Broker) -> None:
    offsets = [broker.produce(sequenced(sequence)).base_offset for sequence in (0, 2, 4, 6, 8, 10)]
    assert offsets == [0, 2, 4, 6, 8, 10]
    again = [broker.produce(sequenced(sequence)) for sequence in (2, 4, 6, 8, 10)]
    assert [(outcome.error_code, outcome.base_offset) for outcome in again] == [(0, n) for n in (2, 4, 6, 8, 10)]
    forgotten = broker.produce(sequenced(0))
    assert forgotten.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert broker.produce(sequenced(12)).base_offset == 12
    assert broker.produce(sequenced(0), partition=1).base_offset == 0  # each partition counts for itself


def test_sequences_and_epochs(broker: Broker) -> None:
    assert broker.produce(sequenced(7)).error_code == 0  # nothing is known of the producer: any sequence will do
    for gap in (8, 10):
        assert broker.produce(sequenced(gap)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert broker.produce(sequenced(9, epoch=1)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert broker.produce(sequenced(0, epoch=1)).error_code == 0
    assert broker.produce(sequenced(9)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert broker.produce(sequenced(0, epoch=1, count=1)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert broker.produce(sequenced(2, epoch=1)).base_offset == 4


def test_sequences_go_round(broker: Broker) -> None:
    last = 2**31 - 1
    assert broker.produce(sequenced(last - 3)).error_code == 0
    assert broker.produce(sequenced(last - 1)).error_code == 0
    assert broker.produce(sequenced(0)).base_offset == 4
    assert broker.produce(sequenced(last, producer_id=6)).error_code == 0  # from the last to 0 within a batch
    assert broker.produce(sequenced(last, producer_id=6)).base_offset == 6
    assert broker.produce(sequenced(1, producer_id=6)).base_offset == 8


def test_only_so_many_producers_are_remembered(broker: Broker) -> None:
    for producer_id in range(1, 258):
        broker.produce(sequenced(0, producer_id=producer_id))
    end = broker.fetch(0).high_watermark
    assert broker.produce(sequenced(0, producer_id=257)).base_offset == end - 2
    assert broker.produce(sequenced(0, producer_id=1)).base_offset == end  # forgotten
