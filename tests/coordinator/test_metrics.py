"""What is counted, how it reads when scraped, and the accounts of rebalances in the log."""

from __future__ import annotations

import logging
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
from kcoord_wire.coordinator.metrics import (
    GroupCounts,
    Histogram,
    Metrics,
    TransactionCounts,
    first_error,
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


# ---- samples


def test_nothing_has_happened() -> None:
    seen = samples(Metrics())
    assert seen["kcoord_connections",] == seen["kcoord_members",] == seen["kcoord_received_bytes_total",] == 0
    assert not [name for name in seen if name[0] == "kcoord_requests_total"]


def test_what_the_server_counts() -> None:
    metrics = Metrics()
    metrics.peers.open, metrics.peers.accepted = 3, 10
    metrics.read_log_bytes = lambda: 4096
    metrics.peers.received_bytes += 100
    metrics.peers.sent_bytes += 200
    metrics.peers.closed["idle"] += 2
    metrics.faults["drop"] += 1
    metrics.read_groups = lambda: GroupCounts({"Stable": 4, "Empty": 1}, 12)
    metrics.read_transactions = lambda: TransactionCounts({"Ongoing": 2}, 9, {"committed": 6, "timed out": 1})
    for _ in range(3):
        metrics.count_request(12, 0, 0.0002)
    metrics.count_request(12, 27, 0.002)
    metrics.count_repeated(30, 7)
    metrics.count_repeated(30, 7)
    metrics.count_request(999, 999, 400.0)
    metrics.count_sync(0.003, 17)
    seen = samples(metrics)
    assert seen["kcoord_connections",] == 3
    assert seen["kcoord_connections_accepted_total",] == 10
    assert seen["kcoord_connections_closed_total", "idle"] == 2
    assert seen["kcoord_received_bytes_total",] == 160
    assert seen["kcoord_sent_bytes_total",] == 214
    assert seen["kcoord_faults_total", "drop"] == 1
    assert seen["kcoord_groups", "Stable"] == 4
    assert seen["kcoord_members",] == 12
    assert seen["kcoord_transactional_ids", "Ongoing"] == 2
    assert seen["kcoord_transactions_begun_total",] == 9
    assert seen["kcoord_transactions_ended_total", "committed"] == 6
    assert seen["kcoord_transactions_ended_total", "timed out"] == 1
    assert seen["kcoord_requests_total", "Heartbeat", "NONE"] == 5
    assert seen["kcoord_requests_total", "Heartbeat", "REBALANCE_IN_PROGRESS"] == 1
    assert seen["kcoord_requests_total", "UnknownApi999", "999"] == 1
    assert seen["kcoord_request_seconds_bucket", "Heartbeat", "0.0001"] == 2
    assert seen["kcoord_request_seconds_bucket", "Heartbeat", "0.0005"] == 5
    assert seen["kcoord_request_seconds_bucket", "Heartbeat", "+Inf"] == 6
    assert seen["kcoord_request_seconds_count", "UnknownApi999"] == 1
    assert seen["kcoord_request_seconds_sum", "Heartbeat"] == pytest.approx(0.0026)
    assert seen["kcoord_sync_seconds_count",] == 1
    assert seen["kcoord_sync_appends_bucket", "20.0"] == 1
    assert seen["kcoord_sync_appends_bucket", "10.0"] == 0
    assert seen["kcoord_log_bytes",] == 4096


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
            metrics.peers.closed[f"reason {number % 100}"] += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        for _ in range(5):
            metrics.exposition()
    finally:
        done.set()
        thread.join()


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
        (m.CreateTopicsResponse(topics=[m.CreateTopicsResponseCreatableTopicResult(error_code=36)]), 36),
        (m.DeleteTopicsResponse(responses=[m.DeleteTopicsResponseDeletableTopicResult(error_code=3)]), 3),
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
