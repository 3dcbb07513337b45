"""One measurement, in its own process: `python -m tests.bench.archive.measure VARIANT CAPTURES OUT RESULT`.

Each variant runs once on one file first, so that no session start and little compilation is measured; the result is
what the second run took: seconds, and processor time of driver, JVM and workers; of what is matched also the bytes,
which are what the analysis shuffles.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ..spark.measure import processes

VARIANTS: Final = {
    "floor": "counting the frames, `spark.read.format('kcoord')`",
    "match": "matching them, `match_files`",
    "spark": "the whole analysis, `analyze_on_spark`",
    "plain": "the whole analysis, plain, `analyze`",
}
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def _on_spark(variant: str) -> Callable[[str], dict[str, int]]:
    from pyspark.sql import functions as F

    from kcoord_wire.spark import match_files, register, session
    from kcoord_wire.spark.analysis import analyze_on_spark

    master = f"local[{os.cpu_count()}]"
    spark = session(master, **{"spark.driver.memory": "2g"})
    register(spark)

    def run(path: str) -> dict[str, int]:
        if variant == "floor":
            return {"frames": spark.read.format("kcoord").load(path).count()}
        if variant == "spark":
            return {"frames": analyze_on_spark([path], master=master).counts["frames"]}
        matched = match_files(spark, path)
        packed = matched.rows.agg(F.sum(F.octet_length("data"))).collect()[0][0]
        found = {"frames": matched.counts["frames"], "packed": packed}
        matched.unpersist()
        return found

    return run


def _plainly(path: str) -> dict[str, int]:
    from kcoord_wire.forensics.analysis import analyze

    return {"frames": analyze([path]).counts["frames"]}


def processor_time(root: int) -> dict[str, float]:
    """Seconds of a process, of the JVM below it, and of the other processes below it, ended ones included."""
    found = {"driver": 0.0, "jvm": 0.0, "workers": 0.0}
    for _, kind, fields in processes(root):
        own, ended = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
        found[kind] += (own + (ended if kind == "workers" else 0)) / _TICKS
    return found


def main() -> None:
    variant, folder, result = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[4])
    run = _plainly if variant == "plain" else _on_spark(variant)
    run(str(min(folder.iterdir())))
    before, began = processor_time(os.getpid()), time.perf_counter()
    found = run(str(folder))
    took, after = time.perf_counter() - began, processor_time(os.getpid())
    spent = {kind: after[kind] - before[kind] for kind in after}
    result.write_text(json.dumps({"seconds": took, "spent": spent, **found}))


if __name__ == "__main__":
    main()
