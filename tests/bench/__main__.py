"""Runs the benchmark: `python -m tests.bench`. Every library in processes of its own, taking turns, in one run.

Writes latest.json (what was measured) and latest.md (what `report` makes of it) into tests/bench/results or `--out`.
`--rows` and `--libraries` choose, `--quick` runs everything once on tiny messages and measures nothing.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from .libraries import LIBRARIES
from .report import markdown
from .rows import ROWS

RESULTS = Path(__file__).parent / "results"
TURNS = 3  # processes of each library; their samples are pooled


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text("utf-8").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def machine() -> dict[str, Any]:
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "load": round(os.getloadavg()[0], 2),
    }


def run(library: str, arguments: list[str]) -> dict[str, Any]:
    """One process of one library. CalledProcessError, with its traceback on stderr, where it fails."""
    backend = library if library in ("native", "python") else "auto"
    command = [sys.executable, "-m", "tests.bench.measure", library, *arguments]
    environment = os.environ | {"KCOORD_WIRE_BACKEND": backend}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The cells of one library: for each row and operation the median and the quartiles of all samples."""
    cells: dict[str, Any] = {}
    for row, first in runs[0]["cells"].items():
        cells[row] = {"version": first["version"], "bytes": first["bytes"]}
        for operation in first["samples"]:
            pooled = [sample for each in runs for sample in each["cells"][row]["samples"][operation]]
            low, median, high = statistics.quantiles(pooled, n=4, method="inclusive")
            cells[row][operation] = {"ns": median, "quartiles": [low, high], "samples": len(pooled)}
    return cells


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="tests.bench", description="The codecs, measured against each other.")
    parser.add_argument("--rows", nargs="+", choices=[row.key for row in ROWS], default=[row.key for row in ROWS])
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=list(LIBRARIES))
    parser.add_argument("--seconds", type=float, default=0.25, help="for each operation of each row in each process")
    parser.add_argument("--quick", action="store_true", help="tiny messages, no time spent")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of latest.md and latest.json")
    options = parser.parse_args(arguments)
    passed = ["--seconds", str(options.seconds), "--rows", *options.rows, *(["--quick"] if options.quick else [])]
    report: dict[str, Any] = {"date": datetime.datetime.now(datetime.UTC).date().isoformat(), "machine": machine()}
    runs: dict[str, list[dict[str, Any]]] = {library: [] for library in options.libraries}
    for turn in range(1 if options.quick else TURNS):
        for library in options.libraries:
            print(f"turn {turn + 1}: {library}", file=sys.stderr)
            runs[library].append(run(library, passed))
    report["quick"] = options.quick
    report["rows"] = options.rows
    report["libraries"] = {
        library: {"installed": done[0]["installed"], "cells": summary(done)} for library, done in runs.items()
    }
    options.out.mkdir(parents=True, exist_ok=True)
    text = markdown(report)
    (options.out / "latest.json").write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    (options.out / "latest.md").write_text(text, "utf-8")
    print(text)


if __name__ == "__main__":
    main()
