"""A standalone cluster whose executors have the package from its archive alone: one of two workers dies meanwhile."""

from __future__ import annotations

import json
import signal
import urllib.request
from pathlib import Path
from typing import Any

from kcoord_wire.forensics.analysis import analyze
from kcoord_wire.spark import package_archive
from kcoord_wire.spark.sessions import SHORT_JVM
from kcoord_wire.zookeeper.ensemble import free_ports
from tests.support.spark_cluster import Cluster, bare_python
from tests.support.spark_job import Job
from tests.support.waiting import eventually

DATA = Path(__file__).parents[1] / "data"
PATHS = [*sorted((DATA / "captures").glob("*.pcap")), *sorted((DATA / "recordings").glob("*.kcrec"))]
JOB = """
import json, os, sys, time

url, ui, python, archive, folder, *paths = sys.argv[1:]
import kcoord_wire
# The driver plans in processes of the executors' Python, which find the package as it does.
installed = os.path.dirname(os.path.dirname(kcoord_wire.__file__))
os.environ |= {"PYSPARK_PYTHON": python, "PYTHONPATH": installed, "SPARK_LOCAL_IP": "127.0.0.1"}
from kcoord_wire.spark import explain_rebalances, group_histories, match_files, register, session, submit_conf

spark = session(url, **submit_conf(archive), **{
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "JVM",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.extraJavaOptions": "JVM",
    "spark.executor.memory": "512m",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
    "spark.scheduler.minRegisteredResourcesRatio": "1",  # both executors, before the first task
    "spark.cores.max": "2",
    "spark.sql.shuffle.partitions": "8",
    "spark.ui.enabled": "true",
    "spark.ui.port": ui,
})
register(spark)
matched = match_files(spark, *paths, maxPartitionBytes="1g", openCostInBytes="1g")  # a task for each file
found = {"counts": matched.counts}
tasks = spark.sparkContext.parallelize(range(16), 16)
found["packages"] = tasks.map(lambda _: __import__("kcoord_wire").__file__).distinct().collect()
open(folder + "/matched", "w").close()
while not os.path.exists(folder + "/go"):
    time.sleep(0.05)
histories = group_histories(matched)
found["histories"] = repr(histories.collect())
rows = explain_rebalances(histories).orderBy("group_id", "number").collect()
found["causes"] = [[row["group_id"], row["number"], row["cause"]] for row in rows]
with open(folder + "/found.json", "w") as file:
    json.dump(found, file)
spark.stop()
""".replace("JVM", SHORT_JVM)


def executors(ui: int) -> dict[str, dict[str, Any]]:
    """What Spark knows of the executors, dead ones included, by their names."""
    base = f"http://127.0.0.1:{ui}/api/v1/applications"
    with urllib.request.urlopen(base, timeout=60) as answer:
        [application] = json.load(answer)
    with urllib.request.urlopen(f"{base}/{application['id']}/allexecutors", timeout=60) as answer:
        return {each["id"]: each for each in json.load(answer)}


def test_a_killed_worker_changes_nothing(tmp_path: Path) -> None:
    """It dies with tasks of the analysis in hand, and with it what it holds of the exchanges that were matched."""
    python, archive = bare_python(tmp_path / "bare"), package_archive(tmp_path / "kcoord_wire.zip")
    [ui] = free_ports(1)
    with Cluster(tmp_path) as cluster:
        arguments = [cluster.url, str(ui), str(python), str(archive), str(tmp_path), *map(str, PATHS)]
        with Job(JOB, tmp_path, *arguments) as job:
            job.until((tmp_path / "matched").exists)
            victim = cluster.workers[0]
            [name] = victim.executors()
            eventually(
                lambda: executors(ui)[name],
                job.written,
                until=lambda each: each["completedTasks"] and not each["activeTasks"],
            )
            victim.signal(signal.SIGSTOP)  # so that no task which it is given ends before it dies
            (tmp_path / "go").touch()
            job.until(lambda: executors(ui)[name]["activeTasks"])
            victim.kill()
            job.until(lambda: not executors(ui)[name]["isActive"])
            job.process.wait(300)
        assert job.process.returncode == 0, job.written()
    found = json.loads((tmp_path / "found.json").read_text())
    expected = analyze(PATHS)
    assert found["counts"] == {
        **{name: expected.counts[name] for name in ("frames", "exchanges")},
        "files": len(PATHS),
        "errors": 0,
        "losses": 0,
    }
    unpacked = {file.removeprefix(f"{tmp_path}/").partition("/kcoord_wire_unpacked/")[0] for file in found["packages"]}
    assert {Path(folder).parts[0] for folder in unpacked} == {"worker-1", "worker-2"}
    assert found["histories"] == repr(expected.histories)
    assert found["causes"] == [
        [each.group_id, each.number, each.cause] for history in expected.histories for each in history.rebalances
    ]
    assert len(found["causes"]) > 10
