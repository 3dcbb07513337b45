"""A bad afternoon of two consumer groups, and what the pipeline makes of it: ``make run``.

The coordinator, a recording proxy before it, and real clients of three libraries that join, crash, are bounced one by
one, and poll too rarely; then `kcoord analyze` over what was recorded. Takes about 40 seconds, nearly all of it waiting
for timeouts. ``--out`` has the recording, the tables and the report.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import Consumer

from kcoord_wire.cli.main import main as kcoord
from kcoord_wire.coordinator import Coordinator, GroupConfig
from kcoord_wire.recorder.proxy import Recorder
from tests.support.clients.members import AIOKAFKA, CONFLUENT, KAFKA_PYTHON, Client, Member
from tests.support.waiting import eventually

SESSION_MS = 2_000
CONFIG = GroupConfig(min_session_timeout_ms=1_000, initial_rebalance_delay_ms=500)
PARTITIONS = 12
SLOW_POLLS = 7
LIBRARIES = {"invoices-1": CONFLUENT, "invoices-2": AIOKAFKA, "invoices-3": KAFKA_PYTHON}

_began = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - _began:5.1f} s  {text}", file=sys.stderr, flush=True)


class Group:
    """The members of one group that are alive, each a process of a client library."""

    def __init__(self, stack: ExitStack, address: str, name: str, assignor: str) -> None:
        self._stack = stack
        self._options = {
            "bootstrap": address, "topic": "orders", "group": name, "assignor": assignor, "instance_id": None,
            "session_timeout_ms": SESSION_MS, "heartbeat_interval_ms": 300, "rebalance_timeout_ms": 10_000,
        }  # fmt: skip
        self.members: dict[str, Member] = {}

    def start(self, name: str, client: Client) -> None:
        """Start a member and wait until it has its share."""
        member = self._stack.enter_context(Member(client, client_id=name, **self._options))
        member.join()
        self.members[name] = member
        self.settle()
        self.work()

    def settle(self) -> None:
        """Wait until the members that are left share all partitions."""

        def is_shared_out(owned: list[set[int]]) -> bool:
            return all(owned) and sum(map(len, owned)) == len(set().union(*owned)) == PARTITIONS

        members = self.members.values()
        eventually(lambda: [set(member.now_owned) for member in members], until=is_shared_out)

    def work(self) -> None:
        """Some records for all partitions, read and committed."""
        members = list(self.members.values())
        before = sum(len(member.records) for member in members)
        members[0].produce([(partition, "parcel") for partition in range(PARTITIONS)])
        deadline = time.monotonic() + 5
        while sum(len(member.records) for member in members) < before + PARTITIONS and time.monotonic() < deadline:
            time.sleep(0.02)
        for member in members:
            member.commit()

    def stop(self, name: str, how: Callable[[Member], None]) -> None:
        """End a member; wait until the others have its partitions."""
        member = self.members.pop(name)
        how(member)
        if self.members:
            self.settle()
        member.kill()


def poll_too_rarely(address: str, group: str, times: int) -> None:
    """A consumer whose application takes longer than max.poll.interval.ms for what it polls, so many times over."""
    assignments: list[int] = []
    consumer = Consumer({
        "bootstrap.servers": address, "group.id": group, "client.id": "invoices-slow", "session.timeout.ms": 1_000,
        "max.poll.interval.ms": 1_000, "heartbeat.interval.ms": 300, "auto.offset.reset": "earliest",
        "enable.auto.commit": False, "partition.assignment.strategy": "range", "log_level": 0,
    })  # fmt: skip
    consumer.subscribe(["orders"], on_assign=lambda _, partitions: assignments.append(len(partitions)))
    try:
        for number in range(1, times + 1):
            # librdkafka leaves the group after a second without a poll, and joins again here
            eventually(lambda number=number: (consumer.poll(0.05), len(assignments) >= number)[1], every=0)
            time.sleep(1.8)  # it looks twice a second
    finally:
        consumer.close()


def live(address: str) -> None:
    """All that happens."""
    with ExitStack() as stack:
        billing = Group(stack, address, "billing", "range")
        shipping = Group(stack, address, "shipping", "cooperative-sticky")
        say("billing: three members join, each with another client library")
        for name, client in LIBRARIES.items():
            billing.start(name, client)
        say("shipping: two members join, cooperatively")
        for name in ("parcels-1", "parcels-2"):
            shipping.start(name, CONFLUENT)
        say("billing: invoices-2 is killed; its session has to run out before others get its partitions")
        billing.stop("invoices-2", Member.kill)
        say("billing: it comes back, and all are bounced one by one")
        billing.start("invoices-2", AIOKAFKA)
        for name, client in LIBRARIES.items():
            billing.stop(name, Member.leave)
            billing.start(name, client)
        say("shipping: a third member joins, the first leaves")
        shipping.start("parcels-3", CONFLUENT)
        shipping.stop("parcels-1", Member.leave)
        say(f"billing: a member that polls too rarely, {SLOW_POLLS} times over")
        poll_too_rarely(address, "billing", SLOW_POLLS)
        for group in (billing, shipping):
            for member in group.members.values():
                member.leave()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.demo", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build", "demo"), help="default: %(default)s")
    out: Path = parser.parse_args(argv).out
    recording = out / "recording"
    shutil.rmtree(recording, ignore_errors=True)
    recording.mkdir(parents=True)
    with (
        Coordinator(topics={"orders": PARTITIONS}, config=CONFIG) as coordinator,
        Recorder(upstream=coordinator.address, folder=recording) as recorder,
    ):
        live(recorder.address)
    say("done; this is what the recording shows:\n")
    return kcoord(["analyze", str(recording), "--out", str(out / "report")])


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
