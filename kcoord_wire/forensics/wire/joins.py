"""What responses alone show: the completed joins of a group, and when its coordinator was lost or another took over.

A join is complete when all parked JoinGroup requests are answered with the next generation. What started it is
another matter: see `replay`. Three signs show a failover: responses that refuse (14 COORDINATOR_LOAD_IN_PROGRESS,
15 COORDINATOR_NOT_AVAILABLE, 16 NOT_COORDINATOR), connections that end together, a generation number that went down.

Laws:

* A JoinGroup request that was read after its generation was complete joined nothing: it is in `Join.late`.
* The same generation number again, or a lower one, is another join only where the coordinator can have forgotten the
  first: its leader's SyncGroup was not answered, the number went down, or another member leads, because the group was
  deleted when it was empty.
* A coordinator that refuses and yet answers a request from before the refusal was not lost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from kcoord_wire.forensics.model import NS_PER_MS, SightingKind, broker_address, client_host
from kcoord_wire.forensics.wire.signs import END, NS_PER_S, REFUSALS, Moment, end_of
from kcoord_wire.forensics.wire.traffic import GroupRequest, GroupTraffic, ListedMember, Partition
from kcoord_wire.forensics.wire.unwritten import Unwritten
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


def find_failovers(traffic: GroupTraffic, unwritten: Iterable[Unwritten] = ()) -> list[Failover]:
    """Find the failovers that refusals, and connections that end together, show.

    :param unwritten: refusals of a coordinator that stayed
    """
    stays = {id(sign) for each in unwritten for sign in each.signs}
    refused = list(_by_refusals(request for request in traffic.requests if id(request) not in stays))
    found = _merged([*refused, *_Connections(traffic).failovers(refused)], traffic.requests)
    return [failover for failover in found if not _is_survived(traffic.requests, failover)]


def _by_refusals(requests: Iterable[GroupRequest]) -> Iterator[Failover]:
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
        self._links = traffic.links
        closed = ((name, self._links.closed_ns(name)) for name in self._spans)
        ended = sorted((at, name) for name, at in closed if at is not None and not self._is_goodbye(name))
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
        return bool(self._links.to(broker, SightingKind.REFUSED, begin_ns, begin_ns + _RETURN_NS))

    def _another_goes_on(self, begin_ns: int, broker: str) -> bool:
        return any(
            first < begin_ns and last > begin_ns + NS_PER_MS
            for name, (first, last) in self._spans.items()
            if broker_address(name) == broker
        )

    def _clients_go_on(self, together: list[str], end_ns: int, refused: list[Failover]) -> bool:
        """Whether clients, or members, that lost their connections came back: their processes had not ended."""
        fresh = {name for name, (first, _) in self._spans.items() if end_ns <= first <= end_ns + _RETURN_NS}
        clients = {client_host(name) for name in together}
        returned = {client for name in fresh if (client := client_host(name)) in clients}
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


PARKED_NS: Final = 20 * NS_PER_MS
"""A response that took longer than this waited for other members."""

_LOOK_BACK: Final = 8  # joins that one response is compared with: more never overlap


@dataclass(slots=True, eq=False)
class Join:
    """One completed join.

    :ivar joined: when the first JoinGroup was answered; None if only SyncGroup requests of the generation were seen
    :ivar requests: the JoinGroup requests that it answered
    :ivar late: JoinGroup requests that were answered with its generation later, at once
    :ivar members: as listed for the leader; if not `is_listed`, those that were seen
    :ivar is_listed: whether the response to the leader was seen
    :ivar leader_sync: the leader's SyncGroup that succeeded
    :ivar syncs: SyncGroup requests that succeeded, by member
    :ivar asked: all SyncGroup requests, by member
    """

    generation: int
    joined: Moment | None
    requests: list[GroupRequest] = field(default_factory=list)
    late: list[GroupRequest] = field(default_factory=list)
    members: dict[str, ListedMember] = field(default_factory=dict)
    is_listed: bool = False
    assignor: str | None = None
    leader_id: str | None = None
    protocol_type: str | None = None
    leader_sync: GroupRequest | None = None
    syncs: dict[str, GroupRequest] = field(default_factory=dict)
    asked: dict[str, list[GroupRequest]] = field(default_factory=dict)

    @property
    def first_sync(self) -> Moment:
        """When the first SyncGroup was read; a join without a JoinGroup response has one."""
        return min(request.due for requests in self.asked.values() for request in requests)

    @property
    def at(self) -> Moment:
        """When it was complete, or the first SyncGroup if that is not known."""
        return self.first_sync if self.joined is None else self.joined

    @property
    def assignments(self) -> dict[str, frozenset[Partition]]:
        """What each member was assigned: by the leader's request, else by the members' responses."""
        given = {} if self.leader_sync is None else dict(self.leader_sync.assignments)
        for member_id, request in self.syncs.items():
            if request.assignment is not None:
                given.setdefault(member_id, request.assignment)
        return given

    def add_join(self, request: GroupRequest) -> None:
        """Add a JoinGroup request that was answered with this generation."""
        assert self.joined is not None, "it was made from a JoinGroup response"
        request.join = self
        (self.requests if request.due <= self.joined else self.late).append(request)
        self.assignor = self.assignor or request.assignor
        self.leader_id = self.leader_id or request.leader_id
        self.protocol_type = self.protocol_type or request.protocol_type
        if request.members and not self.is_listed:
            self.members = dict(request.members)
            self.is_listed = True
        elif not self.is_listed and request.who:
            first = request.offers[0] if request.offers else None
            listed = ListedMember(request.instance_id, first and first.topics, first and first.owned)
            self.members.setdefault(request.who, listed)

    def add_sync(self, request: GroupRequest) -> None:
        """Add a SyncGroup request for this generation."""
        request.join = self
        self.asked.setdefault(request.member_id, []).append(request)
        if request.error != 0:
            return
        self.syncs[request.member_id] = request
        if self.leader_sync is None and (request.assignments or request.member_id == self.leader_id):
            self.leader_sync = request
            self.leader_id = self.leader_id or request.member_id
        if self.joined is None:
            self.members.setdefault(request.member_id, ListedMember(request.instance_id, None, None))

    def grant(self) -> None:
        """Set what each successful SyncGroup brought, once all requests are added."""
        given = self.assignments
        for requests in self.asked.values():
            for request in requests:
                if request.error == 0:
                    request.granted = given.get(request.member_id) if request.assignment is None else request.assignment


def find_joins(requests: list[GroupRequest], failovers: list[Failover]) -> list[Join]:
    """Find all completed joins, in order. A generation number that went down adds to `failovers`."""
    return _JoinFinder(requests, failovers).find()


def unshown_members(join: Join, traffic: GroupTraffic) -> set[str]:
    """Return the members of a join of which the source shows no request: its leader, those in the leader's list. They
    are on hosts that were not captured.
    """
    return {*join.members, *([join.leader_id] if join.leader_id else [])} - traffic.names


class _JoinFinder:
    def __init__(self, requests: list[GroupRequest], failovers: list[Failover]) -> None:
        self._failovers = failovers
        self._joins: list[Join] = []
        self._answered = [
            request
            for request in requests
            if request.api == "JoinGroup" and request.error == 0 and request.new_generation is not None
        ]
        self._answered.sort(key=_answered_at)
        self._syncs: dict[int, list[GroupRequest]] = {}
        self._left: dict[str, Moment] = {}
        for request in requests:
            for leaver in request.leavers if request.error == 0 else ():
                self._left[leaver.member_id] = request.due
            if request.api == "SyncGroup" and request.generation is not None and request.member_id:
                self._syncs.setdefault(request.generation, []).append(request)

    def find(self) -> list[Join]:
        for request in self._answered:
            join = self._known(request)
            if join is None:
                self._note_lost_generation(request)
                join = Join(request.new_generation or 0, _answered_at(request))
                self._joins.append(join)
            join.add_join(request)
        joins = sorted([*self._joins, *self._add_syncs()], key=lambda join: join.at)
        for join in joins:
            join.grant()
        return joins

    def _known(self, request: GroupRequest) -> Join | None:
        """The join that this response belongs to, if it is one of those found so far."""
        for join in reversed(self._joins[-_LOOK_BACK:]):
            if join.generation == request.new_generation and join.joined is not None:
                if request.due <= join.joined:
                    return join
                is_another = self._is_forgotten(join, request) or join is not self._joins[-1]
                return None if is_another or _is_led_by_another(join, request) else join
        return None

    def _is_forgotten(self, join: Join, request: GroupRequest) -> bool:
        """Whether the coordinator was lost before it had written this generation to its log."""
        assert join.joined is not None, "the caller has checked"
        lost = [
            failover
            for failover in self._failovers
            if join.joined < failover.begin < _answered_at(request) and not self._written(join, failover.begin)
        ]
        if lost and not self._is_joined_again(request):
            # The coordinator answers with this generation, so it has not forgotten it: it had written it to the log,
            # or was never lost. Connections that end together prove less than that.
            spurious = [failover for failover in lost if not failover.is_refusal]
            self._failovers[:] = [failover for failover in self._failovers if failover not in spurious]
            return False
        return bool(lost)

    def _is_joined_again(self, request: GroupRequest) -> bool:
        """Whether a generation is joined once more from this request on: a member waited, or leads."""
        return any(
            other.members or _answered_at(other).time_ns - other.due.time_ns > PARKED_NS
            for other in self._answered
            if other.new_generation == request.new_generation and other.due >= request.due
        )

    def _written(self, join: Join, until: Moment) -> list[Moment]:
        """Assignments of a join that were answered up to a moment: they prove that its generation was written."""
        begun = join.at
        return [
            request.answered
            for request in self._syncs.get(join.generation, ())
            if request.error == 0 and request.answered is not None and request.due >= begun
            if request.answered <= until
        ]

    def _note_lost_generation(self, request: GroupRequest) -> None:
        """Add a failover if a generation number went down, and no failover explains that; a group that had become
        empty was deleted instead, and formed again.
        """
        last = self._joins[-1] if self._joins else None
        if last is None or request.new_generation is None or request.new_generation > last.generation:
            return
        if all(self._left.get(member_id, END) < request.due for member_id in last.members):
            return
        begun = last.at
        if any(begun <= failover.begin <= request.due for failover in self._failovers):
            return
        text = f"generation {request.new_generation} follows {last.generation}"
        begin = max([begun, *self._written(last, request.due)])
        self._failovers.append(Failover(begin, max(begin, request.due), [request], text))
        self._failovers.sort(key=lambda failover: failover.begin)

    def _add_syncs(self) -> list[Join]:
        """Add every SyncGroup to its join; those that succeeded and have none show joins of their own."""
        unseen = []
        by_generation: dict[int, list[Join]] = {}
        for join in self._joins:
            by_generation.setdefault(join.generation, []).append(join)
        for generation, requests in self._syncs.items():
            joins = by_generation.get(generation, [])
            strays = []
            for request in requests:
                earlier = [join for join in joins if join.at <= request.due]
                if earlier:
                    earlier[-1].add_sync(request)
                else:
                    strays.append(request)
            if any(request.error == 0 for request in strays):
                stray = Join(generation, None)
                for request in strays:
                    stray.add_sync(request)
                unseen.append(stray)
        return unseen


def _is_led_by_another(join: Join, request: GroupRequest) -> bool:
    """Whether a response with the generation of a join that is over names another leader, which no generation changes:
    the group was deleted in between and formed again. Only a static leader that restarts gets another member id.
    """
    leader = join.members.get(join.leader_id or "")
    is_static = leader is not None and leader.instance_id is not None
    return not is_static and bool(join.leader_id and request.leader_id) and join.leader_id != request.leader_id


def _answered_at(request: GroupRequest) -> Moment:
    return request.answered or request.asked
