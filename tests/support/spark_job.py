"""A query of Spark in a process session of its own, so that its driver and its JVM can be killed at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from tests.support.waiting import eventually

_TAIL: Final = 6_000


class Job:
    """A script that runs in `folder`, killed at the end of its block; its checkpoint is in ``folder/checkpoint``.

    :param script: text of the program
    :param arguments: of the program
    """

    def __init__(self, script: str, folder: Path, *arguments: str) -> None:
        self.folder = folder
        program = folder / "job.py"
        program.write_text(script)
        with (folder / "job.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(program), *arguments],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Driver and JVM at once; the workers end when they find themselves alone, once they are not held any more."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pid in self._pythons():
            _signal(pid, signal.SIGCONT)

    def until(self, condition: Callable[[], Any], seconds: float = 300) -> None:
        """Wait while the job runs."""

        def asked() -> Any:
            found = condition()
            assert found or self.process.poll() is None, self.written()
            return found

        eventually(asked, self.written, seconds=seconds)

    def written(self) -> str:
        """The end of its log."""
        return (self.folder / "job.log").read_text(errors="replace")[-_TAIL:]

    def planned(self, query: str = "") -> int:
        """How many batches are planned, of all runs with this checkpoint.

        :param query: the folder below that of the job that has its checkpoint
        """
        return _entries(self.folder / query, "offsets")

    def committed(self, query: str = "") -> int:
        """How many of them are complete."""
        return _entries(self.folder / query, "commits")

    def hold(self) -> None:
        """Stop the Python workers, which do the tasks: no batch that needs one is completed until they are killed."""
        for _ in range(2):  # what a daemon has forked meanwhile is seen once that is stopped
            for pid in self._pythons():
                _signal(pid, signal.SIGSTOP)

    def workers(self) -> set[int]:
        """The process ids of the Python workers that Spark has forked from its daemon."""
        found = self._pythons()
        return {pid for pid, parent in found.items() if parent in found}

    def kill_workers(self) -> None:
        """Kill the Python workers, and let what forks them go on if it is held."""
        workers = self.workers()
        for pid in workers:
            _signal(pid, signal.SIGKILL)
        for pid in self._pythons().keys() - workers:
            _signal(pid, signal.SIGCONT)

    def _pythons(self) -> dict[int, int]:
        """Workers of tasks, not those that plan, and the daemon that forks them: each with its parent."""
        found: dict[int, int] = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                is_python = b"pyspark.daemon\0pyspark.worker" in (path / "cmdline").read_bytes()
                parent, _, session = (path / "stat").read_text().rpartition(")")[2].split()[1:4]
            except OSError:  # it has ended meanwhile
                continue
            if is_python and int(session) == self.process.pid:
                found[int(path.name)] = int(parent)
        return found


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):  # it may have ended by itself
        os.kill(pid, number)


def _entries(folder: Path, kind: str) -> int:
    return len(list((folder / "checkpoint" / kind).glob("[0-9]*")))
