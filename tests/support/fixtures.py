"""Coordinators for tests: each on a free port, in memory by default, and stopped when its test has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from kcoord_wire.coordinator.coordinator import Coordinator
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.kernel import background

StartCoordinator = Callable[..., Coordinator]


@pytest.fixture
def coordinator() -> Iterator[StartCoordinator]:
    """Starts coordinators: takes what `Coordinator` takes. Topic ``orders`` has 12 partitions, and an empty group does
    not wait for more members, unless the test says so."""
    with ExitStack() as stack:

        def start(**settings: Any) -> Coordinator:
            settings.setdefault("topics", {"orders": 12})
            settings.setdefault("config", GroupConfig(initial_rebalance_delay_ms=0))
            return stack.enter_context(Coordinator(**settings))

        yield start


@pytest.fixture(params=["uvloop", "asyncio"])
def each_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "asyncio":
        monkeypatch.setattr(background, "_loop_factory", lambda: asyncio.new_event_loop)
