"""`kcoord simulate variants`: the bytes that a rebalance moves, as released and as the client-side proposal had it.

Laws:

* The same arguments give the same output on every machine with the same zlib.
* The table, the JSON object and the plot have the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

from kcoord_wire.cli.options import Command, Format, Option, Plots, Positive, whole
from kcoord_wire.cli.output import print_json, print_table, styled, table

if TYPE_CHECKING:
    from kcoord_wire.report.page.charts import LinePlot
    from kcoord_wire.worlds.proposal.traffic import Traffic

PROTOCOLS: Final = ("all-members", "subscription-hash", "single-assignor", "two-phases", "released")


class _Row(NamedTuple):
    protocol: str
    members: int
    traffic: Traffic


def _sizes(text: str) -> tuple[int, ...]:
    sizes = tuple(map(whole(1), text.split(",")))
    if min(sizes) < 2:
        raise ValueError("a group that rebalances because a member joins has at least 2")
    return sizes


@dataclass(frozen=True, kw_only=True)
class Variants(Command):
    """Measure the bytes of a rebalance under the variants of the client-side assignment proposal.

    protocols:
      all-members        every member gets the metadata of all and computes the assignment itself
      subscription-hash  the same, with a hash in place of the topic list; the largest sub-group assigns
      single-assignor    one member gets the metadata of all and assigns, in a JoinGroup of two phases
      two-phases         JoinGroup and SyncGroup as the proposal draws them, with a resync when topics change
      released           the same as released, in the versions of the Java client

    examples:
      kcoord simulate variants --members 10,100 --plot traffic.svg
          groups of two sizes, as a table and as a plot
      kcoord simulate variants --members 10,100 --changes 5 --protocol two-phases --protocol released
          a group whose topics get partitions, five times in five seconds: bytes, and how long partitions are idle
      kcoord simulate variants --members 100 --metadata 100000 --protocol released --format json
          subscriptions of 100 KB, as JSON
    """

    members: Annotated[
        tuple[int, ...],
        _sizes,
        Option("sizes of the group after the rebalance, at least 2 (default: 10,100; 1000 takes minutes)", "N[,N...]"),
    ] = (10, 100)
    metadata: Annotated[Positive, Option("of each member's topic list (default: 340, ten topics)", "BYTES")] = 340
    protocol: Annotated[
        tuple[Literal["all-members", "subscription-hash", "single-assignor", "two-phases", "released"], ...],
        Option("may be repeated (default: all)"),
    ] = ()
    changes: Annotated[Positive | None, Option("no member joins: partitions are added so often, one a second", "N")] = (
        None
    )
    format: Format = "text"
    plot: Plots = ()

    def run(self) -> None:
        """Measure, and print a row for each protocol and size."""
        from kcoord_wire.worlds.proposal.traffic import CHANGED, MEASURED, measure

        wanted = self.protocol or PROTOCOLS
        rows = [
            _Row(name, members, measure(measured, members, self.metadata, self.changes or 0))
            for name, measured in (CHANGED if self.changes else MEASURED).items()
            if name.replace(" ", "-").startswith(wanted)
            for members in self.members
        ]
        if self.format == "json":
            print_json({"metadata_bytes": self.metadata, "results": [_as_dict(row) for row in rows]})
        else:
            _print(rows, self.metadata, has_idle=bool(self.changes))
        for path in self.plot:
            from kcoord_wire.report.page.charts import write_plot

            write_plot(traffic_plot(rows, self.metadata), path)


def _as_dict(row: _Row) -> dict[str, Any]:
    return {"protocol": row.protocol, "members": row.members, **row.traffic._asdict(), "total": row.traffic.total}


def _print(rows: list[_Row], metadata_bytes: int, *, has_idle: bool) -> None:
    title = f"JoinGroup and SyncGroup of one rebalance, bytes; {metadata_bytes:,} bytes of topic list a member"
    names = ("protocol", "members", "to coordinator", "to members", "total", "idle ms")
    made = table(title, *(names if has_idle else names[:-1]), right_from=1)
    for row in rows:
        to_coordinator, to_members, idle_ms = row.traffic
        numbers = [row.members, to_coordinator, to_members, row.traffic.total, *([idle_ms] if has_idle else ())]
        made.add_row(styled(row.protocol), *(styled(f"{number:,}") for number in numbers))
    print_table(made)


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
