"""`kcoord watch`: follow groups of a live cluster by its Admin API, on the terminal, for Prometheus, and as a report.

Laws:

* It joins no group, commits nothing and changes nothing: see `kcoord_wire.watch.host`.
* Changes and the report's summary go to stdout; where the metrics are, and what went wrong, to stderr.
* Ctrl-C and SIGTERM write the report and end with status 0; a second signal kills. A cluster that cannot be reached at
  the beginning, and a refused login, end with status 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kcoord_wire.cli.arguments import add_command, add_settings_argument, argument, parse_seconds
from kcoord_wire.cli.output import complain, print_json
from kcoord_wire.cli.process import stop_on_signals
from kcoord_wire.cli.report_files import make_writable, write_report
from kcoord_wire.kernel.net import parse_port

if TYPE_CHECKING:
    from kcoord_wire.forensics.model import GroupHistory
    from kcoord_wire.watch.groups import Snapshot, Watched
    from kcoord_wire.watch.host import View

EXAMPLES: Final = """\
examples:
  kcoord watch --kafka broker:9092
      all groups: state, members with their partitions, lag; each change as it is seen
  kcoord watch --kafka broker:9092 --group billing --out report
      one group; Ctrl-C writes report/report.html, report.json and Parquet tables
  kcoord watch --kafka broker:9092 --prometheus 9464 --format json >> changes.jsonl
      metrics at http://127.0.0.1:9464/metrics, and each change as a JSON object
  kcoord watch --kafka broker:9092 --kafka-config security.protocol=SASL_SSL --once
      how it is now

Can the watch itself trigger a rebalance? No. It asks (ListGroups, DescribeGroups, ConsumerGroupDescribe, OffsetFetch,
ListOffsets) and sends no JoinGroup, SyncGroup, Heartbeat, LeaveGroup or OffsetCommit: it is a member of no group, so no
coordinator waits for it or misses it. It costs each coordinator one small request per group and interval.

The user needs Describe on the groups and on their topics, as for kafka-consumer-groups.sh --describe.
"""


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to those of `kcoord`."""
    about = "follow the groups of a live cluster by its Admin API; joins no group, changes nothing"
    command = add_command(commands, "watch", about, _run, examples=EXAMPLES)
    command.add_argument("--kafka", metavar="HOST:PORT", required=True, help="brokers to ask first, with commas")
    add_settings_argument(command, "--kafka-config", "as in sasl.username=me")
    command.add_argument("--group", action="append", metavar="ID", help="only this group; may be repeated")
    command.add_argument(
        "--interval",
        type=argument(parse_seconds),
        default=2.0,
        metavar="S",
        help="between polls (default: %(default)s)",
    )
    command.add_argument("--once", action="store_true", help="ask once, print how it is, and end")
    command.add_argument(
        "--rebalance-timeout",
        type=argument(parse_seconds),
        metavar="S",
        help="the clients' max.poll.interval.ms in seconds, to say until when a rebalance waits at the latest; the "
        "Admin API does not show it",
    )
    command.add_argument(
        "--prometheus", type=argument(parse_port), metavar="PORT", help="serve metrics over HTTP here; 0: a free port"
    )
    command.add_argument(
        "--prometheus-host", default="127.0.0.1", metavar="HOST", help="address of that port (default: %(default)s)"
    )
    command.add_argument("--out", type=Path, metavar="DIR", help="write tables, report.json and report.html at the end")
    command.add_argument("--format", choices=("text", "json"), default="text")


def _run(args: argparse.Namespace) -> None:
    from kcoord_wire.watch.groups import Watched
    from kcoord_wire.watch.host import AdminPolls, Watch

    if args.out is not None:
        make_writable(args.out)
    watched = Watched(args.kafka)
    config = dict(args.kafka_config)
    polls = AdminPolls(args.kafka, config, groups=args.group, choose=watched.wanted)
    watch = Watch(polls, watched, args.interval)
    with _metrics(watched, args):
        if not args.once:
            stop_on_signals(watch.stop, "writing the report" if args.out else "ending")
        watch.run(_Silent() if args.once else _view(args), times=1 if args.once else None)
    if watched.snapshot.answered_ns is not None:  # else it was stopped before the first answer
        _finish(watched, args)


class _Silent:
    def show(self, *_: object) -> None:
        """Show nothing: one poll is printed as a whole."""


def _view(args: argparse.Namespace) -> View:
    from kcoord_wire.watch.host import JsonView, LineView, ScreenView

    if args.format == "json":
        return JsonView(print_json, sys.stdout)
    if sys.stdout.isatty():
        return ScreenView(sys.stdout, _until_ms(args))
    return LineView(sys.stdout)


def _until_ms(args: argparse.Namespace) -> float | None:
    return None if args.rebalance_timeout is None else args.rebalance_timeout * 1000


@contextmanager
def _metrics(watched: Watched, args: argparse.Namespace) -> Iterator[None]:
    if args.prometheus is None:
        yield
        return
    from kcoord_wire.watch.groups import WatchMetrics

    with WatchMetrics(lambda: watched.snapshot).serve(args.prometheus_host, args.prometheus) as server:
        print(f"metrics at http://{args.prometheus_host}:{server.port}/metrics", file=sys.stderr, flush=True)
        yield


def _finish(watched: Watched, args: argparse.Namespace) -> None:
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


def _print_once(snapshot: Snapshot, args: argparse.Namespace) -> None:
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


def _why_empty(args: argparse.Namespace) -> str:
    if args.group:
        return f"no consumer group called {', '.join(args.group)} is at {args.kafka}, or you may not see it"
    return f"no consumer group is at {args.kafka}, or the user has no right to see one: it needs Describe on groups"
