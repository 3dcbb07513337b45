"""Unmodified AdminClients make, configure, grow and delete topics, of which groups forget what they have committed."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic

from tests.support.fixtures import StartCoordinator

SECONDS = 60


def outcome(futures: dict[Any, Any]) -> dict[Any, Any]:
    """What each part of a request has come to: its result, or the name of its error."""
    found: dict[Any, Any] = {}
    for name, future in futures.items():
        try:
            found[name] = future.result(SECONDS)
        except KafkaException as error:
            found[name] = error.args[0].name()
    return found


def test_topics_of_librdkafkas_admin(coordinator: StartCoordinator) -> None:
    c = coordinator()
    admin = AdminClient({"bootstrap.servers": c.address})
    new = [NewTopic("new", 3, 1, config={"retention.ms": "1000"}), NewTopic("three", 1, 3), NewTopic("a b", 1)]
    assert outcome(admin.create_topics(new)) == {
        "new": None,
        "three": "INVALID_REPLICATION_FACTOR",
        "a b": "TOPIC_EXCEPTION",
    }
    assert outcome(admin.create_partitions([NewPartitions("new", 5)])) == {"new": None}
    assert len(admin.list_topics("new", SECONDS).topics["new"].partitions) == 5

    wanted = [ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND)]
    resource = ConfigResource("topic", "new", incremental_configs=wanted)
    assert [*outcome(admin.incremental_alter_configs([resource])).values()] == [None]
    (configs,) = outcome(admin.describe_configs([ConfigResource("topic", "new")])).values()
    own = {name: entry.value for name, entry in configs.items() if entry.source == 1}
    assert own == {"cleanup.policy": "delete,compact", "retention.ms": "1000"}

    assert outcome(admin.delete_topics(["new", "nope"])) == {"new": None, "nope": "UNKNOWN_TOPIC_OR_PART"}
    assert set(admin.list_topics(timeout=SECONDS).topics) == {"orders"}


@pytest.mark.parametrize("by_client", [True, False])
def test_a_deleted_topics_offsets_are_forgotten(coordinator: StartCoordinator, by_client: bool, tmp_path: Any) -> None:
    c = coordinator(topics={"orders": 1, "bills": 1}, data_dir=tmp_path)
    settings = {"bootstrap.servers": c.address, "group.id": "billing"}
    places = [TopicPartition("orders", 0, 0), TopicPartition("bills", 0, 0)]
    consumer, admin = Consumer(settings), AdminClient({"bootstrap.servers": c.address})
    consumer.commit(offsets=places, asynchronous=False)
    if by_client:
        assert outcome(admin.delete_topics(["orders"])) == {"orders": None}
    else:
        c.delete_topic("orders")
    c.create_topic("orders", 1)
    assert [place.offset for place in consumer.committed(places, SECONDS)] == [-1001, 0]
    consumer.close()
    c.stop()
    again = coordinator(topics={"orders": 1, "bills": 1}, data_dir=tmp_path)
    consumer = Consumer({**settings, "bootstrap.servers": again.address})
    assert [place.offset for place in consumer.committed(places, SECONDS)] == [-1001, 0]
    consumer.close()


def test_topics_of_the_python_api(coordinator: StartCoordinator) -> None:
    c = coordinator()
    c.create_topic("new", 2, {"max.message.bytes": "100"})
    with pytest.raises(ValueError, match="Unknown topic config name: nonsense"):
        c.create_topic("other", 2, {"nonsense": "1"})
    with pytest.raises(KeyError):
        c.delete_topic("nope")
    c.delete_topic("new")
    c.create_topic("new", 2)
