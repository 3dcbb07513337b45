"""What one task of the source ``kcoord`` reads: several small files, or one large one.

    for partition in plan_partitions(find_places(["captures/"]), Packing(min_partitions=8)):
        for place, batch in read_partition(partition): ...          # what a task does; it needs no session

Laws:

* Each file is in one partition, in the order of `find_places`, so that the files of a recording stay neighbours.
* The files of a rotated capture are read together, because connections and frames go on in the next file.
* What is larger than `Packing.max_bytes`, on a disk and not packed, is read in shares, which have the rows of the
  whole: a log segment and a recording by bytes, a capture, rotated or not, by connections: both directions, and all
  connections between two endpoints, are in one share (`forensics.sources`).
* Partitions are packed by bytes as Spark packs its own file sources: none is larger than `Packing.max_bytes` unless it
  is a file that is not divided, or a 64th of a capture, and there are `Packing.min_partitions` where that leaves at
  least `Packing.open_cost` for each.
* The rows of a partition are those that the plain readers have for its files, in the same order.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from kcoord_wire.forensics.exchanges.pairing import RECORDING_FILE
from kcoord_wire.forensics.sources.files import units
from kcoord_wire.forensics.sources.frames import read_lines, read_log, read_unit
from kcoord_wire.forensics.sources.segments import MAX_EXPANSION
from kcoord_wire.spark.places import Place, shares_of
from kcoord_wire.spark.versions import SparkVersionError

try:
    from pyspark.sql.datasource import InputPartition
except ModuleNotFoundError:
    raise SparkVersionError("the analysis of groups on Spark", "4.0") from None

MAX_BYTES: Final = 128 << 20
OPEN_COST: Final = 4 << 20
"""Spark's own defaults of spark.sql.files.maxPartitionBytes and openCostInBytes."""

HERE, LATER = "here", "later"
"""Values of the source's own option ``matching``: rows of `PACKED`, of what is matched where it is read; and the frames
of all other files."""

_UNITS: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


@dataclass(frozen=True, slots=True)
class Packing:
    """How files are packed into partitions.

    :ivar max_bytes: of a partition of several files, their open cost included
    :ivar open_cost: what opening a file costs, in bytes that could be read meanwhile
    :ivar min_partitions: how many are wanted, usually one for each core
    """

    max_bytes: int = MAX_BYTES
    open_cost: int = OPEN_COST
    min_partitions: int = 1

    @classmethod
    def of_session(cls, spark: SparkSession) -> Packing:
        """The packing of a session's own file sources.

        Through Spark Connect, the number of cores is not known: there ``spark.sql.files.minPartitionNum`` sets it.
        """
        wanted = spark.conf.get("spark.sql.files.minPartitionNum", None)
        if wanted is None:
            try:
                wanted = str(spark.sparkContext.defaultParallelism)
            except AttributeError:  # Spark Connect
                wanted = "1"
        sizes = {
            name: spark.conf.get(f"spark.sql.files.{name}", str(default))
            for name, default in (("maxPartitionBytes", MAX_BYTES), ("openCostInBytes", OPEN_COST))
        }
        max_bytes, open_cost = (byte_size(name, text or "") for name, text in sizes.items())
        return cls(max_bytes, open_cost, max(1, int(wanted)))


def byte_size(name: str, text: str) -> int:
    """Parse a number of bytes as Spark writes it: ``134217728b``, ``128m``, ``128MB``.

    :param name: of the option, for the error
    :raises ValueError: it is no number of bytes, or 0
    """
    found = re.fullmatch(r"(\d{1,18})\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if found is None or not int(found[1]):
        raise ValueError(f"{name} must be a number of bytes above 0, such as 128m, not {text!r}")
    return int(found[1]) << _UNITS[found[2]]


class FilePartition(InputPartition):
    """What one task reads: files, one after the other.

    :ivar others: how many files it counts beside its own, which are read elsewhere
    """

    def __init__(self, places: Sequence[Place], others: int = 0) -> None:
        super().__init__(None)
        self.places, self.others = tuple(places), others


def plan_partitions(places: Sequence[Place], packing: Packing, *, whole: bool = False) -> list[FilePartition]:
    """Pack files into partitions.

    :param whole: keep the files of a recording together
    """
    parts: list[list[Place]] = []
    for unit in recordings(places) if whole else units(places):
        parts += shares_of(unit, packing.max_bytes)
    each = total_size(places) + packing.open_cost * sum(map(len, parts))
    limit = min(packing.max_bytes, max(packing.open_cost, each // packing.min_partitions))
    partitions: list[FilePartition] = []
    held: list[Place] = []
    size = 0
    for part in parts:
        if held and size + total_size(part) > limit:
            partitions.append(FilePartition(held))
            held, size = [], 0
        held += part
        size += total_size(part) + packing.open_cost * len(part)
    return [*partitions, FilePartition(held)] if held else partitions


def recordings(places: Sequence[Place]) -> list[list[Place]]:
    """Return the files that share connections: those of a recording, and those of a rotated capture."""
    return [
        list(files)
        for _, files in groupby(places, lambda place: place.capture or re.sub(RECORDING_FILE, "", place.name))
    ]


def total_size(places: Sequence[Place]) -> int:
    """Return the bytes of all these files that are read."""
    return sum(place.bytes_to_read for place in places)


def read_partition(
    partition: FilePartition,
    *,
    ports: Collection[int] | None = None,
    timezone: str = "UTC",
    max_expansion: int = MAX_EXPANSION,
) -> Iterator[tuple[Place, pa.RecordBatch]]:
    """Yield each file's rows with it: of `Frame`, `LogRow` or `LogLine`, by its kind; a batch has rows of one file.

    :param ports: the brokers' ports, for captures; None to detect them
    :param timezone: of lines whose time states none
    :param max_expansion: of log segments, see `segments.MAX_EXPANSION`
    :raises OSError: a file cannot be read
    :raises StoreError: a file cannot be copied from its store
    """
    for unit in units(partition.places):
        at: dict[str, Place] = {}  # by the path that is read
        for batch in _read_unit(unit, _opened(unit, at), ports, timezone, max_expansion):
            path = batch["source"][0].as_py()
            yield at[path], batch if path == at[path].name else _renamed(batch, at)


def _opened(unit: Sequence[Place], at: dict[str, Place]) -> Iterator[Path]:
    """Yield the path of a local file for each place, which lives until the next is asked for."""
    for place in unit:
        with place.local() as path:
            at[str(path)] = place
            yield path


def _read_unit(
    unit: Sequence[Place], paths: Iterator[Path], ports: Collection[int] | None, timezone: str, max_expansion: int
) -> Iterator[pa.RecordBatch]:
    if unit[0].kind == "log":
        log = partial(read_log, share=unit[0].share, max_expansion=max_expansion)
        return chain.from_iterable(map(log, paths))
    if unit[0].kind == "text":
        return chain.from_iterable(map(partial(read_lines, timezone=timezone), paths))
    return read_unit(paths, is_rotated=len(unit) > 1, ports=ports, share=unit[0].share)


def _renamed(batch: pa.RecordBatch, at: Mapping[str, Place]) -> pa.RecordBatch:
    """The rows of a copy, under the names of the files."""
    schema = batch.schema
    path = batch["source"][0].as_py()
    changed = {"source": pa.repeat(at[path].name, len(batch))}
    changed["error"] = pc.replace_substring(batch["error"], path, at[path].name)
    if "capture" in schema.names and (first := batch["capture"][0].as_py()) is not None:
        changed["capture"] = pa.repeat(at[first].name, len(batch))
    for name, column in changed.items():
        batch = batch.set_column(schema.get_field_index(name), schema.field(name), column)
    return batch
