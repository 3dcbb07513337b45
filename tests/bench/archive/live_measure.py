"""One measurement, in its own process: `python -m tests.bench.archive.live_measure VARIANT RECORDERS OUT RESULT`.

RECORDERS has two recorders: the small one is explained first, so that no session start and little compilation is
measured. The result is what the large one took, as in `measure`; of `follow` also the bytes of its state.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from .measure import processor_time

VARIANTS: Final = {
    "source": "the source alone: planning a batch of all new bytes, on the driver",
    "follow": "the worker's part alone: frames read, `LiveFrames`, its state packed and unpacked after each batch",
    "spark": "the stream, `explain_rebalances(readStream)` to Parquet",
    "plain": "the batch, plain, `analyze`",
}
SMALL, LARGE = "small", "large"
BATCHES: Final = 10
PLANS: Final = 20


def _source(frames: Path, _: Path) -> dict[str, Any]:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from kcoord_wire.forensics.model import Frame
    from kcoord_wire.spark.rows import spark_schema
    from kcoord_wire.spark.streams import RecordingStream

    began = time.process_time()
    for _ in range(PLANS):
        stream = RecordingStream({"path": str(frames)}, spark_schema(Frame))
        end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
        stream.partitions(stream.initialOffset(), end)
    return {"planned": (time.process_time() - began) / PLANS}


def _follow(frames: Path, _: Path) -> dict[str, Any]:
    from kcoord_wire.forensics.live_frames import LiveFrames
    from kcoord_wire.forensics.model import Frame, arrow_schema
    from kcoord_wire.forensics.sources.frames import read_frames
    from kcoord_wire.recorder.recording import recording_files

    live, found, largest = LiveFrames(), 0, 0
    batches = [batch for path in recording_files(frames) for batch in read_frames(path)]
    table = pa.Table.from_batches(batches, arrow_schema(Frame))
    each = -(-len(table) // BATCHES)
    for start in range(0, len(table), each):
        live.read(table.slice(start, each))
        found += len(live.events())
        state = live.state
        largest, live = max(largest, len(state)), LiveFrames.restored(state)
    return {"rebalances": found, "state": largest}


def _on_spark() -> Callable[[Path, Path], dict[str, Any]]:
    from kcoord_wire.spark import explain_rebalances, register, session

    spark = session(f"local[{os.cpu_count()}]", **{"spark.driver.memory": "2g"})
    register(spark)

    def run(frames: Path, out: Path) -> dict[str, Any]:
        size = sum(path.stat().st_size for path in frames.iterdir())
        limit = str(-(-size // (BATCHES if frames.name == LARGE else 1)))
        rows = spark.readStream.format("kcoord").option("maxBytesPerTrigger", limit).load(str(frames))
        written = (
            explain_rebalances(rows).writeStream.format("parquet").option("checkpointLocation", f"{out}/checkpoint")
        )
        query = written.trigger(availableNow=True).start(f"{out}/rows")
        query.awaitTermination()
        explained = spark.read.parquet(f"{out}/rows")
        batches = sum(progress.numInputRows > 0 for progress in query.recentProgress)
        return {"rebalances": explained.count(), "batches": batches}

    return run


def _plainly(frames: Path, _: Path) -> dict[str, Any]:
    from kcoord_wire.forensics.analysis import analyze

    return {"rebalances": sum(len(history.rebalances) for history in analyze([frames]).histories)}


def main() -> None:
    variant, folder, out, result = sys.argv[1], *map(Path, sys.argv[2:])
    run = _on_spark() if variant == "spark" else {"source": _source, "follow": _follow, "plain": _plainly}[variant]
    run(folder / SMALL, out / SMALL)
    before, began = processor_time(os.getpid()), time.perf_counter()
    found = run(folder / LARGE, out / LARGE)
    took, after = time.perf_counter() - began, processor_time(os.getpid())
    spent = {kind: after[kind] - before[kind] for kind in after}
    result.write_text(json.dumps({"seconds": took, "spent": spent, **found}))


if __name__ == "__main__":
    main()
