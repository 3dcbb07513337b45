"""Writes the tables and plots of docs/rolling-bounce.md: `python -m tests.bench.bounce`.

They are simulated, so that the same commit writes the same figures. `--real` writes the table of real clients instead,
which takes seven minutes of real time, and `--ten` that of ten real instances, which takes three.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Literal

from kcoord_wire.cli.rolling_bounce import throughput_plot
from kcoord_wire.report.page.charts import LinePlot, Series, write_plot
from kcoord_wire.worlds.consumer_groups.rolling_bounce import PROTOCOLS, BounceResult, BounceWorkload, simulate_bounce
from tests.bench.bounce.real import real_bounce
from tests.bench.bounce.workloads import LISTENER, REAL, RESTORED, STATE_STORES, TEN

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "rolling-bounce.md"
SEEDS = range(5)
SHARES = (5, 10, 30, 60)  # partitions of an instance
OPENING_MS = (20, 200, 500, 1_000)
DOWN_MS = (5_000, 15_000, 60_000)
SIMULATED_AS = {
    "confluent-kafka": "librdkafka",
    "kcoord-wire": "java",
    "kafka-python": "kafka-python",
    "aiokafka": "aiokafka",
}
"""Libraries, and the client of the simulation that behaves so."""


def headline(workload: BounceWorkload) -> Iterator[str]:
    """A line for each protocol: the mean over the seeds, and the ratio of each seed to eager."""
    yield "| protocol | partitions paused | instances idle | longest | rebalances | moves | opened | less than eager |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    eager = [simulate_bounce(workload, "eager", seed) for seed in SEEDS]
    for name in PROTOCOLS:
        results = eager if name == "eager" else [simulate_bounce(workload, name, seed) for seed in SEEDS]
        ratios = [one.pause_partition_ms / two.pause_partition_ms for one, two in zip(eager, results, strict=True)]
        ratio = "" if name == "eager" else f"{fmean(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})"
        cells = [f"{mean(results, key) / 1_000:,.0f} s" for key in ("pause_partition_ms", "pause_instance_ms")]
        cells += [f"{max(each.longest_pause_ms for each in results) / 1_000:,.1f} s"]
        cells += [f"{mean(results, key):,.0f}" for key in ("rebalances", "moves", "opened")]
        yield f"| {name} | {' | '.join(cells)} | {ratio} |"


def state_row(store: Literal["disk", "memory"], standbys: int, warms_up: bool, seed: int = 0) -> str:
    """A line of the table of stores that are restored."""
    workload = replace(RESTORED, store=store, standbys=standbys, warms_up=warms_up)
    eager, cooperative, static = (simulate_bounce(workload, name, seed) for name in ("eager", "cooperative", "static"))
    paused = [f"{each.pause_partition_ms / 1_000:,.0f} s" for each in (eager, cooperative, static)]
    longest = [f"{each.longest_pause_ms / 1_000:.1f} s" for each in (eager, cooperative, static)]
    cells = [store, str(standbys), "yes" if warms_up else "no", *paused, *longest]
    return f"| {' | '.join([*cells, f'{cooperative.pause_instance_ms / 1_000:,.0f} s'])} |"


def state() -> Iterator[str]:
    """A line for each way to keep state: what a bounce costs with it."""
    names = ("eager", "cooperative", "static")
    heads = [*(f"{name} paused" for name in names), *(f"{name}: longest" for name in names)]
    yield f"| stores in | standbys | warm-up | {' | '.join(heads)} | cooperative: instances idle |"
    yield "|---|---:|---|" + "---:|" * 7
    stores: tuple[Literal["disk", "memory"], ...] = ("disk", "memory")
    for store in stores:
        for standbys, warms_up in ((0, False), (1, False), (0, True), (1, True)):
            yield state_row(store, standbys, warms_up)


def mean(results: Sequence[BounceResult], name: str) -> float:
    """The mean of one of the results' numbers."""
    return fmean(getattr(each, name) for each in results)


def ratios(workload: BounceWorkload, seed: int = 0) -> tuple[float, float]:
    """How much less partitions pause than with eager members: with cooperative members, and with static ones."""
    eager, cooperative, static = (
        simulate_bounce(workload, name, seed).pause_partition_ms for name in ("eager", "cooperative", "static")
    )
    return eager / cooperative, eager / static


def with_stores(share: int, opening_ms: int, down_ms: int) -> BounceWorkload:
    """Ten instances with so many partitions each; closing takes a tenth of opening."""
    return BounceWorkload(
        topics={"events": 10 * share},
        revoke_ms=opening_ms // 10,
        assign_ms=opening_ms,
        opens_aside=True,
        down_ms=down_ms,
    )


def sensitivity() -> Iterator[str]:
    """A line for each number of partitions and each time to open one: the ratios by down time."""
    heads = [f"{down_ms // 1_000} s down: cooperative | static" for down_ms in DOWN_MS]
    yield f"| partitions of an instance | to open one | {' | '.join(heads)} |"
    yield f"|---:|---:{'|---:' * 2 * len(DOWN_MS)}|"
    for share in SHARES:
        for opening_ms in OPENING_MS:
            found = [ratios(with_stores(share, opening_ms, down_ms)) for down_ms in DOWN_MS]
            cells = [f"{ratio:.1f}" for pair in found for ratio in pair]
            yield f"| {share} | {opening_ms} ms | {' | '.join(cells)} |"


def write_plots() -> None:
    """The throughput over time of eager and of cooperative members, and the ratio by partitions of an instance."""
    for name in ("eager", "cooperative"):
        save(throughput_plot([simulate_bounce(STATE_STORES, name)]), f"rolling-bounce-{name}")
    lines = []
    for opening_ms in OPENING_MS:
        points = [(share, ratios(with_stores(share, opening_ms, 15_000))[0]) for share in SHARES]
        lines.append(Series(f"{opening_ms} ms to open a partition", points))
    title = "How much less cooperative members pause than eager ones"
    plot = LinePlot(title=title, x_title="partitions of an instance", y_title="ratio", series=lines, marks=True)
    save(plot, "rolling-bounce-ratio")


def save(plot: LinePlot, name: str) -> None:
    """Write a plot in both formats."""
    for suffix in ("svg", "png"):
        write_plot(plot, DOCS / f"{name}.{suffix}")


def real() -> Iterator[str]:
    """A line for each library and protocol: pauses as measured, as simulated, and how far they are apart."""
    yield "| library | protocol | partitions paused | simulated | difference | rebalances | simulated |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for library, client in SIMULATED_AS.items():
        names = ["eager", "sticky" if library == "aiokafka" else "cooperative", "static"]
        for name in [*names, "consumer"] if library == "confluent-kafka" else names:
            workload = replace(REAL, client=client)
            measured, simulated = real_bounce(workload, name, library), simulate_bounce(workload, name)
            paused = [each.pause_partition_ms for each in (measured, simulated)]
            cells = [f"{ms / 1_000:,.1f} s" for ms in paused] + [f"{paused[0] / paused[1] - 1:+.1%}"]
            yield f"| {library} | {name} | {' | '.join(cells)} | {measured.rebalances} | {simulated.rebalances} |"


def ten() -> Iterator[str]:
    """A line for measured and one for simulated: the pauses of ten instances, and how much less cooperative ones."""
    yield "| confluent-kafka | eager | cooperative | ratio | rebalances | moves |"
    yield "|---|---:|---:|---:|---:|---:|"
    names = ("eager", "cooperative")
    measured = [real_bounce(TEN, name, "confluent-kafka") for name in names]
    for label, results in ("measured", measured), ("simulated", [simulate_bounce(TEN, name) for name in names]):
        eager, cooperative = (each.pause_partition_ms / 1_000 for each in results)
        counts = [", ".join(str(getattr(each, key)) for each in results) for key in ("rebalances", "moves")]
        yield f"| {label} | {eager:,.0f} s | {cooperative:,.0f} s | {eager / cooperative:.1f} | {' | '.join(counts)} |"


def fill(text: str, name: str, lines: Iterator[str]) -> str:
    """Replace what is between the marks of a table in the page."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    body = begin + "\n".join(lines) + "\n" + end
    return re.sub(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: body, text, flags=re.DOTALL)


def main() -> None:
    """Write all that is simulated, or what is measured."""
    if sys.argv[1:] == ["--real"]:
        tables = {"real": real()}
    elif sys.argv[1:] == ["--ten"]:
        tables = {"ten": ten()}
    else:
        tables = {
            "stores": headline(STATE_STORES),
            "listener": headline(LISTENER),
            "sensitivity": sensitivity(),
            "state": state(),
        }
        write_plots()
    for name, lines in tables.items():
        made = list(lines)
        PAGE.write_text(fill(PAGE.read_text("utf-8"), name, iter(made)), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
