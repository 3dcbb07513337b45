"""The topics of a broker of the rewrite: announced in ZooKeeper as Kafka 0.8 does, with generated records.

Laws:

* `/brokers/topics/[topic]` has the replicas of each partition. Every broker that is given a topic adds itself to the
  replicas of its partitions; partitions are added, and never removed.
* Record n of a partition is the text ``TOPIC-PARTITION@n``, at every broker and whenever; the end grows with the clock
  of `own_topics`. So any replica serves the same, and none keeps data.
* A fetch is answered at once, by at most `LARGEST_FETCH` bytes of records, whatever was asked for.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from kcoord_wire import messages as m
from kcoord_wire.central.own_topics import OwnTopics
from kcoord_wire.central.rewrite.events import RewriteError
from kcoord_wire.central.rewrite.layout import parse_topic, topic_record
from kcoord_wire.kernel.machines import Noted
from kcoord_wire.kernel.procedures import Procedure
from kcoord_wire.records import Record, encode_message_set
from kcoord_wire.zookeeper.layout import topic_path
from kcoord_wire.zookeeper.model import Create, Node, Outcome, Read, SetData
from kcoord_wire.zookeeper.procedures import RegistryError

LARGEST_FETCH: Final = 1 << 19
_MS: Final = 1000
_OVERHEAD: Final = 26  # of a message of magic 0: offset, size, CRC, magic, attributes, two lengths
_RACED: Final = (Outcome.NODE_EXISTS, Outcome.NO_NODE, Outcome.BAD_VERSION)


class RewriteTopics(OwnTopics):
    """A machine beside the coordinator's, which announces topics at each new connection, and serves their records."""

    def fetch(self, request: m.FetchRequest, now_ms: int) -> m.FetchResponse:
        """Answer Fetch 0.

        :param now_ms: since 1970
        """
        left = LARGEST_FETCH
        response = m.FetchResponse()
        for topic in request.topics:
            answers = []
            for partition in topic.partitions:
                answer = self._fetch(topic.topic, partition, min(partition.partition_max_bytes, left), now_ms)
                left -= len(answer.records or b"")
                answers.append(answer)
            response.responses.append(m.FetchResponseFetchableTopicResponse(topic=topic.topic, partitions=answers))
        return response

    def _fetch(
        self, topic: str, wanted: m.FetchRequestFetchPartition, most: int, now_ms: int
    ) -> m.FetchResponsePartitionData:
        answer = m.FetchResponsePartitionData(partition_index=wanted.partition, high_watermark=-1, records=b"")
        clock = self.clock
        if clock is None or not 0 <= wanted.partition < self.announced.get(topic, 0):
            answer.error_code = RewriteError.UNKNOWN_TOPIC_OR_PARTITION
            return answer
        end = answer.high_watermark = max(0, int((now_ms - clock.since_ms) * clock.rate / _MS))
        if not 0 <= wanted.fetch_offset <= end:
            answer.error_code = RewriteError.OFFSET_OUT_OF_RANGE
            return answer
        records = []
        for offset in range(wanted.fetch_offset, end):
            value = f"{topic}-{wanted.partition}@{offset}".encode()
            most -= len(value) + _OVERHEAD
            if most < 0:
                break
            records.append(Record(None, value, offset=offset))
        answer.records = encode_message_set(records, magic=0)
        return answer

    def _announce_topic(self, topic: str, partitions: int) -> Procedure:
        path = topic_path(topic)
        while topic not in self.announced:
            node: Node | None = yield Read(path)
            before = [] if node is None else parse_topic(node.data)
            after = _with_replica(before, partitions, self._broker_id)
            try:
                if node is None:
                    yield Create(path, topic_record(after))
                elif after != before:
                    yield SetData(path, topic_record(after), node.version)
            except RegistryError as error:
                if error.outcome not in _RACED:
                    raise
                continue  # another broker was faster
            if len(after) > partitions:
                facts: dict[str, Any] = {"topic": topic, "partitions": len(after), "asked": partitions}
                self._effects.append(Noted(logging.INFO, "topic has more partitions", facts))
            self.announced[topic] = len(after)


def _with_replica(replicas: list[list[int]], partitions: int, broker_id: int) -> list[list[int]]:
    """Return the replicas of at least so many partitions, with a broker at each."""
    grown = [*replicas, *([] for _ in range(partitions - len(replicas)))]
    return [brokers if broker_id in brokers else [*brokers, broker_id] for brokers in grown]
