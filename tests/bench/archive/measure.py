"""One measurement, in its own process: `python -m tests.bench.archive.measure VARIANT CAPTURES OUT RESULT`.

``match@BYTES`` is the variant ``match`` with that many `maxPartitionBytes`.

Each variant runs once on one file first, so that no session start and little compilation is measured; the result is
what the second run took: seconds, processor time of driver, JVM and workers (``start``: that of what came before), and
on Spark the bytes that its tasks sent to the driver (`Result Size`, of all tasks, in the event log); of what is matched
also its bytes, which are shuffled.
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


def _on_spark(variant: str, out: Path) -> Callable[[str], dict[str, int]]:
    from pyspark.sql import functions as F

    from kcoord_wire.spark import explain_rebalances, group_histories, match_files, register, session
    from kcoord_wire.spark.analysis import analyze_on_spark, local_conf

    kind, _, limit = variant.partition("@")
    master, events = f"local[{os.cpu_count()}]", out / "events"
    events.mkdir(parents=True)
    logged = {"spark.eventLog.enabled": "true", "spark.eventLog.compress": "false"}
    own = {"spark.driver.memory": "2g", "spark.eventLog.dir": events.as_uri()}
    spark = session(master, **local_conf(master), **own, **logged)
    register(spark)

    def run(path: str) -> dict[str, int]:
        if variant == "floor":
            return {"frames": spark.read.format("kcoord").load(path).count()}
        if variant == "spark":
            return {"frames": analyze_on_spark([path], master=master).counts["frames"]}
        matched = match_files(spark, path, **({"maxPartitionBytes": limit} if limit else {}))
        if kind == "match":
            found = {"packed": matched.rows.agg(F.sum(F.octet_length("data"))).collect()[0][0]}
        else:
            found, histories = {}, group_histories(matched)
            explain_rebalances(histories).write.mode("overwrite").parquet(str(out / "rebalances"))
            histories.unpersist()
        found["frames"] = matched.counts["frames"]
        matched.unpersist()
        return found

    return run


def sent_to_driver(events: Path, since: float) -> dict[str, int]:
    """How many tasks began at a time or later, and the bytes of their results, in an event log of Spark.

    :param since: in seconds of the epoch
    """
    found = {"tasks": 0, "received": 0}
    for file in events.rglob("events_*"):
        for line in file.read_text("utf-8").splitlines():
            event = json.loads(line)
            if event["Event"] == "SparkListenerTaskEnd" and event["Task Info"]["Launch Time"] >= since * 1000:
                found["tasks"] += 1
                found["received"] += event["Task Metrics"]["Result Size"]
    return found


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
    variant, folder, out, result = sys.argv[1], *map(Path, sys.argv[2:])
    run = _plainly if variant == "plain" else _on_spark(variant, out)
    run(str(min(folder.iterdir())))
    before, since, began = processor_time(os.getpid()), time.time(), time.perf_counter()
    found = run(str(folder))
    took, after = time.perf_counter() - began, processor_time(os.getpid())
    spent = {kind: after[kind] - before[kind] for kind in after}
    if variant != "plain":
        from pyspark import SparkContext

        SparkContext.getOrCreate().stop()  # which completes the log
        found |= sent_to_driver(out / "events", since)
    result.write_text(json.dumps({"seconds": took, "spent": spent, "start": before, **found}))


if __name__ == "__main__":
    main()
