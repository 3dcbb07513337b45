"""Measures our codec: the question and the answer are those of tests/support/java/Codec.java; this thread's time.

Of a question it needs the message's name besides, the options of decode, and which array is read lazily. It measures
the operations that the question lists.
"""

from __future__ import annotations

import base64
import gc
import json
import time
from typing import Any

import kcoord_wire as kw

from ..checkouts import asked
from ..frames import frame_case
from ..libraries import Case, Loop, case_of


def rounds(loop: Loop, batch: int, seconds: float) -> list[float]:
    """Nanoseconds of a call, of each batch."""
    made: list[float] = []
    end = time.thread_time() + seconds
    while not made or time.thread_time() < end:
        before = time.thread_time_ns()
        loop(batch)
        made.append((time.thread_time_ns() - before) / batch)
    return made


def case(question: dict[str, Any]) -> Case:
    """What the question's bytes are to our codec."""
    data, version = base64.b64decode(question["data"]), question["version"]
    cls = kw.registry[question["message"]].cls
    if "frame" not in question:
        return case_of(kw.decode(cls, data, version), version)
    read = kw.decode_request(data) if question["request"] else kw.decode_response(data, cls, version)
    return frame_case(read[1], version, question["read"])


def keep(found: Case) -> None:
    """Add what writes into a buffer that is kept. AssertionError where that gives other bytes."""
    write = getattr(kw, f"{found.names['encode'].__name__}_into")
    found.names |= {"write": write, "kept": bytearray()}
    call = found.statements["encode"]
    found.statements["kept"] = call.replace("encode(message, version", "write(message, version, kept")
    assert found.once("kept") == len(found.data)
    assert found.names["kept"] == found.data


def touch(found: Case, array: str) -> None:
    """Add decoding lazily, and reading a field of every tenth element of the array."""
    first = next(iter(type(getattr(found.names["message"], array)[0]).__slots__))
    lazily = found.statements["decode"].removesuffix(")") + ", lazy=True)"
    found.statements["tenth"] = f"for element in {lazily}.{array}[::10]: element.{first}"


def main() -> None:
    question = asked()
    found = case(question)
    if "tenth" in question["operations"]:
        touch(found, question["array"])
    if "kept" in question["operations"]:
        keep(found)
    answer: dict[str, Any] = {"data": base64.b64encode(found.once("encode")).decode()}
    gc.collect()
    gc.freeze()
    for operation in question["operations"]:
        loop = found.loop(operation)
        rounds(loop, question["batch"], question["warm"])
        answer[operation] = rounds(loop, question["batch"], question["seconds"])
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
