"""The brokers of a running coordinator, as a test commands them."""

from __future__ import annotations

import pytest

from kcoord_wire.coordinator.coordinator import Coordinator
from tests.support.fixtures import StartCoordinator


def test_brokers_that_do_not_exist_or_run_are_refused(coordinator: StartCoordinator) -> None:
    c = coordinator(brokers=2)
    for node in (2, -1, True):
        with pytest.raises(ValueError, match="there is no broker"):
            c.stop_broker(node)
    c.stop_broker(0)
    with pytest.raises(ValueError, match="does not run"):
        c.move_coordinator("g", 0)
    for count in (0, 65, True):
        with pytest.raises(ValueError, match="1 to 64 brokers"):
            Coordinator(brokers=count)


def test_brokers_whose_ports_do_not_exist_are_refused() -> None:
    for ports in ({"port": 65_534}, {"advertise": ("kafka.local", 65_534)}):
        with pytest.raises(ValueError, match="3 brokers need as many ports in sequence, up to 65535"):
            Coordinator(brokers=3, **ports)


def test_topics_of_the_brokers_are_not_made_at_the_start() -> None:
    with pytest.raises(ValueError, match="'__consumer_offsets' is the brokers' own"):
        Coordinator({"__consumer_offsets": 3})


def test_leaders_and_coordinators_are_named(coordinator: StartCoordinator) -> None:
    c = coordinator(brokers=2, topics={"orders": 2})
    assert {c.leader_of("orders", 0), c.leader_of("orders", 1)} == {0, 1}
    c.move_coordinator("g", 1 - c.coordinator_of("g"))
    for topic, partition in (("orders", 2), ("orders", -1), ("payments", 0)):
        with pytest.raises(KeyError, match=f"{topic}-{partition}"):
            c.leader_of(topic, partition)
    assert c.address.split(",") == c.addresses
    c.stop()
    with pytest.raises(RuntimeError, match="not running"):
        c.stop_broker(0)
