"""Markdown of what `python -m tests.bench compiled` measured: `markdown` alone, `summary` for docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from ..frames import FRAMES, JUDGED
from ..lazy.bench import LARGE
from ..rows import ROWS, Row
from ..runner import Targets, conditions, digits, missed, shown, verdicts
from ..runner import table as lines

RESULTS: Final = Path(__file__).parent / "results"
PEERS: Final = ("kafka-clients", "franz-go")
TITLES: Final = {row.key: f"{row.title} (v{row.version})" for row in (*ROWS, *FRAMES)}
WHOLE: Final = {"bodies": ROWS, "whole frames": FRAMES}
WAYS: Final = {"decode": "decode", "encode": "encode", "kept": "encode into a kept buffer"}
LAZY: Final = "decode lazily, a tenth of the elements read"
JVM, SHARE, GO = 0.8, 2 / 3, 1.5  # decode: in every row; the share of rows that are to be ahead; in every row
TENTH: Final = 2.0  # how many times our time kafka-clients' whole decode is to be
HOW: Final = """\
Processor time of one call, and how many times our time the others take: above 1, ours is faster. Each gets the same
bytes, body or whole frame, and writes the same bytes again. Every row has a process of its own, which runs it
unmeasured first; the programs take turns, and the medians are of all turns. kafka-clients: the calling thread alone,
without the JVM's compilers and garbage collector; frames by `AbstractRequest` and `AbstractResponse`. franz-go (kmsg):
the whole process, collector included; its byte slices point into the input, its strings are copies; requests by
`RequestFormatter`. Both leave records in the input, as ours does by `bytes="view"`: the Fetch response that is copied
has no target. Ours: the thread, with Python's collector on. Encoding makes a new buffer in each call
(`ByteBuffer.allocate`, `AppendTo(nil)`), or writes into one that is kept (`ByteBuffer.clear`, `AppendTo(kept[:0])`)."""


def ratio(made: dict[str, Any], peer: str, row: str, way: str, ours: str = "") -> float:
    """How many times our time a peer takes.

    :param ours: our way, where it is not the peer's
    """
    value: float = made["cells"][peer][row][way] / made["cells"]["ours"][row][ours or way]
    return value


def measured(made: dict[str, Any], rows: Iterable[Row], way: str) -> list[str]:
    """The rows that our codec was measured in."""
    return [row.key for row in rows if way in made["cells"]["ours"].get(row.key, {})]


def table(made: dict[str, Any], whole: str, way: str) -> Iterator[str]:
    rows = []
    for row in measured(made, WHOLE[whole], way):
        cell = made["cells"]["ours"][row]
        others = [
            f"{digits(made['cells'][peer][row][way] / 1e3)} ({digits(ratio(made, peer, row, way))}x)" for peer in PEERS
        ]
        rows.append([TITLES[row], f"{cell['bytes']:,}", digits(cell[way] / 1e3), *others])
    return lines([f"{WAYS[way]}, {whole}", "bytes", "ours, µs", *(made["programs"][peer] for peer in PEERS)], rows)


def lazy_table(made: dict[str, Any]) -> Iterator[str]:
    """Our lazy decoding next to what all three take for the whole message."""
    rows = []
    for row in measured(made, ROWS, "tenth"):
        cell = made["cells"]["ours"][row]
        others = [
            f"{digits(made['cells'][peer][row]['decode'] / 1e3)} ({digits(ratio(made, peer, row, 'decode', 'tenth'))}x)"
            for peer in PEERS
        ]
        ours = (digits(cell[way] / 1e3) for way in ("tenth", "decode"))
        rows.append([TITLES[row], f"{cell['bytes']:,}", *ours, *others])
    whole = (f"{name}: decode" for name in ("ours", *(made["programs"][peer] for peer in PEERS)))
    return lines([LAZY, "bytes", "ours, µs", *whole], rows)


def target(text: str, bound: float, ratios: dict[str, float], wanted: int) -> tuple[str, bool, str]:
    """Whether so many rows reach a bound, and those that do not, or else the lowest.

    :param wanted: of all rows, measured or not
    """
    if len(ratios) < wanted:
        return text, False, f"measured in {len(ratios)} of {wanted} rows"
    short = {row: value for row, value in ratios.items() if value < bound} or dict([min(ratios.items(), key=_value)])
    figures = "; ".join(f"{TITLES[row]}: {shown(value, bound)}x" for row, value in short.items())
    return text, sum(value >= bound for value in ratios.values()) >= wanted, figures


def _value(item: tuple[str, float]) -> float:
    return item[1]


def bounds(way: str, rows: int) -> list[tuple[str, str, float, int]]:
    """What is wanted, of which peer, by which ratio, and in how many rows."""
    most = round(SHARE * rows)
    if way == "decode":
        return [
            (f"at least {JVM} of", "kafka-clients", JVM, rows),
            (f"in {most} rows ahead of", "kafka-clients", 1.0, most),
            (f"at least {GO} times", "franz-go", GO, rows),
        ]
    return [("ahead of", peer, 1.0, rows) for peer in PEERS]


def targets(made: dict[str, Any]) -> Targets:
    """Every target with whether it is met, and the rows that miss it, or the one that is nearest to that."""
    for whole, rows in {"bodies": ROWS, "whole frames": JUDGED}.items():
        for way, name in WAYS.items():
            found = measured(made, rows, way)
            for words, peer, bound, wanted in bounds(way, len(rows)):
                text = f"{whole}, {name}: {words} {peer}"
                ratios = {row: ratio(made, peer, row, way) for row in found}
                yield target(text, bound, ratios, wanted)
    ratios = {row: ratio(made, "kafka-clients", row, "decode", "tenth") for row in measured(made, ROWS, "tenth")}
    yield target(f"{LAZY}: {TENTH} times kafka-clients", TENTH, ratios, len(LARGE))


def summary(made: dict[str, Any]) -> str:
    """The section of docs/benchmarks.md."""
    parts = [HOW, f"{conditions(made)}.", ""]
    for whole, rows in WHOLE.items():
        for way in WAYS:
            if measured(made, rows, way):
                parts += [*table(made, whole, way), ""]
    if measured(made, ROWS, "tenth"):
        parts += [*lazy_table(made), ""]
    return "\n".join([*parts, *missed(targets(made))])


def markdown(made: dict[str, Any]) -> str:
    """The whole report."""
    return "\n".join(["# Compiled peers", "", summary(made), "", "## Targets", "", *verdicts(targets(made)), ""])
