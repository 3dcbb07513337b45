"""A rolling bounce of real client programs on our coordinator, measured by the rule of the simulation.

The processes of the instances are started ahead and wait for their command to join, so that the time in which an
interpreter starts is not in the outage.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from random import Random
from typing import Any

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.coordinator import Coordinator, GroupConfig
from kcoord_wire.simulation.group.bounce_account import BounceResult, Work, WorkEvent
from kcoord_wire.simulation.group.rolling_bounce import PROTOCOLS, BounceProtocol, BounceWorkload
from tests.support.clients.members import Client, Member

__all__ = ["real_bounce"]

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

    def _take(self, event: dict[str, Any]) -> None:
        if event["event"] == "work":
            partitions = frozenset(TopicPartition(self.topic, number) for number in event["partitions"])
            self.reports.take(WorkEvent(event["at"], self.name, Work(event["what"]), partitions))
        else:
            super()._take(event)


def real_bounce(workload: BounceWorkload, protocol: str, library: str, seed: int = 0) -> BounceResult:
    """Restart every instance once; the stops are at the moments that the simulation draws from the same seed.

    :param library: a key of `member.LIBRARIES`
    """
    config = GroupConfig(min_session_timeout_ms=1, initial_rebalance_delay_ms=1_000)
    with Coordinator(topics=workload.topics, config=config) as coordinator, ExitStack() as stack:
        group, random = Group(), Random(f"{seed}/bounce")
        chosen = PROTOCOLS[protocol]
        instances = {
            name: stack.enter_context(_instance(group, workload, chosen, library, coordinator.address, name))
            for name in workload.names
        }
        for instance in instances.values():
            instance.join()
        group.settle(workload)
        time.sleep(AROUND_MS / 1_000 + _phase(random, workload))
        began, first = time.monotonic() * 1_000, len(coordinator.rebalances)
        ended = began
        for number, name in enumerate(workload.names):
            time.sleep(_phase(random, workload) if number else 0)
            following = stack.enter_context(_instance(group, workload, chosen, library, coordinator.address, name))
            following.command("stall", ms=0)  # answered when the interpreter has started
            instances[name].leave()
            time.sleep(workload.down_ms / 1_000)
            following.join()
            instances[name].kill()
            instances[name] = following
            ended = group.settle(workload)
        time.sleep(0.1)  # the account of a rebalance is written when it has ended
        events = sorted(group.events, key=lambda event: event.at)
        rebalances = len(coordinator.rebalances) - first
        return workload.account(f"{library} {protocol}", events, (began, ended), rebalances, around_ms=AROUND_MS)


def _phase(random: Random, workload: BounceWorkload) -> float:
    """In seconds; see `simulate_bounce`."""
    return random.randint(0, workload.heartbeat_interval_ms) / 1_000


def _instance(
    group: Group, workload: BounceWorkload, protocol: BounceProtocol, library: str, address: str, name: str
) -> Instance:
    times = {"library": library, "revoke_ms": workload.revoke_ms, "assign_ms": workload.assign_ms}
    client = Client(
        library, (sys.executable, "-m", "tests.bench.bounce.member"), environment={"BOUNCE": json.dumps(times)}
    )
    (topic,) = workload.topics
    return Instance(
        group,
        client,
        topic=topic,
        bootstrap=address,
        client_id=name,
        group="bounce",
        assignor=protocol.assignor,
        instance_id=f"i-{name}" if protocol.is_static else None,
        session_timeout_ms=workload.session_timeout_ms,
        heartbeat_interval_ms=workload.heartbeat_interval_ms,
        rebalance_timeout_ms=workload.rebalance_timeout_ms,
    )
