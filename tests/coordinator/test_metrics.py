"""What is counted, how it reads when scraped, and the accounts of rebalances in the log."""

from __future__ import annotations

import json
import logging
import socket
import sys
import threading
import urllib.request
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import kcoord_wire as kw
from kcoord_wire import messages as m
from kcoord_wire.coordinator.coordinator import Coordinator
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.events import Phase, RebalanceAccount, RebalanceReport, Removal, Trigger
from kcoord_wire.coordinator.metrics import (
    GroupCounts,
    Histogram,
    Metrics,
    describe_rebalance,
    first_error,
    rebalance_to_json,
)
from kcoord_wire.extras import MissingLibraryError
from tests.support.wire import Wire


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """All samples, by name and label values in the order of their names."""
    return read_samples(metrics.exposition().decode())


def read_samples(text: str) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(text)
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def billing(**changes: Any) -> RebalanceAccount:
    values: dict[str, Any] = {
        "group_id": "billing",
        "generation_id": 7,
        "trigger": Trigger.NEW_MEMBER,
        "member_id": "c2-6f",
        "client_id": "c2",
        "client_host": "/10.0.0.7",
        "group_instance_id": None,
        "reason": None,
        "started_at": 1_760_000_000_000,
    }
    return RebalanceAccount(**values | changes)


def ended(**changes: Any) -> RebalanceAccount:
    values: dict[str, Any] = {
        "joined_at": 1_760_000_000_812,
        "ended_at": 1_760_000_000_821,
        "outcome": "stable",
        "protocol": "range",
        "leader_id": "c1-0a",
        "joins": [("c2-6f", 0), ("c1-0a", 640)],
        "removed": [Removal("c3-77", "c3", "/10.0.0.8", "session timeout")],
    }
    return billing(**values | changes)


# ---- samples


def test_nothing_has_happened() -> None:
    seen = samples(Metrics())
    assert seen["kcoord_connections",] == seen["kcoord_members",] == seen["kcoord_received_bytes_total",] == 0
    assert not [name for name in seen if name[0] == "kcoord_requests_total"]


def test_what_the_server_counts() -> None:
    metrics = Metrics()
    metrics.connections, metrics.accepted, metrics.log_bytes = 3, 10, 4096
    metrics.received_bytes += 100
    metrics.sent_bytes += 200
    metrics.closed["idle"] += 2
    metrics.faults["drop"] += 1
    metrics.read_groups = lambda: GroupCounts({"Stable": 4, "Empty": 1}, 12)
    for _ in range(3):
        metrics.count_request(12, 0, 0.0002)
    metrics.count_request(12, 27, 0.002)
    metrics.count_request(999, 999, 400.0)
    metrics.count_sync(0.003, 17)
    seen = samples(metrics)
    assert seen["kcoord_connections",] == 3
    assert seen["kcoord_connections_accepted_total",] == 10
    assert seen["kcoord_connections_closed_total", "idle"] == 2
    assert seen["kcoord_received_bytes_total",] == 100
    assert seen["kcoord_sent_bytes_total",] == 200
    assert seen["kcoord_faults_total", "drop"] == 1
    assert seen["kcoord_groups", "Stable"] == 4
    assert seen["kcoord_members",] == 12
    assert seen["kcoord_requests_total", "Heartbeat", "NONE"] == 3
    assert seen["kcoord_requests_total", "Heartbeat", "REBALANCE_IN_PROGRESS"] == 1
    assert seen["kcoord_requests_total", "UnknownApi999", "999"] == 1
    assert seen["kcoord_request_seconds_bucket", "Heartbeat", "0.0001"] == 0
    assert seen["kcoord_request_seconds_bucket", "Heartbeat", "0.0005"] == 3
    assert seen["kcoord_request_seconds_bucket", "Heartbeat", "+Inf"] == 4
    assert seen["kcoord_request_seconds_count", "UnknownApi999"] == 1
    assert seen["kcoord_request_seconds_sum", "Heartbeat"] == pytest.approx(0.0026)
    assert seen["kcoord_sync_seconds_count",] == 1
    assert seen["kcoord_sync_appends_bucket", "20.0"] == 1
    assert seen["kcoord_sync_appends_bucket", "10.0"] == 0
    assert seen["kcoord_log_bytes",] == 4096


def test_rebalances_count_when_they_have_ended() -> None:
    metrics = Metrics()
    for phase in Phase:
        metrics.count_account(RebalanceReport(phase, ended()))
    only_started = billing(ended_at=1_760_000_005_000, outcome="empty", trigger=Trigger.MEMBER_LEFT)
    metrics.count_account(RebalanceReport(Phase.ENDED, only_started))
    seen = samples(metrics)
    assert seen["kcoord_rebalances_total", "stable", "new member"] == 1
    assert seen["kcoord_rebalances_total", "empty", "member left"] == 1
    assert seen["kcoord_members_removed_total", "session timeout"] == 1
    assert seen["kcoord_rebalance_seconds_sum", "join"] == pytest.approx(0.812)
    assert seen["kcoord_rebalance_seconds_sum", "sync"] == pytest.approx(0.009)
    assert seen["kcoord_rebalance_seconds_count", "whole"] == 2
    assert seen["kcoord_rebalance_seconds_count", "join"] == 1


def test_a_value_at_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 99.0):
        histogram.observe(value)
    assert histogram.buckets() == [("1.0", 2.0), ("2.0", 4.0), ("+Inf", 5.0)]
    assert histogram.total == 104.0


def test_metrics_of_two_coordinators_are_apart() -> None:
    one, other = Metrics(), Metrics()
    one.accepted = 5
    assert samples(other)["kcoord_connections_accepted_total",] == 0
    assert one.registry is one.registry
    assert one.registry is not other.registry


def test_scrapes_while_another_thread_counts() -> None:
    metrics, done = Metrics(), threading.Event()

    def count() -> None:
        number = 0
        while not done.is_set():
            number += 1
            metrics.count_request(number % 90, number % 1000, 0.001)
            metrics.closed[f"reason {number % 100}"] += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        for _ in range(5):
            metrics.exposition()
    finally:
        done.set()
        thread.join()


def test_serving() -> None:
    metrics = Metrics()
    metrics.accepted = 7
    with metrics.serve() as server:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as answer:
            assert "kcoord_connections_accepted_total 7.0" in answer.read().decode()
        with pytest.raises(OSError, match="in use"):
            metrics.serve(port=server.port)
        threads = threading.active_count()
    assert threading.active_count() < threads


def test_who_asks_nothing_holds_no_thread(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("kcoord_wire.coordinator.metrics.SCRAPE_SECONDS", 0.1)
    with Metrics().serve() as server, socket.create_connection(("127.0.0.1", server.port), 10) as silent:
        assert silent.recv(1) == b""
    assert capsys.readouterr().err == ""


def test_counting_needs_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    metrics = Metrics()
    metrics.count_request(12, 0, 0.1)
    with pytest.raises(MissingLibraryError, match=r"the metrics port needs prometheus_client.*kcoord_wire\[serve\]"):
        metrics.serve()


def test_a_coordinator_is_scraped(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kcoord_wire.coordinator")
    config = GroupConfig(initial_rebalance_delay_ms=0)
    with Coordinator({"orders": 1}, config=config, metrics_port=0) as coordinator, Wire(coordinator.address) as wire:
        join = kw.JoinGroupRequest(
            group_id="billing",
            session_timeout_ms=30_000,
            protocol_type="consumer",
            protocols=[kw.JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\0\xff\xff\xff\xff")],
        )
        joined = wire.call(join, 2)
        member = {"group_id": "billing", "generation_id": joined.generation_id, "member_id": joined.member_id}
        shares = [kw.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"x")]
        assert wire.call(kw.SyncGroupRequest(**member, assignments=shares), 1).error_code == 0
        for _ in range(3):
            assert wire.call(kw.HeartbeatRequest(**member), 1).error_code == 0
        assert wire.call(kw.HeartbeatRequest(**member | {"generation_id": 99}), 1).error_code == 22
        url = f"http://127.0.0.1:{coordinator.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            seen = read_samples(answer.read().decode())
    assert seen["kcoord_connections",] == seen["kcoord_members",] == 1
    assert seen["kcoord_groups", "Stable"] == 1
    assert seen["kcoord_requests_total", "Heartbeat", "NONE"] == 3
    assert seen["kcoord_requests_total", "Heartbeat", "ILLEGAL_GENERATION"] == 1
    assert seen["kcoord_request_seconds_count", "SyncGroup"] == 1
    assert seen["kcoord_rebalances_total", "stable", "new member"] == 1
    assert seen["kcoord_received_bytes_total",] > 100
    assert seen["kcoord_sent_bytes_total",] > 100
    assert any(line.startswith("group billing: stable at generation 1 after") for line in caplog.messages)


# ---- errors of responses


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (m.HeartbeatResponse(error_code=27), 27),
        (m.JoinGroupResponse(members=[m.JoinGroupResponseMember()]), 0),
        (m.ApiVersionsResponse(error_code=35), 35),
        (m.OffsetCommitResponse(), 0),
        (
            m.OffsetCommitResponse(
                topics=[
                    m.OffsetCommitResponseTopic(partitions=[m.OffsetCommitResponsePartition(error_code=code)])
                    for code in (0, 22, 25)
                ]
            ),
            22,
        ),
        (m.OffsetFetchResponse(error_code=16), 16),
        (m.OffsetFetchResponse(groups=[m.OffsetFetchResponseGroup(), m.OffsetFetchResponseGroup(error_code=30)]), 30),
        (
            m.OffsetFetchResponse(
                topics=[m.OffsetFetchResponseTopic(partitions=[m.OffsetFetchResponsePartition(error_code=29)])]
            ),
            29,
        ),
        (m.LeaveGroupResponse(members=[m.LeaveGroupResponseMemberResponse(error_code=25)]), 25),
        (m.DescribeGroupsResponse(groups=[m.DescribeGroupsResponseDescribedGroup(error_code=69)]), 69),
        (m.DeleteGroupsResponse(results=[m.DeleteGroupsResponseDeletableGroupResult(error_code=68)]), 68),
        (m.MetadataResponse(topics=[m.MetadataResponseTopic(error_code=3)]), 3),
        (m.FindCoordinatorResponse(coordinators=[m.FindCoordinatorResponseCoordinator(error_code=30)]), 30),
        (
            m.FetchResponse(
                responses=[
                    m.FetchResponseFetchableTopicResponse(partitions=[m.FetchResponsePartitionData(error_code=1)])
                ]
            ),
            1,
        ),
        (
            m.ProduceResponse(
                responses=[
                    m.ProduceResponseTopicProduceResponse(
                        partition_responses=[m.ProduceResponsePartitionProduceResponse(error_code=-1)]
                    )
                ]
            ),
            -1,
        ),
    ],
)
def test_first_error(response: Any, error: int) -> None:
    assert first_error(response) == error


# ---- the log


def test_lines_of_a_rebalance() -> None:
    start = billing(trigger=Trigger.SESSION_EXPIRED, reason="poll timeout", group_instance_id="i-1")
    assert describe_rebalance(start) == (
        "group billing: rebalance of generation 7 has begun; "
        "session timeout: c2-6f (client c2, /10.0.0.7), instance i-1, who says: poll timeout"
    )
    assert describe_rebalance(ended(ended_at=None, outcome=None, removed=[])) == (
        "group billing: joined to generation 7 after 812 ms; new member: c2-6f (client c2, /10.0.0.7); "
        "2 joined, the last c1-0a, 640 ms after the one before; range, led by c1-0a"
    )
    assert describe_rebalance(ended()) == (
        "group billing: stable at generation 7 after 821 ms (join 812, sync 9); "
        "new member: c2-6f (client c2, /10.0.0.7); 2 joined, the last c1-0a, 640 ms after the one before; "
        "range, led by c1-0a; lost c3-77 (client c3, /10.0.0.8): session timeout"
    )
    alone = ended(joins=[("c1-0a", 3000)], removed=[Removal(f"m{n}", "c", "/h", "left") for n in range(9)])
    assert "1 joined, the last c1-0a, 3000 ms after the start" in describe_rebalance(alone)
    assert describe_rebalance(alone).endswith("lost m4 (client c, /h): left; and 4 more")
    emptied = billing(ended_at=1_760_000_000_001, outcome="empty", trigger=Trigger.MEMBER_LEFT)
    assert describe_rebalance(emptied).startswith("group billing: empty at generation 7 after 1 ms; member left: ")


def test_a_client_cannot_write_lines_of_the_log() -> None:
    evil = "x\n2026 ERROR \x1b[31m\u202e" + "y" * 100_000
    rebalance = ended(
        group_id=evil, member_id=evil, client_id=evil, reason=evil, group_instance_id=evil, leader_id=evil,
        protocol=evil, joins=[(evil, 0), (evil, 5)], removed=[Removal(evil, evil, "/h", "left")] * 5000,
    )  # fmt: skip
    line = describe_rebalance(rebalance)
    assert line.isprintable()
    assert len(line) < 10_000
    text = json.dumps(rebalance_to_json(rebalance, Phase.ENDED))
    assert text.isprintable()
    assert len(text) < 150_000


def test_json_of_a_rebalance() -> None:
    assert json.loads(json.dumps(rebalance_to_json(ended(), Phase.ENDED))) == {
        "event": "rebalance",
        "phase": "ended",
        "group": "billing",
        "generation": 7,
        "outcome": "stable",
        "trigger": "new member",
        "member": "c2-6f",
        "client": "c2",
        "host": "/10.0.0.7",
        "instance": None,
        "reason": None,
        "protocol": "range",
        "leader": "c1-0a",
        "members": 2,
        "started_at": 1_760_000_000_000,
        "join_ms": 812,
        "sync_ms": 9,
        "whole_ms": 821,
        "last": {"member": "c1-0a", "ms_after_the_one_before": 640},
        "lost": 1,
        "removed": [{"member": "c3-77", "client": "c3", "host": "/10.0.0.8", "why": "session timeout"}],
    }
    begun = rebalance_to_json(billing(reason="r", group_instance_id="i"), Phase.STARTED)
    assert (begun["phase"], begun["join_ms"], begun["sync_ms"], begun["whole_ms"]) == ("started", None, None, None)
    assert (begun["last"], begun["removed"], begun["reason"], begun["instance"]) == (None, [], "r", "i")
