"""The archive on executors without the package: separate processes, started by spark-submit."""

from __future__ import annotations

import json
import subprocess
import zipfile
from pathlib import Path

import pytest

import kcoord_wire as kw
from kcoord_wire.spark import package_archive
from kcoord_wire.spark.sessions import SHORT_JVM
from tests.support.spark_cluster import bare, bare_python, spark_home

Reports = list[tuple[str, str, str, list[str]]]
"""Of each executor: its folder, the package's file, the codec's backend, the entries of sys.path with the package."""

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
    return bare_python(tmp_path_factory.mktemp("bare") / "venv")


def submit(python: Path, folder: Path, *options: str, executors: int, driver: str = "", **env: str) -> Reports:
    """Run the job and return the reports of its executors."""
    job, out, home = folder / "job.py", folder / "out.json", spark_home(folder / "spark")
    job.write_text(JOB)
    conf = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": SHORT_JVM,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.extraJavaOptions": SHORT_JVM,
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
        env={**bare(), "SPARK_HOME": str(home), "PYSPARK_PYTHON": str(python), **env},
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
