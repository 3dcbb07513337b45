"""Runs the size benchmark: `python -m tests.bench.spark`. Frames by the million through Spark and through plain Python.

Makes ROWS frames, and a tenth and a fiftieth of them (``--sizes`` chooses), in a temporary folder below ``--dir``,
which is removed at the end, and measures one variant after the other. Writes latest.json and latest.md into
tests/bench/spark/results or ``--out``. Needs some 20 GB of disk for 50 million.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyspark

from ..report import write_results
from ..scale.__main__ import machine
from . import report
from .frames import MEAN_BYTES, write_frames
from .measure import VARIANTS, watched

DISK_PER_BYTE = 2.5  # of frames: these, the largest output, and what Spark writes meanwhile


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.spark", description="Frames by the million to Parquet.")
    parser.add_argument("--rows", type=int, default=50_000_000, help="of the largest size")
    parser.add_argument("--sizes", type=int, nargs="+", help="all sizes; by default ROWS / 50, ROWS / 10 and ROWS")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()), help="where there is room")
    parser.add_argument("--out", type=Path, default=report.RESULTS, help="the folder of latest.md and latest.json")
    options = parser.parse_args(arguments)
    sizes = sorted(set(options.sizes or (options.rows // 50, options.rows // 10, options.rows)))
    needed, free = int(max(sizes) * MEAN_BYTES * DISK_PER_BYTE), shutil.disk_usage(options.dir).free
    if free < needed:
        sys.exit(f"{options.dir} has {free / 1e9:.1f} GB free and {needed / 1e9:.1f} GB are needed: name another --dir")
    load = round(os.getloadavg()[0], 2)
    made = [measure(rows, options.dir, options.variants) for rows in sizes]
    result: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "spark": pyspark.__version__,
        "load": load,
        "sizes": made,
    }
    write_results(options.out, result, report.markdown(result) if {*VARIANTS} == {*options.variants} else None)


def measure(rows: int, where: Path, variants: list[str]) -> dict[str, Any]:
    """All variants on so many frames, which are made for it and removed after."""
    with tempfile.TemporaryDirectory(prefix="kcoord-size-", dir=where) as name:
        folder = Path(name)
        began = time.perf_counter()
        size = write_frames(folder / "frames", rows)
        print(f"{rows:,} frames, {size / 1e9:.2f} GB: made in {time.perf_counter() - began:.0f} s", flush=True)
        found = {}
        for variant in variants:
            found[variant] = watched(variant, folder / "frames", folder)
            if variant == "floor" and found[variant]["counted"] != size:
                raise RuntimeError(f"Spark counted {found[variant]['counted']} bytes of {size}")
            if found[variant]["written"] and found[variant]["rows"] != rows:
                raise RuntimeError(f"{variant} wrote {found[variant]['rows']} rows of {rows}")
            seconds = found[variant]["seconds"]
            print(f"  {variant}: {seconds:.1f} s, {rows / seconds / 1e6:.2f} million rows/s", flush=True)
    return {"rows": rows, "bytes": size, "variants": found}


if __name__ == "__main__":
    main()
