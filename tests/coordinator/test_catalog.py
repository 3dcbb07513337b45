"""The topics that exist: names, ids, partitions."""

from __future__ import annotations

import uuid

import pytest

from kcoord_wire.coordinator.core.apis import Refused
from kcoord_wire.coordinator.topics.catalog import Catalog
from kcoord_wire.coordinator.topics.configs import (
    EFFECTIVE,
    GROUP_CONFIGS,
    TOPIC_CONFIGS,
    check_configs,
    read_value,
)
from kcoord_wire.coordinator.topics.shared_logs import duration_of
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


# ---- The tables of configs: every default is allowed, and what is refused has Kafka's text


@pytest.mark.parametrize("table", [TOPIC_CONFIGS, GROUP_CONFIGS])
def test_every_default_is_allowed(table: dict[str, object]) -> None:
    check_configs(TOPIC_CONFIGS, "topic", {name: config.default for name, config in TOPIC_CONFIGS.items()})
    assert list(table) == sorted(table)
    assert set(TOPIC_CONFIGS) >= EFFECTIVE


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("retention.ms", "-1", -1),
        ("retention.ms", " 7 ", 7),
        ("min.cleanable.dirty.ratio", "0.25", 0.25),
        ("preallocate", "TRUE", True),
        ("cleanup.policy", "compact,delete", ["compact", "delete"]),
        ("cleanup.policy", "", []),
        ("message.timestamp.type", "LogAppendTime", "LogAppendTime"),
    ],
)
def test_values(name: str, value: str, read: object) -> None:
    check_configs(TOPIC_CONFIGS, "topic", {name: value})
    assert read_value(TOPIC_CONFIGS[name], value) == read


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("retention.msx", "1", "Unknown topic config name: retention.msx"),
        ("retention.ms", "-2", "Invalid value -2 for configuration retention.ms: Value must be at least -1"),
        ("retention.ms", "1_000", "Not a number of type LONG"),
        ("retention.ms", "9223372036854775808", "Not a number of type LONG"),
        ("max.message.bytes", "2147483648", "Not a number of type INT"),
        ("min.cleanable.dirty.ratio", "1.1", "no more than 1"),
        ("min.cleanable.dirty.ratio", "nan", "at least 0"),
        ("preallocate", "yes", "either true or false"),
        ("cleanup.policy", "compact,forget", "must be one of: compact, delete"),
        ("compression.type", "GZIP", "must be one of"),
        ("leader.replication.throttled.replicas", "x" * 40_000, "too long"),
    ],
)
def test_what_is_refused(name: str, value: str, text: str) -> None:
    with pytest.raises(Refused) as caught:
        check_configs(TOPIC_CONFIGS, "topic", {name: value})
    assert caught.value.error is ErrorCode.INVALID_CONFIG
    assert text in caught.value.detail
    assert len(caught.value.detail) < 1_000


@pytest.mark.parametrize(
    ("text", "ms"),
    [("by_duration:PT1H", 3_600_000), ("by_duration:P1DT1.5S", 86_401_500), ("by_duration:pt2m", 120_000)],
)
def test_durations_that_share_groups_may_begin_at(text: str, ms: int) -> None:
    check_configs(GROUP_CONFIGS, "group", {"share.auto.offset.reset": text})
    assert duration_of(text) == ms


@pytest.mark.parametrize(
    "text", ["EARLIEST", "none", "", "by_duration:P", "by_duration:PT", "by_duration:-PT1H", "BY_DURATION:PT1H"]
)
def test_where_no_share_group_may_begin(text: str) -> None:
    with pytest.raises(Refused):
        check_configs(GROUP_CONFIGS, "group", {"share.auto.offset.reset": text})
