"""Measures frames by the million through Spark and through plain Python.

Makes ROWS frames, and a tenth and a fiftieth of them (``--sizes`` chooses), in a temporary folder below ``--dir``,
which is removed at the end, and measures one variant after the other. Needs some 20 GB of disk for 50 million.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyspark

from ..runner import Bench, Made
from . import report
from .frames import MEAN_BYTES, write_frames
from .measure import VARIANTS, watched

DISK_PER_BYTE = 2.5  # of frames: these, the largest output, and what Spark writes meanwhile


def measure(rows: int, where: Path, variants: list[str], conf: list[str]) -> dict[str, Any]:
    """All variants on so many frames, which are made for it and removed after."""
    with tempfile.TemporaryDirectory(prefix="kcoord-size-", dir=where) as name:
        folder = Path(name)
        began = time.perf_counter()
        size = write_frames(folder / "frames", rows)
        print(f"{rows:,} frames, {size / 1e9:.2f} GB: made in {time.perf_counter() - began:.0f} s", flush=True)
        found = {}
        for variant in variants:
            found[variant] = watched(variant, folder / "frames", folder, conf)
            if variant == "floor" and found[variant]["counted"] != size:
                raise RuntimeError(f"Spark counted {found[variant]['counted']} bytes of {size}")
            if found[variant]["written"] and found[variant]["rows"] != rows:
                raise RuntimeError(f"{variant} wrote {found[variant]['rows']} rows of {rows}")
            seconds, processor = found[variant]["seconds"], found[variant]["processor"]
            each = ", ".join(f"{kind} {processor[kind] / rows * 1e6:.2f}" for kind in ("jvm", "workers"))
            print(f"  {variant}: {seconds:.1f} s, {rows / seconds / 1e6:.2f} million rows/s", end="; ")
            print(f"processor s a million rows: {each}", flush=True)
    return {"rows": rows, "bytes": size, "variants": found}


def measure_all(options: argparse.Namespace) -> Made:
    sizes = sorted(set(options.sizes or (options.rows // 50, options.rows // 10, options.rows)))
    needed, free = int(max(sizes) * MEAN_BYTES * DISK_PER_BYTE), shutil.disk_usage(options.dir).free
    if free < needed:
        sys.exit(f"{options.dir} has {free / 1e9:.1f} GB free and {needed / 1e9:.1f} GB are needed: name another --dir")
    return {
        "spark": pyspark.__version__,
        "conf": options.conf,
        "sizes": [measure(rows, options.dir, options.variants, options.conf) for rows in sizes],
    }


def markdown(made: Made) -> str | None:
    is_whole = VARIANTS.keys() == made["sizes"][-1]["variants"].keys() and not made.get("conf")
    return report.markdown(made) if is_whole else None


BENCH = Bench(
    about="50 million frames through Spark and through plain Python to Parquet, next to counting their bytes.",
    results=report.RESULTS,
    measure=measure_all,
    markdown=markdown,
    options={
        "rows": {"type": int, "default": 50_000_000, "help": "of the largest size"},
        "sizes": {"type": int, "nargs": "+", "help": "all sizes; by default ROWS / 50, ROWS / 10 and ROWS"},
        "variants": {"nargs": "+", "choices": VARIANTS, "default": list(VARIANTS)},
        "conf": {"nargs": "+", "default": [], "metavar": "NAME=VALUE", "help": "settings of the sessions of Spark"},
        "dir": {"type": Path, "default": Path(tempfile.gettempdir()), "help": "where there is room"},
    },
    title="Millions of frames",
    command="make bench-size",
    summary=report.summary,
)
