"""One measurement, in its own process: `python -m tests.bench.spark.measure VARIANT FRAMES OUT RESULT NAME=VALUE...`.

Each variant runs once on one file first, so that no session start and no compilation is measured; the result is what
the second run took, as JSON. The parent watches the memory meanwhile (`watched`). Settings of the session may follow.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

COLUMNS: Final = ("api_key", "api_version", "correlation_id", "group_id", "member_id", "generation_id")
HEADS: Final = COLUMNS[:3]
VARIANTS: Final = {
    "floor": "counting the bytes, `sum(octet_length(frame))`",
    "flat-nowhere": "flat columns, output discarded",
    "flat": "flat columns to Parquet",
    "files": "flat columns to Parquet, workers read the files (`decode_parquet`)",
    "converted": "flat columns to Parquet, workers read and write the files (`convert_parquet`)",
    "nested": "all fields, nested, to Parquet",
    "plain": "flat columns to Parquet, plain Python without Spark",
}
ROOT: Final = Path(__file__).resolve().parents[3]
_LOOK_SECONDS: Final = 0.1


def _on_spark(variant: str, conf: dict[str, str]) -> Callable[[list[str], Path], int]:
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F

    from kcoord_wire.spark import convert_parquet, decode_frames, decode_parquet, session

    spark = session(f"local[{os.cpu_count()}]", **{"spark.driver.memory": "2g", **conf})

    def decoded(df: DataFrame) -> DataFrame:
        if variant == "nested":
            return decode_frames(df)
        return decode_frames(df, columns=COLUMNS, flat=True)

    def run(files: list[str], out: Path) -> int:
        if variant == "files":
            decode_parquet(spark, files, columns=COLUMNS, flat=True).write.mode("overwrite").parquet(str(out))
            return 0
        if variant == "converted":
            return convert_parquet(spark, files, out, columns=COLUMNS, flat=True)
        df = spark.read.parquet(*files)
        if variant == "floor":
            return int(df.agg(F.sum(F.octet_length("frame"))).collect()[0][0])
        if variant == "flat-nowhere":
            decoded(df).write.format("noop").mode("overwrite").save()
        else:
            decoded(df).write.mode("overwrite").parquet(str(out))
        return 0

    return run


def _plainly(files: list[str], out: Path) -> int:
    """A thread for each core, a file for each thread: the decoder holds no lock while it decodes."""
    from kcoord_wire.codec.columns import ColumnDecoder
    from kcoord_wire.spark.decode import GROUP_APIS

    messages = [f"{api}Request" for api in GROUP_APIS]
    fields = COLUMNS[len(HEADS) :]
    out.mkdir(parents=True)

    def flat(batch: pa.RecordBatch) -> Iterator[pa.Array]:
        yield from (batch[name] for name in HEADS)
        for field in fields:
            structs = [batch[name] for name in messages if name in batch.schema.names]
            yield pc.coalesce(*(pc.struct_field(s, field) for s in structs if s.type.get_field_index(field) >= 0))
        yield from (batch["error"], batch["error_offset"])

    def convert(file: str) -> None:
        decoder, writer = ColumnDecoder(messages, columns=fields), None
        for batch in pq.ParquetFile(file).iter_batches(100_000):
            columns = list(flat(decoder.decode(batch["frame"])))
            table = pa.Table.from_arrays(columns, names=[*COLUMNS, "_error", "_error_offset"])
            if writer is None:
                writer = pq.ParquetWriter(out / Path(file).name, table.schema)
            writer.write_table(table)
        if writer is not None:
            writer.close()

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(convert, files))
    return 0


def main() -> None:
    variant, frames, out, result = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4])
    files = sorted(str(path) for path in frames.glob("*.parquet"))
    conf = dict(setting.split("=", 1) for setting in sys.argv[5:])
    run = _plainly if variant == "plain" else _on_spark(variant, conf)
    run(files[:1], out)
    shutil.rmtree(out, ignore_errors=True)
    before, began = _processor_seconds(os.getpid()), time.perf_counter()
    counted = run(files, out)
    took = time.perf_counter() - began
    processor = {kind: seconds - before[kind] for kind, seconds in _processor_seconds(os.getpid()).items()}
    written = sum(path.stat().st_size for path in out.rglob("*.parquet")) if out.exists() else 0
    rows = sum(pq.read_metadata(path).num_rows for path in out.rglob("*.parquet")) if out.exists() else 0
    found = {"seconds": took, "processor": processor, "counted": counted, "written": written, "rows": rows}
    result.write_text(json.dumps(found))


def watched(
    variant: str,
    frames: Path,
    folder: Path,
    conf: Sequence[str] = (),
    *,
    module: str = "tests.bench.spark.measure",
) -> dict[str, Any]:
    """What the measurement of a variant gave, with the most memory that its processes had: driver, JVM, workers.

    :param conf: settings of the session, each as NAME=VALUE
    """
    out, result = folder / "out", folder / "result.json"
    command = [sys.executable, "-m", module, variant, str(frames), str(out), str(result), *conf]
    peaks = {"driver": 0, "jvm": 0, "workers": 0}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        over = threading.Event()

        def look() -> None:
            while not over.wait(_LOOK_SECONDS):
                for kind, size in _memory(process.pid).items():
                    peaks[kind] = max(peaks[kind], size)

        watcher = threading.Thread(target=look, daemon=True)
        watcher.start()
        try:
            status = process.wait()
        finally:
            over.set()
            watcher.join()
            if process.poll() is None:
                process.kill()
                process.wait()
            shutil.rmtree(out, ignore_errors=True)
    if status:
        raise RuntimeError(f"{variant} failed:\n{(folder / 'log').read_text(errors='replace')[-4000:]}")
    made: dict[str, Any] = json.loads(result.read_text())
    return {**made, "memory": peaks}


def processes(root: int) -> Iterator[tuple[int, str, list[str]]]:
    """Yield a process and those below it: its number, what it is, and what /proc/PID/stat has behind its name."""
    stats: dict[int, tuple[str, list[str]]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            start, _, end = path.read_text().rpartition(")")
        except OSError:
            continue
        stats[int(path.parent.name)] = (start.partition("(")[2], end.split())
    below = {root}
    while more := {pid for pid, (_, fields) in stats.items() if int(fields[1]) in below} - below:
        below |= more
    for pid in below & stats.keys():
        name, fields = stats[pid]
        yield pid, "driver" if pid == root else "jvm" if name == "java" else "workers", fields


def _processor_seconds(root: int) -> dict[str, float]:
    """Processor time of a process and those below it; of workers with that of those which have ended."""
    found = {"driver": 0, "jvm": 0, "workers": 0}
    for _, kind, fields in processes(root):
        found[kind] += sum(map(int, fields[11 : 15 if kind == "workers" else 13]))
    return {kind: ticks / os.sysconf("SC_CLK_TCK") for kind, ticks in found.items()}


def _memory(root: int) -> dict[str, int]:
    """Resident bytes of a process and those below it; of workers their sum, shared pages counted once (PSS)."""
    found = {"driver": 0, "jvm": 0, "workers": 0}
    for pid, kind, _ in processes(root):
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        size = next((int(text.split()[1]) << 10 for text in rollup.splitlines() if text.startswith("Pss:")), 0)
        found[kind] += size
    return found


if __name__ == "__main__":
    main()
