"""`kcoord central consume`: a consumer of the draft, which prints its records and its assignments.

Laws:

* A record is processed, and its position may be committed, when its line has been written to stdout and flushed.
* A stdout that takes nothing holds up the records, not the answers to the coordinator.
* The first Ctrl-C or SIGTERM begins the draft's shutdown: within two session timeouts the consumer has left its group.
  The status is then 130 or 0. The second kills at once, also while stdout takes nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kcoord_wire.cli.arguments import UsageError, add_command, argument, parse_positive
from kcoord_wire.cli.process import log_to_stderr
from kcoord_wire.codec.fields import printable
from kcoord_wire.kernel.net import parse_address

if TYPE_CHECKING:
    from kcoord_wire.central.draft.events import ConsumerSettings, Partition
    from kcoord_wire.central.fetcher import Record

EXAMPLES: Final = """\
examples:
  kcoord central consume --bootstrap 127.0.0.1:9092 --group billing --topics orders,payments
  kcoord central consume --bootstrap b1:9092,b2:9092 --group audit --whitelist 'ord.*' --format json
  kcoord central consume --bootstrap b1:9092 --group tools --blacklist 'test-.*' --from largest --max-records 100
      topics that are created later and match a wildcard are consumed, too

a line for each record: TOPIC PARTITION OFFSET VALUE; and, after "#", for each new assignment
a partition is named BROKER-NUMBER
Ctrl-C and SIGTERM end with the draft's shutdown: after the next ping, with auto-commit after the one that follows
"""


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to those of `kcoord central`."""
    about = "consume topics as a member of a group, whose coordinator assigns the partitions"
    command = add_command(commands, "consume", about, _run, examples=EXAMPLES)
    command.add_argument(
        "--bootstrap",
        required=True,
        type=argument(_addresses),
        metavar="HOST:PORT,...",
        help="brokers to ask for the coordinator, in turn",
    )
    command.add_argument("--group", required=True, help="the group")
    command.add_argument("--consumer-id", default="", help="unique in the group (default: host, process and a number)")
    topics = command.add_mutually_exclusive_group(required=True)
    topics.add_argument("--topics", metavar="NAME,...", help="topics to consume")
    topics.add_argument("--whitelist", metavar="PATTERN", help="consume every topic that matches")
    topics.add_argument("--blacklist", metavar="PATTERN", help="consume every topic that does not match")
    command.add_argument(
        "--streams",
        type=argument(parse_positive),
        default=1,
        metavar="N",
        help="threads of this consumer that partitions are assigned to, of each topic (default: %(default)s)",
    )
    command.add_argument(
        "--session-timeout-ms",
        type=argument(parse_positive),
        default=6_000,
        metavar="MS",
        help="of the session with the coordinator; after as much silence it looks for another (default: %(default)s)",
    )
    command.add_argument(
        "--from",
        dest="reset",
        choices=("smallest", "largest"),
        default="smallest",
        help="where to begin without a committed offset, or with one out of range (default: %(default)s)",
    )
    command.add_argument("--no-auto-commit", action="store_true", help="report no offsets to the coordinator")
    command.add_argument(
        "--no-epoch",
        action="store_true",
        help="send the draft's own bytes: a coordinator that was replaced is not recognised",
    )
    command.add_argument(
        "--max-records", type=argument(parse_positive), metavar="N", help="shut down after so many records"
    )
    command.add_argument("--format", choices=("text", "json"), default="text", help="default: %(default)s")


def _addresses(text: str) -> list[tuple[str, int]]:
    found = [parse_address(each) for each in text.split(",")]
    if not all(host and port for host, port in found):
        raise ValueError(f"{text!r} is not of the form HOST:PORT,...")
    return found


def _run(args: argparse.Namespace) -> None:
    """Consume until a signal comes, or the records are enough.

    :raises UsageError: these are not topics, or the coordinator would refuse the group or the consumer id
    :raises ValueError: the session timeout does not fit into its message
    :raises KeyboardInterrupt: after Ctrl-C, when the consumer has ended
    """
    log_to_stderr()
    if asyncio.run(_consume(_settings(args), args.format, args.max_records)) == signal.SIGINT:
        raise KeyboardInterrupt


def _settings(args: argparse.Namespace) -> ConsumerSettings:
    from kcoord_wire.central.draft.events import ConsumerSettings
    from kcoord_wire.kernel.machines import BrokerAddress
    from kcoord_wire.zookeeper.layout import LONGEST_NAME, is_node_name

    consumer_id = args.consumer_id or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    for option, name in (("--group", args.group), ("--consumer-id", consumer_id)):
        if not is_node_name(name):
            raise UsageError(f"{option}: {name[:LONGEST_NAME]!r} cannot be the name of a node in ZooKeeper")
    return ConsumerSettings(
        group_id=args.group,
        consumer_id=consumer_id,
        topic_count=_topic_count(args),
        # The ids come with the first answer; until then each broker has one that none can have.
        bootstrap=tuple(BrokerAddress(-2 - index, *address) for index, address in enumerate(args.bootstrap)),
        auto_commit=not args.no_auto_commit,
        auto_offset_reset=args.reset,
        session_timeout_ms=args.session_timeout_ms,
        is_fenced=not args.no_epoch,
    )


def _topic_count(args: argparse.Namespace) -> str:
    from kcoord_wire.central.draft.subscription import format_topics, format_wildcard, parse_topic_count

    if args.topics is not None:
        text = format_topics(dict.fromkeys(args.topics.split(","), args.streams))
    else:
        is_blacklist = args.blacklist is not None
        pattern = args.blacklist if is_blacklist else args.whitelist
        text = format_wildcard(pattern, args.streams, is_blacklist=is_blacklist)
    try:
        parse_topic_count(text)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return text


async def _consume(settings: ConsumerSettings, form: str, most: int | None) -> int:
    """Print records; return the signal that has ended it, 0 for none."""
    from kcoord_wire.central.client import CentralConsumer

    loop = asyncio.get_running_loop()
    received = 0

    def stop(number: int) -> None:
        nonlocal received
        received = number
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)
        consumer.shutdown()
        with suppress(OSError):  # stderr may be a pipe that is closed
            print("waits for the coordinator's next ping; a second signal kills", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(1, "printer") as thread:
        printer = _Printer(form, thread)
        consumer = CentralConsumer(settings, on_assigned=printer.assigned)
        async with consumer:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, partial(stop, number))
            count = 0
            async for record in consumer:
                await loop.run_in_executor(thread, printer.record, record)
                count += 1
                if count == most:
                    consumer.shutdown()
    return received


class _Printer:
    """Writes lines in one thread, in order.

    :param form: text or json
    """

    def __init__(self, form: str, thread: ThreadPoolExecutor) -> None:
        self._is_json = form == "json"
        self._thread = thread
        self._newest: frozenset[Partition] | None = None  # that is not written yet

    def record(self, record: Record) -> None:
        """Write a record."""
        topic, name = record.partition
        value = record.value.decode("utf-8", "backslashreplace")
        if self._is_json:
            fields = {"topic": topic, "partition": name, "offset": record.offset, "value": value}
            _write_json("record", **fields, thread=record.thread)
        else:
            print(topic, name, record.offset, printable(value), flush=True)

    def assigned(self, partitions: frozenset[Partition]) -> None:
        """Write an assignment soon; one at most waits, so that a stdout that takes nothing costs no memory."""
        is_idle, self._newest = self._newest is None, partitions
        if is_idle:
            self._thread.submit(self._write_newest)

    def _write_newest(self) -> None:
        newest, self._newest = self._newest, None
        self._write_assignment(sorted(newest or ()))

    def _write_assignment(self, partitions: Iterable[Partition]) -> None:
        names = [f"{topic}/{name}" for topic, name in partitions]
        if self._is_json:
            _write_json("assigned", partitions=names)
        else:
            print("# assigned:", *map(printable, names) if names else ("none",), flush=True)


def _write_json(kind: str, **fields: Any) -> None:
    json.dump({"type": kind, **fields}, sys.stdout)
    print(flush=True)
