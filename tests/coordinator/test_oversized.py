"""Produce requests beyond the limit of a frame: what is kept of them, what is refused, and what real clients get."""

from __future__ import annotations

import uuid
from random import Random

import pytest

import kcoord_wire as kw
from kcoord_wire import messages as m
from kcoord_wire.coordinator.connection import PeerLimits
from kcoord_wire.coordinator.core.apis import SERVED
from kcoord_wire.coordinator.oversized import OversizedProduce, RequestFramer
from kcoord_wire.errors import DecodeError
from kcoord_wire.protocol.error_codes import ErrorCode as E
from tests.support.broker import GOOD, batch
from tests.support.fixtures import StartCoordinator
from tests.support.group_client import VERSIONS
from tests.support.wire import Wire

LIMIT = 200 << 10
NEVER = batch(bytes(LIMIT))  # can never fit
LARGE = batch(bytes(90 << 10))  # fits, but not with two others of its kind
TOPIC = uuid.UUID(int=9)


def produce(*batches: bytes | None, version: int = 9, topic: str = "orders") -> m.ProduceRequest:
    part = m.ProduceRequestPartitionProduceData
    named = {"topic_id": TOPIC} if version >= 13 else {"name": topic}
    data = m.ProduceRequestTopicProduceData(
        **named, partition_data=[part(index=index, records=records) for index, records in enumerate(batches)]
    )
    return m.ProduceRequest(transactional_id=None, acks=-1, timeout_ms=1_000, topic_data=[data])


def kept(body: bytes, chunks: int | None = None) -> bytes:
    """What is kept of a frame that comes in chunks of this size, with the start of the next one behind it."""
    oversized = OversizedProduce(len(body), LIMIT)
    data = body + b"next"
    rest = b""
    for at in range(0, len(data), chunks or len(data)):
        chunk = data[at : at + (chunks or len(data))]
        rest += chunk if oversized.is_whole else oversized.feed(chunk)
        assert oversized.held <= LIMIT + (1 << 20) + len(chunk)
    assert rest == b"next"
    assert oversized.is_whole
    return bytes(oversized.body)


@pytest.mark.parametrize("version", SERVED[0])
def test_batches_that_do_not_fit_are_left_out(version: int) -> None:
    sent = produce(GOOD, NEVER, LARGE, LARGE, None, LARGE, GOOD, version=version)
    body = kw.encode_request(sent, version, correlation_id=7, client_id="one")
    header, found = kw.decode_request(kept(body))
    assert (header.correlation_id, header.client_id) == (7, "one")
    records = [data.records for data in found.topic_data[0].partition_data]
    assert [records[0], records[2], records[3], records[4], records[6]] == [GOOD, LARGE, LARGE, None, GOOD]
    assert records[1] == NEVER[:8] + b"\x7f\xff\xff\xff" + NEVER[12:61]
    assert records[5] == LARGE[:8] + b"\x7f\xff\xff\xfe" + LARGE[12:61]
    for data, whole in zip(found.topic_data[0].partition_data, sent.topic_data[0].partition_data, strict=True):
        data.records = whole.records
    assert found == sent


@pytest.mark.parametrize("chunks", [1, 7, 1_000, 65_536])
def test_chunks_make_no_difference(chunks: int) -> None:
    body = kw.encode_request(produce(GOOD, NEVER, LARGE, LARGE, LARGE, GOOD), 9)
    assert kept(body, chunks) == kept(body)


def test_what_fits_is_kept_as_it_is() -> None:
    for version in SERVED[0]:
        body = kw.encode_request(produce(GOOD, LARGE, version=version), version, client_id="one")
        assert kept(body) == body


@pytest.mark.parametrize("seed", range(40))
def test_bytes_that_are_no_produce_hold_no_more(seed: int) -> None:
    random = Random(seed)
    body = bytearray(kw.encode_request(produce(GOOD, NEVER, LARGE), random.choice([3, 9, 13])))
    for _ in range(random.randint(1, 9)):
        body[random.randrange(4, min(len(body), 300))] = random.randrange(256)
    oversized = OversizedProduce(len(body), LIMIT)
    try:
        for at in range(0, len(body), 997):
            oversized.feed(bytes(body[at : at + 997]))
            assert oversized.held <= LIMIT + (1 << 20) + 997
    except DecodeError:
        return
    assert oversized.is_whole


def test_partitions_without_end_are_refused() -> None:
    sent = produce(*[None] * 140_000)
    body = kw.encode_request(sent, 3)
    assert len(body) > 1 << 20
    with pytest.raises(DecodeError, match=f"frame size {len(body)} is above the limit"):
        kept(body)


@pytest.mark.parametrize(("key", "version"), [(1, 4), (0, 2), (11, 5)])
def test_other_requests_are_refused(key: int, version: int) -> None:
    oversized = OversizedProduce(1 << 20, LIMIT)
    with pytest.raises(DecodeError, match="above the limit"):
        oversized.feed(bytes([0, key, 0, version]) + bytes(100))


def test_a_frame_that_ends_early_is_refused() -> None:
    body = kw.encode_request(produce(NEVER), 9)
    with pytest.raises(DecodeError):
        OversizedProduce(len(body) - 10, LIMIT).feed(body[:-10])


def test_which_sizes_are_read_at_all() -> None:
    def begun(size: int, skipped: int) -> RequestFramer:
        framer = RequestFramer(LIMIT, skipped, LIMIT)
        assert not list(framer.feed(size.to_bytes(4, "big") + bytes([0, 0, 0, 9]) + bytes(16)))
        return framer

    assert begun(LIMIT + 1, 1 << 20).buffered >= 24
    for size, skipped in (((1 << 20) + 1, 1 << 20), (LIMIT + 1, 0), (1 << 31, 1 << 20)):
        with pytest.raises(DecodeError, match="frame size"):
            begun(size, skipped)


@pytest.mark.parametrize("chunks", [5, 1_000, 1 << 20])
def test_frames_around_it_are_cut_as_ever(chunks: int) -> None:
    large = kw.encode_request(produce(GOOD, NEVER, LARGE), 9)
    sent = [b"before", large, b"", large, b"between", b"after"]
    stream = b"".join(map(kw.frame, sent)) + (LIMIT + 1).to_bytes(4, "big") + bytes(20)
    framer = RequestFramer(LIMIT, 1 << 30, LIMIT)
    found: list[bytes] = []

    def cut() -> None:
        for at in range(0, len(stream), chunks):
            found.extend(framer.feed(stream[at : at + chunks]))
            assert framer.buffered <= LIMIT + (1 << 20) + chunks

    with pytest.raises(DecodeError, match=f"frame size {LIMIT + 1} is above the limit"):
        cut()
    assert found == [kept(body) if body is large else body for body in sent]


# ---- on sockets


def answer_of(wire: Wire, request: m.ProduceRequest, version: int = 9) -> list[int]:
    response = wire.call(request, version)
    assert isinstance(response, kw.ProduceResponse)
    return [part.error_code for part in response.responses[0].partition_responses]


def test_each_partition_is_answered_and_the_connection_goes_on(coordinator: StartCoordinator) -> None:
    running = coordinator(topics={"orders": 6}, limits=PeerLimits(max_frame_size=LIMIT, max_batch_bytes=LIMIT))
    with Wire(running.address) as wire:
        behind = [wire.send(VERSIONS, 3) for _ in range(3)]
        sent = produce(GOOD, NEVER, LARGE, LARGE, LARGE, GOOD)
        token = wire.send(sent, 9)
        after = wire.send(VERSIONS, 3)
        for each in behind:
            assert wire.receive(each).error_code == E.NONE
        parts = wire.receive(token).responses[0].partition_responses
        assert [part.error_code for part in parts] == [0, E.MESSAGE_TOO_LARGE, 0, 0, E.REQUEST_TIMED_OUT, 0]
        assert parts[1].error_message == "the batch is larger than a request may be"
        assert wire.receive(after).error_code == E.NONE
        assert answer_of(wire, produce(None, None, None, None, LARGE))[4] == E.NONE  # sent again, it fits


def test_the_limit_of_the_topic_comes_first(coordinator: StartCoordinator) -> None:
    running = coordinator(topics={"orders": 1})
    with Wire(running.address) as wire:
        assert answer_of(wire, produce(batch(bytes(2 << 20)))) == [E.MESSAGE_TOO_LARGE]
        running.create_topic("large", 1, {"max.message.bytes": str(3 << 20)})
        assert answer_of(wire, produce(batch(bytes(2 << 20)), topic="large")) == [E.NONE]
        assert answer_of(wire, produce(batch(bytes(6 << 20)), topic="large")) == [E.MESSAGE_TOO_LARGE]
        assert answer_of(wire, produce(batch(bytes(6 << 20)), topic="never")) == [E.UNKNOWN_TOPIC_OR_PARTITION]
        running.create_topic("larger", 1, {"max.message.bytes": str(64 << 20)})
        assert answer_of(wire, produce(batch(bytes(6 << 20)), topic="larger")) == [E.NONE]
        assert answer_of(wire, produce(batch(bytes(20 << 20)), topic="larger")) == [E.MESSAGE_TOO_LARGE]


def test_librdkafka_gives_a_large_record_up(coordinator: StartCoordinator) -> None:
    from confluent_kafka import Producer

    running = coordinator(topics={"orders": 1})
    producer = Producer({"bootstrap.servers": running.address, "message.max.bytes": 20_000_000})
    outcomes = []
    for value in (bytes(5 << 20), b"small", bytes(2 << 20), b"last"):
        producer.produce("orders", value, partition=0, on_delivery=lambda error, _: outcomes.append(error))
        assert producer.flush(60) == 0
    assert [error and error.name() for error in outcomes] == ["MSG_SIZE_TOO_LARGE", None, "MSG_SIZE_TOO_LARGE", None]
