"""What Kafka has beside the coordination log, by confluent-kafka (extra ``kafka``): records, offsets, positions.

Laws, beside those of `inbox.DataTopics`:

* No member joins the group: partitions are assigned by the log, and offsets are committed as by a group without members
  (generation -1). Brokers refuse that while a group of this name has members; then it is reported, and nothing else is
  lost than what lag tools see.
* Records come as ``isolation.level`` of the settings wants; without one, those of open and aborted transactions do not.
* Each question of `KafkaPositions` is one request to each broker that has to answer it, for any number of partitions. A
  partition that a broker does not answer for is missing in the result of `KafkaPositions.bounds` and
  `KafkaPositions.committed`; what a command needs for certain it asks for with `KafkaPositions.resolve`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from kcoord_wire.clients.librdkafka import Cluster, error_text
from kcoord_wire.kernel.machines import LogEvent
from kcoord_wire.marshal.context import TopicPartition
from kcoord_wire.marshal.inbox import DataEvent, DataRecord, DataTopics, TopicsError
from kcoord_wire.marshal.member_events import FetchFailed, FindStart, StartFailed, StartFound, Tenure, TopicPartitions

_MOST_RECORDS: Final = 500  # of one `poll`
_SLICE_SECONDS: Final = 0.02  # between looks for answers, while no record comes
_ASK_SECONDS: Final = 5.0
_ASKERS: Final = 4
_PURPOSE: Final = "consuming topics of Kafka"
_FETCHING: Final = {"auto.offset.reset": "error", "enable.partition.eof": False}
_FETCHING_DEFAULTS: Final = {
    "fetch.wait.max.ms": 100,
    "fetch.error.backoff.ms": 100,
    "fetch.queue.backoff.ms": 50,  # of a queue that was full
    "reconnect.backoff.max.ms": 1_000,
    "queued.max.messages.kbytes": 16_384,  # of all partitions together
}

_NO_TOPIC_ID: Final = "A" * 22  # sixteen zeros: Metadata below v10
_URL_SAFE: Final = str.maketrans("+/", "-_")  # as Kafka writes ids; a "/" ends a field of Marshal's messages

Place = tuple[str, int]


@dataclass(slots=True)
class _Fetching:
    """Of a partition that is fetched.

    :ivar covered: offset behind the last record that was returned
    """

    tenure: Tenure
    covered: int


class KafkaTopics(DataTopics):
    """The topics of a group.

    :param bootstrap: ``host:port``, several with commas
    :param topics: that the group consumes
    :param config: settings of librdkafka, mainly for security
    :param refresh_s: from one look at the numbers of partitions, and at the ids of the topics, to the next
    :raises MissingLibraryError: the extra ``kafka`` is not installed
    :raises TopicsError: no broker answers, the login is refused, or a topic is not there
    """

    def __init__(
        self,
        bootstrap: str,
        group_id: str,
        topics: Sequence[str],
        config: Mapping[str, str] | None = None,
        *,
        refresh_s: float = 5.0,
    ) -> None:
        self._cluster = Cluster(bootstrap, config, TopicsError, _PURPOSE)
        self._kafka = self._cluster.kafka
        self._topics = tuple(topics)
        self._known = TopicPartitions({topic: len(self._cluster.partitions(topic)) for topic in self._topics})
        self._positions = KafkaPositions(bootstrap, config, _ASK_SECONDS)
        self._group_id = group_id
        settings = {**_FETCHING, "on_commit": self._committed}
        self._consumer = self._cluster.make_consumer(settings, _FETCHING_DEFAULTS, group_id=group_id)
        self._fetching: dict[Place, _Fetching] = {}
        self._commits: dict[Place, int] = {}
        self._commit_error = ""
        self._events: list[DataEvent] = [self._known]
        self._asker = ThreadPoolExecutor(_ASKERS, "marshal-topics")  # answers of brokers may be waited for
        self._starts: list[Future[list[DataEvent]]] = []
        self._refresh: Future[TopicPartitions] | None = None
        self._refresh_s = refresh_s
        self._next_refresh = 0.0

    def poll(self, seconds: float) -> Sequence[DataEvent]:
        self._send_commits()
        end = time.monotonic() + seconds
        while True:
            left = end - time.monotonic()
            messages = self._messages(0.0 if self._events else min(max(left, 0.0), _SLICE_SECONDS))
            self._take_answers()
            events, self._events = self._events, []
            for message in messages:
                events += self._take(message)
            if events or left <= 0:
                return events

    def find_start(self, request: FindStart) -> None:
        self._starts.append(self._asker.submit(self._find_start, request))

    def start(self, tenure: Tenure, offset: int) -> None:
        place = (tenure.topic, tenure.partition)
        if place in self._fetching:
            self.stop(self._fetching[place].tenure)
        self._fetching[place] = _Fetching(tenure, offset)
        self._consumer.incremental_assign([self._kafka.TopicPartition(*place, offset)])

    def stop(self, tenure: Tenure) -> None:
        place = (tenure.topic, tenure.partition)
        if self._is_fetching(tenure):
            del self._fetching[place]
            self._consumer.incremental_unassign([self._kafka.TopicPartition(*place)])

    def pause(self, tenure: Tenure) -> None:
        if self._is_fetching(tenure):
            self._consumer.pause([self._kafka.TopicPartition(tenure.topic, tenure.partition)])

    def resume(self, tenure: Tenure) -> None:
        if self._is_fetching(tenure):
            self._consumer.resume([self._kafka.TopicPartition(tenure.topic, tenure.partition)])

    def commit(self, tenure: Tenure, offset: int) -> None:
        self._commits[tenure.topic, tenure.partition] = offset

    def end(self, tenure: Tenure) -> int:
        if not self._is_fetching(tenure):
            return -1
        at = self._kafka.TopicPartition(tenure.topic, tenure.partition)
        bounds: tuple[int, int] | None = self._consumer.get_watermark_offsets(at, cached=True)
        return -1 if bounds is None else max(-1, bounds[1])

    def close(self) -> None:
        self._send_commits()
        self._asker.shutdown(wait=True, cancel_futures=True)
        self._consumer.close()

    def _is_fetching(self, tenure: Tenure) -> bool:
        fetching = self._fetching.get((tenure.topic, tenure.partition))
        return fetching is not None and fetching.tenure == tenure

    # ---- records

    def _messages(self, seconds: float) -> list[Any]:
        first = self._consumer.poll(seconds)
        return [] if first is None else [first, *self._consumer.consume(_MOST_RECORDS - 1, 0)]

    def _take(self, message: Any) -> Iterator[DataEvent]:
        fetching = self._fetching.get((message.topic(), message.partition()))
        error = message.error()
        if error is not None:
            yield from self._take_error(error, fetching)
        elif fetching is not None and message.offset() >= fetching.covered:
            covers_from, fetching.covered = fetching.covered, message.offset() + 1
            kind, time_ms = message.timestamp()
            time_ms = -1 if kind == self._kafka.TIMESTAMP_NOT_AVAILABLE else time_ms
            headers = message.headers() or ()
            yield DataRecord(
                fetching.tenure, message.offset(), covers_from, time_ms, message.key(), message.value(), headers
            )

    def _take_error(self, error: Any, fetching: _Fetching | None) -> Iterator[DataEvent]:
        codes = self._kafka.KafkaError
        if error.retriable() or error.code() in (codes._TRANSPORT, codes._ALL_BROKERS_DOWN, codes._TIMED_OUT):
            return
        if fetching is None:
            yield LogEvent(logging.WARNING, "broker refuses", {"reason": error_text(error)})
            return
        self.stop(fetching.tenure)
        if error.code() in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE):
            yield FetchFailed(fetching.tenure, f"offset {fetching.covered} is out of range: {error_text(error)}")
        else:
            yield FetchFailed(fetching.tenure, str(self._cluster.refused(fetching.tenure.topic, error)))

    # ---- commits

    def _send_commits(self) -> None:
        if self._commits:
            offsets = [self._kafka.TopicPartition(*place, offset) for place, offset in self._commits.items()]
            self._commits.clear()
            self._consumer.commit(offsets=offsets, asynchronous=True)

    def _committed(self, error: Any, partitions: Sequence[Any]) -> None:
        """Report why commits fail, once until the reason changes."""
        failed = error or next((at.error for at in partitions if at.error is not None), None)
        reason = "" if failed is None else error_text(failed)
        if reason and reason != self._commit_error:
            self._events.append(LogEvent(logging.WARNING, "offsets not committed", {"reason": reason}))
        self._commit_error = reason

    # ---- questions to brokers

    def _take_answers(self) -> None:
        for future in [future for future in self._starts if future.done()]:
            self._starts.remove(future)
            self._events += future.result()
        if self._refresh is not None and self._refresh.done():
            known = self._refresh.result()
            self._refresh = None
            if known != self._known:
                self._known = known
                self._events.append(known)
        if self._refresh is None and time.monotonic() >= self._next_refresh:
            self._next_refresh = time.monotonic() + self._refresh_s
            self._refresh = self._asker.submit(self._look_at_topics, self._known)

    def _find_start(self, request: FindStart) -> list[DataEvent]:
        """Ask for the topic's id, the committed offset, and what the partition has. In a thread of its own."""
        place = TopicPartition(request.tenure.topic, request.tenure.partition)
        try:  # the id comes before the ends: a later change is seen by `poll`
            topic_id = self._positions.topics([place.topic]).get(place.topic, _NO_TOPIC).topic_id
            committed = self._positions.committed(self._group_id, [place]) if request.is_unknown else {}
            bounds = self._positions.bounds([place], fails=True)[place]
        except TopicsError as error:
            return [StartFailed(request.request, str(error))]
        return [StartFound(request.request, *bounds, committed.get(place), topic_id)]

    def _look_at_topics(self, known: TopicPartitions) -> TopicPartitions:
        """Return what the topics are; as before, where no broker answers. In a thread of its own."""
        counts, ids = dict(known.counts), dict(known.ids)
        for topic in self._topics:
            with suppress(TopicsError):
                found = self._positions.topics([topic]).get(topic, _NO_TOPIC)
                counts[topic] = found.partitions
                ids |= {topic: found.topic_id} if found.topic_id else {}
        return TopicPartitions(counts, ids)


def commit_offsets(
    bootstrap: str, group_id: str, offsets: Mapping[Place, int], config: Mapping[str, str] | None = None
) -> None:
    """Commit offsets as those of a consumer group without members, and wait for the answer.

    :param offsets: of the next record, by topic and partition
    :raises MissingLibraryError: the extra ``kafka`` is not installed
    :raises TopicsError: no broker answers, or one refuses an offset, as while the group has members
    """
    cluster = Cluster(bootstrap, config, TopicsError, "committing offsets")
    for topic in {topic for topic, _ in offsets}:
        cluster.partitions(topic)
    consumer = cluster.make_consumer({}, group_id=group_id)
    try:
        wanted = [cluster.kafka.TopicPartition(*place, offset) for place, offset in offsets.items()]
        for at in consumer.commit(offsets=wanted, asynchronous=False) if wanted else ():
            if at.error is not None:
                raise TopicsError(f"offset {at.offset} of {at.topic}-{at.partition}: {error_text(at.error)}")
    except cluster.kafka.KafkaException as error:
        hint = "; a group that has members commits by them alone: stop them first"
        refused = f"the offsets of group {group_id} were not committed: {error_text(error)}"
        raise TopicsError(refused + hint * (error.args[0].code() in _has_members(cluster))) from None
    finally:
        consumer.close()


def _has_members(cluster: Cluster) -> Collection[int]:
    """The errors of a commit from outside of a group that has members."""
    codes = cluster.kafka.KafkaError
    return (codes.UNKNOWN_MEMBER_ID, codes.ILLEGAL_GENERATION, codes.REBALANCE_IN_PROGRESS)


SECONDS: Final = 15.0


class KafkaTopic(NamedTuple):
    """A topic: the number of its partitions, and its id as Kafka prints it; empty where the broker has none."""

    partitions: int
    topic_id: str


_NO_TOPIC: Final = KafkaTopic(0, "")


class Bounds(NamedTuple):
    """What a partition has: the first offset that is there, and the one behind the last."""

    low: int
    end: int


class KafkaPositions:
    """Questions to a cluster.

    :param bootstrap: ``host:port``, several with commas
    :param config: settings of librdkafka, mainly for security
    :param patience_s: of each question
    :raises MissingLibraryError: the extra ``kafka`` is not installed
    :raises TopicsError: librdkafka rejects the settings
    """

    def __init__(self, bootstrap: str, config: Mapping[str, str] | None = None, patience_s: float = SECONDS) -> None:
        self._bootstrap, self._config, self._patience_s = bootstrap, config, patience_s
        self._cluster = Cluster(bootstrap, config, TopicsError, "positions in Kafka")
        self._kafka, self._models = self._cluster.kafka, self._cluster.admin
        self._admin = self._cluster.make_admin()

    def topics(self, names: Collection[str]) -> dict[str, KafkaTopic]:
        """Return what topics are; one that is not there is missing.

        :raises TopicsError: no broker answers, or one refuses
        """
        if not names:
            return {}
        asked = self._kafka.TopicCollection(list(names))
        topics = {}
        for name, future in self._admin.describe_topics(asked, request_timeout=self._patience_s).items():
            with suppress(_UnknownError):
                found = self._result(future, f"topic {name}")
                topic_id = str(found.topic_id).translate(_URL_SAFE)
                topics[name] = KafkaTopic(len(found.partitions), "" if topic_id == _NO_TOPIC_ID else topic_id)
        return topics

    def bounds(self, places: Collection[TopicPartition], *, fails: bool = False) -> dict[TopicPartition, Bounds]:
        """Return what partitions have.

        :raises TopicsError: with `fails`, a broker does not answer for a partition
        """
        spec = self._models.OffsetSpec
        lows, ends = (self._offsets(dict.fromkeys(places, at), fails=fails) for at in (spec.earliest(), spec.latest()))
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

    def committed(self, group_id: str, places: Collection[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group, or those of some partitions; none if it is unknown.

        :raises TopicsError: its coordinator does not answer, or refuses
        """
        about = None if places is None else [self._kafka.TopicPartition(*place) for place in places]
        wanted = [self._kafka.ConsumerGroupTopicPartitions(group_id, about)]
        (future,) = self._admin.list_consumer_group_offsets(wanted, request_timeout=self._patience_s).values()
        found = self._result(future, f"the committed offsets of group {group_id}").topic_partitions
        return {TopicPartition(each.topic, each.partition): each.offset for each in found if each.offset >= 0}

    def live_members(self, group_id: str) -> list[str]:
        """Return the client ids of a consumer group's members.

        :raises TopicsError: its coordinator does not answer, or refuses
        """
        (future,) = self._admin.describe_consumer_groups([group_id], request_timeout=self._patience_s).values()
        try:
            return sorted(member.client_id for member in self._result(future, f"group {group_id}").members)
        except _UnknownError:
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
        for at, future in self._admin.list_offsets(asked, request_timeout=self._patience_s).items():
            place = TopicPartition(at.topic, at.partition)
            try:
                found[place] = int(self._result(future, f"the offsets of {at.topic}-{at.partition}").offset)
            except TopicsError:
                if fails:
                    raise
        return found

    def _result(self, future: Any, what: str) -> Any:
        try:
            return future.result(self._patience_s + 5)
        except self._kafka.KafkaException as error:
            codes = self._kafka.KafkaError
            unknown = codes.GROUP_ID_NOT_FOUND, codes.UNKNOWN_TOPIC_OR_PART, codes._UNKNOWN_TOPIC
            kind = _UnknownError if error.args[0].code() in unknown else TopicsError
            raise kind(f"{what} cannot be read at {self._bootstrap}: {error_text(error)}") from None


class _UnknownError(TopicsError):
    """There is no consumer group, or no topic, of this name."""
