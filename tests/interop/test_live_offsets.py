"""A live Kafka broker: what its clients do is read from ``__consumer_offsets`` while it runs, and explained."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import confluent_kafka
import pyarrow as pa
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.model import GroupHistory
from kcoord_wire.forensics.records.reader import log_histories
from kcoord_wire.forensics.sources.live import TopicError, read_topic
from tests.data.consumer_groups.generate import PROPERTIES, Stage
from tests.data.consumer_groups.lives import Consumer
from tests.support.kafka_broker import KafkaBroker, make_topics

PARTITIONS = 4
ASSIGNORS = {"eager": "range", "cooperative": "cooperative-sticky"}
SETTINGS = {
    **PROPERTIES,
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


def histories_of(address: str) -> dict[str, GroupHistory]:
    histories = log_histories(pa.Table.from_batches(read_topic(address)))
    return {history.group.group_id: history for history in histories}


def groups_of(admin: AdminClient) -> set[str]:
    return {group.group_id for group in admin.list_consumer_groups().result(30).valid}


def rule(admin: AdminClient, operation: AclOperation, permission: AclPermissionType) -> None:
    """What everybody may or may not do with the topic of offsets, as soon as it takes effect."""
    everybody = ("User:*", "*", operation, permission)
    acl = AclBinding(ResourceType.TOPIC, "__consumer_offsets", ResourcePatternType.LITERAL, *everybody)
    for future in admin.create_acls([acl]).values():
        future.result(30)


def refusal(address: str, wanted: str) -> None:
    """Wait until reading is refused in these words."""
    said = "nothing"
    for _ in range(50):
        try:
            list(read_topic(address, patience_s=5))
        except TopicError as error:
            said = str(error)
            if wanted in said:
                return
        time.sleep(0.1)
    raise AssertionError(f"it said {said}")


def commit_in_transactions(address: str) -> None:
    """Three commits by transactions: one committed, one aborted, one that is never ended."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "transactions"})
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "transactional.id": "t"})
    producer.init_transactions(30)
    for offset, end in ((1, producer.commit_transaction), (2, producer.abort_transaction), (3, None)):
        producer.begin_transaction()
        place = confluent_kafka.TopicPartition("orders", 0, offset)
        producer.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), 30)
        if end is not None:
            end(30)
    consumer.close()


def test_a_live_broker(tmp_path: Path) -> None:
    with KafkaBroker(tmp_path / "live-offsets", SETTINGS) as broker, ExitStack() as stack:
        admin = AdminClient({"bootstrap.servers": broker.address})
        make_topics(broker.address, {"orders": PARTITIONS})
        stages = {name: Stage(broker.address, name, [], stack) for name in ASSIGNORS}
        members: dict[str, list[Consumer]] = {name: [] for name in ASSIGNORS}
        for number in ("1", "2"):
            for name, stage in stages.items():
                options: dict[str, Any] = {"session_timeout_ms": 10_000, "heartbeat_interval_ms": 500}
                options["partition_assignment_strategy"] = ASSIGNORS[name]
                members[name].append(stage.start(number, ["orders"], **options))
            for name, stage in stages.items():
                stage.settle(members[name], PARTITIONS)
        stages["eager"].leave(members["eager"].pop())
        stages["eager"].settle(members["eager"], PARTITIONS)
        groups = groups_of(admin)
        histories = histories_of(broker.address)
        assert groups_of(admin) == groups == set(histories) == set(ASSIGNORS), "reading has left nothing"
        commit_in_transactions(broker.address)
        (row,) = histories_of(broker.address)["transactions"].commits
        assert (row.first_offset, row.commits) == (1, 1), "an open transaction does not hold up reading"
        rule(admin, AclOperation.ALL, AclPermissionType.ALLOW)
        rule(admin, AclOperation.READ, AclPermissionType.DENY)
        refusal(broker.address, "not authorised to read __consumer_offsets: the user needs Describe and Read")
        rule(admin, AclOperation.DESCRIBE, AclPermissionType.DENY)
        refusal(
            broker.address, "shows no topic __consumer_offsets (no group has ever been used, or you may not see it)"
        )
    eager, cooperative = histories["eager"], histories["cooperative"]
    assert [(item.cause, item.client_id) for item in eager.rebalances] == [
        (Cause.NEW_MEMBER, "eager-1"),
        (Cause.NEW_MEMBER, "eager-2"),
        (Cause.MEMBER_LEFT, "eager-2"),
    ]
    assert [(item.cause, item.client_id) for item in cooperative.rebalances] == [
        (Cause.NEW_MEMBER, "cooperative-1"),
        (Cause.NEW_MEMBER, "cooperative-2"),
        (Cause.COOPERATIVE_FOLLOW_UP, "cooperative-1"),
    ]
    there = {life.client_id for life in cooperative.members if life.left_ns is None}
    assert there == {"cooperative-1", "cooperative-2"}
    assert {item.client_id for item in eager.ownership if item.to_ns is None} == {"eager-1"}
    assert all(item.evidence[-1].source.startswith("__consumer_offsets-") for item in eager.rebalances)
