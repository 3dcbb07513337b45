"""What the commands of `kcoord marshal` share: the arguments that name a cluster and its coordination topic."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kcoord_wire.cli.arguments import UsageError, add_settings_argument, argument, parse_positive

if TYPE_CHECKING:
    from kcoord_wire.marshal.kafka_log import KafkaLog
    from kcoord_wire.marshal.kafka_topics import KafkaPositions
    from kcoord_wire.marshal.observer import Observer

LONGEST_SECONDS = 86_400


def add_cluster_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments that name the cluster."""
    command.add_argument(
        "--brokers", required=True, type=argument(parse_brokers), metavar="HOST:PORT,...", help="brokers of the cluster"
    )
    command.add_argument(
        "--coordination-topic", default="__marshal", metavar="NAME", help="of the claims (default: %(default)s)"
    )
    command.add_argument(
        "--heartbeat-interval",
        type=argument(parse_whole_seconds),
        default=60,
        metavar="SECONDS",
        help="that of the members, in whole seconds; the Go library has 60 (default: %(default)s)",
    )
    add_settings_argument(command, "--setting", "mainly for security")


def add_rules_argument(command: argparse.ArgumentParser, *more: str) -> None:
    """Add ``--rules``.

    :param more: choices beside the two rule sets
    """
    command.add_argument(
        "--rules",
        choices=("document", "library", *more),
        default="document",
        help="who judges claims; library where members of the Go library are in the group (default: %(default)s)",
    )


def parse_brokers(text: str) -> str:
    """Addresses of brokers, with commas. ValueError: there is none."""
    if not text.strip(", "):
        raise ValueError("no address of a broker is given")
    return text


def parse_whole_seconds(text: str) -> int:
    """Whole seconds from 1 up to a day. ValueError: not such a number."""
    seconds = parse_positive(text)
    if seconds > LONGEST_SECONDS:
        raise ValueError(f"{text} s is longer than a day")
    return seconds


def check_option_id(option: str, value: str) -> str:
    """Return an id that messages can hold.

    :param option: names it in the error
    :raises UsageError: it is empty, or has a "/"
    """
    from kcoord_wire.errors import EncodeError
    from kcoord_wire.marshal.values import check_id

    try:
        return check_id(option, value)
    except EncodeError as error:
        raise UsageError(str(error)) from None


@contextmanager
def open_log(args: argparse.Namespace) -> Iterator[KafkaLog]:
    """Open the coordination topic.

    :raises LogError: it is not there, or no broker answers
    """
    from kcoord_wire.marshal.kafka_log import KafkaLog

    log = KafkaLog(args.brokers, args.coordination_topic, dict(args.setting))
    try:
        yield log
    finally:
        log.close()


def open_positions(args: argparse.Namespace) -> KafkaPositions:
    """Return the questions to the cluster."""
    from kcoord_wire.marshal.kafka_topics import KafkaPositions

    return KafkaPositions(args.brokers, dict(args.setting))


def observers_of(args: argparse.Namespace, partitions: int, rules: Sequence[str]) -> list[Observer]:
    """Return observers of a log, one of each rule set."""
    from kcoord_wire.marshal.machine import WorldState
    from kcoord_wire.marshal.observer import Observer
    from kcoord_wire.marshal.state import Rules

    return [Observer(WorldState(Rules(each), args.heartbeat_interval, partitions)) for each in rules]
