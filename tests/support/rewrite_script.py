"""Conversations of the consumer rewrite's members with their coordinators, by script, as rows of `Frame`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

import kcoord_wire as kw
from kcoord_wire.forensics.analysis import Analysis, analyze_frames
from kcoord_wire.forensics.model import NS_PER_MS, Frame
from kcoord_wire.messages.rewrite.rewrite_join_group import (
    RewriteJoinGroupRequest,
    RewriteJoinGroupResponse,
    RewriteJoinGroupResponseAssignedTopic,
)
from tests.support.wire_samples import batch, exchange_tables


@dataclass(eq=False)
class ScriptedMember:
    """A member on its connection; its id is empty until the coordinator gives it one."""

    name: str
    member_id: str = ""
    topics: tuple[str, ...] = ("orders",)
    connection: str = ""
    generation: int = 0
    asked: list[int] = field(default_factory=list)


class RewriteScript:
    """Plays members and coordinators; every step takes a millisecond.

    :ivar frames: of all connections so far
    """

    def __init__(self, *, session_ms: int = 6000) -> None:
        self.frames: list[Frame] = []
        self.coordinator = "10.9.9.1:9092"
        self.generation = 0
        self.now_ms = 1_700_000_000_000
        self._session_ms = session_ms
        self._connections = self._correlation = 0

    def wait(self, ms: int) -> None:
        self.now_ms += ms

    def connect(self, member: ScriptedMember) -> None:
        self._connections += 1
        host = f"10.0.0.{len(member.name)}:{40000 + self._connections}"
        member.connection = f"{host}-{self.coordinator}#{self._connections}"
        self._say(member, "opened")
        self.ask(member, kw.FindCoordinatorRequest(key="g"), 0)
        host, _, port = self.coordinator.partition(":")
        self.answer(member, kw.FindCoordinatorResponse(host=host, port=int(port)), 0)

    def park(self, member: ScriptedMember) -> None:
        """The member sends JoinGroup."""
        request = RewriteJoinGroupRequest(group_id="g", session_timeout_ms=self._session_ms, strategy="range")
        request.topics, request.consumer_id = list(member.topics), member.member_id
        self.ask(member, request, 0)

    def assign(self, owners: Sequence[tuple[ScriptedMember, Mapping[str, list[int]]]]) -> None:
        """The coordinator answers all JoinGroup requests with a new generation."""
        self.generation += 1
        for member, parts in owners:
            member.member_id = member.member_id or f"{member.name}-id"
            member.generation = self.generation
            given = [RewriteJoinGroupResponseAssignedTopic(topic=name, partitions=ids) for name, ids in parts.items()]
            response = RewriteJoinGroupResponse(generation_id=self.generation, consumer_id=member.member_id)
            response.assigned_partitions = given
            self.answer(member, response, 0)

    def fail(self, members: Sequence[ScriptedMember], error: int) -> None:
        """The coordinator answers JoinGroup requests with an error."""
        for member in members:
            self.answer(member, RewriteJoinGroupResponse(error_code=error, generation_id=-1), 0)

    def beat(self, member: ScriptedMember, error: int = 0) -> None:
        request = kw.HeartbeatRequest(group_id="g", generation_id=member.generation, member_id=member.member_id)
        self.ask(member, request, 0)
        self.answer(member, kw.HeartbeatResponse(error_code=error), 0)

    def close(self, member: ScriptedMember) -> None:
        self._say(member, "closed")
        member.asked.clear()

    def ask(self, member: ScriptedMember, message: Any, version: int) -> None:
        self._correlation += 1
        member.asked.append(self._correlation)
        body = kw.encode_request(message, version, correlation_id=self._correlation, client_id=member.name)
        self._say(member, "request", body)

    def answer(self, member: ScriptedMember, message: Any, version: int) -> None:
        body = kw.encode_response(message, version, correlation_id=member.asked.pop(0))
        self._say(member, "response", body)

    def analyze(self) -> Analysis:
        return analyze_frames([batch(self.frames)])

    def exchanges(self) -> tuple[pa.Table, pa.Table]:
        """The tables of `Exchange` and `Sighting`."""
        return exchange_tables(self.frames)

    def _say(self, member: ScriptedMember, direction: str, body: bytes = b"") -> None:
        self.now_ms += 1
        seq, time_ns = len(self.frames), self.now_ms * NS_PER_MS
        self.frames.append(Frame("made.pcap", seq, seq, time_ns, member.connection, direction, body))
