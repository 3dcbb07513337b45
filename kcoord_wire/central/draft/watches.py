"""The topics and their partitions, as ZooKeeper has them (section 5, steps 2 and 3; section 6).

Laws:

* Each node is read with a watch, and read again when the watch fires, so `partitions` follows ZooKeeper.
* `topic_changed` is called for each topic whose partitions have changed, after `partitions` has.
* A number of partitions that cannot be read, or is more than `MOST_PARTITIONS`, counts as no partitions at that broker,
  and is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from kcoord_wire.central.draft.assignment import partition_order
from kcoord_wire.central.draft.context import Context
from kcoord_wire.central.draft.topic_count import is_topic_name
from kcoord_wire.kernel.procedures import Procedure, Sleep
from kcoord_wire.zookeeper.layout import BROKER_TOPICS, topic_path
from kcoord_wire.zookeeper.model import Fired, Node, Read, ReadChildren
from kcoord_wire.zookeeper.procedures import RETRY_MS, RegistryError

MOST_PARTITIONS: Final = 10_000  # of a topic at one broker


class TopicWatches:
    """TopicChangeListener and TopicPartitionChangeListener.

    :param topics_added: called with the names of topics that are new
    :param topic_changed: called with the name of a topic whose partitions have changed
    :ivar partitions: names of the partitions of each topic, by broker and number
    """

    def __init__(
        self, context: Context, topics_added: Callable[[Sequence[str]], None], topic_changed: Callable[[str], None]
    ) -> None:
        self._context = context
        self._topics_added = topics_added
        self._topic_changed = topic_changed
        self.partitions: dict[str, tuple[str, ...]] = {}

    def startup(self) -> Procedure:
        """coordinatorStartup, steps 2 and 3: read the topics, and watch them and their partitions."""
        yield from self._again(self.handle_topic_change)
        self._context.has_topics = True

    def fired(self, event: Fired) -> None:
        """A watch has fired: read what it watched."""
        if event.path == BROKER_TOPICS:
            self._context.start(self._again(self.handle_topic_change))
        elif event.path.startswith(f"{BROKER_TOPICS}/"):
            topic = event.path.split("/")[3]
            self._context.start(self._again(lambda: self.handle_partition_change([topic])))

    def handle_topic_change(self) -> Procedure:
        """TopicChangeListener.handleChildChange."""
        topics: tuple[str, ...] = (yield ReadChildren(BROKER_TOPICS, watch=True)) or ()
        known = self._context.groups.topics
        added = [topic for topic in topics if topic not in known and is_topic_name(topic)]
        self._topics_added(added)
        yield from self._again(lambda: self.handle_partition_change(added))  # they are not new the next time

    def handle_partition_change(self, topics: Sequence[str]) -> Procedure:
        """TopicPartitionChangeListener.handleChildChange: read, with watches, the partitions of some topics."""
        brokers: list[tuple[str, ...] | None] = yield [ReadChildren(topic_path(topic), watch=True) for topic in topics]
        places = [
            (topic, broker)
            for topic, found in zip(topics, brokers, strict=True)
            for broker in found or ()
            if broker.isdecimal()
        ]
        nodes: list[Node | None] = yield [Read(f"{topic_path(topic)}/{broker}", watch=True) for topic, broker in places]
        names: dict[str, list[str]] = {topic: [] for topic in topics}
        for (topic, broker), node in zip(places, nodes, strict=True):
            count = self._count(topic, broker, node)
            names[topic] += [f"{broker}-{number}" for number in range(count)]
        for topic in topics:
            partitions = tuple(sorted(names[topic], key=partition_order))
            if partitions != self.partitions.get(topic, ()):
                self.partitions[topic] = partitions
                self._topic_changed(topic)

    def _count(self, topic: str, broker: str, node: Node | None) -> int:
        text = "0" if node is None else node.data.decode("ascii", "replace")
        if text.isdecimal() and len(text) <= len(str(MOST_PARTITIONS)) and int(text) <= MOST_PARTITIONS:
            return int(text)
        self._context.note(logging.WARNING, "not a number of partitions", topic=topic, broker=broker, data=text[:40])
        return 0

    def _again(self, procedure: Callable[[], Procedure]) -> Procedure:
        """Run a procedure until ZooKeeper executes its requests."""
        while True:
            try:
                yield from procedure()
                return
            except RegistryError as error:
                self._context.note(logging.WARNING, "read failed", reason=str(error))
            yield Sleep(RETRY_MS)
