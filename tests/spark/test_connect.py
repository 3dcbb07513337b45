"""Spark Connect: the client of a real server, without a JVM of its own, has what a session with one has."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from kcoord_wire.forensics.analysis import analyze
from kcoord_wire.spark.sessions import SHORT_JVM, java_home
from kcoord_wire.zookeeper.ensemble import free_ports

CAPTURE = Path(__file__).parents[1] / "data" / "captures" / "cooperative.pcap"
CLIENT = """
import json, sys
from kcoord_wire.spark import decode_frames, explain_rebalances, from_kafka_wire, group_histories, match_files
from kcoord_wire.spark import register, session
from kcoord_wire.spark.analysis import analyze_on_spark

url, path, out = sys.argv[1:]
spark = session(url)
register(spark)
frames = spark.read.format("kcoord").load(path)
joins = decode_frames(frames, apis=["JoinGroup"], columns=["group_id"], flat=True)
heartbeat = from_kafka_wire("frame", {"message": "Heartbeat", "mode": "PERMISSIVE"}).alias("v")
beats = frames.where("direction = 'request'").select(heartbeat)
matched = match_files(spark, path)
histories = group_histories(matched)
groups = histories.rows.count()
progress = []
analysis = analyze_on_spark([path], master=url, progress=lambda *each: progress.append(each))
found = {
    "frames": frames.count(),
    "joins": joins.where("group_id is not null").count(),
    "beats": beats.where("v._error is null").count(),
    "causes": [row["cause"] for row in explain_rebalances(frames).orderBy("group_id", "number").collect()],
    "histories": repr(analysis.histories),
    "counts": analysis.counts,
    "matched": [matched.counts, matched.metrics, histories.metrics, groups],
    "progress": progress,
    "zone": spark.conf.get("spark.sql.session.timeZone"),
    "has_jvm": hasattr(spark, "sparkContext"),
}
with open(out, "w") as file:
    json.dump(found, file)
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The URL of a Connect server."""
    [port] = free_ports(1)
    home = Path(pyspark.__file__).parent
    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.progress.reportInterval": "20ms",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": SHORT_JVM,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.local.dir": str(tmp_path / "local"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.ui.enabled": "false",
    }
    command = [str(home / "bin" / "spark-submit"), "--master", "local[2]"]
    command += [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    env = {**os.environ, "JAVA_HOME": str(java_home()), "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(home)}
    with (tmp_path / "server.log").open("w+") as log:
        process = subprocess.Popen(command, cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            until = time.monotonic() + 120
            while not _listens(port):
                assert process.poll() is None, log.seek(0) or log.read()[-4000:]
                assert time.monotonic() < until, "the server does not listen"
                time.sleep(0.2)
            yield f"sc://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)


def _listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def test_a_client_of_a_server_has_the_results_of_a_session(server: str, tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    command = [sys.executable, "-c", CLIENT, server, str(CAPTURE), str(out)]
    env = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    found = json.loads(out.read_text())
    expected = analyze([str(CAPTURE)])
    assert found["histories"] == repr(expected.histories)
    assert found["counts"] == expected.counts
    assert found["causes"] == [each.cause for history in expected.histories for each in history.rebalances]
    assert found["frames"] == expected.counts["frames"]
    assert min(found["joins"], found["beats"]) > 0
    assert found["progress"]
    assert all(0 <= done <= total for _, done, total in found["progress"])
    assert {what.partition(":")[0] for what, _, _ in found["progress"]} & {
        "histories of groups",
        "clients without a group",
    }
    counted, *observed, groups = found["matched"]
    assert {name: counted[name] for name in ("frames", "exchanges")} == {
        name: expected.counts[name] for name in ("frames", "exchanges")
    }
    assert (observed, groups) == ([None, None], len(expected.histories))
    assert (found["zone"], found["has_jvm"]) == ("UTC", False)
