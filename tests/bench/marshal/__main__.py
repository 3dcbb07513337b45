"""Runs the benchmark of Marshal's world state: `python -m tests.bench.marshal`. 1,000 members, 10,000 places.

Writes latest.json and latest.md into tests/bench/marshal/results or `--out`.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from ..report import write_results
from ..scale.__main__ import machine
from . import report
from .measure import measure


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.marshal", description="Marshal's world state from long logs.")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, default=report.RESULTS, help="the folder of latest.md and latest.json")
    options = parser.parse_args(arguments)
    load = round(os.getloadavg()[0], 2)
    made = {"date": time.strftime("%Y-%m-%d"), "machine": machine(), "load": load, **measure(options.messages)}
    write_results(options.out, made, report.markdown(made))


if __name__ == "__main__":
    main()
