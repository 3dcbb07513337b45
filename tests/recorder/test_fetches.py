"""What is recorded of Fetch: the numbers of the partitions, complete without a session, and never a record."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire.capture.fetches import FetchWalk
from kcoord_wire.forensics.exchanges.matcher import Matcher
from kcoord_wire.forensics.sources.frames import read_frames
from kcoord_wire.messages import fetch
from kcoord_wire.recorder.fetches import MAX_PENDING, FetchNumbers
from kcoord_wire.recorder.proxy import Recorder
from tests.support.recorders import FakeBroker, answering, connect, frames, receive, soon

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
        soon(lambda: recorder.counters.open == 0)
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
        soon(lambda: recorder.counters.open == 0)
    matcher = Matcher()
    found = [row for batch in read_frames(next(tmp_path.iterdir())) for row in matcher.feed(batch)[0].to_pylist()]
    assert matcher.losses == []
    assert [(row["api"], row["error_code"]) for row in found] == [("Heartbeat", 0)]
