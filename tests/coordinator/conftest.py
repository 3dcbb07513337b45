"""What several tests of the coordinator start from."""

from __future__ import annotations

import pytest

from tests.support.broker import Broker


@pytest.fixture
def broker() -> Broker:
    """The topics of a broker that has just started."""
    return Broker()
