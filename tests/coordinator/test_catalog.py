"""The topics that exist: names, ids, partitions."""

from __future__ import annotations

import uuid

import pytest

from kcoord_wire.coordinator.topics.catalog import Catalog
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.broker import BROKERS


def test_a_topic_is_found_by_name_and_by_id() -> None:
    catalog = Catalog("cluster", BROKERS)
    topic = catalog.create("orders", 2, {"retention.ms": "5"})
    assert catalog.named("orders") is catalog.with_id(topic.id) is topic
    assert catalog.find("orders", uuid.UUID(int=0), by_id=False) is catalog.find("", topic.id, by_id=True) is topic
    assert list(catalog) == [topic]
    assert (len(topic.logs), topic.configs, catalog.partitions) == (2, {"retention.ms": "5"}, 2)


def test_a_topic_that_is_created_again_has_another_id() -> None:
    catalog = Catalog("cluster", BROKERS)
    first = catalog.create("orders", 1)
    assert catalog.delete("orders") == [first]
    second = catalog.create("orders", 1)
    assert second.id != first.id
    assert catalog.with_id(first.id) is None
    assert catalog.find("", first.id, by_id=True) is ErrorCode.UNKNOWN_TOPIC_ID


def test_clusters_of_other_names_have_other_topic_ids() -> None:
    assert (
        Catalog("a", BROKERS).create("orders", 1).id
        == Catalog("a", BROKERS).create("orders", 1).id
        != Catalog("b", BROKERS).create("orders", 1).id
    )


def test_a_topic_that_does_not_exist_cannot_be_deleted() -> None:
    with pytest.raises(KeyError):
        Catalog("cluster", BROKERS).delete("orders")
