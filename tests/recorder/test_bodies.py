"""Which addresses clients see: only hosts and ports of a response change, or nothing does.

The recorder's view of a connection of the 0.8 draft: when it is one, and which frames name brokers.

What is recorded of Fetch: the numbers of the partitions, complete without a session, and never a record.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire.capture.fetches import FetchWalk, read_fetch_request
from kcoord_wire.forensics.exchanges.matcher import Matcher
from kcoord_wire.forensics.sources.frames import read_frames
from kcoord_wire.messages import central as m
from kcoord_wire.messages import fetch
from kcoord_wire.recorder.bodies import MAX_PENDING, AddressError, CentralTraffic, FetchNumbers, rewrite_addresses
from kcoord_wire.recorder.proxy import Recorder
from tests.support.metadata import metadata
from tests.support.recorders import (
    FakeBroker,
    answering,
    connect,
    frames,
    receive,
)
from tests.support.waiting import eventually
from tests.support.wire_samples import Talk


@pytest.mark.parametrize("version", range(14))
def test_metadata_with_other_addresses(version: int) -> None:
    body = metadata(version, correlation_id=77)
    new = rewrite_addresses(body, 3, version, lambda host, port: (f"proxy-of-{host}", port + 1))
    assert new is not None
    before, after = (kw.decode_response(each, 3, version) for each in (body, new))
    assert after[0].correlation_id == 77
    assert [(b.host, b.port) for b in after[1].brokers] == [("proxy-of-kafka-1", 9093), ("proxy-of-kafka-2", 9093)]
    for broker, old in zip(after[1].brokers, before[1].brokers, strict=True):
        broker.host, broker.port = old.host, old.port
    assert after == before
    assert rewrite_addresses(body, 3, version, lambda host, port: None) is None
    assert rewrite_addresses(body, 3, version, lambda host, port: (host, port)) is None


@pytest.mark.parametrize("version", range(7))
def test_coordinators_with_other_addresses(version: int) -> None:
    places: list[tuple[str, int]] = []

    def replacement(host: str, port: int) -> tuple[str, int]:
        places.append((host, port))
        return "proxy", 1

    if version < 4:
        message = kw.FindCoordinatorResponse(node_id=3, host="kafka-3", port=9092, error_message=None)
    else:
        found = kw.FindCoordinatorResponseCoordinator(key="g", node_id=3, host="kafka-3", port=9092)
        lost = kw.FindCoordinatorResponseCoordinator(key="h", node_id=-1, host="", port=-1, error_code=15)
        message = kw.FindCoordinatorResponse(coordinators=[found, lost])
    new = rewrite_addresses(kw.encode_response(message, version), 10, version, replacement)
    assert new is not None
    decoded = kw.decode_response(new, 10, version)[1]
    seen = [(c.host, c.port) for c in decoded.coordinators] if version >= 4 else [(decoded.host, decoded.port)]
    assert seen == [("proxy", 1), ("", -1)][: len(seen)]
    assert places == [("kafka-3", 9092)]


@pytest.mark.parametrize("version", range(3))
def test_a_cluster_with_other_addresses(version: int) -> None:
    brokers = [
        kw.DescribeClusterResponseDescribeClusterBroker(broker_id=n, host=f"kafka-{n}", port=9092) for n in (1, 2)
    ]
    body = kw.encode_response(kw.DescribeClusterResponse(cluster_id="c", brokers=brokers), version)
    new = rewrite_addresses(body, 60, version, lambda host, port: (f"proxy-of-{host}", port + 1))
    assert new is not None
    after = kw.decode_response(new, 60, version)[1]
    assert [(b.host, b.port) for b in after.brokers] == [("proxy-of-kafka-1", 9093), ("proxy-of-kafka-2", 9093)]


def test_unknown_tagged_fields_stay() -> None:
    body = metadata(12)
    tags = b"\x01\x63\x03new"  # one field, number 99
    assert body[4] == body[-1] == 0
    body = body[:4] + tags + body[5:-1] + tags
    new = rewrite_addresses(body, 3, 12, lambda host, port: ("a-host-of-mine", port))
    assert new is not None
    assert new[4:10] == tags
    assert new.endswith(tags)


def test_a_response_is_rewritten_wholly_or_refused() -> None:
    body = metadata(12)
    for size in range(len(body)):
        with pytest.raises(AddressError):
            rewrite_addresses(body[:size], 3, 12, lambda host, port: ("x", 1))
    with pytest.raises(AddressError, match="version 14 is not known"):
        rewrite_addresses(body, 3, 14, lambda host, port: ("x", 1))
    with pytest.raises(AddressError):
        rewrite_addresses(body, 3, 12, lambda host, port: ("x" * 70_000, 2**40))


REGISTER = kw.encode_request(m.RegisterConsumerRequest(group_id="g", consumer_id="c"), 0)


def test_the_first_frame_of_a_client_decides() -> None:
    assert CentralTraffic.opens(b"\x00\x05", 2)
    assert CentralTraffic.opens(b"\x00\x05\x00\x00", 4)
    assert CentralTraffic.opens(REGISTER[:10], len(REGISTER))
    assert CentralTraffic.opens(b"\x00\x05\x00\x01\x00\x01g", 7)
    for other in (
        b"\x00\x05\x00",
        b"\x00\x05\x00\x01",
        b"\x00\x05\x00\x01\x00\x01g.",
        b"\x00\x05\x00\x02\x00\x01g",
        b"\x00\x05\x00\x01\x00\x01\0",
    ):
        assert not CentralTraffic.opens(other, len(other))
    assert not CentralTraffic.opens(b"\x00\x06", 2)
    assert not CentralTraffic.opens(b"", 0)


def test_no_request_of_kafka_opens_a_connection_of_the_draft() -> None:
    for codec in (codec for codec in kw.registry.values() if (codec.family, codec.type) == ("kafka", "request")):
        talk = Talk(1)
        for version in codec.valid_versions:
            talk.ask(codec.cls(), version, version)
        assert not any(CentralTraffic.opens(frame.frame[:10], len(frame.frame)) for frame in talk.frames)
    for version in range(9):  # UpdateMetadata has the draft's type id, and no schema here
        body = b"\x00\x06" + version.to_bytes(2) + (7).to_bytes(4) + b"\x00\x01c" + bytes(20)
        assert not CentralTraffic.opens(body[:10], len(body))


def test_brokers_are_named_in_cluster_metadata_and_start_fetcher() -> None:
    traffic = CentralTraffic()
    traffic.from_consumer(b"\x00\x05")
    traffic.from_consumer(REGISTER[:2])
    found = [
        traffic.from_coordinator(head) for head in (b"\x00\x00", b"\x00\x00", b"\x00\x07", b"\x00\x09", b"\x00\x00")
    ]
    assert [None if each is None else (each[0].name, each[1]) for each in found] == [
        ("ClusterMetadataResponse", 0),
        None,
        None,
        ("StartFetcherRequest", 2),
        None,
    ]


SECOND_NS = 1_000_000_000
SECRET = b"my records"
TOPIC_ID = uuid.UUID(int=5)


def topic(version: int) -> dict[str, Any]:
    return {"topic_id": TOPIC_ID} if version >= 13 else {"topic": "orders"}


def asked(version: int, correlation_id: int, offsets: dict[int, int], *, full: bool = True) -> bytes:
    parts = [
        fetch.FetchRequestFetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=9)
        for number, offset in offsets.items()
    ]
    epoch = {"session_epoch": 0 if full else 4, "session_id": 0 if full else 8} if version >= 7 else {}
    topics = [fetch.FetchRequestFetchTopic(**topic(version), partitions=parts)] if parts else []
    message = fetch.FetchRequest(max_wait_ms=500, min_bytes=1, topics=topics, **epoch)
    return kw.encode_request(message, version, correlation_id=correlation_id, client_id="c1")


def answered(version: int, correlation_id: int, ends: dict[int, int], error: int = 0, size: int = 10) -> bytes:
    parts = [
        fetch.FetchResponsePartitionData(
            partition_index=number, error_code=error, high_watermark=end, log_start_offset=3, records=SECRET * size
        )
        for number, end in ends.items()
    ]
    made = fetch.FetchResponse(
        responses=[fetch.FetchResponseFetchableTopicResponse(**topic(version), partitions=parts)]
    )
    return kw.encode_response(made, version, correlation_id=correlation_id)


def walked(version: int, body: bytes) -> FetchWalk:
    walk = FetchWalk(version)
    walk.feed(body)
    return walk


@pytest.mark.parametrize("version", [0, 4, 7, 11, 12, 13, 18])
def test_the_numbers_are_recorded_and_no_record(version: int) -> None:
    numbers = FetchNumbers()
    numbers.ask(asked(version, 1, {0: 10, 1: 20}))
    made = numbers.answer(1, walked(version, answered(version, 1, {0: 15, 1: 25})), 0)
    assert made is not None
    header, request = kw.decode_request(made[0])
    _, response = kw.decode_response(made[1], 1, version)
    assert (header.correlation_id, header.client_id, header.request_api_version) == (1, "c1", version)
    [wanted] = request.topics
    assert [(part.partition, part.fetch_offset) for part in wanted.partitions] == [(0, 10), (1, 20)]
    [got] = response.responses
    start = 3 if version >= 5 else -1
    found = [(p.partition_index, p.high_watermark, p.log_start_offset, p.records) for p in got.partitions]
    assert found == [(0, 15, start, None), (1, 25, start, None)]
    assert SECRET not in made[0] + made[1]
    again = read_fetch_request(made[0])
    assert again is not None
    key = TOPIC_ID.bytes if version >= 13 else "orders"
    assert again.sizes == ({(key, n): 10 * len(SECRET) for n in range(2)} if version >= 3 else {})
    of_client = read_fetch_request(asked(version, 1, {0: 10}))
    assert of_client is not None
    assert of_client.sizes == {}


def test_a_recorded_request_is_complete_without_its_session() -> None:
    numbers = FetchNumbers()
    numbers.ask(asked(12, 1, {0: 10, 1: 20}))
    assert numbers.answer(1, walked(12, answered(12, 1, {0: 15})), 0)
    numbers.ask(asked(12, 2, {0: 15}, full=False))
    made = numbers.answer(2, walked(12, answered(12, 2, {1: 26})), 1)
    assert made is not None
    _, request = kw.decode_request(made[0])
    assert (request.session_id, request.session_epoch) == (0, -1)
    assert [(part.partition, part.fetch_offset) for part in request.topics[0].partitions] == [(1, 20)]


def test_what_says_nothing_new_is_not_recorded() -> None:
    numbers = FetchNumbers()
    made = []
    for n in range(50):
        numbers.ask(asked(12, n, {0: n}, full=n == 0))
        made.append(numbers.answer(n, walked(12, answered(12, n, {0: 100})), n * SECOND_NS // 10))
    assert [n for n, each in enumerate(made) if each] == [0, 10, 20, 30, 40]
    assert numbers.answer(99, walked(12, answered(12, 99, {0: 100})), 0) is None
    for n in range(3 * MAX_PENDING):
        numbers.ask(asked(12, n, {0: 1}))
    assert numbers.answer(0, walked(12, answered(12, 0, {0: 9})), 10**12) is None, "given up"
    numbers.ask(b"\0\1\0\x0c")


def test_a_recording_shows_lag_and_holds_no_data(tmp_path: Path) -> None:
    """A response of 3 MB, which comes in many pieces, and one that is whole at once."""
    responses = {1: answered(12, 1, {0: 15, 1: 7}, size=300_000), 2: answered(12, 2, {1: 9})}

    def answer(body: bytes) -> bytes:
        return kw.frame(responses[int.from_bytes(body[4:8], "big")])

    with FakeBroker(answering(answer)) as broker, Recorder(broker.address, folder=tmp_path) as recorder:
        with connect(recorder.address) as client:
            for number, body in ((1, asked(12, 1, {0: 10, 1: 7})), (2, asked(12, 2, {1: 2}, full=False))):
                client.sendall(kw.frame(body))
                assert receive(client, len(responses[number]) + 4) == kw.frame(responses[number])
        eventually(lambda: recorder.counters.open == 0)
        assert recorder.proxy.context.held == 0
    assert len(frames(tmp_path)) == 4
    data = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert SECRET not in data
    assert len(data) < 1_000
    matcher, seen = Matcher(), []
    for batch in read_frames(next(tmp_path.iterdir())):
        seen += [row for row in matcher.feed(batch)[1].to_pylist() if row["kind"] == "fetched"]
    assert matcher.losses == []
    assert [(row["client_id"], row["partition"], row["fetch_offset"], row["end_offset"]) for row in seen] == [
        ("c1", 0, 10, 15),
        ("c1", 1, 7, 7),
        ("c1", 1, 2, 9),
    ]


def test_a_fetch_leaves_requests_behind_it_their_answers(tmp_path: Path) -> None:
    """A client that does not wait for the Fetch before it asks for something else, as librdkafka."""
    heartbeat = kw.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    responses = {
        1: answered(12, 1, {0: 15}),
        2: kw.encode_response(kw.HeartbeatResponse(), 0, correlation_id=2),
    }

    def answer(body: bytes) -> bytes:
        return kw.frame(responses[int.from_bytes(body[4:8], "big")])

    with FakeBroker(answering(answer)) as broker, Recorder(broker.address, folder=tmp_path) as recorder:
        with connect(recorder.address) as client:
            beat = kw.encode_request(heartbeat, 0, correlation_id=2, client_id="c1")
            client.sendall(kw.frame(asked(12, 1, {0: 10})) + kw.frame(beat))
            assert receive(client, sum(len(body) + 4 for body in responses.values()))
        eventually(lambda: recorder.counters.open == 0)
    matcher = Matcher()
    found = [row for batch in read_frames(next(tmp_path.iterdir())) for row in matcher.feed(batch)[0].to_pylist()]
    assert matcher.losses == []
    assert [(row["api"], row["error_code"]) for row in found] == [("Heartbeat", 0)]
