"""A live cluster, with confluent-kafka (extra ``kafka``): the records of ``__consumer_offsets``, and the lag of groups.

    for batch in read_topic("127.0.0.1:9092", {"security.protocol": "SASL_SSL", ...}):
        ...                                     # a pyarrow.RecordBatch of `LogRow`

Laws:

* It only reads: it joins no group, commits nothing, and requests nothing that a broker would create.
* Reading ends where the log ended when it began; later records are left out. Transactions count once they are
  committed; an open one ends its partition, because what follows is undecided (read_committed).
* Every failure is a `TopicError` that says what to check, in bounded time.
* Ctrl-C, or dropping the iterator, closes the connection at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from kcoord_wire.clients.librdkafka import Cluster, error_text
from kcoord_wire.forensics.model import Lag, LogRow, record_time_ns, table_of

OFFSETS_TOPIC: Final = "__consumer_offsets"

_POLL_SECONDS: Final = 0.2
_MAX_MESSAGES: Final = 10_000  # of one call to librdkafka
_READS_ONLY: Final = {
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
}


class TopicError(OSError):
    """A topic cannot be read. The text says why, and what to check."""


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
    """Yield all records of a topic in batches of `LogRow`, those of a partition in their order.

    `LogRow.source` is ``topic-partition``, `LogRow.position` the offset.

    :param bootstrap: ``host:port``, several with commas
    :param config: settings of librdkafka, mainly for security; those that make it a reader cannot be changed
    :param topic: its name
    :param until_end: stop where the log ends now; otherwise read until the iterator is closed
    :param batch_rows: rows of a batch, at most
    :param patience_s: seconds to wait for a response, or for the next record; for the first response ten at most
    :param progress: called with the number of offsets that are done and the number there were at the start
    :raises MissingLibraryError: while iterating, like the other: the extra ``kafka`` is not installed
    :raises TopicError: no broker answers, the login is refused, the topic does not exist or may not be read, or the
        broker stops answering
    """
    reader = _TopicReader(Cluster(bootstrap, config, TopicError, "reading a live topic", patience_s), topic)
    try:
        yield from reader.batches(until_end, batch_rows, progress)
    finally:
        reader.close()


def read_lag(
    bootstrap: str,
    config: Mapping[str, str] | None = None,
    *,
    groups: Collection[str] | None = None,
    patience_s: float = 30.0,
) -> list[Lag]:
    """Return how far consumer groups are behind the ends of their partitions now.

    There is a row for each partition that a group has committed or that a member has. `Lag.lag` is from the committed
    offset to the high watermark, None where nothing is committed; `Lag.member_id` is None where no member has it.
    Nothing is joined or changed: the requests are those of ``kafka-consumer-groups.sh --describe`` (DescribeGroups,
    OffsetFetch, ListOffsets). The two offsets are not of one moment, so that the lag of a fast partition is a little
    too large, never negative.

    :param bootstrap: ``host:port``, several with commas
    :param config: settings of librdkafka, mainly for security
    :param groups: only these; None for all that the user may see
    :param patience_s: seconds to wait for a response, ten at most
    :return: by group, topic and partition. A partition without a leader, and a group that is not answered, has no row
    :raises MissingLibraryError: the extra ``kafka`` is not installed
    :raises TopicError: no broker answers, or the login is refused
    """
    cluster = Cluster(bootstrap, config, TopicError, "reading the lag of groups", patience_s)
    admin = cluster.make_admin()
    names = [name for name in cluster.groups(admin) if groups is None or name in groups]
    owners = {name: _owners(found) for name, found in cluster.described(admin, names).items()}
    committed = cluster.committed(admin, names)
    wanted = {name: sorted({*committed.get(name, ()), *owners.get(name, ())}) for name in names}
    ends = cluster.ends(admin, {place for places in wanted.values() for place in places})
    now = time.time_ns()
    return [
        _lag_row(name, place, now, committed.get(name, {}).get(place), ends[place], owners.get(name, {}).get(place))
        for name in names
        for place in wanted[name]
        if place in ends
    ]


def _owners(described: Any) -> dict[tuple[str, int], str]:
    """Return the member id that has each topic and partition, from the description of a group."""
    return {
        (place.topic, place.partition): member.member_id
        for member in described.members
        if member.assignment is not None
        for place in member.assignment.topic_partitions
    }


def _lag_row(
    group: str, place: tuple[str, int], now: int, committed: int | None, end: int, member_id: str | None
) -> Lag:
    lag = None if committed is None else max(end - committed, 0)
    return Lag(group, *place, now, committed, None, end, lag, member_id)


class _TopicReader:
    """A consumer without a group that is assigned every partition of one topic."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._kafka = cluster.kafka
        self._topic = topic
        self._patience = cluster.patience_s
        self._consumer: Any = None

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _connect(self) -> list[int]:
        """Return the topic's partitions, with a consumer made that can read them."""
        is_offsets = self._topic == OFFSETS_TOPIC
        hint = "no group has ever been used, or you may not see it" if is_offsets else "see its name"
        partitions = self._cluster.partitions(self._topic, hint)
        self._consumer = self._cluster.make_consumer(_READS_ONLY)
        return partitions

    # ---- its records

    def batches(
        self, until_end: bool, batch_rows: int, progress: Callable[[int, int], None] | None
    ) -> Iterator[pa.RecordBatch]:
        spans = self._spans(self._connect(), until_end)
        self._consumer.assign([self._place(span.partition, span.low) for span in _open(spans)])
        rows: list[LogRow] = []
        heard = time.monotonic()
        while _open(spans):
            messages = self._consumer.consume(min(batch_rows, _MAX_MESSAGES), _POLL_SECONDS)
            rows += self._read(messages, spans)
            heard = time.monotonic() if messages else heard
            if len(rows) >= batch_rows or (rows and not messages):
                yield _batch(rows)
                rows = []
            if progress is not None:
                progress(*_progress(spans))
            if until_end and time.monotonic() - heard > self._patience:
                self._check_stalled(_open(spans))
        if rows:
            yield _batch(rows)

    def _place(self, partition: int, *offset: int) -> Any:
        return self._kafka.TopicPartition(self._topic, partition, *offset)

    def _read(self, messages: Sequence[Any], spans: Mapping[int, _Span]) -> Iterator[LogRow]:
        """Yield the records among the messages, and stop reading the partitions that are at their end."""
        for message in messages:
            error = message.error()
            if error is not None and error.code() != self._kafka.KafkaError._PARTITION_EOF:
                raise self._cluster.refused(self._topic, error)
            span = spans[message.partition()]
            if error is None and not (span.until_end and message.offset() >= span.end):
                span.done = message.offset() + 1
                yield self._row(message)
                if span.done < span.end:
                    continue
            # Here the partition is at its end: by an event, or because a record at or behind its end has come.
            if span.until_end and span.is_open:
                span.done, span.is_open = span.end, False
                self._consumer.incremental_unassign([self._place(span.partition)])

    def _row(self, message: Any) -> LogRow:
        offset, partition = message.offset(), message.partition()
        kind, timestamp_ms = message.timestamp()
        return LogRow(
            source=f"{self._topic}-{partition}",
            partition=partition,
            offset=offset,
            position=offset,
            time_ns=record_time_ns(timestamp_ms),
            key=message.key(),
            value=message.value(),
            is_append_time=kind == self._kafka.TIMESTAMP_LOG_APPEND_TIME,
        )

    def _spans(self, partitions: Sequence[int], until_end: bool) -> dict[int, _Span]:
        """Return what there is to read of each partition."""
        spans = {}
        for partition in partitions:
            try:
                bounds = self._consumer.get_watermark_offsets(
                    self._place(partition), timeout=self._patience, cached=False
                )
            except self._kafka.KafkaException as error:
                raise self._cluster.refused(self._topic, error.args[0]) from None
            if bounds is None:
                raise TopicError(f"no broker reports the end of {self._topic}-{partition} within {self._patience:g} s")
            low, end = bounds
            spans[partition] = _Span(partition, low, end, low, end > low or not until_end, until_end)
        return spans

    def _check_stalled(self, left: Sequence[_Span]) -> None:
        """Raise an error for the first of the partitions that are still read, if there are any."""
        if not left:
            return
        where = f"{self._topic}-{left[0].partition} at offset {left[0].done} of {left[0].end}"
        complaint = self._cluster.complaint
        reason = "" if complaint is None else f": {error_text(complaint)}"
        more = "" if len(left) == 1 else f" and {len(left) - 1} more partitions"
        raise TopicError(f"no record has come for {self._patience:g} s from {where}{more}{reason}")


@dataclass(slots=True)
class _Span:
    """What there is to read of a partition.

    :ivar low: first offset
    :ivar end: offset after the last one, when reading began
    :ivar done: offset of the next record to read
    :ivar is_open: it is being read
    :ivar until_end: reading stops at `end`
    """

    partition: int
    low: int
    end: int
    done: int
    is_open: bool
    until_end: bool


def _open(spans: Mapping[int, _Span]) -> list[_Span]:
    return [span for span in spans.values() if span.is_open]


def _progress(spans: Mapping[int, _Span]) -> tuple[int, int]:
    """Return how many offsets are done, and how many there were at the start."""
    return sum(span.done - span.low for span in spans.values()), sum(span.end - span.low for span in spans.values())


def _batch(rows: list[LogRow]) -> pa.RecordBatch:
    (batch,) = table_of(LogRow, rows).to_batches()
    return batch
