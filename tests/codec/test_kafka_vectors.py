"""Bytes that Kafka's classes wrote, for each version of the APIs that no part of this package speaks.

Either codec reads them to the values that Kafka's JSON has and writes them again the same; every byte of them is
needed.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire.codec.backend import ProgramClass
from kcoord_wire.codec.convert import to_dict
from tests.support.apis import spoken
from tests.support.each import each

VECTORS = Path(__file__).parent.parent / "data" / "golden" / "apis.jsonl.gz"


def _cases() -> dict[str, list[tuple[int, Any, bytes]]]:
    cases: dict[str, list[tuple[int, Any, bytes]]] = {}
    with gzip.open(VECTORS, "rt") as lines:
        for line in lines:
            case = json.loads(line)
            row = case["version"], case["value"], bytes.fromhex(case["hex"])
            cases.setdefault(case["message"], []).append(row)
    return cases


CASES = _cases()


def test_every_version_of_the_unspoken_apis_has_a_vector() -> None:
    known = {(codec.name, v) for codec in kw.registry.values() if not spoken(codec) for v in codec.valid_versions}
    assert {(name, version) for name, rows in CASES.items() for version, *_ in rows} == known


@each("name, rows", CASES.items())
def test_kafkas_bytes(program_class: ProgramClass, name: str, rows: list[tuple[int, Any, bytes]]) -> None:
    codec = kw.registry[name]
    for version, value, raw in rows:
        program = program_class(codec.plan(version), codec.classes)
        message = program.decode(raw)
        assert program.encode(message) == raw
        assert program.decode(raw, False) == message
        assert without_records(to_dict(message, version, json=True), value) == value
        for size in range(max(0, len(raw) - 8), len(raw)):
            with pytest.raises(kw.DecodeError) as caught:
                program.decode(raw[:size])
            assert caught.value.kind == "truncated"


def without_records(ours: Any, kafkas: Any) -> Any:
    """Our values without the records, of which Kafka's JSON has the size alone."""
    if isinstance(ours, list) and isinstance(kafkas, list):
        return [without_records(*pair) for pair in zip(ours, kafkas, strict=True)]
    if isinstance(ours, dict):
        records = {"UnalignedRecords"} - set(kafkas)
        return {name: without_records(value, kafkas.get(name)) for name, value in ours.items() if name not in records}
    return ours
