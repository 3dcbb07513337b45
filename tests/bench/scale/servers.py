"""The three coordinators that are measured, each in its own process on one core, and what they cost there."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import kcoord_wire as kw
from tests.support.processes import Process

STOP_SECONDS = 30
KAFKA_PROPERTIES: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "group.coordinator.rebalance.protocols": "classic,consumer",
    "message.max.bytes": str(16 << 20),  # the record of a group with 5,000 members is larger than the default allows
}
# Kafka's own (bin/kafka-server-start.sh, bin/kafka-run-class.sh), over those that the other tests start it with.
KAFKA_JVM: Final = "-Xms1g -Xmx1g -XX:-UseSerialGC -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:TieredStopAtLevel=4"
MOCK: Final = """\
import signal
from confluent_kafka.admin import AdminClient
admin = AdminClient({"test.mock.num.brokers": 1, "log_level": 3})
(broker,) = admin.list_topics(timeout=30).brokers.values()
print(f"{broker.host}:{broker.port}", flush=True)
signal.pause()
"""
FLOOR: Final = """\
import asyncio
import uvloop
class Answers(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
    def data_received(self, data):
        self.transport.write(b"\\0\\0\\0\\x0a" + data[8:12] + b"\\0\\0\\0\\0\\0\\0")
async def main():
    server = await asyncio.get_running_loop().create_server(Answers, "127.0.0.1", 0, backlog=1024)
    print("%s:%d" % server.sockets[0].getsockname(), flush=True)
    await server.serve_forever()
uvloop.run(main())
"""


@dataclass(frozen=True)
class Running:
    """A server at work."""

    address: str
    pid: int


@contextmanager
def pinned(core: int | None) -> Iterator[None]:
    """Whatever is started meanwhile runs on that core alone; None changes nothing."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def program(folder: Path, *arguments: str) -> Iterator[Running]:
    """A Python program that says its address in its first line; what it logs goes into the folder."""
    with Process([sys.executable, *arguments], ready=r"\S+:\d+", log=folder / "log") as process:
        yield Running(process.ready[0].rstrip(","), process.pid)
        process.end(seconds=STOP_SECONDS)


@contextmanager
def _ours(folder: Path) -> Iterator[Running]:
    arguments = ["--topics", "orders:12", "--port", "0", "--data-dir", str(folder / "data")]
    arguments += ["--config", "group.initial.rebalance.delay.ms=0"]
    with program(folder, "-m", "kcoord_wire", "serve", *arguments) as running:
        yield running


@contextmanager
def _kafka(folder: Path) -> Iterator[Running]:
    from tests.support.kafka_broker import KafkaBroker

    before = os.environ.get("_JAVA_OPTIONS")
    os.environ["_JAVA_OPTIONS"] = KAFKA_JVM  # is read after the command line, and overrides it
    with ExitStack() as stack:
        try:
            broker = stack.enter_context(KafkaBroker(folder / "kafka", KAFKA_PROPERTIES))
        finally:
            if before is None:
                del os.environ["_JAVA_OPTIONS"]
            else:
                os.environ["_JAVA_OPTIONS"] = before
        assert broker._process is not None
        yield Running(broker.address, broker._process.pid)


@contextmanager
def _mock(folder: Path) -> Iterator[Running]:
    with program(folder, "-c", MOCK) as running:
        yield running


@contextmanager
def floor(folder: Path) -> Iterator[Running]:
    """The least that a heartbeat costs on our event loop: it is read, and 14 bytes are written, whatever it says."""
    with program(folder, "-c", FLOOR) as running:
        yield running


def _librdkafka_version() -> str:
    from confluent_kafka import libversion

    return str(libversion()[0])


def _kafka_version() -> str:
    from tests.support.kafka_broker import KAFKA

    return KAFKA


@dataclass(frozen=True)
class Server:
    """How to start one, and what is to be known of it.

    :ivar timers: its rebalances wait for fixed times, not for the members
    """

    title: str
    start: Callable[[Path], AbstractContextManager[Running]]
    version: Callable[[], str]
    timers: bool = False


SERVERS: Final[Mapping[str, Server]] = {
    "ours": Server("kcoord_wire", _ours, lambda: kw.__version__),
    "kafka": Server("Apache Kafka", _kafka, _kafka_version),
    "mock": Server("librdkafka mock", _mock, _librdkafka_version, timers=True),
}


@dataclass(frozen=True)
class Memory:
    """Bytes of a process: resident, and its proportional share of what it shares."""

    rss: int
    pss: int

    def __sub__(self, other: Memory) -> Memory:
        return Memory(self.rss - other.rss, self.pss - other.pss)


def memory_of(pid: int) -> Memory:
    sizes = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, size, *_ = line.split()
        sizes[name] = int(size) << 10
    return Memory(sizes["Rss:"], sizes["Pss:"])


def cpu_seconds(pid: int) -> float:
    """Processor time that the process has used, in user and system mode; to a hundredth of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def settle(pid: int, *, span: float = 0.3, share: float = 0.1, limit: float = 60) -> None:
    """Return once the process has used less than that share of a core over a span. TimeoutError after the limit."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        before = cpu_seconds(pid)
        time.sleep(span)
        if cpu_seconds(pid) - before <= share * span:
            return
    raise TimeoutError(f"process {pid} is still busy after {limit:.0f} s")
