"""What all benchmarks share: options, the machine, results in latest.json and latest.md, and pieces of Markdown.

To add a benchmark: a module with a `Bench` named ``BENCH``, and its name in `BENCHES`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
BENCHES: Final = {
    "codec": "codec",
    "frames": "frames",
    "compiled": "compiled.bench",
    "lazy": "lazy.bench",
    "mix": "mix.bench",
    "pythons": "pythons.bench",
    "columns": "columns.bench",
    "record": "record.bench",
    "spark": "spark.bench",
    "analyze": "archive.analyze",
    "archive": "archive.bench",
    "driver": "archive.driver",
    "live": "archive.live",
    "flows": "archive.flows",
    "group": "archive.group",
    "skew": "archive.skew",
    "scale": "scale.bench",
    "screen": "screen.bench",
    "many": "many.bench",
    "assignors": "assignors.bench",
    "central": "central.bench",
    "marshal": "marshal.bench",
    "embedding": "embedding.bench",
}
"""Name -> module, in the order of docs/benchmarks.md; imported when it is run, so that no process has all libraries."""

Made = dict[str, Any]
"""What latest.json holds."""
RunBench = Callable[..., tuple[Made, str]]
"""Runs a benchmark by name with options: its latest.json and latest.md."""
Targets = Iterable[tuple[str, bool, str]]
"""Each target, whether it is met, and the figures."""


@dataclass(frozen=True)
class Bench:
    """One benchmark.

    :ivar about: what it measures
    :ivar results: the folder of its latest.json and latest.md
    :ivar measure: measures; what it returns, or yields step by step, is written beside date, machine and load
    :ivar markdown: the whole report; None: not everything was measured that it shows
    :ivar options: of the command, by name, as `argparse` takes them
    :ivar quick: whether it has `--quick`, which tries everything on tiny inputs
    :ivar title: of its section of docs/benchmarks.md
    :ivar command: makes the results of that section
    :ivar summary: that section; None: it has none
    """

    about: str
    results: Path
    measure: Callable[[argparse.Namespace], Made | Iterator[Made]]
    markdown: Callable[[Made], str | None]
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    quick: bool = False
    title: str = ""
    command: str = ""
    summary: Callable[[Made], str] | None = None


def load(name: str) -> Bench:
    """Import a benchmark."""
    bench: Bench = import_module(f"tests.bench.{BENCHES[name]}").BENCH
    return bench


def run(name: str, arguments: Sequence[str]) -> None:
    """Run a benchmark with the options of its command, and write and print its results."""
    bench = load(name)
    parser = argparse.ArgumentParser(prog=f"tests.bench {name}", description=bench.about)
    for option, settings in bench.options.items():
        parser.add_argument(f"--{option}", **settings)
    if bench.quick:
        parser.add_argument("--quick", action="store_true", help="tiny inputs, no time spent: it measures nothing")
    parser.add_argument("--out", type=Path, default=bench.results, help="the folder of latest.md and latest.json")
    options = parser.parse_args(arguments)
    about = {"date": time.strftime("%Y-%m-%d"), "machine": machine(), "load": round(os.getloadavg()[0], 2)}
    about |= {"quick": options.quick} if bench.quick else {}
    found = bench.measure(options)
    for step in [found] if isinstance(found, dict) else found:
        made = about | step
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "latest.json").write_text(json.dumps(made, indent=1) + "\n", "utf-8")
        text = bench.markdown(made)
        if text is not None:
            (options.out / "latest.md").write_text(text, "utf-8")
            print(text)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    processor, info = platform.processor() or platform.machine(), Path("/proc/cpuinfo")
    for said in info.read_text().splitlines() if info.exists() else ():
        if said.startswith("model name"):
            processor = said.partition(":")[2].strip()
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }


def pin() -> None:
    """Stay on the last core that this process may use, and its children: the first is where most interrupts go."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def build(source: Path, name: str, *flags: str) -> Path:
    """Compile a C file beside everything else that is built, where the source is newer. CalledProcessError where the
    compiler refuses."""
    built = ROOT / "build" / "bench" / name
    if not built.exists() or built.stat().st_mtime < source.stat().st_mtime:
        built.parent.mkdir(parents=True, exist_ok=True)
        # Two test processes may build at once: each its own file, then one rename.
        with tempfile.TemporaryDirectory(dir=built.parent) as folder:
            made = Path(folder, name)
            command = [os.environ.get("CC", "cc"), "-fPIC", "-Wall", "-Werror", *flags, str(source), "-o", str(made)]
            subprocess.run(command, check=True)
            made.replace(built)
    return built


def samples(call: Callable[[], Any], seconds: float) -> list[float]:
    """Seconds of processor time of each call, until they are that many together; a first one is not counted."""
    call()
    found: list[float] = []
    while len(found) < 1 or sum(found) < seconds:
        before = time.thread_time()
        call()
        found.append(time.thread_time() - before)
    return found


def require_native() -> None:
    """End the process where the native codec is not built."""
    import kcoord_wire as kw

    if kw.backend != "native":
        sys.exit("the native codec is not built: make native")


# ---- Markdown


def line(cells: Iterable[str]) -> str:
    """A row of a table."""
    return f"| {' | '.join(cells)} |"


def table(heads: Sequence[str], rows: Iterable[Iterable[str]], *, left: int = 1) -> Iterator[str]:
    """A table, line by line.

    :param left: how many columns are texts; the others are numbers
    """
    yield line(heads)
    yield line(["---"] * left + ["---:"] * (len(heads) - left))
    yield from map(line, rows)


def conditions(made: Made, *more: str) -> str:
    """When and where it was measured.

    :param more: after that of the machine
    """
    about = made["machine"]
    cores = f"{about['cores']} cores" if "cores" in about else ""
    words = (made["date"], about["processor"], cores, about.get("system"), about.get("python"), *more)
    start, *end = made["load"] if isinstance(made.get("load"), list) else [made.get("load")]
    said = ", ".join(word for word in words if word)
    said += f"; load {start} at the start" if start is not None else ""
    said += "".join(f", {each} at the end" for each in end)
    said += f". {made['remark']}" if "remark" in made else ""
    return said + (". A quick run, which measures nothing" if made.get("quick") else "")


def verdicts(targets: Targets) -> Iterator[str]:
    """The table of the targets."""
    rows = ((text, "yes" if met else "no", figures) for text, met, figures in targets)
    return table(["target", "met", "figures"], rows, left=3)


def missed(targets: Targets) -> list[str]:
    """A line for each target that is missed."""
    return [f"- Missed: {text}: {figures}." for text, met, figures in targets if not met]


def results_page(title: str, notes: str, lines: Iterable[str], targets: Targets) -> str:
    """Return latest.md: how was measured, what was found, and the targets."""
    return "\n".join([f"# {title}", "", notes, *lines, "", "## Targets", "", *verdicts(targets), ""])


def section_text(lines: Iterable[str], targets: Targets, results: Path) -> str:
    """Return the section of docs/benchmarks.md: what was found, the targets that are missed, and where the rest is.

    :param results: the folder of latest.md
    """
    how = f"[How, and all targets](../{results.relative_to(ROOT).as_posix()}/latest.md)."
    return "\n".join([*lines, "", *missed(targets), "", how])


def digits(value: float) -> str:
    """Three digits or more."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def shown(value: float, bound: float) -> str:
    """The value with as many decimals as it takes to see on which side of the bound it lies: 5.98 of 6, not 6.0."""
    decimals = 0 if value >= 100 else 1 if value >= 10 else 2
    while (round(value, decimals) < bound) != (value < bound) or (round(value, decimals) > bound) != (value > bound):
        decimals += 1
    return f"{value:,.{decimals}f}"
