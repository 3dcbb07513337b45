"""The codecs under test: whoever asks for `program_class` runs once with each.

The native one has to be there, unless ``KCOORD_WIRE_BACKEND=python`` says that the pure one is meant.
"""

from __future__ import annotations

import os
from importlib import import_module

import pytest

from kcoord_wire.codec.backend import ProgramClass
from kcoord_wire.codec.python import Program

BACKENDS = ["python"] if os.environ.get("KCOORD_WIRE_BACKEND") == "python" else ["python", "native"]


@pytest.fixture(scope="session", params=BACKENDS)
def program_class(request: pytest.FixtureRequest) -> ProgramClass:
    """`Program` of one codec: ``program_class(plan, classes)``."""
    if request.param == "python":
        return Program
    native: ProgramClass = import_module("kcoord_wire._native").Program
    return native
