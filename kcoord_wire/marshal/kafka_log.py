"""A coordination log in a topic of Kafka, by confluent-kafka (extra ``kafka``).

Laws, beside those of `log.Log`:

* An entry is a record with a null key, without headers, uncompressed and in no transaction, so that every reader of the
  topic has it: the Go library waits for ever for an offset that a marker of a transaction has taken.
* An entry is sent with ``acks=all`` and ``enable.idempotence``: librdkafka repeats a request whose connection was lost
  or that was refused for a while, and the broker stores its record once, in its place. A request that is never answered
  fails after `timeout_s`, and may have landed. A reader of message format 0 does not see the producer's id. A broker
  before 0.11 knows no such id; there ``{"enable.idempotence": "false"}`` in the settings leaves duplicates possible,
  which the protocol bears.
* It reads by offset, never as a member of a group, and sees what is not committed (read_uncommitted): the markers of a
  foreign transaction do not hold up the log.
* Brokers that are away are no error: appends fail after `timeout_s`, and reading goes on when they are back.
* `check_topic` raises an error for what breaks the protocol, and returns a warning for what weakens it; each says what
  to change. What a broker does not report is a warning, too: it was not checked. `create_topic` changes nothing of a
  topic that is there.

Sources: records of the Go library, which needs the topic before it starts; Marshal PROTOCOL.md, "Heartbeats" (stale
after two intervals); kafka `UnifiedLog.scala`, `LogValidator.scala` (records with null keys cannot be compacted);
KIP-98, KIP-320.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from kcoord_wire.clients.librdkafka import Cluster, error_text
from kcoord_wire.marshal.log import Appended, AppendFailed, Log, LogError, RawEntry, grown, trimmed

LEAST_INTERVALS: Final = 4
"""Heartbeat intervals that retention has to keep: two until a claim is stale, and two that a new reader of a trimmed
log must see before it knows the holders."""
COMFORTABLE_INTERVALS: Final = 10

HOW_TO_CREATE: Final = "create it first: kcoord marshal consume --create-topic, or create_topic"
"""What to do where it is missing."""

_CHECK_PURPOSE: Final = "a coordination topic in Kafka"
_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.05
_KEPT_INTERVALS: Final = 60  # by a topic of ours
_LEAST_KEPT_MS: Final = 3_600_000
_SEGMENTS: Final = 4
_SAFE_REPLICAS: Final = 2  # that have an entry before it counts
_READABLE: Final = frozenset({"producer", "uncompressed", "gzip", "snappy"})  # by the Go library


class TopicState(NamedTuple):
    """What a cluster says of a topic.

    :ivar replication: replicas of the partition that has the fewest
    :ivar settings: name to value; None if the broker does not report them
    """

    topic: str
    partitions: int
    replication: int
    settings: Mapping[str, str] | None


class Problem(NamedTuple):
    """What is wrong with a topic, and what to change.

    :ivar is_fatal: claims are lost, or no entry can be appended
    """

    is_fatal: bool
    text: str


def create_topic(
    bootstrap: str,
    topic: str,
    partitions: int,
    *,
    heartbeat_interval_ms: int = 60_000,
    replication: int = -1,
    config: Mapping[str, str] | None = None,
) -> bool:
    """Create a coordination topic, and wait until a broker shows it; return False if there is one of this name, which
    stays as it is.

    :param replication: number of replicas; -1 for the broker's default
    :param config: settings of librdkafka
    :raises MissingLibraryError: the extra ``kafka`` is not installed
    :raises LogError: no broker answers, or one refuses
    """
    cluster = Cluster(bootstrap, config, LogError, _CHECK_PURPOSE)
    kept_ms = max(_LEAST_KEPT_MS, _KEPT_INTERVALS * heartbeat_interval_ms)
    settings = {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "message.timestamp.type": "LogAppendTime",
        "retention.ms": str(kept_ms),
        "segment.ms": str(kept_ms // _SEGMENTS),  # retention removes whole segments
        "unclean.leader.election.enable": "false",
    }
    if replication > 1:
        settings["min.insync.replicas"] = str(min(_SAFE_REPLICAS, replication - 1))
    wanted = cluster.admin.NewTopic(topic, num_partitions=partitions, replication_factor=replication, config=settings)
    admin = cluster.make_admin()  # its end would end the request
    error = _failure(cluster, admin.create_topics([wanted], operation_timeout=_SECONDS)[topic])
    if error is None:
        _wait_for(cluster, admin, topic)
        return True
    if error.code() == cluster.kafka.KafkaError.TOPIC_ALREADY_EXISTS:
        return False
    raise LogError(f"{topic} was not created at {bootstrap}: {error_text(error)}")


def check_topic(
    bootstrap: str, topic: str, *, heartbeat_interval_ms: int = 60_000, config: Mapping[str, str] | None = None
) -> list[str]:
    """Check that a topic can coordinate; return the warnings.

    :raises MissingLibraryError: the extra ``kafka`` is not installed
    :raises LogError: no broker answers, the topic is not there, or its settings lose claims
    """
    cluster = Cluster(bootstrap, config, LogError, _CHECK_PURPOSE)
    found = cluster.topic(topic, HOW_TO_CREATE)
    replication = min(len(partition.replicas) for partition in found.partitions.values())
    state = TopicState(topic, len(found.partitions), replication, _settings(cluster, topic))
    problems = list(problems_of(state, heartbeat_interval_ms))
    if fatal := [problem.text for problem in problems if problem.is_fatal]:
        raise LogError("; ".join(fatal))
    return [problem.text for problem in problems]


def problems_of(state: TopicState, heartbeat_interval_ms: int) -> Iterator[Problem]:
    """Yield what is wrong with a topic for this heartbeat interval."""
    if state.settings is None:
        names = "cleanup.policy, retention.ms, message.timestamp.type and min.insync.replicas"
        yield Problem(False, f"the broker does not report the settings of {state.topic}: not checked are {names}")
    else:
        yield from _problems_of_contents(state.topic, state.settings)
        yield from _problems_of_retention(state.topic, state.settings, heartbeat_interval_ms)
        yield from _problems_of_replication(state, state.settings)


def _problems_of_contents(topic: str, settings: Mapping[str, str]) -> Iterator[Problem]:
    if "compact" in settings.get("cleanup.policy", "delete"):
        yield Problem(
            True, f"{topic} is compacted, which refuses entries: they have no keys; set cleanup.policy=delete"
        )
    if settings.get("message.timestamp.type", "LogAppendTime") != "LogAppendTime":
        yield Problem(
            False,
            f"entries of {topic} have the times of their senders: claims hold as long as the members' clocks agree;"
            " set message.timestamp.type=LogAppendTime",
        )
    if (codec := settings.get("compression.type", "producer")) not in _READABLE:
        yield Problem(
            False, f"{topic} is stored with {codec}, which the Go library cannot read; set compression.type=producer"
        )


def _problems_of_retention(topic: str, settings: Mapping[str, str], interval_ms: int) -> Iterator[Problem]:
    kept_ms = int(settings.get("retention.ms", "-1"))
    if 0 <= kept_ms < COMFORTABLE_INTERVALS * interval_ms:
        is_fatal = kept_ms < LEAST_INTERVALS * interval_ms
        yield Problem(
            is_fatal,
            f"{topic} keeps entries for {kept_ms / 1000:g} s, {kept_ms / interval_ms:.1f} heartbeat intervals"
            f" ({LEAST_INTERVALS} are needed, {COMFORTABLE_INTERVALS} or more are wise); set retention.ms",
        )
    if (kept_bytes := int(settings.get("retention.bytes", "-1"))) >= 0:
        yield Problem(
            False,
            f"{topic} keeps {kept_bytes} bytes of a partition, however young they are: many members can push out live"
            " claims; set retention.bytes=-1",
        )


def _problems_of_replication(state: TopicState, settings: Mapping[str, str]) -> Iterator[Problem]:
    least = int(settings.get("min.insync.replicas", "1"))
    if least > state.replication:
        yield Problem(
            True,
            f"{state.topic} has {state.replication} replicas and needs {least} for an append (min.insync.replicas):"
            " no entry can be appended",
        )
    elif state.replication < _SAFE_REPLICAS:
        yield Problem(False, f"{state.topic} has one replica: with its broker claims and offsets are lost")
    elif least < _SAFE_REPLICAS:
        yield Problem(
            False,
            f"an entry of {state.topic} counts once one replica has it (min.insync.replicas=1): an election can lose"
            " claims; set 2",
        )
    if settings.get("unclean.leader.election.enable", "false") == "true":
        yield Problem(
            False,
            f"a replica of {state.topic} that is behind may become leader and lose claims; set"
            " unclean.leader.election.enable=false",
        )


def _settings(cluster: Cluster, topic: str) -> Mapping[str, str] | None:
    """Return a topic's settings; None if the broker does not report them."""
    admin = cluster.make_admin()
    resource = cluster.admin.ConfigResource(cluster.admin.ConfigResource.Type.TOPIC, topic)
    (future,) = admin.describe_configs([resource], request_timeout=_SECONDS).values()
    if (error := _failure(cluster, future)) is not None:
        logging.getLogger(__name__).info("settings of %s: %s", topic, error_text(error))
        return None
    return {name: entry.value for name, entry in future.result().items() if entry.value is not None}


def _wait_for(cluster: Cluster, admin: Any, topic: str) -> None:
    """Wait until a new topic is shown: the controller has it before the brokers."""
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end:
        try:
            if topic in admin.list_topics(timeout=_SECONDS).topics:
                return
        except cluster.kafka.KafkaException as error:
            raise LogError(f"{topic} was created at {cluster.bootstrap}, then: {error_text(error)}") from None
        time.sleep(_LOOK_SECONDS)
    raise LogError(f"{topic} was created, but no broker at {cluster.bootstrap} shows it within {_SECONDS:g} s")


def _failure(cluster: Cluster, future: Any) -> Any:
    """Return the error of an admin request, or None."""
    try:
        future.result(_SECONDS + 5)
    except cluster.kafka.KafkaException as error:
        return error.args[0]
    return None


TOPIC: Final = "__marshal"
"""Of the Go library, where it is a constant."""

_SLICE_SECONDS: Final = 0.1  # of waiting for an entry, between looks at whether the log can go on
_RESULT_SECONDS: Final = 0.002  # of it while results of appends are due, which do not wake it
_MOST_MESSAGES: Final = 1_000  # of one `poll`
_CLOSE_SECONDS: Final = 10.0
_PURPOSE: Final = "a coordination log in Kafka"
_READING: Final = {
    "auto.offset.reset": "error",
    "isolation.level": "read_uncommitted",
    "enable.partition.eof": True,
}
_READING_DEFAULTS: Final = {
    "fetch.wait.max.ms": 100,
    "fetch.error.backoff.ms": 100,
    "reconnect.backoff.max.ms": 1_000,  # after an outage claims have to be renewed soon
}
_APPENDING: Final = {
    "acks": "all",
    "compression.type": "none",
    "linger.ms": 0,
    # Brokers accept any first sequence number of a producer that is new to a partition. With several requests under way
    # the second could come first, and librdkafka would then report the first as stored, which it is not.
    "max.in.flight.requests.per.connection": 1,
}
_APPENDING_DEFAULTS: Final = {
    "enable.idempotence": True,
    "retry.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1_000,
}

Done = Callable[[Appended | AppendFailed], None]


class KafkaLog(Log):
    """One member's view of the coordination topic.

    :param bootstrap: ``host:port``, several with commas
    :param topic: its name
    :param config: settings of librdkafka, mainly for security
    :param timeout_s: for an append, from the call to its result
    :param check_s: from one look at the number of partitions to the next
    :raises MissingLibraryError: the extra ``kafka`` is not installed
    :raises LogError: no broker answers, the login is refused, or the topic is not there
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str = TOPIC,
        config: Mapping[str, str] | None = None,
        *,
        timeout_s: float = 5.0,
        check_s: float = 5.0,
    ) -> None:
        self._cluster = Cluster(bootstrap, config, LogError, _PURPOSE)
        self._kafka = self._cluster.kafka
        self._topic = topic
        self.partitions: int = len(self._cluster.partitions(topic, HOW_TO_CREATE))
        timeout_ms = max(1, round(timeout_s * 1000))
        sending = {**_APPENDING, "message.timeout.ms": timeout_ms, "request.timeout.ms": timeout_ms}
        self._producer = self._cluster.make(self._kafka.Producer, sending, _APPENDING_DEFAULTS)
        self._consumer = self._cluster.make_consumer(_READING, _READING_DEFAULTS)
        # A broker answers the requests of a connection in order: behind a fetch that waits for entries, each question
        # for an end would take most of fetch.wait.max.ms.
        self._bounds_asker = self._cluster.make_consumer(_READING, _READING_DEFAULTS)
        self._positions: dict[int, int] = {}
        self._unread: set[int] = set()
        self._results: deque[tuple[Done, Appended | AppendFailed]] = deque()
        self._fatal = ""
        self._asker = ThreadPoolExecutor(1, "marshal-topic")  # a look at the metadata may wait
        self._check: Future[int] | None = None
        self._check_s = check_s
        self._next_check = time.monotonic() + check_s

    def read_from_start(self, partitions: Collection[int]) -> None:
        if wrong := [partition for partition in partitions if not 0 <= partition < self.partitions]:
            raise LogError(f"{self._topic} has {self.partitions} partitions, and no {wrong[0]}")
        self._positions = dict.fromkeys(partitions, 0)
        self._unread = set(partitions)
        self._consumer.assign([self._begin(partition) for partition in partitions])

    def poll(self, seconds: float) -> Sequence[RawEntry]:
        end = time.monotonic() + seconds
        while True:
            left = end - time.monotonic()
            messages = self._messages(min(max(left, 0.0), _RESULT_SECONDS if len(self._producer) else _SLICE_SECONDS))
            has_results = self._deliver_results()
            self._check_usable()
            entries = [entry for message in messages if (entry := self._take(message)) is not None]
            if entries or messages or has_results or left <= 0:
                return entries

    def append(self, request: int, partition: int, value: bytes, done: Done) -> None:
        def reported(error: Any, message: Any) -> None:
            self._results.append((done, self._result(request, error, message)))

        if not 0 <= partition < self.partitions:
            refused = AppendFailed(request, f"{self._topic} has no partition {partition}", may_have_landed=False)
            self._results.append((done, refused))
            return
        try:
            self._producer.produce(self._topic, value=value, partition=partition, on_delivery=reported)
        except (BufferError, self._kafka.KafkaException) as error:
            self._results.append((done, AppendFailed(request, error_text(error), may_have_landed=False)))

    def position(self, partition: int) -> int:
        return self._positions[partition]

    def end(self, partition: int, seconds: float = 5.0) -> int:
        return self._bounds(partition, seconds)[1]

    def close(self) -> None:
        self._producer.flush(_CLOSE_SECONDS)
        self._producer.purge()
        self._producer.flush(1.0)  # the reports of what was purged
        self._deliver_results()
        self._asker.shutdown(wait=True, cancel_futures=True)
        self._consumer.close()
        self._bounds_asker.close()

    # ---- appending

    def _result(self, request: int, error: Any, message: Any) -> Appended | AppendFailed:
        if error is None:
            return Appended(request, message.offset())
        if error.fatal() or error.code() == self._kafka.KafkaError._FATAL:
            self._fatal = f"the producer of {self._topic} cannot go on: {error_text(error)}"
        return AppendFailed(request, error_text(error), may_have_landed=error.code() not in self._refusals())

    def _refusals(self) -> Collection[int]:
        """The errors after which an entry is surely not in the log: they hold for each attempt to send it."""
        codes = self._kafka.KafkaError
        local = codes._UNKNOWN_PARTITION, codes._UNKNOWN_TOPIC, codes._QUEUE_FULL, codes._PURGE_QUEUE
        refused = codes.MSG_SIZE_TOO_LARGE, codes.INVALID_MSG, codes.INVALID_RECORD, codes.POLICY_VIOLATION
        denied = codes.TOPIC_AUTHORIZATION_FAILED, codes.CLUSTER_AUTHORIZATION_FAILED
        return {*local, *refused, *denied}

    def _deliver_results(self) -> bool:
        """Deliver the results that have come; return whether there were any."""
        self._producer.poll(0)
        has_results = bool(self._results)
        while self._results:
            done, result = self._results.popleft()
            done(result)
        return has_results

    # ---- reading

    def _begin(self, partition: int) -> Any:
        return self._kafka.TopicPartition(self._topic, partition, self._kafka.OFFSET_BEGINNING)

    def _messages(self, seconds: float) -> list[Any]:
        first = self._consumer.poll(seconds)
        return [] if first is None else [first, *self._consumer.consume(_MOST_MESSAGES - 1, 0)]

    def _take(self, message: Any) -> RawEntry | None:
        """Return the entry in a message; None for an event."""
        error, partition = message.error(), message.partition()
        if error is not None:
            self._take_error(error, message)
            return None
        kind, time_ms = message.timestamp()
        offset = message.offset()
        if offset < self._positions[partition]:
            return None  # it was prefetched before reading began anew
        self._positions[partition] = offset + 1
        self._unread.discard(partition)
        is_append_time = kind == self._kafka.TIMESTAMP_LOG_APPEND_TIME
        return RawEntry(partition, offset, time_ms, is_append_time, message.value())

    def _take_error(self, error: Any, message: Any) -> None:
        codes = self._kafka.KafkaError
        partition = message.partition()
        if error.code() == codes._PARTITION_EOF:
            self._positions[partition] = max(self._positions[partition], message.offset())
        elif error.code() in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE, codes._LOG_TRUNCATION):
            self._out_of_range(partition)
        elif not error.retriable() and error.code() not in (codes._TRANSPORT, codes._ALL_BROKERS_DOWN):
            raise self._cluster.refused(self._topic, error)

    def _out_of_range(self, partition: int) -> None:
        """The offset to read next is not there: retention was faster, or the log has lost entries."""
        if partition in self._unread:
            self._consumer.incremental_unassign([self._kafka.TopicPartition(self._topic, partition)])
            self._consumer.incremental_assign([self._begin(partition)])
            return
        position = self._positions[partition]
        try:
            low, end = self._bounds(partition, self._cluster.patience_s)
        except TimeoutError as error:
            raise LogError(f"offset {position} of {self._topic}-{partition} is out of range; {error}") from None
        if position < low:
            raise trimmed(self._topic, partition, position, low)
        raise LogError(
            f"{self._topic}-{partition} ends at {end} and has lost entries up to {position} that were read: by an"
            " election of a replica that was behind (unclean.leader.election.enable), or the topic was made anew"
        )

    def _bounds(self, partition: int, seconds: float) -> tuple[int, int]:
        """Return the first offset and the end, from the partition's leader."""
        at = self._kafka.TopicPartition(self._topic, partition)
        try:
            bounds: tuple[int, int] | None = self._bounds_asker.get_watermark_offsets(at, timeout=seconds, cached=False)
        except self._kafka.KafkaException as failure:
            error = failure.args[0]
            codes = self._kafka.KafkaError
            if error.retriable() or error.code() in (codes._TIMED_OUT, codes._TRANSPORT, codes._ALL_BROKERS_DOWN):
                bounds = None
            else:
                raise self._cluster.refused(self._topic, error) from None
        if bounds is None:
            raise TimeoutError(f"no broker reports the end of {self._topic}-{partition} within {seconds:g} s")
        return bounds

    # ---- the cluster

    def _check_usable(self) -> None:
        """Raise an error if the log cannot go on."""
        if self._fatal:
            raise LogError(self._fatal)
        complaint = self._cluster.complaint
        if complaint is not None and self._cluster.is_final(complaint):
            raise self._cluster.unreachable(complaint)
        if self._check is not None and self._check.done():
            count = self._check.result()
            self._check = None
            if count not in (0, self.partitions):
                raise grown(self._topic, self.partitions, count)
        if self._check is None and time.monotonic() >= self._next_check:
            self._next_check = time.monotonic() + self._check_s
            self._check = self._asker.submit(self._count_partitions)

    def _count_partitions(self) -> int:
        """Return how many partitions the topic has; 0 if no broker answers. In a thread of its own."""
        try:
            found = self._consumer.list_topics(self._topic, timeout=2.0).topics.get(self._topic)
        except self._kafka.KafkaException:
            return 0
        return 0 if found is None or found.error is not None else len(found.partitions)
