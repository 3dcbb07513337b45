"""Parquet files that the workers read and write: the rows of `decode_frames`, whole files, wrong arguments.

The archive on executors without the package: separate processes, started by spark-submit.

The executors' Python is a fresh environment that sees pyspark, pyarrow and what these need, but not the checkout: a
folder named in a .pth file is searched, its own .pth files, by which an editable install is found, are not read.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from pyspark.sql import SparkSession

import kcoord_wire as kw
from kcoord_wire.spark import convert_parquet, decode_frames, decode_parquet, package_archive, submit_conf
from kcoord_wire.spark.sessions import java_home

SOUND = [
    kw.encode_request(kw.JoinGroupRequest(group_id="billing", protocol_type="consumer"), 5),
    kw.encode_request(kw.HeartbeatRequest(group_id="billing", generation_id=7, member_id="m-1"), 4),
    kw.encode_request(kw.SyncGroupRequest(group_id="billing", generation_id=7, member_id="m-1"), 3),
    kw.encode_request(kw.MetadataRequest(topics=[]), 4),
]
TORN = SOUND[0][:20]


@pytest.mark.parametrize("arguments", [{}, {"apis": ["JoinGroup"], "columns": ["group_id"], "flat": True}], ids=repr)
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


pytestmark = pytest.mark.slow

Reports = list[tuple[str, str, str, list[str]]]
"""Of each executor: its folder, the package's file, the codec's backend, the entries of sys.path with the package."""

SMALL_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
REFUSING = """
def mkdtemp(*arguments, dir=None, **more):
    if dir is not None:
        raise PermissionError(13, "Permission denied", dir)
    return real(*arguments, **more)
tempfile.mkdtemp = mkdtemp
"""
JOB = """
import json, os, sys

if len(sys.argv) > 2:  # the driver has the package installed
    sys.path.insert(0, sys.argv[2])
import pyarrow as pa
from pyspark.sql import SparkSession
from kcoord_wire.spark import decode_frames


def encode(batches):
    import kcoord_wire as kw
    for batch in batches:
        beats = [kw.HeartbeatRequest(group_id="g", generation_id=n) for n in batch["id"].to_pylist()]
        yield pa.RecordBatch.from_pydict({"frame": [kw.encode_request(beat, 4) for beat in beats]})


def report(batches):
    import time
    import kcoord_wire
    time.sleep(1)  # so that each executor gets something to do
    path = [os.path.abspath(p) for p in sys.path if os.path.isdir(p + "/kcoord_wire")]
    text = json.dumps([os.getcwd(), kcoord_wire.__file__, kcoord_wire.backend, path])
    for batch in batches:
        yield pa.RecordBatch.from_arrays([batch["generation_id"], pa.array([text] * len(batch))], ["n", "report"])


spark = SparkSession.builder.getOrCreate()
frames = spark.range(0, 40, 1, 2).mapInArrow(encode, "frame binary")
decoded = decode_frames(frames, columns=["group_id", "generation_id"], flat=True, mode="FAILFAST")
rows = decoded.mapInArrow(report, "n int, report string").collect()
reports = [json.loads(text) for text in sorted({row["report"] for row in rows})]
with open(sys.argv[1], "w") as file:
    json.dump({"rows": sorted(row["n"] for row in rows), "reports": reports}, file)
spark.stop()
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has the libraries and not the package."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    venv.create(folder, symlinks=True)
    [site] = folder.glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    python = folder / "bin" / "python"
    seen = subprocess.run(
        [python, "-c", "import pyspark, pyarrow, kcoord_wire"], cwd=folder, env=bare(), capture_output=True, text=True
    )
    assert "No module named 'kcoord_wire'" in seen.stderr
    return python


def bare() -> dict[str, str]:
    """The environment without variables that could lead to the checkout."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "KCOORD"))}
    return {**env, "JAVA_HOME": str(java_home())}


def submit(python: Path, folder: Path, *options: str, executors: int, driver: str = "", **env: str) -> Reports:
    """Run the job and return the reports of its executors."""
    job, out, home = folder / "job.py", folder / "out.json", folder / "spark"
    job.write_text(JOB)
    home.mkdir()  # the workers write below it
    for part in ("bin", "jars"):
        (home / part).symlink_to(Path(pyspark.__file__).parent / part)
    conf = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": SMALL_JVM,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.extraJavaOptions": SMALL_JVM,
        "spark.executor.memory": "512m",
        "spark.local.dir": str(folder / "local"),
        "spark.ui.enabled": "false",
    }
    command = [str(home / "bin" / "spark-submit"), "--master", f"local-cluster[{executors},1,768]"]
    for name, value in conf.items():
        command += ["--conf", f"{name}={value}"]
    done = subprocess.run(
        [*command, *options, str(job), str(out), *([driver] if driver else [])],
        cwd=folder,
        env={**bare(), "SPARK_HOME": str(home), "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1", **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    reports = json.loads(out.read_text())
    assert reports["rows"] == list(range(40))
    assert len({executor for executor, *_ in reports["reports"]}) == executors
    return [tuple(each) for each in reports["reports"]]


def test_py_files_are_unpacked_beside_the_archive(python: Path, tmp_path: Path) -> None:
    archive = package_archive(tmp_path / "kcoord_wire.zip")
    for executor, file, backend, on_path in submit(python, tmp_path, "--py-files", str(archive), executors=2):
        assert file == f"{executor}/kcoord_wire.zip.unpacked/kcoord_wire/_package.py"
        assert backend == kw.backend
        assert on_path == []


def test_archives_are_unpacked_by_spark(python: Path, tmp_path: Path) -> None:
    archive = package_archive(tmp_path / "kcoord_wire.zip")
    installed = tmp_path / "driver"
    zipfile.ZipFile(archive).extractall(installed)
    options = ["--archives", f"{archive}#kcoord", "--conf", "spark.executorEnv.PYTHONPATH=kcoord"]
    options += ["--conf", "spark.executorEnv.KCOORD_WIRE_BACKEND=python"]
    for executor, file, backend, on_path in submit(python, tmp_path, *options, executors=1, driver=str(installed)):
        assert file == f"{executor}/kcoord/kcoord_wire/_package.py"
        assert backend == "python"
        assert on_path == [f"{executor}/kcoord"]


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
