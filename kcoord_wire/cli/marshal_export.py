"""`kcoord marshal export-offsets`: writes a group's positions as the committed offsets of a consumer group.

It is the way out: a consumer group of Kafka of that name goes on where the group of Marshal has ended.

Laws:

* What is written is where a member of Marshal would go on (`topics.choose_start`): the position in the log, else the
  group's committed offset, never outside of what the partition has.
* A consumer group with members is never written to: Kafka refuses that. A group of Marshal that still holds partitions
  is not exported without ``--force-live``, because its positions go on.
* What was written is read back and shown.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kcoord_wire.cli.arguments import UsageError, add_command
from kcoord_wire.cli.marshal_cluster import (
    add_cluster_arguments,
    add_rules_argument,
    check_option_id,
    observers_of,
    open_log,
    open_positions,
)
from kcoord_wire.cli.marshal_status import read_positions
from kcoord_wire.cli.output import print_json, print_table, styled, table

if TYPE_CHECKING:
    from kcoord_wire.marshal.context import TopicPartition
    from kcoord_wire.marshal.kafka_topics import KafkaPositions
    from kcoord_wire.marshal.status import PartitionStatus

EXAMPLES: Final = """\
examples:
  kcoord marshal export-offsets billing --brokers 127.0.0.1:9092 --dry-run
  kcoord marshal export-offsets billing --brokers 127.0.0.1:9092 --to-group billing-v2 --topic orders

stop the members first; then consumers with group.id=billing go on exactly there
"""


class Exported(NamedTuple):
    """An offset that is written.

    :ivar note: why it is not the position; empty if it is
    """

    place: TopicPartition
    offset: int
    source: str
    note: str


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to those of `kcoord marshal`."""
    about = "write a group's positions as the committed offsets of a consumer group: the way out"
    command = add_command(commands, "export-offsets", about, _run, examples=EXAMPLES)
    command.add_argument("group", metavar="GROUP", help="the group of Marshal")
    add_cluster_arguments(command)
    add_rules_argument(command)
    command.add_argument("--to-group", metavar="NAME", help="the consumer group (default: the same name)")
    command.add_argument("--topic", action="append", metavar="NAME", help="this topic only; may be repeated")
    command.add_argument("--force-live", action="store_true", help="also while members hold partitions")
    command.add_argument("--dry-run", action="store_true", help="print what would be written, and write nothing")
    command.add_argument("--json", action="store_true", help="print a JSON object")


def _run(args: argparse.Namespace) -> None:
    """Export.

    :raises UsageError: the group id cannot be in a message
    :raises ValueError: nothing is known of the group, it is live, or the consumer group has members
    :raises LogError: the coordination topic cannot be read
    :raises TopicsError: offsets cannot be read, or were not committed
    """
    check_option_id("GROUP", args.group)
    target = args.group if args.to_group is None else args.to_group
    if not target:
        raise UsageError("--to-group: the name is empty")
    kafka = open_positions(args)
    rows = _rows(args, kafka)
    _check_quiet(args, rows, target, kafka.live_members(target))
    found = _exported(kafka, rows)
    if not found:
        raise ValueError(f"no position of group {args.group} is known, by the log or in Kafka")
    before = kafka.committed(target)
    if not args.dry_run:
        kafka.commit(target, {each.place: each.offset for each in found})
    after = {} if args.dry_run else kafka.committed(target)
    _print(args, target, found, before, after)


def _check_quiet(args: argparse.Namespace, rows: list[PartitionStatus], target: str, members: list[str]) -> None:
    """Raise ValueError if somebody would go on from other positions, or Kafka would refuse them."""
    holders = sorted({row.client_id for row in rows if row.is_held})
    if holders and not args.force_live:
        raise ValueError(f"group {args.group} still runs, stop it first (or --force-live): {', '.join(holders[:5])}")
    if members:
        names = ", ".join(members[:5])
        raise ValueError(f"consumer group {target} has members, and Kafka takes offsets of one without: {names}")


def _rows(args: argparse.Namespace, kafka: KafkaPositions) -> list[PartitionStatus]:
    from kcoord_wire.marshal.hosting import LogReader, wall_ms
    from kcoord_wire.marshal.status import status_of

    with open_log(args) as log:
        observers = observers_of(args, log.partitions, [args.rules])
        LogReader(log, observers).read_to_end()
    positions = read_positions(kafka, observers[0], args.group)
    rows = status_of(observers[0], wall_ms(), positions, args.group).partitions
    return [row for row in rows if not args.topic or row.place.topic in args.topic]


def _exported(kafka: KafkaPositions, rows: list[PartitionStatus]) -> list[Exported]:
    from kcoord_wire.marshal.context import TopicPartition
    from kcoord_wire.marshal.inbox import choose_start

    known = [row for row in rows if row.position is not None]
    bounds = kafka.bounds([TopicPartition(row.place.topic, row.place.partition) for row in known])
    found = []
    for row in known:
        place = TopicPartition(row.place.topic, row.place.partition)
        if row.position is not None and (has := bounds.get(place)) is not None:
            from_log = row.position if row.position_from == "log" else 0
            start = choose_start(from_log, row.position, has.low, has.end)
            found.append(Exported(place, start.offset, row.position_from, start.note))
    return found


def _print(
    args: argparse.Namespace,
    target: str,
    found: list[Exported],
    before: dict[TopicPartition, int],
    after: dict[TopicPartition, int],
) -> None:
    if args.json:
        offsets = [
            {
                "topic": each.place.topic,
                "partition": each.place.partition,
                "offset": each.offset,
                "source": each.source,
                "before": before.get(each.place),
                "committed": after.get(each.place),
                "note": each.note or None,
            }
            for each in found
        ]
        print_json({"group_id": args.group, "to_group": target, "dry_run": args.dry_run, "offsets": offsets})
        return
    verb = "would be written" if args.dry_run else "committed now"
    made = table(f"consumer group {target}", "partition", "position", "of", "committed before", verb, "note")
    for each in found:
        now = each.offset if args.dry_run else after.get(each.place)
        numbers = [str(each.offset), each.source, str(before.get(each.place, "-")), str(now)]
        made.add_row(styled(f"{each.place.topic}/{each.place.partition}"), *numbers, styled(each.note))
    print_table(made)
