"""`kcoord marshal status` and `watch`: who holds which partition, and why each partition is where it is.

Laws:

* Both read the coordination topic, the ends of the partitions and the committed offsets, and write nothing.
* With ``--rules both`` the partitions on which the two rule sets do not agree are listed, each with both sentences and
  the entry since which readers see it differently (`marshal.observer`).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from kcoord_wire.cli.arguments import add_command, argument, parse_positive, parse_seconds
from kcoord_wire.cli.marshal_cluster import (
    add_cluster_arguments,
    add_rules_argument,
    observers_of,
    open_log,
    open_positions,
)
from kcoord_wire.cli.output import print_json, print_table, styled, table
from kcoord_wire.codec.fields import printable

if TYPE_CHECKING:
    from kcoord_wire.marshal.kafka_topics import KafkaPositions
    from kcoord_wire.marshal.log import Log
    from kcoord_wire.marshal.observer import Divergence, Observer
    from kcoord_wire.marshal.state import Place
    from kcoord_wire.marshal.status import MemberStatus, PartitionStatus, Positions, Status

EXAMPLES: Final = """\
examples:
  kcoord marshal status --brokers 127.0.0.1:9092
  kcoord marshal status --brokers 127.0.0.1:9092 --group billing --rules both
  kcoord marshal status --brokers 127.0.0.1:9092 --json | jq '.document.partitions[] | select(.situation != "held")'
  kcoord marshal watch --brokers 127.0.0.1:9092 --group billing --every 5
"""
STYLES: Final = {"held": "green", "stale": "red", "no member": "red", "client id reused": "red", "ahead": "red"}
RIGHT_MS: Final = 100  # for people
CLEAR: Final = "\x1b[H\x1b[2J"


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the commands to those of `kcoord marshal`."""
    status = "who holds which partition, since when, how far behind, and why each is where it is"
    watch = "the status, again and again until Ctrl-C"
    for name, about in (("status", status), ("watch", watch)):
        command = add_command(commands, name, about, _run, examples=EXAMPLES)
        add_cluster_arguments(command)
        add_rules_argument(command, "both")
        command.add_argument("--group", help="of this group only")
        command.add_argument("--json", action="store_true", help="print a JSON object")
        if name == "watch":
            command.add_argument(
                "--every", type=argument(parse_seconds), default=2.0, metavar="SECONDS", help="default: %(default)s"
            )
            command.add_argument("--times", type=argument(parse_positive), metavar="N", help="end after so many")
        else:
            command.set_defaults(every=0.0, times=1)  # in watch the option would take it for its default


def _run(args: argparse.Namespace) -> None:
    """Print the state.

    :raises LogError: the coordination topic cannot be read
    :raises TopicsError: offsets cannot be read
    """
    from kcoord_wire.marshal.hosting import LogReader, wall_ms
    from kcoord_wire.marshal.status import status_of

    rules = ("document", "library") if args.rules == "both" else (args.rules,)
    with open_log(args) as log:
        observers = observers_of(args, log.partitions, rules)
        reader, kafka = LogReader(log, observers), open_positions(args)
        count = 0
        while True:
            reader.read_to_end()
            now_ms = wall_ms()  # before the questions to Kafka, which take a while: heartbeats go on meanwhile
            positions = read_positions(kafka, observers[0], args.group)
            begun = _begun(log, args.heartbeat_interval) if len(rules) > 1 else {}
            _print([status_of(each, now_ms, positions, args.group) for each in observers], begun, args)
            count += 1
            if count == args.times:
                return
            time.sleep(args.every)


def read_positions(kafka: KafkaPositions, observer: Observer, group: str | None) -> Positions:
    """Return what Kafka has for the groups and topics of a log.

    :raises TopicsError: a group's coordinator does not answer, or refuses
    """
    from kcoord_wire.marshal.context import TopicPartition
    from kcoord_wire.marshal.state import Place
    from kcoord_wire.marshal.status import Positions

    about = {(place.group_id, place.topic) for place in observer.world.claims} | observer.world.members.keys()
    about = {(each, topic) for each, topic in about if topic and group in (None, each)}
    counts = kafka.counts(sorted({topic for _, topic in about}))
    places = [TopicPartition(topic, partition) for topic, number in counts.items() for partition in range(number)]
    ends = {(topic, partition): bounds.end for (topic, partition), bounds in kafka.bounds(places).items()}
    committed = {
        Place(each, *place): offset
        for each in sorted({each for each, _ in about})
        for place, offset in kafka.committed(each).items()
    }
    return Positions(counts, ends, committed)


def _begun(log: Log, interval_s: int) -> dict[Place, Divergence]:
    """Return the entry after which two readers first see a place as they see it now, where they do not agree.

    The readers are one by the rules of the document, a Go client that was always there, and one that starts now.
    """
    from kcoord_wire.marshal.hosting import LogReader, wall_ms
    from kcoord_wire.marshal.observer import Read, Reader, diverging
    from kcoord_wire.marshal.state import Rules

    reads = (Read(entry, entry.time_ms // 1000) for entry in LogReader(log, []).entries())
    late = Reader("a Go client that starts now", Rules.LIBRARY, wall_ms() // 1000)
    readers = [Reader("the document", Rules.DOCUMENT), Reader("a Go client that was there", Rules.LIBRARY), late]
    return {each.place: each for each in diverging(reads, readers, log.partitions, interval_s)}


def _print(found: Sequence[Status], begun: Mapping[Place, Divergence], args: argparse.Namespace) -> None:
    if args.json:
        print_json({str(each.rules): status_to_json(each) for each in found} | _diverging_to_json(found, begun))
        return
    if args.every and sys.stdout.isatty():
        print(CLEAR, end="")
    for each in found:
        if len(found) > 1:
            print(f"by the rules of the {each.rules}", end="\n\n")
        _print_tables(each)
    if len(found) > 1:
        _print_diverging(_diverging(found), begun)
    sys.stdout.flush()


# ---- for programs


def status_to_json(status: Status) -> dict[str, Any]:
    """Return a status as plain data; times are ms since the Unix epoch, what is not known is null."""
    return {
        "now_ms": status.now_ms,
        "partitions": [_row_to_json(row) for row in status.partitions],
        "members": [asdict(member) | {"is_admin": member.is_admin} for member in status.members],
        "paused_until_ms": status.paused_until,
        "garbage": {str(partition): asdict(each) for partition, each in status.garbage.items()},
        "cold": status.cold,
    }


def _row_to_json(row: PartitionStatus) -> dict[str, Any]:
    plain = asdict(row)
    place = plain.pop("place")
    return dict(zip(("group_id", "topic", "partition"), place, strict=True)) | plain | {"lag": row.lag}


def _diverging(found: Sequence[Status]) -> list[tuple[PartitionStatus, PartitionStatus]]:
    """Return the partitions on which two rule sets do not agree who holds them, or about the position."""
    if len(found) < 2:
        return []
    others = {row.place: row for row in found[1].partitions}
    pairs = [(row, others[row.place]) for row in found[0].partitions if row.place in others]
    return [(one, other) for one, other in pairs if _essence(one) != _essence(other)]


def _essence(row: PartitionStatus) -> tuple[object, ...]:
    return row.is_held, row.is_held and row.instance_id, row.position


def _diverging_to_json(found: Sequence[Status], begun: Mapping[Place, Divergence]) -> dict[str, Any]:
    if len(found) < 2:
        return {}
    names = [str(each.rules) for each in found]
    rows = []
    for pair in _diverging(found):
        since = begun.get(pair[0].place)
        rows.append(dict(zip(names, map(_row_to_json, pair), strict=True)) | {"since": since and str(since)})
    return {"diverging": rows}


# ---- for people


def _print_tables(status: Status) -> None:
    from kcoord_wire.marshal.status import clock_text

    if not status.partitions:
        print("no claims", end="\n\n")
    for group, until_ms in status.paused_until.items():
        print(f"group {printable(group)} is paused until {clock_text(until_ms, status.now_ms)} UTC", end="\n\n")
    if status.partitions:
        _print_partitions(status.partitions)
    if status.members:
        _print_members(status.members, status.now_ms)
    if status.garbage:
        garbage = table("skipped entries", "coordination partition", "unreadable", "misplaced", "last offset", "reason")
        for partition, each in sorted(status.garbage.items()):
            counts = (partition, each.unreadable, each.misplaced, each.offset)
            garbage.add_row(*map(str, counts), styled(each.reason))
        print_table(garbage)
    if status.cold:
        numbers = ", ".join(map(str, status.cold))
        print(f"the beginning of coordination partition {numbers} was removed: who began earlier may know more")


def _print_partitions(rows: Sequence[PartitionStatus]) -> None:
    made = table("partitions", "group", "partition", "holder", "token", "heartbeat", "position", "lag", "why (UTC)")
    for row in rows:
        holder = f"{row.client_id} ({row.instance_id})" if row.is_held else "-"
        age = "-" if row.age_ms is None else f"{row.age_ms / 1000:.0f} s, {row.freshness}"
        position = "-" if row.position is None else str(row.position)
        made.add_row(
            styled(row.place.group_id),
            styled(f"{row.place.topic}/{row.place.partition}"),
            styled(holder),
            "-" if row.token < 0 else str(row.token),
            age,
            f"{position} (committed)" if row.position_from == "committed" else position,
            "-" if row.lag is None else str(row.lag),
            styled(row.why, STYLES.get(row.situation, "yellow")),
        )
    print_table(made)


def _print_members(members: Sequence[MemberStatus], now_ms: int) -> None:
    made = table("members", "group", "topic", "client", "instance", "holds", "max", "heard", "clock", "note")
    for each in members:
        notes = ["an admin"] if each.is_admin else []
        if each.reuses_id_of:
            notes.append(f"shares its client id with {each.reuses_id_of}")
        made.add_row(
            *map(styled, (each.group_id, each.topic, each.client_id, each.instance_id)),
            str(each.holds),
            "-" if each.max_claims is None else str(each.max_claims or "any"),
            f"{max(now_ms - each.seen_ms, 0) / 1000:.0f} s ago",
            "?" if each.clock_ms is None else _clock_word(each.clock_ms),
            styled("; ".join(notes)),
        )
    print_table(made)


def _clock_word(ahead_ms: int) -> str:
    if abs(ahead_ms) < RIGHT_MS:
        return "right"
    return f"{abs(ahead_ms) / 1000:.1f} s {'ahead' if ahead_ms > 0 else 'behind'}"


def _print_diverging(
    pairs: Sequence[tuple[PartitionStatus, PartitionStatus]], begun: Mapping[Place, Divergence]
) -> None:
    if not pairs:
        print("both rule sets agree", end="\n\n")
        return
    made = table("the rule sets do not agree", "group", "partition", "document", "library")
    for one, other in pairs:
        place = one.place
        cells = [f"{row.why}; position {row.position}" for row in (one, other)]
        made.add_row(*map(styled, (place.group_id, f"{place.topic}/{place.partition}", *cells)))
    print_table(made)
    for one, _ in pairs:
        if (since := begun.get(one.place)) is not None and not since.is_over:
            print(*map(printable, str(since).splitlines()), sep="\n", end="\n\n")
