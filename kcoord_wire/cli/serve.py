"""`kcoord serve`: run the group coordinator as a process.

Laws:

* When it serves it prints one line with its address on stdout. Everything else is the log on stderr: rebalances, and
  connections closed with the reason, as lines for people or as one JSON object per line.
* SIGTERM and Ctrl-C answer parked requests and write the log to disk before the process ends, with status 0 after
  SIGTERM and 130 after Ctrl-C; a second signal kills at once.
"""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from kcoord_wire.cli.options import (
    Command,
    Endpoint,
    LogFormat,
    Option,
    Port,
    Positive,
    Size,
    Topics,
    UsageError,
    parse_setting,
    topics_of,
    whole,
)
from kcoord_wire.cli.process import (
    JsonLines,
    allow_many_connections,
    load_certificate,
    log_to_stderr,
    named_host,
    relax_gc,
    require_files,
    saying_what_is_kept,
    until_terminated,
)

if TYPE_CHECKING:
    import ssl

    from kcoord_wire.coordinator.coordinator import Coordinator


def _setting(text: str) -> tuple[str, str]:
    from kcoord_wire.coordinator.core.config import GroupConfig

    name, value = parse_setting(text)
    GroupConfig.from_properties({name: value})
    return name, value


def _release(text: str) -> str:
    from kcoord_wire.coordinator.topics.releases import served_by

    served_by(text)
    return text


@dataclass(frozen=True, kw_only=True)
class Serve(Command):
    """Run a group coordinator that any Kafka client can join.

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
      [[super_users]]                   # everything, whatever denies it, for example ACLs by request
      principals = ["User:admin"]
      [[deny]]
      principals = ["*"]
      topics = ["secret-*"]
      operations = ["all"]

    --faults: only action is needed
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

    topics: Annotated[
        tuple[Topics, ...],
        Option("topics to create, as in orders:12,payments:8; may be repeated", "NAME:PARTITIONS,..."),
    ] = ()
    auto_create: Annotated[
        Positive | None,
        Option("create topics whose metadata clients ask for by name, with this number of partitions", "PARTITIONS"),
    ] = None
    as_version: Annotated[
        str | None,
        _release,
        Option("answer as this release of Kafka, 0.11 to 4.4, without apis and versions that are newer", "RELEASE"),
    ] = None
    host: Annotated[str, Option("address to listen on")] = "127.0.0.1"
    port: Annotated[Port, Option("0 takes a free one")] = 9092
    brokers: Annotated[
        Positive, Option("brokers, each with a port of its own: --port and those that follow it", "NUMBER")
    ] = 1
    node_id: Annotated[
        Annotated[int, whole(0)], Option("of the first broker (node.id); the others have those that follow it", "N")
    ] = 0
    advertise: Annotated[
        Endpoint | None,
        Option(
            "address in responses (default: --host and --port; the machine's name if the host is 0.0.0.0 or ::)",
            "HOST:PORT",
        ),
    ] = None
    data_dir: Annotated[
        Path | None, Option("keep groups, offsets, topics and records here; created if missing", "DIR")
    ] = None
    retention_bytes: Annotated[
        Size | None,
        Option(
            "records of all topics together, as in 2G; the oldest are dropped beyond that (default: 256M in memory, no"
            " bound with --data-dir)",
            "SIZE",
        ),
    ] = None
    max_input: Annotated[
        Size | None,
        Option(
            "requests of all clients together that have not arrived whole, as in 64M; beyond that the slowest client is"
            " disconnected (default: 128M)",
            "SIZE",
        ),
    ] = None
    config: Annotated[
        tuple[Annotated[tuple[str, str], _setting], ...],
        Option(
            "a setting of a Kafka broker (below), as in group.initial.rebalance.delay.ms=0; may be repeated",
            "NAME=VALUE",
        ),
    ] = ()
    tls_cert: Annotated[Path | None, Option("PEM certificate chain: accept only TLS", "FILE")] = None
    tls_key: Annotated[Path | None, Option("its PEM key, if not in the same file", "FILE")] = None
    tls_client_ca: Annotated[
        Path | None, Option("require client certificates signed by this PEM authority", "FILE")
    ] = None
    sasl_users: Annotated[Path | None, Option("TOML (below): who may connect", "FILE")] = None
    permissions: Annotated[Path | None, Option("TOML (below): who may do what", "FILE")] = None
    faults: Annotated[Path | None, Option("TOML (below): the faults to inject", "FILE")] = None
    metrics_port: Annotated[Port | None, Option("serve Prometheus metrics over HTTP here; 0: a free port", "PORT")] = (
        None
    )
    control: Annotated[
        Port | None,
        Option(
            "let `kcoord control` and a page steer it over HTTP, on the loopback; the token is printed, or that of the"
            " environment variable KCOORD_CONTROL_TOKEN",
            "PORT",
        ),
    ] = None
    control_token_file: Annotated[
        Path | None,
        Option("write the token of --control here, for its owner alone, instead of printing it", "FILE"),
    ] = None
    format: LogFormat = "text"

    def __post_init__(self) -> None:
        topics_of(self.topics)
        if self.tls_cert is None and (self.tls_key is not None or self.tls_client_ca is not None):
            raise UsageError("--tls-key and --tls-client-ca need --tls-cert")
        if self.control is None and self.control_token_file is not None:
            raise UsageError("--control-token-file needs --control")

    @classmethod
    def notes(cls) -> str:
        """Return the settings, and what faults can do."""
        from kcoord_wire.coordinator import fault_injection
        from kcoord_wire.coordinator.core.config import GroupConfig
        from kcoord_wire.kernel.settings import help_lines

        config = "\n  ".join(["--config (with Kafka's defaults):", *help_lines(GroupConfig)])
        return "\n  ".join([f"{config}\n\n--faults:", *fault_injection.help_lines()])

    def run(self) -> None:
        """Serve until a signal comes.

        :raises OSError: the port, the folder or a file cannot be used
        :raises ValueError: a file or the log is invalid
        :raises KeyboardInterrupt: after Ctrl-C, when the coordinator has stopped
        """
        from kcoord_wire.coordinator.connection import PeerLimits
        from kcoord_wire.coordinator.coordinator import Coordinator
        from kcoord_wire.coordinator.core.config import GroupConfig
        from kcoord_wire.coordinator.fault_injection import Faults
        from kcoord_wire.coordinator.security.authentication import Users
        from kcoord_wire.coordinator.security.permissions import Permissions
        from kcoord_wire.coordinator.topics.catalog import TopicLimits
        from kcoord_wire.kernel.disk import LogInUseError
        from kcoord_wire.log.tail import CorruptLogError

        coordinator = Coordinator(
            topics_of(self.topics),
            host=self.host,
            port=self.port,
            brokers=self.brokers,
            node_id=self.node_id,
            data_dir=self.data_dir,
            limits=PeerLimits() if self.max_input is None else PeerLimits(max_input_held=self.max_input),
            topic_limits=TopicLimits(retention_bytes=self.retention_bytes),
            config=GroupConfig.from_properties(dict(self.config)),
            faults=None if self.faults is None else Faults.from_file(self.faults),
            tls=_tls(self),
            users=None if self.sasl_users is None else Users.from_file(self.sasl_users),
            permissions=None if self.permissions is None else Permissions.from_file(self.permissions),
            advertise=self.advertise,
            auto_create_partitions=self.auto_create,
            as_version=self.as_version,
            metrics_port=self.metrics_port,
        )
        log_to_stderr(_Lines() if self.format == "json" else None)
        allow_many_connections()
        try:
            with (
                saying_what_is_kept(self._kept),
                named_host(f"--host {self.host}"),
                until_terminated(),
                ExitStack() as stack,
            ):
                coordinator.start()
                relax_gc()
                metrics = "" if coordinator.metrics_port is None else f", metrics on port {coordinator.metrics_port}"
                kept = "in memory" if self.data_dir is None else f"in {self.data_dir}"
                control = _control(coordinator, self, stack)
                print(f"kcoord serves on {coordinator.address}, groups {kept}{metrics}{control}", flush=True)
                coordinator.wait()
        except LogInUseError as error:
            raise ValueError(str(error)) from error
        except CorruptLogError as error:
            raise ValueError(
                f"{self.data_dir}: {error}; nothing was changed; use another folder to start empty"
            ) from error
        finally:
            coordinator.stop()

    def _kept(self) -> str:
        return "" if self.data_dir is None else f"groups, offsets and topics are kept in {self.data_dir}"


def _control(coordinator: Coordinator, args: Serve, stack: ExitStack) -> str:
    """Serve the control port until the stack is left, and return what the first line says of it."""
    if args.control is None:
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


def _tls(args: Serve) -> ssl.SSLContext | None:
    if args.tls_cert is None:
        return None
    import ssl

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    require_files(args.tls_cert, args.tls_key, args.tls_client_ca)
    load_certificate(context, args.tls_cert, args.tls_key)
    if args.tls_client_ca is not None:
        try:
            context.load_verify_locations(args.tls_client_ca)
        except ssl.SSLError as error:
            raise ValueError(f"{args.tls_client_ca}: not PEM certificates: {error}") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class _Lines(JsonLines):
    """A rebalance with all its fields, anything else with its text."""

    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """Of a rebalance's report, or of another line."""
        from kcoord_wire.coordinator.description import rebalance_to_json

        report = getattr(record, "rebalance_report", None)
        return super().fields(record) if report is None else rebalance_to_json(report.rebalance, report.phase)
