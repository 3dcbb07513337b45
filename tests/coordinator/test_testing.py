"""What tests ask of a running coordinator: waits that return at the event, errors that show the group, faults."""

from __future__ import annotations

import asyncio
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
from confluent_kafka import Consumer

from kcoord_wire.coordinator import Coordinator, Fault, Trigger
from kcoord_wire.coordinator.description import GroupDescription
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.fixtures import StartCoordinator
from tests.support.group_client import (
    VERSIONS,
    become_stable,
    commit,
    join,
)
from tests.support.waiting import eventually, in_background
from tests.support.wire import Wire

T = TypeVar("T")


def test_a_wait_ends_when_the_group_is_stable(coordinator: StartCoordinator) -> None:
    c = coordinator()
    waiting = in_background(c, lambda: c.wait_until_stable("billing", members=1))
    with Wire(c.address) as wire:
        join(wire, "billing")
        assert not waiting.done(), "the leader has not sent the assignment"
    with Wire(c.address) as wire:
        become_stable(wire, "other")
        assert c.wait_until_stable("other").members[0].client_id == "wire", "no wait for what is so already"
        assert not waiting.done()
        assert [group.group_id for group in c.groups()] == ["billing", "other"]


@pytest.mark.slow
def test_a_wait_passes_over_the_first_cooperative_round(coordinator: StartCoordinator) -> None:
    """After it the first consumer has revoked half of the partitions, and the second has none yet."""
    c = coordinator()
    settings = {
        "bootstrap.servers": c.address,
        "group.id": "billing",
        "partition.assignment.strategy": "cooperative-sticky",
        "heartbeat.interval.ms": 500,
    }
    consumers = [Consumer(settings)]
    consumers[0].subscribe(["orders"])
    try:
        c.wait_until_stable("billing", members=1, poll=lambda: consumers[0].poll(0.05))
        consumers.append(Consumer(settings))
        consumers[1].subscribe(["orders"])
        group = c.wait_until_stable("billing", members=2, poll=lambda: [each.poll(0.05) for each in consumers])
        assert [len((member.assignment or {})["orders"]) for member in group.members] == [6, 6]
        assert [rebalance.outcome for rebalance in c.rebalances][:2] == ["stable", "stable"]
        assert len(c.rebalances) >= 3, "the second round follows the first by itself"
    finally:
        for each in consumers:
            each.close()


def test_a_wait_polls_its_callers_consumers(coordinator: StartCoordinator) -> None:
    c = coordinator()
    with Wire(c.address) as wire:
        polls: list[str] = []

        def poll() -> None:
            polls.append(threading.current_thread().name)
            if len(polls) == 3:
                become_stable(wire, "billing")

        assert c.wait_until_stable("billing", poll=poll).state == "Stable"
        assert set(polls) == {threading.current_thread().name}
        with pytest.raises(TimeoutError, match="is not stable"):
            c.wait_until_stable("billing", 2, timeout=0.01, poll=lambda: None)


def test_a_wait_that_times_out_shows_the_group(coordinator: StartCoordinator) -> None:
    c = coordinator()
    with pytest.raises(TimeoutError, match=r"'billing' is not stable with any members .*; there are no groups"):
        c.wait_until_stable("billing", timeout=0.01)
    with Wire(c.address) as wire:
        become_stable(wire, "billing")
        with pytest.raises(TimeoutError) as error:
            c.wait_until_stable("billing", members=2, timeout=0.01)
    first, *others = str(error.value).splitlines()
    assert first.startswith("group 'billing' is not stable with 2 members after 0.01 s: Stable for ")
    assert first.endswith("generation 1, range, members: 1")
    assert "last rebalance: group billing: stable at generation 1" in others[-1]
    with pytest.raises(TimeoutError, match="there are 'billing'"):
        c.wait_until("biling", lambda group: True, timeout=0.01)


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_wait_for_a_commit(coordinator: StartCoordinator, tmp_path: Path, on_disk: bool) -> None:
    c = coordinator(data_dir=tmp_path if on_disk else None)
    with Wire(c.address) as wire:
        assert commit(wire, "billing", 4) == 0
        waiting = in_background(c, lambda: c.wait_for_commit("billing", "orders", 0, 5))
        assert not waiting.done()
        assert commit(wire, "billing", 7) == 0
        assert waiting.result(60) == 7
    with pytest.raises(TimeoutError, match="'billing' is not at offset 8 of orders-0 after"):
        c.wait_for_commit("billing", "orders", 0, 8, timeout=0.01)
    with pytest.raises(TimeoutError, match="committed: orders-0 at 7"):
        c.wait_for_commit("billing", "orders", 0, 8, timeout=0.01)


def test_waits_end_when_the_coordinator_does(coordinator: StartCoordinator) -> None:
    c = coordinator()
    waiting = in_background(c, lambda: c.wait_until_stable("billing"))
    c.stop()
    with pytest.raises(RuntimeError, match="was stopped"):
        waiting.result(60)
    with pytest.raises(RuntimeError, match="is not running"):
        c.wait_until_stable("billing")


def test_an_error_of_a_condition_is_its_callers(coordinator: StartCoordinator) -> None:
    c = coordinator()
    waiting = in_background(c, lambda: c.wait_until("billing", lambda group: group.members[7] is None))
    with Wire(c.address) as wire:
        become_stable(wire, "billing")
        with pytest.raises(IndexError):
            waiting.result(60)
        assert wire.call(VERSIONS, 3).error_code == 0


def test_a_wait_does_not_block_an_event_loop(coordinator: StartCoordinator) -> None:
    c = coordinator()

    async def main() -> GroupDescription:
        with pytest.raises(RuntimeError, match=r"await asyncio\.to_thread"):
            c.wait_until_stable("billing")
        with Wire(c.address) as wire:
            become_stable(wire, "billing")
            return await asyncio.to_thread(c.wait_until_stable, "billing", members=1)

    assert asyncio.run(main()).state == "Stable"


def test_a_rebalance_on_request(coordinator: StartCoordinator) -> None:
    c = coordinator()
    with pytest.raises(KeyError, match="no group 'billing'"):
        c.trigger_rebalance("billing")
    with Wire(c.address) as wire:
        assert commit(wire, "offsets", 1) == 0
        with pytest.raises(ValueError, match="has no members"):
            c.trigger_rebalance("offsets")
        heartbeat = become_stable(wire, "billing")
        c.trigger_rebalance("billing", "to see what happens")
        assert wire.call(heartbeat, 4).error_code == ErrorCode.REBALANCE_IN_PROGRESS
        rebalance = c.describe("billing").rebalance
        c.trigger_rebalance("billing", "again")
        assert c.describe("billing").rebalance == rebalance, "the members are joining already"
    assert rebalance is not None
    assert (rebalance.trigger, rebalance.reason) == (Trigger.REQUESTED, "to see what happens")
    assert "requested by the operator, stated reason: to see what happens" in c.explain("billing")


def test_faults_last_as_long_as_their_block(coordinator: StartCoordinator) -> None:
    c = coordinator()
    kept = Fault("delay", api="SyncGroup", delay_ms=1)
    c.add_fault(kept)
    refused = Fault("error", api="Heartbeat", error="COORDINATOR_NOT_AVAILABLE")
    with Wire(c.address) as wire:
        heartbeat = become_stable(wire, "billing")
        with c.faults(refused) as injected, c.faults(Fault("error", api="Heartbeat", error=42)) as others:
            waiting = in_background(c, lambda: injected.wait(hits=2))
            for _ in range(2):
                assert wire.call(heartbeat, 4).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert waiting.result(60) == injected.hits == others.hits == 2
            with pytest.raises(TimeoutError) as late:
                injected.wait(hits=3, timeout=0.01)
            struck = r"Fault\(action='error', api='Heartbeat', error=<[^>]*>\): 2 matches, 2 hits"
            assert re.search(rf"not struck 3 times within 0.01 s:\n{struck}$", str(late.value))
        assert wire.call(heartbeat, 4).error_code == 0
        assert c._call(lambda server: [t.fault for t in server.requests.faults.tallies()]) == [kept]  # type: ignore[union-attr]


def test_faults_may_be_cleared_within_their_block() -> None:
    with Coordinator() as c, c.faults(Fault("drop", api="Heartbeat")) as injected:
        c.clear_faults()
        assert injected.hits == 0
    with Coordinator() as c, c.faults(Fault("drop", api="Heartbeat")):
        c.stop()


def test_waits_of_many_threads(coordinator: StartCoordinator) -> None:
    c = coordinator()
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(c.wait_until_stable, f"group-{number % 2}", members=1) for number in range(8)]
        eventually(lambda: len(c._waits) == 8)
        with Wire(c.address) as first, Wire(c.address) as second:
            become_stable(first, "group-0")
            become_stable(second, "group-1")
            assert {each.result(60).group_id for each in waiting} == {"group-0", "group-1"}
    eventually(lambda: not c._call(lambda server: server.scheduler.watchers))
    assert threading.active_count() < 20


def test_the_report_of_a_failed_test(coordinator: StartCoordinator) -> None:
    c = coordinator()
    assert c.report() == "no groups, no rebalances"
    with Wire(c.address) as wire:
        become_stable(wire, "billing")
        lines = c.report().splitlines()
        late = c.report(since=(c.rebalances[-1].ended_at or 0) + 1)
    assert lines[0].startswith("group billing: Stable for ")
    assert "group billing: stable at generation 1" in lines[-1]
    assert len(late.splitlines()) == len(lines) - 1


def test_the_report_has_what_faults_have_done(coordinator: StartCoordinator) -> None:
    c = coordinator()
    refused = Fault("error", api="Heartbeat", error="COORDINATOR_NOT_AVAILABLE")
    with Wire(c.address) as wire:
        heartbeat = become_stable(wire, "billing")
        with c.faults(refused):
            for _ in range(2):
                wire.call(heartbeat, 4)
    assert [(each.on, each.api, each.version, each.groups) for each in c.strikes] == [
        ("request", "Heartbeat", 4, ("billing",))
    ] * 2
    c.add_fault(Fault("drop", api="SyncGroup"))
    report = c.report()
    struck = r"fault: error error=COORDINATOR_NOT_AVAILABLE: request Heartbeat v4 of wire, billing, 2 times in \d+ ms\n"
    assert re.search(struck, report)
    assert report.endswith("has struck nothing (0 matches): Fault(action='drop', api='SyncGroup')")
    assert "fault: " not in c.report(since=c.strikes[-1].at + 1)


def test_brokers_that_do_not_exist_or_run_are_refused(coordinator: StartCoordinator) -> None:
    c = coordinator(brokers=2)
    for node in (2, -1, True):
        with pytest.raises(ValueError, match="there is no broker"):
            c.stop_broker(node)
    c.stop_broker(0)
    with pytest.raises(ValueError, match="does not run"):
        c.move_coordinator("g", 0)
    for count in (0, 65, True):
        with pytest.raises(ValueError, match="1 to 64 brokers"):
            Coordinator(brokers=count)


def test_brokers_whose_ports_do_not_exist_are_refused() -> None:
    for ports in ({"port": 65_534}, {"advertise": ("kafka.local", 65_534)}):
        with pytest.raises(ValueError, match="3 brokers need as many ports in sequence, up to 65535"):
            Coordinator(brokers=3, **ports)


def test_topics_of_the_brokers_are_not_made_at_the_start() -> None:
    with pytest.raises(ValueError, match="'__consumer_offsets' is the brokers' own"):
        Coordinator({"__consumer_offsets": 3})


def test_leaders_and_coordinators_are_named(coordinator: StartCoordinator) -> None:
    c = coordinator(brokers=2, topics={"orders": 2})
    assert {c.leader_of("orders", 0), c.leader_of("orders", 1)} == {0, 1}
    c.move_coordinator("g", 1 - c.coordinator_of("g"))
    for topic, partition in (("orders", 2), ("orders", -1), ("payments", 0)):
        with pytest.raises(KeyError, match=f"{topic}-{partition}"):
            c.leader_of(topic, partition)
    assert c.address.split(",") == c.addresses
    c.stop()
    with pytest.raises(RuntimeError, match="not running"):
        c.stop_broker(0)
