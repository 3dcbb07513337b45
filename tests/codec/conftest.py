"""The codecs under test: a test that takes `program_class` runs once with each of `BACKENDS`."""

from __future__ import annotations

from importlib import import_module

import pytest

from kcoord_wire.codec.backend import ProgramClass
from kcoord_wire.codec.python import Program
from tests.support.backends import BACKENDS


@pytest.fixture(scope="session", params=BACKENDS)
def program_class(request: pytest.FixtureRequest) -> ProgramClass:
    """`Program` of one codec: ``program_class(plan, classes)``."""
    if request.param == "python":
        return Program
    native: ProgramClass = import_module("kcoord_wire._native").Program
    return native
