"""Many members of many groups on as many connections, driven from one thread: the load of the scale benchmark.

A member here is the consumer's side of the classic protocol and no more: it finds its coordinator, joins, syncs,
heartbeats, rejoins on request, and leaves. The leader's assignment is written beforehand. Whatever is unexpected
is an error.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import cycle
from typing import Any, Final

import kcoord_wire as kw
from kcoord_wire.protocol.error_codes import ErrorCode

from .beats import Beats, run_beats

# The newest versions that all of Kafka, librdkafka's mock cluster and our coordinator serve and that are not flexible.
FIND, JOIN, SYNC, BEAT, LEAVE = (10, 2), (11, 5), (14, 3), (12, 3), (13, 1)
SOURCES: Final = cycle(f"127.0.0.{number}" for number in range(2, 255))
"""Addresses of this machine. One has 28,000 ports, which stay taken for a minute after a connection has closed, and the
search for a free one takes a millisecond once half of them are in use."""
BEAT_ANSWER: Final = 14  # bytes: size, correlation id, throttle time, error code
CHUNK = 4  # connections opened at once: librdkafka's mock cluster has a backlog of five
OF_A_SOURCE = 5_000  # connections from one address
PATIENCE = 120.0  # seconds that any step may take
REBALANCE_MS = 300_000
SUBSCRIPTION = kw.encode_prefixed(kw.ConsumerProtocolSubscription(topics=["orders"]), version=1)


def assignment_of(partition: int) -> bytes:
    topic = kw.ConsumerProtocolAssignmentTopicPartition(topic="orders", partitions=[partition])
    return kw.encode_prefixed(kw.ConsumerProtocolAssignment(assigned_partitions=[topic]), version=1)


class Member:
    """One member on its connection. `generation` is -1 until it has joined; `stable`: its last sync was answered."""

    __slots__ = (
        "asked", "buffer", "generation", "group", "is_leader", "member_id", "others", "rejoins", "socket", "stable",
    )  # fmt: skip

    def __init__(self, group: str) -> None:
        self.group = group
        self.asked: tuple[int, int] | None = None  # api and version of the request under way
        self.member_id, self.generation = "", -1
        self.is_leader = self.stable = False
        self.rejoins = True  # when a heartbeat or sync says that it should
        self.others: list[str] = []  # the members that a leader has to assign to
        self.buffer = b""
        self.socket = socket.socket()

    def ask(self, api: tuple[int, int], message: Any) -> None:
        assert self.asked is None, f"{self.asked} is still under way"
        self.asked = api
        body = kw.encode_request(message, api[1], correlation_id=1, client_id="member")
        frame = kw.frame(body)
        if len(frame) < 1 << 13:
            assert self.socket.send(frame) == len(frame)
        else:
            self.socket.settimeout(PATIENCE)
            self.socket.sendall(frame)
            self.socket.setblocking(False)


class Swarm:
    """Groups of members, one connection each.

    :param address: of the server, ``host:port``
    :param names: the groups
    :param size: members of each
    :param timers: the server waits for fixed times and not for members (librdkafka's mock cluster)
    :param settle: returns once the server has done what it was sent; so it is known that joins wait there
    """

    def __init__(
        self, address: str, names: Iterable[str], size: int, *, timers: bool, settle: Callable[[], None]
    ) -> None:
        host, _, port = address.rpartition(":")
        self._address = host, int(port)
        self._timers = timers
        self._settle = settle
        self._session_ms = 120_000
        self.groups = [[Member(name) for _ in range(size)] for name in names]
        self.members = [member for group in self.groups for member in group]
        self._of_fd: dict[int, Member] = {}
        self._poll = select.epoll()
        self._stable = 0  # members that have had their assignment since the last `_begin`
        self._named = 0
        self._answered = 0
        self._blobs = [assignment_of(number) for number in range(size)]
        self._heard = 0.0
        self._holds_leaders = False

    # ---- life

    def connect(self, *, finds: bool = True) -> None:
        """Open all connections.

        :param finds: each member finds its coordinator
        """
        for start in range(0, len(self.members), CHUNK):
            if start % OF_A_SOURCE == 0:
                source = next(SOURCES)
            chunk = self.members[start : start + CHUNK]
            for member in chunk:
                member.socket.settimeout(PATIENCE)
                member.socket.bind((source, 0))
                member.socket.connect(self._address)
                member.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                member.socket.setblocking(False)
                self._of_fd[member.socket.fileno()] = member
                self._poll.register(member.socket, select.EPOLLIN)
                if finds:
                    member.ask(FIND, kw.FindCoordinatorRequest(key=member.group, key_type=0))
            self._answered = 0
            if finds:
                self._run(partial(self._all_answered, len(chunk)))

    def close(self) -> None:
        self._poll.close()
        for member in self.members:
            member.socket.close()

    # ---- what is measured; each gives seconds

    def form(self) -> float:
        """From empty to Stable: from the last JoinGroup to the last answer to SyncGroup.

        The first member of each group is its leader, alone at first; then all others get their ids and join, which
        leaves them waiting for the leader; when its JoinGroup comes everybody is there.
        """
        firsts = [group[0] for group in self.groups]
        others = [member for group in self.groups for member in group[1:]]
        if self._timers:
            return self._form_by_timers()
        self._begin(firsts)
        self._join(firsts)
        self._run(lambda: self._stable == len(firsts))
        self._named = 0
        for member in others:
            member.rejoins = False
        self._join(others)
        self._run(lambda: self._named == len(others))
        for member in others:
            member.rejoins = True
        self._begin(self.members)
        self._join(others)
        self._settle()
        return self._finish(lambda: self._join(firsts))

    def _form_by_timers(self) -> float:
        """All join while the first timer runs; leaders sync last: the mock cluster forgets who syncs after them."""
        self._holds_leaders = True
        self._begin(self.members)
        self._join(self.members)
        start = time.perf_counter()
        self._run(lambda: all(member.generation > 0 for member in self.members))
        self._settle()
        for group in self.groups:
            for member in group:
                if member.is_leader:
                    self._sync(member)
        self._run(lambda: self._stable == len(self.members))
        return self._heard - start

    def rejoin(self) -> float:
        """All rejoin, the leader first; from the last JoinGroup to the last answer to SyncGroup."""
        self._begin(self.members)
        last = [group[-1] for group in self.groups]
        waiting = [member for group in self.groups for member in group[:-1]]
        waiting.sort(key=lambda member: not member.is_leader)
        self._join(waiting)
        self._settle()
        return self._finish(lambda: self._join(last))

    def leave_one(self) -> float:
        """One member of each group leaves, its others hear of it from their heartbeats and rejoin; from the first
        LeaveGroup to the last answer to SyncGroup."""
        leaving = [group[-1] for group in self.groups]
        staying = [member for group in self.groups for member in group[:-1]]
        self._begin(staying)

        def leave() -> None:
            self._leave(leaving)
            self._beat(staying)

        try:
            return self._finish(leave, len(staying), from_first=True)
        finally:
            for member in leaving:
                member.member_id, member.generation = "", -1

    def join_one(self) -> float:
        """The member that left comes back as a new one, all others rejoin; from its JoinGroup to the last answer."""
        coming = [member for member in self.members if member.generation < 0]
        there = [member for member in self.members if member.generation >= 0]
        self._begin(self.members)

        def come() -> None:
            self._join(coming)
            self._beat(there)

        return self._finish(come, from_first=True)

    def beat(self, seconds: float, period: float = 0) -> Beats:
        """Heartbeats on all connections; see `run_beats`."""
        requests = [
            kw.frame(kw.encode_request(self._heartbeat(member), BEAT[1], correlation_id=1, client_id="member"))
            for member in self.members
        ]
        return run_beats([member.socket.fileno() for member in self.members], requests, BEAT_ANSWER, seconds, period)

    def leave_all(self) -> float:
        """Everybody leaves; until the last answer."""
        self._answered = 0
        start = time.perf_counter()
        self._leave(self.members)
        self._run(partial(self._all_answered, len(self.members)))
        return self._heard - start

    def _all_answered(self, count: int) -> bool:
        return self._answered == count

    # ---- requests

    def _begin(self, members: Iterable[Member]) -> None:
        self._stable = 0
        for member in members:
            member.stable = False

    def _finish(self, last: Callable[[], None], count: int | None = None, *, from_first: bool = False) -> float:
        start = time.perf_counter()
        last()
        if not from_first:
            start = time.perf_counter()
        wanted = len(self.members) if count is None else count
        self._run(lambda: self._stable == wanted)
        return self._heard - start

    def _join(self, members: Iterable[Member]) -> None:
        for member in members:
            protocol = kw.JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)
            request = kw.JoinGroupRequest(
                group_id=member.group,
                session_timeout_ms=self._session_ms,
                rebalance_timeout_ms=REBALANCE_MS,
                member_id=member.member_id,
                protocol_type="consumer",
                protocols=[protocol],
            )
            member.ask(JOIN, request)

    def _sync(self, member: Member) -> None:
        request = kw.SyncGroupRequest(
            group_id=member.group, generation_id=member.generation, member_id=member.member_id
        )
        if member.is_leader:
            make = kw.SyncGroupRequestAssignment
            request.assignments = [
                make(member_id=each, assignment=blob) for each, blob in zip(member.others, self._blobs, strict=False)
            ]
            member.others = []
        member.ask(SYNC, request)

    def _heartbeat(self, member: Member) -> Any:
        return kw.HeartbeatRequest(group_id=member.group, generation_id=member.generation, member_id=member.member_id)

    def _beat(self, members: Iterable[Member]) -> None:
        for member in members:
            member.ask(BEAT, self._heartbeat(member))

    def _leave(self, members: Iterable[Member]) -> None:
        for member in members:
            member.ask(LEAVE, kw.LeaveGroupRequest(group_id=member.group, member_id=member.member_id))

    # ---- answers

    def _run(self, done: Callable[[], bool]) -> None:
        """Take answers until it is done. TimeoutError after PATIENCE, ConnectionError where the server hangs up."""
        end = time.monotonic() + PATIENCE
        while not done():
            if time.monotonic() > end:
                raise TimeoutError(f"{self._stable} of {len(self.members)} members are stable after {PATIENCE:.0f} s")
            for fd, _ in self._poll.poll(1.0, 512):
                self._receive(self._of_fd[fd])

    def _receive(self, member: Member) -> None:
        try:
            data = member.socket.recv(1 << 20)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionError(f"the server has closed a connection; under way was {member.asked}")
        data = member.buffer + data
        size = int.from_bytes(data[:4], "big") + 4
        if len(data) < max(size, 4):
            member.buffer = data
            return
        assert len(data) == size, "an answer without a request"
        member.buffer = b""
        assert member.asked is not None
        (api, version), member.asked = member.asked, None
        self._heard = time.perf_counter()
        self._take(member, api, kw.decode(_RESPONSES[api], data[8:], version))

    def _take(self, member: Member, api: int, answer: Any) -> None:
        code = answer.error_code
        if api == JOIN[0]:
            self._take_join(member, answer, code)
        elif api == SYNC[0]:
            if code == ErrorCode.REBALANCE_IN_PROGRESS:
                self._join([member])
                return
            _expect(code, "SyncGroup")
            assert answer.assignment, "no assignment"
            member.stable = True
            self._stable += 1
        elif api == BEAT[0]:
            if code == ErrorCode.REBALANCE_IN_PROGRESS:
                self._join([member])
            else:
                _expect(code, "Heartbeat")
                self._beat([member])
        else:
            _expect(code, "LeaveGroup" if api == LEAVE[0] else "FindCoordinator")
            self._answered += 1

    def _take_join(self, member: Member, answer: Any, code: int) -> None:
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            member.member_id = answer.member_id
            self._named += 1
            if member.rejoins:
                self._join([member])
            return
        _expect(code, "JoinGroup")
        member.member_id, member.generation = answer.member_id, answer.generation_id
        member.is_leader = answer.leader == answer.member_id
        if member.is_leader:
            member.others = [each.member_id for each in answer.members]
            if self._holds_leaders:
                return
        self._sync(member)


_RESPONSES: Final = {
    FIND[0]: kw.FindCoordinatorResponse,
    JOIN[0]: kw.JoinGroupResponse,
    SYNC[0]: kw.SyncGroupResponse,
    BEAT[0]: kw.HeartbeatResponse,
    LEAVE[0]: kw.LeaveGroupResponse,
}


def _expect(code: int, what: str) -> None:
    if code:
        raise RuntimeError(f"{what} was answered with {ErrorCode(code).name}")
