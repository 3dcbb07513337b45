"""Tests in Go and in Java start `kcoord serve` as a process, wait for its line, and consume from it as a group."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from tests.support.go_programs import build_go_programs
from tests.support.kafka_broker import class_path, compile_java, java
from tests.support.processes import ROOT, run_tool

KCOORD: Final = (sys.executable, "-m", "kcoord_wire")
READ: Final = [f"order {number}" for number in range(4)]
SOURCE: Final = ROOT / "tests" / "support" / "java" / "Started.java"


def check(said: str) -> None:
    """Every record once, and the status of a process that was asked to end."""
    *read, status = said.splitlines()
    assert sorted(read) == READ
    assert status == "0"


def test_a_program_in_go_starts_and_uses_it() -> None:
    check(run_tool([str(build_go_programs() / "started"), *KCOORD], attempts=1))


def test_a_program_in_java_starts_and_uses_it(tmp_path: Path) -> None:
    path = compile_java(SOURCE, tmp_path, class_path("kafka-clients", "4.4.0"))
    check(run_tool(java(path, SOURCE.stem, *KCOORD), attempts=1))
