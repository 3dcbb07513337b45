"""What several tests of the coordinator start from."""

from __future__ import annotations

import pytest

from tests.support.broker import Broker
from tests.support.scripted import Script


@pytest.fixture
def broker() -> Broker:
    """The topics of a broker that has just started."""
    return Broker()


@pytest.fixture
def script() -> Script:
    """A group machine that has loaded an empty log."""
    return Script()
