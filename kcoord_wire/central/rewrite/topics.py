"""How many partitions the subscribed topics have, and which groups are affected by a change.

"The co-ordinator for a group detects changes to the number of partitions for the subscribed list of topics": a watch on
each topic, and an index from topics to groups.

Laws:

* A topic is watched while a group subscribes to it, and one watch serves all groups.
* A topic that does not exist has no partitions, and is watched for its creation.

Source: "Kafka 0.9 Consumer Rewrite Design", "Partition changes for subscribed topics", point 1.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from kcoord_wire.central.rewrite.group import Group
from kcoord_wire.central.rewrite.layout import parse_topic
from kcoord_wire.central.rewrite.outbox import Outbox
from kcoord_wire.kernel.procedures import Procedure
from kcoord_wire.zookeeper.layout import topic_path
from kcoord_wire.zookeeper.model import Node, Read


class Topics:
    """The topics that groups subscribe to.

    :param changed: called with each group of a topic whose number of partitions is known now, or another than before
    :ivar counts: number of partitions, of the topics that have been read
    """

    def __init__(self, outbox: Outbox, changed: Callable[[Group], None]) -> None:
        self.counts: dict[str, int] = {}
        self._outbox = outbox
        self._changed = changed
        self._groups: dict[str, set[Group]] = {}
        self._subscribed: dict[Group, set[str]] = {}

    def subscribe(self, group: Group, topics: Collection[str]) -> None:
        """Watch these topics for a group, in place of those before; none ends it."""
        wanted, had = set(topics), self._subscribed.pop(group, set())
        if wanted:
            self._subscribed[group] = wanted
        for topic in sorted(wanted - had):
            if topic not in self._groups:
                self._groups[topic] = set()
                self._outbox.start(self._read(topic))
            self._groups[topic].add(group)
        for topic in had - wanted:
            self._groups[topic].discard(group)
            if not self._groups[topic]:
                del self._groups[topic]
                self.counts.pop(topic, None)

    def known(self, group: Group) -> dict[str, int] | None:
        """Return the number of partitions of each of a group's topics; None if one has not been read yet."""
        topics = self._subscribed.get(group, set())
        if not topics <= self.counts.keys():
            return None
        return {topic: self.counts[topic] for topic in sorted(topics)}

    def fired(self, path: str) -> None:
        """Take in that the watch of a node has fired."""
        topic = path.rpartition("/")[2]
        if topic in self._groups and path == topic_path(topic):
            self._outbox.start(self._read(topic))

    def _read(self, topic: str) -> Procedure:
        node: Node | None = yield Read(topic_path(topic), watch=True)
        try:
            count = 0 if node is None else len(parse_topic(node.data))
        except ValueError as error:
            self._outbox.note("topic not readable", logging.ERROR, topic=topic, reason=str(error))
            count = 0
        if topic not in self._groups or self.counts.get(topic) == count:
            return
        self.counts[topic] = count
        for group in sorted(self._groups[topic], key=lambda group: group.name):
            self._changed(group)
