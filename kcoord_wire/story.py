"""What happened in a consumer group, told from the frames of a capture: who joined, got what, kept the beat, left.

Laws:

* Pure: frames in, events out; nothing is read, printed or remembered between calls.
* Every request of these apis that was answered, and its answer, is in exactly one event (`Event.frames`); heartbeats
  and commits that went well are counted together as long as nothing else happens to that member.
* A blob that is not a consumer's (another protocol type, damaged bytes) is told as its size, never an error.

The classic protocol (JoinGroup, SyncGroup, Heartbeat, LeaveGroup, OffsetCommit) and KIP-848's ConsumerGroupHeartbeat.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import kcoord_wire as kw
from kcoord_wire.capture import CapturedFrame
from kcoord_wire.error_codes import describe_error

__all__ = ["Event", "Member", "Story", "describe_partitions", "tell"]

CALM = {"beats", "commits"}  # what is counted instead of told one by one


@dataclass(slots=True)
class Member:
    """One member of one group, over all its generations.

    :ivar name: the client id, with the end of the member id where two share a client id
    :ivar host: address and port it speaks from
    """

    group: str
    name: str
    client_id: str | None
    host: str
    ids: list[str] = field(default_factory=list)
    instance_id: str | None = None
    assignors: str = ""
    topics: str = ""
    generations: list[int] = field(default_factory=list)
    syncs: int = 0
    heartbeats: int = 0
    commits: int = 0
    joined: float | None = None
    left: float | None = None
    assignment: str = ""


@dataclass(slots=True)
class Event:
    """One thing that happened.

    :ivar time: seconds since the epoch; of the last frame, where several are counted together
    :ivar verb: ``asks to join``, ``joins``, ``assigns``, ``receives``, ``beats``, ``commits``, ``leaves``, ``is told``
    :ivar text: the particulars, for people
    :ivar frames: the frames that say so
    """

    time: float
    member: Member
    verb: str
    text: str
    frames: list[CapturedFrame]

    @property
    def count(self) -> int:
        """How many exchanges are counted together."""
        return sum(frame.direction == "request" for frame in self.frames) or 1


@dataclass(slots=True)
class Story:
    """Events in order of time, members in order of appearance."""

    events: list[Event]
    members: list[Member]


def describe_partitions(topics: Iterable[Any]) -> str:
    """Partitions by topic, runs shortened: ``orders 0-3, payments 1``; ``nothing`` where there are none.

    :param topics: objects with a `topic` (or `topic_id`) and `partitions`
    """
    parts = []
    for entry in topics:
        name = getattr(entry, "topic", None) or str(getattr(entry, "topic_id", ""))
        runs: list[list[int]] = []
        for number in sorted(entry.partitions):
            if runs and number == runs[-1][1] + 1:
                runs[-1][1] = number
            else:
                runs.append([number, number])
        if runs:
            parts.append(f"{name} {','.join(str(a) if a == b else f'{a}-{b}' for a, b in runs)}")
    return ", ".join(parts) or "nothing"


def tell(frames: Iterable[CapturedFrame]) -> Story:
    """The story of all groups in `frames`, which must come in order of time.

    :param frames: as `kcoord_wire.capture.read_capture` gives them; those that did not decode are passed over
    """
    told = [frame for frame in frames if hasattr(_Teller, f"_take_{type(frame.message).__name__}")]
    # A leader hears its followers' ids before the followers do, so the names are learnt first and told then.
    names = _Teller({}).listen(told).names()
    teller = _Teller(names).listen(told)
    teller.events.sort(key=lambda event: event.time)
    return Story(teller.events, teller.members)


def _blob(cls: type, blob: bytes) -> Any:
    """The consumer message in a blob, or None where it holds none."""
    try:
        return kw.decode_prefixed(cls, blob)[1]
    except kw.DecodeError:
        return None


def _assignment(blob: bytes) -> str:
    if not blob:
        return "nothing"
    decoded = _blob(kw.ConsumerProtocolAssignment, blob)
    return f"{len(blob)} bytes" if decoded is None else describe_partitions(decoded.assigned_partitions)


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:g} s"


class _Teller:
    def __init__(self, names: Mapping[tuple[str, str], str]) -> None:
        self._names = names
        self.events: list[Event] = []
        self.members: list[Member] = []
        self._by_id: dict[tuple[str, str], Member] = {}
        self._by_connection: dict[tuple[str, str], Member] = {}
        self._asked: dict[tuple[str, int | None], tuple[CapturedFrame, Member, Event | None]] = {}
        self._calm: dict[int, dict[str, Event]] = {}

    def listen(self, frames: Iterable[CapturedFrame]) -> Self:
        for frame in frames:
            exchange = frame.connection, frame.correlation_id
            take = getattr(self, f"_take_{type(frame.message).__name__}")
            if frame.direction == "request":
                member = self._member(frame)
                self._asked[exchange] = frame, member, take(frame, member)
            elif exchange in self._asked:
                take(frame, *self._asked.pop(exchange))
        return self

    def names(self) -> dict[tuple[str, str], str]:
        """The name of every member id that was heard of, by group and id."""
        return {key: member.name for key, member in self._by_id.items()}

    def _member(self, frame: CapturedFrame) -> Member:
        """Who sends this request: known by member id, else by connection and group, else new."""
        group = frame.message.group_id
        ids = [frame.message.member_id] if getattr(frame.message, "member_id", "") else []
        ids += [left.member_id for left in getattr(frame.message, "members", []) if left.member_id]
        known = next((self._by_id[group, id_] for id_ in ids if (group, id_) in self._by_id), None)
        member = known or self._by_connection.get((frame.connection, group))
        if member is None or (known is None and member.left is not None):
            same = [m for m in self.members if m.group == group and m.client_id == frame.client_id]
            name = frame.client_id or "(no client id)"
            member = Member(
                group, f"{name}#{len(same) + 1}" if same else name, frame.client_id, frame.connection.partition("-")[0]
            )
            self.members.append(member)
        self._by_connection[frame.connection, group] = member
        for id_ in ids:
            self._learn(member, id_)
        return member

    def _learn(self, member: Member, member_id: str) -> None:
        if member_id and (member.group, member_id) not in self._by_id:
            self._by_id[member.group, member_id] = member
            member.ids.append(member_id)

    def _name(self, member: Member, member_id: str) -> str:
        return self._names.get((member.group, member_id), member_id)

    def _event(self, frame: CapturedFrame, member: Member, verb: str, text: str) -> Event:
        event = Event(frame.time, member, verb, text, [frame])
        self.events.append(event)
        if verb not in CALM:
            self._calm.pop(id(member), None)
        return event

    def _count(self, frame: CapturedFrame, member: Member, verb: str) -> Event:
        events = self._calm.setdefault(id(member), {})
        if verb not in events:
            events[verb] = self._event(frame, member, verb, "")
        else:
            events[verb].frames.append(frame)
        events[verb].time = frame.time
        return events[verb]

    def _answer(self, frame: CapturedFrame, member: Member, event: Event | None, error_code: int, what: str) -> bool:
        """File a plain answer with its request; tell of it where it is an error. True where all is well."""
        if error_code == 0:
            if event is not None:
                event.frames.append(frame)
            return True
        self._event(frame, member, "is told", f"{describe_error(error_code)} (to its {what})")
        return False

    def _take_JoinGroupRequest(self, frame: CapturedFrame, member: Member) -> Event:
        request = frame.message
        member.instance_id = request.group_instance_id
        member.assignors = ", ".join(protocol.name for protocol in request.protocols)
        member.left = None
        words = [f"as {request.member_id}" if request.member_id else "as a new member", f"from {member.host}"]
        words.append(f"assignors {member.assignors}")
        subscription = None
        if request.protocol_type == "consumer" and request.protocols:
            subscription = _blob(kw.ConsumerProtocolSubscription, request.protocols[0].metadata)
        if subscription is not None:
            member.topics = ", ".join(subscription.topics)
            words.append(f"topics {member.topics}")
            if subscription.owned_partitions:
                words.append(f"owns {describe_partitions(subscription.owned_partitions)}")
        if request.group_instance_id is not None:
            words.append(f"instance {request.group_instance_id}")
        words.append(f"session timeout {_seconds(request.session_timeout_ms)}")
        if request.rebalance_timeout_ms >= 0:
            words.append(f"rebalance timeout {_seconds(request.rebalance_timeout_ms)}")
        if request.reason:
            words.append(f"reason: {request.reason}")
        return self._event(frame, member, "asks to join", "; ".join(words))

    def _take_JoinGroupResponse(
        self, frame: CapturedFrame, _asked: CapturedFrame, member: Member, _event: Event | None
    ) -> None:
        response = frame.message
        self._learn(member, response.member_id)
        if response.error_code:
            given = f"; its member id is {response.member_id}" if response.member_id else ""
            self._event(frame, member, "is told", f"{describe_error(response.error_code)} (to its join){given}")
            return
        member.generations.append(response.generation_id)
        member.joined = frame.time if member.joined is None else member.joined
        role = f"follower of {self._name(member, response.leader)}"
        if response.leader == response.member_id:
            role = "leader; members " + ", ".join(self._name(member, other.member_id) for other in response.members)
        text = f"generation {response.generation_id} by {response.protocol_name} as {role}"
        self._event(frame, member, "joins", text)

    def _take_SyncGroupRequest(self, frame: CapturedFrame, member: Member) -> Event | None:
        given = [(self._name(member, to.member_id), _assignment(to.assignment)) for to in frame.message.assignments]
        if given:
            return self._event(frame, member, "assigns", "; ".join(f"{name}: {what}" for name, what in given))
        return None

    def _take_SyncGroupResponse(
        self, frame: CapturedFrame, asked: CapturedFrame, member: Member, event: Event | None
    ) -> None:
        response = frame.message
        if response.error_code:
            told = self._event(frame, member, "is told", f"{describe_error(response.error_code)} (to its sync)")
        else:
            member.syncs += 1
            member.assignment = _assignment(response.assignment)
            text = f"{member.assignment} (generation {asked.message.generation_id})"
            told = self._event(frame, member, "receives", text)
        if event is None:
            told.frames.insert(0, asked)

    def _take_HeartbeatRequest(self, frame: CapturedFrame, member: Member) -> Event:
        member.heartbeats += 1
        return self._count(frame, member, "beats")

    def _take_HeartbeatResponse(
        self, frame: CapturedFrame, _asked: CapturedFrame, member: Member, event: Event | None
    ) -> None:
        self._answer(frame, member, event, frame.message.error_code, "heartbeat")

    def _take_OffsetCommitRequest(self, frame: CapturedFrame, member: Member) -> Event:
        member.commits += 1
        event = self._count(frame, member, "commits")
        offsets = [
            f"{topic.name or topic.topic_id} {partition.partition_index}@{partition.committed_offset}"
            for topic in frame.message.topics
            for partition in topic.partitions
        ]
        event.text = ", ".join(offsets)
        return event

    def _take_OffsetCommitResponse(
        self, frame: CapturedFrame, _asked: CapturedFrame, member: Member, event: Event | None
    ) -> None:
        codes = {partition.error_code for topic in frame.message.topics for partition in topic.partitions}
        self._answer(frame, member, event, max(codes, key=abs, default=0), "commit")

    def _take_LeaveGroupRequest(self, frame: CapturedFrame, member: Member) -> Event:
        reasons = [left.reason for left in frame.message.members if left.reason]
        member.left = frame.time
        return self._event(frame, member, "leaves", "; ".join(reasons))

    def _take_LeaveGroupResponse(
        self, frame: CapturedFrame, _asked: CapturedFrame, member: Member, event: Event | None
    ) -> None:
        codes = [frame.message.error_code, *(left.error_code for left in frame.message.members)]
        self._answer(frame, member, event, next(filter(None, codes), 0), "leave")

    def _take_ConsumerGroupHeartbeatRequest(self, frame: CapturedFrame, member: Member) -> Event:
        request = frame.message
        if request.member_epoch < 0:
            member.left = frame.time
            return self._event(frame, member, "leaves", "to come back" if request.member_epoch == -2 else "")
        if request.member_epoch == 0:
            member.left = None
            member.instance_id = request.instance_id
            member.assignors = request.server_assignor or "the coordinator's"
            member.topics = ", ".join(request.subscribed_topic_names or []) or request.subscribed_topic_regex or ""
            text = f"as {request.member_id or 'a new member'}; from {member.host}; topics {member.topics}"
            return self._event(frame, member, "asks to join", text)
        member.heartbeats += 1
        return self._count(frame, member, "beats")

    def _take_ConsumerGroupHeartbeatResponse(
        self, frame: CapturedFrame, _asked: CapturedFrame, member: Member, event: Event | None
    ) -> None:
        response = frame.message
        self._learn(member, response.member_id or "")
        if not self._answer(frame, member, event, response.error_code, "heartbeat"):
            return
        if not member.generations or member.generations[-1] != response.member_epoch > 0:
            member.generations.append(response.member_epoch)
            member.joined = frame.time if member.joined is None else member.joined
        if response.assignment is not None:
            member.assignment = describe_partitions(response.assignment.topic_partitions)
            self._event(frame, member, "receives", f"{member.assignment} (epoch {response.member_epoch})")
