"""The members of a group as rows: their lives, how they ended, which library they run, and whom a rebalance waited for.

Laws of how a process ended, which the coordinator learns only when its session is over:

* A member that sent LeaveGroup is not dead, and neither is one that sent anything later under its id, unless the
  coordinator had removed it by then: that one was silent, and came back.
* An end of a connection by the broker's side proves nothing about the process, nor does anything during an outage.
* Where bytes of a connection are missing behind the member's last request, a LeaveGroup may be among them: the member
  is ``gone``, and how is not said.
* Where what its host and its broker send each other is sent again without an acknowledgement, the member was cut off:
  an end of its connection is no end of its process, and its silence none of it.
* Silence counts from the last sign of life to the removal, or to the end of the source if that is long enough; a member
  whose JoinGroup or SyncGroup waits for an answer is not silent. If no member of the group was answered after the last
  sign although others were there, the coordinator was silent, not the member.

Laws of waits:

* The coordinator waits only for members that were in the group when the rebalance began: the wait begins when the last
  of them that joined at all, except the awaited one, had done so.
* A member that was removed before the rebalance, or by what started it, was not waited for.
* A member that joined late counts only where no other was missing for longer.
* A member of which the source shows no request may have joined unseen: nothing is said of it.

Law of libraries: one is named only where no other client in use sends the same. The facts are the versions at which
each is capped, and sentences that it alone writes. A broker caps versions too, so that a low version by itself proves
nothing; a low one beside a high one of the same age does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kcoord_wire.forensics.model import NS_PER_MS, Awaited, MemberLife, SightingKind
from kcoord_wire.forensics.wire.links import Link, way_of
from kcoord_wire.forensics.wire.outages import OutageTrace
from kcoord_wire.forensics.wire.signs import NS_PER_S, REFUSALS
from kcoord_wire.forensics.wire.trace import LeaveReason, MemberTrace, RebalanceTrace
from kcoord_wire.forensics.wire.traffic import GroupRequest, GroupTraffic
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.protocol.wording import clock

LEFT: Final = "left"
DIED: Final = "process died"
ENDED: Final = "process ended"
GONE: Final = "gone"
SILENT: Final = "silent"
CUT_OFF: Final = "cut off"

_WORDS: Final = {
    DIED: "its process had died at {at} UTC (its connection was closed without LeaveGroup)",
    ENDED: "its process had ended at {at} UTC (its connection was closed; it sends no LeaveGroup)",
    GONE: "its connection had ended at {at} UTC (bytes before that are missing)",
    SILENT: "silent since {at} UTC on an open connection: a frozen process, or the network",
    CUT_OFF: "cut off since {at} UTC: what it and its broker sent was not acknowledged (the network, or its host)",
}
_DEFAULT_SESSION_MS: Final = 45_000  # of Java since 3.0 (KIP-735), of librdkafka, and of KIP-848 groups
_SILENT_PART: Final = 2 / 3  # of a session: clients send three heartbeats in one, or more
_STREAMS: Final = "-StreamThread-"  # in the client ids of Kafka Streams; on the classic protocol it sends no LeaveGroup
_ENDS: Final = frozenset({SightingKind.CLOSED, SightingKind.RESET})
_NO_SIGN: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.FENCED_MEMBER_EPOCH})
_WAITING: Final = frozenset({"JoinGroup", "SyncGroup"})
_BY_COORDINATOR: Final = frozenset({LeaveReason.TOO_LARGE, LeaveReason.FAILOVER, LeaveReason.OUTAGE})
_SLACK_NS: Final = 500 * NS_PER_MS  # an outage is noticed with the next request


class End(NamedTuple):
    """How a member id ended.

    :ivar kind: a value of `MemberLife.end`
    :ivar died_ns: since when its process did nothing for the group; None if it left
    """

    kind: str
    died_ns: int | None

    @property
    def text(self) -> str:
        """The same in words, to be added to a sentence; empty if there is nothing to add."""
        if self.died_ns is None:
            return ""
        return f"; {_WORDS[self.kind].format(at=clock(self.died_ns))}"


def find_ends(
    traffic: GroupTraffic, members: Sequence[MemberTrace], outages: Sequence[OutageTrace] = ()
) -> dict[MemberTrace, End]:
    """Find how the members ended; those that were there to the end, or of which it is not known, are left out."""
    finder = _Ends(traffic, members, outages)
    found = ((member, finder.end_of(member)) for member in members)
    return {member: end for member, end in found if end is not None}


class _Ends:
    def __init__(self, traffic: GroupTraffic, members: Sequence[MemberTrace], outages: Sequence[OutageTrace]) -> None:
        self._traffic = traffic
        self._outages = outages
        self._members = members
        self._requests: dict[str, list[GroupRequest]] = {}
        for request in traffic.requests:
            if request.who and request.api != "LeaveGroup":
                self._requests.setdefault(request.who, []).append(request)
        self._answered = {member.member_id: self._last_answer(member.member_id) for member in members}

    def _last_answer(self, name: str) -> int:
        own = [each.answered.time_ns for each in self._requests.get(name, ()) if each.answered is not None]
        return max([*own, self._traffic.heartbeats.answered.last(name) or 0])

    def end_of(self, member: MemberTrace) -> End | None:
        if member.why in (LeaveReason.LEFT, LeaveReason.POLL_TIMEOUT):
            return End(LEFT, None)
        if member.why in _BY_COORDINATOR:
            return None
        return self._by_connection(member) or self._by_silence(member)

    def _is_out(self, from_ns: int, to_ns: int) -> bool:
        """Whether an outage was at that time: clients then close connections and fall silent, and live on."""
        return any(
            outage.begin_ns <= to_ns + _SLACK_NS and (outage.end_ns is None or outage.end_ns >= from_ns)
            for outage in self._outages
        )

    # ---- its connection ended

    def _by_connection(self, member: MemberTrace) -> End | None:
        links = self._traffic.links.of(self._last_connection(member))
        heard_ns = self._heard_ns(member.member_id)
        after = [link for link in links if link.time_ns >= heard_ns]
        end = next((link for link in after if link.kind in _ENDS), None)
        if end is None or not self._is_of_client(member, end, heard_ns):
            return None
        if any(link.kind == SightingKind.HOLE and link.by != "broker" for link in after):
            return End(GONE, end.time_ns)
        is_silent = _STREAMS in (member.client_id or "") and member.member_id not in self._traffic.heartbeats.modern
        says_goodbye = member.instance_id is None and not is_silent
        return End(DIED if says_goodbye else ENDED, end.time_ns)

    def _heard_ns(self, name: str) -> int:
        """When anything was last sent under a member id."""
        own = self._requests.get(name)
        return max(own[-1].asked.time_ns if own else 0, self._traffic.heartbeats.last(name) or 0)

    def _is_of_client(self, member: MemberTrace, end: Link, heard_ns: int) -> bool:
        """Whether the end of a member's connection is that of its process, as far as the source shows."""
        if end.by == "broker" or (member.left is not None and end.time_ns > member.left.time_ns):
            return False
        own = self._requests.get(member.member_id)
        if self._is_out(end.time_ns, end.time_ns) or self._is_cut_off(member, heard_ns, end.time_ns):
            return False
        if own and own[-1].error in REFUSALS:
            return False  # it looks for the coordinator elsewhere
        return end.by is not None or self._is_served(member, end.time_ns)

    def _is_cut_off(self, member: MemberTrace, from_ns: int, to_ns: int) -> bool:
        """Whether bytes between its host and its broker were sent again and again in a time."""
        resent = self._traffic.links.on(way_of(self._last_connection(member)), SightingKind.RESENT)
        return any(link.time_ns >= from_ns and (link.since_ns or link.time_ns) <= to_ns for link in resent)

    def _last_connection(self, member: MemberTrace) -> str:
        """The connection on which it was answered last, or on which it waits for an answer."""
        own = self._requests.get(member.member_id)
        if own and own[-1].answered is None:
            return own[-1].connection
        used = member.connections | self._traffic.heartbeats.connections.get(member.member_id, set())
        spans = self._traffic.answered_ns
        return max(sorted(used), key=lambda name: spans.get(name, (0, 0))[1], default="")

    def _is_served(self, member: MemberTrace, after_ns: int) -> bool:
        """Whether the coordinator answered another member later, if there was another; else it was lost itself."""
        others = [other for other in self._members if other is not member and _is_present(other, after_ns)]
        return not others or any(self._answered[other.member_id] > after_ns for other in others)

    # ---- it sent nothing more

    def _by_silence(self, member: MemberTrace) -> End | None:
        until_ns = self._traffic.seen_until(member.member_id)
        until_ns = until_ns if member.left is None else min(until_ns, member.left.time_ns)
        last_ns = self._sign_before(member, until_ns)
        session_ms = member.session_ms or _DEFAULT_SESSION_MS
        is_long = until_ns - last_ns >= session_ms * NS_PER_MS * _SILENT_PART
        if last_ns == 0 or not (is_long or member.why == LeaveReason.SESSION) or not self._is_served(member, last_ns):
            return None
        if self._is_out(last_ns, until_ns):
            return None
        own = self._requests.get(member.member_id)
        if member.left is None and own and own[-1].api in _WAITING and own[-1].answered is None:
            return None
        return End(CUT_OFF if self._is_cut_off(member, last_ns, until_ns) else SILENT, last_ns)

    def _sign_before(self, member: MemberTrace, until_ns: int) -> int:
        """The last sign of life up to a time; the answer to a request that waited is one."""
        name, beats = member.member_id, self._traffic.heartbeats
        signs = [beats.answered.before(name, until_ns + 1) or 0, beats.unanswered.before(name, until_ns + 1) or 0]
        for request in self._requests.get(name, ()):
            if request.error not in _NO_SIGN:
                signs.append(request.asked.time_ns)
                if request.api in _WAITING and request.answered is not None:
                    signs.append(request.answered.time_ns)
        return max((sign for sign in signs if sign <= until_ns), default=0)


def _is_present(member: MemberTrace, at_ns: int) -> bool:
    return member.since.time_ns <= at_ns and (member.left is None or member.left.time_ns > at_ns)


_JAVA_REASONS: Final = (
    "need to re-join with the given member-id",
    "rebalance failed due to",
    "need to revoke partitions",
    "cached metadata has changed from",
    "group is already rebalancing",
    "the consumer is being closed",
    "the consumer unsubscribed from all topics",
)

_NO_HEARTBEAT_2: Final = range(2)
_LIBRARIES: Final[tuple[tuple[str, Mapping[str, Collection[int]]], ...]] = (
    ("franz-go", {"OffsetCommit": (10,), "JoinGroup": (9,)}),  # Java commits by topic id with the KIP-848 protocol only
    ("kafka-python", {"JoinGroup": (7,), "LeaveGroup": (5,)}),
    ("kafka-python", {"JoinGroup": (7,), "OffsetCommit": (9,)}),
    ("aiokafka", {"JoinGroup": (5,), "SyncGroup": (3,), "Heartbeat": _NO_HEARTBEAT_2}),
    ("librdkafka", {"JoinGroup": (5,), "SyncGroup": (3,), "Heartbeat": (3,), "OffsetCommit": (8, 9)}),
    ("librdkafka", {"JoinGroup": (5,), "SyncGroup": (3,), "Heartbeat": (3,), "LeaveGroup": (1,)}),
    ("kafkajs", {"JoinGroup": (5,), "SyncGroup": (3,), "Heartbeat": (3,), "OffsetCommit": (5,)}),
)
"""Library, and highest versions of apis that only it combines so; the first that fits counts."""


@dataclass(slots=True)
class _Seen:
    """What all exchanges that name a member id show of it.

    :ivar versions: the highest version of each api
    """

    last_ns: int = 0
    versions: dict[str, int] = field(default_factory=dict)


def member_rows(traffic: GroupTraffic, members: Sequence[MemberTrace]) -> list[MemberLife]:
    """Return the lives in the order of the members; how they ended is added by `add_end`."""
    seen = _read_seen(traffic)
    return [_life(traffic, member, seen.get(member.member_id, _Seen())) for member in members]


def _life(traffic: GroupTraffic, member: MemberTrace, seen: _Seen) -> MemberLife:
    last = member.last_join
    beat_ns = traffic.heartbeats.last(member.member_id) or 0
    row = member_row(traffic.group_id, member, max(seen.last_ns, beat_ns, member.since.time_ns))
    row.session_timeout_ms, row.rebalance_timeout_ms = member.session_ms, member.rebalance_ms
    if last is not None:
        row.assignors, row.topics, row.software = last.assignors, list(last.subscribed), last.software
    row.library = library_of(seen.versions, [request.reason for request in member.joins if request.reason])
    return row


def member_row(group_id: str, member: MemberTrace, last_seen_ns: int) -> MemberLife:
    """Return the row of a member, without what it offers and without its timeouts."""
    return MemberLife(
        group_id=group_id,
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.host or None,
        joined_ns=member.since.time_ns,
        left_ns=None if member.left is None else member.left.time_ns,
        why_left=None if member.why is None else str(member.why),
        last_seen_ns=last_seen_ns,
        first_generation_id=member.first_generation,
        last_generation_id=member.last_generation,
    )


def add_end(row: MemberLife, end: End | None) -> None:
    """Add how a life ended."""
    if end is not None:
        row.end, row.died_ns = end


def _read_seen(traffic: GroupTraffic) -> dict[str, _Seen]:
    found: dict[str, _Seen] = {}
    for member_id, api, version in traffic.heartbeats.versions:
        found.setdefault(member_id, _Seen()).versions[api] = version
    for request in traffic.requests:
        for name in request.named:
            seen = found.setdefault(name, _Seen())
            seen.last_ns = max(seen.last_ns, request.asked.time_ns)
            seen.versions[request.api] = max(seen.versions.get(request.api, 0), request.version)
    return found


def library_of(versions: Mapping[str, int], reasons: Iterable[str]) -> str | None:
    """Return the client library, if what a member sends proves one.

    :param versions: the highest of each api
    :param reasons: that it states in JoinGroup
    """
    if any(reason.startswith(_JAVA_REASONS) for reason in reasons):
        return "Java"
    for library, wanted in _LIBRARIES:
        if all(versions.get(api, -1) in expected for api, expected in wanted.items()):
            return library
    return None


LATE: Final = "late"
REVOKING: Final = "revoking"

LEAST_WAIT_NS: Final = NS_PER_S  # heartbeats, which bring the news of a rebalance, come every one to three seconds
_LISTED: Final = 3
_MS_PER_S: Final = 1_000


def find_awaited(trace: RebalanceTrace, ends: Mapping[MemberTrace, End], horizon_ns: int) -> list[Awaited]:
    """Return the members that others waited for, for a second or more; the longest wait first.

    :param ends: how members ended
    :param horizon_ns: where the source ends
    """
    start_ns, over_ns = trace.started.time_ns, _over_ns(trace, horizon_ns)
    done = {
        member: max(at.time_ns, start_ns) for at, member in trace.joins if trace.before.get(member.member_id) is member
    }
    joined_ns = sorted([start_ns, *done.values()])
    waits = []
    for member in trace.before.values():
        until_ns = over_ns if member.left is None else min(member.left.time_ns, over_ns)
        if member not in done and member.connections and until_ns > start_ns:
            waits.append((member, joined_ns[-1], until_ns))
    if not any(_is_long(wait) for wait in waits):
        waits = [(member, joined_ns[-2], at_ns) for member, at_ns in done.items() if at_ns == joined_ns[-1]][:1]
    waits = [wait for wait in waits if _is_long(wait)]
    waits.sort(key=lambda wait: wait[1] - wait[2])
    return [awaited(member, from_ns, until_ns, ends.get(member)) for member, from_ns, until_ns in waits]


def _is_long(wait: tuple[MemberTrace, int, int]) -> bool:
    return wait[2] - wait[1] >= LEAST_WAIT_NS


def _over_ns(trace: RebalanceTrace, horizon_ns: int) -> int:
    if trace.joined is not None:
        return trace.joined.time_ns
    return horizon_ns if trace.over is None else trace.over.time_ns


def awaited(member: MemberTrace, from_ns: int, until_ns: int, end: End | None, how: str = LATE) -> Awaited:
    """Return the row of a wait.

    :param end: how the member ended
    :param how: `Awaited.end` of a member that lived
    """
    kind, died_ns = how, None
    if end is not None and end.died_ns is not None and end.died_ns < until_ns:
        kind, died_ns = end
    ms = (until_ns - from_ns) / NS_PER_MS
    return Awaited(member.member_id, member.client_id, member.host or None, from_ns, ms, kind, died_ns)


def awaited_text(waits: Sequence[Awaited]) -> str:
    """Say whom a rebalance waited for that was dead, to be added to its sentence; empty if there was none."""
    dead = [wait for wait in waits if wait.died_ns is not None]
    parts = [_text(wait) for wait in dead[:_LISTED]]
    more = len(dead) - _LISTED
    return f"; it waited {' and '.join(parts)}{f' and for {more} more' if more > 0 else ''}" if parts else ""


def _text(wait: Awaited) -> str:
    assert wait.died_ns is not None, "the caller has checked"
    name = wait.client_id or wait.member_id
    word = wait.end if wait.end in (SILENT, CUT_OFF) else "dead"
    return f"{wait.ms / _MS_PER_S:.1f} s for {name}, {word} since {clock(wait.died_ns)} UTC"
