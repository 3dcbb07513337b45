"""Fetch and ListOffsets: what is asked for, and what each response does to the positions."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from kcoord_wire import messages as m
from kcoord_wire.consumer.brokers import Leader, Metadata
from kcoord_wire.consumer.errors import ConsumerError, CorruptRecordsError, TopicError
from kcoord_wire.consumer.fetching import (
    NEWEST_FETCH,
    Asked,
    ask_for_offsets,
    ask_for_records,
    newest_fetch,
    take_offsets,
    take_records,
)
from kcoord_wire.consumer.positions import EARLIEST, Positions
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.records import Record, encode_batch
from tests.support.consumers import partitions, settings

A, B = sorted(partitions(0, 1))
TOPIC_ID = uuid.UUID(int=7)
SETTINGS = settings("h:1", isolation_level="read_committed", max_partition_fetch_bytes=1_000)
DATA = encode_batch([Record(value=b"a")], base_offset=5)


def cluster(*, has_ids: bool = True) -> Metadata:
    metadata = Metadata(addresses={1: ("h", 1)}, counts={"orders": 2})
    metadata._leaders.update({A: Leader(1, 3), B: Leader(1, 4)})
    if has_ids:
        metadata.topic_ids["orders"] = TOPIC_ID
    return metadata


def standing(offset: int = 5) -> Positions:
    positions = Positions("earliest")
    positions.assign([A, B])
    positions.announce([A, B])
    positions.start({A: offset, B: offset})
    return positions


def fetch(positions: Positions, version: int = NEWEST_FETCH) -> Asked:
    return ask_for_records([positions.state(A)], cluster(), SETTINGS, version)


def fetched(error: int = 0, records: bytes | None = None, *, index: int = 0, **fields: Any) -> m.FetchResponse:
    part = m.FetchResponsePartitionData(partition_index=index, error_code=error, records=records, **fields)
    return m.FetchResponse(
        responses=[m.FetchResponseFetchableTopicResponse(topic="orders", topic_id=TOPIC_ID, partitions=[part])]
    )


def test_a_fetch_names_offset_and_epochs() -> None:
    positions = standing()
    positions.state(A).leader_epoch = 2
    request = fetch(positions).message
    assert (request.session_id, request.session_epoch, request.isolation_level) == (0, -1, 1)
    [topic] = request.topics
    [part] = topic.partitions
    assert (topic.topic, topic.topic_id) == ("orders", TOPIC_ID)
    assert (part.fetch_offset, part.current_leader_epoch, part.last_fetched_epoch) == (5, 3, 2)
    assert part.partition_max_bytes == 1_000
    assert fetch(positions, 11).message.topics[0].partitions[0].last_fetched_epoch == -1


def test_topics_without_ids_are_fetched_by_name() -> None:
    states = list(standing())
    assert (newest_fetch(states, cluster()), newest_fetch(states, cluster(has_ids=False))) == (NEWEST_FETCH, 12)


@pytest.mark.parametrize("version", [12, NEWEST_FETCH])
def test_records_wait_for_the_application(version: int) -> None:
    positions = standing()
    assert not take_records(fetch(positions, version), fetched(records=DATA), positions, SETTINGS)
    assert [record.value for record in positions.next_records(5)] == [b"a"]


STALE = [
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_SERVER_ERROR,
    999,
]


@pytest.mark.parametrize("error", STALE)
def test_errors_after_which_metadata_is_asked_for(error: int) -> None:
    positions = standing()
    assert take_records(fetch(positions), fetched(error), positions, SETTINGS)
    assert positions.failures == []
    assert positions.state(A).is_fetchable


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, TopicError),
        (ErrorCode.CORRUPT_MESSAGE, CorruptRecordsError),
    ],
)
def test_errors_that_the_application_gets(error: int, failure: type[ConsumerError]) -> None:
    positions = standing()
    assert take_records(fetch(positions), fetched(error), positions, SETTINGS)
    assert [type(each) for each in positions.failures] == [failure]


def test_an_offset_out_of_range_is_looked_up() -> None:
    positions = standing()
    assert not take_records(fetch(positions), fetched(ErrorCode.OFFSET_OUT_OF_RANGE), positions, SETTINGS)
    assert positions.state(A).reset_to == EARLIEST


def test_a_diverging_epoch_moves_the_position_back() -> None:
    positions = standing()
    diverging = m.FetchResponseEpochEndOffset(epoch=1, end_offset=4)
    assert not take_records(fetch(positions), fetched(diverging_epoch=diverging), positions, SETTINGS)
    assert (positions.state(A).offset, positions.state(A).leader_epoch) == (4, 1)


def test_a_response_for_a_past_position_changes_nothing() -> None:
    for change in (
        lambda positions: positions.state(A).move(9),
        lambda positions: positions.drop([A]),
        lambda positions: (positions.drop([A]), positions.assign([A]), positions.start({A: 5})),
    ):
        positions = standing()
        asked = fetch(positions)
        change(positions)
        for response in (fetched(records=DATA), fetched(ErrorCode.OFFSET_OUT_OF_RANGE)):
            take_records(asked, response, positions, SETTINGS)
        assert positions.next_records(5) == []
        assert all(state.reset_to is None for state in positions)


def test_partitions_that_were_not_asked_for_are_ignored() -> None:
    positions = standing()
    take_records(fetch(positions), fetched(records=DATA, index=1), positions, SETTINGS)
    strange = fetched(records=DATA)
    strange.responses[0].topic_id = uuid.UUID(int=8)
    take_records(fetch(positions), strange, positions, SETTINGS)
    assert positions.next_records(5) == []


def looked_up(*parts: m.ListOffsetsResponseListOffsetsPartitionResponse) -> m.ListOffsetsResponse:
    topic = m.ListOffsetsResponseListOffsetsTopicResponse(name="orders", partitions=list(parts))
    return m.ListOffsetsResponse(topics=[topic])


@pytest.mark.parametrize(
    ("answer", "offset", "again"),
    [
        ({"offset": 8, "leader_epoch": 2}, 8, False),
        ({"offset": -1}, None, True),
        ({"error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER}, None, True),
        ({"error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED}, None, True),
        ({"partition_index": 7, "offset": 8}, None, True),
    ],
)
def test_offsets_are_looked_up(answer: dict[str, int], offset: int | None, again: bool) -> None:
    positions = standing(-1)
    asked = ask_for_offsets([positions.state(A)], cluster(), SETTINGS)
    [part] = asked.message.topics[0].partitions
    assert (part.partition_index, part.timestamp, part.current_leader_epoch) == (0, EARLIEST, 3)
    response = looked_up(m.ListOffsetsResponseListOffsetsPartitionResponse(**{"partition_index": 0, **answer}))
    assert take_offsets(asked, response, positions) is again
    assert positions.state(A).offset == offset
    assert bool(positions.failures) is (answer.get("error_code") == ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def test_a_lookup_for_a_past_position_changes_nothing() -> None:
    positions = standing(-1)
    asked = ask_for_offsets([positions.state(A)], cluster(), SETTINGS)
    positions.state(A).move(3)
    response = looked_up(m.ListOffsetsResponseListOffsetsPartitionResponse(partition_index=0, offset=8))
    assert not take_offsets(asked, response, positions)
    assert positions.state(A).offset == 3
