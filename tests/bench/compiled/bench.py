"""Measures the codec next to compiled peers: each row of each program in its own process.

Needs Java, Maven and Go, like `make interop`.
"""

from __future__ import annotations

import argparse
import base64
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import kcoord_wire as kw
from tests.support.go_programs import SOURCES, build_go_programs
from tests.support.kafka_broker import class_path, compile_java

from ..rows import ROWS, Row
from ..runner import ROOT, Bench, Made
from . import report

KAFKA_CLIENTS = "4.4.0"
TURNS = 3
WARM = {"kafka-clients": 2.0, "franz-go": 0.2, "ours": 0.1}  # seconds of each direction before it is measured
SECONDS = 0.3
BATCH = 100_000  # bytes that one batch of calls works through


def commands(folder: Path) -> dict[str, list[str]]:
    """What measures, by program.

    :param folder: for what is compiled
    """
    path = compile_java(ROOT / "tests/support/java/Codec.java", folder, class_path("kafka-clients", KAFKA_CLIENTS))
    return {
        "ours": [sys.executable, "-m", "tests.bench.compiled.ours"],
        "kafka-clients": ["java", "-Xmx4g", "-cp", path, "Codec"],
        "franz-go": [str(build_go_programs() / "codec")],
    }


def ask(command: list[str], row: Row, program: str, quick: bool) -> dict[str, Any]:
    """One process: nanoseconds of every batch. AssertionError where it writes other bytes than ours."""
    message = row.message(quick)
    data = kw.encode(message, row.version)
    question = {
        "message": type(message).__name__,
        "version": row.version,
        "data": base64.b64encode(data).decode(),
        "warm": 0 if quick else WARM[program],
        "seconds": 0 if quick else SECONDS,
        "batch": max(1, BATCH // len(data)),
    }
    done = subprocess.run(
        command, input=json.dumps(question) + "\n", stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT, timeout=300
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    assert base64.b64decode(answer["data"]) == data, f"{program} writes {row.title} otherwise"
    return answer


def cells(commands: dict[str, list[str]], quick: bool) -> dict[str, Any]:
    """By program and row: the bytes, and the median nanoseconds of both directions."""
    made: dict[str, Any] = {program: {} for program in commands}
    for row in ROWS:
        samples: dict[str, dict[str, list[float]]] = {program: {} for program in commands}
        for _ in range(1 if quick else TURNS):
            for program, command in commands.items():
                answer = ask(command, row, program, quick)
                for direction in report.DIRECTIONS:
                    samples[program].setdefault(direction, []).extend(answer[direction])
        for program in commands:
            times = {direction: median(samples[program][direction]) for direction in report.DIRECTIONS}
            made[program][row.key] = {"bytes": len(kw.encode(row.message(quick), row.version)), **times}
        print(row.key, {program: made[program][row.key] for program in commands}, file=sys.stderr, flush=True)
    return made


def measure(options: argparse.Namespace) -> Made:
    kmsg = next(line.split()[1] for line in (SOURCES / "go.mod").read_text().splitlines() if "pkg/kmsg" in line)
    programs = {"kafka-clients": f"kafka-clients {KAFKA_CLIENTS}", "franz-go": f"kmsg {kmsg}"}
    with tempfile.TemporaryDirectory() as folder:
        return {"programs": programs, "cells": cells(commands(Path(folder)), options.quick)}


BENCH = Bench(
    about="the same bodies in kafka-clients on the JVM and in franz-go's kmsg.",
    results=report.RESULTS,
    measure=measure,
    markdown=report.markdown,
    quick=True,
    title="The codec and compiled peers",
    command="make bench-peers",
    summary=report.summary,
)
