"""The topics that a group consumes, as the host of a member needs them: where to start, records, committed offsets.

Laws of every implementation:

* The records of a tenure come in order of offset, from its start on, each once, until `DataTopics.stop`; then none.
* `DataRecord.covers_from` to `DataRecord.next_offset` of a tenure's records leave no gap: markers of transactions and
  removed records count to the record behind them. So the contiguous processed prefix never waits for an offset that
  has no record.
* A start is within what the partition has. One above its end becomes the end, and is reported (`machines.Noted`): the
  group would else wait for records that were numbered anew, or would claim and fail in turns for ever.
* What is fetched ahead is bounded in bytes, also while tenures are paused.
* No method but `poll` waits, and that no longer than it may; answers come from `poll`.

Sources: the Go library's order of offsets (log, committed, earliest); its issue #35, an offset beyond the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from kcoord_wire.kernel.machines import Noted
from kcoord_wire.marshal.events import FetchFailed, FindStart, StartFailed, StartFound, Tenure, TopicPartitions


class TopicsError(OSError):
    """The topics cannot be used: they are not there, or no broker answers, or one refuses."""


class DataRecord(NamedTuple):
    """A record of a topic that a tenure consumes.

    :ivar covers_from: the offset behind the tenure's former record, or where the tenure has started; below `offset` if
        there is a gap
    :ivar time_ms: ms since the Unix epoch; -1 for none
    """

    tenure: Tenure
    offset: int
    covers_from: int
    time_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()

    @property
    def topic(self) -> str:
        """Of the record."""
        return self.tenure.topic

    @property
    def partition(self) -> int:
        """Of the record."""
        return self.tenure.partition

    @property
    def token(self) -> int:
        """The fencing token: see `events.Tenure`."""
        return self.tenure.token

    @property
    def next_offset(self) -> int:
        """The position of a group that has processed this record."""
        return self.offset + 1


DataEvent = DataRecord | StartFound | StartFailed | FetchFailed | TopicPartitions | Noted
"""What `DataTopics.poll` returns: records for the application, `Noted` for the log, the others for the machine."""


class DataTopics(Protocol):
    """The topics of one member of one group. Not safe for several threads."""

    def poll(self, seconds: float) -> Sequence[DataEvent]:
        """Return what has come; wait up to so long for the first. A bounded number of records in one call.

        `TopicPartitions` comes first, and again when a count has changed.
        """

    def find_start(self, request: FindStart) -> None:
        """Find where a tenure starts; `StartFound` or `StartFailed` comes from `poll`."""

    def start(self, tenure: Tenure, offset: int) -> None:
        """Fetch a tenure's records from an offset on. A former tenure of the partition ends."""

    def stop(self, tenure: Tenure) -> None:
        """Fetch nothing more of a tenure; nothing happens if it has ended."""

    def pause(self, tenure: Tenure) -> None:
        """Let `poll` return nothing more of a tenure until `resume`: the application is behind."""

    def resume(self, tenure: Tenure) -> None:
        """End a `pause`."""

    def commit(self, tenure: Tenure, offset: int) -> None:
        """Commit the group's offset, for lag tools and as the start when the log has none; best effort, no answer."""

    def end(self, tenure: Tenure) -> int:
        """Return the offset behind the partition's last record, as last heard; -1 before anything was heard."""

    def close(self) -> None:
        """Deliver the commits, then release everything."""


class Start(NamedTuple):
    """Where a tenure starts.

    :ivar note: why it is not the wanted offset; empty if it is
    """

    offset: int
    note: str = ""


def choose_start(from_log: int, committed: int | None, low: int, end: int) -> Start:
    """Return where to start in a partition.

    :param from_log: next offset by the coordination log; 0 for unknown
    :param committed: by the group in Kafka; None for none
    :param low: the first offset that is there
    :param end: the offset behind the last one
    """
    wanted = from_log if from_log > 0 else committed
    if wanted is None or wanted < 0:
        return Start(low)
    source = "the log's offset" if from_log > 0 else "the group's committed offset"
    if wanted > end:
        return Start(end, f"{source} {wanted} is above the end, {end}")
    if wanted < low:
        return Start(low, f"{source} {wanted} is below the first record, {low}: {low - wanted} offsets were removed")
    return Start(wanted)
