"""What tests of groups of KIP-848 start from."""

from __future__ import annotations

import pytest

from tests.support.consumer_script import ConsumerScript


@pytest.fixture
def script() -> ConsumerScript:
    """A machine that has loaded an empty log."""
    return ConsumerScript()
