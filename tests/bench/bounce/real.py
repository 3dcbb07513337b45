"""A rolling bounce of real client programs, on our coordinator or on a broker, measured by the rule of the simulation.

Laws:

* The process of an instance has started, and waits for its command to join, before its predecessor stops: the time in
  which an interpreter starts is not in the outage. Where one process stays, it makes a new consumer, which is as new to
  the group.
* No partition has two owners at a time by the accounts of the processes, or the bounce fails. An instance owns a
  partition from the beginning of the listener that takes it to the end of the one that gives it up.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.coordinator import Coordinator, GroupConfig
from kcoord_wire.worlds.consumer_groups.rolling_bounce import (
    PROTOCOLS,
    BounceResult,
    BounceWorkload,
    Work,
    WorkEvent,
)
from tests.support.clients.members import KIP_848, Client, Member

PATIENCE = 60.0  # seconds
AROUND_MS = 2_000.0  # of steady state, before and after


@dataclass
class Group:
    """What the instances have reported.

    :ivar events: all, in the order in which they were read
    :ivar held: the partitions of each instance that runs
    :ivar busy: instances in a listener, or stopped
    """

    events: list[WorkEvent] = field(default_factory=list)
    held: dict[str, set[TopicPartition]] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)
    news: threading.Condition = field(default_factory=threading.Condition)

    def take(self, event: WorkEvent) -> None:
        """Take in an event."""
        with self.news:
            self.events.append(event)
            held = self.held.setdefault(event.instance, set())
            if event.what is Work.TAKES:
                held |= event.partitions
            elif event.what is Work.DROPS:
                held -= event.partitions
            elif event.what is Work.STOPS:
                held.clear()
            if event.what in (Work.BLOCKS, Work.STARTS, Work.STOPS):
                self.busy.add(event.instance)
            elif event.what is Work.RESUMES:
                self.busy.discard(event.instance)
            self.news.notify_all()

    def settle(self, workload: BounceWorkload) -> float:
        """Wait until each instance works on its share; return when that was, in ms."""
        share = workload.partition_count // workload.members

        def is_settled() -> bool:
            held = [partition for each in self.held.values() for partition in each]
            shares = len(self.held) == workload.members and all(len(each) >= share for each in self.held.values())
            return shares and not self.busy and len(held) == len(set(held)) == workload.partition_count

        with self.news:
            assert self.news.wait_for(is_settled, PATIENCE), f"not settled: {self.held}, busy: {self.busy}"
            return max(event.at for event in self.events)


class Instance(Member):
    """A client program that reports its work."""

    def __init__(self, reports: Group, client: Client, **options: Any) -> None:
        self.reports = reports
        self.topic = options["topic"]
        super().__init__(client, **options)

    def heed(self, event: dict[str, Any]) -> None:
        if event["event"] == "work":
            partitions = frozenset(TopicPartition(self.topic, number) for number in event["partitions"])
            self.reports.take(WorkEvent(event["at"], self.name, Work(event["what"]), partitions))
        else:
            super().heed(event)


def real_bounce(workload: BounceWorkload, protocol: str, library: str, seed: int = 0) -> BounceResult:
    """`bounce_on` our coordinator.

    :param library: a key of `member.LIBRARIES`
    """
    client = Client(library, (sys.executable, "-m", "tests.bench.bounce.member"))
    config = GroupConfig(
        min_session_timeout_ms=1,
        initial_rebalance_delay_ms=1_000,
        consumer_session_timeout_ms=workload.session_timeout_ms,
        consumer_heartbeat_interval_ms=workload.heartbeat_interval_ms,
    )
    with Coordinator(topics=workload.topics, config=config) as coordinator:
        return bounce_on(coordinator.address, workload, protocol, client, lambda: len(coordinator.rebalances), seed)


def bounce_on(
    address: str,
    workload: BounceWorkload,
    protocol: str,
    client: Client,
    rebalances: Callable[[], int] = lambda: 0,
    seed: int = 0,
    *,
    keeps_process: bool = False,
) -> BounceResult:
    """Restart every instance once; the stops are at the moments that the simulation draws from the same seed.

    :param address: of a broker that has the topic of the workload
    :param protocol: a key of `PROTOCOLS`, or that of KIP-848; it names the group
    :param client: its program takes the environment variable of member.py
    :param rebalances: returns how many have begun so far, where that can be known
    :param keeps_process: the processes stay: for JVMs, of which each start costs seconds of processor time
    :raises AssertionError: the group does not settle, or a partition has two owners at a time
    """
    with ExitStack() as stack:
        group, random = Group(), Random(f"{seed}/bounce")

        def start(name: str) -> Instance:
            return stack.enter_context(_instance(group, workload, protocol, client, address, name))

        instances = {name: start(name) for name in workload.names}
        for instance in instances.values():
            instance.join()
        group.settle(workload)
        time.sleep(AROUND_MS / 1_000 + _phase(random, workload))
        began, first = time.monotonic() * 1_000, rebalances()
        ended = began
        for number, name in enumerate(workload.names):
            stopping = instances[name]
            starting = instances[name] = stopping if keeps_process else start(name)
            starting.command("stall", ms=0)  # answered when the process has started
            time.sleep(_phase(random, workload) if number else 0)
            stopping.leave()
            time.sleep(workload.down_ms / 1_000)
            starting.join()
            if starting is not stopping:
                stopping.kill()
            ended = group.settle(workload)
        time.sleep(0.1)  # the account of a rebalance is written when it has ended
        events = sorted(group.events, key=lambda event: event.at)
    assert not (doubles := double_owners(events)), doubles
    return workload.account(
        f"{client.name} {protocol}", events, (began, ended), rebalances() - first, around_ms=AROUND_MS
    )


def double_owners(events: Iterable[WorkEvent]) -> list[str]:
    """Say of each partition that an instance takes while another one owns it who they are.

    :param events: in order of time
    """
    owners: dict[TopicPartition, set[str]] = {}
    closing: dict[str, frozenset[TopicPartition]] = {}
    doubles = []
    for event in _as_owned(events):
        if event.what is Work.TAKES:
            for partition in event.partitions:
                others = owners.setdefault(partition, set()) - {event.instance}
                doubles += [f"{partition} at {event.at:.0f} ms: {event.instance} and {other}" for other in others]
                owners[partition].add(event.instance)
        elif event.what is Work.DROPS:
            closing[event.instance] = event.partitions
        elif event.what in (Work.RESUMES, Work.STARTS):
            ended = owners if event.what is Work.STARTS else closing.pop(event.instance, frozenset())
            for partition in ended:
                owners[partition].discard(event.instance)
    return doubles


def _as_owned(events: Iterable[WorkEvent]) -> list[WorkEvent]:
    """The same events; those of partitions that are taken at the time at which their listener began."""
    blocked: dict[str, float] = {}
    moved = []
    for event in events:
        if event.what is Work.BLOCKS:
            blocked[event.instance] = event.at
        moved.append(event._replace(at=blocked[event.instance]) if event.what is Work.TAKES else event)
    return sorted(moved, key=lambda event: event.at)


def _phase(random: Random, workload: BounceWorkload) -> float:
    """In seconds; see `simulate_bounce`."""
    return random.randint(0, workload.heartbeat_interval_ms) / 1_000


def _instance(
    group: Group, workload: BounceWorkload, protocol: str, client: Client, address: str, name: str
) -> Instance:
    times = {"library": client.name, "revoke_ms": workload.revoke_ms, "assign_ms": workload.assign_ms}
    (topic,) = workload.topics
    chosen = PROTOCOLS[protocol]
    return Instance(
        group,
        replace(client, environment={"BOUNCE": json.dumps(times)}),
        topic=topic,
        bootstrap=address,
        client_id=name,
        group=f"bounce-{protocol}",
        assignor=chosen.assignor or "range",
        instance_id=f"i-{name}" if chosen.is_static else None,
        session_timeout_ms=workload.session_timeout_ms,
        heartbeat_interval_ms=workload.heartbeat_interval_ms,
        rebalance_timeout_ms=workload.rebalance_timeout_ms,
        options=KIP_848 if protocol == "consumer" else {},
    )
