"""A coordinator that stays, and cannot write its log: what it has to write it refuses with COORDINATOR_NOT_AVAILABLE.

A coordinator answers a commit, the assignment of a generation, and each heartbeat of a KIP-848 group once the record is
on enough replicas of __consumer_offsets. Where these are missing it answers 15 (NOT_ENOUGH_REPLICAS and its kind are
translated), at once or when its timeout has passed. To the coordinator of 3.9 and newer a heartbeat of a classic group
is a write without records: it waits for the writes before it, and fails with them. The same code from a broker that was
restarted, or that another replaces, is a loss of the coordinator; it answers a heartbeat with that at once.

Laws:

* The broker answered the group before, and the next good answer to a write is its own, or there is none.
* Around it no broker says that it loads the group or does not coordinate it (14, 16), the broker can be connected, and
  ends no connection.

Source: Kafka's CoordinatorRuntime.java and GroupMetadataManager.scala (`appendForGroup`), offsets.commit.timeout.ms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Final

from kcoord_wire.forensics.model import EPOCH_APIS, SightingKind, broker_address
from kcoord_wire.forensics.wire.links import Link
from kcoord_wire.forensics.wire.signs import NS_PER_S, REFUSALS
from kcoord_wire.forensics.wire.traffic import GroupRequest, GroupTraffic
from kcoord_wire.protocol.error_codes import ErrorCode, describe_error

_WRITES: Final = frozenset({"OffsetCommit", "SyncGroup", "JoinGroup", "LeaveGroup", *EPOCH_APIS})
_ONE_NS: Final = 30 * NS_PER_S  # refusals of one time are not further apart
_AROUND_NS: Final = 10 * NS_PER_S
_NOTABLE_NS: Final = NS_PER_S
_LOST: Final = (SightingKind.REFUSED, SightingKind.CLOSED, SightingKind.RESET)


@dataclass(slots=True, eq=False)
class Unwritten:
    """A time in which a coordinator could not write its log.

    :ivar signs: the requests that it refused
    :ivar to_ns: when it had written again; None where the source ended first
    """

    broker: str
    signs: list[GroupRequest]
    from_ns: int
    to_ns: int | None

    @property
    def text(self) -> str:
        """What it refused, in words."""
        apis = ", ".join(f"{count:,} {api}" for api, count in Counter(sign.api for sign in self.signs).most_common())
        took = median(sign.answered.time_ns - sign.asked.time_ns for sign in self.signs if sign.answered is not None)
        after = f", after {took / NS_PER_S:.1f} s each" if took >= _NOTABLE_NS else ""
        return f"{apis} were refused with {describe_error(ErrorCode.COORDINATOR_NOT_AVAILABLE)}{after}"


def find_unwritten(traffic: GroupTraffic) -> list[Unwritten]:
    """Return the times in which a coordinator stayed and could not write, in order of time."""
    found = (_episode(traffic, broker, signs) for broker, signs in _together(traffic.requests))
    return [each for each in found if each is not None]


def _together(requests: list[GroupRequest]) -> Iterator[tuple[str, list[GroupRequest]]]:
    """Yield the refusals of each broker that are of one time."""
    by_broker: dict[str, list[GroupRequest]] = {}
    for request in requests:
        if request.error == ErrorCode.COORDINATOR_NOT_AVAILABLE and _is_write(request):
            by_broker.setdefault(broker_address(request.connection), []).append(request)
    for broker, refused in by_broker.items():
        signs: list[GroupRequest] = []
        for request in refused:
            if signs and request.asked.time_ns - signs[-1].asked.time_ns > _ONE_NS:
                yield broker, signs
                signs = []
            signs.append(request)
        yield broker, signs


def _is_write(request: GroupRequest) -> bool:
    """Whether an answered request is a write, or has waited for one."""
    if request.answered is None:
        return False
    return request.api in _WRITES or request.answered.time_ns - request.asked.time_ns >= _NOTABLE_NS


def _episode(traffic: GroupTraffic, broker: str, signs: list[GroupRequest]) -> Unwritten | None:
    from_ns = signs[0].asked.time_ns
    last_ns = max(sign.answered.time_ns for sign in signs if sign.answered is not None)
    if traffic.service.broker_before(from_ns) != broker:
        return None
    if traffic.service.broker_after(last_ns) not in (None, broker):
        return None
    around = (from_ns - _AROUND_NS, last_ns + _AROUND_NS)
    if any(_is_moving(request, around) for request in traffic.requests):
        return None
    if any(_is_lost(link) for kind in _LOST for link in traffic.links.to(broker, kind, from_ns, last_ns)):
        return None
    return Unwritten(broker, signs, from_ns, traffic.service.next_answer(last_ns))


def _is_moving(request: GroupRequest, around: tuple[int, int]) -> bool:
    """Whether a broker says that it does not coordinate the group, or loads it."""
    is_other = request.error in REFUSALS and request.error != ErrorCode.COORDINATOR_NOT_AVAILABLE
    return is_other and request.answered is not None and around[0] <= request.answered.time_ns <= around[1]


def _is_lost(link: Link) -> bool:
    """Whether the broker is to blame."""
    return link.kind == SightingKind.REFUSED or link.by == "broker"
