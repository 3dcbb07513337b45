"""The rewrite's nodes in ZooKeeper: names, shards, and what is in them."""

from __future__ import annotations

import json

import pytest

from kcoord_wire.central.rewrite.layout import (
    ConsumerRecord,
    GroupMetadata,
    is_legal_name,
    metadata_path,
    parse_metadata,
    parse_owners,
    parse_topic,
    topic_record,
)

RECORD = GroupMetadata(
    3, "range", {"c-1": ConsumerRecord(6_000, ("orders", "payments")), "c-2": ConsumerRecord(7_000, ())}, {"orders": 4}
)


def test_group_metadata_is_read_as_it_was_written() -> None:
    assert parse_metadata(RECORD.to_bytes()) == RECORD
    assert parse_metadata(GroupMetadata(7).to_bytes()) == GroupMetadata(7)


@pytest.mark.parametrize(
    "change",
    [
        {"generation": -1},
        {"generation": True},
        {"generation": "3"},
        {"generation": None},
        {"strategy": "mine"},
        {"consumers": []},
        {"consumers": {"c": {}}},
        {"consumers": {"c": {"session_timeout_ms": "1", "topics": []}}},
        {"consumers": {"c": {"session_timeout_ms": 1, "topics": [1]}}},
        {"consumers": {"c": {"session_timeout_ms": 1, "topics": ["a/b"]}}},
        {"partitions": {"orders": -1}},
        {"partitions": 3},
    ],
)
def test_other_group_metadata_is_rejected(change: dict[str, object]) -> None:
    value = json.loads(RECORD.to_bytes()) | change
    with pytest.raises(ValueError, match="not a group's metadata"):
        parse_metadata(json.dumps(value).encode())


@pytest.mark.parametrize("data", [b"", b"[" * 100_000, b"\xff", b"3", b"{}", b"null"])
def test_data_of_another_form_is_rejected(data: bytes) -> None:
    for parse in (parse_metadata, parse_owners, parse_topic):
        with pytest.raises(ValueError):  # noqa: PT011  # each has a text of its own, json's among them
            parse(data)


def test_owners_of_shards_are_brokers_or_none() -> None:
    assert parse_owners(b"[1, null, 2]") == [1, None, 2]
    for data in (b"[]", b"[-1]", b'["1"]', b"[1.5]", b"[true]"):
        with pytest.raises(ValueError, match="not the coordinators"):
            parse_owners(data)


def test_topics_are_read_as_kafka_0_8_writes_them() -> None:
    assert parse_topic(b'{"version":1,"partitions":{"1":[2,1],"0":[1,2]}}') == [[1, 2], [2, 1]]
    assert parse_topic(topic_record([[1], [2]])) == [[1], [2]]
    for data in (b'{"partitions":{"0":[1],"2":[1]}}', b'{"partitions":{"0":["1"]}}', b'{"partitions":[[1]]}'):
        with pytest.raises(ValueError, match="not a topic"):
            parse_topic(data)


@pytest.mark.parametrize("name", ["a", "A.b_c-1", "...", "x" * 249])
def test_names_of_kafka_0_8_are_legal(name: str) -> None:
    assert is_legal_name(name)
    assert metadata_path(3, name).count("/") == 4


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "a\n", "ä", "x" * 250, "a\0"])
def test_names_that_are_not_one_node_are_illegal(name: str) -> None:
    assert not is_legal_name(name)
