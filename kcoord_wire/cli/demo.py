"""`kcoord demo`: a bad afternoon of two consumer groups on the coordinator, recorded, and what the pipeline says of it.

Members of two client libraries, each a process, join, crash, are bounced one by one, and poll too rarely. A member
prints the partitions that it holds as lines of JSON; it leaves when its stdin ends.

Laws:

* What it needs is looked for before anything is started or written.
* Only what an earlier run has written is replaced. No process outlives the command; an interrupt keeps the recording,
  and says where it is.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Annotated, Any, Final, Self

from kcoord_wire.cli.options import Command, Format, Option
from kcoord_wire.cli.output import complain, make_writable
from kcoord_wire.cli.process import saying_what_is_kept, until_terminated
from kcoord_wire.extras import MissingLibraryError, lacking, require

_NEEDED: Final = ("serve", "analyze", "kafka")
_TOPIC: Final = "orders"
_PARTITIONS: Final = 12
_SESSION_MS: Final = 2_000
_SLOW_POLLS: Final = 7
_PATIENCE_S: Final = 60.0
LIBRDKAFKA, KCOORD = "librdkafka", "kcoord"
_BILLING: Final = {"invoices-1": LIBRDKAFKA, "invoices-2": KCOORD, "invoices-3": LIBRDKAFKA}


@dataclass(frozen=True, kw_only=True)
class Demo(Command):
    """Watch two groups of real clients rebalance for half a minute, and read why.

    examples:
      kcoord demo
          the coordinator, a proxy that records, members of librdkafka and of this package; then `kcoord analyze`
      kcoord demo --out afternoon --format json
          recording, tables and report in this folder; what the terminal would show as a JSON object

    needs: pip install 'kcoord_wire[serve,analyze,kafka]'
    """

    out: Annotated[Path, Option("recording, tables and report; what an earlier run wrote is replaced", "DIR")] = Path(
        "kcoord-demo"
    )
    format: Format = "text"

    def run(self) -> None:
        """Run the groups, then analyse.

        :raises MissingLibraryError: an extra is not installed
        :raises OSError: the folder cannot be written
        """
        from kcoord_wire.cli.analyze import Analyze

        _require_extras()
        recording = self.out / "recording"
        shutil.rmtree(recording, ignore_errors=True)
        make_writable(recording)
        began = time.monotonic()
        kept, is_whole = f"the recording so far is in {recording}: kcoord analyze {recording}", False
        with saying_what_is_kept(lambda: kept), until_terminated():
            _record(recording, lambda text: _say(text, began))
            is_whole = True
        if not is_whole:  # SIGTERM
            complain(kept)
            return
        _say("done; this is what the recording shows:\n", began)
        Analyze(source=(str(recording),), out=self.out / "report", format=self.format, quiet=True).run()


def _require_extras() -> None:
    if absent := lacking(*_NEEDED):
        raise MissingLibraryError(absent[0], ",".join(_NEEDED), "kcoord demo")


def _say(text: str, began: float) -> None:
    print(f"{time.monotonic() - began:5.1f} s  {text}", file=sys.stderr, flush=True)


# ---- what happens


def _record(folder: Path, say: Callable[[str], None]) -> None:
    """Run the groups on a coordinator, and record them into a folder."""
    from kcoord_wire.coordinator import Coordinator, GroupConfig
    from kcoord_wire.recorder.proxy import Recorder

    config = GroupConfig(min_session_timeout_ms=1_000, initial_rebalance_delay_ms=500)
    with (
        Coordinator(topics={_TOPIC: _PARTITIONS}, config=config) as coordinator,
        Recorder(upstream=coordinator.address, folder=folder) as recorder,
        ExitStack() as stack,
    ):
        _live(recorder.address, stack, say)


def _live(address: str, stack: ExitStack, say: Callable[[str], None]) -> None:
    producer = _producer(address)
    billing = _Group(stack, producer, address, "billing", "range")
    shipping = _Group(stack, producer, address, "shipping", "cooperative-sticky")
    say("billing: three members join, with two client libraries")
    for name, library in _BILLING.items():
        billing.start(name, library)
    say("shipping: two members join, cooperatively")
    for name in ("parcels-1", "parcels-2"):
        shipping.start(name, LIBRDKAFKA)
    say("billing: invoices-2 is killed; its session has to run out before others get its partitions")
    billing.stop("invoices-2", _Member.kill)
    say("billing: it comes back, and all are bounced one by one")
    billing.start("invoices-2", KCOORD)
    for name, library in _BILLING.items():
        billing.stop(name, _Member.leave)
        billing.start(name, library)
    say("shipping: a third member joins, the first leaves")
    shipping.start("parcels-3", LIBRDKAFKA)
    shipping.stop("parcels-1", _Member.leave)
    say(f"billing: a member that polls too rarely, {_SLOW_POLLS} times over")
    _poll_too_rarely(address, "billing", _SLOW_POLLS)
    for group in (billing, shipping):
        for member in group.members.values():
            member.leave()


class _Group:
    """The members of one group that are alive."""

    def __init__(self, stack: ExitStack, producer: Any, address: str, name: str, assignor: str) -> None:
        self._stack = stack
        self._producer = producer
        self._settings = {"address": address, "group": name, "assignor": assignor}
        self.members: dict[str, _Member] = {}

    def start(self, name: str, library: str) -> None:
        """Start a member, wait until all have their shares, and give them something to do."""
        self.members[name] = self._stack.enter_context(_Member({**self._settings, "name": name, "library": library}))
        self.settle()
        for partition in range(_PARTITIONS):
            self._producer.produce(_TOPIC, value=b"parcel", partition=partition)
        self._producer.flush(_PATIENCE_S)

    def settle(self) -> None:
        """Wait until the members that are left share all partitions."""

        def is_shared_out() -> bool:
            held = [set(member.held) for member in self.members.values()]
            return all(held) and sum(map(len, held)) == len(set().union(*held)) == _PARTITIONS

        _wait(is_shared_out, self.members.values())

    def stop(self, name: str, how: Callable[[_Member], None]) -> None:
        """End a member, and wait until the others have its partitions."""
        how(self.members.pop(name))
        if self.members:
            self.settle()


def _wait(until: Callable[[], bool], members: Iterable[_Member] = ()) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not until():
        for member in members:
            if member.status() is not None:
                raise RuntimeError(f"the member {member.name} has ended by itself")
        if time.monotonic() > deadline:
            raise RuntimeError(f"the group has not settled within {_PATIENCE_S:.0f} s")
        time.sleep(0.02)


class _Member:
    """A member as a process; a context manager that kills what is left of it.

    :ivar held: the partitions that it holds
    """

    def __init__(self, settings: dict[str, str]) -> None:
        self.name = settings["name"]
        self.held: list[int] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kcoord_wire.cli.demo", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.held = json.loads(line)

    def status(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._process.poll()

    def leave(self) -> None:
        """Let it leave its group, and wait for its end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(_PATIENCE_S)

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


def _poll_too_rarely(address: str, group: str, times: int) -> None:
    """A consumer whose application takes longer than max.poll.interval.ms for what it polls, so many times over."""
    assignments: list[int] = []
    settings = {"client.id": "invoices-slow", "max.poll.interval.ms": 1_000, "session.timeout.ms": 1_000}
    consumer = _librdkafka(address, group, "range", settings)
    consumer.subscribe([_TOPIC], on_assign=lambda _, partitions: assignments.append(len(partitions)))
    try:
        for number in range(1, times + 1):

            def is_back(number: int = number) -> bool:
                consumer.poll(0.05)
                return len(assignments) >= number

            _wait(is_back)  # librdkafka has left the group after a second without a poll
            time.sleep(1.8)  # it looks twice a second
    finally:
        consumer.close()


def _producer(address: str) -> Any:
    return require("confluent_kafka", "kafka", "kcoord demo").Producer({"bootstrap.servers": address, "log_level": 0})


def _librdkafka(address: str, group: str, assignor: str, more: dict[str, Any]) -> Any:
    defaults = {
        "bootstrap.servers": address,
        "group.id": group,
        "partition.assignment.strategy": assignor,
        "session.timeout.ms": _SESSION_MS,
        "heartbeat.interval.ms": 300,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 500,
        "log_level": 0,
    }
    return require("confluent_kafka", "kafka", "kcoord demo").Consumer(defaults | more)


# ---- the program of a member


class _Holding:
    """The partitions that this process holds, printed as they change."""

    def __init__(self) -> None:
        self._held: set[int] = set()

    def gain(self, partitions: Iterable[Any]) -> None:
        """Print those besides."""
        self._show(self._held | {each.partition for each in partitions})

    def lose(self, partitions: Iterable[Any]) -> None:
        """Print those that are left."""
        self._show(self._held - {each.partition for each in partitions})

    def _show(self, held: set[int]) -> None:
        self._held = held
        try:
            print(json.dumps(sorted(held)), flush=True)
        except BrokenPipeError:  # the demo was killed: there is no one to leave a group for
            os._exit(1)


def _run_librdkafka(settings: dict[str, str], ended: threading.Event) -> None:
    holding = _Holding()
    more = {"client.id": settings["name"], "max.poll.interval.ms": 10_000}
    consumer = _librdkafka(settings["address"], settings["group"], settings["assignor"], more)
    consumer.subscribe(
        [_TOPIC],
        on_assign=lambda _, partitions: holding.gain(partitions),
        on_revoke=lambda _, partitions: holding.lose(partitions),
    )
    while not ended.is_set():
        consumer.poll(0.05)
    consumer.close()


async def _run_kcoord(settings: dict[str, str], ended: threading.Event) -> None:
    from kcoord_wire.consumer import Consumer, ConsumerSettings, RebalanceListener

    holding = _Holding()

    class Listener(RebalanceListener):
        def on_assigned(self, partitions: Any) -> None:
            holding.gain(partitions)

        def on_revoked(self, partitions: Any) -> None:
            holding.lose(partitions)

    consumer = Consumer(
        ConsumerSettings(
            bootstrap_servers=settings["address"],
            group_id=settings["group"],
            client_id=settings["name"],
            partition_assignment_strategy=(settings["assignor"],),
            session_timeout_ms=_SESSION_MS,
            heartbeat_interval_ms=300,
            max_poll_interval_ms=10_000,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=500,
        )
    )
    consumer.subscribe([_TOPIC], Listener())
    async with consumer:
        while not ended.is_set():
            await consumer.poll(50)


def _member(settings: dict[str, str], stdin: IO[bytes]) -> None:
    """Be a member until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent ends its members
    ended = threading.Event()

    def watch() -> None:
        stdin.read()
        ended.set()

    threading.Thread(target=watch, daemon=True).start()
    if settings["library"] == KCOORD:
        asyncio.run(_run_kcoord(settings, ended))
    else:
        _run_librdkafka(settings, ended)


if __name__ == "__main__":
    _member(json.loads(sys.argv[1]), sys.stdin.buffer)
