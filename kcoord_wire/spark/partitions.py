"""What one task of the source ``kcoord`` reads: several small files, or one large one.

    for partition in plan_partitions(find_places(["captures/"]), Packing(min_partitions=8)):
        for place, batch in read_partition(partition): ...          # what a task does; it needs no session

Laws:

* Each file is in one partition, in the order of `find_places`, so that the files of a recording stay neighbours.
* Partitions are packed by bytes as Spark packs its own file sources: none is larger than `Packing.max_bytes` unless a
  file is, and there are `Packing.min_partitions` where that leaves at least `Packing.open_cost` for each.
* The rows of a partition are those that the plain readers have for its files, in the same order.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from kcoord_wire.forensics.exchanges.pairing import RECORDING_FILE
from kcoord_wire.forensics.sources.files import Kind
from kcoord_wire.forensics.sources.frames import read_frames, read_lines, read_log
from kcoord_wire.spark.places import Place
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
    """What one task reads: files, one after the other."""

    def __init__(self, places: Sequence[Place]) -> None:
        super().__init__(None)
        self.places = tuple(places)


def plan_partitions(places: Sequence[Place], packing: Packing, *, whole: bool = False) -> list[FilePartition]:
    """Pack files into partitions.

    :param whole: keep the files of a recording together
    """
    each = sum(place.size + packing.open_cost for place in places) // packing.min_partitions
    limit = min(packing.max_bytes, max(packing.open_cost, each))
    partitions: list[FilePartition] = []
    held: list[Place] = []
    size = 0
    for unit in recordings(places) if whole else [[place] for place in places]:
        if held and size + total_size(unit) > limit:
            partitions.append(FilePartition(held))
            held, size = [], 0
        held += unit
        size += total_size(unit) + packing.open_cost * len(unit)
    return [*partitions, FilePartition(held)] if held else partitions


def recordings(places: Sequence[Place]) -> list[list[Place]]:
    """Return the files that share connections, which follow each other: those of a recording; others are alone."""
    return [list(files) for _, files in groupby(places, lambda place: re.sub(RECORDING_FILE, "", place.name))]


def total_size(places: Sequence[Place]) -> int:
    """Return the bytes of all these files."""
    return sum(place.size for place in places)


def read_partition(
    partition: FilePartition, *, ports: Collection[int] | None = None, timezone: str = "UTC"
) -> Iterator[tuple[Place, pa.RecordBatch]]:
    """Yield each file's rows with it: of `Frame`, `LogRow` or `LogLine`, by its kind; a batch has rows of one file.

    :param ports: the brokers' ports, for captures; None to detect them
    :param timezone: of lines whose time states none
    :raises OSError: a file cannot be read
    :raises StoreError: a file cannot be copied from its store
    """
    for place in partition.places:
        with place.local() as path:
            for batch in _read_file(path, place.kind, ports, timezone):
                yield place, batch if str(path) == place.name else _renamed(batch, str(path), place.name)


def _read_file(path: Path, kind: Kind, ports: Collection[int] | None, timezone: str) -> Iterator[pa.RecordBatch]:
    if kind == "log":
        return read_log(path)
    if kind == "text":
        return read_lines(path, timezone=timezone)
    return read_frames(path, ports=ports)


def _renamed(batch: pa.RecordBatch, path: str, name: str) -> pa.RecordBatch:
    """The rows of a copy, under the name of the file."""
    schema = batch.schema
    batch = batch.set_column(schema.get_field_index("source"), schema.field("source"), pa.repeat(name, len(batch)))
    error = pc.replace_substring(batch["error"], path, name)
    return batch.set_column(schema.get_field_index("error"), schema.field("error"), error)
