"""Unmodified KafkaConsumer and KafkaProducer of kafka-clients live a life on the coordinator, without a warning.

The life itself is that of all client libraries, in tests/support/clients/life_cycle.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest

from kcoord_wire.coordinator import Coordinator
from tests.support.clients.java import java_client
from tests.support.clients.life_cycle import CONFIG, Figures, Place, at_once, life_cycle, mixed, static
from tests.support.clients.members import Client

VERSIONS = ("3.9.2", "4.4.0")
ASSIGNORS = ("range", "sticky", "cooperative-sticky")


@pytest.fixture(scope="session")
def clients(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Client]:
    """The program, compiled against each version."""
    return {version: java_client(tmp_path_factory.mktemp("classes"), version) for version in VERSIONS}


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    with Coordinator(config=CONFIG) as running:
        yield running


@pytest.mark.parametrize("version", VERSIONS)
def test_life_cycle(
    version: str, clients: dict[str, Client], coordinator: Coordinator, record_property: Callable[[str, object], None]
) -> None:
    scripts: dict[str, Callable[[], Figures]] = {
        name: partial(life_cycle, Place.on(coordinator, name), clients[version], name) for name in ASSIGNORS
    }
    for role, leads in ("follower", False), ("leader", True):
        # A static member is back when its JVM has loaded what it needs, which on a busy machine takes seconds.
        unhurried = replace(Place.on(coordinator, role), session_timeout_ms=8000)
        scripts[role] = partial(static, unhurried, clients[version], "range", leads=leads)
    record_property(version, at_once(scripts))


def test_both_versions_in_one_group(clients: dict[str, Client], coordinator: Coordinator) -> None:
    old, new = (clients[version] for version in VERSIONS)
    at_once(
        {
            "old leads": partial(mixed, Place.on(coordinator, "old"), (old, new, old), "range"),
            "new leads": partial(mixed, Place.on(coordinator, "new"), (new, old, new), "cooperative-sticky"),
        }
    )
