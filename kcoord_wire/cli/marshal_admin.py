"""`kcoord marshal pause`, `set-position` and `export-offsets`: what an operator does to a group of Marshal.

Laws:

* A pause is on every coordination partition, so that each member of the group reads it. It ends by itself, within 7
  days.
* `set-position` sets where a group goes on, while it is paused. An offset that a partition does not have is refused
  before anything is written, with what it has. Each partition is reported as set or kept; if one is not set, the status
  is 1, and 130 after Ctrl-C.
* A position of which the log has ranges of offsets, claimed or done, is refused before anything is written, also with
  ``--dry-run``.
* The first Ctrl-C or SIGTERM gives everything back, unless the new positions are being written. After a second one the
  group goes on by itself, when the pause and the claims have run out.
* `export-offsets` is the way out: a consumer group of Kafka goes on where the group of Marshal has ended. What is
  written is where a member of Marshal would go on (`inbox.choose_start`): the position in the log, else the group's
  committed offset, never outside of what the partition has. It is read back and shown.
* A consumer group with members is never written to: Kafka refuses that. A group of Marshal that still holds partitions
  is not exported without ``--force-live``, because its positions go on.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from kcoord_wire.cli.marshal import ClusterCommand, Reset, Rules, check_option_id, read_positions
from kcoord_wire.cli.options import Argument, Format, Option, Seconds, UsageError
from kcoord_wire.cli.output import print_json, print_table, styled, table
from kcoord_wire.cli.process import stop_on_signals
from kcoord_wire.codec.fields import printable

if TYPE_CHECKING:
    from kcoord_wire.marshal.admin import AdminSettings, Finished, Progressed
    from kcoord_wire.marshal.context import TopicPartition
    from kcoord_wire.marshal.kafka_topics import KafkaPositions
    from kcoord_wire.marshal.log import Log
    from kcoord_wire.marshal.observer import Observer
    from kcoord_wire.marshal.status import PartitionStatus

UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
PARTITION: Final = re.compile("0|[1-9][0-9]{0,8}")


@dataclass(frozen=True, kw_only=True)
class _GroupCommand(ClusterCommand):
    group: Annotated[str, Argument("GROUP", "the group")]
    format: Format = "text"

    def admin_settings(self, partitions: int, **more: Any) -> AdminSettings:
        """Return the settings of an admin with an instance id of its own."""
        from kcoord_wire.marshal.admin import AdminSettings

        interval_ms = self.heartbeat_interval * 1000
        return AdminSettings(self.group, uuid.uuid4().hex[:8], partitions, heartbeat_interval_ms=interval_ms, **more)


# ---- pause


def parse_span(text: str) -> int:
    """Seconds of a span such as 90s, 5m, 2h or 1d. ValueError: not one."""
    number, unit = text[:-1], text[-1:]
    if not number.isdecimal() or not int(number) or unit not in UNITS:
        raise ValueError(f"{text!r} is not a span of time such as 90s, 5m, 2h or 1d")
    return int(number) * UNITS[unit]


def parse_time(text: str) -> int:
    """A moment in ISO 8601 as ms since the Unix epoch; UTC where it names no zone. ValueError: not one."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time such as 2026-11-22T14:00:00Z") from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


@dataclass(frozen=True, kw_only=True)
class Pause(_GroupCommand):
    """Pause a whole group until a time, or end its pause.

    examples:
      kcoord marshal pause billing --kafka 127.0.0.1:9092 --for 5m
      kcoord marshal pause billing --kafka 127.0.0.1:9092 --until 2026-11-23T06:00:00Z
      kcoord marshal pause billing --kafka 127.0.0.1:9092 --resume

    members release what they hold; those of the Go library since May 2017 ignore the pause, and status shows it
    """

    for_: Annotated[int | None, parse_span, Option("as 90s, 5m, 2h, 1d", "TIME", one_of="until", required=True)] = None
    until: Annotated[int | None, parse_time, Option("ISO 8601", "TIME", one_of="until")] = None
    resume: Annotated[bool, Option("end the pause", one_of="until")] = False

    def run(self) -> None:
        """Pause or resume.

        :raises UsageError: the group id cannot be in a message
        :raises LogError: the coordination topic is not there, or takes nothing
        """
        from kcoord_wire.marshal.hosting import wall_ms
        from kcoord_wire.marshal.status import clock_text

        check_option_id("GROUP", self.group)
        now_ms = wall_ms()
        until_ms = 0 if self.resume else self.until or now_ms + (self.for_ or 0) * 1000
        with self.open_log() as log:
            run_pause(log, self.admin_settings(log.partitions), until_ms)
        if self.format == "json":
            print_json({"group_id": self.group, "paused_until_ms": until_ms or None})
        elif self.resume:
            print(f"group {printable(self.group)} is not paused any more")
        else:
            print(f"group {printable(self.group)} is paused until {clock_text(until_ms, now_ms)} UTC")


def run_pause(log: Log, settings: AdminSettings, until_ms: int) -> None:
    """Pause a group until a time, 0 to end its pause.

    :raises LogError: the log takes nothing, or the time is not within 7 days
    """
    from kcoord_wire.marshal.admin import GroupPauser
    from kcoord_wire.marshal.hosting import run_admin
    from kcoord_wire.marshal.log import LogError

    pauser = GroupPauser(settings, until_ms, range(log.partitions))
    finished = run_admin(
        pauser, log, commit=lambda offsets: None, progress=lambda step: None, is_interrupted=lambda: False
    )
    if finished.failure:
        raise LogError(f"group {settings.group_id}: {finished.failure}")


# ---- positions


@dataclass(frozen=True, kw_only=True)
class SetPosition(_GroupCommand):
    """Set where a group goes on.

    examples:
      kcoord marshal set-position billing --kafka 127.0.0.1:9092 --topic orders --to earliest
      kcoord marshal set-position billing --kafka 127.0.0.1:9092 --topic orders --to 2026-11-22T06:00:00Z --dry-run
      kcoord marshal set-position billing --kafka 127.0.0.1:9092 --file positions.json
          the file has an object of topics, each an object of partitions: {"orders": {"0": 1200, "3": 77}}

    all members of the group are paused meanwhile; one that goes on, as those of the Go library since May 2017, is
    named, and nothing is set; refused where members claim ranges of offsets (consume --ranges): what is done of them
    stays done, so let a group with another id begin anew
    """

    rules: Rules = "document"
    topic: Annotated[str | None, Option("all partitions of this topic", "NAME")] = None
    to: Annotated[str | None, Option("earliest, latest, an offset, or a time in ISO 8601", "WHERE")] = None
    file: Annotated[Path | None, Option("offsets of single partitions, as JSON", "FILE")] = None
    wait: Annotated[
        Seconds,
        Option("that members may take to release their partitions (default: three heartbeat intervals)", "SECONDS"),
    ] = 0.0
    dry_run: Annotated[bool, Option("print what would be set, and write nothing")] = False

    def __post_init__(self) -> None:
        if (self.file is None) == (self.topic is None) or (self.topic is None) != (self.to is None):
            raise UsageError("either --topic and --to, or --file")

    def run(self) -> None:
        """Set positions.

        :raises UsageError: the options do not go together
        :raises ValueError: the file is no such object, a partition does not exist, or does not have the offset; or the
            group claims ranges of it
        :raises LogError: the coordination topic cannot be used, or the positions were not set
        :raises TopicsError: offsets cannot be read
        :raises KeyboardInterrupt: after Ctrl-C, when everything is given back
        """
        from kcoord_wire.marshal.admin import obstacle_of_ranges
        from kcoord_wire.marshal.hosting import LogReader
        from kcoord_wire.marshal.log import LogError

        check_option_id("GROUP", self.group)
        kafka = self.open_positions()
        wanted = _from_file(self.file) if self.file else _from_topic(kafka, self.topic or "", self.to or "")
        _check_bounds(kafka, wanted)
        found = kafka.topics({place.topic for place in wanted})
        topic_ids = {name: topic.topic_id for name, topic in found.items() if topic.topic_id}
        with self.open_log() as log:
            [observer] = self.observers(log.partitions, [self.rules])
            LogReader(log, [observer]).read_to_end()
            if obstacle := obstacle_of_ranges(observer.ranges, self.group, list(wanted), topic_ids):
                raise ValueError(f"group {self.group}: {obstacle}")
            if self.dry_run:
                _print_plan(self, observer, kafka.committed(self.group), wanted)
                return
            received = stop_on_signals(lambda: None, "gives back what it holds")
            finished = _set(self, log, kafka, wanted, topic_ids, received)
        _print_result(self, finished)
        if finished.failure and signal.SIGINT not in received:
            raise LogError(f"group {self.group}: {finished.failure}")
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

    found = kafka.topics([topic]).get(topic)
    if found is None:
        raise ValueError(f"the cluster has no topic {topic}")
    places = [TopicPartition(topic, partition) for partition in range(found.partitions)]
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
    args: SetPosition,
    log: Log,
    kafka: KafkaPositions,
    wanted: Mapping[TopicPartition, int],
    topic_ids: Mapping[str, str],
    received: Sequence[int],
) -> Finished:
    from kcoord_wire.marshal.admin import PositionSetter
    from kcoord_wire.marshal.hosting import run_admin
    from kcoord_wire.marshal.world_state import Rules

    settings = args.admin_settings(log.partitions, rules=Rules(args.rules), wait_ms=round(args.wait * 1000))
    return run_admin(
        PositionSetter(settings, wanted, topic_ids),
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
    args: SetPosition,
    observer: Observer,
    committed: Mapping[TopicPartition, int],
    wanted: Mapping[TopicPartition, int],
) -> None:
    from kcoord_wire.marshal.world_state import Place

    rows = []
    for place, new in sorted(wanted.items()):
        claim = observer.world.claims.get(Place(args.group, *place))
        old = claim.current_offset if claim is not None and claim.current_offset > 0 else committed.get(place)
        rows.append((place, old, new, "would be set"))
    _print_rows(args, rows, {"dry_run": True})


def _print_result(args: SetPosition, finished: Finished) -> None:
    rows = [(each.place, each.old or None, each.new, str(each.result)) for each in finished.positions]
    more = {"failure": finished.failure or None, "paused_until_ms": finished.paused_until or None}
    _print_rows(args, rows, more)


def _print_rows(
    args: SetPosition, rows: Sequence[tuple[TopicPartition, int | None, int, str]], more: Mapping[str, Any]
) -> None:
    if args.format == "json":
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


# ---- the way out


class Exported(NamedTuple):
    """An offset that is written.

    :ivar note: why it is not the position; empty if it is
    """

    place: TopicPartition
    offset: int
    source: str
    note: str


@dataclass(frozen=True, kw_only=True)
class ExportOffsets(_GroupCommand):
    """Write a group's positions as the committed offsets of a consumer group: the way out.

    examples:
      kcoord marshal export-offsets billing --kafka 127.0.0.1:9092 --dry-run
      kcoord marshal export-offsets billing --kafka 127.0.0.1:9092 --to-group billing-v2 --topic orders

    stop the members first; then consumers with group.id=billing go on exactly there
    """

    rules: Rules = "document"
    to_group: Annotated[str | None, Option("the consumer group (default: the same name)", "NAME")] = None
    topic: Annotated[tuple[str, ...], Option("this topic only; may be repeated", "NAME")] = ()
    reset: Reset = "earliest"
    force_live: Annotated[bool, Option("also while members hold partitions")] = False
    dry_run: Annotated[bool, Option("print what would be written, and write nothing")] = False

    def __post_init__(self) -> None:
        if self.to_group == "":
            raise UsageError("--to-group: the name is empty")

    def run(self) -> None:
        """Export.

        :raises UsageError: the group id cannot be in a message
        :raises ValueError: nothing is known of the group, it is live, or the consumer group has members
        :raises LogError: the coordination topic cannot be read
        :raises TopicsError: offsets cannot be read, or were not committed
        """
        check_option_id("GROUP", self.group)
        target = self.group if self.to_group is None else self.to_group
        kafka = self.open_positions()
        rows = _rows(self, kafka)
        _check_quiet(self, rows, target, kafka.live_members(target))
        found = _exported(kafka, rows, self.reset)
        if not found:
            raise ValueError(f"no position of group {self.group} is known, by the log or in Kafka")
        before = kafka.committed(target)
        if not self.dry_run:
            kafka.commit(target, {each.place: each.offset for each in found})
        after = {} if self.dry_run else kafka.committed(target)
        _print_offsets(self, target, found, before, after)


def _check_quiet(args: ExportOffsets, rows: list[PartitionStatus], target: str, members: list[str]) -> None:
    """Raise ValueError if somebody would go on from other positions, or Kafka would refuse them."""
    holders = sorted({row.client_id for row in rows if row.is_held})
    if holders and not args.force_live:
        raise ValueError(f"group {args.group} still runs, stop it first (or --force-live): {', '.join(holders[:5])}")
    if members:
        names = ", ".join(members[:5])
        raise ValueError(f"consumer group {target} has members, and Kafka takes offsets of one without: {names}")


def _rows(args: ExportOffsets, kafka: KafkaPositions) -> list[PartitionStatus]:
    from kcoord_wire.marshal.hosting import LogReader, wall_ms
    from kcoord_wire.marshal.status import status_of

    with args.open_log() as log:
        observers = args.observers(log.partitions, [args.rules])
        LogReader(log, observers).read_to_end()
    positions = read_positions(kafka, observers[0], args.group)
    rows = status_of(observers[0], wall_ms(), positions, args.group).partitions
    return [row for row in rows if not args.topic or row.place.topic in args.topic]


def _exported(kafka: KafkaPositions, rows: list[PartitionStatus], reset: str) -> list[Exported]:
    from kcoord_wire.marshal import member_events as events
    from kcoord_wire.marshal.context import TopicPartition
    from kcoord_wire.marshal.inbox import choose_start

    known = [row for row in rows if row.position is not None]
    bounds = kafka.bounds([TopicPartition(row.place.topic, row.place.partition) for row in known])
    found = []
    for row in known:
        place = TopicPartition(row.place.topic, row.place.partition)
        if row.position is not None and (has := bounds.get(place)) is not None:
            from_log = row.position if row.position_from == "log" else 0
            start = choose_start(from_log, row.position, has.low, has.end, events.Reset(reset))
            found.append(Exported(place, start.offset, row.position_from, start.note))
    return found


def _print_offsets(
    args: ExportOffsets,
    target: str,
    found: list[Exported],
    before: dict[TopicPartition, int],
    after: dict[TopicPartition, int],
) -> None:
    if args.format == "json":
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
