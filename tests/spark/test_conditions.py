"""The option `where`: the rows of Spark's own filter, files that are not read, and why Spark's pushing is not used."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kcoord_wire.spark import match_exchanges, match_files
from kcoord_wire.spark.conditions import Condition, parse_condition
from kcoord_wire.spark.partitions import FilePartition
from kcoord_wire.spark.sources import KcoordSource
from tests.support.sparks import SPARK

DATA = Path(__file__).parents[1] / "data"
CAPTURES = sorted((DATA / "captures").glob("*.pcap"))[:3]
SEGMENTS = sorted((DATA / "consumer_groups").rglob("*.log"))
FILES = {"frames": CAPTURES, "records": SEGMENTS}


def condition(chosen: Random, values: dict[str, list[Any]]) -> str:
    """One to three terms, most of which some rows pass."""
    return " AND ".join(term(chosen, *chosen.choice(list(values.items()))) for _ in range(chosen.randint(1, 3)))


def term(chosen: Random, name: str, values: list[Any]) -> str:
    def constant() -> str:
        value = chosen.choice(values or ["none"])
        if isinstance(value, str):
            return "'" + value.replace("'", "''") + "'"
        return str(value + chosen.choice([0, 0, 1, -(2**40)]))

    form = chosen.randrange(8)
    if form == 0:
        return f"{name.upper()} IN ({constant()}, {constant()})"
    if form == 1:
        return f"{name} " + chosen.choice(["is null", "IS NOT NULL"])
    return f"{name} {chosen.choice(['=', '<', '<=', '>', '>='])} {constant()}"


@pytest.mark.parametrize("kind", FILES)
def test_rows_are_those_of_sparks_own_filter(spark: SparkSession, kind: str) -> None:
    paths = list(map(str, FILES[kind]))
    rows = spark.read.format("kcoord").option("metadata", "true").load(paths).persist()
    columns = ["source", "time_ns", "error", *(["direction", "seq"] if kind == "frames" else ["partition", "offset"])]
    values = rows.select(*columns, "_metadata.file_name").toArrow().to_pydict()
    values["_metadata.file_name"] = values.pop("file_name")
    values = {name: sorted(set(column) - {None}) for name, column in values.items()}
    chosen = Random(24)
    texts = [condition(chosen, values) for _ in range(40)]
    every = rows.toArrow()
    marks = rows.select(
        *(F.coalesce(F.expr(text), F.lit(False)).alias(str(n)) for n, text in enumerate(texts))
    ).toArrow()
    rows.unpersist()
    sizes = set()
    for text, mark in zip(texts, marks.columns, strict=True):  # all of them without tasks of their own
        reader = KcoordSource({"paths": json.dumps(paths), "metadata": "true", "where": text}).reader(rows.schema)
        found = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
        assert found == every.filter(mark).to_pylist(), text
        sizes.add(len(found))
    assert len(sizes) > 5
    for text, mark in zip(texts[:3], marks.columns[:3], strict=True):
        assert spark.read.format("kcoord").options(metadata="true", where=text).load(paths).toArrow() == every.filter(
            mark
        )


def read(kind: str, where: str) -> tuple[list[str], list[dict[str, Any]]]:
    """The files that tasks open, and the rows that leave them."""
    source = KcoordSource({"paths": json.dumps(list(map(str, FILES[kind]))), "where": where})
    reader = source.reader(source.schema())
    partitions = reader.partitions()
    opened = [place.name for each in partitions if isinstance(each, FilePartition) for place in each.places]
    return opened, [row for each in partitions for row in pa.Table.from_batches(reader.read(each)).to_pylist()]


def test_files_that_are_left_out_are_not_opened() -> None:
    chosen = CAPTURES[1]
    for where in (f"source = '{chosen}'", f"_metadata.file_name IN ('{chosen.name}', 'none')"):
        opened, rows = read("frames", where)
        assert opened == [str(chosen)]
        assert {row["source"] for row in rows} == {str(chosen)}
    folders = {path: int(path.parent.name.rpartition("-")[2]) for path in SEGMENTS}
    number = max(folders.values())
    opened, rows = read("records", f"partition >= {number}")
    assert opened == [str(path) for path in SEGMENTS if folders[path] == number]
    assert 0 < len(opened) < len(SEGMENTS) or len(set(folders.values())) == 1
    assert {row["partition"] for row in rows} == {number}
    assert read("records", "partition = -7") == ([], [])


def test_rows_that_do_not_pass_stay_in_the_worker() -> None:
    _, every = read("frames", "")
    opened, rows = read("frames", "direction = 'request' AND position < 50")
    assert opened == list(map(str, CAPTURES))
    assert rows == [row for row in every if row["direction"] == "request" and row["position"] < 50]
    assert 0 < len(rows) < len(every)


def test_tables_and_files_that_are_matched(spark: SparkSession, tmp_path: Path) -> None:
    """Half of a capture by its time: the exchanges are those of its frames."""
    shutil.copy(CAPTURES[0], tmp_path)
    frames = spark.read.format("kcoord").load(str(tmp_path))
    middle = frames.selectExpr("percentile(time_ns, 0.5)").first()
    assert middle is not None
    where = f"time_ns < {int(middle[0])}"
    spark.sql(f"CREATE TABLE half USING kcoord OPTIONS (path '{tmp_path}', where '{where}')")
    assert spark.sql("SELECT * FROM half").collect() == frames.where(where).collect()
    spark.sql("DROP TABLE half")
    here, elsewhere = match_files(spark, str(tmp_path), where=where), match_exchanges(frames.where(where))
    found, expected = (matched.exchanges.orderBy("seq").collect() for matched in (here, elsewhere))
    assert found == expected
    assert 0 < len(found) < match_exchanges(frames).counts["exchanges"]


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("direction = 'request' OR seq < 5", "not understood: \"direction = 'request' OR seq < 5\""),
        ("seq < 5 AND", "not understood: ''"),
        ("seq < time_ns", "not understood: 'seq < time_ns'"),
        ("topic = 'orders'", "there is no column 'topic'; the columns are source, seq, .*, _metadata.file_path, "),
        ("seq = 'five'", "the column seq is of type int64, unlike 'five'"),
        ("source > 5", "the column source is of type string, unlike 5"),
    ],
)
def test_conditions_that_are_none(spark: SparkSession, where: str, text: str) -> None:
    with pytest.raises(AnalysisException, match=text):
        spark.read.format("kcoord").option("where", where).load(str(CAPTURES[0])).collect()


def test_an_empty_condition_is_none() -> None:
    assert parse_condition("  ") == Condition()


class PushedReader(DataSourceReader):
    """The numbers below 10, of which it leaves out what Spark has pushed, as pyspark's own example does."""

    def __init__(self) -> None:
        self.pushed: list[Any] = []

    def pushFilters(self, filters: list[Any]) -> Iterator[Any]:
        for each in filters:
            if type(each).__name__ == "EqualTo":
                self.pushed.append(each.value)
            else:
                yield each

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return ((number,) for number in range(10) if all(number == value for value in self.pushed))


class PushedSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "pushed"

    def schema(self) -> str:
        return "n int"

    def reader(self, schema: StructType) -> DataSourceReader:
        return PushedReader()


@pytest.mark.skipif(SPARK < (4, 1), reason="Spark 4.0 pushes no filters to Python")
def test_spark_mixes_up_what_it_has_pushed(spark: SparkSession) -> None:
    """Why the source does without: if this fails, Spark has mended it, and the source can have `pushFilters`."""
    spark.dataSource.register(PushedSource)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        numbers = spark.read.format("pushed").load()
        assert numbers.where("n = 3").count() == 1
        assert numbers.count() == 1  # 10 would be right
        both = numbers.where("n = 3").union(numbers.where("n = 4"))
        assert [row.n for row in both.collect()] == [4, 4]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
