"""What every test run shares: the hypothesis profile, a time limit on each test, and the codec in the report's head."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Generator
from types import FrameType

import pytest
from hypothesis import settings

import kcoord_wire as kw
from tests.support.fixtures import coordinator, each_loop  # noqa: F401 - fixtures
from tests.support.zookeeper import each_driver, real_driver, zookeeper  # noqa: F401 - fixtures

EXAMPLES = int(os.environ.get("KCOORD_WIRE_EXAMPLES", "100"))  # `make check` draws fewer
# The same inputs in every run: a verdict on a change is about the change. `make proof` draws others, and more.
REPEATS = os.environ.get("KCOORD_WIRE_DRAWS") != "random"
settings.register_profile("kcoord", deadline=None, derandomize=REPEATS, max_examples=EXAMPLES, print_blob=True)
settings.load_profile("kcoord")

_LONGEST_IN_NAME = 60
_GRACE = 60  # seconds to clean up in after that; then faulthandler ends the process
_TOO_LONG = "the test takes longer than its limit; stderr has the tracebacks of all threads"


def pytest_configure() -> None:
    """Heed Ctrl-C, here and in every process a test starts: a shell ignores it for what it runs in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGALRM, _fail_for_its_time)


def _fail_for_its_time(number: int, frame: FrameType | None) -> None:
    faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
    pytest.fail(_TOO_LONG)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that takes too long: ending the process as well would have pytest-xdist run it again."""
    signal.setitimer(signal.ITIMER_REAL, float(item.config.getini("faulthandler_timeout")) - _GRACE)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Fail it all the same where that was raised in a callback or a task of an event loop, which only notes it down."""
    result = yield
    if not signal.getitimer(signal.ITIMER_REAL)[0]:
        pytest.fail(_TOO_LONG)
    return result


def pytest_report_header() -> str:
    return f"kcoord_wire: {kw.backend} codec, {kw.__file__}"


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name a test after its argument instead of a long value: one with a random salt or the time in it would give the
    test another name in each worker, and pytest-xdist runs only what all workers have collected alike."""
    return argname if isinstance(val, str | bytes) and len(val) > _LONGEST_IN_NAME else None
