"""`kcoord simulate rolling-bounce`: what a deploy that restarts one instance after the other would cost a group.

Laws:

* The same arguments give the same output on every machine.
* The table and the JSON object have the same results; notes about what was assumed go to stderr.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any, Final

from kcoord_wire.cli.arguments import UsageError, add_command, argument, parse_plot_path, parse_positive
from kcoord_wire.cli.captured_group import CapturedGroup, Origin, captured_group, print_origins
from kcoord_wire.cli.output import complain, print_json, print_table, styled, table

if TYPE_CHECKING:
    from kcoord_wire.report.page.charts import LinePlot
    from kcoord_wire.worlds.group.bounce_account import BounceResult
    from kcoord_wire.worlds.group.rolling_bounce import BounceWorkload

PROTOCOLS: Final = ("eager", "sticky", "cooperative", "static", "consumer")
TOPIC: Final = "events"
_MOST: Final = (1 << 31) - 1  # of Kafka's settings in ms

EXAMPLES: Final = """\
protocols:
  eager        range: all give up all partitions in every rebalance
  sticky       eager too, but partitions come back to where they were
  cooperative  cooperative-sticky: only what moves is given up
  static       range with group.instance.id: a restart within the session timeout is no rebalance
  consumer     group.protocol=consumer (KIP-848): the coordinator assigns, members give up what moves one by one

examples:
  kcoord simulate rolling-bounce --members 10 --partitions 200
      all protocols beside each other
  kcoord simulate rolling-bounce --partitions orders=120 --partitions clicks=60 --revoke-ms 100 --assign-ms 500 --aside
      state stores of half a second each, restored beside the work as Kafka Streams does
  kcoord simulate rolling-bounce --protocol cooperative --json --plot deploy.svg
      one protocol, as JSON, and its throughput over time as a plot
  kcoord simulate rolling-bounce --from trace.pcap --group billing --down-ms 8000
      a group as a capture shows it, and what its deploy would cost with each protocol
"""

_NUMBERS: Final = (  # option, field of the workload, help; the defaults are the workload's
    ("--revoke-ms", "revoke_ms", "time to give up one partition: commit, flush, close its store (default: 50)"),
    (
        "--assign-ms",
        "assign_ms",
        "time to open one that was assigned: open and restore its store (default: 150)",
    ),
    ("--down-ms", "down_ms", "how long an instance is down between its consumers (default: 5000)"),
    ("--interval-ms", "interval_ms", "from one stop to the next (default: when the group has settled)"),
    ("--poll-ms", "poll_ms", "longest time that the application works between two polls (default: 100)"),
    ("--session-timeout-ms", "session_timeout_ms", "session.timeout.ms (default: 45000)"),
    ("--heartbeat-interval-ms", "heartbeat_interval_ms", "heartbeat.interval.ms (default: 3000)"),
    ("--max-poll-interval-ms", "rebalance_timeout_ms", "max.poll.interval.ms (default: 300000)"),
)


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the scenario to those of `kcoord simulate`."""
    about = "compute what a rolling restart would cost a group, with eager, cooperative, static and KIP-848 members"
    command = add_command(commands, "rolling-bounce", about, _run, examples=EXAMPLES)
    command.add_argument("--members", type=argument(parse_positive), metavar="N", help="instances (default: 10)")
    command.add_argument(
        "--partitions",
        type=argument(_topic),
        action="append",
        metavar="[TOPIC=]COUNT",
        help="of a topic; may be repeated (default: 200)",
    )
    command.add_argument(
        "--from",
        dest="sources",
        action="append",
        metavar="FILE",
        help="a capture, a recording or a folder of them: members, partitions, timeouts and times of revocations are "
        "those of the group in it, as far as no option says otherwise; may be repeated",
    )
    command.add_argument("--group", metavar="ID", help="which group of --from, if there are several")
    command.add_argument("--port", type=int, action="append", help="only this port of a broker in --from")
    command.add_argument("--protocol", choices=(*PROTOCOLS, "all"), default="all", help="(default: all)")
    for option, field, text in _NUMBERS:
        command.add_argument(option, dest=field, type=argument(_ms), metavar="MS", help=text)
    command.add_argument(
        "--aside",
        dest="opens_aside",
        action="store_true",
        default=None,
        help="partitions are opened one by one beside the work; else in the listener, while nothing is processed",
    )
    command.add_argument(
        "--rate", dest="rate_per_s", type=argument(_rate), metavar="N", help="records per second and partition"
    )
    command.add_argument(
        "--capacity",
        dest="capacity_per_s",
        type=argument(_rate),
        metavar="N",
        help="records per second that an instance can process (default: twice its share)",
    )
    command.add_argument("--seed", type=argument(_ms), default=0, help="of latencies and of when instances stop")
    command.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    command.add_argument(
        "--plot",
        type=argument(parse_plot_path),
        metavar="FILE",
        help="write throughput over time as FILE.svg or FILE.png",
    )


# ---- arguments


def _topic(text: str) -> tuple[str, int]:
    topic, equals, count = text.rpartition("=")
    if bool(equals) != bool(topic):
        raise ValueError(f"{text!r} is neither COUNT nor TOPIC=COUNT")
    return topic or TOPIC, parse_positive(count)


def _ms(text: str) -> int:
    if not text.isdecimal() or len(text) > 10 or int(text) > _MOST:
        raise ValueError(f"{text!r} is not a whole number from 0 to {_MOST}")
    return int(text)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1e12:
        raise ValueError(f"{text!r} is not a number above 0")
    return rate


def _given(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of the workload that the arguments set."""
    names = ["members", "opens_aside", "rate_per_s", "capacity_per_s", *(field for _, field, _ in _NUMBERS)]
    given = {name: value for name in names if (value := getattr(args, name)) is not None}
    return given | ({"topics": _topics(args.partitions)} if args.partitions else {})


def _workload(fields: Mapping[str, Any]) -> BounceWorkload:
    """The workload with these fields; the capacity of an instance is twice its share if it is not given."""
    from kcoord_wire.worlds.group.rolling_bounce import BounceWorkload

    workload = BounceWorkload(**fields)
    if "capacity_per_s" in fields:
        return workload
    return replace(workload, capacity_per_s=2 * workload.rate_per_s * workload.partition_count / workload.members)


def _topics(pairs: Sequence[tuple[str, int]]) -> dict[str, int]:
    topics = dict(pairs)
    if len(topics) < len(pairs):
        raise UsageError("--partitions names a topic twice")
    return topics


# ---- the run


def _run(args: argparse.Namespace) -> None:
    given = _given(args)
    if not args.sources and (args.group is not None or args.port is not None):
        raise UsageError("--group and --port belong to --from")
    group = captured_group(args.sources, args.group, args.port) if args.sources else None
    workload = _workload((group.fields if group else {}) | given)
    names = PROTOCOLS if args.protocol == "all" else (args.protocol,)
    results = [_simulate(workload, name, args.seed) for name in names]
    if args.plot is not None:
        from kcoord_wire.report.page.charts import write_plot

        write_plot(throughput_plot(results), args.plot)
    show = _print_as_json if args.json else _print_as_tables
    show(args.seed, workload, results, group, group.origins(workload, given) if group else [])
    for note in _notes(workload, results):
        complain(note)


def _simulate(workload: BounceWorkload, protocol: str, seed: int) -> BounceResult:
    from kcoord_wire.worlds.consumer_groups.rolling_bounce import LABEL, simulate_consumer_bounce
    from kcoord_wire.worlds.group.rolling_bounce import simulate_bounce

    return simulate_consumer_bounce(workload, seed) if protocol == LABEL else simulate_bounce(workload, protocol, seed)


def _print_as_json(
    seed: int,
    workload: BounceWorkload,
    results: Sequence[BounceResult],
    group: CapturedGroup | None,
    origins: Sequence[Origin],
) -> None:
    found = {"workload": asdict(workload), "seed": seed, "results": [asdict(each) for each in results]}
    if group is not None:
        fields = [origin._asdict() for origin in origins]
        found["from"] = {"group": group.group_id, "protocol": group.protocol, "fields": fields}
    print_json(found)


def _print_as_tables(
    _seed: int,
    workload: BounceWorkload,
    results: Sequence[BounceResult],
    group: CapturedGroup | None,
    origins: Sequence[Origin],
) -> None:
    if group is not None:
        print_origins(group, origins)
    _print_results(workload, results, now=group.protocol if group else "")


def _notes(workload: BounceWorkload, results: Sequence[BounceResult]) -> list[str]:
    """What the user may not expect of the results."""
    notes = []
    share = -(-workload.partition_count // workload.members)
    away = workload.down_ms + share * (workload.revoke_ms)
    if any(result.label == "static" for result in results) and away >= workload.session_timeout_ms:
        notes.append(
            f"static members are away for {away} ms, longer than the session timeout of {workload.session_timeout_ms}: "
            "the group removes them, and rebalances"
        )
    if any(result.caught_up_ms is None for result in results):
        notes.append(f"{workload.capacity_per_s:g} records/s an instance do not suffice to work off the lag")
    return notes


# ---- what is shown


_COLUMNS: Final[Sequence[tuple[str, Callable[[BounceResult], str]]]] = (
    ("protocol", lambda result: result.label),
    ("partitions paused", lambda result: f"{result.pause_partition_ms / 1_000:,.1f} s"),
    ("longest", lambda result: f"{result.longest_pause_ms / 1_000:,.1f} s"),
    ("instances idle", lambda result: f"{result.pause_instance_ms / 1_000:,.1f} s"),
    ("rebalances", lambda result: f"{result.rebalances:,}"),
    ("moves", lambda result: f"{result.moves:,}"),
    ("opened", lambda result: f"{result.opened:,}"),
    ("lowest throughput", lambda result: f"{min(result.throughput):,.0f}/s"),
    ("lag at the end", lambda result: f"{result.lag_records:,.0f}"),
    ("took", lambda result: f"{result.took_ms / 1_000:,.0f} s"),
)


def _print_results(workload: BounceWorkload, results: Sequence[BounceResult], now: str) -> None:
    topics = ", ".join(f"{topic} ({count})" for topic, count in workload.topics.items())
    aside = "beside the work" if workload.opens_aside else "in the listener"
    title = (
        f"Restarting {workload.members} instances one after the other; partitions of {topics}, "
        f"{workload.revoke_ms} ms to close one and {workload.assign_ms} ms to open one {aside}, "
        f"{workload.down_ms / 1_000:g} s down"
    )
    made = table(title, *(name for name, _ in _COLUMNS), "against eager")
    eager = next((each.pause_partition_ms for each in results if each.label == "eager"), None)
    for result in results:
        ratio = f"1 / {eager / result.pause_partition_ms:.1f}" if eager and result.pause_partition_ms else "-"
        label, *rest = (text(result) for _, text in _COLUMNS)
        made.add_row(styled(f"{label} (now)" if label == now else label), *map(styled, rest), styled(ratio))
    print_table(made)


def throughput_plot(results: Sequence[BounceResult]) -> LinePlot:
    """Throughput per instance over time: the mean of the instances; of one result also the standard deviation."""
    from kcoord_wire.report.page.charts import LinePlot, Series

    series = []
    for result in results:
        rates = list(zip(*(cost.throughput for cost in result.instances.values()), strict=True))
        mean = [(at / 1_000, fmean(each)) for at, each in zip(result.times_ms, rates, strict=True)]
        spread = [(x, max(y - pstdev(each), 0), y + pstdev(each)) for (x, y), each in zip(mean, rates, strict=True)]
        series.append(Series(result.label, mean, spread if len(results) == 1 else []))
    what = f", {results[0].label}: mean and standard deviation" if len(results) == 1 else ""
    return LinePlot(
        title=f"Throughput during a rolling bounce of {len(results[0].instances)} instances{what}",
        x_title="time since the first stop (s)",
        y_title="records/s per instance",
        series=series,
        steps=True,
        width=760,
    )
