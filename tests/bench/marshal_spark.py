"""Claims of 1,000 members and 10,000 partitions from a coordination log, on Spark.

    python -m tests.bench.marshal_spark --messages 10000000

makes the log as Parquet in a temporary folder below ``--dir``, reads it with one variant after the other, and prints
messages per second, processor time, and the most memory that the processes had. Each variant has a process of its own
and runs on a hundredth of the messages first, so that no session start is measured.

The log: 40 topics with 250 partitions, on 50 coordination partitions with append times; each member claims ten
partitions, and heartbeats follow in rounds of 30 s. In each round ten members go on as new instances, and ten
partitions are released and claimed by another member.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kcoord_wire.forensics.marshal.reader import COLUMNS
from kcoord_wire.forensics.model import LogRow, arrow_schema
from kcoord_wire.marshal.log import coordination_partition

VARIANTS: Final = {
    "floor": "Spark reads and splits the text, `split(value, '/')`",
    "workers": "Python workers read and split the text, by coordination partition and offset",
    "claims": "`coordination_claims`",
}
MEMBERS: Final = 1000
TOPICS: Final = 40
OF_TOPIC: Final = 250
PARTITIONS: Final = TOPICS * OF_TOPIC
COORDINATION: Final = 50
ROUND_S: Final = 30
CHANGES: Final = 10
START_S: Final = 1_700_000_000


def write_log(folder: Path, messages: int) -> int:
    """Write about so many records of `LogRow`; how many there are. Each file has all coordination partitions."""
    folder.mkdir(parents=True)
    topics = np.arange(PARTITIONS) // OF_TOPIC
    homes = np.array([coordination_partition(f"topic-{n}", COORDINATION) for n in range(TOPICS)])[topics]
    owners = np.arange(PARTITIONS) % MEMBERS
    lives = np.zeros(MEMBERS, np.int64)
    offsets = np.zeros(COORDINATION, np.int64)
    chosen = np.random.default_rng(1)
    written, number = 0, 0
    while written < messages:
        rows = [_lines("ClaimingPartition", number, np.arange(PARTITIONS), owners, lives, None)] if not number else []
        if number:
            lives[chosen.choice(MEMBERS, CHANGES, replace=False)] += 1
        rows.append(_lines("Heartbeat", number, np.arange(PARTITIONS), owners, lives, number * 100))
        moved = chosen.choice(PARTITIONS, CHANGES, replace=False)
        rows.append(_lines("ReleasingPartition", number, moved, owners, lives, number * 100 + 1))
        owners[moved] = chosen.integers(0, MEMBERS, CHANGES)
        rows.append(_lines("ClaimingPartition", number, moved, owners, lives, None))
        rows.append(_lines("Heartbeat", number, moved, owners, lives, number * 100 + 1))
        places = [np.arange(PARTITIONS)] * (1 if number else 2) + [moved] * 3
        written += _write(folder / f"{number:06}.parquet", number, rows, homes[np.concatenate(places)], offsets)
        number += 1
    return written


def _lines(
    kind: str, number: int, places: np.ndarray, owners: np.ndarray, lives: np.ndarray, offset: int | None
) -> pa.Array:
    """The texts of one kind in one round."""
    mine = owners[places]
    texts = [
        pa.array(mine).cast(pa.string()),
        pa.array(lives[mine]).cast(pa.string()),
        pa.array(mine).cast(pa.string()),
        pa.array(places // OF_TOPIC).cast(pa.string()),
        pa.array(places % OF_TOPIC).cast(pa.string()),
    ]
    instance = pc.binary_join_element_wise(pc.binary_join_element_wise("i", texts[0], ""), texts[1], ".")
    fields = [
        f"{kind}/1/{START_S + number * ROUND_S}",
        instance,
        pc.binary_join_element_wise("client-", texts[2], ""),
        "group",
        pc.binary_join_element_wise("topic-", texts[3], ""),
        texts[4],
        *([] if offset is None else [str(offset)]),
    ]
    return pc.binary_join_element_wise(*fields, "/").cast(pa.binary())


def _write(path: Path, number: int, texts: list[pa.Array], homes: np.ndarray, offsets: np.ndarray) -> int:
    """Write the records of a round; offsets count on in each coordination partition."""
    values = pa.concat_arrays(texts)
    place = np.empty(len(homes), np.int64)
    for home in np.unique(homes):
        mine = homes == home
        place[mine] = offsets[home] + np.arange(mine.sum())
        offsets[home] += mine.sum()
    count = len(values)
    times = (START_S + number * ROUND_S) * 10**9 + np.arange(count) * 10**5
    none = pa.nulls(count, pa.binary())
    columns = {
        "source": pc.binary_join_element_wise("__marshal", pa.array(homes).cast(pa.string()), "-"),
        "partition": pa.array(homes, pa.int32()),
        "offset": pa.array(place),
        "position": pa.array(place),
        "time_ns": pa.array(times),
        "key": none,
        "value": values,
        "error": none.cast(pa.string()),
        "lost": pa.array(np.zeros(count, np.int64)),
        "is_append_time": pa.array(np.ones(count, bool)),
    }
    schema = arrow_schema(LogRow)
    pq.write_table(pa.table([columns[name] for name in schema.names], schema=schema), path)
    return count


def _count_fields(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    fields = 0
    for batch in batches:
        for *_, value, _, _ in zip(*(batch[name].to_pylist() for name in ("partition", *COLUMNS)), strict=True):
            fields += len(value.split(b"/"))
    yield pa.RecordBatch.from_pydict({"fields": [fields]})


def _run(variant: str, folder: str) -> int:
    """One variant over a folder of files; how many fields or claims it found."""
    from pyspark.sql import functions as F

    from kcoord_wire.spark import coordination_claims, session

    spark = session(f"local[{os.cpu_count()}]", **{"spark.driver.memory": "2g"})
    records = spark.read.parquet(folder)
    if variant == "floor":
        sizes = records.select(F.size(F.split(F.col("value").cast("string"), "/")).alias("fields"))
        return int(sizes.agg(F.sum("fields")).collect()[0][0])
    if variant == "workers":
        rows = records.select("partition", *COLUMNS).repartition("partition")
        counts = rows.sortWithinPartitions("partition", "offset").mapInArrow(_count_fields, "fields long")
        return int(counts.agg(F.sum("fields")).collect()[0][0])
    return int(coordination_claims(records).count())


def measure(variant: str, folder: Path, result: Path) -> None:
    """The child's part."""
    _run(variant, str(folder / "small"))
    began, used = time.perf_counter(), _processor_seconds(os.getpid())
    counted = _run(variant, str(folder / "records"))
    seconds, processor = time.perf_counter() - began, _processor_seconds(os.getpid()) - used
    result.write_text(json.dumps({"seconds": seconds, "processor": processor, "counted": counted}))


def _processor_seconds(root: int) -> float:
    """What a process and those below it have used, with what their ended children had."""
    below, ticks = {root}, 0
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            stats[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
    while more := {pid for pid, fields in stats.items() if int(fields[1]) in below} - below:
        below |= more
    for pid in below & stats.keys():
        ticks += sum(map(int, stats[pid][11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.marshal_spark", description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args(arguments)
    from .spark.measure import watched

    with tempfile.TemporaryDirectory(prefix="kcoord-marshal-", dir=options.dir) as name:
        folder = Path(name)
        write_log(folder / "small", options.messages // 100)
        messages = write_log(folder / "records", options.messages)
        print(f"{messages:,} messages, {MEMBERS:,} members, {PARTITIONS:,} partitions; load {os.getloadavg()[0]:.1f}")
        for variant in options.variants:
            made: dict[str, Any] = watched(variant, folder, folder, module="tests.bench.marshal_spark")
            sizes = ", ".join(f"{kind} {size >> 20} MiB" for kind, size in made["memory"].items())
            rate, each = messages / made["seconds"], 1e6 * made["processor"] / messages
            took = f"{made['seconds']:.1f} s, {each:.1f} us of processor time each"
            print(f"{variant:8} {rate:9,.0f} messages/s, {took}; {sizes}; {made['counted']:,} counted", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in VARIANTS:
        measure(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[4]))
    else:
        main()
