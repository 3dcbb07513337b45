"""Markdown of what was measured: `markdown` all, `summary` for docs/central.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..runner import conditions, table

RESULTS = Path(__file__).parent / "results"
NOTES = """\
Each row is a fresh `kcoord central serve` in a process of its own, a ZooKeeper node of its own (one, in a JVM) and that
many connections of one other process, all on the same machine. Every consumer answers at once, and its offset of each
partition moves with every ping, so the committer has all partitions to write at its interval of 10 s.

* **form**: from the first connection to the moment at which every partition of each group has exactly one consumer.
* **pings late**: how much more than a third of the session timeout lies between two pings of a consumer, where they
  arrive; percentiles over all pings of the period.
* **processor**: of the coordinator, as a share of one core, with pings and commits and nothing else.
* **rebalance**: one consumer closes its connection; to the last StartFetcher of its group. **stopped**: from the first
  StopFetcher of its group to the last StartFetcher.
* **memory**: growth of the coordinator's resident size from its start, by consumer; after the rebalance.
"""
COLUMNS = (
    "consumers", "groups of", "form", "pings", "late: p50 / p99 / most", "processor", "by 1,000",
    "rebalance", "stopped", "processor of it", "memory by consumer",
)  # fmt: skip


def markdown(report: dict[str, Any]) -> str:
    return f"# The draft with thousands of consumers\n\n{conditions(report)}.\n\n{summary(report)}\n{NOTES}"


def summary(report: dict[str, Any]) -> str:
    """The table."""
    rows = []
    for row in report["rows"]:
        pings, rebalance, consumers = row["pings"], row["rebalance"], row["consumers"]
        late = " / ".join(f"{pings[key]:.0f}" for key in ("p50_ms", "p99_ms", "max_ms"))
        cells = [
            f"{consumers:,}",
            f"{row['group_size']:,}",
            f"{row['form']:.1f} s",
            f"{pings['count']:,}",
            f"{late} ms",
            f"{row['cpu_share']:.1%}",
            f"{row['cpu_share'] / consumers * 1000:.1%}",
            f"{rebalance['seconds']:.2f} s",
            f"{rebalance['stopped']:.2f} s",
            f"{rebalance['cpu']:.2f} s",
            f"{row['peak_rss'] / consumers / 1000:.1f} KB",
        ]
        rows.append(cells)
    return "\n".join(table(COLUMNS, rows, left=0)) + "\n"
