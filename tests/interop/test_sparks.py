"""The oldest versions of Spark that are supported: 3.5 decodes columns, 4.0 does all but streams of recordings.

`make sparks` runs all of tests/spark with each version; here the oldest run those that a version can change.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.sparks import interpreter

ROOT = Path(__file__).resolve().parents[2]
CHANGING = ("versions", "rows", "sources", "matching", "functions")
"""Of tests/spark: the shims, types that cross, the source, and functions that Spark calls in ways of its own."""
RUNS = {"3.5": ["tests/spark"], "4.0": [f"tests/spark/test_{name}.py" for name in CHANGING]}


@pytest.mark.parametrize(
    "version", [pytest.param(each, marks=pytest.mark.xdist_group(f"spark-{each}")) for each in RUNS]
)
def test_the_oldest_versions_pass(version: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [interpreter(version), "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "--quiet", *RUNS[version]]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
