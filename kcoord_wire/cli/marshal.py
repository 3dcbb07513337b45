"""`kcoord marshal`: groups that coordinate through a topic: who holds which partition, why each partition is where it
is, and a member that prints its records.

Laws:

* `status` and `watch` read the coordination topic, the ends of the partitions and the committed offsets, and write
  nothing.
* With ``--rules both`` the partitions on which the two rule sets do not agree are listed, each with both sentences and
  the entry since which readers see it differently (`marshal.observer`).
* `consume`, at least once: a record is processed when its line has been written to stdout and flushed. At most once:
  its batch was committed before.
* A stdout that takes nothing holds up the records, not the heartbeats; after ``--max-poll-interval`` everything is
  released.
* The first Ctrl-C or SIGTERM ends the iteration and releases what is held, or keeps it with ``--keep-claims``; the
  status is then 130 or 0. The second kills at once, and others wait for two heartbeat intervals.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from kcoord_wire.cli.options import (
    Command,
    Format,
    Interval,
    KafkaConfig,
    Option,
    Positive,
    Seconds,
    UsageError,
)
from kcoord_wire.cli.output import print_event, print_json, print_table, styled, table
from kcoord_wire.cli.process import log_to_stderr, stop_on_signals
from kcoord_wire.codec.fields import printable

if TYPE_CHECKING:
    from kcoord_wire.marshal.client import MarshalConsumer
    from kcoord_wire.marshal.inbox import DataRecord
    from kcoord_wire.marshal.kafka_log import KafkaLog
    from kcoord_wire.marshal.kafka_topics import KafkaPositions
    from kcoord_wire.marshal.log import Log
    from kcoord_wire.marshal.member_events import LossReason, Tenure
    from kcoord_wire.marshal.observer import Divergence, Observer
    from kcoord_wire.marshal.status import MemberStatus, PartitionStatus, Positions, RangeStatus
    from kcoord_wire.marshal.status import Status as State
    from kcoord_wire.marshal.world_state import Place

STYLES: Final = {"held": "green", "stale": "red", "no member": "red", "client id reused": "red", "ahead": "red"}
RIGHT_MS: Final = 100  # for people
CLEAR: Final = "\x1b[H\x1b[2J"


# ---- the cluster


def parse_brokers(text: str) -> str:
    """Addresses of brokers, with commas. ValueError: there is none."""
    if not text.strip(", "):
        raise ValueError("no address of a broker is given")
    return text


Rules: TypeAlias = Annotated[
    Literal["document", "library"],
    Option("who judges claims; library where members of the Go library are in the group"),
]


Reset: TypeAlias = Annotated[
    Literal["earliest", "latest"],
    Option("where to go on in a topic that was created again, or ends before the position"),
]


@dataclass(frozen=True, kw_only=True)
class ClusterCommand(Command):
    """The options that name a cluster and its coordination topic."""

    kafka: Annotated[str, parse_brokers, Option("brokers of the cluster", "HOST:PORT,...")]
    coordination_topic: Annotated[str, Option("of the claims", "NAME")] = "__marshal"
    heartbeat_interval: Annotated[
        Interval, Option("that of the members, in whole seconds; the Go library has 60", "SECONDS")
    ] = 60
    kafka_config: KafkaConfig = ()

    @contextmanager
    def open_log(self) -> Iterator[KafkaLog]:
        """Open the coordination topic.

        :raises LogError: it is not there, or no broker answers
        """
        from kcoord_wire.marshal.kafka_log import KafkaLog

        log = KafkaLog(self.kafka, self.coordination_topic, dict(self.kafka_config))
        try:
            yield log
        finally:
            log.close()

    def open_positions(self) -> KafkaPositions:
        """Return the questions to the cluster."""
        from kcoord_wire.marshal.kafka_topics import KafkaPositions

        return KafkaPositions(self.kafka, dict(self.kafka_config))

    def observers(self, partitions: int, rules: Sequence[str]) -> list[Observer]:
        """Return observers of a log, one of each rule set."""
        from kcoord_wire.marshal.observer import Observer
        from kcoord_wire.marshal.world_state import Rules, WorldState

        return [Observer(WorldState(Rules(each), self.heartbeat_interval, partitions)) for each in rules]


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


# ---- the state


@dataclass(frozen=True, kw_only=True)
class Status(ClusterCommand):
    """Who holds which partition, since when, how far behind, and why each is where it is.

    examples:
      kcoord marshal status --kafka 127.0.0.1:9092
      kcoord marshal status --kafka 127.0.0.1:9092 --group billing --rules both
      kcoord marshal status --kafka 127.0.0.1:9092 --format json | jq '.document.partitions[] | .why'
    """

    rules: Annotated[
        Literal["document", "library", "both"],
        Option("who judges claims; library where members of the Go library are in the group"),
    ] = "document"
    group: Annotated[str | None, Option("of this group only", "ID")] = None
    format: Format = "text"

    def run(self) -> None:
        """Print the state.

        :raises LogError: the coordination topic cannot be read
        :raises TopicsError: offsets cannot be read
        """
        _show(self, every=0.0, times=1)


@dataclass(frozen=True, kw_only=True)
class Watch(Status):
    """The status, again and again until Ctrl-C.

    examples:
      kcoord marshal watch --kafka 127.0.0.1:9092 --group billing --interval 5
    """

    interval: Annotated[Seconds, Option("between two", "SECONDS")] = 2.0
    times: Annotated[Positive | None, Option("end after so many", "N")] = None

    def run(self) -> None:
        """Print the state. Errors as for `Status`."""
        _show(self, every=self.interval, times=self.times)


def _show(args: Status, *, every: float, times: int | None) -> None:
    from kcoord_wire.marshal.hosting import LogReader, wall_ms
    from kcoord_wire.marshal.status import status_of

    rules = ("document", "library") if args.rules == "both" else (args.rules,)
    with args.open_log() as log:
        observers = args.observers(log.partitions, rules)
        reader, kafka = LogReader(log, observers), args.open_positions()
        count = 0
        while True:
            reader.read_to_end()
            now_ms = wall_ms()  # before the questions to Kafka, which take a while: heartbeats go on meanwhile
            positions = read_positions(kafka, observers[0], args.group)
            begun = _begun(log, args.heartbeat_interval) if len(rules) > 1 else {}
            if every and args.format == "text" and sys.stdout.isatty():
                print(CLEAR, end="")
            _print([status_of(each, now_ms, positions, args.group) for each in observers], begun, args.format)
            count += 1
            if count == times:
                return
            time.sleep(every)


def read_positions(kafka: KafkaPositions, observer: Observer, group: str | None) -> Positions:
    """Return what Kafka has for the groups and topics of a log.

    :raises TopicsError: a group's coordinator does not answer, or refuses
    """
    from kcoord_wire.marshal.context import TopicPartition
    from kcoord_wire.marshal.status import Positions
    from kcoord_wire.marshal.world_state import Place

    about = _about(observer, group)
    topics = kafka.topics({topic for _, topic in about})
    counts = {name: found.partitions for name, found in topics.items()}
    places = [TopicPartition(topic, partition) for topic, number in counts.items() for partition in range(number)]
    ends = {(topic, partition): bounds.end for (topic, partition), bounds in kafka.bounds(places).items()}
    committed = {
        Place(each, *place): offset
        for each in sorted({each for each, _ in about})
        for place, offset in kafka.committed(each).items()
    }
    return Positions(
        counts, ends, committed, {name: found.topic_id for name, found in topics.items() if found.topic_id}
    )


def _about(observer: Observer, group: str | None) -> set[tuple[str, str]]:
    """Return the pairs of group and topic of a log."""
    about = {(place.group_id, place.topic) for place in observer.world.claims} | observer.world.members.keys()
    about |= {(at.place.group_id, at.place.topic) for at in observer.ranges.places}
    return {(each, topic) for each, topic in about if topic and group in (None, each)}


def _begun(log: Log, interval_s: int) -> dict[Place, Divergence]:
    """Return the entry after which two readers first see a place as they see it now, where they do not agree.

    The readers are one by the rules of the document, a Go client that was always there, and one that starts now.
    """
    from kcoord_wire.marshal.hosting import LogReader, wall_ms
    from kcoord_wire.marshal.observer import Read, Reader, diverging
    from kcoord_wire.marshal.world_state import Rules

    reads = (Read(entry, entry.time_ms // 1000) for entry in LogReader(log, []).entries())
    late = Reader("a Go client that starts now", Rules.LIBRARY, wall_ms() // 1000)
    readers = [Reader("the document", Rules.DOCUMENT), Reader("a Go client that was there", Rules.LIBRARY), late]
    return {each.place: each for each in diverging(reads, readers, log.partitions, interval_s)}


def _print(found: Sequence[State], begun: Mapping[Place, Divergence], form: str) -> None:
    if form == "json":
        print_json({str(each.rules): status_to_json(each) for each in found} | _diverging_to_json(found, begun))
        return
    for each in found:
        if len(found) > 1:
            print(f"by the rules of the {each.rules}", end="\n\n")
        _print_tables(each)
    if len(found) > 1:
        _print_diverging(_diverging(found), begun)
    sys.stdout.flush()


# ---- for programs


def status_to_json(status: State) -> dict[str, Any]:
    """Return a status as plain data; times are ms since the Unix epoch, what is not known is null."""
    return {
        "now_ms": status.now_ms,
        "partitions": [_row_to_json(row) for row in status.partitions],
        "ranges": [_range_to_json(row) for row in status.ranges],
        "members": [asdict(member) | {"is_admin": member.is_admin} for member in status.members],
        "paused_until_ms": status.paused_until,
        "garbage": {str(partition): asdict(each) for partition, each in status.garbage.items()},
        "cold": status.cold,
    }


def _row_to_json(row: PartitionStatus) -> dict[str, Any]:
    plain = asdict(row)
    place = plain.pop("place")
    return dict(zip(("group_id", "topic", "partition"), place, strict=True)) | plain | {"lag": row.lag}


def _range_to_json(row: RangeStatus) -> dict[str, Any]:
    plain = asdict(row)
    place = plain.pop("place")
    return dict(zip(("group_id", "topic", "partition"), place, strict=True)) | plain


def _diverging(found: Sequence[State]) -> list[tuple[PartitionStatus, PartitionStatus]]:
    """Return the partitions on which two rule sets do not agree who holds them, or about the position."""
    if len(found) < 2:
        return []
    others = {row.place: row for row in found[1].partitions}
    pairs = [(row, others[row.place]) for row in found[0].partitions if row.place in others]
    return [(one, other) for one, other in pairs if _essence(one) != _essence(other)]


def _essence(row: PartitionStatus) -> tuple[object, ...]:
    return row.is_held, row.is_held and row.instance_id, row.position


def _diverging_to_json(found: Sequence[State], begun: Mapping[Place, Divergence]) -> dict[str, Any]:
    if len(found) < 2:
        return {}
    names = [str(each.rules) for each in found]
    rows = []
    for pair in _diverging(found):
        since = begun.get(pair[0].place)
        rows.append(dict(zip(names, map(_row_to_json, pair), strict=True)) | {"since": since and str(since)})
    return {"diverging": rows}


# ---- for people


def _print_tables(status: State) -> None:
    from kcoord_wire.marshal.status import clock_text

    if not (status.partitions or status.ranges):
        print("no claims", end="\n\n")
    for group, until_ms in status.paused_until.items():
        print(f"group {printable(group)} is paused until {clock_text(until_ms, status.now_ms)} UTC", end="\n\n")
    if status.partitions:
        _print_partitions(status.partitions)
    if status.ranges:
        _print_ranges(status.ranges)
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


def _print_ranges(rows: Sequence[RangeStatus]) -> None:
    made = table(
        "ranges", "group", "partition", "offsets", "state", "holder", "token", "heartbeat", "position", "why (UTC)"
    )
    for row in rows:
        is_held = row.position is not None
        made.add_row(
            styled(row.place.group_id),
            styled(f"{row.place.topic}/{row.place.partition}"),
            f"{row.first} to {'?' if row.end is None else row.end - 1}",
            str(row.situation),
            styled(f"{row.client_id} ({row.instance_id})" if is_held else "-"),
            "-" if row.token < 0 else str(row.token),
            "-" if row.age_ms is None else f"{row.age_ms / 1000:.0f} s",
            "-" if row.position is None else str(row.position),
            styled(row.why),
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


# ---- a member


@dataclass(frozen=True, kw_only=True)
class Consume(ClusterCommand):
    """Consume topics as a member of a group, which claims partitions in the coordination topic.

    examples:
      kcoord marshal consume --kafka 127.0.0.1:9092 --group billing --client-id billing-1 --topics orders,payments
      kcoord marshal consume --kafka b1:9092,b2:9092 --group audit --client-id a1 --topics orders --format json
      kcoord marshal consume --kafka b1:9092 --group g --client-id c1 --topics orders --presence --balance \\
          --kafka-config security.protocol=SASL_SSL --kafka-config sasl.mechanism=SCRAM-SHA-256

    a line for each record: TOPIC PARTITION OFFSET TOKEN VALUE; after "#", one for each partition that is gained or lost
    TOKEN is a fencing token: it grows with every holder of the partition, or of the offset with --ranges
    all members of a topic must have the same --heartbeat-interval; the Go library has 60
    """

    rules: Rules = "document"
    group: Annotated[str, Option("the group", "ID")]
    client_id: Annotated[str, Option("unique in the group, and the same after a restart", "ID")]
    topics: Annotated[str, Option("topics to consume", "NAME,...")]
    at_most_once: Annotated[bool, Option("commit each batch before it is printed")] = False
    reset: Reset = "earliest"
    max_claims: Annotated[Positive | None, Option("partitions of each topic at most", "N")] = None
    greedy: Annotated[bool, Option("claim all free partitions at once, not one by one")] = False
    presence: Annotated[bool, Option("be visible to others before anything is held (an extension)")] = False
    balance: Annotated[bool, Option("hand partitions over to members with fewer; needs --presence")] = False
    ranges: Annotated[bool, Option("claim ranges of offsets, not partitions: all members alike (an extension)")] = False
    range_size: Annotated[Positive | None, Option("offsets of a range, at most (default: 1000)", "N")] = None
    keep_claims: Annotated[bool, Option("at the end, keep the claims for a restart")] = False
    create_topic: Annotated[
        Positive | None,
        Option("create the coordination topic if it is missing, with settings that keep claims", "PARTITIONS"),
    ] = None
    max_records: Annotated[Positive | None, Option("end after so many records", "N")] = None
    max_poll_interval: Annotated[
        Seconds, Option("release everything when stdout takes nothing for so long", "SECONDS")
    ] = 300.0
    format: Format = "text"

    def __post_init__(self) -> None:
        if self.balance and not self.presence:
            raise UsageError("--balance needs --presence")
        self._check_ranges()
        if not self.topics.strip(","):
            raise UsageError("--topics names no topic")
        if self.coordination_topic in self.topics.split(","):
            topic = self.coordination_topic
            raise UsageError(f"--topics: {topic} is the coordination topic, which members read anyway")

    def _check_ranges(self) -> None:
        if self.range_size and not self.ranges:
            raise UsageError("--range-size needs --ranges")
        others = {
            "--rules library": self.rules == "library",
            "--at-most-once": self.at_most_once,
            "--max-claims": self.max_claims,
            "--greedy": self.greedy,
            "--presence": self.presence,
            "--keep-claims": self.keep_claims,
        }
        if self.ranges and (wrong := next(filter(others.get, others), "")):
            raise UsageError(f"{wrong} does not go with --ranges")

    def run(self) -> None:
        """Consume until a signal comes, or the records are enough.

        :raises UsageError: options do not go together, or an id cannot be used
        :raises LogError: the coordination topic is not there, or no broker answers
        :raises TopicsError: a topic is not there, or cannot be read
        :raises KeyboardInterrupt: after Ctrl-C, when the consumer has ended
        """
        printer = _JsonPrinter() if self.format == "json" else _Printer()
        consumer = _consumer(self, printer)
        received = stop_on_signals(consumer.stop, "releases what it holds")
        try:
            for count, record in enumerate(consumer, 1):
                printer.record(record)
                if count == self.max_records:
                    consumer.processed(record)
                    break
        finally:
            consumer.close(keep_claims=self.keep_claims)
        if received == [signal.SIGINT]:
            raise KeyboardInterrupt


def _consumer(args: Consume, printer: _Printer) -> MarshalConsumer:
    from kcoord_wire.marshal import member_events as events
    from kcoord_wire.marshal.client import MarshalConsumer
    from kcoord_wire.marshal.kafka_log import KafkaLog, check_topic, create_topic
    from kcoord_wire.marshal.kafka_topics import KafkaTopics
    from kcoord_wire.marshal.world_state import Rules

    for option, value in (("--group", args.group), ("--client-id", args.client_id)):
        check_option_id(option, value)
    topics = [topic for topic in args.topics.split(",") if topic]
    config = dict(args.kafka_config)
    interval_ms = args.heartbeat_interval * 1_000
    where = (args.kafka, args.coordination_topic)
    if args.create_topic:
        create_topic(*where, args.create_topic, heartbeat_interval_ms=interval_ms, config=config)
    for warning in check_topic(*where, heartbeat_interval_ms=interval_ms, config=config):
        print(f"warning: {warning}", file=sys.stderr)
    log = KafkaLog(args.kafka, args.coordination_topic, config)
    try:
        data = KafkaTopics(args.kafka, args.group, topics, config)
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
        delivery=events.Delivery.AT_MOST_ONCE if args.at_most_once else events.Delivery.AT_LEAST_ONCE,
        reset=events.Reset(args.reset),
        heartbeat_interval_ms=interval_ms,
        max_claims=args.max_claims or 0,
        greedy=args.greedy,
        presence=args.presence,
        balance=events.Balance() if args.balance else None,
        ranges=events.RangeClaims(size=args.range_size or events.RANGE_SIZE) if args.ranges else None,
    )


class _Printer:
    """Writes lines for people."""

    def record(self, record: DataRecord) -> None:
        """Write a record."""
        print(record.topic, record.partition, record.offset, record.token, printable(_text(record.value)), flush=True)

    def gained(self, tenure: Tenure) -> None:
        """Write that a partition is held."""
        print(f"# gained {tenure.topic}/{tenure.partition} token {tenure.token}", flush=True)

    def lost(self, tenure: Tenure, why: LossReason) -> None:
        """Write that it is not held any more."""
        print(f"# lost {tenure.topic}/{tenure.partition} token {tenure.token}: {why}", flush=True)


class _JsonPrinter(_Printer):
    """Writes a JSON object a line."""

    def record(self, record: DataRecord) -> None:
        """Write a record."""
        fields = {"offset": record.offset, "timestamp": record.time_ms}
        key = None if record.key is None else _text(record.key)
        value = None if record.value is None else _text(record.value)
        print_event("record", **record.tenure._asdict(), **fields, key=key, value=value)

    def gained(self, tenure: Tenure) -> None:
        """Write that a partition is held."""
        print_event("gained", **tenure._asdict())

    def lost(self, tenure: Tenure, why: LossReason) -> None:
        """Write that it is not held any more."""
        print_event("lost", **tenure._asdict(), why=why)


def _text(data: bytes | None) -> str:
    return "-" if data is None else data.decode("utf-8", "backslashreplace")
