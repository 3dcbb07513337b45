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
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Event
from typing import Any, Literal

import trustme

import kcoord_wire as kw
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.recorder.proxy import Recorder
from tests.incidents.damage import INTACT, Damage
from tests.incidents.feed import Feed
from tests.incidents.labels import CAPTURE, Act, Incident, Run, write_label
from tests.incidents.pods import Pods
from tests.incidents.truth import judge_truth
from tests.support.clients.members import Client, Member
from tests.support.kafka_broker import KAFKA, KafkaBroker, create_topics, make_topics, pem, tool
from tests.support.stage import PARTITIONS, Stage
from tests.support.wire import Wire

NEAR_SECONDS = 120
LEAVE_SECONDS = 10
NAMES = ("first", "second")
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
USER, PASSWORD = "alice", "secret"
_SECURED = {
    "ssl.keystore.type": "PEM",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256",
    "scram-sha-256.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
}
"""Of a listener of whatever security protocol."""
_LINE = re.compile(r"^\[([\d :,-]+)\] (\w+) (\S+) - (.*)$", re.M)
"""As slf4j-simple writes it; kept in the layout of Kafka's own config/log4j.properties."""


class Capture:
    """All packets of some ports of an interface, into one file, while the block is entered.

    :raises AssertionError: at the end, if the kernel has dropped some
    """

    def __init__(self, path: Path, ports: Sequence[int], interface: str = "lo") -> None:
        self.path = path
        wanted = " or ".join(f"tcp port {port}" for port in ports)
        self._command = [tool("dumpcap", "tshark"), "-P", "-q", "-i", interface, "-B", "32"]
        self._command += ["-f", wanted, "-w", str(path)]

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
    pods: Pods | None = None
    names: Sequence[str] = NAMES
    ending: str = "one by one"

    def host(self, name: str) -> AbstractContextManager[None]:
        """Each client has a host of its own where the hall has hosts."""
        return self.pods.inside(self.pod(name)) if self.pods is not None else nullcontext()

    def pod(self, name: str) -> str:
        """The host of a client."""
        return f"{self.name}/{name}"

    @property
    def pattern(self) -> str:
        """Fits its topic, and what has a number behind that name; of another scene it fits none."""
        return f"^{self.topic}(-[0-9]+)?$"

    @contextmanager
    def fed(self, rate: float) -> Iterator[None]:
        """Records come evenly, so many a second, while the block is entered."""
        with Feed(self.brokers[0].inside_address, self.topic, rate) if rate else nullcontext():
            yield

    @property
    def modern(self) -> bool:
        """Whether its members speak the consumer protocol (KIP-848), of which the test asks themselves."""
        return any(value == "consumer" for member in self.members for value in member.options.values())

    def shares(self) -> dict[str, int]:
        """Partitions by client, as the members themselves report them."""
        return {member.name: len(member.now_owned) for member in self.members if member.now_owned and member.lives}

    def settle(self, *counts: int) -> None:
        """Wait until the first of its names have so many partitions each."""
        self.settles(**dict(zip(self.names, counts, strict=False)))

    def gathers(self, *names: str) -> None:
        """Wait until just these share all partitions, for good."""

        def together() -> bool:
            state, shares = self.described()
            return state == "Stable" and sorted(shares) == sorted(names) and sum(shares.values()) == PARTITIONS

        self.waits(lambda: together() and self.is_calm(), f"{names} do not share")

    def goes_home(self) -> None:
        """All members that run leave, the last one first, or at once; or they stay until the capture has ended.

        One that cannot leave within some seconds is killed.
        """
        if self.ending == "stays":
            return
        running = [member for member in reversed(self.members) if member.lives and member.process.poll() is None]
        if self.ending == "at once":
            for member in running:
                member.send("leave")
        for member in running:
            if self.ending != "at once":
                member.send("leave")
            end = time.monotonic() + LEAVE_SECONDS
            while member.lives and time.monotonic() < end and not member.has_answered("leave"):
                time.sleep(0.05)
            member.kill()

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

    def end_of(self, partition: int) -> int:
        """The end of a partition of its topic, of whichever broker leads it."""
        asked = kw.ListOffsetsRequestListOffsetsPartition(partition_index=partition, timestamp=-1)
        topic = kw.ListOffsetsRequestListOffsetsTopic(name=self.topic, partitions=[asked])
        for broker in self.brokers:
            with Wire(broker.inside_address) as wire:
                found = wire.call(kw.ListOffsetsRequest(replica_id=-1, topics=[topic]), 1).topics[0].partitions[0]
            if found.error_code == ErrorCode.NONE:
                return found.offset
        raise AssertionError(f"{self.topic}-{partition} has no leader")

    def broker_of(self, what: str, member: Member) -> KafkaBroker:
        """The coordinator of the group, or another broker: the leader of one of the member's partitions."""
        with Wire(self.brokers[0].inside_address) as wire:
            coordinator = wire.call(kw.FindCoordinatorRequest(key=self.name), 0).node_id
            topic = wire.call(kw.MetadataRequest(topics=[kw.MetadataRequestTopic(name=self.topic)]), 4).topics[0]
        leaders = {row.partition_index: row.leader_id for row in topic.partitions}
        node = coordinator
        if what == "leader":
            node = next(leaders[each] for each in member.now_owned if leaders[each] != coordinator)
        return next(broker for broker in self.brokers if broker.node_id == node)

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
    :ivar names: client ids of its members
    :ivar rate: records that come each second meanwhile
    :ivar reads: what the report is made of, see `Run`
    :ivar ending: how its members leave: ``one by one``, ``at once``; or ``stays``: they do not
    """

    name: str
    kind: str
    play: Play
    library: str
    options: Mapping[str, Any] = field(default_factory=dict)
    names: Sequence[str] = NAMES
    rate: float = 0.0
    reads: Sequence[str] = (CAPTURE,)
    ending: str = "one by one"


@dataclass
class Hall:
    """What one incident needs.

    :ivar nodes: how many brokers; the first is the controller
    :ivar fault: done to a broker while the groups of all scenes live; None where each scene has its own
    :ivar point: where it is captured: ``broker`` (packets), or ``recorder`` (`kcoord record`, which all clients use)
    :ivar secured: the security protocol of one more listener of each broker; empty for none
    :ivar alone: whether the topics are on the first broker alone, whatever happens to the others
    :ivar hosted: whether each client has a host of its own (`Pods`), which can be cut off
    :ivar damage: what happens to the capture before it is kept
    :ivar drawn: whether its plans were drawn: a scene that does not go as planned is left out, `judge_truth` says what
        the others were, and all that the brokers log is kept
    """

    name: str
    plans: Sequence[Plan]
    kafka: str = KAFKA
    nodes: int = 1
    properties: Mapping[str, str] = field(default_factory=dict)
    fault: Callable[[Hall], list[Act]] | None = None
    point: str = "broker"
    secured: str = ""
    alone: bool = False
    hosted: bool = False
    damage: Damage = INTACT
    drawn: bool = False
    brokers: list[KafkaBroker] = field(default_factory=list)
    pods: Pods | None = None

    def start(self, folder: Path, stack: ExitStack) -> None:
        """Start the brokers, together."""
        more = {"offsets.topic.replication.factor": str(self.nodes), "default.replication.factor": str(self.nodes)}
        properties = {**PROPERTIES, **(more if self.nodes > 1 else {}), **self.properties}
        self.pods = stack.enter_context(Pods(self.nodes)) if self.hosted else None
        for node in range(1, self.nodes + 1):
            first = self.brokers[0] if self.brokers else None
            path = folder / f"incident-{self.name}-{node}"
            options: dict[str, Any] = {"controller": first, "node_id": node, "inside": True}
            if self.pods is not None:
                options["host"] = self.pods.broker(node)
            if self.secured:
                certificate = folder / f"incident-{self.name}-{node}.pem"
                certificate.write_bytes(pem(trustme.CA().issue_cert(options.get("host", "127.0.0.1"))))
                listener = {**_SECURED, "ssl.keystore.location": str(certificate)}
                options |= {"secured": listener, "security": self.secured, "users": {USER: PASSWORD}}
            broker = KafkaBroker(path, properties, self.kafka, **options)
            self.brokers.append(broker)
            stack.callback(broker.stop)
            broker.launch()
        for broker in self.brokers:
            broker.wait_until_ready()

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
        if hall.alone:
            make_topics(hall.brokers[0].inside_address, dict.fromkeys(topics, PARTITIONS), on=1)
        create_topics(hall.brokers[0].inside_address, topics)
        with _captured(hall, folder) as (raw, bootstrap):
            runs = _play(hall, clients, bootstrap, stack)
        hosts = _hosts(hall, runs)
    incident = Incident(hall.name, hall.kafka, hall.point, addresses, runs, hall.damage.words)
    _keep(hall, incident, raw, hosts, into)
    return incident


@contextmanager
def _captured(hall: Hall, folder: Path) -> Iterator[tuple[Path, str]]:
    """Where the capture lies at the end of the block, and the address for clients."""
    if hall.point == "recorder":
        recording = folder / "recording"
        listen = f"{hall.pods.gateway}:0" if hall.pods is not None else "127.0.0.1:0"
        apis: Literal["group", "all"] = "all" if hall.drawn else "group"
        with Recorder(hall.brokers[0].address, listen=listen, folder=recording, apis=apis) as recorder:
            yield recording, recorder.address
        return
    raw = folder / f"{hall.name}.pcap"
    secured = [int(broker.secured_address.rpartition(":")[2]) for broker in hall.brokers if hall.secured]
    ports = [*(broker.port for broker in hall.brokers), *secured]
    with Capture(raw, ports, "lo" if hall.pods is None else hall.pods.bridge):
        yield raw, ",".join(broker.address for broker in hall.brokers)


def _play(hall: Hall, clients: Mapping[str, Client], bootstrap: str, stack: ExitStack) -> list[Run]:
    """Play all plans side by side; members that stay live until the stack is left."""
    lives = [plan for plan in hall.plans if hall.fault is not None]
    fault = Fault(Barrier(len(lives) + 1), hall.fault) if hall.fault is not None else None

    def play(plan: Plan) -> Run:
        run = Run(plan.name, plan.kind, plan.library, 0, [])
        run.drawn, run.reads = (plan.kind if hall.drawn else ""), list(plan.reads)
        about: dict[str, Any] = {"run": run, "fault": fault, "brokers": hall.brokers, "pods": hall.pods}
        about |= {"names": plan.names, "ending": plan.ending}
        scene = Scene(plan.name, hall.brokers[0].inside_address, bootstrap, clients, **about)
        stack.enter_context(scene.played())
        with scene.fed(plan.rate):
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
    if failed and not hall.drawn:
        raise BaseExceptionGroup(f"{hall.name} was not played as planned", failed)
    for error in failed:
        print(f"{hall.name}: {type(error).__name__}: {error} {getattr(error, '__notes__', '')}", file=sys.stderr)
    return [future.result() for future in playing if future.exception() is None]


def _hosts(hall: Hall, runs: Sequence[Run]) -> dict[str, Run]:
    """The address of the last member of each group, to which most is done."""
    members = {
        run.group: f"{run.group}/{plan.names[-1]}" for plan in hall.plans for run in runs if run.group == plan.name
    }
    if hall.pods is None:
        return {}
    known = {run.group: hall.pods.address(members[run.group]) for run in runs}
    return {address: run for run in runs if (address := known[run.group]) is not None}


def _keep(hall: Hall, incident: Incident, raw: Path, hosts: Mapping[str, Run], into: Path) -> None:
    """Write what there is of an incident; of one that was drawn, the runs that the brokers' logs confirm."""
    into.mkdir(parents=True, exist_ok=True)
    files = [raw] if raw.is_file() else sorted(raw.iterdir())
    assert len(files) == 1, f"a short recording is one file: {files}"
    lines = [
        f"[{at}] {level} {text} ({logger})"
        for broker in hall.brokers
        for at, level, logger, text in _LINE.findall(broker.log.read_text(errors="replace"))
        if hall.drawn or "group" in logger
    ]
    lines.sort()
    host = hall.damage.host(list(hosts))
    if host is not None:
        hosts[host].is_skewed = True
    parts, end_ns = hall.damage.of(files[0].read_bytes(), host)
    incident.parts = [str(number) if number else "" for number in range(len(parts))]
    if hall.drawn:
        incident.runs, incident.left_out = judge_truth(incident.runs, lines, end_ns)
    for path, data in zip(incident.captures_in(into), parts, strict=True):
        path.write_bytes(gzip.compress(data, mtime=0))
    incident.log_in(into).write_bytes(gzip.compress("\n".join([*lines, ""]).encode(), mtime=0))
    write_label(incident, into)
