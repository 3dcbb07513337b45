"""The options of bench_codec.py, and short runs of the benchmarks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from .libraries import LIBRARIES
from .runner import ROOT, RunBench, load


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> RunBench:
    """Runs a benchmark in a process of its own: what its latest.json has, and its latest.md, which is made of that."""

    def run(name: str, *options: str) -> tuple[dict[str, Any], str]:
        out = tmp_path_factory.mktemp(name)
        command = [sys.executable, "-m", "tests.bench", name, *options, "--out", str(out)]
        # With PYTEST_XDIST_WORKER pytest-benchmark takes itself for a worker of ours, and measures nothing.
        environment = {key: value for key, value in os.environ.items() if key != "PYTEST_XDIST_WORKER"}
        environment["KCOORD_WIRE_BACKEND"] = "native"
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        made, text = json.loads((out / "latest.json").read_text("utf-8")), (out / "latest.md").read_text("utf-8")
        assert text == load(name).markdown(made)
        return made, text

    return run


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("the codec's benchmark")
    group.addoption("--library", choices=LIBRARIES, default="native", help="what bench_codec.py measures")
    group.addoption("--frames", action="store_true", help="whole frames instead of bodies")
    group.addoption("--quick", action="store_true", help="tiny messages in bench_codec.py")
