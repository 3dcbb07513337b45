"""The life of a `Coordinator`: starting, stopping, wrong arguments, and what may be called while it runs."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from typing import Any, Self

import pytest

import kcoord_wire as kw
from kcoord_wire.coordinator.connection import PeerLimits
from kcoord_wire.coordinator.coordinator import Coordinator
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.events import Trigger
from kcoord_wire.coordinator.fault_injection import Fault
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.fixtures import StartCoordinator
from tests.support.group_client import (
    SOON,
    VERSIONS,
    become_stable,
    join_request,
)
from tests.support.waiting import eventually
from tests.support.wire import Wire


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
    with pytest.raises(RuntimeError, match="is not running"):
        c.create_topic("late", 1)
    with pytest.raises(RuntimeError, match="once"):
        c.start()


def test_parked_requests_are_answered_when_it_stops(coordinator: StartCoordinator) -> None:
    c = coordinator()
    with Wire(c.address) as first, Wire(c.address) as second:
        heartbeat = become_stable(first, "g")
        member_id = second.call(join_request("g"), 9).member_id
        parked = second.send(join_request("g", member_id), 9)
        eventually(lambda: first.call(heartbeat, 4).error_code == ErrorCode.REBALANCE_IN_PROGRESS)
        c.stop()
        assert second.receive(parked).error_code == ErrorCode.NOT_COORDINATOR
        assert second.is_closed_by_peer()


def test_a_port_in_use_is_reported_at_the_start(coordinator: StartCoordinator) -> None:
    before = threading.active_count()
    c = coordinator()
    with pytest.raises(OSError, match="in use"):
        Coordinator(port=c.port).start()
    with pytest.raises(OSError, match=f"port {c.port} for metrics: .* in use"):
        Coordinator(metrics_port=c.port).start()
    c.stop()
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"topics": ["orders"]}, "topics must be a Mapping, not"),
        ({"topics": {"orders": "3"}}, "topic 'orders' needs a whole number of partitions, not '3'"),
        ({"config": 3}, "config must be a GroupConfig, not"),
        ({"users": {"alice": "secret"}}, "users must be a Users, not"),
        ({"faults": [Fault("drop")]}, "faults must be a Faults, not"),
        ({"advertise": "kafka:9092"}, "advertise must be a tuple, not"),
    ],
)
def test_wrong_arguments_are_refused_before_it_starts(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        Coordinator(**arguments)


def test_wrong_faults_and_settings_are_rejected(coordinator: StartCoordinator) -> None:
    started = coordinator()
    started.add_fault(Fault("drop", api="Heartbeat"))
    wrong: Any = [Fault("drop")]
    with pytest.raises(TypeError, match="must be a Fault, not"):
        started.add_fault(wrong)
    wrong = "5"
    with pytest.raises(TypeError, match="max_size must be of type int, not '5'"):
        GroupConfig(max_size=wrong)
    with Wire(started.address) as wire:
        assert wire.call(VERSIONS, 3).error_code == 0


def test_the_callers_event_loop_goes_on() -> None:
    """Start and stop wait for a turn of the caller's loop: one that blocked it would never come."""

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def await_a_turn() -> None:
            turned = threading.Event()
            loop.call_soon_threadsafe(turned.set)
            assert turned.wait(30), "the caller's loop stands still"

        class Awaited(Coordinator):
            def start(self) -> Self:
                await_a_turn()
                return super().start()

            def stop(self) -> None:
                await_a_turn()
                super().stop()

        async with Awaited({"orders": 12}) as c:
            with Wire(c.address) as wire:
                assert wire.call(VERSIONS, 3).error_code == 0

    asyncio.run(main())


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


def test_the_advertised_address_is_returned(coordinator: StartCoordinator) -> None:
    c = coordinator(host="localhost", advertise=("broker.example", 19092))
    with Wire("localhost", c.port) as wire:
        broker = wire.call(kw.MetadataRequest(topics=[]), 9).brokers[0]
        found = wire.call(kw.FindCoordinatorRequest(key="g"), 2)
    assert (broker.host, broker.port) == (found.host, found.port) == ("broker.example", 19092)
    assert c.address == f"localhost:{c.port}"


def test_rebalances_are_logged_and_counted(coordinator: StartCoordinator, caplog: pytest.LogCaptureFixture) -> None:
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
    eventually(lambda: re.search("^kcoord_log_bytes [1-9]", c.metrics(), re.MULTILINE) is not None)
    assert c.metrics_port
    with socket.create_connection(("127.0.0.1", c.metrics_port), SOON) as scrape:
        scrape.sendall(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
        scraped = b"".join(iter(lambda: scrape.recv(65536), b""))
    assert b'kcoord_groups{state="Stable"} 1.0' in scraped
