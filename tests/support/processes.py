"""A program in a process of its own: started, waited for, asked, stopped by its process id.

Laws:

* Its standard error goes to a file, and a failure to start or to answer shows the end of it. One that says nothing for
  five minutes, where a line is due, has failed.
* Leaving its block kills it, if it still runs, and reaps it.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.support.waiting import PATIENCE

ROOT: Final = Path(__file__).resolve().parents[2]
BUILD: Final = ROOT / "build" / "interop"
"""What tests fetch and build of others."""
_LONGEST_ANSWER: Final = 300.0  # seconds, of which a Java program takes thirty on a busy machine
_TAIL: Final = 4_000


class Process:
    """One program.

    :param ready: a regular expression of its first line, with its end; the constructor waits for that line
    :param log: where its standard error is added; a file without a name if left out
    :param environment: instead of that of this process
    :param before: called in the new process before the program begins
    :ivar ready: what was found in its first line
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        ready: str = "",
        log: Path | None = None,
        environment: Mapping[str, str] | None = None,
        before: Callable[[], None] | None = None,
    ) -> None:
        self._errors = log.open("a+b") if log else tempfile.TemporaryFile("a+b")  # noqa: SIM115 - `_close`
        self._said = ""  # what was in it when it was closed
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command,
            stdin=pipe,
            stdout=pipe,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
            env=environment,
            preexec_fn=before,
        )
        if ready:
            try:
                line = self.line()
                found = re.search(ready, line + "\n")  # which a pattern may ask for
                assert found is not None, f"{command} says {line!r}; the end of its log:\n{self.errors[-_TAIL:]}"
            except AssertionError:
                self.kill()
                raise
            self.ready = found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """The process."""
        return self.process.pid

    @property
    def errors(self) -> str:
        """What it has written to its standard error."""
        if self._errors.closed:
            return self._said
        file = self._errors.fileno()
        # Not by `seek`: the process writes where this has read to, as the two share the offset of the file.
        return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")

    def tell(self, line: str) -> None:
        """Write a line to its standard input.

        :raises AssertionError: it has ended, with the end of its log
        """
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise AssertionError(f"it has ended; the end of its log:\n{self.errors[-_TAIL:]}") from None

    def line(self, seconds: float = _LONGEST_ANSWER) -> str:
        """The next line of its standard output, without its end.

        :raises AssertionError: it has ended, or says nothing for so long and is killed; with the end of its log
        """
        why = "it has ended"

        def give_up() -> None:
            nonlocal why
            why = f"it says nothing for {seconds:g} s"
            self.process.kill()

        silence = threading.Timer(seconds, give_up)
        silence.start()
        try:
            line = self.process.stdout.readline()
        finally:
            silence.cancel()
        assert line, f"{why}; the end of its log:\n{self.errors[-_TAIL:]}"
        return line.rstrip("\n")

    def ask(self, line: str) -> str:
        """Write a line and give the one that answers it."""
        self.tell(line)
        return self.line()

    def stop(self) -> None:
        """Stop it by SIGSTOP, as a virtual machine does that is moved, or a debugger."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it run again."""
        self.process.send_signal(signal.SIGCONT)

    def end(self, number: int = signal.SIGTERM, seconds: float = PATIENCE) -> tuple[int, str, str]:
        """End it as an operator does: its status, and the rest of what it wrote to standard output and error."""
        self.process.send_signal(number)
        return self.finish(seconds)

    def finish(self, seconds: float = PATIENCE) -> tuple[int, str, str]:
        """Close its standard input, and wait until it has ended; gives what `end` gives."""
        out, _ = self.process.communicate(timeout=seconds)
        self._close()
        return self.process.returncode, out, self.errors

    def kill(self) -> None:
        """End it by SIGKILL and reap it: nothing of it is sent to anyone."""
        self.process.kill()
        self.process.wait()
        for pipe in self.process.stdin, self.process.stdout:
            with suppress(BrokenPipeError):  # of a line that it has not read
                pipe.close()
        self._close()

    def _close(self) -> None:
        self._said = self.errors
        self._errors.close()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Be alone in the block among threads and processes that want the same; the lock is a file beside `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run_tool(
    command: Sequence[str],
    folder: Path = ROOT,
    environment: Mapping[str, str] | None = None,
    *,
    seconds: float = 600,
    attempts: int = 3,
) -> str:
    """Run a program to its end and give its standard output; what build tools download may fail for a while.

    :param environment: added to that of this process
    :raises AssertionError: it has failed, with the end of what it wrote
    """
    for _ in range(attempts):
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        if done.returncode == 0:
            break
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-_TAIL:]}\n{done.stderr[-_TAIL:]}"
    return done.stdout
