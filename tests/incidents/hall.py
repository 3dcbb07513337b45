"""Where incidents are made: brokers, a capture of all that their clients exchange with them, and groups side by side.

Laws:

* The capture has what clients exchange with brokers, not what brokers exchange or what the test asks: those have
  listeners of their own.
* The capture begins before the first client connects and ends after the last has gone; it has every packet, or the
  incident is not kept (dumpcap counts what the kernel dropped).
* A fault of a broker is one act for all runs of the hall: it begins when all groups are ready for it, and is over
  before any goes on.
"""

from __future__ import annotations

import gzip
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Event
from typing import Any

import kcoord_wire as kw
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.recorder.proxy import Recorder
from tests.incidents.labels import Act, Incident, Run, write_label
from tests.support.clients.members import Client
from tests.support.kafka_broker import KAFKA, KafkaBroker, create_topics, tool
from tests.support.stage import Stage
from tests.support.tcp_proxy import TcpProxy
from tests.support.wire import Wire

NEAR_SECONDS = 120
PROPERTIES = {
    "auto.create.topics.enable": "true",
    "num.partitions": "4",
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "200",
    "group.max.size": "20",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.session.timeout.ms": "4000",
    "group.consumer.min.session.timeout.ms": "4000",
}
_LINE = re.compile(r"^\[([\d :,-]+)\] (\w+) (\S+) - (.*)$", re.M)
"""As slf4j-simple writes it; kept in the layout of Kafka's own config/log4j.properties."""


class Capture:
    """All packets of some ports of the loopback, into one file, while the block is entered.

    :raises AssertionError: at the end, if the kernel has dropped some
    """

    def __init__(self, path: Path, ports: Sequence[int]) -> None:
        self.path = path
        wanted = " or ".join(f"tcp port {port}" for port in ports)
        self._command = [tool("dumpcap", "tshark"), "-P", "-q", "-i", "lo", "-B", "32", "-f", wanted, "-w", str(path)]

    def __enter__(self) -> Capture:
        self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        self._said = []
        for line in self._process.stderr:  # it names its file once it captures
            self._said.append(line)
            if line.startswith("File:"):
                return self
        raise AssertionError(f"dumpcap does not capture: {self._said}")

    def __exit__(self, *error: object) -> None:
        time.sleep(0.3)  # the last packets are on their way through the kernel
        self._process.send_signal(signal.SIGINT)
        _, said = self._process.communicate(timeout=30)
        dropped = re.search(r"received/dropped on interface .*: \d+/(\d+)", said)
        assert dropped is not None, (self._said, said)
        assert int(dropped[1]) == 0, said


@dataclass
class Fault:
    """What is done to a broker while groups live: all of them wait for it, and go on when it is over."""

    near: Barrier
    act: Callable[[Hall], list[Act]]
    over: Event = field(default_factory=Event)
    acts: list[Act] = field(default_factory=list)

    def pass_by(self) -> list[Act]:
        self.near.wait(NEAR_SECONDS)
        assert self.over.wait(NEAR_SECONDS)
        return self.acts

    def happen(self, hall: Hall) -> None:
        try:
            self.near.wait(NEAR_SECONDS)
            self.acts = self.act(hall)
        finally:
            self.over.set()


@dataclass
class Scene(Stage):
    """A stage that keeps what was done, as a `Run`."""

    run: Run = field(default_factory=lambda: Run("", "", "", 0, []))
    fault: Fault | None = None
    brokers: Sequence[KafkaBroker] = ()
    proxy: TcpProxy | None = None

    @property
    def modern(self) -> bool:
        """Whether its members speak the consumer protocol (KIP-848), of which the test asks themselves."""
        return any(value == "consumer" for member in self.members for value in member.options.values())

    def shares(self) -> dict[str, int]:
        """Partitions by client, as the members themselves report them."""
        return {member.name: len(member.now_owned) for member in self.members if member.now_owned and member.lives}

    def now_ready(self) -> None:
        """The group is as it should be; what comes now is the incident."""
        self.run.from_ns = time.time_ns()

    @contextmanager
    def doing(self, did: str, to: str) -> Iterator[None]:
        """Something that lasts for the block."""
        start = time.time_ns()
        try:
            yield
        finally:
            self.run.acts.append(Act(start, did, to, time.time_ns()))

    def did(self, what: str, to: str) -> None:
        """Something that has no end."""
        self.run.acts.append(Act(time.time_ns(), what, to))

    def pass_by(self) -> None:
        """Live through the fault of the hall."""
        assert self.fault is not None
        acts = self.fault.pass_by()
        self.run.acts += acts
        self.run.victims = sorted({act.to for act in acts})

    def described(self) -> tuple[str, dict[str, int]]:
        """As its coordinator has it, whichever broker that is."""
        if self.modern:
            shares = self.shares()
            return "Stable" if shares else "Empty", shares
        for broker in self.brokers:
            try:
                with Wire(broker.inside_address) as wire:
                    found = wire.call(kw.DescribeGroupsRequest(groups=[self.name]), 0).groups[0]
            except (OSError, EOFError):
                continue
            if found.error_code == ErrorCode.NONE:
                self.broker = broker.inside_address
                return super().described()
        return "unknown", {}

    def clients_now(self) -> list[str]:
        """The client ids of the members while the group is stable, of whatever protocol type it is."""
        with Wire(self.brokers[0].inside_address) as wire:
            found = wire.call(kw.DescribeGroupsRequest(groups=[self.name]), 0).groups[0]
        return sorted(member.client_id for member in found.members) if found.group_state == "Stable" else []


Play = Callable[..., None]


@dataclass(frozen=True)
class Plan:
    """One run to be made: what is played, by which library.

    :ivar play: called with the scene, the library and the options
    """

    name: str
    kind: str
    play: Play
    library: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Hall:
    """What one incident needs.

    :ivar nodes: how many brokers; the first is the controller
    :ivar fault: done to a broker while the groups of all scenes live; None where each scene has its own
    :ivar point: where it is captured: ``broker`` (packets), or ``recorder`` (`kcoord record`, which all clients use)
    :ivar proxied: whether the broker is also reached through a proxy, which a scene can cut
    """

    name: str
    plans: Sequence[Plan]
    kafka: str = KAFKA
    nodes: int = 1
    properties: Mapping[str, str] = field(default_factory=dict)
    fault: Callable[[Hall], list[Act]] | None = None
    point: str = "broker"
    proxied: bool = False
    brokers: list[KafkaBroker] = field(default_factory=list)
    proxy: TcpProxy | None = None

    def start(self, folder: Path, stack: ExitStack) -> None:
        """Start the brokers, together."""
        more = {"offsets.topic.replication.factor": str(self.nodes), "default.replication.factor": str(self.nodes)}
        properties = {**PROPERTIES, **(more if self.nodes > 1 else {}), **self.properties}
        self.proxy = stack.enter_context(TcpProxy(0)) if self.proxied else None
        proxied = self.proxy.port if self.proxy else 0
        for node in range(1, self.nodes + 1):
            first = self.brokers[0] if self.brokers else None
            path = folder / f"incident-{self.name}-{node}"
            options: dict[str, Any] = {"controller": first, "node_id": node, "inside": True, "proxied": proxied}
            broker = KafkaBroker(path, properties, self.kafka, **options)
            self.brokers.append(broker)
            stack.callback(broker.stop)
            broker.launch()
        for broker in self.brokers:
            broker.wait_until_ready()
        if self.proxy is not None:
            self.proxy.target = self.brokers[0].proxied_port

    def coordinator(self, group: str) -> KafkaBroker:
        """The broker that coordinates a group."""
        with Wire(self.brokers[0].inside_address) as wire:
            found = wire.call(kw.FindCoordinatorRequest(key=group), 0)
        return next(broker for broker in self.brokers if broker.inside_address.endswith(f":{found.port}"))


def make(hall: Hall, folder: Path, clients: Mapping[str, Client], into: Path) -> Incident:
    """Make an incident: capture, labels and the brokers' log, in the folder `into`."""
    with ExitStack() as stack:
        hall.start(folder, stack)
        addresses = [broker.address for broker in hall.brokers]
        topics = [f"{kind}-{plan.name}" for plan in hall.plans for kind in ("orders", "bills")]
        create_topics(hall.brokers[0].inside_address, topics)
        with _captured(hall, folder) as (raw, bootstrap):
            runs = _play(hall, clients, bootstrap)
    incident = Incident(hall.name, hall.kafka, hall.point, addresses, runs)
    _keep(incident, raw, [broker.log for broker in hall.brokers], into)
    return incident


@contextmanager
def _captured(hall: Hall, folder: Path) -> Iterator[tuple[Path, str]]:
    """Where the capture lies at the end of the block, and the address for clients."""
    if hall.point == "recorder":
        recording = folder / "recording"
        with Recorder(upstream=hall.brokers[0].address, folder=recording) as recorder:
            yield recording, recorder.address
        return
    raw = folder / f"{hall.name}.pcap"
    ports = [port for broker in hall.brokers for port in (broker.port, broker.proxied_port) if port]
    with Capture(raw, ports):
        yield raw, ",".join(broker.address for broker in hall.brokers)


def _play(hall: Hall, clients: Mapping[str, Client], bootstrap: str) -> list[Run]:
    lives = [plan for plan in hall.plans if hall.fault is not None]
    fault = Fault(Barrier(len(lives) + 1), hall.fault) if hall.fault is not None else None

    def play(plan: Plan) -> Run:
        run = Run(plan.name, plan.kind, plan.library, 0, [])
        about: dict[str, Any] = {"run": run, "fault": fault, "brokers": hall.brokers, "proxy": hall.proxy}
        scene = Scene(plan.name, hall.brokers[0].inside_address, bootstrap, clients, **about)
        with scene.played():
            try:
                scene.now_ready()
                plan.play(scene, plan.library, **plan.options)
            except BaseException as error:
                if fault is not None:
                    fault.near.abort()  # the others do not wait for a scene that does not come
                error.add_note(f"in {hall.name}, {plan.name}")
                raise
            finally:
                run.to_ns = time.time_ns()
        return run

    with ThreadPoolExecutor(len(hall.plans) + 1) as threads:
        happening = threads.submit(fault.happen, hall) if fault is not None else None
        playing = [threads.submit(play, plan) for plan in hall.plans]
        failed = [error for future in playing if (error := future.exception()) is not None]
        if happening is not None and not isinstance(error := happening.exception(), BrokenBarrierError | None):
            failed.append(error)
    if failed:
        raise BaseExceptionGroup(f"{hall.name} was not played as planned", failed)
    return [future.result() for future in playing]


def _keep(incident: Incident, raw: Path, logs: Sequence[Path], into: Path) -> None:
    into.mkdir(parents=True, exist_ok=True)
    files = [raw] if raw.is_file() else sorted(raw.iterdir())
    assert len(files) == 1, f"a short recording is one file: {files}"
    incident.capture_in(into).write_bytes(gzip.compress(files[0].read_bytes(), mtime=0))
    lines = [
        f"[{at}] {level} {text} ({logger})"
        for log in logs
        for at, level, logger, text in _LINE.findall(log.read_text(errors="replace"))
        if "group" in logger
    ]
    incident.log_in(into).write_bytes(gzip.compress("\n".join([*sorted(lines), ""]).encode(), mtime=0))
    write_label(incident, into)
