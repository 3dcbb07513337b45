"""Measures Marshal's world state from long logs: 1,000 members, 10,000 places."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..runner import Bench, conditions, table
from .measure import measure

RESULTS = Path(__file__).parent / "results"
STEPS = {
    "split": "the floor: the text split at its separators",
    "decode": "the text to messages",
    "library": "messages to the world state, `library`",
    "document": "messages to the world state, `document`",
}
NOTES = """\
Processor time of one process, so that other work on the machine counts little. Each place is claimed once and sends one
heartbeat every 30 s; the messages are spread over 50 coordination partitions.

* **a second**: messages by second of processor time.
* **of the floor**: how many times as long as the floor.
* **a claim**: memory of the world state, its members included, by place, after a claim and a heartbeat of each.
"""


def markdown(report: dict[str, Any]) -> str:
    return f"# Marshal's world state from long logs\n\n{conditions(report)}.\n\n{summary(report)}\n{NOTES}"


def summary(report: dict[str, Any]) -> str:
    """The table."""
    messages, seconds, floor = report["messages"], report["seconds"], report["seconds"]["split"]
    about = (
        f"{report['members']:,} members, {report['places']:,} places, {messages:,} messages, {report['backend']} codec"
    )
    rows = []
    whole = {f"text to world state, `{rules}`": seconds["decode"] + seconds[rules] for rules in ("library", "document")}
    for name, taken in ({STEPS[key]: seconds[key] for key in STEPS} | whole).items():
        rows.append([name, f"{messages / taken:,.0f}", f"{taken / floor:.1f} x"])
    return (
        "\n".join(table([about, "a second", "of the floor"], rows))
        + f"\n\nA claim takes {report['bytes_per_claim']:,.0f} bytes.\n"
    )


BENCH = Bench(
    about="Marshal's world state from long logs.",
    results=RESULTS,
    measure=lambda options: measure(options.messages),
    markdown=markdown,
    options={"messages": {"type": int, "default": 1_000_000}},
)
