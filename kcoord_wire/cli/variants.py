"""`kcoord simulate variants`: the bytes that a rebalance moves, as released and as the client-side proposal had it.

Laws:

* The same arguments give the same output on every machine with the same zlib.
* The table, the JSON object and the plot have the same numbers.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kcoord_wire.cli.arguments import add_command, argument, parse_plot_path, parse_positive
from kcoord_wire.cli.output import print_json, print_table, styled, table

if TYPE_CHECKING:
    from kcoord_wire.report.page.charts import LinePlot
    from kcoord_wire.worlds.proposal.traffic import Traffic

PROTOCOLS: Final = ("all-members", "subscription-hash", "single-assignor", "released")

EXAMPLES: Final = """\
protocols:
  all-members        every member gets the metadata of all and computes the assignment itself
  subscription-hash  the same, with a hash in place of the topic list; the largest sub-group assigns
  single-assignor    one member gets the metadata of all and assigns, in a JoinGroup of two phases
  released           JoinGroup and SyncGroup, in the versions of the Java client

examples:
  kcoord simulate variants --members 10,100 --plot traffic.svg
      groups of two sizes, as a table and as a plot
  kcoord simulate variants --members 100 --metadata 100000 --protocol single-assignor --protocol released --json
      subscriptions of 100 KB, as JSON
"""


class _Row(NamedTuple):
    protocol: str
    members: int
    traffic: Traffic


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the scenario to those of `kcoord simulate`."""
    about = "measure the bytes of a rebalance under the variants of the client-side assignment proposal"
    command = add_command(commands, "variants", about, _run, examples=EXAMPLES)
    command.add_argument(
        "--members",
        type=argument(_sizes),
        default=(10, 100),
        metavar="N[,N...]",
        help="sizes of the group after the rebalance, at least 2 (default: 10,100; 1000 takes minutes)",
    )
    command.add_argument(
        "--metadata",
        type=argument(parse_positive),
        default=340,
        metavar="BYTES",
        help="of each member's topic list (default: 340, ten topics)",
    )
    command.add_argument(
        "--protocol",
        dest="protocols",
        action="append",
        choices=PROTOCOLS,
        help="may be repeated (default: all)",
    )
    command.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    command.add_argument(
        "--plot",
        dest="plots",
        action="append",
        type=argument(parse_plot_path),
        default=[],
        metavar="FILE",
        help="write bytes against members as FILE.svg or FILE.png; may be repeated",
    )


def _sizes(text: str) -> tuple[int, ...]:
    sizes = tuple(parse_positive(each) for each in text.split(","))
    if min(sizes) < 2:
        raise ValueError("a group that rebalances because a member joins has at least 2")
    return sizes


def _run(args: argparse.Namespace) -> None:
    from kcoord_wire.worlds.proposal.traffic import MEASURED, measure

    wanted = tuple(args.protocols or PROTOCOLS)
    rows = [
        _Row(name, members, measure(measured, members, args.metadata))
        for name, measured in MEASURED.items()
        if name.replace(" ", "-").startswith(wanted)
        for members in args.members
    ]
    if args.json:
        print_json({"metadata_bytes": args.metadata, "results": [_as_dict(row) for row in rows]})
    else:
        _print(rows, args.metadata)
    _write(rows, args.metadata, args.plots)


def _as_dict(row: _Row) -> dict[str, Any]:
    return {"protocol": row.protocol, "members": row.members, **row.traffic._asdict(), "total": row.traffic.total}


def _print(rows: list[_Row], metadata_bytes: int) -> None:
    title = f"JoinGroup and SyncGroup of one rebalance, bytes; {metadata_bytes:,} bytes of topic list a member"
    made = table(title, "protocol", "members", "to coordinator", "to members", "total")
    for column in made.columns[1:]:
        column.justify = "right"
    for row in rows:
        numbers = (row.members, *row.traffic, row.traffic.total)
        made.add_row(styled(row.protocol), *(styled(f"{number:,}") for number in numbers))
    print_table(made)


def _write(rows: list[_Row], metadata_bytes: int, paths: list[Path]) -> None:
    if paths:
        from kcoord_wire.report.page.charts import write_plot

        for path in paths:
            write_plot(traffic_plot(rows, metadata_bytes), path)


def traffic_plot(rows: list[_Row], metadata_bytes: int) -> LinePlot:
    """Return bytes against members, both on logarithmic axes: a slope of 2 is quadratic."""
    from kcoord_wire.report.page.charts import LinePlot, Series

    points: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        points.setdefault(row.protocol, []).append((row.members, row.traffic.total))
    return LinePlot(
        title=f"One rebalance, {metadata_bytes:,} bytes of topic list a member",
        x_title="members",
        y_title="JoinGroup and SyncGroup (bytes)",
        series=[Series(name, sorted(each)) for name, each in points.items()],
        log_x=True,
        log_y=True,
        marks=True,
        width=820,
    )
