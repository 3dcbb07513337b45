"""Where files are: `file:` URIs, stores, patterns, tables; what is shown of a URI, and what is copied."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyarrow import fs
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from kcoord_wire.forensics.model import Frame, LogRow
from kcoord_wire.forensics.sources.files import SourceError, find_sources
from kcoord_wire.forensics.sources.frames import read_frames, read_log
from kcoord_wire.spark import places
from kcoord_wire.spark.places import Place, Selection, StoreError, find_places, local_path, selection
from kcoord_wire.spark.rows import instances, spark_schema
from kcoord_wire.spark.sources import METADATA, KcoordSource

DATA = Path(__file__).parents[1] / "data"
CAPTURES = sorted((DATA / "captures").glob("*.pcap"))[:2]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A folder of captures by day, one of segments, and files that do not count."""
    root = tmp_path / "archive of 100%20"
    for day in (1, 2, 10):
        (root / "captures" / f"day={day}").mkdir(parents=True)
        for path in CAPTURES:
            shutil.copy(path, root / "captures" / f"day={day}")
    shutil.copytree(DATA / "consumer_groups", root / "logs")
    (root / "captures" / "notes.txt").write_text("nothing about groups")
    return root


@pytest.fixture
def store(archive: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The archive as what URIs of any store name, by way of pyarrow's own interface of file systems."""
    system = fs.SubTreeFileSystem(str(archive.parent), fs.LocalFileSystem())
    monkeypatch.setattr(places, "_system", lambda uri: (system, archive.name))
    return archive


def in_store(archive: Path, places: list[Place]) -> list[tuple[str, str, int]]:
    shown = str(archive)
    return [(place.name.replace("s3://bucket", shown), place.kind, place.size) for place in places]


@pytest.mark.parametrize(
    "pattern",
    [
        "captures",
        "captures/",
        "logs",
        "captures/day=1",
        "captures/day=*",
        "captures/**/*.pcap",
        "captures/day=[12]/*.pcap",
        "captures/day=?0/aiokafka.pcap",
        "*/day=2",
    ],
)
def test_a_store_has_the_files_of_a_folder(store: Path, pattern: str) -> None:
    """The rules of local folders, patterns and order hold for URIs."""
    local = [(str(found.path), found.kind, found.path.stat().st_size) for found in find_sources([f"{store}/{pattern}"])]
    assert len(local) > 0
    for scheme in ("s3", "s3a"):
        assert in_store(store, find_places([f"{scheme}://id:secret@bucket/{pattern}?region=x"])) == local


def test_a_file_of_a_store_is_copied_for_its_reader(store: Path) -> None:
    [capture] = find_places([f"s3://bucket/captures/day=1/{CAPTURES[0].name}"])
    with capture.local() as path:
        assert path.read_bytes() == CAPTURES[0].read_bytes()
        assert path.stat().st_mtime_ns == capture.modified_ns > 0
    assert not path.exists()
    segment = find_places(["s3://bucket/logs"])[-1]
    plain = find_sources([store / "logs"])[-1]
    with segment.local() as path:
        copied = [row for batch in read_log(path) for row in instances(LogRow, batch)]
    expected = [row for batch in read_log(plain.path) for row in instances(LogRow, batch)]
    assert [(row.partition, row.offset) for row in copied] == [(row.partition, row.offset) for row in expected]
    assert expected[0].partition >= 0


def test_a_copy_leaves_room_on_the_disk(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [capture] = find_places([f"s3://bucket/captures/day=1/{CAPTURES[0].name}"])
    monkeypatch.setattr(places, "RESERVE", 1 << 60)
    with (
        pytest.raises(StoreError, match=r"s3://bucket/captures/day=1/.* has no room for a copy of it"),
        capture.local(),
    ):
        pass


@pytest.mark.parametrize("key", ["/a/..", "/../x.pcap", "/x-1/../00000000000000000000.log", "/a/" + "x" * 300, "/a/\0"])
def test_a_copy_stays_in_the_temporary_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, key: str) -> None:
    """A key of a store may be any text."""
    system = SimpleNamespace(open_input_stream=lambda path: pa.BufferReader(path.encode()))
    monkeypatch.setattr(places, "_system", lambda uri: (system, "bucket"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    stored = places._Stored(places._Store("s3://bucket", "s3://bucket"), key)
    with stored.copied(1) as path:
        assert path.resolve().parents[2] == tmp_path.resolve()
        assert path.read_bytes() == f"bucket{key}".encode()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("s3://bucket/none", "s3://bucket/none does not exist"),
        ("s3://bucket/none*/x", "s3://bucket/none*/x matches no file"),
        ("s3://bucket/captures/notes.txt", "s3://bucket/captures/notes.txt is text, not a capture"),
        ("wasb://id:secret@bucket/x", "wasb://bucket: a path is a local one or a URI with abfs, "),
        ("file://other/x", "file://other: a path is a local one or a URI with abfs, "),
        ("file:/none", "/none does not exist"),
    ],
)
def test_what_is_wrong_with_a_path_is_named(store: Path, path: str, text: str) -> None:
    with pytest.raises(SourceError, match=re.escape(text)):
        find_places([path])


@pytest.mark.parametrize(
    "uri",
    [
        "s3://id:hush@bucket/x?secret=hush",
        "s3://id:hush@bucket/x?region=a&region=%",
        "gs://hush@bucket/x?hush=1",
        "abfs://container:hush@account.dfs.core.windows.net/x?bad=hush",
    ],
)
def test_no_text_has_credentials(uri: str) -> None:
    with pytest.raises(StoreError) as caught:
        find_places([uri])
    assert "hush" not in str(caught.value).replace("'hush'", "")
    assert "hush" not in repr(places._parsed(uri))


def test_local_paths_and_uris() -> None:
    assert [local_path(path) for path in ("a b", "/a%20b", "a:b", "file:/a%20b", "file:///a b", "FILE:/a")] == [
        *("a b", "/a%20b", "a:b", "/a%20b", "/a b", "/a")
    ]
    assert local_path("s3://bucket/x") is None


def test_file_uris_are_local_paths(spark: SparkSession, archive: Path) -> None:
    uri = f"file:{archive}/captures/day=1"
    rows = instances(Frame, spark.read.format("kcoord").load(uri).toArrow())
    found = find_sources([archive / "captures" / "day=1"])
    expected = [row for source in found for batch in read_frames(source.path) for row in instances(Frame, batch)]
    assert sorted(rows, key=lambda row: (row.source, row.seq)) == expected


@pytest.mark.parametrize("made", ["OPTIONS (path '{}', ports '1,2')", "OPTIONS (ports '1,2') LOCATION '{}'"])
def test_tables(spark: SparkSession, archive: Path, made: str) -> None:
    """The options of a table reach its tasks, too: no connection has these ports."""
    folder = archive / "captures" / "day=2"
    spark.sql("CREATE TABLE tried USING kcoord " + made.format(folder))
    try:
        rows = spark.sql("SELECT direction, source FROM tried").collect()
        expected = spark.read.format("kcoord").option("ports", "1,2").load(str(folder))
        assert rows == expected.select("direction", "source").collect()
        assert len(rows) > 0
    finally:
        spark.sql("DROP TABLE tried")


def test_views(spark: SparkSession, archive: Path) -> None:
    spark.sql(f"CREATE TEMPORARY VIEW seen USING kcoord OPTIONS (path 'file:{archive}/logs')")
    assert spark.sql("SELECT count(*) FROM seen WHERE source LIKE '%/logs/%'").first()[0] > 0
    spark.catalog.dropTempView("seen")


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"recursivefilelookup": "false"}, ["top.pcap", "top.pcap1", "top.pcap2"]),
        ({"pathglobfilter": "*.pcap"}, [*("aiokafka.pcap", "cooperative.pcap") * 3, "top.pcap"]),
        ({"pathglobfilter": "{aio,co[!o]}*.pcap{,1}"}, ["aiokafka.pcap"] * 3),
        ({"pathglobfilter": "[^a]*.pcap", "recursivefilelookup": "false"}, ["top.pcap"]),
        ({"modifiedafter": "2024-05-01T12:00:00", "pathglobfilter": "top*"}, ["top.pcap1"]),
        ({"modifiedbefore": "2024-05-01T12:00:00"}, ["top.pcap2"]),
        ({"modifiedbefore": "2024-05-01T14:00:01+02:00"}, ["top.pcap", "top.pcap2"]),
    ],
    ids=repr,
)
def test_files_are_selected_as_by_sparks_own_sources(store: Path, options: dict[str, str], names: list[str]) -> None:
    """In folders and in stores. One file is of 2024-05-01T12:00:00Z, one of a second before, all others are of now."""
    folder = store / "captures"
    for name in ("top.pcap", "top.pcap1", "top.pcap2"):
        shutil.copy(CAPTURES[0], folder / name)
    os.utime(folder / "top.pcap", (1_714_564_800, 1_714_564_800))
    os.utime(folder / "top.pcap2", (1_714_564_799, 1_714_564_799))
    for path in (str(folder), "s3://bucket/captures"):
        found = find_places([path], selection(options))
        assert sorted(place.name.rpartition("/")[2] for place in found) == sorted(names)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"recursivefilelookup": "no"}, "recursiveFileLookup must be true or false, not 'no'"),
        ({"modifiedafter": "May"}, "modifiedAfter must be a time such as 2024-05-01T12:00:00, not 'May'"),
        ({"pathglobfilter": "none"}, "none of 6 files is selected by pathGlobFilter, modifiedAfter and modifiedBefore"),
    ],
)
def test_wrong_selections_are_named(store: Path, options: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        find_places([str(store / "captures")], selection(options))
    assert selection({}) == Selection()


def test_a_selection_decides_the_kind(archive: Path) -> None:
    """Of a folder with captures and segments."""
    source = KcoordSource({"path": str(archive), "pathGlobFilter": "*.log"})
    assert source.schema() == spark_schema(LogRow)
    assert len(source.reader(source.schema()).partitions()) > 0
    with pytest.raises(ValueError, match="a table has one kind: load them separately"):
        KcoordSource({"path": str(archive)}).schema()


def test_metadata_and_a_choice_of_columns(spark: SparkSession, archive: Path) -> None:
    path = archive / "captures" / "day=1" / CAPTURES[0].name
    reader = spark.read.format("kcoord").option("Metadata", "true").option("PathGlobFilter", CAPTURES[0].name)
    df = reader.load(str(path.parent))
    assert df.schema.fields == [*spark_schema(Frame).fields, METADATA]
    stat = path.stat()
    names = ("file_path", "file_name", "file_size")
    [row] = df.select(*(f"_metadata.{name}" for name in names)).distinct().collect()
    assert tuple(row) == (path.as_uri(), path.name, stat.st_size)
    times = df.selectExpr("unix_micros(_metadata.file_modification_time) time").distinct().collect()
    assert [row.time for row in times] == [stat.st_mtime_ns // 1000]
    chosen = spark.read.format("kcoord").schema("time_ns long, seq long").load(str(path))
    expected = [(row.time_ns, row.seq) for batch in read_frames(path) for row in instances(Frame, batch)]
    assert [tuple(row) for row in chosen.collect()] == expected


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("time_ns long, topic string", "there is no column 'topic'; the columns are source, seq, "),
        ("time_ns string", "the column time_ns is of type bigint, not string"),
    ],
)
def test_columns_that_the_source_does_not_have(spark: SparkSession, archive: Path, schema: str, text: str) -> None:
    df = spark.read.format("kcoord").schema(schema).load(str(archive / "captures"))
    with pytest.raises(AnalysisException, match=text):
        df.collect()


@pytest.mark.parametrize("from_store", [False, True])
def test_rows_of_a_packed_partition_name_their_own_file(store: Path, from_store: bool) -> None:
    """Also under DROPMALFORMED, which shortens the batches, and where every row of a file is left out."""
    folder = store / "captures" / "day=1"
    torn = folder / "torn.pcap"
    torn.write_bytes(CAPTURES[0].read_bytes()[:-7])
    (folder / "only.pcap").write_bytes(CAPTURES[0].read_bytes()[:30])
    top = "s3://bucket/captures/day=1" if from_store else str(folder)
    files = {place.name: place for place in find_places([top])}
    for mode in ("PERMISSIVE", "dropMalformed"):
        source = KcoordSource({"path": top, "mode": mode, "metadata": "true"})
        reader = source.reader(source.schema())
        [partition] = reader.partitions()
        table = pa.Table.from_batches(reader.read(partition))
        found = [(row["source"], row["seq"], row["error"]) for row in table.to_pylist()]
        every = [
            (name, row.seq, row.error is not None)
            for name, place in files.items()
            for batch in read_frames(folder / Path(place.name).name)
            for row in instances(Frame, batch)
        ]
        kept = [item for item in every if mode == "PERMISSIVE" or not item[2]]
        assert [(name, seq, error is not None) for name, seq, error in found] == kept
        assert 0 < len([item for item in every if item[2]]) < len(every)
        for row in table.to_pylist():
            place, metadata = files[row["source"]], row["_metadata"]
            assert metadata["file_path"] == (place.name if from_store else Path(place.name).as_uri())
            assert (metadata["file_name"], metadata["file_size"]) == (Path(place.name).name, place.size)
