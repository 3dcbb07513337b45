"""What Kafka Connect and Streams put into byte fields: bytes of their own classes are read and written the same."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire.codec.backend import ProgramClass
from tests.support.each import each

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "embedded.tsv"
ROWS = [line.split("\t") for line in GOLDEN.read_text("utf-8").splitlines()]
VECTORS = [(name, int(version), bytes.fromhex(text)) for name, version, text in ROWS]


def first(name: str, version: int) -> bytes:
    """The vector that holds something of everything; the one after it is empty."""
    return next(raw for each, number, raw in VECTORS if (each, number) == (name, version))


def test_every_version_has_vectors() -> None:
    for name in sorted({name for name, _, _ in VECTORS}):
        assert {version for each, version, _ in VECTORS if each == name} == set(kw.registry[name].valid_versions)


@each("name, version, raw", VECTORS)
def test_bytes_are_read_and_written_the_same(program_class: ProgramClass, name: str, version: int, raw: bytes) -> None:
    codec = kw.registry[name]
    size = 2 if name.startswith("Connect") else 4
    assert int.from_bytes(raw[:size], "big") == version
    program = program_class(codec.plan(version), codec.classes)
    body = raw[2:] if size == 2 else raw  # the version of Streams is a field
    assert program.encode(program.decode(body)) == body
    if size == 2:
        assert kw.encode_prefixed(kw.decode_prefixed(codec.cls, raw)[1], version) == raw


@pytest.mark.parametrize("version", [0, 1, 2])
def test_an_assignment_of_connect(version: int) -> None:
    read: kw.ConnectProtocolAssignment = kw.decode_prefixed(
        kw.ConnectProtocolAssignment, first("ConnectProtocolAssignment", version)
    )[1]
    assert (read.error, read.leader, read.leader_url) == (0, "worker-1", "http://worker-1:8083/")
    assert {each.connector: each.tasks for each in read.assignment or ()} == {"sink": [-1, 0, 2], "quelle-é": [1]}
    if version:
        assert {each.connector: each.tasks for each in read.revoked or ()} == {"old": [-1, 7]}
        assert (read.config_offset, read.delay) == (42, 300_000)


def test_the_metadata_of_a_connect_worker_hold_its_assignment() -> None:
    read: kw.ConnectProtocolMetadata = kw.decode_prefixed(
        kw.ConnectProtocolMetadata, first("ConnectProtocolMetadata", 2)
    )[1]
    assert (read.url, read.config_offset) == ("http://worker-1:8083/", 42)
    assert read.allocation == first("ConnectProtocolAssignment", 2)


@pytest.mark.parametrize("version", range(1, 12))
def test_a_subscription_of_streams(version: int) -> None:
    read = kw.decode(kw.StreamsSubscriptionInfo, first("StreamsSubscriptionInfo", version), version)
    assert read.version == version
    assert read.process_id == uuid.UUID("01020304-0506-0708-8899-aabbccddeeff")
    assert read.user_end_point == (b"host-1:8080" if version > 1 else b"")
    tasks: set[Any] = {(each.topic_group_id, each.partition) for each in (*read.prev_tasks, *read.standby_tasks)}
    for group in read.task_offset_sums:
        parts = group.partition_to_offset_sum or [group]
        tasks |= {(group.topic_group_id, each.partition) for each in parts}
    assert tasks == {(0, 1), (0, 2), (2, 3)}
    assert [(tag.key, tag.value) for tag in read.client_tags] == ([(b"zone", "eu-é".encode())] if version > 10 else [])


@pytest.mark.parametrize("version", range(1, 12))
def test_an_assignment_of_streams(version: int) -> None:
    read = kw.decode(kw.StreamsAssignmentInfo, first("StreamsAssignmentInfo", version), version)
    assert [(each.topic_group_id, each.partition) for each in read.active_tasks] == [(0, 1), (0, 2)]
    [standby] = read.standby_tasks
    assert [(each.topic, each.partition) for each in standby.partitions] == [("orders", 3)]
    name = b"".join(unit.to_bytes(2, "big") for unit in standby.topology_name).decode("utf-16-be")
    assert name == ("é😀" if version > 9 else "")
    topics = {each.number: each.topic for each in read.topics}
    active = {(each.host, part.topic) for each in read.partitions_by_host for part in each.partitions}
    for numbered in (*read.active_partitions_by_host, *read.standby_partitions_by_host):
        active |= {(numbered.host, topics[part.topic_number]) for part in numbered.partitions}
    expected = {("host-1", "orders")} if version > 1 else set()
    assert active == (expected | {("host-2", "payments")} if version > 5 else expected)
    assert read.next_rebalance_ms == (1_800_000_000_000 if version > 6 else 2**63 - 1)
