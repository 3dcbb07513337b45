"""A standalone cluster of Spark: a master and workers, whose executors have the libraries and not this package.

Laws:

* Everything listens on the loopback, on free ports, and is stopped at the end by the process ids that were started.
* A worker and what it starts, its executors, are one process group: they are stopped and killed together.
* The executors' Python is an environment that sees pyspark, pyarrow and what these need, but not the checkout: a folder
  named in a .pth file is searched, its own .pth files, by which an editable install is found, are not read.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sysconfig
import venv
from pathlib import Path
from typing import Final, Self

import pyspark

from kcoord_wire.spark.sessions import SHORT_JVM, java_home
from kcoord_wire.zookeeper.ensemble import free_ports
from tests.support.waiting import eventually

_START_SECONDS: Final = 300.0
_TAIL: Final = 4_000


def bare_python(folder: Path) -> Path:
    """Make an environment that has the libraries and not the package, and return its Python."""
    venv.create(folder, symlinks=True)
    [site] = folder.glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    python = folder / "bin" / "python"
    seen = subprocess.run(
        [python, "-c", "import pyspark, pyarrow, kcoord_wire"], cwd=folder, env=bare(), capture_output=True, text=True
    )
    assert "No module named 'kcoord_wire'" in seen.stderr
    return python


def bare() -> dict[str, str]:
    """The environment without variables that could lead to the checkout."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "KCOORD"))}
    return {**env, "JAVA_HOME": str(java_home()), "SPARK_LOCAL_IP": "127.0.0.1"}


def spark_home(folder: Path) -> Path:
    """Make a SPARK_HOME of pyspark's own files, below which its servers may write."""
    folder.mkdir()
    for part in ("bin", "jars"):
        (folder / part).symlink_to(Path(pyspark.__file__).parent / part)
    return folder


class _Server:
    """A server of Spark, which leads a process group."""

    def __init__(self, name: str, kind: str, folder: Path, *arguments: str) -> None:
        home = folder / "spark"
        self.name, self._log = name, folder / f"{name}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    str(home / "bin" / "spark-class"),
                    f"org.apache.spark.deploy.{kind}",
                    "--host",
                    "127.0.0.1",
                    *arguments,
                ],
                cwd=folder,
                env={
                    **bare(),
                    "SPARK_HOME": str(home),
                    "SPARK_DAEMON_MEMORY": "256m",
                    "SPARK_DAEMON_JAVA_OPTS": SHORT_JVM,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def signal(self, number: int) -> None:
        """Send a signal to it and what it has started."""
        os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """End all of it at once."""
        if self._process.poll() is None:
            self.signal(signal.SIGKILL)
        self._process.wait()

    def written(self) -> str:
        """The end of its log."""
        assert self._process.poll() is None, f"{self.name} has ended: {self._log.read_text()[-_TAIL:]}"
        return self._log.read_text(errors="replace")[-_TAIL:]


class Worker(_Server):
    """A worker with one core.

    :ivar name: of it, and of the folder in which its executors work
    """

    def __init__(self, name: str, folder: Path, master: str) -> None:
        self.folder = folder / name
        arguments = ["--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", str(self.folder), master]
        super().__init__(name, "worker.Worker", folder, *arguments)

    def executors(self) -> list[str]:
        """The names of the executors that it has started."""
        return [path.name for path in self.folder.glob("app-*/*")]


class Cluster:
    """A master and two workers, as long as the block lasts.

    :ivar url: of the master
    :ivar workers: running ones
    """

    def __init__(self, folder: Path) -> None:
        spark_home(folder / "spark")
        [port] = free_ports(1)
        self.url = f"spark://127.0.0.1:{port}"
        self._master = _Server("master", "master.Master", folder, "--port", str(port), "--webui-port", "0")
        self.workers: list[Worker] = []
        try:
            eventually(lambda: _listens(port), self._master.written, seconds=_START_SECONDS)
            self.workers += [Worker(name, folder, self.url) for name in ("worker-1", "worker-2")]
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server in (*self.workers, self._master):
            server.kill()


def _listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0
