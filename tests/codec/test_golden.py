"""Bytes that another implementation made: each decodes to its value and is written again the same, by either codec.

Laws: every prefix fails as truncated, at a byte within it; a byte too many is named as such in strict mode and ignored
otherwise; whatever a changed byte makes of a message, the error is a `DecodeError` whose offset lies within the input.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kcoord_wire.codec.backend import Program, ProgramClass
from kcoord_wire.codec.convert import from_dict, to_dict
from kcoord_wire.codec.registry import registry
from kcoord_wire.errors import DecodeError

GOLDEN = Path(__file__).parent.parent / "data" / "golden" / "kafka.jsonl"


def _groups() -> Iterator[Any]:
    groups: dict[tuple[str, int], list[Any]] = {}
    with GOLDEN.open() as lines:
        for line in lines:
            case = json.loads(line)
            cases = groups.setdefault((case["message"], case["version"]), [])
            cases.append((case["value"], bytes.fromhex(case["hex"])))
    for (name, version), cases in groups.items():
        yield pytest.param(name, version, cases, id=f"{name}-v{version}")


CASES = list(_groups())


def test_every_golden_case_is_read() -> None:
    assert sum(len(case.values[2]) for case in CASES) == 2505  # type: ignore[arg-type]


@pytest.fixture
def program(program_class: ProgramClass, name: str, version: int) -> Program:
    return program_class(registry[name].plan(version), registry[name].classes)


@pytest.mark.parametrize(("name", "version", "cases"), CASES)
def test_golden(program: Program, name: str, version: int, cases: list[tuple[dict[str, Any], bytes]]) -> None:
    cls = registry[name].cls
    for value, raw in cases:
        message = from_dict(cls, value)
        assert program.decode(raw) == message
        assert program.encode(message) == raw
        assert to_dict(message, version, json=True) == value
        for data in (bytearray(raw), memoryview(raw)):
            assert program.decode(data) == message
            assert program.decode(data, False) == message


@pytest.mark.slow
@pytest.mark.parametrize(("name", "version", "cases"), CASES)
def test_prefixes_and_trailing_bytes(
    program: Program, name: str, version: int, cases: list[tuple[dict[str, Any], bytes]]
) -> None:
    for _, raw in cases:
        for size in range(len(raw)):
            with pytest.raises(DecodeError) as caught:
                program.decode(raw[:size])
            assert caught.value.kind == "truncated"
            assert 0 <= caught.value.offset <= size
            assert caught.value.path.startswith(f"{name}.")
        with pytest.raises(DecodeError) as caught:
            program.decode(raw + b"\0")
        assert (caught.value.kind, caught.value.offset, caught.value.path) == ("trailing", len(raw), name)
        message = program.decode(raw)
        assert program.decode(raw + b"\0", False) == message
        assert program.decode_prefix(b"\xff" + raw + b"\xff", 1, True) == (message, len(raw) + 1)


@pytest.mark.slow
@pytest.mark.parametrize("strict", [True, False], ids=["strict", "lenient"])
@pytest.mark.parametrize(("name", "version", "cases"), CASES)
def test_a_changed_byte_is_decoded_or_refused_with_its_place(
    program: Program, name: str, version: int, cases: list[tuple[dict[str, Any], bytes]], strict: bool
) -> None:
    for _, raw in cases[:2]:
        for at in range(0, len(raw), max(1, len(raw) // 40)):
            for byte in (0x00, 0x02, 0x7F, 0x80, 0xFF):
                data = raw[:at] + bytes([byte]) + raw[at + 1 :]
                try:
                    message = program.decode(data, strict)
                except DecodeError as error:
                    refusal = error
                else:
                    assert not strict or program.decode(program.encode(message)) == message
                    continue
                assert 0 <= refusal.offset <= len(data)
                assert refusal.path.startswith(name)
