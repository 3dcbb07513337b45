"""Measures one library: each row, decoded and encoded; for the native codec the floor as well. Run by `__main__`.

By hand, with pytest-benchmark's own table of one row:
`python -m pytest --confcutdir=tests/bench tests/bench/bench_codec.py --library kio -k heartbeat`

The file's name keeps it out of the suite.
"""

from __future__ import annotations

import gc

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from .frames import FRAMED, FRAMES
from .libraries import LIBRARIES, Case
from .rows import ROWS, Row

BATCH = 100_000  # bytes that one measured call works through, so that calling it costs next to nothing
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the other libraries' own


@pytest.fixture(scope="module")
def case(request: pytest.FixtureRequest, row: Row) -> Case:
    options = request.config.option
    make = FRAMED[options.library] if options.frames else LIBRARIES[options.library].case
    made = make(row, row.message(options.quick))
    made.check()
    # The collector stays on, but must not walk pytest's own objects: a library that allocates much would pay for them,
    # up to twice the time (kio, 5,000 members).
    gc.collect()
    gc.freeze()
    return made


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    options = metafunc.config.option
    floor = ["floor"] if options.library == "native" and not options.frames else []
    metafunc.parametrize("row", FRAMES if options.frames else ROWS, ids=lambda row: row.key, scope="module")
    metafunc.parametrize("operation", ["decode", "encode", *floor])


def test_cell(benchmark: BenchmarkFixture, row: Row, case: Case, operation: str) -> None:
    calls = max(1, BATCH // len(case.data))
    benchmark.extra_info.update(
        row=row.key, operation=operation, version=case.version, bytes=len(case.data), calls=calls
    )
    benchmark(case.loop(operation), calls)
