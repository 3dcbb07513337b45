"""A real Apache Kafka for the tests: its jars from Maven, one node (KRaft) on loopback ports, its tools.

Laws:

* Needs ``java``, ``javac`` and ``mvn`` (Debian: default-jdk-headless, maven); one that is missing is named.
* The jars are fetched once and lie under build/; what a broker writes lies in the folder that the caller gives, its
  own log in build/interop/logs.
* A broker has started within three minutes or its start fails with the end of its log; it is stopped by its process id.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import trustme
from confluent_kafka.admin import AdminClient, NewTopic
from cryptography.hazmat.primitives import serialization

import kcoord_wire as kw
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.zookeeper.ensemble import free_ports
from tests.support.processes import BUILD, locked, run_tool
from tests.support.waiting import PATIENCE, eventually
from tests.support.wire import Wire

KAFKA: Final = "3.9.2"
"""The version of the reference broker, and of its tools."""

LOGS: Final = BUILD / "logs"
_POM: Final = Path(__file__).with_name("java") / "pom.xml"
_START_SECONDS: Final = 180
_STOP_SECONDS: Final = 30
_CLUSTER_ID: Final = "MkU3OEVBNTcwNTJENDM2Qg"
_SMALL_JVM: Final = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dfile.encoding=UTF-8")
_LOGGER: Final = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=[yyyy-MM-dd HH:mm:ss,SSS]",
    "-Dorg.slf4j.simpleLogger.showThreadName=false",
    "-Duser.timezone=UTC",
)
_PROPERTIES: Final = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "group.coordinator.rebalance.protocols": "classic,consumer",  # the new group coordinator
    "group.coordinator.append.linger.ms": "0",  # else a new group shows up some time after its first answer
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "log.cleaner.dedupe.buffer.size": "2097152",
    "log.cleaner.enable": "false",
    "num.network.threads": "1",
    "num.io.threads": "4",
}


def tool(name: str, package: str) -> str:
    """The path of a program.

    :raises FileNotFoundError: names the Debian package to install
    """
    path = shutil.which(name)
    if path is None:
        raise FileNotFoundError(f"{name} is missing: apt-get install -y {package}")
    return path


def class_path(artifact: str = "kafka_2.13", version: str = KAFKA) -> str:
    """The class path of an artifact of org.apache.kafka with all that it needs, fetched the first time."""
    folder = BUILD / "jars" / f"{artifact}-{version}"
    with locked(folder):
        if not folder.exists():
            _fetch(artifact, version, folder)
    return f"{folder}/*"


def _fetch(artifact: str, version: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        jars = Path(scratch) / "jars"
        command = [tool("mvn", "maven"), "--quiet", "--batch-mode", "--file", str(_POM)]
        command += ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
        command += [f"-Dkafka.artifact={artifact}", f"-Dkafka.version={version}"]
        run_tool(command, seconds=300)
        jars.rename(folder)  # all of it or nothing, whatever breaks off before


def log_file(name: str) -> Path:
    """Where a process that tests start writes its log: two test processes may give theirs the same name."""
    LOGS.mkdir(parents=True, exist_ok=True)
    return LOGS / f"{name}-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}.log"


def compile_java(source: Path, classes: Path, path: str) -> str:
    """Compile one source file against a class path; gives the class path with its classes."""
    run_tool(
        [tool("javac", "default-jdk-headless"), "-cp", path, "-d", str(classes), str(source)], seconds=300, attempts=1
    )
    return f"{classes}{os.pathsep}{path}"


def java(path: str, *arguments: str) -> list[str]:
    """The command that runs a Java program: options of ours, main class, arguments."""
    return [tool("java", "default-jdk-headless"), *_SMALL_JVM, "-cp", path, *arguments]


def run_java(path: str, *arguments: str, seconds: int = 180) -> str:
    """Run a main class to its end and give its standard output."""
    return run_tool(java(path, *arguments), seconds=seconds, attempts=1)


def pem(issued: trustme.LeafCert) -> bytes:
    """Key and certificates; the key in the one form that Java reads."""
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(*form) + b"".join(part.bytes() for part in issued.cert_chain_pems)


class KafkaBroker:
    """One broker that is its own controller, ready for groups once the block is entered.

    :param folder: for its data; made by the first start
    :param properties: of server.properties, over those above
    :param controller: the broker that this one joins as another node of its cluster; None makes it its own controller
    :param node_id: of the node; 1 is the controller's
    :param inside: whether it has one more listener, for the other brokers and for who looks on
    :param host: address of the listener for clients
    :param secured: of one more listener; without the prefix ``listener.name.secured.``
    :param security: the protocol of that listener
    :param users: name -> password, of users of SCRAM
    :ivar address: ``HOST:PORT``
    :ivar inside_address: of the listener for the other brokers, if there is one
    :ivar log: what it writes to standard output and error
    :ivar secured_address: of the listener that is secured, if there is one
    """

    def __init__(
        self,
        folder: Path,
        properties: Mapping[str, str] | None = None,
        version: str = KAFKA,
        *,
        controller: KafkaBroker | None = None,
        node_id: int = 1,
        inside: bool = False,
        host: str = "127.0.0.1",
        secured: Mapping[str, str] | None = None,
        security: str = "SASL_SSL",
        users: Mapping[str, str] | None = None,
    ) -> None:
        self.address = self.secured_address = self.inside_address = ""
        self.folder = folder
        self.node_id = node_id
        self._inside = inside
        self._host = host
        self._controller = controller
        self._voter = ""
        self._path = class_path(version=version)
        self._properties = {**_PROPERTIES, **(properties or {})}
        self._secured = secured
        self._security = security
        self._users = users or {}
        self._process: subprocess.Popen[bytes] | None = None
        self.log = log_file(folder.name)
        self.log.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    @property
    def offsets_log(self) -> list[Path]:
        """The segments of its one partition of ``__consumer_offsets``, oldest first."""
        return sorted((self.folder / "__consumer_offsets-0").glob("*.log"))

    def start(self, *, port: int = 0) -> None:
        """Start on what the folder holds, or on a new one; also again after `stop`.

        :param port: for clients; 0 takes a free one
        :raises RuntimeError: it does not start, with the end of its log
        """
        self.launch(port=port)
        try:
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def launch(self, *, port: int = 0) -> None:
        """Start it without waiting: the nodes of a cluster are ready together."""
        free, controller, secured, inside = free_ports(4)
        port = port or free
        self.address = f"{self._host}:{port}"
        listening = {
            "log.dirs": str(self.folder),
            "listeners": f"PLAINTEXT://{self.address}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
        }
        if self._controller is None:
            self._voter = self._voter or f"1@127.0.0.1:{controller}"  # other nodes know the first one's port
            listening["listeners"] += f",CONTROLLER://{self._voter.removeprefix('1@')}"
        else:
            self._voter = self._controller._voter
            listening |= {"process.roles": "broker", "node.id": str(self.node_id)}
        listening["controller.quorum.voters"] = self._voter
        more = {}
        if self._inside:
            self.inside_address = more["INSIDE"] = self.inside_address or f"127.0.0.1:{inside}"
            listening["inter.broker.listener.name"] = "INSIDE"
        if self._secured is not None:
            self.secured_address = more["SECURED"] = self.secured_address or f"{self._host}:{secured}"
        for name, key in product(more, ("listeners", "advertised.listeners")):
            listening[key] += f",{name}://{more[name]}"
        listening["listener.security.protocol.map"] = (
            f"PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,INSIDE:PLAINTEXT,SECURED:{self._security}"
        )
        if self._secured is not None:
            listening |= {f"listener.name.secured.{name}": value for name, value in self._secured.items()}
        settings = self.folder.with_suffix(".properties")
        settings.write_text("".join(f"{name}={value}\n" for name, value in {**self._properties, **listening}.items()))
        if not self.folder.exists():
            self.folder.mkdir(parents=True)
            command = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(settings)]
            for name, password in self._users.items():
                for mechanism in "SCRAM-SHA-256", "SCRAM-SHA-512":
                    command += ["--add-scram", f"{mechanism}=[name={name},password={password}]"]
            run_java(self._path, *command)
        with self.log.open("ab") as log:
            command = java(self._path, *_LOGGER, "kafka.Kafka", str(settings))
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def restart(self, properties: Mapping[str, str] | None = None) -> None:
        """Kill it and start it at the same port, on what it has written, with these properties over its own."""
        self._properties |= properties or {}
        self.kill()
        self.start(port=self.port)

    @property
    def port(self) -> int:
        """Of its clients."""
        return int(self.address.rpartition(":")[2])

    def kill(self) -> None:
        """End it by SIGKILL, as a machine does that loses its power."""
        process, self._process = self._process, None
        assert process is not None, "it runs"
        process.kill()
        process.wait()

    def freeze(self) -> None:
        """Stop it by SIGSTOP: its connections stay, and nothing is answered."""
        assert self._process is not None, "it runs"
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it run again."""
        assert self._process is not None, "it runs"
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Stop it as an operator would, and make sure that it has ended."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGCONT)  # one that is frozen would not see the next signal
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def wait_until_ready(self) -> None:
        """Wait until it serves every group, as its coordinator or as one that says who is.

        :raises RuntimeError: it has ended, or its time is over
        """
        assert self._process is not None
        end = time.monotonic() + _START_SECONDS
        while not self._serves_groups():
            if self._process.poll() is not None or time.monotonic() > end:
                tail = self.log.read_text(errors="replace")[-4000:]
                raise RuntimeError(f"Kafka has not started; the end of {self.log}:\n{tail}")
            time.sleep(0.05)

    def _serves_groups(self) -> bool:
        """Whether every partition of offsets has a coordinator that has loaded it; the first question creates them."""
        count = int(self._properties["offsets.topic.num.partitions"])
        groups = [chr(ord("0") + number) for number in range(count)]  # Java's hash of one character is its code
        try:
            with Wire(self.inside_address or self.address, timeout=5) as wire:
                return all(self._serves(wire, group) for group in groups)
        except (OSError, EOFError):
            return False

    def _serves(self, wire: Wire, group: str) -> bool:
        found = wire.call(kw.FindCoordinatorRequest(key=group), 0)
        if found.error_code != ErrorCode.NONE:
            return False
        described = wire.call(kw.DescribeGroupsRequest(groups=[group]), 0).groups[0].error_code
        if found.node_id == self.node_id:  # it says NOT_COORDINATOR until it begins to load the partition
            return described == ErrorCode.NONE
        return described in (ErrorCode.NONE, ErrorCode.NOT_COORDINATOR)


def create_topics(address: str, names: Sequence[str]) -> None:
    """Create topics on a broker that does so when asked for their metadata, and wait until they have leaders."""
    request = kw.MetadataRequest(topics=[kw.MetadataRequestTopic(name=name) for name in names])
    with Wire(address) as wire:
        eventually(
            lambda: wire.call(request, 4).topics,
            until=lambda topics: all(t.error_code == ErrorCode.NONE and t.partitions for t in topics),
        )


def make_topics(address: str, counts: Mapping[str, int], on: int | None = None) -> None:
    """Create topics with so many partitions on a cluster of one broker, and wait until it serves all of them.

    :param on: the broker that has all of them, where there are others; `address` is its own
    """
    admin = AdminClient({"bootstrap.servers": address})
    topics = [
        NewTopic(name, count, 1) if on is None else NewTopic(name, count, replica_assignment=[[on]] * count)
        for name, count in counts.items()
    ]
    for future in admin.create_topics(topics).values():
        future.result(PATIENCE)
    partition, topic = kw.ListOffsetsRequestListOffsetsPartition, kw.ListOffsetsRequestListOffsetsTopic
    asked = [
        topic(name=name, partitions=[partition(partition_index=each) for each in range(count)])
        for name, count in counts.items()
    ]
    with Wire(address) as wire:
        eventually(
            lambda: wire.call(kw.ListOffsetsRequest(replica_id=-1, topics=asked), 1).topics,
            until=lambda topics: not any(each.error_code for topic in topics for each in topic.partitions),
        )


def wait_for_producer_ids(address: str) -> None:
    """A broker that has just started refuses them for a while, of which producers would complain."""
    request = kw.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    with Wire(address) as wire:
        eventually(lambda: wire.call(request, 0).error_code, until=lambda error: error == ErrorCode.NONE)
