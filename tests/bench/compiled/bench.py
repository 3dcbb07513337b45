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

from ..checkouts import Side, side
from ..frames import CLIENT, FRAMES, NUMBER, frame, is_request
from ..lazy.bench import ARRAYS, LARGE
from ..rows import ROWS, Row
from ..runner import ROOT, Bench, Made, require_native
from . import report

KAFKA_CLIENTS = "4.4.0"
TURNS = 3
WARM = {"kafka-clients": 2.0, "franz-go": 0.2, "ours": 0.1}  # seconds of each operation before it is measured
SECONDS = 0.3
BATCH = 1_000_000  # bytes that one batch of calls works through: getrusage counts whole microseconds
OPERATIONS = ["decode", "encode", "kept"]  # of ours
QUICK = [*ROWS[-1:], *FRAMES[:2]]  # every way through the programs


def programs(folder: Path) -> dict[str, list[str] | Side]:
    """What measures, by name.

    :param folder: for what is compiled
    """
    path = compile_java(ROOT / "tests/support/java/Codec.java", folder, class_path("kafka-clients", KAFKA_CLIENTS))
    return {
        "ours": side(ROOT, folder / "ours"),
        "kafka-clients": ["java", "-Xmx4g", "-cp", path, "Codec"],
        "franz-go": [str(build_go_programs() / "codec")],
    }


def question(row: Row, quick: bool) -> dict[str, Any]:
    """A row's bytes, and what they are."""
    message, whole = row.message(quick), row in FRAMES
    data = frame(message, row.version) if whole else kw.encode(message, row.version)
    about: dict[str, Any] = {
        "message": type(message).__name__,
        "key": kw.registry[type(message).__name__].api_key,
        "request": is_request(message),
        "version": row.version,
        "data": base64.b64encode(data).decode(),
        "batch": max(1, BATCH // len(data)),
        "operations": OPERATIONS,
        "read": row.read,
    }
    if whole:
        about["frame"] = {"number": NUMBER, "client": CLIENT}
    if row.key in LARGE:
        about |= {"operations": [*OPERATIONS, "tenth"], "array": ARRAYS[row.key]}
    return about


def ask(program: list[str] | Side, asked: dict[str, Any]) -> dict[str, Any]:
    """One process: nanoseconds of every batch. AssertionError where it writes other bytes than ours."""
    if isinstance(program, Side):
        answer = program.ask("tests.bench.compiled.ours", asked)
    else:
        done = subprocess.run(
            program,
            input=json.dumps(asked) + "\n",
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            cwd=ROOT,
            timeout=300,
        )
        answer = json.loads(done.stdout)
    assert answer["data"] == asked["data"], f"{program} writes {asked['message']} otherwise"
    return answer


def cells(found: dict[str, list[str] | Side], turns: int, quick: bool) -> dict[str, Any]:
    """By program and row: the bytes, and the median nanoseconds of every operation."""
    made: dict[str, Any] = {name: {} for name in found}
    for row in QUICK if quick else [*ROWS, *FRAMES]:
        asked = question(row, quick)
        samples: dict[str, dict[str, list[float]]] = {name: {} for name in found}
        for _ in range(turns):
            for name, program in found.items():
                times = {"warm": 0, "seconds": 0} if quick else {"warm": WARM[name], "seconds": SECONDS}
                for operation, each in ask(program, asked | times).items():
                    if operation != "data":
                        samples[name].setdefault(operation, []).extend(each)
        for name in found:
            times = {operation: median(each) for operation, each in samples[name].items()}
            made[name][row.key] = {"bytes": len(base64.b64decode(asked["data"])), **times}
        print(row.key, {name: made[name][row.key] for name in found}, file=sys.stderr, flush=True)
    return made


def measure(options: argparse.Namespace) -> Made:
    require_native()
    kmsg = next(line.split()[1] for line in (SOURCES / "go.mod").read_text().splitlines() if "pkg/kmsg" in line)
    names = {"kafka-clients": f"kafka-clients {KAFKA_CLIENTS}", "franz-go": f"kmsg {kmsg}"}
    with tempfile.TemporaryDirectory() as folder:
        turns = 1 if options.quick else options.turns
        return {"programs": names, "cells": cells(programs(Path(folder)), turns, options.quick)}


BENCH = Bench(
    about="the same bodies and frames in kafka-clients on the JVM and in franz-go's kmsg.",
    results=report.RESULTS,
    measure=measure,
    markdown=report.markdown,
    options={"turns": {"type": int, "default": TURNS, "help": "processes of each program and row"}},
    quick=True,
    title="The codec and compiled peers",
    command="make bench-peers",
    summary=report.summary,
)
