"""The coordinator on a real socket: order, cuts, quirks, durability, faults, and the life of a `Coordinator`."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import trustme

import kcoord_wire as kw
from kcoord_wire import background
from kcoord_wire.coordinator.coordinator import Coordinator
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.events import Trigger
from kcoord_wire.coordinator.fault_injection import Fault, Faults
from kcoord_wire.coordinator.log.disk import LogInUseError
from kcoord_wire.coordinator.log.store import Store
from kcoord_wire.coordinator.security import Users
from kcoord_wire.coordinator.server import MAX_NAMES, PeerLimits
from kcoord_wire.error_codes import ErrorCode
from tests.support.fixtures import StartCoordinator
from tests.support.wire import Wire

SUBSCRIPTION = kw.encode_prefixed(kw.ConsumerProtocolSubscription(topics=["orders"]), 1)
VERSIONS = kw.ApiVersionsRequest(client_software_name="test", client_software_version="1")
SOON = 20.0  # seconds: far more than anything here takes


@pytest.fixture(params=["uvloop", "asyncio"])
def each_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "asyncio":
        monkeypatch.setattr(background, "_loop_factory", lambda: asyncio.new_event_loop)


def join_request(group: str, member_id: str = "", **fields: Any) -> kw.JoinGroupRequest:
    return kw.JoinGroupRequest(
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[kw.JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)],
        **fields,
    )


def join(wire: Wire, group: str) -> kw.JoinGroupResponse:
    """Be the first member of a group, with the id that it gives."""
    first = wire.call(join_request(group), 9)
    assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
    joined: kw.JoinGroupResponse = wire.call(join_request(group, first.member_id), 9)
    assert joined.error_code == 0
    return joined


def become_stable(wire: Wire, group: str) -> kw.HeartbeatRequest:
    """Be the only member of a group, and have an assignment. The heartbeat to send from then on."""
    joined = join(wire, group)
    mine = kw.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")
    asked = kw.SyncGroupRequest(
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[mine],
    )
    synced = wire.call(asked, 5)
    assert (synced.error_code, synced.assignment) == (0, b"all")
    return kw.HeartbeatRequest(group_id=group, generation_id=joined.generation_id, member_id=joined.member_id)


def commit_request(group: str, offset: int) -> kw.OffsetCommitRequest:
    partition = kw.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    return kw.OffsetCommitRequest(
        group_id=group, topics=[kw.OffsetCommitRequestTopic(name="orders", partitions=[partition])]
    )


def commit(wire: Wire, group: str, offset: int) -> int:
    """Commit an offset as a group without members does. The error code."""
    code: int = wire.call(commit_request(group, offset), 8).topics[0].partitions[0].error_code
    return code


def committed(wire: Wire, group: str) -> int:
    topic = kw.OffsetFetchRequestTopic(name="orders", partition_indexes=[0])
    answer = wire.call(kw.OffsetFetchRequest(group_id=group, topics=[topic]), 7)
    assert answer.error_code == 0
    offset: int = answer.topics[0].partitions[0].committed_offset
    return offset


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < end, "it has not come about in time"
        time.sleep(0.01)


def request_bytes(request: Any, version: int, correlation_id: int, client_id: str | None = "x") -> bytes:
    return kw.frame(kw.encode_request(request, version, correlation_id=correlation_id, client_id=client_id))


# ---- order and cuts


@pytest.mark.usefixtures("each_loop")
def test_answers_come_in_the_order_of_the_requests(coordinator: StartCoordinator) -> None:
    with Wire(coordinator().address) as wire:
        heartbeat = become_stable(wire, "g")
        requests = [(heartbeat, 4), (VERSIONS, 3), (kw.MetadataRequest(topics=None), 12), (heartbeat, 0)] * 150
        sent = [wire.send(request, version) for request, version in requests]
        answers = [wire.receive(correlation_id) for correlation_id in sent]
    assert all(answer.error_code == 0 for answer in answers if not isinstance(answer, kw.MetadataResponse))


@pytest.mark.usefixtures("each_loop")
def test_a_parked_join_holds_up_its_own_connection_alone(coordinator: StartCoordinator) -> None:
    address = coordinator().address
    with Wire(address) as first, Wire(address) as second, Wire(address) as third:
        heartbeat = become_stable(first, "g")
        second_id = second.call(join_request("g"), 9).member_id
        parked = second.send(join_request("g", second_id), 9)
        behind = second.send(VERSIONS, 3)
        assert third.call(VERSIONS, 3).error_code == 0
        until(lambda: first.call(heartbeat, 4).error_code == ErrorCode.REBALANCE_IN_PROGRESS)
        assert become_stable(third, "other")
        assert first.call(join_request("g", heartbeat.member_id), 9).generation_id == 2
        assert second.receive(parked).generation_id == 2
        assert second.receive(behind).error_code == 0


def chunks_of(data: bytes, how: str) -> Iterator[bytes]:
    if how == "whole":
        yield data
    elif how == "byte by byte":
        yield from (data[i : i + 1] for i in range(len(data)))
    else:
        size = {"pairs of frames and a half": 90, "thirteen": 13}[how]
        yield from (data[i : i + size] for i in range(0, len(data), size))


@pytest.mark.usefixtures("each_loop")
@pytest.mark.parametrize("how", ["whole", "byte by byte", "pairs of frames and a half", "thirteen"])
@pytest.mark.parametrize("junk", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff\xff\xff\xff", b"\0\0\0\4abcd"])
def test_cuts_make_no_difference(coordinator: StartCoordinator, how: str, junk: bytes) -> None:
    requests = [
        (VERSIONS, 3),
        (kw.MetadataRequest(topics=[]), 9),
        (kw.FindCoordinatorRequest(key="g"), 2),
        (kw.HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4),
    ]
    data = b"".join(request_bytes(request, version, n) for n, (request, version) in enumerate(requests)) + junk
    with Wire(coordinator().address) as wire:
        for chunk in chunks_of(data, how):
            try:
                wire.send_raw(chunk)
            except ConnectionError:  # it was closed within the junk
                break
        for n, (request, version) in enumerate(requests):
            body = wire.receive_body()
            api_key = kw.registry.by_class(type(request)).api_key
            assert api_key is not None
            header, answer = kw.decode_response(body, api_key, version)
            assert header.correlation_id == n
            if isinstance(request, kw.HeartbeatRequest):
                assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
        if junk:
            assert wire.is_closed_by_peer()


def test_a_produce_without_acknowledgement_is_not_answered(coordinator: StartCoordinator) -> None:
    with Wire(coordinator().address) as wire:
        wire.send(kw.ProduceRequest(acks=0, timeout_ms=1000), 9)
        assert wire.call(VERSIONS, 3).error_code == 0


# ---- headers and versions


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(coordinator: StartCoordinator) -> None:
    with Wire(coordinator().address) as wire:
        for version in (6, 99, 32767):
            wire.send_raw(kw.frame(struct.pack(">hhih", 18, version, version, -1) + b"\0" + b"\x80" * 20))
            body = wire.receive_body()
            assert int.from_bytes(body[:4], "big") == version
            answer = kw.decode(kw.ApiVersionsResponse, body[4:], 0)
            assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
            assert [entry.api_key for entry in answer.api_keys] == [18]
        assert wire.call(VERSIONS, 4).error_code == 0


@pytest.mark.parametrize(("api_key", "version"), [(99, 0), (-1, 0), (12, 5), (12, -1), (0, 0), (7, 0), (19, 2)])
def test_what_is_not_served_closes_the_connection(coordinator: StartCoordinator, api_key: int, version: int) -> None:
    c = coordinator()
    with Wire(c.address) as wire, Wire(c.address) as other:
        correlation_id = wire.send(VERSIONS, 3)
        wire.send_raw(kw.frame(struct.pack(">hhih", api_key, version, 1, -1) + b"\0\0\0\0"))
        assert wire.receive(correlation_id).error_code == 0
        assert wire.is_closed_by_peer()
        assert other.call(VERSIONS, 3).error_code == 0
    assert 'kcoord_connections_closed_total{reason="malformed"} 1.0' in c.metrics()


@pytest.mark.parametrize("version", [3, 9])
def test_a_null_client_id_is_an_empty_one(coordinator: StartCoordinator, version: int) -> None:
    with Wire(coordinator().address, client_id=None) as wire:
        member_id = wire.call(join_request("g"), version).member_id
        assert member_id.startswith("-")
        if version == 9:
            wire.call(join_request("g", member_id), version)
        group = wire.call(kw.DescribeGroupsRequest(groups=["g"]), 5).groups[0]
        assert [(m.client_id, m.client_host) for m in group.members] == [("", "/127.0.0.1")]


def test_unknown_tags_in_a_header_are_passed_over(coordinator: StartCoordinator) -> None:
    header = struct.pack(">hhih", 12, 4, 7, 2) + b"id" + b"\1\5\3abc"
    body = kw.encode(kw.HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4)
    with Wire(coordinator().address) as wire:
        wire.send_raw(kw.frame(header + body))
        assert wire.receive_body() == b"\0\0\0\7\0" + kw.encode(kw.HeartbeatResponse(error_code=25), 4)


def test_a_name_too_long_for_a_member_id_closes_the_connection(coordinator: StartCoordinator) -> None:
    c = coordinator()
    for client_id, instance_id in (("c" * 32_767, None), ("c", "i" * 32_767)):
        with Wire(c.address, client_id=client_id) as wire:
            wire.send(join_request("g", group_instance_id=instance_id), 9)
            assert wire.is_closed_by_peer()
    with Wire(c.address) as wire:
        assert become_stable(wire, "g")
        assert commit(wire, "simple", 1) == 0


def test_sasl_where_there_is_none(coordinator: StartCoordinator) -> None:
    with Wire(coordinator().address) as wire:
        assert wire.call(kw.SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == ErrorCode.ILLEGAL_SASL_STATE


# ---- the log


def test_what_was_answered_is_there_after_a_restart(coordinator: StartCoordinator, tmp_path: Path) -> None:
    before = coordinator(data_dir=tmp_path)
    with Wire(before.address) as wire:
        heartbeat = become_stable(wire, "g")
        assert commit(wire, "simple", 42) == 0
    before.stop()
    with Wire(coordinator(data_dir=tmp_path).address) as wire:
        assert wire.call(heartbeat, 4).error_code == 0
        assert committed(wire, "simple") == 42


def test_a_folder_has_one_coordinator(coordinator: StartCoordinator, tmp_path: Path) -> None:
    coordinator(data_dir=tmp_path)
    with pytest.raises(LogInUseError):
        Coordinator(data_dir=tmp_path).start()


def test_commits_share_a_sync(coordinator: StartCoordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = 0
    write = Store._write

    def slow_write(store: Store, batches: Any) -> None:
        nonlocal syncs
        syncs += 1
        time.sleep(0.1)
        write(store, batches)

    monkeypatch.setattr(Store, "_write", slow_write)
    c = coordinator(data_dir=tmp_path)
    wires = [Wire(c.address) for _ in range(40)]
    try:
        sent = [wire.send(commit_request(f"g{n}", n), 8) for n, wire in enumerate(wires)]
        for wire, correlation_id in zip(wires, sent, strict=True):
            assert wire.receive(correlation_id).topics[0].partitions[0].error_code == 0
    finally:
        for wire in wires:
            wire.close()
    assert syncs < 20


def test_a_log_that_fails_is_read_again(
    coordinator: StartCoordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Store._write
    broken = threading.Event()

    def failing_write(store: Store, batches: Any) -> None:
        if broken.is_set():
            store._usable = False
            raise OSError(28, "no space left on device")
        write(store, batches)

    monkeypatch.setattr(Store, "_write", failing_write)
    with Wire(coordinator(data_dir=tmp_path).address) as wire:
        assert commit(wire, "g", 1) == 0
        broken.set()
        assert commit(wire, "g", 2) == ErrorCode.NOT_COORDINATOR
        broken.clear()
        until(lambda: commit(wire, "h", 3) == 0)
        assert committed(wire, "g") == 1


def test_while_the_log_is_read_groups_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recover = Store.recover
    may_go_on = threading.Event()

    def slow_recover(store: Store) -> Any:
        assert may_go_on.wait(SOON)
        return recover(store)

    monkeypatch.setattr(Store, "recover", slow_recover)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    c = Coordinator({"orders": 12}, port=port, config=GroupConfig(initial_rebalance_delay_ms=0))
    starting = threading.Thread(target=c.start)
    starting.start()
    try:
        until(lambda: accepts(port))
        with Wire("127.0.0.1", port) as wire:
            loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            assert wire.call(join_request("g"), 9).error_code == loading
            assert commit(wire, "g", 1) == loading
            assert wire.call(kw.HeartbeatRequest(group_id="g", member_id="m"), 4).error_code == 0
            assert wire.call(VERSIONS, 3).error_code == 0
            may_go_on.set()
            starting.join(SOON)
            assert become_stable(wire, "g")
    finally:
        may_go_on.set()
        starting.join(SOON)
        c.stop()


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


# ---- faults


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


def test_a_delayed_request_of_a_client_that_has_gone(coordinator: StartCoordinator) -> None:
    c = coordinator(faults=Faults([Fault("delay", api="OffsetCommit", delay_ms=100)]))
    with Wire(c.address) as wire:
        wire.send(commit_request("g", 1), 8)
    with Wire(c.address) as wire:
        assert commit(wire, "h", 1) == 0  # so the other's time has come too
        assert committed(wire, "g") == -1


# ---- bounds of time


@pytest.mark.parametrize("sent", [b"", b"\0\0", request_bytes(VERSIONS, 3, 1)[:-1], b"\0\0\0\x20" + b"a" * 31])
def test_silence_ends(coordinator: StartCoordinator, sent: bytes) -> None:
    limits = PeerLimits(idle_ms=300, frame_ms=300)
    with Wire(coordinator(limits=limits).address, timeout=SOON) as wire:
        wire.call(VERSIONS, 3)
        wire.send_raw(sent)
        assert wire.is_closed_by_peer()


def test_authentication_has_to_come_to_an_end(coordinator: StartCoordinator) -> None:
    c = coordinator(users=Users({"alice": "secret"}), limits=PeerLimits(unauthenticated_ms=300))
    with Wire(c.address) as known, Wire(c.address) as unknown:
        assert known.call(kw.SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
        assert known.call(kw.SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret"), 1).error_code == 0
        until(lambda: not is_answered(unknown))  # asking for versions does not keep it alive
        assert known.call(kw.MetadataRequest(topics=[]), 9)
    assert 'kcoord_connections_closed_total{reason="unauthenticated"} 1.0' in c.metrics()


def test_handshakes_of_tls_count_as_connections_and_end(coordinator: StartCoordinator) -> None:
    authority = trustme.CA()
    server, trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.configure_trust(trust)
    c = coordinator(tls=server, limits=PeerLimits(max_connections=3, unauthenticated_ms=1_000))
    with ExitStack() as stack:
        known = stack.enter_context(Wire(c.address, ssl_context=trust))
        assert known.call(VERSIONS, 3).error_code == 0
        silent, half = (stack.enter_context(Wire(c.address)) for _ in range(2))
        half.send_raw(b"\x16\x03\x01\x02")
        with pytest.raises(OSError), Wire(c.address, ssl_context=trust):  # noqa: PT011  # which one differs by who reads
            pass
        assert known.call(VERSIONS, 3).error_code == 0
        assert silent.is_closed_by_peer()
        assert half.is_closed_by_peer()
        until(lambda: 'kcoord_connections_closed_total{reason="TLS"} 2.0' in c.metrics())
        with Wire(c.address, ssl_context=trust) as other:
            assert other.call(VERSIONS, 3).error_code == 0
    assert 'kcoord_connections_closed_total{reason="too many"} 1.0' in c.metrics()


def test_stopping_ends_handshakes_of_tls(coordinator: StartCoordinator) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(server)
    c = coordinator(tls=server, limits=PeerLimits(max_connections=1))
    with Wire(c.address) as silent, Wire(c.address) as refused:
        assert refused.is_closed_by_peer()  # so the one before it has been taken
        c.stop()
        assert silent.is_closed_by_peer()


def test_too_many_names_close_the_connection_whatever_else_is_to_go_wrong(coordinator: StartCoordinator) -> None:
    """They are counted as the request comes, before a fault delays it."""
    c = coordinator(faults=Faults([Fault(api="FindCoordinator", action="delay", delay_ms=1)]))
    with Wire(c.address) as wire:
        wire.send(kw.FindCoordinatorRequest(coordinator_keys=[""] * (MAX_NAMES + 1)), 4)
        assert wire.is_closed_by_peer()


def is_answered(wire: Wire) -> bool:
    try:
        return bool(wire.call(VERSIONS, 3).error_code == 0)
    except (EOFError, ConnectionError):
        return False


def test_who_waits_for_an_answer_is_not_idle(coordinator: StartCoordinator) -> None:
    address = coordinator(limits=PeerLimits(idle_ms=300)).address
    with Wire(address) as first:
        heartbeat = become_stable(first, "g")
        with Wire(address) as second:
            member_id = second.call(join_request("g"), 9).member_id
            parked = second.send(join_request("g", member_id), 9)
            end = time.monotonic() + 1
            while time.monotonic() < end:
                assert first.call(heartbeat, 4).error_code in (0, ErrorCode.REBALANCE_IN_PROGRESS)
                time.sleep(0.05)
            first.call(join_request("g", heartbeat.member_id), 9)
            assert second.receive(parked).error_code == 0


# ---- the life of a coordinator


def test_a_coordinator_leaves_nothing_behind() -> None:
    before = threading.active_count()
    c = Coordinator({"orders": 1}).start()
    with Wire(c.address) as wire:
        assert wire.call(VERSIONS, 3).error_code == 0
        c.stop()
        c.stop()
        assert wire.is_closed_by_peer()
    assert threading.active_count() == before
    with pytest.raises(ConnectionRefusedError):
        Wire(c.address)
    with pytest.raises(RuntimeError, match="does not run"):
        c.create_topic("late", 1)
    with pytest.raises(RuntimeError, match="once"):
        c.start()


def test_what_is_parked_is_answered_when_it_stops(coordinator: StartCoordinator) -> None:
    c = coordinator()
    with Wire(c.address) as first, Wire(c.address) as second:
        heartbeat = become_stable(first, "g")
        member_id = second.call(join_request("g"), 9).member_id
        parked = second.send(join_request("g", member_id), 9)
        until(lambda: first.call(heartbeat, 4).error_code == ErrorCode.REBALANCE_IN_PROGRESS)
        c.stop()
        assert second.receive(parked).error_code == ErrorCode.NOT_COORDINATOR
        assert second.is_closed_by_peer()


def test_a_taken_port_is_said_at_the_start(coordinator: StartCoordinator) -> None:
    before = threading.active_count()
    c = coordinator()
    with pytest.raises(OSError, match="in use"):
        Coordinator(port=c.port).start()
    c.stop()
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"topics": ["orders"]}, "topics must be a Mapping, not"),
        ({"topics": {"orders": "3"}}, "topic 'orders' needs a whole number of partitions, not '3'"),
        ({"config": {"max_size": 1}}, "config must be a GroupConfig, not"),
        ({"users": {"alice": "secret"}}, "users must be a Users, not"),
        ({"faults": [Fault("drop")]}, "faults must be a Faults, not"),
        ({"advertise": "kafka:9092"}, "advertise must be a tuple, not"),
    ],
)
def test_wrong_arguments_are_refused_before_it_starts(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        Coordinator(**arguments)


def test_what_is_no_fault_or_setting_is_refused(coordinator: StartCoordinator) -> None:
    started = coordinator()
    started.add_fault(Fault("drop", api="Heartbeat"))
    wrong: Any = [Fault("drop")]
    with pytest.raises(TypeError, match="a Fault is wanted, not"):
        started.add_fault(wrong)
    wrong = "5"
    with pytest.raises(TypeError, match="max_size must be a whole number, not '5'"):
        GroupConfig(max_size=wrong)
    with Wire(started.address) as wire:
        assert wire.call(VERSIONS, 3).error_code == 0


def test_the_loop_of_who_starts_it_goes_on() -> None:
    """A loop that turns while the coordinator starts and stops, and a blocking client within its own thread."""

    async def main() -> int:
        turns = 0

        async def turn() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        turning = asyncio.create_task(turn())
        async with Coordinator({"orders": 12}) as c:
            with Wire(c.address) as wire:
                assert wire.call(VERSIONS, 3).error_code == 0
        turning.cancel()
        return turns

    assert asyncio.run(main()) > 10


def test_topics_can_be_made_while_it_runs(coordinator: StartCoordinator) -> None:
    c = coordinator()
    c.create_topic("payments", 3)
    assert c.add_partitions("payments", 2) == 5
    with pytest.raises(ValueError, match="already"):
        c.create_topic("payments", 3)
    with pytest.raises(KeyError):
        c.add_partitions("refunds", 2)
    with Wire(c.address) as wire:
        topics = wire.call(kw.MetadataRequest(topics=None), 12).topics
        assert {topic.name: len(topic.partitions) for topic in topics} == {"orders": 12, "payments": 5}


def test_what_it_advertises(coordinator: StartCoordinator) -> None:
    c = coordinator(host="localhost", advertise=("broker.example", 19092))
    with Wire("localhost", c.port) as wire:
        broker = wire.call(kw.MetadataRequest(topics=[]), 9).brokers[0]
        found = wire.call(kw.FindCoordinatorRequest(key="g"), 2)
    assert (broker.host, broker.port) == (found.host, found.port) == ("broker.example", 19092)
    assert c.address == f"localhost:{c.port}"


def test_rebalances_are_told_and_counted(coordinator: StartCoordinator, caplog: pytest.LogCaptureFixture) -> None:
    c = coordinator(metrics_port=0, limits=PeerLimits(frame_ms=1000))
    with caplog.at_level("INFO", "kcoord_wire.coordinator"), Wire(c.address) as wire:
        become_stable(wire, "g")
        rebalance = c.rebalances[-1]
    assert (rebalance.group_id, rebalance.trigger, rebalance.outcome) == ("g", Trigger.NEW_MEMBER, "stable")
    assert "group g: stable at generation 1" in caplog.text
    text = c.metrics()
    for line in ('kcoord_groups{state="Stable"} 1.0', "kcoord_members 1.0", "kcoord_connections_accepted_total 1.0"):
        assert line in text.splitlines()
    assert 'kcoord_requests_total{api="JoinGroup",error="MEMBER_ID_REQUIRED"} 1.0' in text
    until(lambda: re.search("^kcoord_log_bytes [1-9]", c.metrics(), re.MULTILINE) is not None)
    assert c.metrics_port
    with socket.create_connection(("127.0.0.1", c.metrics_port), SOON) as scrape:
        scrape.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        scraped = b"".join(iter(lambda: scrape.recv(65536), b""))
    assert b'kcoord_groups{state="Stable"} 1.0' in scraped
