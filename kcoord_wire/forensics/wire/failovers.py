"""The times at which a group's coordinator was lost, or another broker took over.

Two signs show a failover: responses that refuse (14 COORDINATOR_LOAD_IN_PROGRESS, 15 COORDINATOR_NOT_AVAILABLE,
16 NOT_COORDINATOR), and connections that end together. `joins` finds a third: a generation number that went down.

Law: a coordinator that refuses and yet answers a request from before the refusal was not lost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from kcoord_wire.forensics.model import NS_PER_MS, SightingKind
from kcoord_wire.forensics.wire.moments import NS_PER_S, Moment, end_of
from kcoord_wire.forensics.wire.service import REFUSALS, broker_address
from kcoord_wire.forensics.wire.traffic import GroupRequest, GroupTraffic
from kcoord_wire.protocol.error_codes import describe_error

_ONE_FAILOVER_NS: Final = 10 * NS_PER_S  # signs of one failover are not further apart
_TOGETHER_NS: Final = 100 * NS_PER_MS  # connections that end within this time end together
_RETURN_NS: Final = 60 * NS_PER_S  # a client that has lost its connection is back within this time
_SHOWN_SIGNS: Final = 4
_ENOUGH_RETURNS: Final = 2  # one client that reconnects may have restarted; two at once have not
_WAITING_APIS: Final = ("JoinGroup", "SyncGroup")


@dataclass(slots=True, eq=False)
class Failover:
    """The coordinator was lost, or another took over.

    :ivar begin: the first sign; requests that were parked then are lost
    :ivar end: the last sign
    :ivar signs: the exchanges that show it
    :ivar text: what the signs are
    :ivar ended: how many connections ended together
    """

    begin: Moment
    end: Moment
    signs: list[GroupRequest]
    text: str
    ended: int = 0

    @property
    def is_refusal(self) -> bool:
        """Whether a broker said so, which is more than connections that end together."""
        return any(sign.error in REFUSALS for sign in self.signs)


def find_failovers(traffic: GroupTraffic) -> list[Failover]:
    """Find the failovers that refusals, and connections that end together, show."""
    refused = list(_by_refusals(traffic.requests))
    found = _merged([*refused, *_Connections(traffic).failovers(refused)], traffic.requests)
    return [failover for failover in found if not _is_survived(traffic.requests, failover)]


def client_address(connection: str) -> str:
    """The client's address in the name of a connection, without its port."""
    return connection.partition("-")[0].rpartition(":")[0].strip("[]")


def _by_refusals(requests: list[GroupRequest]) -> Iterator[Failover]:
    for request in requests:
        if request.error in REFUSALS and request.api != "FindCoordinator" and request.answered is not None:
            text = f"{request.api} was answered with {describe_error(request.error)}"
            yield Failover(request.answered, request.answered, [request], text)


class _Connections:
    """Finds connections to a broker that end together, although their clients go on and no other connection does."""

    def __init__(self, traffic: GroupTraffic) -> None:
        self._spans = traffic.answered_ns
        self._last: dict[str, GroupRequest] = {}
        self._used_by = {member_id: set(names) for member_id, names in traffic.heartbeats.connections.items()}
        for request in traffic.requests:
            self._last[request.connection] = request
            if request.who:
                self._used_by.setdefault(request.who, set()).add(request.connection)
        self._refused = [
            (broker_address(link.connection), link.time_ns)
            for link in traffic.links
            if link.kind == SightingKind.REFUSED
        ]
        ended = sorted(
            (at, name) for name, at in traffic.closed.items() if name in self._spans and not self._is_goodbye(name)
        )
        self._ended: dict[str, list[tuple[int, str]]] = {}
        for at, name in ended:
            self._ended.setdefault(broker_address(name), []).append((at, name))

    def _is_goodbye(self, name: str) -> bool:
        return name in self._last and self._last[name].api == "LeaveGroup"

    def failovers(self, refused: list[Failover]) -> Iterator[Failover]:
        for broker, ended in self._ended.items():
            index = 0
            while index < len(ended):
                begin = ended[index][0]
                together = [name for at, name in ended[index:] if at - begin <= _TOGETHER_NS]
                index += len(together)
                end = ended[index - 1][0]
                is_down = self._is_refused(broker, begin) or self._clients_go_on(together, end, refused)
                if is_down and not self._another_goes_on(begin, broker):
                    signs = [self._last[name] for name in together if name in self._last]
                    count = len(together)
                    text = "its connection ended" if count == 1 else f"{count} connections ended at once"
                    yield Failover(end_of(begin), end_of(end), signs[:_SHOWN_SIGNS], text, count)

    def _is_refused(self, broker: str, begin_ns: int) -> bool:
        """Whether the broker could not be connected afterwards."""
        return any(name == broker and begin_ns <= at <= begin_ns + _RETURN_NS for name, at in self._refused)

    def _another_goes_on(self, begin_ns: int, broker: str) -> bool:
        return any(
            first < begin_ns and last > begin_ns + NS_PER_MS
            for name, (first, last) in self._spans.items()
            if broker_address(name) == broker
        )

    def _clients_go_on(self, together: list[str], end_ns: int, refused: list[Failover]) -> bool:
        """Whether clients, or members, that lost their connections came back: their processes had not ended."""
        fresh = {name for name, (first, _) in self._spans.items() if end_ns <= first <= end_ns + _RETURN_NS}
        clients = {client_address(name) for name in together}
        returned = {client for name in fresh if (client := client_address(name)) in clients}
        if len(returned) >= _ENOUGH_RETURNS:
            return True
        if returned and any(0 <= failover.begin.time_ns - end_ns <= _ONE_FAILOVER_NS for failover in refused):
            return True
        ended = set(together)
        fresh -= ended
        return sum(bool(names & ended and names & fresh) for names in self._used_by.values()) >= _ENOUGH_RETURNS


def _merged(found: Iterable[Failover], requests: list[GroupRequest]) -> list[Failover]:
    """Merge signs that are close to each other, without a member being served in between: they are of one failover."""
    served = sorted(
        request.answered
        for request in requests
        if request.error == 0 and request.api in _WAITING_APIS and request.answered is not None
    )
    merged: list[Failover] = []
    for failover in sorted(found, key=lambda item: item.begin):
        last = merged[-1] if merged else None
        if last is not None and _is_same(last, failover, served):
            last.end = max(last.end, failover.end)
            last.signs += failover.signs
            last.ended += failover.ended
        else:
            merged.append(failover)
    return merged


def _is_same(last: Failover, failover: Failover, served: list[Moment]) -> bool:
    at = bisect_right(served, last.end)
    is_served = at < len(served) and served[at] < failover.begin
    return failover.begin.time_ns - last.end.time_ns <= _ONE_FAILOVER_NS and not is_served


def _is_survived(requests: list[GroupRequest], failover: Failover) -> bool:
    """Whether a request that was parked before it was answered well after it."""
    return any(
        request.error == 0
        and request.api in _WAITING_APIS
        and request.due < failover.begin
        and request.answered > failover.end
        for request in requests
        if request.answered is not None
    )
