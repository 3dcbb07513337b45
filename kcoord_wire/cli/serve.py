"""`kcoord serve`: run the group coordinator as a process.

Laws:

* When it serves it prints one line with its address on stdout. Everything else is the log on stderr: rebalances, and
  connections closed with the reason, as lines for people or as one JSON object per line.
* SIGTERM and Ctrl-C answer parked requests and write the log to disk before the process ends, with status 0 after
  SIGTERM and 130 after Ctrl-C; a second signal kills at once.
"""

from __future__ import annotations

import argparse
import logging
import os
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcoord_wire.cli.arguments import (
    add_command,
    argument,
    parse_endpoint,
    parse_positive,
    parse_setting,
    parse_size,
    parse_topics,
    topics_of,
)
from kcoord_wire.cli.process import JsonLines, allow_many_connections, collect_rarely, log_to_stderr, until_terminated
from kcoord_wire.kernel.net import parse_port

if TYPE_CHECKING:
    import ssl

    from kcoord_wire.coordinator.coordinator import Coordinator

EXAMPLES = """\
examples:
  kcoord serve --topics orders:12
      for any Kafka client, at 127.0.0.1:9092; groups, offsets and records are lost when it ends
  kcoord serve --topics orders:12,payments:8 --port 0 --data-dir ./data --metrics-port 9100
      on a free port, which it prints; groups, offsets and records are kept in ./data
  kcoord serve --topics orders:12 --config group.initial.rebalance.delay.ms=0 --faults faults.toml
      for tests: the first member does not wait for others, and heartbeats fail by script
  kcoord serve --topics orders:12 --control 9180
      with a page that shows a rebalance as it happens, and for `kcoord control 127.0.0.1:9180 ...`
  kcoord serve --host 0.0.0.0 --advertise kafka.local:9093 --port 9093 --topics orders:12 \\
      --tls-cert cert.pem --tls-key key.pem --sasl-users users.toml --permissions permissions.toml

--config (defaults are Kafka's):
  group.initial.rebalance.delay.ms=3000       group.max.size=2147483647
  group.min.session.timeout.ms=6000           group.max.session.timeout.ms=1800000
  group.new.member.join.timeout.ms=300000     offset.metadata.max.bytes=4096
  offsets.retention.minutes=10080             offsets.retention.check.interval.ms=600000
  offsets.topic.num.partitions=50             group.consumer.max.size=2147483647
  group.consumer.session.timeout.ms=45000     group.consumer.heartbeat.interval.ms=5000
  group.consumer.assignment.interval.ms=1000  group.consumer.regex.refresh.interval.ms=600000
  group.consumer.assignors=uniform,range      group.consumer.migration.policy=bidirectional
  transaction.max.timeout.ms=900000           transactional.id.expiration.ms=604800000

--sasl-users: a password works with PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512
  [users.alice]
  password = "secret"
  [users.bob]
  SCRAM-SHA-512 = "salt=...,stored_key=...,server_key=...,iterations=8192"    # as Kafka stores it

--permissions: deny by default, deny wins over allow; a name may end in *; without SASL users are User:ANONYMOUS
  [[allow]]
  principals = ["User:alice"]
  groups = ["billing-*"]
  topics = ["orders"]
  transactional_ids = ["billing-*"]
  operations = ["read", "write"]    # describe (which these two include), create, delete, alter, describe_configs,
                                    # alter_configs, all
  [[deny]]
  principals = ["*"]
  topics = ["secret-*"]
  operations = ["all"]

--faults: only action is needed (delay, drop, duplicate, error, disconnect); keys: pydoc kcoord_wire.coordinator.Fault
  [[fault]]                         # the third heartbeat and the two after it fail
  api = "Heartbeat"
  action = "error"
  error = "REBALANCE_IN_PROGRESS"
  after = 2
  count = 3
  [[fault]]                         # every tenth response to billing's commits is 5 s late
  api = "OffsetCommit"
  on = "response"
  group = "billing"
  action = "delay"
  delay_ms = 5000
  every = 10

without --data-dir topics are in memory and empty after a restart; SIGTERM ends with status 0, Ctrl-C with 130
"""


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to those of `kcoord`."""
    about = "run a group coordinator that any Kafka client can join"
    command = add_command(commands, "serve", about, _run, examples=EXAMPLES)
    command.add_argument(
        "--topics",
        type=argument(parse_topics),
        action="append",
        default=[],
        metavar="NAME:PARTITIONS,...",
        help="topics to create, as in orders:12,payments:8; may be repeated",
    )
    command.add_argument(
        "--auto-create",
        type=argument(parse_positive),
        metavar="PARTITIONS",
        help="create topics that clients ask for, with this number of partitions",
    )
    command.add_argument(
        "--as-version",
        type=argument(_release),
        metavar="RELEASE",
        help="answer as this release of Kafka, 0.11 to 4.4, without apis and versions that are newer",
    )
    command.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    command.add_argument(
        "--port", type=argument(parse_port), default=9092, help="0 takes a free one (default: %(default)s)"
    )
    command.add_argument(
        "--brokers",
        type=argument(parse_positive),
        default=1,
        metavar="NUMBER",
        help="brokers, each with a port of its own: --port and those that follow it (default: %(default)s)",
    )
    command.add_argument(
        "--advertise",
        type=argument(parse_endpoint),
        metavar="HOST:PORT",
        help="address in responses (default: --host and --port; the machine's name if the host is 0.0.0.0 or ::)",
    )
    command.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="keep groups, offsets, topics and records here; created if missing"
    )
    command.add_argument(
        "--retention-bytes",
        type=argument(parse_size),
        metavar="SIZE",
        help="records of all topics together, as in 2G; the oldest are dropped beyond that (default: 256M in memory, no"
        " bound with --data-dir)",
    )
    command.add_argument(
        "--config",
        type=argument(_setting),
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of a Kafka broker (below), as in group.initial.rebalance.delay.ms=0; may be repeated",
    )
    command.add_argument("--tls-cert", type=Path, metavar="FILE", help="PEM certificate chain: accept only TLS")
    command.add_argument("--tls-key", type=Path, metavar="FILE", help="its PEM key, if not in the same file")
    command.add_argument(
        "--tls-client-ca", type=Path, metavar="FILE", help="require client certificates signed by this PEM authority"
    )
    command.add_argument("--sasl-users", type=Path, metavar="FILE", help="TOML (below): who may connect")
    command.add_argument("--permissions", type=Path, metavar="FILE", help="TOML (below): who may do what")
    command.add_argument("--faults", type=Path, metavar="FILE", help="TOML (below): the faults to inject")
    command.add_argument(
        "--metrics-port", type=argument(parse_port), metavar="PORT", help="serve Prometheus metrics over HTTP here"
    )
    command.add_argument(
        "--control",
        type=argument(parse_port),
        metavar="PORT",
        help="let `kcoord control` and a page steer it over HTTP, on the loopback; the token is printed, or that of the"
        " environment variable KCOORD_CONTROL_TOKEN",
    )
    command.add_argument(
        "--control-token-file",
        type=Path,
        metavar="FILE",
        help="write the token of --control here, for its owner alone, instead of printing it",
    )
    command.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="form of the log on stderr (default: %(default)s)",
    )


def _setting(text: str) -> tuple[str, str]:
    from kcoord_wire.coordinator.core.config import GroupConfig

    name, value = parse_setting(text)
    GroupConfig.from_properties({name: value})
    return name, value


def _release(text: str) -> str:
    from kcoord_wire.coordinator.topics.releases import served_by

    served_by(text)
    return text


def _run(args: argparse.Namespace) -> None:
    """Serve until a signal comes.

    :raises OSError: the port, the folder or a file cannot be used
    :raises ValueError: a file or the log is invalid
    :raises KeyboardInterrupt: after Ctrl-C, when the coordinator has stopped
    """
    from kcoord_wire.coordinator.coordinator import Coordinator
    from kcoord_wire.coordinator.core.config import GroupConfig
    from kcoord_wire.coordinator.fault_injection import Faults
    from kcoord_wire.coordinator.log.segments import CorruptLogError
    from kcoord_wire.coordinator.security.authentication import Users
    from kcoord_wire.coordinator.security.permissions import Permissions
    from kcoord_wire.coordinator.topics.catalog import TopicLimits
    from kcoord_wire.kernel.disk import LogInUseError

    coordinator = Coordinator(
        topics_of(args.topics),
        host=args.host,
        port=args.port,
        brokers=args.brokers,
        data_dir=args.data_dir,
        topic_limits=TopicLimits(retention_bytes=args.retention_bytes),
        config=GroupConfig.from_properties(dict(args.config)),
        faults=args.faults and Faults.from_file(args.faults),
        tls=_tls(args),
        users=args.sasl_users and Users.from_file(args.sasl_users),
        permissions=args.permissions and Permissions.from_file(args.permissions),
        advertise=args.advertise,
        auto_create_partitions=args.auto_create,
        as_version=args.as_version,
        metrics_port=args.metrics_port,
    )
    log_to_stderr(_Lines() if args.log_format == "json" else None)
    allow_many_connections()
    try:
        with until_terminated(), ExitStack() as stack:
            coordinator.start()
            collect_rarely()
            metrics = "" if coordinator.metrics_port is None else f", metrics on port {coordinator.metrics_port}"
            kept = "in memory" if args.data_dir is None else f"in {args.data_dir}"
            control = _control(coordinator, args, stack)
            print(f"kcoord serves on {coordinator.address}, groups {kept}{metrics}{control}", flush=True)
            coordinator.wait()
    except socket.gaierror as error:
        raise ValueError(f"--host {args.host}: {error.strerror}") from error
    except LogInUseError as error:
        raise ValueError(str(error)) from error
    except CorruptLogError as error:
        raise ValueError(f"{args.data_dir}: {error}; nothing was changed; use another folder to start empty") from error
    finally:
        coordinator.stop()


def _control(coordinator: Coordinator, args: argparse.Namespace, stack: ExitStack) -> str:
    """Serve the control port until the stack is left, and return what the first line says of it."""
    if args.control is None:
        if args.control_token_file is not None:
            raise ValueError("--control-token-file needs --control")
        return ""
    from kcoord_wire.control import ControlServer

    server = stack.enter_context(ControlServer(coordinator, args.control))
    if args.control_token_file is None:
        return f", control at {server.page}"
    args.control_token_file.unlink(missing_ok=True)  # it may be another's, or readable for others
    descriptor = os.open(args.control_token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(server.token)
    return f", control at {server.url}"


def _tls(args: argparse.Namespace) -> ssl.SSLContext | None:
    if args.tls_cert is None:
        if args.tls_key is not None or args.tls_client_ca is not None:
            raise ValueError("--tls-key and --tls-client-ca need --tls-cert")
        return None
    import ssl

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    for path in filter(None, (args.tls_cert, args.tls_key, args.tls_client_ca)):
        path.open("rb").close()  # names a missing file; ssl's own errors do not
    try:
        context.load_cert_chain(args.tls_cert, args.tls_key, password="")
        if args.tls_client_ca is not None:
            context.load_verify_locations(args.tls_client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except ssl.SSLError as error:
        raise ValueError(f"{args.tls_cert}: not a certificate with its key: {error}") from None
    return context


class _Lines(JsonLines):
    """A rebalance with all its fields, anything else with its text."""

    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """Of a rebalance's report, or of another line."""
        from kcoord_wire.coordinator.description import rebalance_to_json

        report = getattr(record, "rebalance_report", None)
        return super().fields(record) if report is None else rebalance_to_json(report.rebalance, report.phase)
