"""The rewrite's frames in the simulated network."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire.kernel.machines import Disconnected, Received
from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.kernel.virtual.network import ProcessServer
from kcoord_wire.kernel.virtual.processes import Process
from kcoord_wire.messages import (
    FetchRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    OffsetCommitRequest,
)
from kcoord_wire.messages.rewrite import RewriteJoinGroupRequest, RewriteJoinGroupResponse
from kcoord_wire.worlds.central.broker_world import Link
from kcoord_wire.worlds.central.rewrite_world import RewriteNetwork


class Machine:
    """Keeps what it gets."""

    deadline = None

    def __init__(self) -> None:
        self.events: list[Any] = []

    def handle(self, event: Any, now: int) -> list[Any]:
        self.events.append(event)
        return []


class Recorder(Process):
    machine: Machine

    def carry_out(self, effect: Any) -> None: ...


class Connected:
    """A member connected to a broker."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.wire = RewriteNetwork(self.clock, (1, 5))
        self.broker = ProcessServer("broker-1", "10.0.0.1", boot=1)
        self.member = Recorder(self.clock, "m1", "10.0.1.2", Machine(), Random(1))
        self.server = self.broker.process = Recorder(self.clock, "broker-1", "10.0.0.1", Machine(), Random(2))
        self.seen: list[Any] = []
        self.link = self.wire.link_to(self.member, self.broker, self._see)
        self.wire.establish(self.link)
        self.clock.run(20)

    def _see(self, _link: Link, what: Any) -> None:
        self.seen.append(what)


def test_requests_and_responses_arrive_as_they_were_sent() -> None:
    pair = Connected()
    assert pair.seen == [None], "connected"
    for request in (
        RewriteJoinGroupRequest(group_id="g", session_timeout_ms=6_000, topics=["t"], strategy="range"),
        HeartbeatRequest(group_id="g", generation_id=3, member_id="c"),
        OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=3, member_id="c"),
    ):
        pair.wire.request(pair.link, request)
        pair.clock.run(20)
        assert pair.server.machine.events[-1] == Received(pair.link.number, request)
    for response in (RewriteJoinGroupResponse(generation_id=4, consumer_id="c"), HeartbeatResponse(error_code=22)):
        pair.wire.answer(pair.link.number, response)
        pair.clock.run(20)
        assert pair.seen[-1] == response


def test_messages_that_the_design_does_not_have_are_refused() -> None:
    pair = Connected()
    with pytest.raises(KeyError):
        pair.wire.request(pair.link, kw.messages.SyncGroupRequest())
    pair.wire.send_to_server(pair.link, kw.encode_request(JoinGroupRequest(group_id="g"), 4))
    with pytest.raises(kw.DecodeError, match="only 0"):
        pair.clock.run(20)


def test_the_end_of_a_connection_is_seen_by_both_sides() -> None:
    pair = Connected()
    pair.wire.request(pair.link, FetchRequest())
    pair.clock.run(20)
    pair.wire.end(pair.link)
    pair.clock.run(20)
    assert pair.seen[-1] == Disconnected(pair.link.number)
    assert pair.wire.answer(pair.link.number, HeartbeatResponse()) is None
    other = Connected()
    other.wire.request(other.link, HeartbeatRequest())
    other.clock.run(20)
    other.wire.hang_up(other.link)
    other.clock.run(20)
    assert other.server.machine.events[-1] == Disconnected(other.link.number)
