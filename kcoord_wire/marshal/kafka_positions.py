"""What Kafka has beside the coordination log: partitions, offsets, members of consumer groups (extra ``kafka``).

Laws:

* Each question is one request to each broker that has to answer it, for any number of partitions.
* A partition that a broker does not answer for is missing in the result of `KafkaPositions.bounds` and
  `KafkaPositions.committed`; what a command needs for certain it asks for with `KafkaPositions.resolve`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from kcoord_wire.clients.librdkafka import Cluster, error_text
from kcoord_wire.marshal.context import TopicPartition
from kcoord_wire.marshal.kafka_topics import commit_offsets
from kcoord_wire.marshal.topics import TopicsError

SECONDS: Final = 15.0


class Bounds(NamedTuple):
    """What a partition has: the first offset that is there, and the one behind the last."""

    low: int
    end: int


class KafkaPositions:
    """Questions to a cluster.

    :param bootstrap: ``host:port``, several with commas
    :param config: settings of librdkafka, mainly for security
    :raises MissingLibraryError: the extra ``kafka`` is not installed
    :raises TopicsError: librdkafka rejects the settings
    """

    def __init__(self, bootstrap: str, config: Mapping[str, str] | None = None) -> None:
        self._bootstrap, self._config = bootstrap, config
        self._cluster = Cluster(bootstrap, config, TopicsError, "positions in Kafka")
        self._kafka, self._models = self._cluster.kafka, self._cluster.admin
        self._admin = self._cluster.make_admin()

    def counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Return how many partitions topics have; one that is not there is missing."""
        counts = {}
        for topic in topics:
            found = self._admin.list_topics(topic, timeout=SECONDS).topics.get(topic)
            if found is not None and found.error is None:
                counts[topic] = len(found.partitions)
        return counts

    def bounds(self, places: Collection[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Return what partitions have."""
        spec = self._models.OffsetSpec
        lows, ends = (self._offsets(dict.fromkeys(places, at)) for at in (spec.earliest(), spec.latest()))
        return {place: Bounds(lows[place], ends[place]) for place in lows.keys() & ends.keys()}

    def resolve(self, places: Collection[TopicPartition], at: str | int) -> dict[TopicPartition, int]:
        """Return an offset of each partition.

        :param at: ``earliest``, ``latest``, or ms since the Unix epoch: the first record as young, else the end
        :raises TopicsError: a broker does not answer for a partition
        """
        spec = self._models.OffsetSpec
        wanted = {"earliest": spec.earliest, "latest": spec.latest}.get(str(at), lambda: spec.for_timestamp(at))()
        found = self._offsets(dict.fromkeys(places, wanted), fails=True)
        if behind := [place for place, offset in found.items() if offset < 0]:  # no record is so young
            found |= self._offsets(dict.fromkeys(behind, spec.latest()), fails=True)
        return found

    def committed(self, group_id: str) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group; none if it is unknown.

        :raises TopicsError: its coordinator does not answer, or refuses
        """
        wanted = [self._kafka.ConsumerGroupTopicPartitions(group_id)]
        (future,) = self._admin.list_consumer_group_offsets(wanted, request_timeout=SECONDS).values()
        found = self._result(future, f"the committed offsets of group {group_id}").topic_partitions
        return {TopicPartition(each.topic, each.partition): each.offset for each in found if each.offset >= 0}

    def live_members(self, group_id: str) -> list[str]:
        """Return the client ids of a consumer group's members.

        :raises TopicsError: its coordinator does not answer, or refuses
        """
        (future,) = self._admin.describe_consumer_groups([group_id], request_timeout=SECONDS).values()
        try:
            return sorted(member.client_id for member in self._result(future, f"group {group_id}").members)
        except _UnknownGroupError:
            return []

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets of a group without members.

        :raises TopicsError: no broker answers, or one refuses an offset
        """
        commit_offsets(
            self._bootstrap, group_id, {(*place,): offset for place, offset in offsets.items()}, self._config
        )

    def _offsets(self, wanted: Mapping[TopicPartition, Any], *, fails: bool = False) -> dict[TopicPartition, int]:
        if not wanted:
            return {}
        asked = {self._kafka.TopicPartition(*place): spec for place, spec in wanted.items()}
        found = {}
        for at, future in self._admin.list_offsets(asked, request_timeout=SECONDS).items():
            place = TopicPartition(at.topic, at.partition)
            try:
                found[place] = int(self._result(future, f"the offsets of {at.topic}-{at.partition}").offset)
            except TopicsError:
                if fails:
                    raise
        return found

    def _result(self, future: Any, what: str) -> Any:
        try:
            return future.result(SECONDS + 5)
        except self._kafka.KafkaException as error:
            codes = self._kafka.KafkaError
            kind = _UnknownGroupError if error.args[0].code() == codes.GROUP_ID_NOT_FOUND else TopicsError
            raise kind(f"{what} cannot be read at {self._bootstrap}: {error_text(error)}") from None


class _UnknownGroupError(TopicsError):
    """There is no consumer group of this name."""
