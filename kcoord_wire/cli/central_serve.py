"""`kcoord central serve`: run a broker of the draft, which stands for election as the coordinator, or of the rewrite,
which coordinates its part of the groups.

Laws:

* When it is registered in ZooKeeper and serves, it prints one line with its address on stdout. Everything else is the
  log on stderr: elections, consumers, rebalances, and connections closed with the reason.
* SIGTERM and Ctrl-C end its session, so that another broker is elected at once; the status is 0 after SIGTERM and 130
  after Ctrl-C. A second signal kills at once.
"""

from __future__ import annotations

import argparse
import socket
from contextlib import ExitStack
from typing import Any, Final

from kcoord_wire.cli.arguments import add_command, argument, parse_endpoint, parse_positive, parse_topics, topics_of
from kcoord_wire.cli.process import JsonLines, allow_many_connections, log_to_stderr, until_terminated
from kcoord_wire.kernel.net import parse_port

EXAMPLES: Final = """\
examples:
  kcoord central serve --zookeeper embedded --topics orders:12
      a real ZooKeeper in a temporary folder, and one broker at 127.0.0.1:9092
  kcoord central serve --zookeeper zk1:2181,zk2:2181,zk3:2181/kafka --broker-id 2 --port 9093 --topics orders:12
      one of several brokers; the coordinator is the one that ZooKeeper elects
  kcoord central serve --zookeeper zk1:2181 --topics orders:12 --rebalance-by sockets
      the older passage of the draft: it rebalances by closing the consumers' connections
  kcoord central serve --zookeeper zk1:2181 --design rewrite --topics orders:12
      a broker of "Kafka 0.9 Consumer Rewrite Design": Kafka's frames, JoinGroup of clients 0.8.2

records are generated: record n of a partition is the text TOPIC-PARTITION@n, and every partition grows by --rate since
the first broker has started, so every broker serves the same records and keeps none
topics stay in ZooKeeper; a greater number of partitions adds some, a smaller one changes nothing
SIGTERM ends with status 0, Ctrl-C with 130; both end the session, so another broker takes over at once
"""


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to those of `kcoord central`."""
    about = "run a broker of the draft, which coordinates all groups if it is elected, or of the rewrite"
    command = add_command(commands, "serve", about, _run, examples=EXAMPLES)
    command.add_argument(
        "--zookeeper",
        required=True,
        metavar="HOST:PORT,...[/CHROOT]",
        help="the ensemble; or: embedded, to start one node in a temporary folder (Java and pyspark's jars)",
    )
    command.add_argument("--broker-id", type=argument(parse_positive), default=1, help="default: %(default)s")
    command.add_argument(
        "--topics",
        type=argument(parse_topics),
        action="append",
        default=[],
        metavar="NAME:PARTITIONS,...",
        help="topics with partitions at this broker, as in orders:12,payments:8; may be repeated",
    )
    command.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    command.add_argument(
        "--port", type=argument(parse_port), default=9092, help="0 takes a free one (default: %(default)s)"
    )
    command.add_argument(
        "--advertise",
        type=argument(parse_endpoint),
        metavar="HOST:PORT",
        help="address in ZooKeeper, for consumers (default: --host and --port)",
    )
    command.add_argument(
        "--rate", type=argument(_rate), default=10.0, help="records a second of each partition (default: %(default)s)"
    )
    command.add_argument(
        "--session-timeout-ms",
        type=argument(parse_positive),
        default=6_000,
        metavar="MS",
        help="of the session with ZooKeeper (default: %(default)s)",
    )
    command.add_argument(
        "--zookeeper-auth", type=argument(parse_auth), metavar="USER:PASSWORD", help="digest: nodes get an ACL for it"
    )
    command.add_argument(
        "--design", choices=("draft", "rewrite"), default="draft", help="what it speaks (default: %(default)s)"
    )
    for name, defaults, about in SETTINGS:
        design = "" if len(defaults) > 1 else f"{next(iter(defaults))}: "
        text = " or ".join(map(str, defaults.values()))
        command.add_argument(name, type=argument(_count), metavar="N", help=f"{design}{about} (default: {text})")
    command.add_argument(
        "--rebalance-by",
        choices=("fetchers", "sockets"),
        help="draft: fetchers, by StopFetcher and StartFetcher; sockets, as in section 2 (default: fetchers)",
    )
    command.add_argument(
        "--log-format", choices=("text", "json"), default="text", help="of the log on stderr (default: %(default)s)"
    )


SETTINGS: Final = (
    ("--min-session-timeout-ms", {"draft": 1_000, "rewrite": 6_000}, "the shortest session timeout of consumers"),
    ("--max-ping-retries", {"draft": 1}, "so many pings in a row may fail"),
    ("--offset-commit-interval-ms", {"draft": 1_000}, "between two commits of consumed offsets to ZooKeeper"),
    ("--max-rebalance-retries", {"draft": 4}, "of one rebalance"),
    ("--rebalance-backoff-ms", {"draft": 2_000}, "before each retry"),
    ("--rebalance-handlers", {"draft": 4}, "so many groups rebalance at once"),
    ("--max-session-timeout-ms", {"rewrite": 30_000}, "the longest session timeout of members"),
    ("--shards", {"rewrite": 50}, "into so many the groups are divided, if this is the first broker"),
)
"""Options that are settings of the coordinator: name, default by design, what it is."""


def _run(args: argparse.Namespace) -> None:
    """Serve until a signal comes.

    :raises OSError: the port cannot be used
    :raises ValueError: the id or a topic cannot be registered, another broker has the id, or ZooKeeper does not answer
    :raises KeyboardInterrupt: after Ctrl-C, when the broker has stopped
    """
    from kcoord_wire.central.served_topics import check_broker

    broker_class, settings = _rewrite(args) if args.design == "rewrite" else _draft(args)
    topics = topics_of(args.topics)
    check_broker(args.broker_id, topics)
    log_to_stderr(JsonLines() if args.log_format == "json" else None)
    allow_many_connections()
    with ExitStack() as stack, until_terminated():
        zookeeper = args.zookeeper
        if zookeeper == "embedded":
            zookeeper = stack.enter_context(_embedded()).connect
        broker = broker_class(
            zookeeper,
            broker_id=args.broker_id,
            topics=topics,
            host=args.host,
            port=args.port,
            advertise=args.advertise,
            rate=args.rate,
            settings=settings,
            session_timeout_ms=args.session_timeout_ms,
            auth=args.zookeeper_auth,
        )
        stack.callback(broker.stop)
        try:
            broker.start()
        except socket.gaierror as error:
            raise ValueError(f"--host {args.host}: {error.strerror}") from error
        print(f"kcoord central serves on {broker.address}, ZooKeeper at {zookeeper}", flush=True)
        broker.wait()


def _draft(args: argparse.Namespace) -> tuple[type[Any], Any]:
    from kcoord_wire.central.broker import CentralBroker
    from kcoord_wire.central.draft.events import CoordinatorSettings, RebalanceBy

    rebalance_by = RebalanceBy(args.rebalance_by or "fetchers")
    return CentralBroker, CoordinatorSettings(**_settings(args), rebalance_by=rebalance_by)


def _rewrite(args: argparse.Namespace) -> tuple[type[Any], Any]:
    from kcoord_wire.central.broker import RewriteBroker
    from kcoord_wire.central.rewrite.events import CoordinatorSettings

    if args.rebalance_by is not None:
        raise ValueError("--rebalance-by is not an option of --design rewrite")
    return RewriteBroker, CoordinatorSettings(**_settings(args))


def _settings(args: argparse.Namespace) -> dict[str, int]:
    """Return the options that were given. ValueError: one of the other design."""
    given = {}
    for option, defaults, _ in SETTINGS:
        name = option.removeprefix("--").replace("-", "_")
        value = getattr(args, name)
        if value is not None and args.design not in defaults:
            raise ValueError(f"{option} is not an option of --design {args.design}")
        if value is not None:
            given[name] = value
    return given


def _embedded() -> Any:
    from kcoord_wire.zookeeper.ensemble import Ensemble

    return Ensemble()


def parse_auth(text: str) -> tuple[str, str]:
    """User and password of ``USER:PASSWORD``. ValueError: not of that form."""
    user, colon, password = text.partition(":")
    if not colon or not user or not password:
        raise ValueError("not of the form USER:PASSWORD")
    return user, password


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not 0 <= rate <= 1_000_000:
        raise ValueError(f"{text!r} is not a number from 0 to 1000000")
    return rate


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)
