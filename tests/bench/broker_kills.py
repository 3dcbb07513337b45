"""How long consumers wait for records after the broker was killed: ``python -m tests.bench.broker_kills``.

`kcoord serve` with a data folder is killed (SIGKILL) and started again at its port two seconds later, with three
librdkafka consumers of twelve partitions, of the classic protocol and of KIP-848, in three situations:

    stable   the group has its partitions
    joining  a fourth consumer has just joined
    died     one of the consumers was killed just before

Printed are the seconds from the new start until every partition has given a record that was produced after it. The
client's settings are the defaults, with a session of 45 s for both protocols.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer

from kcoord_wire.zookeeper.ensemble import free_ports
from tests.support.clients.members import CONFLUENT, KIP_848, Member
from tests.support.processes import Process
from tests.support.waiting import eventually

PARTITIONS: Final = range(12)
DOWN_SECONDS: Final = 2.0
KILLS: Final = {"stable": 3, "joining": 3, "died": 1}
PATIENCE: Final = 240.0
PROTOCOLS: Final[Mapping[str, Mapping[str, Any]]] = {"classic": {}, "KIP-848": KIP_848}


class Party:
    """A broker and its consumers.

    :param options: of the clients
    """

    def __init__(self, folder: Path, options: Mapping[str, Any], stack: ExitStack) -> None:
        self._folder = folder
        self._options = options
        self._stack = stack
        (self._port,) = free_ports(1)
        self.serve()
        self.members: list[Member] = []
        for name in ("a", "b", "c"):
            self.enter(name)
        self._producer = Producer({"bootstrap.servers": self.address, "message.timeout.ms": 300_000, "log_level": 0})
        self._round = 0
        self.catches_up()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def serve(self) -> None:
        command = [sys.executable, "-m", "kcoord_wire", "serve", "--port", str(self._port), "--topics", "orders:12"]
        self._broker = Process([*command, "--data-dir", str(self._folder)], ready=r"127.0.0.1:\d+")
        self._stack.callback(self._broker.kill)

    def enter(self, name: str) -> None:
        known = {"topic": "orders", "group": "billing", "assignor": "cooperative-sticky", "instance_id": None}
        times = {"session_timeout_ms": 45_000, "heartbeat_interval_ms": 3_000, "rebalance_timeout_ms": 300_000}
        member = Member(
            CONFLUENT, bootstrap=self.address, client_id=name, **known, **times, options=dict(self._options)
        )
        self._stack.callback(member.kill)
        member.join()
        self.members.append(member)

    def kill_broker(self) -> None:
        self._broker.kill()
        time.sleep(DOWN_SECONDS)
        self.serve()

    def catches_up(self) -> float:
        """Produce until each partition has given a record that was produced from now on; the seconds until then."""
        began, first = time.monotonic(), self._round
        eventually(lambda: self._has_all_since(first), seconds=PATIENCE, every=0.1)
        return time.monotonic() - began

    def _has_all_since(self, first: int) -> bool:
        self._round += 1
        for partition in PARTITIONS:
            self._producer.produce("orders", str(self._round), partition=partition)
        self._producer.poll(0)
        fresh = {at for member in self.members for at, _, value in list(member.records) if int(value) > first}
        return fresh == set(PARTITIONS)


def measure(situation: str, options: Mapping[str, Any]) -> list[float]:
    found = []
    with tempfile.TemporaryDirectory(prefix="kcoord-") as folder, ExitStack() as stack:
        party = Party(Path(folder), options, stack)
        befalls: Mapping[str, Callable[[int], object]] = {
            "stable": lambda _: None,
            "joining": lambda number: party.enter(f"new-{number}"),
            "died": lambda number: party.members[number].kill(),
        }
        for number in range(KILLS[situation]):
            befalls[situation](number)
            party.kill_broker()
            found.append(party.catches_up())
    return found


def main() -> None:
    for situation in KILLS:
        for protocol, options in PROTOCOLS.items():
            seconds = ", ".join(f"{each:.1f}" for each in measure(situation, options))
            print(f"{situation:8} {protocol:8} {seconds}", flush=True)


if __name__ == "__main__":
    main()
