"""The records of a live ``__consumer_offsets``, read over the network with confluent-kafka (extra ``kafka``).

    for batch in read_topic("127.0.0.1:9092", {"security.protocol": "SASL_SSL", ...}):
        ...                                     # a pyarrow.RecordBatch of `LogRow`

Laws:

* It reads and does nothing else: it joins no group, commits nothing, and asks for nothing that a broker would create.
* What is read ends where the log ended when reading began; what is written meanwhile is left out. Transactions count
  once they are committed; one that is open ends its partition, for what is behind it is not settled (read_committed).
* Whatever keeps it from reading is a `TopicError` in words that say what to look at, in bounded time.
* Ctrl-C, or dropping the iterator, closes the connection at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from kcoord_wire.extras import require
from kcoord_wire.forensics.model import LogRow, table_of

__all__ = ["OFFSETS_TOPIC", "TopicError", "read_topic"]

OFFSETS_TOPIC: Final = "__consumer_offsets"

_LOGGER: Final = logging.getLogger("kcoord_wire.live")
_LOGGER.addHandler(logging.NullHandler())  # what librdkafka says of a broker that is down is said by the error, once
_POLL_SECONDS: Final = 0.2
_CONNECT_SECONDS: Final = 10.0  # a broker that is there has answered long before
_READS_ONLY: Final = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "allow.auto.create.topics": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
}


class TopicError(OSError):
    """A topic cannot be read. The text says why, and what to look at."""


def read_topic(
    bootstrap: str,
    config: Mapping[str, str] | None = None,
    *,
    topic: str = OFFSETS_TOPIC,
    until_end: bool = True,
    batch_rows: int = 8192,
    patience_s: float = 30.0,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """All records of a topic, from the first there is, in batches of `LogRow`; a partition's come in their order.

    `LogRow.source` is ``topic-partition``, `LogRow.position` the offset.

    :param bootstrap: ``host:port``, several with commas
    :param config: settings of librdkafka, for security above all; those that make it a reader stay as they are
    :param until_end: stop where the log ends now; else go on until the iterator is closed
    :param patience_s: how long to wait for an answer, or for the next record; for the first answer ten seconds at most
    :param progress: is told how many offsets are done and how many there were at the start
    :raises MissingLibraryError: while iterating, as all of these: the extra ``kafka`` is not installed
    :raises TopicError: no broker answers, it does not let us in, there is no such topic, it may not be read, or it
        stops answering
    """
    kafka = require("confluent_kafka", "kafka", "reading a live topic")
    reader = _Reader(kafka, bootstrap, dict(config or {}), topic, patience_s)
    try:
        yield from reader.batches(until_end, batch_rows, progress)
    finally:
        reader.close()


class _Reader:
    def __init__(self, kafka: Any, bootstrap: str, config: dict[str, str], topic: str, patience_s: float) -> None:
        self._kafka = kafka
        self._bootstrap = bootstrap
        self._topic = topic
        self._patience = patience_s
        self._complaint: Any = None
        self._consumer: Any = None
        self._config: dict[str, Any] = {
            **config,
            "bootstrap.servers": bootstrap,
            "error_cb": self._complained,
        }
        self._group = self._config.pop("group.id", "kcoord-wire-reader")  # librdkafka wants one; nobody joins it

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _complained(self, error: Any) -> None:
        fatal = self._complaint is not None and self._complaint.code() == self._kafka.KafkaError._AUTHENTICATION
        if not fatal and error.code() != self._kafka.KafkaError._ALL_BROKERS_DOWN:
            self._complaint = error

    # ---- what there is

    def _connect(self) -> list[int]:
        """The topic's partitions, and a consumer that can read them."""
        admin = require("confluent_kafka.admin", "kafka", "reading a live topic")
        known = self._metadata(self._made(admin.AdminClient, {"allow.auto.create.topics": False}))
        found = known.topics.get(self._topic)
        if found is None:
            hint = (
                "no group has ever been used, or you may not see it" if self._topic == OFFSETS_TOPIC else "see its name"
            )
            raise TopicError(f"the cluster at {self._bootstrap} shows no topic {self._topic} ({hint})")
        if found.error is not None:
            raise self._refused(found.error)
        self._consumer = self._made(self._kafka.Consumer, {"group.id": self._group, **_READS_ONLY})
        return sorted(found.partitions)

    def _made(self, kind: Any, settings: Mapping[str, Any]) -> Any:
        try:
            return kind({**self._config, **settings}, logger=_LOGGER)
        except (self._kafka.KafkaException, ValueError, TypeError) as error:
            raise TopicError(f"librdkafka does not take these settings: {_text(error)}") from None

    def _metadata(self, admin: Any) -> Any:
        """All topics: to ask for one by name makes a broker create it."""
        wait = min(self._patience, _CONNECT_SECONDS)
        end = time.monotonic() + wait
        error: Any = None
        while time.monotonic() < end:
            admin.poll(0)
            if self._complaint is not None and self._is_final(self._complaint):
                break
            try:
                return admin.list_topics(timeout=min(2.0, wait))
            except self._kafka.KafkaException as failure:
                error = failure.args[0]
                if self._is_final(error):
                    break
        admin.poll(0)
        raise self._unreachable(error)

    def _is_final(self, error: Any) -> bool:
        """Whether waiting does not help."""
        codes = self._kafka.KafkaError
        return error.code() in (codes._AUTHENTICATION, codes.SASL_AUTHENTICATION_FAILED, codes._SSL, codes._FATAL)

    def _unreachable(self, error: Any) -> TopicError:
        reason = _text(self._complaint if self._complaint is not None else error)
        if self._complaint is not None and self._is_final(self._complaint):
            return TopicError(
                f"the broker at {self._bootstrap} does not let us in: {reason}; see the security settings"
            )
        what = f"no broker answers at {self._bootstrap} within {min(self._patience, _CONNECT_SECONDS):g} s"
        return TopicError(f"{what}: {reason}; see that address, port and security.protocol are right")

    def _refused(self, error: Any) -> TopicError:
        codes = self._kafka.KafkaError
        if error.code() == codes.TOPIC_AUTHORIZATION_FAILED:
            return TopicError(f"not authorised to read {self._topic}: the user needs Describe and Read on that topic")
        if error.code() in (codes.UNKNOWN_TOPIC_OR_PART, codes._UNKNOWN_TOPIC, codes._UNKNOWN_PARTITION):
            return TopicError(f"{self._topic} is gone from the cluster at {self._bootstrap}: {_text(error)}")
        return TopicError(f"{self._topic} at {self._bootstrap} cannot be read: {_text(error)}")

    # ---- what is read

    def batches(
        self, until_end: bool, batch_rows: int, progress: Callable[[int, int], None] | None
    ) -> Iterator[pa.RecordBatch]:
        partitions = self._connect()
        lows, ends = self._bounds(partitions)
        done = dict(lows)
        total = sum(ends[partition] - lows[partition] for partition in partitions)
        left = {partition for partition in partitions if ends[partition] > lows[partition] or not until_end}
        place = self._kafka.TopicPartition
        self._consumer.assign([place(self._topic, partition, lows[partition]) for partition in sorted(left)])
        rows = _Rows(self._topic)
        heard = time.monotonic()
        while left:
            messages = self._consumer.consume(min(batch_rows, 10_000), _POLL_SECONDS)
            over = []
            for message in messages:
                partition, error = message.partition(), message.error()
                if error is not None:
                    if error.code() != self._kafka.KafkaError._PARTITION_EOF:
                        raise self._refused(error)
                    if until_end and partition in left:
                        over.append(partition)
                    continue
                offset = message.offset()
                if until_end and offset >= ends[partition]:
                    over.append(partition)
                    continue
                rows.add(message)
                done[partition] = offset + 1
                if until_end and offset + 1 >= ends[partition]:
                    over.append(partition)
            for partition in set(over) & left:
                left.discard(partition)
                done[partition] = ends[partition]
                self._consumer.incremental_unassign([place(self._topic, partition)])
            if messages:
                heard = time.monotonic()
            if rows.count >= batch_rows or (rows.count and not messages):
                yield rows.take()
            if progress is not None:
                progress(sum(done.values()) - sum(lows.values()), total)
            if until_end and left and time.monotonic() - heard > self._patience:
                raise self._stalled(done, ends, left)
        if rows.count:
            yield rows.take()

    def _bounds(self, partitions: list[int]) -> tuple[dict[int, int], dict[int, int]]:
        """The first offset of each partition, and the one after its last."""
        lows, ends = {}, {}
        for partition in partitions:
            place = self._kafka.TopicPartition(self._topic, partition)
            try:
                bounds = self._consumer.get_watermark_offsets(place, timeout=self._patience, cached=False)
            except self._kafka.KafkaException as error:
                raise self._refused(error.args[0]) from None
            if bounds is None:
                raise TopicError(f"nobody tells where {self._topic}-{partition} ends within {self._patience:g} s")
            lows[partition], ends[partition] = bounds
        return lows, ends

    def _stalled(self, done: Mapping[int, int], ends: Mapping[int, int], left: set[int]) -> TopicError:
        partition = min(left)
        where = f"{self._topic}-{partition} at offset {done[partition]} of {ends[partition]}"
        reason = "" if self._complaint is None else f": {_text(self._complaint)}"
        more = "" if len(left) == 1 else f" and {len(left) - 1} more partitions"
        return TopicError(f"nothing has come for {self._patience:g} s from {where}{more}{reason}")


class _Rows:
    """Records on their way into a batch."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._rows: list[LogRow] = []

    @property
    def count(self) -> int:
        return len(self._rows)

    def add(self, message: Any) -> None:
        offset, partition = message.offset(), message.partition()
        self._rows.append(
            LogRow(
                source=f"{self._topic}-{partition}",
                partition=partition,
                offset=offset,
                position=offset,
                time_ns=message.timestamp()[1] * 1_000_000,
                key=message.key(),
                value=message.value(),
            )
        )

    def take(self) -> pa.RecordBatch:
        rows, self._rows = self._rows, []
        (batch,) = table_of(LogRow, rows).to_batches()
        return batch


def _text(error: Any) -> str:
    """What an error says, without the codes around it."""
    if isinstance(error, Exception) and error.args and hasattr(error.args[0], "str"):
        error = error.args[0]
    return str(error.str() if hasattr(error, "str") else error) if error is not None else "no answer"
