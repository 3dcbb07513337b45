"""Parquet files that the workers read and write, rows as of `decode_frames`, wrong arguments; what is in the archive.

tests/interop/test_spark_archives.py has the archive on executors.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import kcoord_wire as kw
from kcoord_wire.spark import convert_parquet, decode_frames, decode_parquet, package_archive, submit_conf

SOUND = [
    kw.encode_request(kw.JoinGroupRequest(group_id="billing", protocol_type="consumer"), 5),
    kw.encode_request(kw.HeartbeatRequest(group_id="billing", generation_id=7, member_id="m-1"), 4),
    kw.encode_request(kw.SyncGroupRequest(group_id="billing", generation_id=7, member_id="m-1"), 3),
    kw.encode_request(kw.MetadataRequest(topics=[]), 4),
]
TORN = SOUND[0][:20]


@pytest.mark.parametrize(
    "arguments",
    [{}, {"mode": "DROPMALFORMED"}, {"apis": ["JoinGroup"], "columns": ["group_id"], "flat": True}],
    ids=["all", "sound", "flat"],
)
def test_files_read_by_workers_decode_alike(spark: SparkSession, tmp_path: Path, arguments: dict[str, Any]) -> None:
    table = pa.table({"n": range(8), "frame": pa.array([*SOUND, TORN, b"", None, b"\0"], pa.large_binary())})
    paths = [str(tmp_path / f"{number}.parquet") for number in range(2)]
    for path, half in zip(paths, (table.slice(0, 3), table.slice(3)), strict=True):
        pq.write_table(half, path)
    read = decode_parquet(spark, paths, beside=["n"], **arguments)
    plain = decode_frames(spark.read.parquet(*paths).select("n", "frame"), **arguments)
    assert read.schema == plain.schema
    rows = plain.orderBy("n").collect()
    assert len(rows) > 2
    assert sorted(read.collect(), key=lambda row: row["n"]) == rows
    out = tmp_path / "out"
    assert convert_parquet(spark, paths, out, beside=["n"], **arguments) == len(rows)
    assert sorted(path.name for path in out.iterdir()) == ["_SUCCESS", "part-00000.parquet", "part-00001.parquet"]
    assert sorted(spark.read.parquet(str(out)).collect(), key=lambda row: row["n"]) == rows
    with pytest.raises(FileExistsError, match="is not empty"):
        convert_parquet(spark, paths, out, beside=["n"], **arguments)


def test_a_failed_file_leaves_no_partial_file(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "x.parquet")
    pq.write_table(pa.table({"frame": pa.array([*SOUND, TORN], pa.binary())}), path)
    with pytest.raises(Exception, match="truncated"):
        convert_parquet(spark, [path], tmp_path / "out", mode="FAILFAST")
    assert list((tmp_path / "out").iterdir()) == []


def test_wrong_files_are_rejected_at_once(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "x.parquet")
    with pytest.raises(FileNotFoundError):
        decode_parquet(spark, [path])
    pq.write_table(pa.table({"n": [1], "api_key": [2], "frame": [b""]}), path)
    for arguments, text in (
        ({"column": "value"}, "has no column 'value', only n, api_key, frame"),
        ({"beside": ["api_key"]}, "beside has names of decoded columns: api_key"),
    ):
        with pytest.raises(ValueError, match=text):
            decode_parquet(spark, [path], **arguments)
    with pytest.raises(ValueError, match="paths must be a list of at least one file"):
        decode_parquet(spark, path)


REFUSING = """
def mkdtemp(*arguments, dir=None, **more):
    if dir is not None:
        raise PermissionError(13, "Permission denied", dir)
    return real(*arguments, **more)
tempfile.mkdtemp = mkdtemp
"""


def test_submit_conf_equals_archives() -> None:
    assert submit_conf("a/kcoord_wire.zip") == {
        "spark.archives": "a/kcoord_wire.zip#kcoord_wire_unpacked",
        "spark.executorEnv.PYTHONPATH": "kcoord_wire_unpacked",
    }


@pytest.mark.parametrize("writable", [True, False])
def test_a_zip_imports_from_any_folder(tmp_path: Path, writable: bool) -> None:
    """The first import unpacks it; the second uses the unpacked folder; both decode."""
    archive = package_archive(tmp_path / "there" / "kcoord_wire.zip")
    again = tmp_path / "again.zip"
    program = f"""
import sys
sys.path.insert(0, {str(archive)!r})
import kcoord_wire as kw
message = kw.HeartbeatRequest(group_id="g", generation_id=3)
assert kw.decode(type(message), kw.encode(message, 4), 4) == message
from kcoord_wire.spark.files import package_archive
package_archive({str(again)!r})
print(kw.__file__, kw.backend)
"""
    if not writable:
        program = "import tempfile\nreal = tempfile.mkdtemp\n" + REFUSING + program
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-I", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        file, backend = done.stdout.split()
        assert backend == kw.backend
        if writable:
            assert file == f"{archive}.unpacked/kcoord_wire/_package.py"
        else:
            assert not Path(file).exists()  # the temporary folder went with the process
    assert sorted(path.name for path in archive.parent.iterdir()) == sorted(
        ["kcoord_wire.zip", *(["kcoord_wire.zip.unpacked"] if writable else [])]
    )
    with zipfile.ZipFile(again) as second, zipfile.ZipFile(archive) as first:
        assert set(second.namelist()) == set(first.namelist())
        for name in ("kcoord_wire/__init__.py", "kcoord_wire/_package.py"):
            assert second.read(name) == first.read(name)
