"""`kcoord watch` beside real consumers on Kafka's own brokers: what it sees is what happened, and it causes nothing.

The judge is the broker's own log of the group: its histories have each generation, so a rebalance that the watch had
caused would be one too many.
"""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple, Self
from urllib.request import urlopen

import pyarrow.parquet as pq
import pytest
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient

from kcoord_wire.forensics import analyze
from kcoord_wire.forensics.causes import Cause
from tests.data.consumer_groups.generate import PROPERTIES
from tests.support.central_processes import Process
from tests.support.clients.members import CONFLUENT, Member
from tests.support.kafka_broker import KAFKA, KafkaBroker, make_topics
from tests.support.waiting import eventually

PARTITIONS: Final = 6
CLASSIC: Final[dict[str, str | None]] = {}
MODERN: Final = {
    "group.protocol": "consumer",
    "partition.assignment.strategy": None,
    "session.timeout.ms": None,
    "heartbeat.interval.ms": None,
}
GROUPS: Final = {"range": CLASSIC, "cooperative-sticky": CLASSIC, "kip-848": MODERN}
PLAYED: Final = {KAFKA: ["range", "cooperative-sticky"], "4.1.0": list(GROUPS)}  # librdkafka needs 4.0 for KIP-848
INTERVAL_S: Final = 0.3
SECONDS: Final = 90.0  # for a machine that is busy with other things
SESSION_MS: Final = 10_000  # no machine stands still for so long: only the member that is killed is put out
SETTINGS: Final = {**PROPERTIES, "group.consumer.session.timeout.ms": str(SESSION_MS)}
ANSWERED: Final = re.compile(r'^kcoord_watch_polls_total\{outcome="answered"\} (\S+)$', re.MULTILINE)

TABLES: Final = ("rebalances", "outages")
MEMBERS: Final = [
    ("member joined", "c-2"),
    ("member joined", "c-3"),
    ("member gone", "c-2"),
    ("member gone", "c-3"),
]
HAPPENED: Final = [
    ("new member", "c-1"),
    ("new member", "c-2"),
    ("new member", "c-3"),
    ("member left", "c-2"),
    ("member left", "c-3"),
]


class Seen(NamedTuple):
    """A row of the watch's table of rebalances."""

    cause: str
    client_id: str | None


class Group:
    """One group of three members, of which one is killed and one leaves."""

    def __init__(self, stack: ExitStack, address: str, name: str) -> None:
        self.name = name
        self.members: list[Member] = []
        self._stack, self._address = stack, address

    def join(self, client_id: str) -> None:
        member = Member(
            CONFLUENT,
            bootstrap=self._address,
            topic="orders",
            group=self.name,
            client_id=client_id,
            assignor=self.name,
            instance_id=None,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=300,
            rebalance_timeout_ms=20_000,
            options=GROUPS[self.name],
        )
        self.members.append(self._stack.enter_context(member))
        member.join()

    def remove(self, member: Member) -> None:
        self.members.remove(member)

    @property
    def is_settled(self) -> bool:
        share = PARTITIONS // len(self.members)
        return all(member.owned and len(member.now_owned) == share for member in self.members)


class Watch(Process):
    """`kcoord watch` of a broker, and what it has printed so far."""

    def __init__(self, address: str, report: Path) -> None:
        options = ("--interval", str(INTERVAL_S), "--format", "json", "--out", str(report), "--metrics-port", "0")
        super().__init__("watch", "--kafka", address, *options)

    def __enter__(self) -> Self:
        self._metrics = self.wait_for(r"metrics at (\S+)\n")[1]
        return self

    def changes(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines() if line.endswith("}")]

    def wait_for_change(self, group_id: str | None, kind: str, since_ns: int = 0) -> dict[str, Any]:
        """Wait for a change that a poll has shown at this time or later."""

        def found() -> Iterator[dict[str, Any]]:
            for change in self.changes():
                if (change["group_id"], change["kind"]) == (group_id, kind) and change["time_ns"] >= since_ns:
                    yield change

        return eventually(lambda: next(found(), {}), lambda: f"no {kind} of {group_id} in {self.out}{self.log}")

    def wait_for_polls(self) -> None:
        """Wait until a poll was answered that has begun from now on."""
        end = self._polls() + 2  # one may be under way
        eventually(self._polls, lambda: f"not {end}: {self.out}{self.log}", until=lambda polls: polls >= end)

    def _polls(self) -> float:
        with urlopen(self._metrics, timeout=SECONDS) as response:  # of this process's own server
            found = ANSWERED.search(response.read().decode())
        return 0.0 if found is None else float(found[1])


def play(groups: list[Group], admin: AdminClient, watch: Watch) -> None:
    """Two members, three, one is killed, one leaves; each time all groups settle, and the watch has seen it."""

    def are_settled() -> bool:
        if not all(group.is_settled for group in groups):
            return False
        described = admin.describe_consumer_groups([group.name for group in groups], request_timeout=SECONDS)
        return all(future.result().state is ConsumerGroupState.STABLE for future in described.values())

    def settle() -> None:
        eventually(are_settled, lambda: {g.name: [(each.owned, each.complaints) for each in g.members] for g in groups})
        watch.wait_for_polls()

    for client_id in ("c-1", "c-2", "c-3"):
        for group in groups:
            group.join(client_id)
        settle()
        for group in groups:
            watch.wait_for_change(group.name, "group seen")
    for group in groups:
        group.members[1].kill()
        group.remove(group.members[1])
    settle()
    for group in groups:
        group.members[1].leave()
        group.remove(group.members[1])
    settle()


def essence(rows: Iterable[Any]) -> list[tuple[str, str | None]]:
    """Cause and client of rebalances, without second cooperative rounds: a watch may see both rounds as one."""
    return [(str(row.cause), row.client_id) for row in rows if row.cause != Cause.COOPERATIVE_FOLLOW_UP]


@pytest.mark.parametrize(
    "version", [pytest.param(each, marks=pytest.mark.xdist_group(f"watch-{each}")) for each in PLAYED]
)
def test_a_watch_beside_groups(version: str, tmp_path: Path) -> None:
    with KafkaBroker(tmp_path / f"watch-{version}", SETTINGS, version) as broker, ExitStack() as stack:
        admin = AdminClient({"bootstrap.servers": broker.address})
        make_topics(broker.address, {"orders": PARTITIONS})
        watch = stack.enter_context(Watch(broker.address, tmp_path / "report"))
        groups = [Group(stack, broker.address, name) for name in PLAYED[version]]
        play(groups, admin, watch)
        recorded = {each.group.group_id: each for each in analyze(broker.offsets_log).histories}
        port = int(broker.address.rpartition(":")[2])
        stopped_ns = time.time_ns()
        broker.stop()
        outage_ns = watch.wait_for_change(None, "unanswered", stopped_ns)["time_ns"]
        broker.start(port=port)
        for group in groups:
            watch.wait_for_change(group.name, "answered", outage_ns)
        assert watch.end(signal.SIGINT) == 0
        changes = watch.changes()
    tables = {name: pq.read_table(tmp_path / "report" / f"{name}.parquet").to_pylist() for name in TABLES}
    for name in PLAYED[version]:
        assert essence(recorded[name].rebalances) == HAPPENED, "no rebalance but those of the members"
        mine = [change for change in changes if change["group_id"] == name]
        assert "group gone" not in {change["kind"] for change in mine}, "a broker that starts lists no groups at first"
        before = [change for change in mine if change["time_ns"] < outage_ns]
        members = [(change["kind"], change["client_id"]) for change in before if change["kind"].startswith("member ")]
        assert members[-4:] == MEMBERS, "the one before is c-1, if the watch was there first"
        seen = [row for row in tables["rebalances"] if row["group_id"] == name and row["started_ns"] < outage_ns]
        assert essence(Seen(row["cause"], row["client_id"]) for row in seen)[-4:] == HAPPENED[1:], mine
        assert "broker down" in {row["kind"] for row in tables["outages"] if row["group_id"] == name}
