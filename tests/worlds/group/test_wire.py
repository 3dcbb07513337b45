"""Frames between members and the coordinator: injected faults, probes, and what a tap sees."""

from __future__ import annotations

import uuid

import pytest

from kcoord_wire import messages as m
from kcoord_wire.codec.registry import decode_request
from kcoord_wire.coordinator.fault_injection import Fault, Faults
from kcoord_wire.kernel.virtual.clock import EPOCH_MS
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.worlds.group.wire import VirtualTopics
from kcoord_wire.worlds.group.world import Cluster
from tests.support.clusters import QUICK, SHORT


def test_the_faults_of_the_server_work_in_the_simulation() -> None:
    rules = Faults(
        [
            Fault(api="JoinGroup", action="error", error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, count=2),
            Fault(api="JoinGroup", on="response", action="drop", count=1),
            Fault(api="SyncGroup", action="disconnect", count=1),
            Fault(api="SyncGroup", on="response", action="disconnect", count=1),
            Fault(api="Heartbeat", action="duplicate", count=3),
            Fault(api="Heartbeat", on="response", action="duplicate", count=3),
            Fault(api="Heartbeat", action="delay", delay_ms=700, after=5, count=2),
            Fault(api="OffsetCommit", on="response", action="error", error=ErrorCode.NOT_COORDINATOR, count=1),
            Fault(api="OffsetFetch", action="drop", count=1),
        ]
    )
    with Cluster(8, topics={"orders": 4}, config=QUICK, faults=rules) as sim:
        for name in ("m1", "m2"):
            sim.member(name, request_timeout_ms=4_000, **SHORT)
        sim.run(60_000)
        sim.run_until(sim.is_settled)
        got = [line.detail for line in sim.trace if line.what == "gets"]
        assert next(a for a in got if isinstance(a, m.JoinGroupResponse)).error_code == 14
        assert [line for line in sim.trace if line.what == "notcommitted"]
        assert [line for line in sim.trace if line.what == "fetched"]


def test_a_probe_sees_a_crash() -> None:
    with Cluster(9, config=QUICK) as sim:
        request = m.JoinGroupRequest(
            group_id="group",
            session_timeout_ms=6_000,
            rebalance_timeout_ms=6_000,
            protocol_type="consumer",
            protocols=[m.JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        sent = sim.send(request, 9)
        sim.crash_coordinator()
        with pytest.raises(ConnectionRefusedError):
            sim.send(request, 9)
        with pytest.raises(ConnectionResetError):
            sim.answer(sent)


class Recorder:
    """A tap that keeps what it gets."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, str, str, bytes]] = []

    def __call__(self, time_ms: int, connection: str, direction: str, frame: bytes, /) -> None:
        self.seen.append((time_ms, connection, direction, frame))


def test_a_tap_sees_each_connection_from_start_to_end() -> None:
    tap = Recorder()
    with Cluster(3, config=QUICK, members=["m1"], tap=tap) as sim:
        sim.run_until(sim.is_settled)
        sim.leave("m1")
        sim.run(1_000)
    by_connection: dict[str, list[str]] = {}
    for time_ms, connection, direction, frame in tap.seen:
        assert EPOCH_MS <= time_ms <= EPOCH_MS + 10_000
        assert bool(frame) == (direction in ("request", "response"))
        by_connection.setdefault(connection, []).append(direction)
    assert len(by_connection) == 2, "one for Metadata, one for the group"
    for directions in by_connection.values():
        assert (directions[0], directions[-1]) == ("opened", "closed")
        assert directions.count("opened") == directions.count("closed") == 1
    requests = [decode_request(frame)[1] for _, _, direction, frame in tap.seen if direction == "request"]
    assert [type(request) for request in requests[:3]] == [
        m.MetadataRequest,
        m.FindCoordinatorRequest,
        m.JoinGroupRequest,
    ]
    assert isinstance(requests[-1], m.LeaveGroupRequest)


@pytest.mark.parametrize("seed", range(3))
def test_a_tap_changes_nothing(seed: int) -> None:
    traces = []
    for tap in (None, Recorder()):
        with Cluster(seed, members=3, tap=tap) as sim:
            sim.lose(5_000, drop=0.1, reset=0.1)
            sim.run(30_000)
            traces.append([str(line) for line in sim.trace])
    assert traces[0] == traces[1]


def test_topics_are_found_by_name_and_by_id() -> None:
    topics = VirtualTopics({"a": 3, "b": 1})
    assert (topics.partitions("a"), topics.partitions("c")) == (3, None)
    topic_id = topics.id_of("b")
    assert topic_id is not None
    assert topics.name_of(topic_id) == "b"
    assert topics.id_of("c") is None
    assert topics.name_of(uuid.UUID(int=1)) is None


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_a_topic_needs_partitions(count: int) -> None:
    with pytest.raises(ValueError, match="topic 'o' needs one partition or more"):
        VirtualTopics({"o": count})
