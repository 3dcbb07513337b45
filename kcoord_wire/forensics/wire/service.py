"""When a group's coordinator answered its members, and which requests waited for an answer.

Laws:

* An answer that refuses because the broker does not coordinate the group now (14, 15, 16) is none; any other is one.
* JoinGroup and SyncGroup wait for other members: how long they take says nothing about the coordinator.
* A heartbeat never becomes an object, unless it waited for `LONG_NS`.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.forensics.wire.heartbeats import longs
from kcoord_wire.forensics.wire.moments import NS_PER_S
from kcoord_wire.protocol.error_codes import ErrorCode

REFUSALS: Final = frozenset(
    {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
)

LONG_NS: Final = 2 * NS_PER_S
"""A coordinator that works answers within milliseconds."""

_SILENCE_NS: Final = 5 * NS_PER_S  # shorter than this, members may just have nothing to ask
_PARKED: Final = ["JoinGroup", "SyncGroup"]
_AT_ONCE: Final = ["Heartbeat", "LeaveGroup", "OffsetCommit", "OffsetFetch", "ConsumerGroupHeartbeat"]


class Wait(NamedTuple):
    """A request that was answered late, or not at all.

    :ivar answered_ns: None without an answer
    """

    asked_ns: int
    answered_ns: int | None
    source: str
    seq: int
    api: str
    connection: str


class Service:
    """The answers of a group's coordinators.

    :param exchanges: rows of `model.Exchange` of a group, each with the time of its request
    :ivar waits: requests that waited for `LONG_NS` or longer, in order of time; JoinGroup and SyncGroup are never among
        them
    :ivar spans: by connection to a coordinator, its first and its last answer
    :ivar silences: intervals without any request to a coordinator, from the last one before, to the first after or None
    """

    def __init__(self, exchanges: pa.Table) -> None:
        rows = exchanges.filter(pc.is_in(exchanges["api"], value_set=pa.array([*_PARKED, *_AT_ONCE])))
        refused = pc.is_in(rows["error_code"], value_set=pa.array(sorted(REFUSALS), rows["error_code"].type))
        served = rows.filter(pc.and_(pc.is_valid(rows["answered_ns"]), pc.invert(refused)))
        served = served.select(["answered_ns", "connection"]).sort_by("answered_ns").combine_chunks()
        self._answered = longs(served["answered_ns"])
        self._connections = served["connection"]
        self.spans = _spans(served)
        self.waits = _waits(rows)
        self.silences = list(_silences(rows))

    def next_answer(self, after_ns: int) -> int | None:
        """When a member was next answered."""
        at = bisect_right(self._answered, after_ns)
        return self._answered[at] if at < len(self._answered) else None

    def last_answer(self, until_ns: int) -> int | None:
        """When a member was last answered, up to a time."""
        at = bisect_right(self._answered, until_ns)
        return self._answered[at - 1] if at else None

    def broker_before(self, until_ns: int) -> str | None:
        """The address of the broker that answered last, up to a time."""
        at = bisect_right(self._answered, until_ns)
        return broker_address(self._connections[at - 1].as_py()) if at else None

    def broker_after(self, after_ns: int) -> str | None:
        """The address of the broker that answered next."""
        at = bisect_right(self._answered, after_ns)
        return broker_address(self._connections[at].as_py()) if at < len(self._answered) else None


def broker_address(connection: str) -> str:
    """Return the broker's address, ``host:port``, in the name of a connection."""
    return connection.partition("-")[2].rpartition("#")[0]


def _spans(served: pa.Table) -> dict[str, tuple[int, int]]:
    ends = served.group_by("connection").aggregate([("answered_ns", "min"), ("answered_ns", "max")]).to_pylist()
    return {row["connection"]: (row["answered_ns_min"], row["answered_ns_max"]) for row in ends}


def _waits(rows: pa.Table) -> list[Wait]:
    at_once = rows.filter(pc.is_in(rows["api"], value_set=pa.array(_AT_ONCE)))
    took = pc.subtract(at_once["answered_ns"], at_once["asked_ns"])
    late = at_once.filter(pc.fill_null(pc.greater_equal(took, LONG_NS), True))
    columns = (late[name].to_pylist() for name in ("asked_ns", "answered_ns", "source", "seq", "api", "connection"))
    return sorted(map(Wait._make, zip(*columns, strict=True)), key=lambda wait: (wait.asked_ns, wait.source, wait.seq))


def _silences(rows: pa.Table) -> list[tuple[int, int | None]]:
    """Two files may be of two days: what is between them is not known."""
    asked = rows.select(["asked_ns", "source"]).sort_by("asked_ns").combine_chunks()
    times = asked["asked_ns"].combine_chunks()
    if not len(times):
        return []
    wide = pc.indices_nonzero(pc.greater(pc.subtract(times[1:], times[:-1]), _SILENCE_NS)).to_pylist()
    sources = asked["source"]
    found: list[tuple[int, int | None]] = [
        (times[at].as_py(), times[at + 1].as_py()) for at in wide if sources[at] == sources[at + 1]
    ]
    return [*found, (times[-1].as_py(), None)]
