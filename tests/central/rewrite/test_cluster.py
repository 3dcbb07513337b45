"""The brokers and topics of the rewrite's cluster."""

from __future__ import annotations

from kcoord_wire import messages as m
from kcoord_wire.central.rewrite.events import RewriteError
from tests.support.rewrite_brokers import (
    ORDERS,
    Consumer,
    World,
)


def test_metadata_has_brokers_topics_and_leaders() -> None:
    world = World(1, 2, topics=ORDERS)
    answer = Consumer(world).ask(m.MetadataRequest(topics=[]))
    assert [(broker.node_id, broker.host, broker.port) for broker in answer.brokers] == [
        (1, "host1", 9092),
        (2, "host2", 9092),
    ]
    assert [(topic.name, len(topic.partitions)) for topic in answer.topics] == [("orders", 3)]
    assert {partition.leader_id for partition in answer.topics[0].partitions} == {1}
    wrong = Consumer(world).ask(m.MetadataRequest(topics=[m.MetadataRequestTopic(name="a/b")]))
    assert [topic.error_code for topic in wrong.topics] == [RewriteError.UNKNOWN_TOPIC_OR_PARTITION]
