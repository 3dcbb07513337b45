"""`kcoord central`: brokers and consumers of the 0.8 consumer-coordinator draft and of the rewrite, and their state, on
a real ZooKeeper.

Laws:

* When a broker is registered in ZooKeeper and serves, it prints one line with its address on stdout. Everything else is
  the log on stderr: elections, consumers, rebalances, and connections closed with the reason.
* SIGTERM and Ctrl-C end a broker's session, so that another broker is elected at once; the status is 0 after SIGTERM
  and 130 after Ctrl-C. A second signal kills at once.
* A consumer's record is processed, and its position may be committed, when its line has been written to stdout and
  flushed. A stdout that takes nothing holds up the records, not the answers to the coordinator.
* The first Ctrl-C or SIGTERM begins the draft's shutdown: within two session timeouts the consumer has left its group.
  The status is then 130 or 0. The second kills at once, also while stdout takes nothing.
* What is in the coordinator's memory alone (consumers, and what a rebalance waits for) is asked of it. If it does not
  answer, the status has the reason, and what ZooKeeper has.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from kcoord_wire.cli.options import (
    Argument,
    Command,
    Endpoint,
    Format,
    LogFormat,
    Option,
    Port,
    Positive,
    Seconds,
    Topics,
    UsageError,
    decimal,
    topics_of,
    whole,
)
from kcoord_wire.cli.output import print_event, print_json, print_table, styled, table
from kcoord_wire.cli.process import (
    JsonLines,
    allow_many_connections,
    log_to_stderr,
    named_host,
    stop_on_signals,
    until_terminated,
)
from kcoord_wire.codec.fields import printable
from kcoord_wire.kernel.net import address_text, parse_address

if TYPE_CHECKING:
    from kcoord_wire.central.client import HostedConsumer
    from kcoord_wire.central.draft.events import ConsumerSettings, Partition
    from kcoord_wire.central.fetcher import Fetcher, Record
    from kcoord_wire.central.rewrite.events import MemberSettings
    from kcoord_wire.central.status import ClusterClient, ClusterStatus, GroupStatus
    from kcoord_wire.kernel.machines import BrokerAddress
    from kcoord_wire.messages import central as m

SESSION_TIMEOUT_MS: Final = 6_000
MOST_COORDINATORS: Final = 1_000


def parse_auth(text: str) -> tuple[str, str]:
    """User and password of ``USER:PASSWORD``. ValueError: not of that form."""
    user, colon, password = text.partition(":")
    if not colon or not user or not password:
        raise ValueError("not of the form USER:PASSWORD")
    return user, password


def _brokers(text: str) -> list[tuple[str, int]]:
    found = [parse_address(each) for each in text.split(",")]
    if not all(host and port for host, port in found):
        raise ValueError(f"{text!r} is not of the form HOST:PORT,...")
    return found


Auth: TypeAlias = Annotated[
    Annotated[tuple[str, str], parse_auth] | None, Option("digest, where nodes have an ACL", "USER:PASSWORD")
]
Count: TypeAlias = Annotated[int, whole(0)]
Rate: TypeAlias = Annotated[float, decimal("a number from 0 to 1000000", lambda rate: 0 <= rate <= 1_000_000)]


# ---- a broker


@dataclass(frozen=True, kw_only=True)
class Serve(Command):
    """Run a broker of the draft, which coordinates groups if it is elected, or of the rewrite.

    examples:
      kcoord central serve --zookeeper embedded --topics orders:12
          a real ZooKeeper in a temporary folder, and one broker at 127.0.0.1:9092
      kcoord central serve --zookeeper zk1:2181,zk2:2181,zk3:2181/kafka --broker-id 2 --port 9093 --topics orders:12
          one of several brokers; the coordinator is the one that ZooKeeper elects
      kcoord central serve --zookeeper zk1:2181 --topics orders:12 --rebalance-by sockets
          the older passage of the draft: it rebalances by closing the consumers' connections
      kcoord central serve --zookeeper zk1:2181 --topics orders:12 --coordinators 16
          every broker coordinates a subset of the groups, as in section 1: 16 of them are shared out
      kcoord central serve --zookeeper zk1:2181 --design rewrite --topics orders:12
          a broker of "Kafka 0.9 Consumer Rewrite Design": Kafka's frames, JoinGroup of clients 0.8.2

    records are generated: record n of a partition is the text TOPIC-PARTITION@n, and every partition grows by --rate
    since the first broker has started, so every broker serves the same records and keeps none
    topics stay in ZooKeeper; a greater number of partitions adds some, a smaller one changes nothing
    SIGTERM ends with status 0, Ctrl-C with 130; both end the session, so another broker takes over at once
    """

    zookeeper: Annotated[
        str,
        Option(
            "the ensemble; or: embedded, to start one node in a temporary folder (Java and pyspark's jars)",
            "HOST:PORT,...[/CHROOT]",
        ),
    ]
    broker_id: Annotated[Positive, Option("of this broker", "N")] = 1
    topics: Annotated[
        tuple[Topics, ...],
        Option(
            "topics with partitions at this broker, as in orders:12,payments:8; may be repeated",
            "NAME:PARTITIONS,...",
        ),
    ] = ()
    host: Annotated[str, Option("address to listen on")] = "127.0.0.1"
    port: Annotated[Port, Option("0 takes a free one")] = 9092
    advertise: Annotated[
        Endpoint | None, Option("address in ZooKeeper, for consumers (default: --host and --port)", "HOST:PORT")
    ] = None
    rate: Annotated[Rate, Option("records a second of each partition", "N")] = 10.0
    session_timeout_ms: Annotated[Positive, Option("of the session with ZooKeeper", "MS")] = 6_000
    zookeeper_auth: Auth = None
    design: Annotated[Literal["draft", "rewrite"], Option("what it speaks")] = "draft"
    min_session_timeout_ms: Annotated[Positive | None, Option("the shortest of consumers", "MS")] = None
    max_session_timeout_ms: Annotated[Positive | None, Option("the longest of consumers", "MS")] = None
    max_ping_retries: Annotated[Count | None, Option("draft: so many pings in a row may fail", "N")] = None
    offset_commit_interval_ms: Annotated[
        Positive | None, Option("draft: between two commits of consumed offsets to ZooKeeper", "MS")
    ] = None
    max_rebalance_retries: Annotated[Count | None, Option("draft: of one rebalance", "N")] = None
    rebalance_backoff_ms: Annotated[Count | None, Option("draft: before each retry", "MS")] = None
    coordinators: Annotated[
        Annotated[int, whole(1, MOST_COORDINATORS)] | None,
        Option("draft: of so many subsets of the groups, if this is the first broker", "N"),
    ] = None
    rebalance_by: Annotated[
        Literal["fetchers", "sockets"] | None,
        Option("draft: fetchers, by StopFetcher and StartFetcher; sockets, as in section 2"),
    ] = None
    shards: Annotated[
        Positive | None,
        Option("rewrite: into so many the groups are divided, if this is the first broker", "N"),
    ] = None
    format: LogFormat = "text"

    def __post_init__(self) -> None:
        topics_of(self.topics)
        other = _coordinator_settings("draft" if self.design == "rewrite" else "rewrite")
        for name in sorted(other.keys() - _coordinator_settings(self.design).keys()):
            if getattr(self, name) is not None:
                raise UsageError(f"--{name.replace('_', '-')} is not an option of --design {self.design}")

    @classmethod
    def notes(cls) -> str:
        """Return the defaults of the coordinators' settings."""
        lines = ["defaults of the coordinator's settings:"]
        for design in ("draft", "rewrite"):
            shown = (f"{name.replace('_', '-')} {default}" for name, default in _coordinator_settings(design).items())
            lines.append(f"  {design}: {', '.join(shown)}")
        return "\n".join(lines)

    def run(self) -> None:
        """Serve until a signal comes.

        :raises OSError: the port cannot be used
        :raises ValueError: the id or a topic cannot be registered, another broker has the id, or ZooKeeper does not
            answer
        :raises KeyboardInterrupt: after Ctrl-C, when the broker has stopped
        """
        from kcoord_wire.central.draft.events import RebalanceBy
        from kcoord_wire.central.served_topics import check_broker

        given = {name: getattr(self, name) for name in _coordinator_settings(self.design)}
        given = {name: value for name, value in given.items() if value is not None}
        if self.rebalance_by is not None:
            given["rebalance_by"] = RebalanceBy(self.rebalance_by)
        settings = _settings_class(self.design)(**given)
        topics = topics_of(self.topics)
        check_broker(self.broker_id, topics)
        log_to_stderr(JsonLines() if self.format == "json" else None)
        allow_many_connections()
        with ExitStack() as stack, until_terminated():
            zookeeper = self.zookeeper
            if zookeeper == "embedded":
                from kcoord_wire.zookeeper.ensemble import Ensemble

                zookeeper = stack.enter_context(Ensemble()).connect
            broker = _broker_class(self.design)(
                zookeeper,
                broker_id=self.broker_id,
                topics=topics,
                host=self.host,
                port=self.port,
                advertise=self.advertise,
                rate=self.rate,
                settings=settings,
                session_timeout_ms=self.session_timeout_ms,
                auth=self.zookeeper_auth,
            )
            stack.callback(broker.stop)
            with named_host(f"--host {self.host}"):
                broker.start()
            print(f"kcoord central serves on {broker.address}, ZooKeeper at {zookeeper}", flush=True)
            broker.wait()


def _coordinator_settings(design: str) -> dict[str, Any]:
    """Return the default of each setting of a design's coordinator."""
    kind = _settings_class(design)
    return {each.name: getattr(each.default, "value", each.default) for each in fields(kind)}


def _settings_class(design: str) -> type[Any]:
    if design == "rewrite":
        from kcoord_wire.central.rewrite.events import CoordinatorSettings as RewriteSettings

        return RewriteSettings
    from kcoord_wire.central.draft.events import CoordinatorSettings

    return CoordinatorSettings


def _broker_class(design: str) -> type[Any]:
    if design == "rewrite":
        from kcoord_wire.central.broker import RewriteBroker

        return RewriteBroker
    from kcoord_wire.central.broker import CentralBroker

    return CentralBroker


# ---- a consumer


@dataclass(frozen=True, kw_only=True)
class Consume(Command):
    """Consume topics as a member of a group, whose coordinator assigns the partitions.

    examples:
      kcoord central consume --kafka 127.0.0.1:9092 --group billing --topics orders,payments
      kcoord central consume --kafka b1:9092,b2:9092 --group audit --whitelist 'ord.*' --format json
      kcoord central consume --kafka b1:9092 --group tools --blacklist 'test-.*' --reset largest --max-records 100
          topics that are created later and match a wildcard are consumed, too
      kcoord central consume --kafka b1:9092 --group billing --topics orders --records-from kafka1:9092
          partitions and offsets are the draft's, the records those of Kafka's topic "orders"
      kcoord central consume --kafka b1:9092 --design rewrite --group billing --topics orders --strategy roundrobin

    a line for each record: TOPIC PARTITION OFFSET VALUE; and, after "#", for each new assignment
    a partition is named BROKER-NUMBER, in the rewrite NUMBER
    Ctrl-C and SIGTERM end with the draft's shutdown: after the next ping, with auto-commit after the one that follows;
    in the rewrite with a commit
    """

    kafka: Annotated[
        list[tuple[str, int]], _brokers, Option("brokers to ask for the coordinator, in turn", "HOST:PORT,...")
    ]
    group: Annotated[str, Option("the group", "ID")]
    design: Annotated[Literal["draft", "rewrite"], Option("what the brokers speak")] = "draft"
    consumer_id: Annotated[str, Option("draft: unique in the group (default: host, process and a number)", "ID")] = ""
    topics: Annotated[str | None, Option("topics to consume", "NAME,...", one_of="what", required=True)] = None
    whitelist: Annotated[str | None, Option("consume every topic that matches", "PATTERN", one_of="what")] = None
    blacklist: Annotated[str | None, Option("consume every topic that does not match", "PATTERN", one_of="what")] = None
    streams: Annotated[
        Positive, Option("draft: threads of this consumer that partitions are assigned to, of each topic", "N")
    ] = 1
    session_timeout_ms: Annotated[
        Positive,
        Option("of the session with the coordinator; after as much silence it looks for another", "MS"),
    ] = 6_000
    reset: Annotated[
        Literal["smallest", "largest"],
        Option("where to begin without a committed offset, or with one out of range"),
    ] = "smallest"
    no_auto_commit: Annotated[bool, Option("draft: report no offsets to the coordinator")] = False
    records_from: Annotated[
        Annotated[list[tuple[str, int]], _brokers] | None,
        Option("draft: brokers of Kafka, whose records are read in place of generated ones", "HOST:PORT,..."),
    ] = None
    no_epoch: Annotated[
        bool, Option("draft: send its own bytes: a coordinator that was replaced is not recognised")
    ] = False
    strategy: Annotated[
        Literal["range", "roundrobin"], Option("rewrite: by which the coordinator assigns; the same in the group")
    ] = "range"
    refresh_ms: Annotated[
        Positive, Option("rewrite: between two looks at all topics, for --whitelist and --blacklist", "MS")
    ] = 300_000
    stops_with_session: Annotated[
        bool, Option("rewrite: fetch only while the coordinator cannot have declared this member dead (an addition)")
    ] = False
    max_records: Annotated[Positive | None, Option("shut down after so many records", "N")] = None
    format: Format = "text"

    def __post_init__(self) -> None:
        other = _OF_REWRITE if self.design == "draft" else _OF_DRAFT
        for each in fields(self):
            if each.name in other and getattr(self, each.name) != each.default:
                raise UsageError(f"--{each.name.replace('_', '-')} is not an option of --design {self.design}")

    def run(self) -> None:
        """Consume until a signal comes, or the records are enough.

        :raises UsageError: these are not topics, or the coordinator would refuse the group or the consumer id
        :raises ValueError: the session timeout does not fit into its message, or the coordinator refuses it
        :raises KeyboardInterrupt: after Ctrl-C, when the consumer has ended
        """
        from kcoord_wire.central.client import CentralConsumer, RewriteConsumer

        log_to_stderr()
        make: Callable[..., HostedConsumer[Any]] = (
            partial(CentralConsumer, _settings(self), fetcher=_fetcher(self))
            if self.design == "draft"
            else partial(RewriteConsumer, _member_settings(self), auto_offset_reset=self.reset)
        )
        if asyncio.run(_consume(make, self.format, self.max_records)):
            raise KeyboardInterrupt


_OF_DRAFT: Final = ("consumer_id", "streams", "no_auto_commit", "no_epoch", "records_from")
_OF_REWRITE: Final = ("strategy", "refresh_ms", "stops_with_session")


def _member_settings(args: Consume) -> MemberSettings:
    from kcoord_wire.central.rewrite.events import MemberSettings
    from kcoord_wire.zookeeper.layout import LONGEST_NAME, is_node_name

    topics = tuple((args.topics or "").split(",")) if args.topics is not None else ()
    for option, name in (("--group", args.group), *(("--topics", topic) for topic in topics)):
        if not is_node_name(name):
            raise UsageError(f"{option}: {name[:LONGEST_NAME]!r} cannot be the name of a node in ZooKeeper")
    for option, pattern in (("--whitelist", args.whitelist), ("--blacklist", args.blacklist)):
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise UsageError(f"{option}: {pattern!r} is no regular expression: {error}") from None
    return MemberSettings(
        group_id=args.group,
        bootstrap=_bootstrap(args),
        topics=topics,
        whitelist=args.whitelist,
        blacklist=args.blacklist,
        strategy=args.strategy,
        session_timeout_ms=args.session_timeout_ms,
        refresh_ms=args.refresh_ms,
        stops_with_session=args.stops_with_session,
    )


def _bootstrap(args: Consume) -> tuple[BrokerAddress, ...]:
    """Return the brokers to ask. Their ids come with the first answer; until then each has one that none can have."""
    from kcoord_wire.kernel.machines import BrokerAddress

    return tuple(BrokerAddress(-2 - index, *address) for index, address in enumerate(args.kafka))


def _settings(args: Consume) -> ConsumerSettings:
    from kcoord_wire.central.draft.events import ConsumerSettings
    from kcoord_wire.zookeeper.layout import LONGEST_NAME, is_node_name

    consumer_id = args.consumer_id or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    for option, name in (("--group", args.group), ("--consumer-id", consumer_id)):
        if not is_node_name(name):
            raise UsageError(f"{option}: {name[:LONGEST_NAME]!r} cannot be the name of a node in ZooKeeper")
    return ConsumerSettings(
        group_id=args.group,
        consumer_id=consumer_id,
        topic_count=_topic_count(args),
        bootstrap=_bootstrap(args),
        auto_commit=not args.no_auto_commit,
        auto_offset_reset=args.reset,
        session_timeout_ms=args.session_timeout_ms,
        is_fenced=not args.no_epoch,
    )


def _fetcher(args: Consume) -> Fetcher | None:
    if args.records_from is None:
        return None
    from kcoord_wire.central.kafka_fetcher import KafkaFetcher

    return KafkaFetcher([address_text(*address) for address in args.records_from], args.group)


def _topic_count(args: Consume) -> str:
    from kcoord_wire.central.draft.subscription import format_topics, format_wildcard, parse_topic_count

    if args.topics is not None:
        text = format_topics(dict.fromkeys(args.topics.split(","), args.streams))
    else:
        is_blacklist = args.blacklist is not None
        pattern = args.blacklist or args.whitelist or ""
        text = format_wildcard(pattern, args.streams, is_blacklist=is_blacklist)
    try:
        parse_topic_count(text)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return text


async def _consume(make: Callable[..., HostedConsumer[Any]], form: str, most: int | None) -> bool:
    """Print records; return whether Ctrl-C has ended it."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1, "printer") as thread:
        printer = _Printer(form, thread)
        consumer = make(on_assigned=printer.assigned)
        async with consumer:
            shutdown = partial(loop.call_soon_threadsafe, consumer.shutdown)
            received = stop_on_signals(shutdown, "waits for the coordinator")
            count = 0
            async for record in consumer:
                await loop.run_in_executor(thread, printer.record, record)
                count += 1
                if count == most:
                    consumer.shutdown()
    return received == [signal.SIGINT]


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
            print_event("record", **fields, thread=record.thread)
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
            print_event("assigned", partitions=names)
        else:
            print("# assigned:", *map(printable, names) if names else ("none",), flush=True)


# ---- the state


@dataclass(frozen=True, kw_only=True)
class Status(Command):
    """The coordinator, the groups, their consumers, owners and offsets, and what each rebalance waits for.

    examples:
      kcoord central status --zookeeper zk1:2181,zk2:2181,zk3:2181/kafka
      kcoord central status --zookeeper zk1:2181 --format json | jq .groups
    """

    zookeeper: Annotated[str, Option("the ensemble", "HOST:PORT,...[/CHROOT]")]
    zookeeper_auth: Auth = None
    connect_seconds: Annotated[Seconds, Option("that ZooKeeper may take to answer", "SECONDS")] = 15.0
    format: Format = "text"

    def run(self) -> None:
        """Print the state.

        :raises ConnectionError: ZooKeeper cannot be reached, or refuses
        """
        status = asyncio.run(_read(self))
        if self.format == "json":
            print_json(status_to_json(status))
        else:
            _print_tables(status)


def _client(args: Status | Rebalancing) -> ClusterClient:
    from kcoord_wire.central.status import ClusterClient

    settings = {
        "session_timeout_ms": SESSION_TIMEOUT_MS,
        "credentials": args.zookeeper_auth,
        "creates_chroot": False,
    }
    return ClusterClient(args.zookeeper, seconds=args.connect_seconds, **settings)


async def _read(args: Status) -> ClusterStatus:
    async with _client(args) as client:
        return await client.read()


def status_to_json(status: ClusterStatus) -> dict[str, Any]:
    """Return a cluster's state as plain data; what only the coordinator has is null where it did not answer."""
    live = {} if status.live is None else {group.group_id: group for group in status.live.groups}
    names = sorted({*status.groups, *live})
    leader = status.leader

    return {
        "coordinator": leader
        and {
            "broker": leader.broker_id,
            "epoch": leader.epoch,
            "elected_ms_ago": status.live and status.live.elected_ms,
            "silence": status.silence or None,
        },
        "coordinators": [each and {"broker": each.broker_id, "epoch": each.epoch} for each in status.leaders],
        "brokers": {str(each.broker_id): address_text(each.host, each.port) for each in status.brokers.values()},
        "topics": {topic: {str(each): number for each, number in at.items()} for topic, at in status.topics.items()},
        "rebalancing_off": sorted(status.fixed),
        "groups": {
            name: _live_part(live.get(name)) | _stored_part(status.groups.get(name), _members(status, name))
            for name in names
        },
    }


def _members(status: ClusterStatus, name: str) -> set[str] | None:
    """Return the consumers of a group; None if they are not known."""
    found = [] if status.live is None else [group for group in status.live.groups if group.group_id == name]
    if status.live is None or (status.silence and not found):
        return None
    return {each.consumer_id for group in found for each in group.consumers}


def _live_part(group: m.CentralStatusResponseGroup | None) -> dict[str, Any]:
    if group is None:
        return dict.fromkeys(("generation", "phase", "waits_for", "consumers"))
    consumers = {}
    for consumer in group.consumers:
        consumers[consumer.consumer_id] = asdict(consumer)
        del consumers[consumer.consumer_id]["consumer_id"]
    return {
        "generation": group.generation,
        "phase": group.phase,
        "waits_for": group.waits_for,
        "consumers": consumers,
    }


def _stored_part(group: GroupStatus | None, members: set[str] | None) -> dict[str, Any]:
    """Owners and offsets; owners that have left keep their nodes until another consumer gets the partition.

    :param members: the consumers of the group; None if they are not known
    """
    if group is None:
        return {"owners": {}, "left": {}, "offsets": {}}
    from kcoord_wire.central.draft.groups import consumer_of

    owners = {f"{each.topic}/{each.name}": owner for each, owner in sorted(group.owners.items())}
    left = {each: owner for each, owner in owners.items() if members is not None and consumer_of(owner) not in members}
    return {
        "owners": {each: owner for each, owner in owners.items() if each not in left},
        "left": left,
        "offsets": {f"{each.topic}/{each.name}": offset for each, offset in sorted(group.offsets.items())},
    }


def _partition_rows(group: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield each partition with its owner and offset."""
    owner_of = group["owners"] | {each: f"- ({owner} has left)" for each, owner in group["left"].items()}
    for partition in sorted({*owner_of, *group["offsets"]}):
        yield partition, owner_of.get(partition, "-"), str(group["offsets"].get(partition, "-"))


def _print_head(status: ClusterStatus) -> None:
    print(_coordinators_line(status) if len(status.leaders) > 1 else _coordinator_line(status))
    if status.fixed:
        print("rebalancing is switched off:", *map(printable, sorted(status.fixed)))
    print()


def _print_tables(status: ClusterStatus) -> None:
    """What is empty is not shown, but for the coordinator."""
    plain = status_to_json(status)
    _print_head(status)
    brokers = table("brokers", "id", "address", "partitions")
    for broker_id, address in plain["brokers"].items():
        counts = [f"{topic}:{at[broker_id]}" for topic, at in plain["topics"].items() if broker_id in at]
        brokers.add_row(broker_id, styled(address), styled(" ".join(counts)))
    groups = table("groups", "group", "generation", "phase", "waits for", "owned", "committed")
    consumers = table("consumers", "group", "consumer", "host", "topics", "session ms", "failed pings", "partitions")
    owners = table("partitions", "group", "partition", "owner", "offset")
    for name, group in plain["groups"].items():
        cells = [str(len(group["owners"])), str(len(group["offsets"]))]
        waits = " ".join(group["waits_for"] or ())
        generation = "?" if group["generation"] is None else str(group["generation"])
        groups.add_row(styled(name), generation, styled(group["phase"] or "?"), styled(waits), *cells)
        for consumer_id, consumer in (group["consumers"] or {}).items():
            facts = [
                consumer[key] for key in ("host", "topic_count", "session_timeout_ms", "failed_pings", "partitions")
            ]
            consumers.add_row(styled(name), styled(consumer_id), *(styled(str(fact)) for fact in facts))
        for partition, *facts in _partition_rows(group):
            owners.add_row(styled(name), styled(partition), *map(styled, facts))
    for made in (brokers, groups, consumers, owners):
        if made.row_count:
            print_table(made)


def _coordinators_line(status: ClusterStatus) -> str:
    """Return which broker coordinates how many of the subsets."""
    subsets: dict[str, list[str]] = {}
    for subset, leader in enumerate(status.leaders):
        who = "none" if leader is None else f"broker {leader.broker_id}"
        subsets.setdefault(who, []).append(str(subset))
    line = "coordinators: " + "; ".join(f"{who} of subset {', '.join(subsets[who])}" for who in sorted(subsets))
    return f"{line}; {status.silence}; some consumers and rebalances are not known" if status.silence else line


def _coordinator_line(status: ClusterStatus) -> str:
    if status.leader is None:
        is_empty = not (status.brokers or status.topics or status.groups)
        return "coordinator: none is elected" + ("; ZooKeeper has no broker, topic or group there" if is_empty else "")
    line = f"coordinator: broker {status.leader.broker_id}, epoch {status.leader.epoch}"
    if status.live is None:
        return f"{line}; {status.silence}; consumers and rebalances are not known"
    return f"{line}, elected {status.live.elected_ms / 1000:.1f} s ago"


# ---- rebalancing


@dataclass(frozen=True, kw_only=True)
class Rebalancing(Command):
    """Switch the rebalancing of topics off, or on again (KAFKA-364), for all groups.

    examples:
      kcoord central rebalancing off --zookeeper zk1:2181 --topics orders,payments
          their partitions stay with the consumers that own them, also while those are away
      kcoord central rebalancing on --zookeeper zk1:2181 --topics orders,payments

    a group that has no owner of a topic yet is assigned it once; new partitions wait until it is on again
    """

    switch: Annotated[Literal["off", "on"], Argument("off|on")]
    topics: Annotated[str, Option("which", "NAME,...")]
    zookeeper: Annotated[str, Option("the ensemble", "HOST:PORT,...[/CHROOT]")]
    zookeeper_auth: Auth = None
    connect_seconds: Annotated[Seconds, Option("that ZooKeeper may take to answer", "SECONDS")] = 15.0

    def run(self) -> None:
        """Change the topics' nodes.

        :raises ConnectionError: ZooKeeper cannot be reached, or refuses
        :raises ValueError: there is no such topic
        """
        asyncio.run(_switch(self))


async def _switch(args: Rebalancing) -> None:
    async with _client(args) as client:
        await client.switch_rebalancing(args.topics.split(","), is_on=args.switch == "on")
