"""The brokers and topics of the cluster, as Metadata answers them.

Laws:

* The topics are those that ZooKeeper has at that time. The leader of a partition is its first replica that lives.
"""

from __future__ import annotations

from kcoord_wire import messages as m
from kcoord_wire.central.rewrite.events import RewriteError
from kcoord_wire.central.rewrite.layout import is_legal_name, parse_topic
from kcoord_wire.central.rewrite.outbox import Outbox
from kcoord_wire.kernel.procedures import Procedure
from kcoord_wire.zookeeper.brokers import Brokers
from kcoord_wire.zookeeper.layout import BROKER_TOPICS, topic_path
from kcoord_wire.zookeeper.model import Node, Read, ReadChildren


class Cluster:
    """Answers Metadata.

    :param brokers: those of the cluster, and the registration of this one
    """

    def __init__(self, brokers: Brokers, outbox: Outbox) -> None:
        self._brokers = brokers
        self._outbox = outbox

    def metadata(self, connection: int, request: m.MetadataRequest) -> Procedure:
        """Answer Metadata 0: the brokers, and the topics asked for, of which none means all."""
        topics = [topic.name or "" for topic in request.topics or ()]
        if not topics:
            topics = list((yield ReadChildren(BROKER_TOPICS)) or ())
        legal = [topic for topic in topics if is_legal_name(topic)]
        nodes: list[Node | None] = yield [Read(topic_path(topic)) for topic in legal]
        found = dict(zip(legal, nodes, strict=True))
        response = m.MetadataResponse(
            brokers=[
                m.MetadataResponseBroker(node_id=broker.broker_id, host=broker.host, port=broker.port)
                for broker in self._brokers.known.values()
            ],
            topics=[self._topic(topic, found.get(topic)) for topic in topics],
        )
        self._outbox.answer(connection, response)

    def _topic(self, topic: str, node: Node | None) -> m.MetadataResponseTopic:
        try:
            replicas = [] if node is None else parse_topic(node.data)
        except ValueError:
            replicas = []
        if not replicas:
            return m.MetadataResponseTopic(name=topic, error_code=RewriteError.UNKNOWN_TOPIC_OR_PARTITION)
        return m.MetadataResponseTopic(name=topic, partitions=[self._partition(*each) for each in enumerate(replicas)])

    def _partition(self, number: int, replicas: list[int]) -> m.MetadataResponsePartition:
        live = [broker for broker in replicas if broker in self._brokers.known]
        return m.MetadataResponsePartition(
            error_code=RewriteError.NONE if live else RewriteError.LEADER_NOT_AVAILABLE,
            partition_index=number,
            leader_id=live[0] if live else -1,
            replica_nodes=replicas,
            isr_nodes=live,
        )
