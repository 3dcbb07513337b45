"""Each client library of Python, and our consumer, alone on the coordinator with each of its assignors.

Libraries in one group are in tests/coordinator/test_clients.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from kcoord_wire.coordinator import Coordinator, Trigger
from tests.support.clients.life_cycle import CONFIG, Figures, Place, at_once, life_cycle, static
from tests.support.clients.members import AIOKAFKA, CONFLUENT, KAFKA_PYTHON, KCOORD, Client

RANGE = "range"
COOPERATIVE = "cooperative-sticky"
ALONE = {
    CONFLUENT: (RANGE, "roundrobin", COOPERATIVE),
    KAFKA_PYTHON: (RANGE, "roundrobin", "sticky", COOPERATIVE),
    AIOKAFKA: (RANGE, "roundrobin", "sticky"),
    KCOORD: (RANGE, COOPERATIVE),
}
"""The assignors that each library has; of our consumer's, one for each way to rebalance."""


@pytest.fixture
def brisk(coordinator: Callable[..., Coordinator]) -> Coordinator:
    """A coordinator in this process."""
    return coordinator(topics={}, config=CONFIG)


def triggers(coordinator: Coordinator, group: str) -> list[Trigger]:
    """What set off the rebalances of a group."""
    return [rebalance.trigger for rebalance in coordinator.rebalances if rebalance.group_id == group]


@pytest.mark.parametrize("client", ALONE, ids=lambda client: client.name)
def test_life_cycle(client: Client, brisk: Coordinator) -> None:
    places = {assignor: Place.on(brisk, assignor) for assignor in ALONE[client]}
    figures = at_once({name: partial(life_cycle, here, client, name) for name, here in places.items()})
    print(figures)
    for here in places.values():
        expired = [
            (removed.client_id, rebalance.client_id)
            for rebalance in brisk.rebalances
            if rebalance.group_id == here.group
            for removed in rebalance.removed
            if removed.why == "session timeout"
        ]
        assert expired == [("first", "first")], "only the member that was killed may have run out of time"


@pytest.mark.parametrize("client", ALONE, ids=lambda client: client.name)
def test_static_members(client: Client, brisk: Coordinator) -> None:
    # A leader that joins once more, as kafka-python's may, begins a rebalance of its own when it is restarted.
    roles = {"follower": False} if client is KAFKA_PYTHON else {"follower": False, "leader": True}
    places = {role: Place.on(brisk, role) for role in roles}
    scripts: dict[str, Callable[[], Figures]] = {
        role: partial(static, places[role], client, RANGE, leads=leads) for role, leads in roles.items()
    }
    print(at_once(scripts))
    for here in places.values():
        begun = [t for t in triggers(brisk, here.group) if t != Trigger.LEADER_REJOINED]
        alone = [Trigger.NEW_MEMBER, Trigger.MEMBER_LEFT]  # the first member, by which the script measures
        assert begun[:5] == [*alone, Trigger.NEW_MEMBER, Trigger.NEW_MEMBER, Trigger.SESSION_EXPIRED]
        assert begun[5:] in ([], [Trigger.SESSION_EXPIRED]), "only that of the other one, killed at the end"
