"""Other versions of Spark to test with: `python -m tests.support.sparks 4.0` prints the path of a Python that has one.

It is an environment in ``build/`` of which everything but pyspark and `_FITTING` is that of this Python: a line in a
.pth file adds the latter's packages, the checkout among them, behind its own. 400 MB a version.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from importlib.metadata import version as version_of
from pathlib import Path
from typing import TypeVar

from pyspark.errors import PySparkException
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from tests.support.processes import locked

SPARK = tuple(int(part) for part in version_of("pyspark").split(".")[:2])
"""The version that these tests run with, as in ``(4, 3)``."""
BUILD = Path(__file__).resolve().parents[2] / "build"
NOT_CONNECTED = "Python worker failed to connect back"
_STARTS = 5
_Result = TypeVar("_Result")
_FITTING = {"3.5": ["pyarrow<26"]}
"""What else a version has of its own: Spark 3.5 asks for NumPy 1, with which newer releases do not load."""
_CHEAPLY = ("--quiet", "--disable-pip-version-check", "--no-compile", "-C--build-option=--compression=stored")
"""Of pyspark pip builds a wheel, 400 MB of jars, which need not be compressed to be unpacked at once."""
_ASK = "import pyspark; print(pyspark.__version__)"


def once_connected(run: Callable[[], _Result]) -> _Result:
    """Return the result of a run that starts a stream of Python's; one whose source has not come up is repeated.

    Spark starts a process for the source, and waits 10 s for it (a constant of PythonWorkerFactory): too short beside
    other tests. The query has read nothing by then.
    """
    for _ in range(_STARTS - 1):
        try:
            return run()
        except PySparkException as error:
            if NOT_CONNECTED not in str(error):
                raise
    return run()


def read_available(written: DataStreamWriter, folder: Path) -> StreamingQuery:
    """Write what a stream has now to this folder, and return the query, which has ended."""

    def run() -> StreamingQuery:
        query = written.trigger(availableNow=True).start(str(folder))
        query.awaitTermination()
        return query

    return once_connected(run)


def interpreter(version: str) -> Path:
    """The program of an environment with the newest release of this version; installs what is missing.

    :raises subprocess.CalledProcessError: pip does not find it
    """
    folder = BUILD / f"spark-{version}"
    python = folder / "bin" / "python"
    with locked(folder):
        if not _has(python, version):
            venv.create(folder, clear=True, symlinks=True)
            [site] = folder.glob("lib/python*/site-packages")
            # A folder that is only named would be searched; its own .pth files, which lead to the checkout, not read.
            (site / "beside.pth").write_text(f"import site; site.addsitedir({sysconfig.get_paths()['purelib']!r})\n")
            pip = [sys.executable, "-m", "pip", "--python", str(python), "install", *_CHEAPLY]
            own = [f"pyspark[connect]=={version}.*", *_FITTING.get(version, [])]
            subprocess.run([*pip, *own], check=True, stdout=sys.stderr)
            assert _has(python, version)
    return python


def _has(python: Path, version: str) -> bool:
    if not python.exists():
        return False
    done = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, check=False)
    return done.stdout.startswith(f"{version}.")


if __name__ == "__main__":
    print(interpreter(sys.argv[1]))
