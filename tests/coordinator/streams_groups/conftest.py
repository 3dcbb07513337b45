"""What tests of streams groups start from."""

from __future__ import annotations

import pytest

from tests.support.streams_script import StreamsScript


@pytest.fixture
def script() -> StreamsScript:
    """A machine that has loaded an empty log."""
    return StreamsScript()
