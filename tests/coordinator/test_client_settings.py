"""Settings that make clients fast in tests: real clients take them, and hear of a rebalance sooner."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack

import pytest

from kcoord_wire.coordinator import Coordinator, Fault
from kcoord_wire.coordinator.client_settings import CLIENTS
from tests.support.clients.members import AIOKAFKA, CONFLUENT, KAFKA_PYTHON, KCOORD, Member
from tests.support.fixtures import StartCoordinator

PROGRAMS = {"librdkafka": CONFLUENT, "kafka-python": KAFKA_PYTHON, "aiokafka": AIOKAFKA, "kcoord_wire": KCOORD}
BY_DEFAULT = "by default"


def joining(coordinator: Coordinator, group: str, client: str, *, is_fast: bool) -> AbstractContextManager[Member]:
    """A program that has been started, with its client's defaults or the settings."""
    return Member(
        PROGRAMS[client],
        bootstrap=coordinator.address,
        topic="orders",
        group=group,
        client_id=group,
        assignor="range",
        instance_id=None,
        session_timeout_ms=45_000,
        heartbeat_interval_ms=3_000,
        rebalance_timeout_ms=60_000,
        options=coordinator.client_settings(client) if is_fast else {},
    )


@pytest.mark.slow
def test_clients_take_them_and_heartbeat_more_often(coordinator: StartCoordinator) -> None:
    """A member hears of a rebalance by its next heartbeat: of the fast ones, many come between two of the other."""
    c = coordinator()
    with ExitStack() as stack:
        members = [stack.enter_context(joining(c, client, client, is_fast=True)) for client in PROGRAMS]
        members.append(stack.enter_context(joining(c, BY_DEFAULT, "librdkafka", is_fast=False)))
        for member in members:
            member.send("join")
        for group in (*PROGRAMS, BY_DEFAULT):
            c.wait_until_stable(group, members=1)
        heartbeats = {
            group: stack.enter_context(c.faults(Fault("delay", api="Heartbeat", group=group, delay_ms=1)))
            for group in (*PROGRAMS, BY_DEFAULT)
        }
        heartbeats[BY_DEFAULT].wait(hits=1)
        before = {group: each.hits for group, each in heartbeats.items()}
        heartbeats[BY_DEFAULT].wait(hits=2)
        between = {group: heartbeats[group].hits - before[group] for group in PROGRAMS}
        assert min(between.values()) > 5, between


def test_an_unknown_client_is_said_with_what_was_meant(coordinator: StartCoordinator) -> None:
    c = coordinator()
    with pytest.raises(ValueError, match=r"^no client 'kafka_python'; did you mean kafka-python\?$"):
        c.client_settings("kafka_python")
    with pytest.raises(ValueError, match=f"there are {', '.join(CLIENTS)}$"):
        c.client_settings("ruby")


def test_several_brokers_are_all_in_the_address(coordinator: StartCoordinator) -> None:
    c = coordinator(brokers=3)
    addresses = {each: c.client_settings(each)[name] for each, (name, _) in CLIENTS.items()}
    assert set(addresses.values()) == {",".join(c.addresses)}


def test_what_is_changed_does_not_stay() -> None:
    c = Coordinator()
    c.client_settings("java")["session.timeout.ms"] = 1
    assert c.client_settings("java")["session.timeout.ms"] == 6_000
