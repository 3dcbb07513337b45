"""A group machine with scripted time: requests go in as messages, answers come back as messages."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

import kcoord_wire as kw
from kcoord_wire import messages as m
from kcoord_wire.coordinator.consumer_groups.machine import CoordinatorMachine
from kcoord_wire.coordinator.core.brokers import Brokers
from kcoord_wire.coordinator.core.config import Endpoint, GroupConfig
from kcoord_wire.coordinator.core.events import (
    Append,
    Load,
    LogRecord,
    Phase,
    RebalanceAccount,
    RebalanceReport,
    Reply,
    Request,
    Resign,
)
from kcoord_wire.coordinator.core.groups import Group, Pulse
from tests.support.driven import Driven

TOPICS = {"orders": 12, "payments": 8}
NEWEST = {
    m.JoinGroupRequest: 9,
    m.SyncGroupRequest: 5,
    m.HeartbeatRequest: 4,
    m.LeaveGroupRequest: 5,
    m.OffsetCommitRequest: 9,
    m.OffsetFetchRequest: 9,
    m.OffsetDeleteRequest: 0,
    m.DescribeGroupsRequest: 6,
    m.ListGroupsRequest: 5,
    m.DeleteGroupsRequest: 2,
    m.FindCoordinatorRequest: 6,
    m.ConsumerGroupHeartbeatRequest: 1,
    m.ConsumerGroupDescribeRequest: 1,
    m.ShareGroupHeartbeatRequest: 1,
    m.ShareGroupDescribeRequest: 1,
}


class Topics:
    """The topics of the tests."""

    def __init__(self) -> None:
        self.known = dict(TOPICS)
        self.changes = 0

    def names(self) -> list[str]:
        return list(self.known)

    def set(self, name: str, partitions: int) -> None:
        """Create a topic, or give it more partitions."""
        self.known[name] = partitions
        self.changes += 1

    def partitions(self, name: str) -> int | None:
        return self.known.get(name)

    def id_of(self, name: str) -> uuid.UUID | None:
        return uuid.uuid5(uuid.NAMESPACE_OID, name) if name in self.known else None

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        return next((name for name in self.known if self.id_of(name) == topic_id), None)


def subscription(*topics: str) -> bytes:
    return kw.encode_prefixed(m.ConsumerProtocolSubscription(topics=list(topics)), 1)


def subscribed(metadata: bytes) -> frozenset[str] | None:
    try:
        return frozenset(kw.decode_prefixed(m.ConsumerProtocolSubscription, metadata)[1].topics)
    except kw.DecodeError:
        return None


def protocols(*names: str, metadata: bytes | None = None) -> list[m.JoinGroupRequestProtocol]:
    data = subscription("orders") if metadata is None else metadata
    return [m.JoinGroupRequestProtocol(name=name, metadata=data) for name in names]


@dataclass
class Script(Driven):
    """Runs one machine. Every answer goes through its bytes in the version it was asked in, as over a socket."""

    config: GroupConfig = field(default_factory=lambda: GroupConfig(initial_rebalance_delay_ms=1_000))
    now: int = 1_000_000
    group_id: str = "g"
    load: bool = True

    def __post_init__(self) -> None:
        self.topics = Topics()
        self.group_configs: dict[str, dict[str, str]] = {}
        self.machine = CoordinatorMachine(
            Brokers([Endpoint(1, "localhost", 9092)]),
            self.topics,
            subscribed,
            self.config,
            configs_of=lambda group_id: self.group_configs.get(group_id, {}),
        )
        self.answers: dict[int, Any] = {}
        self.after: dict[int, int] = {}
        self.log: list[list[LogRecord]] = []
        self.accounts: list[tuple[Phase, RebalanceAccount]] = []
        self.pulses: dict[str, Pulse] = {}
        self._versions: dict[int, int] = {}
        self._token = 0
        if self.load:
            self.do(Load([]))

    @property
    def asked(self) -> set[int]:
        """The tokens of all requests."""
        return set(self._versions)

    @property
    def records(self) -> list[LogRecord]:
        """Everything that was written, in order."""
        return [record for batch in self.log for record in batch]

    # ---- events

    def carry_out(self, effect: Any) -> None:
        if isinstance(effect, Reply):
            assert effect.token not in self.answers, "a request is answered twice"
            version = self._versions[effect.token]
            data = kw.encode(effect.message, version)
            self.answers[effect.token] = kw.decode(type(effect.message), data, version)
            self.after[effect.token] = effect.after
            assert effect.after <= self.machine.appended
        elif isinstance(effect, Append):
            self.log.append(effect.records)
        elif isinstance(effect, RebalanceReport):
            self.accounts.append((effect.phase, effect.rebalance))

    def send(self, message: Any, version: int | None = None, client_id: str = "c") -> int:
        """Give the machine a request; the token to look its answer up by."""
        self._token += 1
        version = NEWEST[type(message)] if version is None else version
        self._versions[self._token] = version
        self.do(Request(self._token, message, version, client_id, "/127.0.0.1", f"u{self._token}"))
        return self._token

    def ask(self, message: Any, version: int | None = None, client_id: str = "c") -> Any:
        """The answer to a request that is answered at once."""
        return self.answers[self.send(message, version, client_id)]

    # ---- requests

    def join(
        self,
        member_id: str = "",
        *,
        version: int | None = None,
        names: tuple[str, ...] = ("range",),
        metadata: bytes | None = None,
        instance: str | None = None,
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        client_id: str = "c",
        protocol_type: str = "consumer",
        reason: str | None = None,
    ) -> int:
        message = m.JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=protocols(*names, metadata=metadata),
            reason=reason,
        )
        return self.send(message, version, client_id)

    def admit(self, **options: Any) -> tuple[str, int]:
        """Join as a new dynamic member: id and token of the second, parked JoinGroup."""
        first = self.answers[self.join(**options)]
        assert first.error_code == 79
        return first.member_id, self.join(first.member_id, **options)

    def sync(self, member_id: str, generation: int = 1, assign: dict[str, bytes] | None = None, **more: Any) -> int:
        version = more.pop("version", NEWEST[m.SyncGroupRequest])
        group = self.machine.groups.get(self.group_id)
        if version >= 5:
            more.setdefault("protocol_type", (group and group.protocol_type) or "consumer")
            more.setdefault("protocol_name", getattr(group, "protocol", None) or "range")
        return self.send(
            m.SyncGroupRequest(
                group_id=self.group_id,
                generation_id=generation,
                member_id=member_id,
                assignments=[
                    m.SyncGroupRequestAssignment(member_id=name, assignment=data)
                    for name, data in (assign or {}).items()
                ],
                **more,
            ),
            version,
        )

    def heartbeat(self, member_id: str, generation: int = 1, instance: str | None = None) -> int:
        message = m.HeartbeatRequest(
            group_id=self.group_id, generation_id=generation, member_id=member_id, group_instance_id=instance
        )
        kept = self.pulses.get(repr(message))
        goes_on = kept is not None and kept.goes_on(self.now)
        code = int(self.ask(message).error_code)
        assert not (goes_on and code), "a pulse goes on while the answer is another one"
        pulse = self.machine.pulse(message)
        is_classic = isinstance(self.machine.groups.get(self.group_id), Group)
        assert (pulse is not None) == (code == 0 and is_classic)
        if pulse is not None:
            self.pulses[repr(message)] = pulse
        return code

    def leave(self, *member_ids: str, version: int | None = None) -> Any:
        if version is not None and version < 3:
            return self.ask(m.LeaveGroupRequest(group_id=self.group_id, member_id=member_ids[0]), version)
        members = [m.LeaveGroupRequestMemberIdentity(member_id=member_id) for member_id in member_ids]
        return self.ask(m.LeaveGroupRequest(group_id=self.group_id, members=members), version)

    def commit(
        self,
        offset: int = 5,
        *,
        member_id: str = "",
        generation: int = -1,
        version: int | None = None,
        topic: str = "orders",
        metadata: str | None = "",
        partition: int = 0,
        **more: Any,
    ) -> int:
        message = m.OffsetCommitRequest(
            group_id=self.group_id,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            topics=[
                m.OffsetCommitRequestTopic(
                    name=topic,
                    topic_id=uuid.uuid5(uuid.NAMESPACE_OID, topic),
                    partitions=[
                        m.OffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=offset, committed_metadata=metadata
                        )
                    ],
                )
            ],
            **more,
        )
        return int(self.ask(message, version).topics[0].partitions[0].error_code)

    def committed(self, topic: str = "orders", partition: int = 0) -> int:
        message = m.OffsetFetchRequest(
            group_id=self.group_id, topics=[m.OffsetFetchRequestTopic(name=topic, partition_indexes=[partition])]
        )
        return int(self.ask(message, 5).topics[0].partitions[0].committed_offset)

    def state(self) -> str:
        return str(self.ask(m.DescribeGroupsRequest(groups=[self.group_id]), 5).groups[0].group_state)

    def stable(self, *client_ids: str, **options: Any) -> list[str]:
        """A Stable group of dynamic members in generation 1; their ids, the leader's first."""
        ids = self.completing(*client_ids or ("a",), **options)
        for member_id in ids:
            token = self.sync(member_id, assign={name: name.encode() for name in ids} if member_id == ids[0] else None)
            assert self.answers[token].error_code == 0
        return ids

    def completing(self, *client_ids: str, **options: Any) -> list[str]:
        """A group in CompletingRebalance, generation 1, that nobody has sent SyncGroup to."""
        joined = [self.admit(client_id=client_id, **options) for client_id in client_ids]
        self.wait(3 * self.config.initial_rebalance_delay_ms)
        assert {self.answers[token].generation_id for _, token in joined} == {1}
        return [member_id for member_id, _ in joined]

    def resign(self) -> None:
        self.do(Resign())

    def reloaded(self) -> Script:
        """Another coordinator that has read the same log."""
        other = Script(config=self.config, now=self.now, group_id=self.group_id, load=False)
        other.do(Load([record for records in self.log for record in records]))
        return other
