"""What has changed between two polls, for lines on a terminal and for programs; plain data."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from kcoord_wire.forensics.model import Identity
from kcoord_wire.report.formatting import iso, shown


class ChangeKind(enum.StrEnum):
    """What a `Change` is about."""

    GROUP_SEEN = "group seen"
    GROUP_GONE = "group gone"
    MEMBER_JOINED = "member joined"
    MEMBER_GONE = "member gone"
    MEMBER_REPLACED = "member replaced"  # a static one, by a process with its instance id
    REBALANCE_BEGAN = "rebalance began"
    REBALANCE_ENDED = "rebalance ended"
    COORDINATOR_MOVED = "coordinator moved"
    OFFSET_SET_BACK = "offset set back"
    UNANSWERED = "unanswered"
    ANSWERED = "answered"


@dataclass(frozen=True, slots=True)
class Change:
    """Something that a poll shows and the one before did not.

    :ivar time_ns: of the poll; it has happened since the poll before
    :ivar group_id: None for what concerns the cluster
    :ivar text: what, without the group's name
    :ivar member: that it is about
    :ivar rebalance: number of the rebalance
    :ivar cause: of the rebalance, a value of `kcoord_wire.forensics.Cause`
    :ivar confidence: in the cause
    """

    time_ns: int
    group_id: str | None
    kind: ChangeKind
    text: str
    member: Identity | None = None
    rebalance: int | None = None
    cause: str | None = None
    confidence: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the change as plain data; what is not known is null."""
        return {
            "time": iso(self.time_ns),
            "time_ns": self.time_ns,
            "group_id": self.group_id,
            "kind": str(self.kind),
            "text": self.text,
            **(self.member or Identity())._asdict(),
            "rebalance": self.rebalance,
            "cause": self.cause,
            "confidence": self.confidence,
        }


def lines_of(changes: Iterable[Change]) -> Iterator[str]:
    """Yield one line for each group that has changed in a poll: ``12:00:03 billing: member c-2 (10.0.0.2) gone``."""
    for (time_ns, group_id), some in groupby(changes, key=lambda change: (change.time_ns, change.group_id)):
        name = "" if group_id is None else f"{shown(group_id, 80)}: "
        yield f"{clock(time_ns)} {name}{'; '.join(change.text for change in some)}"


def clock(time_ns: int) -> str:
    """The time of day in UTC: ``12:00:03``."""
    text = iso(time_ns)
    return "?" if text is None else text[11:19]
