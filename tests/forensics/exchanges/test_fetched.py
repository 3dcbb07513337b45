"""Fetch and ListOffsets as sightings: sessions, ids, cuts, what passes, and that batches make no difference."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire.forensics.model import SightingKind
from kcoord_wire.messages import fetch, list_offsets, metadata
from tests.support.wire_samples import Talk, batch, canonical, cut_anywhere, match_all, mixed

TOPIC_ID = uuid.UUID(int=7)
EPOCH = 3
SECOND_NS = 1_000_000_000


def wanted(offsets: dict[int, int], *, full: bool = True, by_id: bool = False) -> Any:
    topic = {"topic_id": TOPIC_ID} if by_id else {"topic": "orders"}
    partitions = [
        fetch.FetchRequestFetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=1)
        for number, offset in offsets.items()
    ]
    topics = [fetch.FetchRequestFetchTopic(**topic, partitions=partitions)] if offsets else []
    return fetch.FetchRequest(max_wait_ms=500, min_bytes=1, topics=topics, session_epoch=0 if full else EPOCH)


def got(ends: dict[int, int], *, error: int = 0, by_id: bool = False, records: bytes = b"r" * 500) -> Any:
    topic = {"topic_id": TOPIC_ID} if by_id else {"topic": "orders"}
    partitions = [
        fetch.FetchResponsePartitionData(
            partition_index=number, error_code=error, high_watermark=end, log_start_offset=2, records=records
        )
        for number, end in ends.items()
    ]
    topics = [fetch.FetchResponseFetchableTopicResponse(**topic, partitions=partitions)] if ends else []
    return fetch.FetchResponse(session_id=5, responses=topics)


def seen(talk: Talk, step_ns: int = SECOND_NS, seed: int | None = None) -> list[dict[str, Any]]:
    """The FETCHED rows of a connection whose frames come one step after the other."""
    rng = random.Random(seed)
    frames = mixed([talk], rng)
    for frame in frames:
        frame.time_ns = step_ns * frame.seq
    batches = [batch(frames)] if seed is None else cut_anywhere(frames, rng)
    return [row for row in match_all(batches)[1] if row["kind"] == SightingKind.FETCHED]


def numbers(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(r["partition"], r["fetch_offset"], r["end_offset"], r["start_offset"], r["error_code"]) for r in rows]


def talk_of(*pairs: tuple[Any, Any], version: int = 12) -> Talk:
    talk = Talk(1)
    for number, (asked, answered) in enumerate(pairs):
        talk.ask(asked, version, number)
        talk.answer(answered, version, number)
    return talk


def test_a_session_knows_what_later_requests_leave_out() -> None:
    rows = seen(
        talk_of(
            (wanted({0: 10, 1: 20}), got({0: 15, 1: 20})),
            (wanted({0: 15}, full=False), got({1: 23})),
            (wanted({}, full=False), got({})),
            (wanted({1: 23}, full=False), got({0: 16, 1: 23})),
        )
    )
    assert numbers(rows) == [
        (0, 10, 15, 2, 0),
        (1, 20, 20, 2, 0),
        (1, 20, 23, 2, 0),
        (0, 15, 16, 2, 0),
        (1, 23, 23, 2, 0),
    ]
    assert {(row["topic"], row["topic_id"], row["api"], row["client_id"]) for row in rows} == {
        ("orders", None, "Fetch", "client")
    }
    assert [row["time_ns"] for row in rows] == [second * SECOND_NS for second in (1, 1, 3, 7, 7)]


def test_a_partition_has_a_row_a_second() -> None:
    pairs = [(wanted({0: number}, full=number == 0), got({0: 100})) for number in range(100)]
    rows = seen(talk_of(*pairs), step_ns=SECOND_NS // 40)
    assert [row["fetch_offset"] for row in rows] == [0, 20, 40, 60, 80]


def test_an_offset_out_of_range_is_a_row_at_once() -> None:
    pairs = [(wanted({0: 900}), got({0: 900})), (wanted({0: 900}, full=False), got({0: -1}, error=1))]
    assert [row["error_code"] for row in seen(talk_of(*pairs), step_ns=1)] == [0, 1]


def test_a_topic_id_is_named_by_metadata() -> None:
    talk = Talk(1)
    topic = metadata.MetadataResponseTopic(name="orders", topic_id=TOPIC_ID, partitions=[])
    talk.ask(kw.MetadataRequest(topics=None), 12, 99)
    talk.answer(kw.MetadataResponse(topics=[topic]), 12, 99)
    talk.ask(wanted({0: 1}, by_id=True), 16, 1)
    talk.answer(got({0: 2}, by_id=True), 16, 1)
    [row] = seen(talk)
    assert (row["topic"], row["topic_id"]) == ("orders", TOPIC_ID.hex)


def test_a_response_without_its_end_shows_what_it_has() -> None:
    talk = Talk(1)
    talk.ask(wanted({0: 1, 1: 2}), 12, 1)
    whole = kw.encode_response(got({0: 5, 1: 6}), 12, correlation_id=1)
    talk.raw("response", whole[:400], "600 of its bytes were not captured", 600)
    assert numbers(seen(talk)) == [(0, 1, 5, 2, 0)]


def test_followers_and_unanswered_requests_have_no_rows() -> None:
    follower = wanted({0: 1})
    follower.replica_id = 2
    talk = talk_of((follower, got({0: 5})))
    talk.ask(wanted({0: 1}), 12, 7)
    assert seen(talk) == []


@pytest.mark.parametrize("seed", range(5))
def test_batches_make_no_difference(seed: int) -> None:
    pairs = [(wanted({n % 3: n}, full=n % 10 == 0), got({n % 3: n + 5, (n + 1) % 3: n})) for n in range(40)]
    assert canonical(seen(talk_of(*pairs), seed=seed)) == canonical(seen(talk_of(*pairs)))


def listed(timestamp: int, offset: int, *, error: int = 0, isolation: int = 0) -> tuple[Any, Any]:
    asked = list_offsets.ListOffsetsRequestListOffsetsPartition(partition_index=4, timestamp=timestamp)
    found = list_offsets.ListOffsetsResponseListOffsetsPartitionResponse(
        partition_index=4, error_code=error, timestamp=-1, offset=offset
    )
    return (
        list_offsets.ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation,
            topics=[list_offsets.ListOffsetsRequestListOffsetsTopic(name="orders", partitions=[asked])],
        ),
        list_offsets.ListOffsetsResponse(
            topics=[list_offsets.ListOffsetsResponseListOffsetsTopicResponse(name="orders", partitions=[found])]
        ),
    )


def test_ends_and_beginnings_are_seen_in_list_offsets() -> None:
    talk = talk_of(
        listed(-1, 70), listed(-2, 3), listed(1_000, 8), listed(-1, 60, isolation=1), listed(-1, -1, error=6), version=7
    )
    rows = seen(talk)
    assert numbers(rows) == [(4, None, 70, None, 0), (4, None, -1, 3, 0), (4, None, -1, None, 6)]
    assert {row["api"] for row in rows} == {"ListOffsets"}
    assert len(seen(talk_of(*[listed(-1, 70)] * 9, version=7), step_ns=SECOND_NS // 10)) == 2
    talk.raw("request", kw.encode_request(listed(-1, 5)[0], 7, correlation_id=50)[:-3])
    talk.answer(listed(-1, 5)[1], 7, 50)
    assert len(seen(talk)) == 3
