"""What every test run shares: the hypothesis profile, and the name of the codec in the report's head."""

from __future__ import annotations

import os

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


def pytest_report_header() -> str:
    return f"kcoord_wire: {kw.backend} codec, {kw.__file__}"


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name a test after its argument instead of a long value: one with a random salt or the time in it would give the
    test another name in each worker, and pytest-xdist runs only what all workers have collected alike."""
    return argname if isinstance(val, str | bytes) and len(val) > _LONGEST_IN_NAME else None
