"""The judge of real consumers: by their output it says what was lost, what was repeated, and who held what when.

Laws that it checks, with the heartbeat interval of the group:

* At least once: every record of the input is in the output.
* A new tenure repeats records of at most one heartbeat interval of each former one: those that were handed to it after
  its last heartbeat. The record that it had in hand then may be older, so one of each does not count. A tenure that
  ends before its first heartbeat leaves what it repeated to be repeated once more.
* At most once: no record is in the output twice.
* No two tenures of a partition overlap: nothing is handed out with a token after a larger one was used.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from confluent_kafka import Consumer, TopicPartition

_SECONDS = 30.0


class Processed(NamedTuple):
    """A record of the output.

    :ivar handed_ms: when it was handed out, by the clock that all processes of a machine share: as the consumer read it
        when it decided, for the process may be stopped behind that
    """

    client: str
    token: int
    partition: int
    offset: int
    handed_ms: int


@dataclass(frozen=True)
class Takeover:
    """A partition went from one tenure to the next.

    :ivar gap_ms: from the last record of the former one to the first of the next
    :ivar repeated: records of the former one that the next one was handed, too
    :ivar span_ms: from the second to the last record that one and the same former tenure was handed, and the next one,
        too; the longest such span
    """

    partition: int
    before: Processed
    after: Processed
    gap_ms: int
    repeated: int
    span_ms: int


class ClaimRules:
    """The verdict on an output.

    :param output: in the order in which it was appended
    :param ends: of the input's partitions: offset behind the last record
    """

    def __init__(self, output: Iterable[Processed], ends: Sequence[int]) -> None:
        self._ends = ends
        self._tenures: dict[int, dict[int, list[Processed]]] = defaultdict(lambda: defaultdict(list))
        self.times: Counter[tuple[int, int]] = Counter()
        for row in output:
            self._tenures[row.partition][row.token].append(row)
            self.times[row.partition, row.offset] += 1

    @property
    def missing(self) -> list[tuple[int, int]]:
        """Partition and offset of the records that are not in the output."""
        return [
            (partition, offset)
            for partition, end in enumerate(self._ends)
            for offset in range(end)
            if not self.times[partition, offset]
        ]

    @property
    def repeated(self) -> list[tuple[int, int]]:
        """Partition and offset of the records that are in the output more than once."""
        return sorted(record for record, times in self.times.items() if times > 1)

    @property
    def takeovers(self) -> list[Takeover]:
        """In the order of partitions and tokens."""
        return [
            _takeover([tenures[token] for token in tokens[: index + 1]], tenures[tokens[index + 1]])
            for _, tenures in sorted(self._tenures.items())
            for tokens in [sorted(tenures)]
            for index in range(len(tokens) - 1)
        ]

    def repeated_of(self, tenures: Iterable[tuple[int, int]]) -> dict[tuple[int, int], int]:
        """Return how many records of each of these tenures, by partition and token, the next one was handed, too."""
        repeated = {}
        for partition, token in tenures:
            offsets = {row.offset for row in self._tenures[partition][token]}
            later = min(each for each in self._tenures[partition] if each > token)
            repeated[partition, token] = len(
                offsets.intersection(row.offset for row in self._tenures[partition][later])
            )
        return repeated

    def unlawful(self, interval_ms: int, *, at_most_once: bool) -> list[str]:
        """Return what breaks a law, in words."""
        found = [
            f"partition {t.partition}: {t.before.client} (token {t.before.token}) was handed offset {t.before.offset}"
            f" {-t.gap_ms} ms after {t.after.client} (token {t.after.token}) was handed offset {t.after.offset}"
            for t in self.takeovers
            if t.gap_ms < 0
        ]
        if at_most_once:
            return found + [
                f"partition {p}: offset {o} was processed {self.times[p, o]} times" for p, o in self.repeated
            ]
        found += [f"partition {p}: offset {o} was never processed" for p, o in self.missing]
        return found + [
            f"partition {t.partition}: {t.after.client} repeats {t.repeated} records of {t.before.client},"
            f" or of one before, handed out over {t.span_ms} ms, more than one heartbeat interval"
            for t in self.takeovers
            if t.span_ms > interval_ms
        ]

    def summary(self) -> str:
        """Return the figures in one line."""
        gaps = [takeover.gap_ms for takeover in self.takeovers] or [0]
        repeats = [takeover.repeated for takeover in self.takeovers] or [0]
        return (
            f"{sum(self._ends)} records, {len(self.missing)} missing, {len(self.repeated)} repeated;"
            f" {len(self.takeovers)} takeovers in {statistics.median(gaps):.0f} ms (median), {max(gaps)} ms (longest),"
            f" with {max(repeats)} repeated records at most"
        )


def _takeover(formers: Sequence[Sequence[Processed]], tenure: Sequence[Processed]) -> Takeover:
    offsets = {row.offset for row in tenure}
    again = [sorted(row.handed_ms for row in former if row.offset in offsets) for former in formers]
    before = max((row for former in formers for row in former), key=lambda row: row.handed_ms)
    after = min(tenure, key=lambda row: row.handed_ms)
    span_ms = max(handed[-1] - handed[1] if len(handed) > 1 else 0 for handed in again)
    return Takeover(after.partition, before, after, after.handed_ms - before.handed_ms, len(again[-1]), span_ms)


class Output:
    """The output topic, which has one partition, as far as it was read.

    :ivar rows: in the order in which they were appended
    """

    def __init__(self, brokers: str, topic: str) -> None:
        self.rows: list[Processed] = []
        self._topic = TopicPartition(topic, 0, 0)
        self._consumer = Consumer(
            {"bootstrap.servers": brokers, "group.id": "judge", "enable.auto.commit": False, "fetch.wait.max.ms": 50}
        )
        self._consumer.assign([self._topic])
        self._position = 0

    def read(self) -> list[Processed]:
        """Read up to the present end; return all rows."""
        _, end = self._consumer.get_watermark_offsets(self._topic, timeout=_SECONDS)
        until = time.monotonic() + _SECONDS
        while self._position < end:
            assert time.monotonic() < until, f"{self._topic.topic} stops at {self._position} of {end}"
            message = self._consumer.poll(0.1)
            if message is not None:
                assert message.error() is None, message.error()
                self._position = message.offset() + 1
                self.rows.append(Processed(*json.loads(message.value())))
        return self.rows

    def ends(self, topic: str, partitions: int) -> list[int]:
        """Return the ends of a topic's partitions."""
        return [
            self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_SECONDS)[1]
            for partition in range(partitions)
        ]

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()
