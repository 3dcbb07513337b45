"""`kcoord marshal set-position`: sets where a group goes on, while it is paused.

Laws:

* An offset that a partition does not have is refused before anything is written, with what it has.
* Each partition is reported as set or kept; if one is not set, the status is 1, and 130 after Ctrl-C.
* The first Ctrl-C or SIGTERM gives everything back, unless the new positions are being written. After a second one the
  group goes on by itself, when the pause and the claims have run out.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kcoord_wire.cli.arguments import UsageError, add_command, argument, parse_seconds
from kcoord_wire.cli.marshal_cluster import (
    add_cluster_arguments,
    add_rules_argument,
    check_option_id,
    observers_of,
    open_log,
    open_positions,
)
from kcoord_wire.cli.marshal_pause import admin_settings, parse_time
from kcoord_wire.cli.output import print_json, print_table, styled, table
from kcoord_wire.cli.process import stop_on_signals
from kcoord_wire.codec.fields import printable

if TYPE_CHECKING:
    from kcoord_wire.marshal.admin import Finished, Progressed
    from kcoord_wire.marshal.context import TopicPartition
    from kcoord_wire.marshal.kafka_topics import KafkaPositions
    from kcoord_wire.marshal.log import Log
    from kcoord_wire.marshal.observer import Observer

EXAMPLES: Final = """\
examples:
  kcoord marshal set-position billing --brokers 127.0.0.1:9092 --topic orders --to earliest
  kcoord marshal set-position billing --brokers 127.0.0.1:9092 --topic orders --to 2026-11-22T06:00:00Z --dry-run
  kcoord marshal set-position billing --brokers 127.0.0.1:9092 --file positions.json
      the file has an object of topics, each an object of partitions: {"orders": {"0": 1200, "3": 77}}

all members of the group are paused meanwhile; one that goes on, as those of the Go library since May 2017, is named,
and nothing is set
"""

PARTITION: Final = re.compile("0|[1-9][0-9]{0,8}")


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to those of `kcoord marshal`."""
    command = add_command(commands, "set-position", "set where a group goes on", _run, examples=EXAMPLES)
    command.add_argument("group", metavar="GROUP", help="the group")
    add_cluster_arguments(command)
    add_rules_argument(command)
    command.add_argument("--topic", metavar="NAME", help="all partitions of this topic")
    command.add_argument("--to", metavar="WHERE", help="earliest, latest, an offset, or a time in ISO 8601")
    command.add_argument("--file", type=Path, metavar="PATH", help="offsets of single partitions, as JSON")
    command.add_argument(
        "--wait",
        type=argument(parse_seconds),
        default=0.0,
        metavar="SECONDS",
        help="that members may take to release their partitions (default: three heartbeat intervals)",
    )
    command.add_argument("--dry-run", action="store_true", help="print what would be set, and write nothing")
    command.add_argument("--json", action="store_true", help="print a JSON object")


def _run(args: argparse.Namespace) -> None:
    """Set positions.

    :raises UsageError: the options do not go together
    :raises ValueError: the file is no such object, a partition does not exist, or does not have the offset
    :raises LogError: the coordination topic cannot be used, or the positions were not set
    :raises TopicsError: offsets cannot be read
    :raises KeyboardInterrupt: after Ctrl-C, when everything is given back
    """
    from kcoord_wire.marshal.hosting import LogReader
    from kcoord_wire.marshal.log import LogError

    check_option_id("GROUP", args.group)
    if (args.file is None) == (args.topic is None) or (args.topic is None) != (args.to is None):
        raise UsageError("either --topic and --to, or --file")
    kafka = open_positions(args)
    wanted = _from_file(args.file) if args.file else _from_topic(kafka, args.topic, args.to)
    _check_bounds(kafka, wanted)
    with open_log(args) as log:
        [observer] = observers_of(args, log.partitions, [args.rules])
        LogReader(log, [observer]).read_to_end()
        if args.dry_run:
            _print_plan(args, observer, kafka.committed(args.group), wanted)
            return
        received = stop_on_signals(lambda: None, "gives back what it holds")
        finished = _set(args, log, kafka, wanted, received)
    _print_result(args, finished)
    if finished.failure and signal.SIGINT not in received:
        raise LogError(f"group {args.group}: {finished.failure}")
    if finished.failure:
        raise KeyboardInterrupt


def _from_file(path: Path) -> dict[TopicPartition, int]:
    from kcoord_wire.marshal.context import TopicPartition

    try:
        topics = json.loads(path.read_text("utf-8"), object_pairs_hook=_unique)
        pairs = [(topic, each, offset) for topic, partitions in topics.items() for each, offset in partitions.items()]
    except (ValueError, AttributeError):
        raise ValueError(f'{path}: it has no object such as {{"orders": {{"0": 1200}}}}') from None
    for topic, partition, offset in pairs:
        if not PARTITION.fullmatch(partition) or type(offset) is not int or offset < 0:
            raise ValueError(f"{path}: {topic}: {partition!r}: {offset!r} is no partition with an offset")
    if not pairs:
        raise ValueError(f"{path}: it names no partition")
    return {TopicPartition(topic, int(partition)): offset for topic, partition, offset in pairs}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON. ValueError: it has a name twice, of which Python would take the last."""
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a name is there twice")
    return found


def _from_topic(kafka: KafkaPositions, topic: str, to: str) -> dict[TopicPartition, int]:
    from kcoord_wire.marshal.context import TopicPartition

    count = kafka.counts([topic]).get(topic, 0)
    if not count:
        raise ValueError(f"the cluster has no topic {topic}")
    places = [TopicPartition(topic, partition) for partition in range(count)]
    if to.isdecimal():
        return dict.fromkeys(places, int(to))
    if to in ("earliest", "latest"):
        return kafka.resolve(places, to)
    try:
        return kafka.resolve(places, parse_time(to))
    except ValueError:
        raise UsageError(f"--to: {to!r} is neither earliest, latest, an offset nor a time in ISO 8601") from None


def _check_bounds(kafka: KafkaPositions, wanted: Mapping[TopicPartition, int]) -> None:
    bounds = kafka.bounds(list(wanted))
    wrong = []
    for place, offset in wanted.items():
        has = bounds.get(place)
        if has is None:
            wrong.append(f"{place.topic}-{place.partition} does not exist")
        elif not has.low <= offset <= has.end:
            wrong.append(f"{place.topic}-{place.partition} has no offset {offset}: it has {has.low} to {has.end}")
    if wrong:
        raise ValueError("; ".join(wrong[:3]) + (f"; and {len(wrong) - 3} others" if wrong[3:] else ""))


def _set(
    args: argparse.Namespace,
    log: Log,
    kafka: KafkaPositions,
    wanted: Mapping[TopicPartition, int],
    received: Sequence[int],
) -> Finished:
    from kcoord_wire.marshal.admin import PositionSetter
    from kcoord_wire.marshal.hosting import run_admin
    from kcoord_wire.marshal.state import Rules

    settings = admin_settings(args, log.partitions, rules=Rules(args.rules), wait_ms=round(args.wait * 1000))
    return run_admin(
        PositionSetter(settings, wanted),
        log,
        commit=lambda offsets: kafka.commit(args.group, offsets),
        progress=_Progress().show,
        is_interrupted=lambda: bool(received),
    )


class _Progress:
    """Lines on stderr, each once."""

    def __init__(self) -> None:
        self._last = ""

    def show(self, progress: Progressed) -> None:
        """Write what is new."""
        line = f"{progress.step}: {progress.done} of {progress.of}"
        if progress.waiting_for:
            line += f", still held by {progress.waiting_for}"
        if line != self._last:
            self._last = line
            print(printable(line), file=sys.stderr, flush=True)


# ---- results


def _print_plan(
    args: argparse.Namespace,
    observer: Observer,
    committed: Mapping[TopicPartition, int],
    wanted: Mapping[TopicPartition, int],
) -> None:
    from kcoord_wire.marshal.state import Place

    rows = []
    for place, new in sorted(wanted.items()):
        claim = observer.world.claims.get(Place(args.group, *place))
        old = claim.current_offset if claim is not None and claim.current_offset > 0 else committed.get(place)
        rows.append((place, old, new, "would be set"))
    _print_rows(args, rows, {"dry_run": True})


def _print_result(args: argparse.Namespace, finished: Finished) -> None:
    rows = [(each.place, each.old or None, each.new, str(each.result)) for each in finished.positions]
    more = {"failure": finished.failure or None, "paused_until_ms": finished.paused_until or None}
    _print_rows(args, rows, more)


def _print_rows(
    args: argparse.Namespace, rows: Sequence[tuple[TopicPartition, int | None, int, str]], more: Mapping[str, Any]
) -> None:
    if args.json:
        names = ("topic", "partition", "old", "new", "result")
        positions = [dict(zip(names, (*place, *rest), strict=True)) for place, *rest in rows]
        print_json({"group_id": args.group, "positions": positions, **more})
        return
    made = table(f"group {args.group}", "partition", "old", "new", "result")
    for place, old, new, result in rows:
        made.add_row(
            styled(f"{place.topic}/{place.partition}"), "unknown" if old is None else str(old), str(new), result
        )
    print_table(made)
