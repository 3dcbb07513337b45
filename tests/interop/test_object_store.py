"""An S3 server (moto): the source reads from it what it reads from a folder, through pyarrow's client.

moto needs packages that contradict the suite's, so that it is installed into an environment of its own.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import fs
from pyspark.sql import SparkSession

from kcoord_wire.forensics.model import Frame, LogRow
from kcoord_wire.forensics.sources.files import find_sources
from kcoord_wire.forensics.sources.frames import read_frames, read_log
from kcoord_wire.spark import register, session
from kcoord_wire.spark.places import StoreError, find_places
from kcoord_wire.spark.rows import instances
from tests.support.processes import BUILD, Process, locked

DATA = Path(__file__).parents[1] / "data"
PACKAGES = ["moto[s3]>=5.1,<6", "flask>=3,<4", "flask-cors>=6,<7"]
"""What its server imports for S3; the extra `server` has more than twice as much."""
SERVER = """
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("listens on %s:%d" % server.get_host_and_port(), flush=True)
input()
"""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """The address of a server, on a free port."""
    folder = BUILD / "moto"
    python = folder / "bin" / "python"
    BUILD.mkdir(parents=True, exist_ok=True)
    with locked(BUILD / "moto.lock"):
        if not (folder / "installed").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
            (folder / "installed").touch()
    with Process([str(python), "-c", SERVER], ready=r"listens on (\S+)\n") as server:
        yield server.ready[1]


@pytest.fixture(scope="module")
def bucket(endpoint: str) -> str:
    """A bucket with captures in two folders, one packed, and segments; the URI of a path in it, to be filled in."""
    query = f"?scheme=http&endpoint_override={endpoint}&region=us-east-1"
    system, _ = fs.FileSystem.from_uri(f"s3://id:hushhush@archive{query}&allow_bucket_creation=true")
    system.create_dir("archive")
    for path in (*sorted((DATA / "captures").glob("*.pcap"))[:3], *(DATA / "consumer_groups").rglob("*.log")):
        with system.open_output_stream(f"archive/{path.relative_to(DATA)}") as file:
            file.write(path.read_bytes())
    return "s3a://id:hushhush@archive/{}" + query


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    conf = {"spark.driver.memory": "1g", "spark.sql.warehouse.dir": warehouse, "spark.ui.enabled": "false"}
    spark = session("local[2]", **conf)
    register(spark)
    yield spark
    spark.stop()


def test_captures_of_a_bucket(spark: SparkSession, bucket: str) -> None:
    rows = instances(Frame, spark.read.format("kcoord").load(bucket.format("captures")).toArrow())
    sources = find_sources(sorted((DATA / "captures").glob("*.pcap"))[:3])
    expected = [row for source in sources for batch in read_frames(source.path) for row in instances(Frame, batch)]
    for row in expected:
        row.source = f"s3://archive/{Path(row.source).relative_to(DATA)}"
    assert sorted(rows, key=lambda row: (row.source, row.seq)) == expected
    assert len({row.source for row in rows}) == 3


def test_segments_of_a_bucket_as_a_table(spark: SparkSession, bucket: str) -> None:
    """Spark passes the whole URI on, with the options in it."""
    spark.sql(f"CREATE TABLE stored USING kcoord OPTIONS (path '{bucket.format('consumer_groups/**/*.log')}')")
    rows = instances(LogRow, spark.sql("SELECT * FROM stored").toArrow())
    spark.sql("DROP TABLE stored")
    paths = [source.path for source in find_sources([DATA / "consumer_groups"])]
    expected = [row for path in paths for batch in read_log(path) for row in instances(LogRow, batch)]
    assert [(row.partition, row.offset, row.value) for row in rows] == [
        (row.partition, row.offset, row.value) for row in expected
    ]
    assert len(expected) > 0


def test_a_server_that_refuses(bucket: str) -> None:
    """What it says is shown with the URI, without the credentials."""
    gone = bucket.format("captures").replace("endpoint_override=127.0.0.1:", "endpoint_override=127.0.0.1:1&x=")
    silent = "s3://id:hushhush@archive/captures?scheme=http&endpoint_override=127.0.0.1:1&region=us-east-1"
    for uri, text in ((gone, "Unexpected query parameter"), (silent, "NETWORK_CONNECTION")):
        with pytest.raises(StoreError, match=rf"s3://archive.* cannot be (opened|read): .*{text}") as caught:
            find_places([uri])
        assert "hush" not in str(caught.value)
