"""The brokers and topics of the cluster, as ConsumerMetadata and Metadata answer them.

Laws:

* `Cluster.brokers` is what ZooKeeper had when it was last read, and is read again when its watch fires.
* Metadata is answered by what ZooKeeper has at that time.
"""

from __future__ import annotations

from kcoord_wire import messages as m
from kcoord_wire.central.rewrite.events import RewriteError
from kcoord_wire.central.rewrite.layout import is_legal_name, parse_topic
from kcoord_wire.central.rewrite.outbox import Outbox
from kcoord_wire.zookeeper.layout import BROKER_IDS, BROKER_TOPICS, broker_path, parse_broker, topic_path
from kcoord_wire.zookeeper.model import Node, Read, ReadChildren
from kcoord_wire.zookeeper.procedures import Procedure

__all__ = ["Cluster"]


class Cluster:
    """See the module.

    :ivar brokers: host and port by broker id
    """

    def __init__(self, outbox: Outbox) -> None:
        self.brokers: dict[int, tuple[str, int]] = {}
        self._outbox = outbox

    def fired(self, path: str) -> None:
        """Take in that the watch of a node's children has fired."""
        if path == BROKER_IDS:
            self._outbox.start(self.follow())

    def follow(self) -> Procedure:
        """Read the brokers."""
        names: tuple[str, ...] = (yield ReadChildren(BROKER_IDS, watch=True)) or ()
        ids = sorted(int(name) for name in names if name.isdecimal())
        nodes: list[Node | None] = yield [Read(broker_path(broker_id)) for broker_id in ids]
        self.brokers = {}
        for broker_id, node in zip(ids, nodes, strict=True):
            try:
                self.brokers |= {broker_id: parse_broker(node.data)} if node is not None else {}
            except ValueError as error:
                self._outbox.note("broker not readable", broker=broker_id, reason=str(error))

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
                m.MetadataResponseBroker(node_id=broker_id, host=host, port=port)
                for broker_id, (host, port) in self.brokers.items()
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
        live = [broker for broker in replicas if broker in self.brokers]
        return m.MetadataResponsePartition(
            error_code=RewriteError.NONE if live else RewriteError.LEADER_NOT_AVAILABLE,
            partition_index=number,
            leader_id=live[0] if live else -1,
            replica_nodes=replicas,
            isr_nodes=live,
        )
