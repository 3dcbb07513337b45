"""The examples of tests, in other languages and frameworks: each starts `kcoord serve` as a process, or the fixture of
pytest, has its clients go through a rebalance and an error, and asks for what they did."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.go_programs import go_command
from tests.support.kafka_broker import class_path, compile_java, run_java
from tests.support.maven import jars
from tests.support.processes import ROOT, run_tool

EXAMPLES: Final = ROOT / "docs" / "examples" / "testing"
TESTS: Final = 2  # of each
LAUNCHER: Final = "org.junit.platform.console.ConsoleLauncher"
BOOT: Final = "org.springframework.boot"
SPRING: Final = (
    (BOOT, "spring-boot-kafka", "4.0.7"),
    (BOOT, "spring-boot-autoconfigure", "4.0.7"),
    (BOOT, "spring-boot-test", "4.0.7"),
    ("org.springframework", "spring-test", "7.0.8"),
)
JUNIT: Final = ("org.junit.platform", "junit-platform-console-standalone", "6.0.1")


@pytest.fixture(autouse=True)
def command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KCOORD", f"{sys.executable} -m kcoord_wire")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def test_aiokafka_with_pytest(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "test_orders.py", tmp_path)
    said = run_tool([sys.executable, "-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider"], tmp_path, attempts=1)
    assert f"{TESTS} passed" in said


def test_franz_go(tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLES / "go", tmp_path / "go")
    go, environment = go_command()
    said = run_tool([go, "test", "-count=1", "-mod=readonly", "-v", "./..."], folder, environment, attempts=1)
    assert said.count("--- PASS: ") == TESTS


def run_junit(name: str, folder: Path, path: str) -> None:
    path = compile_java(EXAMPLES / "java" / f"{name}.java", folder, f"{EXAMPLES / 'java'}{os.pathsep}{path}")
    said = run_java(path, LAUNCHER, "execute", "--select-class", name, "--disable-banner", "--details=summary")
    assert re.search(rf"\[ +{TESTS} tests successful +\]", said), said


def test_junit(tmp_path: Path) -> None:
    run_junit(
        "OrdersTest", tmp_path, os.pathsep.join([jars("junit-6.0.1", [JUNIT]), class_path("kafka-clients", "4.4.0")])
    )


def test_spring_boot(tmp_path: Path) -> None:
    spring = jars("spring-boot-4.0.7", SPRING, whole=True).replace(",", os.pathsep)
    run_junit("SpringOrdersTest", tmp_path, os.pathsep.join([jars("junit-6.0.1", [JUNIT]), spring]))
