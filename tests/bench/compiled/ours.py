"""Measures our codec: the question and the answer are those of tests/support/java/Codec.java; this thread's time."""

from __future__ import annotations

import base64
import gc
import json
import sys
import time
from typing import Any

import kcoord_wire as kw

from ..libraries import Loop, case_of


def rounds(loop: Loop, batch: int, seconds: float) -> list[float]:
    """Nanoseconds of a call, of each batch."""
    made: list[float] = []
    end = time.monotonic() + seconds
    while not made or time.monotonic() < end:
        before = time.thread_time_ns()
        loop(batch)
        made.append((time.thread_time_ns() - before) / batch)
    return made


def main() -> None:
    asked: dict[str, Any] = json.loads(sys.stdin.readline())
    data = base64.b64decode(asked["data"])
    message = kw.decode(kw.registry[asked["message"]].cls, data, asked["version"])
    case = case_of(message, asked["version"])
    answer: dict[str, Any] = {"data": base64.b64encode(case.once("encode")).decode()}
    gc.collect()
    gc.freeze()
    for operation in ("decode", "encode"):
        loop = case.loop(operation)
        rounds(loop, asked["batch"], asked["warm"])
        answer[operation] = rounds(loop, asked["batch"], asked["seconds"])
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
