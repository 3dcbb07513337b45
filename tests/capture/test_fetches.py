"""The numbers in Fetch against the codec: every version, any cut into pieces, any end; sessions; how much passes."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kcoord_wire as kw
from kcoord_wire.capture.fetches import (
    NEWEST,
    FetchAsked,
    FetchedPartition,
    FetchSession,
    FetchWalk,
    read_fetch_request,
)
from kcoord_wire.messages import fetch

SECOND_NS = 1_000_000_000
VERSIONS = st.integers(0, NEWEST)
IDS = [uuid.UUID(int=number) for number in (1, 2, 3)]
NAMES = ["orders", "größe", "x" * 200]
LONGS = st.integers(0, 2**62)
ABORTED = fetch.FetchResponseAbortedTransaction(producer_id=1, first_offset=2)
BLOBS = st.one_of(st.none(), st.binary(max_size=300))


def key(version: int, index: int) -> str | bytes:
    return IDS[index].bytes if version >= 13 else NAMES[index]


def topic_of(version: int, index: int) -> dict[str, object]:
    return {"topic_id": IDS[index]} if version >= 13 else {"topic": NAMES[index]}


@st.composite
def responses(draw: st.DrawFn, version: int) -> tuple[bytes, list[FetchedPartition]]:
    """The bytes of a response, and the numbers in it."""
    topics, expected = [], []
    for index in range(draw(st.integers(0, 3))):
        partitions = []
        for number in range(draw(st.integers(0, 3))):
            error, end, start = draw(st.sampled_from([0, 1, 6])), draw(LONGS), draw(LONGS)
            aborted = draw(st.sampled_from([None, 0, 2])) if version >= 4 else None
            data = fetch.FetchResponsePartitionData(
                partition_index=number,
                error_code=error,
                high_watermark=end,
                last_stable_offset=end,
                log_start_offset=start,
                aborted_transactions=None if aborted is None else [ABORTED] * aborted,
                records=draw(BLOBS),
            )
            if version >= 12:
                data.diverging_epoch = fetch.FetchResponseEpochEndOffset(epoch=1, end_offset=2)
            partitions.append(data)
            known = start if version >= 5 else None
            size = len(data.records or b"")
            expected.append(FetchedPartition((key(version, index), number), error, end, known, size))
        topics.append(fetch.FetchResponseFetchableTopicResponse(**topic_of(version, index), partitions=partitions))
    message = fetch.FetchResponse(session_id=5 * (version >= 7), responses=topics)
    return kw.encode_response(message, version, correlation_id=9), expected


@given(st.data())
def test_a_response_in_any_pieces_gives_its_numbers(draw: st.DataObject) -> None:
    version = draw.draw(VERSIONS)
    body, expected = draw.draw(responses(version))
    walk = FetchWalk(version)
    at = 0
    while at < len(body):
        size = draw.draw(st.integers(1, 120))
        walk.feed(body[at : at + size])
        at += size
    assert walk.partitions == expected
    assert not walk.is_lost


@given(st.data())
def test_a_response_cut_anywhere_gives_what_precedes_the_cut(draw: st.DataObject) -> None:
    version = draw.draw(VERSIONS)
    body, expected = draw.draw(responses(version))
    walk = FetchWalk(version)
    walk.feed(body[: draw.draw(st.integers(0, len(body)))])
    assert walk.partitions == expected[: len(walk.partitions)]
    assert not walk.is_lost


@given(st.binary(max_size=400), VERSIONS)
def test_garbage_raises_nothing(data: bytes, version: int) -> None:
    walk = FetchWalk(version)
    for at in range(0, len(data), 50):
        walk.feed(data[at : at + 50])
    read_fetch_request(b"\x00\x01" + version.to_bytes(2, "big") + data)


@given(st.data())
def test_a_request_gives_offsets_and_what_it_forgets(draw: st.DataObject) -> None:
    version = draw.draw(VERSIONS)
    epoch = draw.draw(st.sampled_from([-1, 0, 7]))
    offsets, topics, gone = {}, [], []
    for index in range(draw.draw(st.integers(0, 3))):
        partitions = []
        for number in range(draw.draw(st.integers(1, 3))):
            offsets[key(version, index), number] = offset = draw.draw(LONGS)
            partitions.append(
                fetch.FetchRequestFetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=1)
            )
        topics.append(fetch.FetchRequestFetchTopic(**topic_of(version, index), partitions=partitions))
        if version >= 7:
            gone.append(fetch.FetchRequestForgottenTopic(**topic_of(version, index), partitions=[8, 9]))
    message = fetch.FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        topics=topics,
        session_epoch=epoch if version >= 7 else -1,
        forgotten_topics_data=gone,
        rack_id="r1",
    )
    frame = kw.encode_request(message, version, client_id=draw.draw(st.sampled_from([None, "", "billing"])))
    asked = read_fetch_request(frame)
    forgotten = [(key(version, index), number) for index in range(len(gone)) for number in (8, 9)]
    assert asked == FetchAsked(version < 7 or epoch <= 0, offsets, forgotten)
    for end in range(len(frame)):
        read_fetch_request(frame[:end])


@pytest.mark.parametrize("version", [11, 12, 14, 15, NEWEST])
def test_requests_of_followers_are_left_out(version: int) -> None:
    state = fetch.FetchRequestReplicaState(replica_id=2, replica_epoch=1)
    replica = {"replica_id": 2} if version < 15 else {"replica_state": state}
    message = fetch.FetchRequest(max_wait_ms=500, min_bytes=1, topics=[], **replica)
    assert read_fetch_request(kw.encode_request(message, version)) is None
    if version >= 12:
        message.cluster_id = "MkU3OEVBNTcwNTJENDM2Qg"
        assert read_fetch_request(kw.encode_request(message, version)) is None


def test_a_session_keeps_what_later_requests_leave_out() -> None:
    session = FetchSession()
    a, b, c = ("orders", 0), ("orders", 1), ("orders", 2)
    session.ask(FetchAsked(True, {a: 10, b: 20}, []))
    session.ask(FetchAsked(False, {b: 25, c: 30}, [a]))
    assert session.offsets == {b: 25, c: 30}
    session.ask(FetchAsked(True, {a: 11}, []))
    assert session.offsets == {a: 11}


def seen(number: int, error: int = 0, end: int = 100) -> FetchedPartition:
    return FetchedPartition(("orders", number), error, end, 0, 0)


def test_a_partition_passes_once_a_second_unless_it_jumps() -> None:
    session = FetchSession()
    session.ask(FetchAsked(True, {("orders", 0): 50}, []))
    assert session.due([seen(0)], 0) == [seen(0)]
    assert session.due([seen(0), seen(1)], SECOND_NS // 2) == [seen(1)]
    assert session.due([seen(0, error=1)], SECOND_NS // 2) == [seen(0, error=1)]
    session.ask(FetchAsked(False, {("orders", 0): 3}, []))
    assert session.due([seen(0, error=1)], SECOND_NS // 2 + 1) == [seen(0, error=1)], "read again from 3"
    assert session.due([seen(0, error=1)], SECOND_NS) == []
    assert session.due([seen(0, error=1)], 2 * SECOND_NS) == [seen(0, error=1)]


def test_a_session_of_many_partitions_passes_a_bounded_rate() -> None:
    session = FetchSession()
    session.ask(FetchAsked(True, {("orders", number): 0 for number in range(1_000)}, []))
    every = [seen(number) for number in range(1_000)]
    passed = sum(len(session.due(every, second * SECOND_NS)) for second in range(40))
    assert passed == 4 * 1_000
