"""The golden vectors: bytes that another implementation wrote, with the value and the version of each."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

DATA = Path(__file__).parent.parent / "data"
GOLDEN = DATA / "golden" / "kafka.jsonl"


class Vector(NamedTuple):
    """One message at one version: its bytes, and its value as JSON has it."""

    message: str
    version: int
    data: bytes
    value: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.message} v{self.version} {self.data.hex()}"


@cache
def vectors() -> dict[str, list[Vector]]:
    """The vectors of each message, each bytes of a version once."""
    found: dict[str, dict[tuple[int, bytes], Vector]] = {}
    with GOLDEN.open() as lines:
        for line in lines:
            case = json.loads(line)
            vector = Vector(case["message"], case["version"], bytes.fromhex(case["hex"]), case["value"])
            found.setdefault(vector.message, {})[vector.version, vector.data] = vector
    return {name: list(of_message.values()) for name, of_message in found.items()}
