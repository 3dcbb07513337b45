"""What a request names is found in every api that is served."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any, get_args, get_type_hints

import pytest

import kcoord_wire as kw
from kcoord_wire.coordinator.core.apis import APIS, Api
from kcoord_wire.coordinator.core.named import topics_of, transactions_of

ID = uuid.UUID(int=7)
NO_TOPICS = {"name": {"JoinGroupRequestProtocol", "CreateTopicsRequestCreatableTopicConfig"}}
NAMES = ("topic", "name", "topic_id", "topic_names", "subscribed_topic_names", "resource_name")


def names_in(cls: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of the fields that name a topic, in which a part has this one alone."""
    for name, hint in get_type_hints(cls).items():
        item = hint
        while arguments := get_args(item):
            item = arguments[0]
        if is_dataclass(item):
            yield from names_in(item, (*path, name))
        elif name in NAMES:
            yield (*path, name)


def is_topic(path: tuple[str, ...]) -> bool:
    """Whether what a field names is a topic, and not a config, a protocol, or a resource of any kind but that."""
    return any("topic" in part for part in path[-2:]) or (path[-1] == "resource_name" and path[-2] == "resources")


def made(cls: Any, path: tuple[str, ...]) -> Any:
    """A request in which one field has a name, in lists of one item."""
    name, *rest = path
    if rest:
        item: Any = get_type_hints(cls)[name]
        while arguments := get_args(item):
            item = arguments[0]
        return cls(**{name: [made(item, tuple(rest))]})
    value: Any = ID if name == "topic_id" else ["orders"] if name.endswith("names") else "orders"
    return cls(**{name: value}, **({"resource_type": 2} if name == "resource_name" else {}))


PATHS = [(api, path) for api in APIS.values() for path in names_in(api.request) if is_topic(path)]


@pytest.mark.parametrize(("api", "path"), PATHS, ids=lambda each: ".".join(each) if isinstance(each, tuple) else "")
def test_a_topic_is_found_wherever_it_is_named(api: Api, path: tuple[str, ...]) -> None:
    assert [name for name, _ in topics_of(made(api.request, path), {ID: "orders"}.get)] == ["orders"]


def test_most_apis_name_topics() -> None:
    assert len({api.key for api, _ in PATHS}) > 15


def test_partitions_are_found_as_numbers_and_as_parts() -> None:
    as_parts = kw.ListOffsetsRequestListOffsetsTopic(
        name="a", partitions=[kw.ListOffsetsRequestListOffsetsPartition(partition_index=at) for at in (1, 2)]
    )
    assert list(topics_of(kw.ListOffsetsRequest(topics=[as_parts]), {}.get)) == [("a", [1, 2])]
    marker = kw.WriteTxnMarkersRequestWritableTxnMarker(
        topics=[kw.WriteTxnMarkersRequestWritableTxnMarkerTopic(name="b", partition_indexes=[3])]
    )
    assert list(topics_of(kw.WriteTxnMarkersRequest(markers=[marker]), {}.get)) == [("b", [3])]


def test_what_is_null_or_unknown_names_nothing() -> None:
    assert list(topics_of(kw.MetadataRequest(topics=None), {}.get)) == []
    assert list(topics_of(kw.ConsumerGroupHeartbeatRequest(subscribed_topic_regex="o.*"), {}.get)) == []
    unknown = kw.MetadataRequest(topics=[kw.MetadataRequestTopic(topic_id=ID, name=None)])
    assert list(topics_of(unknown, {}.get)) == []
    group = kw.DescribeConfigsRequestDescribeConfigsResource(resource_type=32, resource_name="billing")
    assert list(topics_of(kw.DescribeConfigsRequest(resources=[group]), {}.get)) == []


def test_transactional_ids() -> None:
    several = [kw.AddPartitionsToTxnRequestAddPartitionsToTxnTransaction(transactional_id=name) for name in "ab"]
    assert {*transactions_of(kw.AddPartitionsToTxnRequest(transactions=several))} >= {"a", "b"}
    assert list(transactions_of(kw.InitProducerIdRequest(transactional_id=None))) == []
    assert list(transactions_of(kw.ListTransactionsRequest(transactional_id_pattern="a.*"))) == []
