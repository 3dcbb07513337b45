"""`kcoord marshal consume`: a member of a group that coordinates through a topic; it prints its records.

Laws:

* At least once: a record is processed when its line has been written to stdout and flushed. At most once: its batch was
  committed before.
* A stdout that takes nothing holds up the records, not the heartbeats; after ``--max-poll-interval`` everything is
  released.
* The first Ctrl-C or SIGTERM ends the iteration and releases what is held, or keeps it with ``--keep-claims``; the
  status is then 130 or 0. The second kills at once, and others wait for two heartbeat intervals.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

from kcoord_wire.cli.arguments import UsageError, add_command, argument, parse_positive, parse_seconds
from kcoord_wire.cli.marshal_cluster import add_cluster_arguments, add_rules_argument, check_option_id
from kcoord_wire.cli.process import log_to_stderr, stop_on_signals
from kcoord_wire.codec.fields import printable

if TYPE_CHECKING:
    from kcoord_wire.marshal.client import MarshalConsumer
    from kcoord_wire.marshal.events import Tenure, Why
    from kcoord_wire.marshal.inbox import DataRecord

EXAMPLES: Final = """\
examples:
  kcoord marshal consume --brokers 127.0.0.1:9092 --group billing --client-id billing-1 --topics orders,payments
  kcoord marshal consume --brokers b1:9092,b2:9092 --group audit --client-id a1 --topics orders --at-most-once --json
  kcoord marshal consume --brokers b1:9092 --group g --client-id c1 --topics orders --presence --balance \\
      --setting security.protocol=SASL_SSL --setting sasl.mechanism=SCRAM-SHA-256

a line for each record: TOPIC PARTITION OFFSET TOKEN VALUE; and, after "#", for each partition that is gained or lost
TOKEN is a fencing token: it grows with every holder of the partition
all members of a topic must have the same --heartbeat-interval; the Go library has 60
"""


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to those of `kcoord marshal`."""
    about = "consume topics as a member of a group, which claims partitions in the coordination topic"
    command = add_command(commands, "consume", about, _run, examples=EXAMPLES)
    add_cluster_arguments(command)
    add_rules_argument(command)
    command.add_argument("--group", required=True, help="the group")
    command.add_argument("--client-id", required=True, help="unique in the group, and the same after a restart")
    command.add_argument("--topics", required=True, metavar="NAME,...", help="topics to consume")
    command.add_argument("--at-most-once", action="store_true", help="commit each batch before it is printed")
    command.add_argument(
        "--max-claims", type=argument(parse_positive), metavar="N", help="partitions of each topic at most"
    )
    command.add_argument("--greedy", action="store_true", help="claim all free partitions at once, not one by one")
    command.add_argument(
        "--presence", action="store_true", help="be visible to others before anything is held (an extension)"
    )
    command.add_argument(
        "--balance", action="store_true", help="hand partitions over to members with fewer; needs --presence"
    )
    command.add_argument("--keep-claims", action="store_true", help="at the end, keep the claims for a restart")
    command.add_argument(
        "--create-topic",
        type=argument(parse_positive),
        metavar="PARTITIONS",
        help="create the coordination topic if it is missing, with settings that keep claims",
    )
    command.add_argument("--max-records", type=argument(parse_positive), metavar="N", help="end after so many records")
    command.add_argument(
        "--max-poll-interval",
        type=argument(parse_seconds),
        default=300.0,
        metavar="SECONDS",
        help="release everything when stdout takes nothing for so long (default: %(default)s)",
    )
    command.add_argument("--json", action="store_true", help="print JSON lines")


def _run(args: argparse.Namespace) -> None:
    """Consume until a signal comes, or the records are enough.

    :raises UsageError: options do not go together, or an id cannot be used
    :raises LogError: the coordination topic is not there, or no broker answers
    :raises TopicsError: a topic is not there, or cannot be read
    :raises KeyboardInterrupt: after Ctrl-C, when the consumer has ended
    """
    if args.balance and not args.presence:
        raise UsageError("--balance needs --presence")
    printer = _JsonPrinter() if args.json else _Printer()
    consumer = _consumer(args, printer)
    received = stop_on_signals(consumer.stop, "releases what it holds")
    try:
        for count, record in enumerate(consumer, 1):
            printer.record(record)
            if count == args.max_records:
                consumer.processed(record)
                break
    finally:
        consumer.close(keep_claims=args.keep_claims)
    if received == [signal.SIGINT]:
        raise KeyboardInterrupt


def _consumer(args: argparse.Namespace, printer: _Printer) -> MarshalConsumer:
    from kcoord_wire.marshal.client import MarshalConsumer
    from kcoord_wire.marshal.events import Balance, Delivery
    from kcoord_wire.marshal.kafka_log import KafkaLog, check_topic, create_topic
    from kcoord_wire.marshal.kafka_topics import KafkaTopics
    from kcoord_wire.marshal.state import Rules

    for option, value in (("--group", args.group), ("--client-id", args.client_id)):
        check_option_id(option, value)
    topics = [topic for topic in args.topics.split(",") if topic]
    if not topics:
        raise UsageError("--topics names no topic")
    if args.coordination_topic in topics:
        raise UsageError(f"--topics: {args.coordination_topic} is the coordination topic, which members read anyway")
    config = dict(args.setting)
    interval_ms = args.heartbeat_interval * 1_000
    where = (args.brokers, args.coordination_topic)
    if args.create_topic:
        create_topic(*where, args.create_topic, heartbeat_interval_ms=interval_ms, config=config)
    for warning in check_topic(*where, heartbeat_interval_ms=interval_ms, config=config):
        print(f"warning: {warning}", file=sys.stderr)
    log = KafkaLog(args.brokers, args.coordination_topic, config)
    try:
        data = KafkaTopics(args.brokers, args.group, topics, config)
    except BaseException:
        log.close()
        raise
    log_to_stderr()  # not before: until here each error is raised, and librdkafka would repeat it many times
    return MarshalConsumer(
        log,
        data,
        group_id=args.group,
        client_id=args.client_id,
        topics=topics,
        on_gained=printer.gained,
        on_lost=printer.lost,
        max_poll_interval_ms=round(args.max_poll_interval * 1_000),
        rules=Rules(args.rules),
        delivery=Delivery.AT_MOST_ONCE if args.at_most_once else Delivery.AT_LEAST_ONCE,
        heartbeat_interval_ms=interval_ms,
        max_claims=args.max_claims or 0,
        greedy=args.greedy,
        presence=args.presence,
        balance=Balance() if args.balance else None,
    )


class _Printer:
    """Writes lines for people."""

    def record(self, record: DataRecord) -> None:
        """Write a record."""
        print(record.topic, record.partition, record.offset, record.token, printable(_text(record.value)), flush=True)

    def gained(self, tenure: Tenure) -> None:
        """Write that a partition is held."""
        print(f"# gained {tenure.topic}/{tenure.partition} token {tenure.token}", flush=True)

    def lost(self, tenure: Tenure, why: Why) -> None:
        """Write that it is not held any more."""
        print(f"# lost {tenure.topic}/{tenure.partition} token {tenure.token}: {why}", flush=True)


class _JsonPrinter(_Printer):
    """Writes a JSON object a line."""

    def record(self, record: DataRecord) -> None:
        """Write a record."""
        fields = {"offset": record.offset, "timestamp": record.time_ms}
        key = None if record.key is None else _text(record.key)
        value = None if record.value is None else _text(record.value)
        _write("record", record.tenure, **fields, key=key, value=value)

    def gained(self, tenure: Tenure) -> None:
        """Write that a partition is held."""
        _write("gained", tenure)

    def lost(self, tenure: Tenure, why: Why) -> None:
        """Write that it is not held any more."""
        _write("lost", tenure, why=why)


def _text(data: bytes | None) -> str:
    return "-" if data is None else data.decode("utf-8", "backslashreplace")


def _write(kind: str, tenure: Tenure, **fields: Any) -> None:
    json.dump({"type": kind, **tenure._asdict(), **fields}, sys.stdout)
    print(flush=True)
