"""The coordination log as members see it: ordered partitions of text, to which everybody appends.

Laws of every implementation:

* Each reader of a partition gets the same entries in the same order; offsets grow, and may have gaps.
* An append that failed may have landed nevertheless, and one that landed may be there twice (`AppendFailed`).
* Entries are at least as old as the moment at which `poll` returns them, and are never taken back.
* An entry that retention removed between two polls, before it was returned, is a `LogError`: the world state would lack
  it. Entries removed before the first one was returned are no loss: then reading begins at the oldest that is left.
* Coordination partitions that were added are a `LogError`: topics would have others than before. All members have to
  start again; the Go library ends then, too.

Source: Marshal PROTOCOL.md, "Synopsis"; the form of a record: one message, null key, uncompressed, acks=all.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class LogError(OSError):
    """The log cannot be used: it is not there, was created with settings that lose claims, or does not answer."""


class RawEntry(NamedTuple):
    """An entry as it is in the log.

    :ivar partition: of the coordination topic
    :ivar time_ms: of the record, ms since the Unix epoch; -1 for none (message format 0)
    :ivar is_append_time: the broker has set `time_ms` when it appended the record (``message.timestamp.type``)
    :ivar value: the text; None for a null value
    """

    partition: int
    offset: int
    time_ms: int
    is_append_time: bool
    value: bytes | None


@dataclass(slots=True)
class Appended:
    """An `append` succeeded.

    :ivar request: number of the request
    :ivar offset: of the entry in its partition
    """

    request: int
    offset: int


@dataclass(slots=True)
class AppendFailed:
    """An `append` failed.

    :ivar request: number of the request
    :ivar reason: in words
    :ivar may_have_landed: the entry may be in the log, now or later: the answer was lost, or did not come in time
    """

    request: int
    reason: str
    may_have_landed: bool


class Log(Protocol):
    """A coordination log. Not safe for several threads; every method but `poll` and `append` may wait for an answer.

    :ivar partitions: how many coordination partitions there are
    """

    partitions: int

    def read_from_start(self, partitions: Collection[int]) -> None:
        """Let `poll` return the entries of these partitions, from the first one that is still there.

        :raises LogError: the log cannot be read
        """

    def poll(self, seconds: float) -> Sequence[RawEntry]:
        """Return new entries; wait up to so long for the first. Results of appends are delivered during the call.

        Results, and an answer of the broker without an entry, end the wait early.

        :raises LogError: the log cannot be read any more
        """

    def append(
        self, request: int, partition: int, value: bytes, done: Callable[[Appended | AppendFailed], None]
    ) -> None:
        """Append an entry, behind those of earlier calls; `done` is called once, in this call or in a `poll`."""

    def position(self, partition: int) -> int:
        """Return the offset below which `poll` has returned every entry; also behind a gap at the end of the log.

        0 until the first answer. `end` is reached when this is not below it; the offset of the last entry need not show
        that, because markers of transactions and compaction leave gaps.
        """

    def end(self, partition: int, seconds: float = 5.0) -> int:
        """Return the offset behind the last entry of a partition.

        :param seconds: to wait for the answer; a member's host waits for less than its fences can
        :raises TimeoutError: none has come; ask again
        :raises LogError: the log cannot be read any more
        """

    def close(self) -> None:
        """Deliver the results of all appends, then release everything."""


@functools.lru_cache(maxsize=1024)
def coordination_partition(topic: str, partitions: int) -> int:
    """Return the coordination partition of a topic, whichever its partition is: by the MD5 of its name.

    Source: the Go library; PROTOCOL.md hashes topic and partition.
    """
    return int.from_bytes(hashlib.md5(topic.encode(), usedforsecurity=False).digest()[:8], "little") % partitions


def trimmed(topic: str, partition: int, position: int, low: int) -> LogError:
    """Return the error of a reader whom retention has overtaken."""
    lost = f"the entries {position} to {low - 1} of {topic}-{partition} were removed before they were read"
    return LogError(f"{lost}; retention is too short for this reader, or it stood still: start it again")


def grown(topic: str, before: int, now: int) -> LogError:
    """Return the error of a member whose coordination topic has another number of partitions than at its start."""
    moved = "which moves the coordination of topics to others: all members have to start again"
    return LogError(f"{topic} had {before} partitions at the start and has {now} now, {moved}")
