"""The members of a search, of both protocols: values of which a step makes others.

A member is one of the machines that consumers run, with its time. It has one request on its way at a time. A classic
member finds its coordinator, and reads committed offsets, at the moment at which it asks for them.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator
from typing import Any, Final, NamedTuple

from kcoord_wire import messages as m
from kcoord_wire.assignors import ASSIGNORS
from kcoord_wire.assignors.embedded import ConsumerProtocol
from kcoord_wire.consumer import kip848_member as newer
from kcoord_wire.consumer import member_events as classic
from kcoord_wire.consumer.classic_member import MemberMachine
from kcoord_wire.consumer.kip848_member import ConsumerGroupMember
from kcoord_wire.consumer.member_events import MemberState, SendRequest
from kcoord_wire.kernel.machines import Disconnected, Tick
from kcoord_wire.worlds.consumer_groups.consumer_group_laws import Client
from kcoord_wire.worlds.consumer_groups.consumer_group_world import ClassicClient
from kcoord_wire.worlds.group.wire import VirtualTopics

GROUP: Final = "g"
"""The id of the group."""

SESSION_MS: Final = 10_000
TICK_MS: Final = SESSION_MS // 2

_NO_TIMEOUT_MS: Final = 1 << 40
_ASSIGNORS: Final = (ASSIGNORS["cooperative-sticky"],)
_EMBEDDED: Final = ConsumerProtocol()


class Sent(NamedTuple):
    """A request on its way."""

    message: Any
    version: int


class SearchedMember(ABC):
    """A member between two steps.

    :ivar client: as the laws see it
    :ivar topics: what it subscribes to
    :ivar is_over: whether it has left or failed
    :ivar is_leaving: whether it waits for nothing but the end
    """

    client: Client

    @property
    @abstractmethod
    def topics(self) -> tuple[str, ...]: ...

    @property
    @abstractmethod
    def is_over(self) -> bool: ...

    @property
    def is_leaving(self) -> bool:
        return False

    @abstractmethod
    def key(self) -> Hashable:
        """Return what decides its further course, times excepted."""

    @abstractmethod
    def releases(self, has_flight: bool) -> bool:
        """Return whether its application may have given partitions up now."""

    def may_change(self, has_flight: bool) -> bool:
        """Return whether it may leave or subscribe to something else now."""
        return not self.is_leaving

    @abstractmethod
    def take(self, what: str, answer: Any) -> tuple[SearchedMember, Sent | None]:
        """Return the member after a step, and what it sends."""

    @property
    def is_reconciling(self) -> bool:
        """Whether it has partitions to give up."""
        return self.releases(has_flight=False)


class NewerMember(SearchedMember):
    """A member of KIP-848."""

    def __init__(self, machine: ConsumerGroupMember) -> None:
        self.client: ConsumerGroupMember = machine

    @classmethod
    def starting(
        cls, name: str, number: int, topics: VirtualTopics, is_static: bool
    ) -> tuple[SearchedMember, Sent | None]:
        """Return a member that joins, for the so manieth time, and what it sends."""
        settings = newer.MemberSettings(
            group_id=GROUP,
            client_id="client",
            member_id=f"{name}-{number}",
            instance_id=name if is_static else None,
            rebalance_timeout_ms=TICK_MS,
            request_timeout_ms=_NO_TIMEOUT_MS,
            retry_ms=0,
        )
        machine = ConsumerGroupMember(settings)
        return cls(machine), _sent(machine.handle(newer.Subscribe(topics.names()), 0))

    @property
    def topics(self) -> tuple[str, ...]:
        return self.client.topics

    @property
    def is_over(self) -> bool:
        return self.client.is_over

    @property
    def is_leaving(self) -> bool:
        return self.client.state is newer.State.LEAVING

    def key(self) -> Hashable:
        return self.client.state_key()

    def releases(self, has_flight: bool) -> bool:
        return self.client.state is newer.State.RECONCILING

    def take(self, what: str, answer: Any) -> tuple[SearchedMember, Sent | None]:
        machine = copy.copy(self.client)
        return NewerMember(machine), _sent(machine.handle(self._event(machine, what, answer), self._time(what)))

    def _time(self, what: str) -> int:
        """Return when it wants to send its next heartbeat, if it waits for that; all else happens at 0."""
        waits = what == "beats" and self.client.deadline is not None and self.client.waits_for is None
        return (self.client.deadline or 0) if waits else 0

    @staticmethod
    def _event(machine: ConsumerGroupMember, what: str, answer: Any) -> Any:
        match what:
            case "answered":
                return classic.Arrived(machine.waits_for or 0, answer)
            case "beats":
                return Tick()
            case "released":
                return newer.Released(machine.ticket)
            case "lose":
                return Disconnected()
            case "leave":
                return newer.Leave(for_a_while=machine.settings.instance_id is not None)
            case _:
                return newer.Subscribe(machine.topics[:1])


class OlderMember(SearchedMember):
    """A member of the classic protocol."""

    def __init__(self, client: ClassicClient, now: int, request_id: int) -> None:
        self.client: ClassicClient = client
        self._now = now
        self._request_id = request_id  # of what is on its way

    @classmethod
    def starting(
        cls, name: str, _number: int, topics: VirtualTopics, is_static: bool
    ) -> tuple[SearchedMember, Sent | None]:
        """See `NewerMember`; its id comes from the coordinator."""
        settings = classic.MemberSettings(
            group_id=GROUP,
            client_id=name,
            group_instance_id=name if is_static else None,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=TICK_MS,
            heartbeat_interval_ms=1_000,
            request_timeout_ms=_NO_TIMEOUT_MS,
            retry_backoff_ms=0,
        )
        machine = MemberMachine(settings, _ASSIGNORS, _EMBEDDED)
        machine.handle(classic.TopicsKnown(topics.counts), 0)
        member = cls(ClassicClient(machine, topics), 0, 0)
        return member, member._do(classic.Subscribe(topics.names()))

    @property
    def topics(self) -> tuple[str, ...]:
        return self.client.member.topics

    @property
    def is_over(self) -> bool:
        return self.client.member.state in (MemberState.LEFT, MemberState.FAILED)

    def key(self) -> Hashable:
        return self.client.member.settings.client_id, self.client.member.state_key()

    def releases(self, has_flight: bool) -> bool:
        return self.client.member.state is MemberState.REVOKING and not has_flight

    def may_change(self, has_flight: bool) -> bool:
        return not has_flight

    def take(self, what: str, answer: Any) -> tuple[SearchedMember, Sent | None]:
        machine = self.client.member.copied()
        member = OlderMember(ClassicClient(machine, self.client.topics), self._now, 0)
        if what == "beats" and machine.deadline is not None:
            member._now = machine.deadline
        return member, member._do(self._event(machine, what, answer))

    def _event(self, machine: MemberMachine, what: str, answer: Any) -> Any:
        match what:
            case "answered":
                return classic.Arrived(self._request_id, answer)
            case "beats":
                return Tick()
            case "released":
                return classic.Released(machine.ticket, {})
            case "lose":
                return Disconnected()
            case "leave":
                return classic.Leave()
            case _:
                return classic.Subscribe(machine.topics[:1])

    def _do(self, event: Any) -> Sent | None:
        """Handle an event, answer what is not about membership, and return the request that is."""
        sent: Sent | None = None
        events = [event]
        while events:
            for effect in self.client.member.handle(events.pop(), self._now):
                if isinstance(effect, SendRequest):
                    answer = _answer_of(effect.message)
                    if answer is not None:
                        events.append(classic.Arrived(effect.request_id, answer))
                    else:
                        assert sent is None, "one request at a time"
                        sent, self._request_id = _without_reason(effect), effect.request_id
        return sent


def _sent(effects: list[Any]) -> Sent | None:
    return next((Sent(effect.message, effect.version) for effect in effects if isinstance(effect, SendRequest)), None)


def _without_reason(effect: SendRequest) -> Sent:
    """Return a request without the text that only logs show."""
    if isinstance(effect.message, m.JoinGroupRequest):
        effect.message.reason = None
    return Sent(effect.message, effect.version)


def _answer_of(message: Any) -> Any:
    """Return the answer of a request that is not about membership; None for another."""
    if isinstance(message, m.FindCoordinatorRequest):
        return m.FindCoordinatorResponse(coordinators=[m.FindCoordinatorResponseCoordinator(key=GROUP)])
    if isinstance(message, m.OffsetFetchRequest):
        return m.OffsetFetchResponse(groups=[_nothing_committed(group) for group in message.groups])
    return None


def _nothing_committed(group: m.OffsetFetchRequestGroup) -> m.OffsetFetchResponseGroup:
    def partitions(topic: m.OffsetFetchRequestTopics) -> Iterator[m.OffsetFetchResponsePartitions]:
        for index in topic.partition_indexes:
            yield m.OffsetFetchResponsePartitions(partition_index=index, committed_offset=-1)

    topics = [
        m.OffsetFetchResponseTopics(name=topic.name, partitions=list(partitions(topic))) for topic in group.topics or ()
    ]
    return m.OffsetFetchResponseGroup(group_id=group.group_id, topics=topics)
