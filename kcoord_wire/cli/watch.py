"""`kcoord watch`: follow groups of a live cluster by its Admin API, on the terminal, for Prometheus, and as a report.

Laws:

* It joins no group, commits nothing and changes nothing: see `kcoord_wire.watch.host`.
* Changes and the report's summary go to stdout; where the metrics are, and what went wrong, to stderr.
* Ctrl-C and SIGTERM write the report and end with status 0; a second signal kills. A cluster that cannot be reached at
  the beginning, and a refused login, end with status 1.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from kcoord_wire.cli.options import Command, Format, Groups, KafkaConfig, Option, Port, Seconds
from kcoord_wire.cli.output import complain, make_writable, print_json, write_report
from kcoord_wire.cli.process import stop_on_signals
from kcoord_wire.extras import require

if TYPE_CHECKING:
    from kcoord_wire.forensics.model import GroupHistory
    from kcoord_wire.watch.groups import Snapshot, Watched
    from kcoord_wire.watch.host import View


@dataclass(frozen=True, kw_only=True)
class Watch(Command):
    """Follow the groups of a live cluster by its Admin API; joins no group, changes nothing.

    examples:
      kcoord watch --kafka broker:9092
          all groups: state, members with their partitions, lag; each change as it is seen
      kcoord watch --kafka broker:9092 --group billing --out report
          one group; Ctrl-C writes report/report.html, report.json and Parquet tables
      kcoord watch --kafka broker:9092 --metrics-port 9464 --format json >> changes.jsonl
          metrics at http://127.0.0.1:9464/metrics, and each change as a JSON object
      kcoord watch --kafka broker:9092 --kafka-config security.protocol=SASL_SSL --once
          how it is now

    Can the watch itself trigger a rebalance? No. It asks (ListGroups, DescribeGroups, ConsumerGroupDescribe,
    OffsetFetch, ListOffsets, DescribeCluster) and sends no JoinGroup, SyncGroup, Heartbeat, LeaveGroup or OffsetCommit:
    it is a member of no group, so no coordinator waits for it or misses it. It costs each coordinator one small request
    per group and interval.

    The user needs Describe on the groups and on their topics, as for kafka-consumer-groups.sh --describe.
    """

    kafka: Annotated[str, Option("brokers to ask first, with commas", "HOST:PORT")]
    kafka_config: KafkaConfig = ()
    group: Groups = ()
    interval: Annotated[Seconds, Option("between polls", "SECONDS")] = 2.0
    once: Annotated[bool, Option("ask once, print how it is, and end")] = False
    rebalance_timeout: Annotated[
        Seconds | None,
        Option(
            "the clients' max.poll.interval.ms in seconds, to say until when a rebalance waits at the latest; the "
            "Admin API does not show it",
            "SECONDS",
        ),
    ] = None
    metrics_port: Annotated[Port | None, Option("serve Prometheus metrics over HTTP here; 0: a free port", "PORT")] = (
        None
    )
    metrics_host: Annotated[str, Option("address of that port", "HOST")] = "127.0.0.1"
    out: Annotated[Path | None, Option("write tables, report.json and report.html at the end", "DIR")] = None
    format: Format = "text"

    def run(self) -> None:
        """Ask until a signal comes.

        :raises OSError: the folder of the report cannot be written, or the port of metrics is taken
        :raises MissingLibraryError: pyarrow is not installed
        """
        require("pyarrow", "analyze", "watch")
        from kcoord_wire.watch.groups import Watched
        from kcoord_wire.watch.host import AdminPolls
        from kcoord_wire.watch.host import Watch as Host

        if self.out is not None:
            make_writable(self.out)
        watched = Watched(self.kafka)
        polls = AdminPolls(self.kafka, dict(self.kafka_config), groups=self.group or None, choose=watched.wanted)
        watch = Host(polls, watched, self.interval)
        with _metrics(watched, self):
            if not self.once:
                stop_on_signals(watch.stop, "writing the report" if self.out else "ending")
            watch.run(_Silent() if self.once else _view(self), times=1 if self.once else None)
        if watched.snapshot.answered_ns is not None:  # else it was stopped before the first answer
            _finish(watched, self)


class _Silent:
    def show(self, *_: object) -> None:
        """Show nothing: one poll is printed as a whole."""


def _view(args: Watch) -> View:
    from kcoord_wire.watch.host import JsonView, LineView, ScreenView

    if args.format == "json":
        return JsonView(print_json, sys.stdout)
    if sys.stdout.isatty():
        return ScreenView(sys.stdout, _until_ms(args))
    return LineView(sys.stdout)


def _until_ms(args: Watch) -> float | None:
    return None if args.rebalance_timeout is None else args.rebalance_timeout * 1000


@contextmanager
def _metrics(watched: Watched, args: Watch) -> Iterator[None]:
    if args.metrics_port is None:
        yield
        return
    from kcoord_wire.watch.groups import WatchMetrics

    with WatchMetrics(lambda: watched.snapshot).serve(args.metrics_host, args.metrics_port) as server:
        print(f"metrics at http://{args.metrics_host}:{server.port}/metrics", file=sys.stderr, flush=True)
        yield


def _finish(watched: Watched, args: Watch) -> None:
    histories = watched.histories()
    if args.once:
        _print_once(watched.snapshot, args)
    elif args.format == "text":
        _print_summary(histories)
    if args.out is not None:
        answered, missed = watched.snapshot.polls
        source = f"{answered:,} polls" + (f", {missed:,} without an answer" if missed else "")
        write_report(histories, [], args.out, title=args.kafka, source=source)
        if args.format == "text":
            print(f"\n{args.out / 'report.html'}")
    sys.stdout.flush()
    if not histories:
        complain(_why_empty(args))


def _print_once(snapshot: Snapshot, args: Watch) -> None:
    from kcoord_wire.watch.view import group_lines, headline, plain, view_to_json

    if args.format == "json":
        for view in snapshot.groups:
            print_json(view_to_json(view))
        return
    now = time.time_ns()
    lines = [headline(snapshot, source=args.kafka, now=now), ""]
    for view in snapshot.groups:
        lines += group_lines(view, now=now, until_ms=_until_ms(args))
    print(*(lines if sys.stdout.isatty() else map(plain, lines)), sep="\n")


def _print_summary(histories: list[GroupHistory]) -> None:
    from kcoord_wire.report import print_summary

    print()
    print_summary(histories, [], sys.stdout)


def _why_empty(args: Watch) -> str:
    if args.group:
        return f"no consumer group called {', '.join(args.group)} is at {args.kafka}, or you may not see it"
    return f"no consumer group is at {args.kafka}, or the user has no right to see one: it needs Describe on groups"
