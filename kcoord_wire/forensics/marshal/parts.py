"""What one coordination partition shows, in rows that are small next to the log: the parts of which histories are made.

A claim depends on the entries of its coordination partition alone, and on nothing of other partitions. Each partition
can be read by itself, then; what is about a whole group is put together afterwards (`history`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from kcoord_wire.forensics.model import ClaimRow, CommitRow, Finding, Loss, Pause
from kcoord_wire.marshal.machine import HEARTBEAT_INTERVAL_S
from kcoord_wire.marshal.state import Rules


class Judge(NamedTuple):
    """By what a log is judged.

    :ivar rules: ``document``: by the log's order and times alone. ``library``: what a member with the Go library
        believes that reads each entry when it is appended
    :ivar heartbeat_interval_s: of the group's members; the Go library's is a constant
    :ivar partitions: of the coordination topic; with it, entries on another partition than their topic's are left out
        by the rules of the document. None if it is not known
    """

    rules: str = Rules.DOCUMENT.value
    heartbeat_interval_s: int = HEARTBEAT_INTERVAL_S
    partitions: int | None = None


@dataclass(slots=True)
class Sighting:
    """An instance of a group, as one coordination partition shows it.

    :ivar topics: that its messages name
    :ivar ahead_ms: the most by which a time in its messages is ahead of the record's append time; None without append
        times
    :ivar behind_ms: how far the times in its messages are behind the newest one in the log before them, summed; 0 for
        those that are not
    :ivar messages: how many it has sent
    :ivar has_append_time: the broker has set the times of the records
    :ivar end_ns: the log's time when the row was made; two intervals after `last_ns` for an instance that went silent
    :ivar is_trimmed: the beginning of the partition is gone
    :ivar refused: claims, heartbeats and releases of it without effect
    :ivar unread: messages about offset ranges, which no table has
    :ivar misplaced: messages that lie on another partition than their topic's
    """

    coordination_partition: int
    client_id: str
    instance_id: str
    topics: list[str]
    first_ns: int
    last_ns: int
    has_append_time: bool
    ahead_ms: int | None = None
    behind_ms: int = 0
    messages: int = 0
    end_ns: int = 0
    is_trimmed: bool = False
    refused: int = 0
    unread: int = 0
    misplaced: int = 0


@dataclass(slots=True)
class GroupPause:
    """A ReleaseGroup: the group holds nothing until a time."""

    client_id: str
    from_ns: int
    until_ns: int


@dataclass(slots=True)
class Part:
    """One row of a coordination partition: about a group, or a loss, which has no group; one column is set.

    Only a stream has the last two (`live`): in a history they follow from the others.
    """

    group_id: str | None
    claim: ClaimRow | None = None
    commit: CommitRow | None = None
    sighting: Sighting | None = None
    pause: GroupPause | None = None
    loss: Loss | None = None
    unowned: Pause | None = None
    finding: Finding | None = None


MS_PER_S: Final = 1000
