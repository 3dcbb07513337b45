"""Real ZooKeeper servers on this machine, from the jars that pyspark brings: one node, or an ensemble of several.

For tests, demonstrations and ``--zookeeper embedded``: the data is in a temporary folder and is not forced to disk.

Laws:

* Nodes listen on the loopback only, on free ports below those that the system gives out by itself: so a node that is
  started again finds its port free.
* `Ensemble.start` takes at most `START_SECONDS`, and leaves nothing behind if it fails.
* After `Ensemble.stop` no process that it started is left, paused ones included, and no file.
"""

from __future__ import annotations

import atexit
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from kcoord_wire.extras import MissingLibraryError
from kcoord_wire.kernel.java import java_home

START_SECONDS: Final = 60.0
_ATTEMPTS: Final = 3  # each with other ports: another program can take one between the choice and the start
_PORTS: Final = range(15_000, 32_000)
_ANSWER_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.05
_JARS: Final = ("zookeeper", "netty", "metrics-core", "snappy-java", "slf4j-api", "log4j")
_MAIN: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_JVM: Final = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync=no")
_SETTINGS: Final = """\
tickTime={tick_ms}
initLimit=60
syncLimit=6
minSessionTimeout=1000
maxSessionTimeout=60000
maxClientCnxns=0
preAllocSize=1024
admin.enableServer=false
4lw.commands.whitelist=srvr
clientPortAddress=127.0.0.1
clientPort={port}
dataDir={folder}
"""


class EnsembleError(Exception):
    """The servers do not start; the text has the end of their log."""


class EnsembleNode:
    """One server.

    :ivar number: from 1
    :ivar port: for clients, on 127.0.0.1
    """

    def __init__(self, number: int, ports: Sequence[int], folder: Path, command: Sequence[str]) -> None:
        self.number = number
        self.port, self.quorum_port, self.election_port = ports
        self._command = [*command, str(folder / "zoo.cfg")]
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """``127.0.0.1:PORT``."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """Of its process; None if it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def mode(self) -> str | None:
        """``leader``, ``follower`` or ``standalone``; None if it does not serve."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), _ANSWER_SECONDS) as connection:
                connection.settimeout(_ANSWER_SECONDS)
                connection.sendall(b"srvr")
                answer = connection.makefile("rb").read()
        except OSError:
            return None
        for line in answer.decode("utf-8", "replace").splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ")
        return None

    def configure(self, settings: str, peers: Sequence[EnsembleNode]) -> None:
        """Write its settings and its number, for the first start."""
        self._folder.mkdir()
        (self._folder / "myid").write_text(f"{self.number}\n")
        servers = [f"server.{peer.number}=127.0.0.1:{peer.quorum_port}:{peer.election_port}\n" for peer in peers]
        (self._folder / "zoo.cfg").write_text(settings + "".join(servers if len(peers) > 1 else []))

    def start(self) -> None:
        """Start it, also again after `kill`; it does not serve yet."""
        with (self._folder / "log.txt").open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                start_new_session=True,
            )

    def kill(self) -> None:
        """End it at once (SIGKILL), and wait for that."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """Stop it where it is (SIGSTOP): its connections stay open, and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """End a pause (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    @property
    def log(self) -> str:
        """What it has written."""
        return (self._folder / "log.txt").read_text("utf-8", "replace")


class Ensemble:
    """Servers that know each other, running while the block is entered.

    :param size: number of nodes, odd
    :param tick_ms: ZooKeeper's tickTime; a session lasts at least two ticks and 1 s
    :ivar nodes: see `EnsembleNode`
    """

    def __init__(self, size: int = 1, *, tick_ms: int = 500) -> None:
        if size < 1 or size % 2 == 0:
            raise ValueError(f"an ensemble has an odd number of nodes, not {size}")
        self.nodes: list[EnsembleNode] = []
        self._size = size
        self._tick_ms = tick_ms
        self._folder: Path | None = None

    @property
    def connect(self) -> str:
        """The addresses of all nodes, as clients take them: ``HOST:PORT,HOST:PORT``."""
        return ",".join(node.address for node in self.nodes)

    @property
    def leader(self) -> EnsembleNode | None:
        """The node that leads, or the only one; None at the moment."""
        return next((node for node in self.nodes if node.mode in ("leader", "standalone")), None)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Start all nodes, and wait until each serves.

        :raises MissingLibraryError: pyspark is not installed
        :raises FileNotFoundError: there is no Java
        :raises EnsembleError: they do not start
        """
        command = [str(java_home("ZooKeeper") / "bin" / "java"), *_JVM, "-cp", _class_path(), _MAIN]
        until = time.monotonic() + START_SECONDS
        atexit.register(self.stop)
        try:
            for attempt in range(1, _ATTEMPTS + 1):
                self._start_onfree_ports(command)
                if self._is_serving(until):
                    return
                if attempt == _ATTEMPTS or time.monotonic() > until:
                    logs = "".join(node.log[-2_000:] for node in self.nodes)
                    raise EnsembleError(f"ZooKeeper does not start within {START_SECONDS:.0f} s: {logs or 'no output'}")
                self._end_nodes()
        except BaseException:
            self.stop()
            raise

    def _start_onfree_ports(self, command: Sequence[str]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="kcoord-zookeeper-"))
        ports = free_ports(3 * self._size)
        self.nodes = [
            EnsembleNode(number + 1, ports[3 * number : 3 * number + 3], self._folder / str(number + 1), command)
            for number in range(self._size)
        ]
        for node in self.nodes:
            folder = self._folder / str(node.number)
            settings = _SETTINGS.format(tick_ms=self._tick_ms, port=node.port, folder=folder)
            node.configure(settings, self.nodes)
        for node in self.nodes:
            node.start()

    def _is_serving(self, until: float) -> bool:
        """Wait until all nodes serve; return False if one has ended or time is up."""
        left = list(self.nodes)
        while left and time.monotonic() < until:
            left = [node for node in left if node.mode is None]
            if any(node.pid is None for node in left):
                return False
            time.sleep(_POLL_SECONDS)
        return not left

    def stop(self) -> None:
        """End all nodes at once, and remove their data; a second call does nothing."""
        atexit.unregister(self.stop)
        self._end_nodes()

    def _end_nodes(self) -> None:
        for node in self.nodes:
            node.kill()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _class_path() -> str:
    spec = find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise MissingLibraryError("pyspark", "spark", "an embedded ZooKeeper, which is in pyspark's jars,")
    jars = Path(spec.submodule_search_locations[0]) / "jars"
    found = [str(path) for path in sorted(jars.glob("*.jar")) if path.name.startswith(_JARS)]
    return ":".join(found)


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that are free, below those that the system gives out by itself."""
    sockets: list[socket.socket] = []
    choice = random.Random()
    try:
        while len(sockets) < count:
            try:
                sockets.append(socket.create_server(("127.0.0.1", choice.choice(_PORTS))))
            except OSError:
                continue
        return [listening.getsockname()[1] for listening in sockets]
    finally:
        for listening in sockets:
            listening.close()
