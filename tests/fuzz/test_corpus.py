"""The laws of the fuzz targets hold for the corpus that is checked in, and for a fixed lot of inputs made from it.

The inputs are the same in every run: a seeded generator changes, cuts, joins and repeats pieces of the corpus. The time
is bounded by their number; a search that learns is `make fuzz`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

FUZZ = Path(__file__).resolve().parent.parent.parent / "fuzz"
TARGETS = sorted(path.stem.removeprefix("fuzz_") for path in FUZZ.glob("fuzz_*.py"))
GENERATED = {
    "analyze": 60,
    "capture": 300,
    "columns": 800,
    "connection": 4_000,
    "coordinator": 1_000,
    "decode": 5_000,
    "frames": 3_000,
    "framing": 8_000,
    "log": 4_000,
    "parity": 8_000,
    "recording": 10_000,
    "records": 10_000,
    "round_trip": 20_000,
    "schema": 4_000,
    "times": 12,
    "lazy": 2_000,
}
NUMBERS = (b"\x00", b"\x01", b"\x7f", b"\x80", b"\xff", b"\xff\xfe", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x0f")


def corpus(target: str) -> list[Path]:
    return sorted((FUZZ / "corpus" / target).iterdir())


def check_of(target: str) -> Callable[[bytes], None]:
    check: Callable[[bytes], None] = import_module(f"fuzz.fuzz_{target}").check
    return check


def generated(target: str) -> Iterator[bytes]:
    rng = random.Random(target)
    seeds = [path.read_bytes() for path in corpus(target)]
    for _ in range(GENERATED[target]):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.choice((1, 1, 2, 4, 8))):
            at = rng.randrange(len(data) + 1)
            what = rng.randrange(6)
            if what == 0:
                data[at : at + 1] = bytes([rng.randrange(256)])
            elif what == 1:
                number = rng.choice(NUMBERS)
                data[at : at + len(number)] = number
            elif what == 2:
                del data[at : at + rng.randrange(1, 9)]
            elif what == 3:
                data[at:at] = data[at : at + rng.randrange(1, 9)]
            elif what == 4:
                other = rng.choice(seeds)
                data[at:] = other[rng.randrange(len(other) + 1) :]
            else:
                data[at:at] = rng.randbytes(rng.randrange(1, 5))
        yield bytes(data)


def test_every_target_has_a_corpus_and_a_number() -> None:
    assert set(TARGETS) == set(GENERATED)
    assert {path.name for path in (FUZZ / "corpus").iterdir()} == set(TARGETS)


@pytest.mark.parametrize("target", TARGETS)
def test_corpus(target: str) -> None:
    check = check_of(target)
    files = corpus(target)
    assert len(files) >= 20
    for file in files:
        check(file.read_bytes())


@pytest.mark.parametrize("target", TARGETS)
def test_generated_inputs(target: str) -> None:
    check = check_of(target)
    for data in generated(target):
        try:
            check(data)
        except Exception as error:
            error.add_note(f"fuzz target {target}, input {data.hex()}")
            raise
