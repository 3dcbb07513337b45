"""Which requests are answered, and what faults do to requests and responses on a real socket."""

from __future__ import annotations

import itertools
import logging
import struct
import time
from dataclasses import replace
from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire.coordinator.core.events import Request
from kcoord_wire.coordinator.fault_injection import ACTIONS, DIRECTIONS, Fault, Faults
from kcoord_wire.coordinator.host import Host
from kcoord_wire.coordinator.security.authentication import Session, Users
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.fixtures import StartCoordinator
from tests.support.group_client import (
    VERSIONS,
    become_stable,
    commit,
    commit_request,
    committed,
    join_request,
)
from tests.support.waiting import eventually
from tests.support.wire import Wire, errors_in


def test_unknown_api_versions_are_answered_in_version_0(coordinator: StartCoordinator) -> None:
    with Wire(coordinator().address) as wire:
        for version in (6, 99, 32767):
            wire.send_raw(kw.frame(struct.pack(">hhih", 18, version, version, -1) + b"\0" + b"\x80" * 20))
            body = wire.receive_body()
            assert int.from_bytes(body[:4], "big") == version
            answer = kw.decode(kw.ApiVersionsResponse, body[4:], 0)
            assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
            assert [entry.api_key for entry in answer.api_keys] == [18]
        assert wire.call(VERSIONS, 4).error_code == 0


UNKNOWN, KNOWN = "malformed", "not served"


@pytest.mark.parametrize(
    ("api_key", "version", "reason"),
    [
        (99, 0, UNKNOWN),
        (-1, 0, UNKNOWN),
        (12, -1, UNKNOWN),
        (12, 5, KNOWN),
        (0, 0, KNOWN),
        (7, 0, KNOWN),
        (19, 99, KNOWN),
    ],
)
def test_an_api_that_is_not_served_closes_the_connection(
    coordinator: StartCoordinator, api_key: int, version: int, reason: str
) -> None:
    c = coordinator()
    with Wire(c.address) as wire, Wire(c.address) as other:
        correlation_id = wire.send(VERSIONS, 3)
        wire.send_raw(kw.frame(struct.pack(">hhih", api_key, version, 1, -1) + b"\0\0\0\0"))
        assert wire.receive(correlation_id).error_code == 0
        assert wire.is_closed_by_peer()
        assert other.call(VERSIONS, 3).error_code == 0
    assert f'kcoord_connections_closed_total{{reason="{reason}"}} 1.0' in c.metrics()


def test_what_is_not_served_is_logged_once(coordinator: StartCoordinator, caplog: pytest.LogCaptureFixture) -> None:
    c = coordinator()
    request = kw.ControllerRegistrationRequest()
    with caplog.at_level(logging.WARNING, "kcoord_wire.coordinator"):
        for name in ("evil\n", "a", "a"):
            with Wire(c.address, client_id=name) as wire:
                wire.send(request, 0)
                assert wire.is_closed_by_peer()
    assert [record.getMessage() for record in caplog.records] == [
        f"not served: ControllerRegistration v0 (client {name}); closed the connection from 127.0.0.1, as a broker does"
        for name in (r"evil\n", "a")
    ]
    assert 'kcoord_connections_closed_total{reason="not served"} 3.0' in c.metrics()


def test_sasl_without_users_is_illegal(coordinator: StartCoordinator) -> None:
    with Wire(coordinator().address) as wire:
        assert wire.call(kw.SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == ErrorCode.ILLEGAL_SASL_STATE


def test_a_repeated_heartbeat_is_answered_as_the_first(coordinator: StartCoordinator) -> None:
    """Repetitions are not read again, so each reason for another answer is tried behind one."""
    c = coordinator()
    with Wire(c.address) as wire, Wire(c.address) as other:
        heartbeat = become_stable(wire, "g")
        for _ in range(3):
            assert wire.call(heartbeat, 4) == kw.HeartbeatResponse()
        assert wire.call(replace(heartbeat, generation_id=7), 4).error_code == ErrorCode.ILLEGAL_GENERATION
        assert wire.call(heartbeat, 3).error_code == 0
        assert wire.call(heartbeat, 3).error_code == 0
        c.add_fault(Fault("error", api="Heartbeat", error="COORDINATOR_NOT_AVAILABLE"))
        assert wire.call(heartbeat, 3).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        c.clear_faults()  # as long as faults may meet them, all requests are read
        assert wire.call(heartbeat, 3).error_code == 0
        other_id = other.call(join_request("g"), 9).member_id
        joining = other.send(join_request("g", other_id), 9)
        eventually(lambda: wire.call(heartbeat, 3).error_code == ErrorCode.REBALANCE_IN_PROGRESS)
        assert wire.call(heartbeat, 3).error_code == ErrorCode.REBALANCE_IN_PROGRESS
        assert wire.call(kw.LeaveGroupRequest(group_id="g", member_id=heartbeat.member_id), 1).error_code == 0
        assert wire.call(heartbeat, 3).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert other.receive(joining).error_code == 0
    counted = [line for line in c.metrics().splitlines() if 'requests_total{api="Heartbeat",error="NONE"' in line]
    assert counted[0].endswith(" 6.0")


ON_AN_EXCHANGE = {
    # what the client receives, whether it is disconnected, the offset that is committed, records that were appended
    (None, "request"): (["NONE"], False, 1, 1),
    (None, "response"): (["NONE"], False, 1, 1),
    ("delay", "request"): ([], False, -1, 0),
    ("delay", "response"): ([], False, 1, 1),
    ("drop", "request"): ([], False, -1, 0),
    ("drop", "response"): ([], False, 1, 1),
    ("duplicate", "request"): (["NONE"], False, 1, 2),
    ("duplicate", "response"): (["NONE", "NONE"], False, 1, 1),
    ("error", "request"): (["NOT_COORDINATOR"], False, -1, 0),
    ("error", "response"): (["NOT_COORDINATOR"], False, 1, 1),
    ("disconnect", "request"): ([], True, -1, 0),
    ("disconnect", "response"): ([], True, 1, 1),
}


def test_there_is_an_exchange_for_each_action() -> None:
    assert [*ON_AN_EXCHANGE] == list(itertools.product([None, *ACTIONS], DIRECTIONS))
    plain = [ON_AN_EXCHANGE[None, on] for on in DIRECTIONS]
    assert not [key for key, happens in ON_AN_EXCHANGE.items() if key[0] is not None and happens in plain]


@pytest.mark.parametrize(("action", "on"), list(ON_AN_EXCHANGE))
def test_each_action_has_its_effect(coordinator: StartCoordinator, action: Any, on: Any) -> None:
    c = coordinator()
    with Wire(c.address) as wire, Wire(c.address) as other:
        if action is not None:
            parameter: Any = {key: ACTIONS[action].drawn[-1] for key in [ACTIONS[action].parameter] if key}
            c.add_fault(Fault(action, on=on, api="OffsetCommit", **parameter))
        before = c._call(lambda server: server.host.groups.machine.appended)
        wire.send(commit_request("g", 1), 8)
        offset = committed(other, "g")  # answered after the commit, which has come before
        frames, is_closed = wire.arrived()
        is_closed |= (action == "disconnect") and wire.is_closed_by_peer()  # what it has sent is there; the end may lag
        answers = [kw.decode_response(body, kw.OffsetCommitResponse, 8)[1] for body in frames]
        errors = [error.name for answer in answers for error in errors_in(answer)]
        appended = c._call(lambda server: server.host.groups.machine.appended) - before
    assert (errors, is_closed, offset, appended) == ON_AN_EXCHANGE[action, on]


def test_faults_on_requests(coordinator: StartCoordinator) -> None:
    c = coordinator()
    with Wire(c.address) as wire, Wire(c.address) as other:
        heartbeat = become_stable(wire, "g")
        assert commit(other, "simple", 1) == 0
        c.add_fault(
            Fault("drop", api="Heartbeat", count=1),
            Fault("error", api="OffsetCommit", error="COORDINATOR_NOT_AVAILABLE", count=1),
            Fault("delay", api="Metadata", delay_ms=200, count=1),
            Fault("duplicate", api="SyncGroup", count=1),
            Fault("disconnect", api="ListGroups", count=1),
        )
        wire.send(heartbeat, 4)  # lost; what comes next is answered all the same
        assert wire.call(heartbeat, 4).error_code == 0
        assert commit(other, "simple", 2) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert committed(other, "simple") == 1
        began = time.monotonic()
        slow, behind = other.send(kw.MetadataRequest(topics=[]), 9), other.send(VERSIONS, 3)
        assert wire.call(VERSIONS, 3).error_code == 0
        other.receive(slow)
        assert time.monotonic() - began > 0.15
        other.receive(behind)
        assert become_stable(other, "h")
        assert other.call(VERSIONS, 3).error_code == 0
        correlation_id = wire.send(VERSIONS, 3)
        wire.send(kw.ListGroupsRequest(), 4)
        assert wire.receive(correlation_id).error_code == 0
        assert wire.is_closed_by_peer()
    counted = [line for line in c.metrics().splitlines() if line.startswith("kcoord_faults_total")]
    assert sorted(line.partition(" ")[2] for line in counted) == ["1.0"] * 5


def test_faults_on_responses(coordinator: StartCoordinator) -> None:
    c = coordinator()
    with Wire(c.address) as wire, Wire(c.address) as other:
        c.add_fault(
            Fault("drop", on="response", api="OffsetCommit", count=1),
            Fault("error", on="response", api="OffsetCommit", error=ErrorCode.REQUEST_TIMED_OUT, after=1, count=1),
            Fault("delay", on="response", api="Metadata", delay_ms=200, count=1),
            Fault("duplicate", on="response", api="FindCoordinator", count=1),
            Fault("disconnect", on="response", api="OffsetCommit", after=2, count=1),
        )
        wire.send(commit_request("g", 1), 8)
        assert committed(wire, "g") == 1
        assert commit(wire, "g", 2) == ErrorCode.REQUEST_TIMED_OUT
        assert committed(wire, "g") == 2
        began = time.monotonic()
        wire.call(kw.MetadataRequest(topics=[]), 9)
        assert time.monotonic() - began > 0.15
        wire.call(kw.FindCoordinatorRequest(key="g"), 2)
        second = wire.receive_body()
        assert kw.decode_response(second, kw.FindCoordinatorResponse, 2)[1].error_code == 0
        wire.send(commit_request("g", 3), 8)
        assert wire.is_closed_by_peer()
        assert committed(other, "g") == 3
        c.clear_faults()
        assert commit(other, "g", 4) == 0


def test_a_duplicated_authentication_is_seen_twice(
    coordinator: StartCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[kw.SaslHandshakeRequest] = []
    handshake = Session.handshake

    def count(session: Session, message: kw.SaslHandshakeRequest, version: int) -> kw.SaslHandshakeResponse:
        seen.append(message)
        return handshake(session, message, version)

    monkeypatch.setattr(Session, "handshake", count)
    faults = Faults([Fault("duplicate", api="SaslHandshake")])
    with Wire(coordinator(users=Users({"alice": "secret"}), faults=faults).address) as wire:
        assert wire.call(kw.SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
    assert len(seen) == 2


def test_a_delayed_request_of_a_client_that_has_gone(coordinator: StartCoordinator) -> None:
    c = coordinator(faults=Faults([Fault("delay", api="OffsetCommit", delay_ms=100)]))
    with Wire(c.address) as wire:
        wire.send(commit_request("g", 1), 8)
    with Wire(c.address) as wire:
        assert commit(wire, "h", 1) == 0  # so the other's time has come too
        assert committed(wire, "g") == -1


def test_a_delayed_request_that_fails_closes_its_connection(
    coordinator: StartCoordinator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    genuine = Host.submit

    def submit(host: Host, request: Request) -> None:
        if isinstance(request.message, kw.OffsetCommitRequest):
            raise RuntimeError("planted")
        genuine(host, request)

    monkeypatch.setattr(Host, "submit", submit)
    c = coordinator(faults=Faults([Fault("delay", api="OffsetCommit", delay_ms=10)]))
    with Wire(c.address) as wire, Wire(c.address) as other:
        wire.send(commit_request("g", 1), 8)
        assert wire.is_closed_by_peer()
        assert other.call(VERSIONS, 3).error_code == 0
    assert "a message of 127.0.0.1 has failed" in caplog.text
