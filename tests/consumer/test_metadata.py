"""The cluster as the brokers describe it."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping

import pytest

from kcoord_wire import messages as m
from kcoord_wire.assignors import TopicPartition
from kcoord_wire.consumer.brokers import Leader, Metadata, metadata_request
from kcoord_wire.protocol.error_codes import ErrorCode


def answer(
    leaders: Mapping[str, list[tuple[int, int]]],
    *,
    brokers: tuple[int, ...] = (1, 2),
    ids: Mapping[str, int] | None = None,
    errors: Mapping[str, ErrorCode] | None = None,
    internal: tuple[str, ...] = (),
) -> m.MetadataResponse:
    """A response with each topic's leaders, and their epochs, in the order of its partitions."""
    topics = [
        m.MetadataResponseTopic(
            name=name,
            topic_id=uuid.UUID(int=(ids or {}).get(name, 0)),
            is_internal=name in internal,
            partitions=[
                m.MetadataResponsePartition(partition_index=index, leader_id=node, leader_epoch=epoch)
                for index, (node, epoch) in enumerate(parts)
            ],
        )
        for name, parts in leaders.items()
    ]
    topics += [m.MetadataResponseTopic(name=name, error_code=error) for name, error in (errors or {}).items()]
    known = [m.MetadataResponseBroker(node_id=node, host=f"h{node}", port=node) for node in brokers]
    return m.MetadataResponse(brokers=known, topics=topics)


A0 = TopicPartition("a", 0)


def test_it_knows_addresses_topics_and_leaders() -> None:
    metadata = Metadata()
    assert metadata.update(answer({"a": [(1, 5), (2, 0)]}, ids={"a": 7}), is_all=False) == (True, [])
    assert metadata.addresses == {1: ("h1", 1), 2: ("h2", 2)}
    assert (metadata.counts, metadata.topic_ids) == ({"a": 2}, {"a": uuid.UUID(int=7)})
    assert metadata.leader(A0) == Leader(1, 5)
    assert metadata.leader(TopicPartition("a", 2)) is None


@pytest.mark.parametrize(
    ("response", "complete"),
    [
        (answer({}, brokers=()), False),
        (answer({"a": [(-1, 5)]}), False),
        (answer({"a": [(3, 5)]}), False),
        (answer({}, errors={"a": ErrorCode.LEADER_NOT_AVAILABLE}), False),
        (answer({}, errors={"a": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}), False),
        (answer({}, errors={"a": ErrorCode.TOPIC_AUTHORIZATION_FAILED}), True),
    ],
)
def test_what_is_missing_is_asked_for_again(response: m.MetadataResponse, complete: bool) -> None:
    metadata = Metadata()
    assert metadata.update(response, is_all=False)[0] is complete
    assert metadata.leader(A0) is None


def test_topics_that_may_not_be_read_are_reported() -> None:
    _, failures = Metadata().update(answer({}, errors={"a": ErrorCode.TOPIC_AUTHORIZATION_FAILED}), is_all=False)
    assert [(each.topic, each.error) for each in failures] == [("a", ErrorCode.TOPIC_AUTHORIZATION_FAILED)]


def test_an_older_epoch_does_not_replace_a_leader() -> None:
    metadata = Metadata()
    metadata.update(answer({"a": [(1, 5)]}), is_all=False)
    metadata.update(answer({"a": [(2, 4)]}), is_all=False)
    assert metadata.leader(A0) == Leader(1, 5)
    metadata.update(answer({"a": [(2, 6)]}), is_all=False)
    assert metadata.leader(A0) == Leader(2, 6)
    metadata.update(answer({"a": [(1, -1)]}), is_all=False)
    assert metadata.leader(A0) == Leader(1, -1), "a broker that knows no epochs is believed"


def test_a_topic_that_was_created_anew_begins_with_new_epochs() -> None:
    metadata = Metadata()
    metadata.update(answer({"a": [(1, 5)]}, ids={"a": 7}), is_all=False)
    metadata.update(answer({"a": [(2, 0)]}, ids={"a": 8}), is_all=False)
    assert metadata.leader(A0) == Leader(2, 0)


def test_topics_vanish() -> None:
    metadata = Metadata()
    metadata.update(answer({"a": [(1, 5)], "b": [(1, 5)]}), is_all=True)
    metadata.update(answer({"b": [(1, 5)]}), is_all=True)
    assert metadata.counts == {"b": 1}
    metadata.update(answer({}, errors={"b": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}), is_all=False)
    assert metadata.counts == {}


def test_a_pattern_matches_whole_names() -> None:
    metadata = Metadata()
    metadata.update(answer({"ab": [], "b": [], "__ab": []}, internal=("__ab",)), is_all=True)
    assert metadata.matching(re.compile("a?b"), exclude_internal=True) == ["ab", "b"]
    assert metadata.matching(re.compile(".*ab"), exclude_internal=True) == ["ab"]
    assert metadata.matching(re.compile(".*ab"), exclude_internal=False) == ["__ab", "ab"]


def test_requests_name_topics_or_ask_for_all() -> None:
    assert metadata_request(None, may_create=True).topics is None
    assert not metadata_request(None, may_create=True).allow_auto_topic_creation
    request = metadata_request({"b", "a"}, may_create=True)
    assert [topic.name for topic in request.topics or ()] == ["a", "b"]
    assert request.allow_auto_topic_creation
