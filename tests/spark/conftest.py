"""One Spark session for the tests that a process runs: a start costs more than most of them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kcoord_wire.spark import session
from kcoord_wire.spark.sessions import SHORT_JVM
from tests.support.sparks import SPARK

FOLDER = Path(__file__).parent
DECODING = ("test_decode.py", "test_files.py", "test_rows.py", "test_sessions.py", "test_versions.py")
"""What Spark 3.5 has."""
STREAMING = ("test_docs.py", "test_histories.py", "test_live.py", "test_streams.py")
"""Half of what these tests take."""

collect_ignore = ["test_streams.py"] if SPARK < (4, 2) else []
if find_spec("grpc") is None:  # the extra pyspark[connect], which `make sparks` installs
    collect_ignore.append("test_connect.py")
if SPARK < (4, 0):
    collect_ignore = [path.name for path in FOLDER.glob("test_*.py") if path.name not in DECODING]

# What pyspark itself leaves open, and how it calls pandas and asyncio, is not for these tests to judge.
SPARKS_OWN = (
    "ignore::ResourceWarning",
    "ignore::DeprecationWarning:pyspark",
    "ignore::FutureWarning:pyspark",
    "ignore:unclosed:pytest.PytestUnraisableExceptionWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What shares a session runs in one process where there are several; Spark's own warnings are none of ours.

    There are two sessions then: one would go on when the other processes have ended.
    """
    for item in items:
        if item.path.is_relative_to(FOLDER):
            if "spark" in getattr(item, "fixturenames", ()):
                group = "spark-streaming" if item.path.name in STREAMING else "spark"
                item.add_marker(pytest.mark.xdist_group(group))
            for warning in SPARKS_OWN:
                item.add_marker(pytest.mark.filterwarnings(warning))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two threads, 1 GiB, the source registered."""
    folder = tmp_path_factory.mktemp("spark")
    conf = {
        "spark.driver.extraJavaOptions": SHORT_JVM,
        "spark.driver.memory": "1g",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    spark = session("local[2]", **conf)
    if SPARK >= (4, 0):
        from kcoord_wire.spark import register

        register(spark)
    yield spark
    spark.stop()
