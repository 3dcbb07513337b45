"""Clients with ``group.protocol=consumer`` (KIP-848) on the coordinator: Java, librdkafka, franz-go, and our own.

The life of a group is that of all client libraries (tests/support/clients/life_cycle.py); what static members do, and
rolling restarts from one protocol to the other and back, are here. A session is long, because it is the coordinator's
for all members, and a busy machine must not end one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

import pytest

from kcoord_wire.coordinator import Coordinator, GroupConfig
from tests.support.clients.java import java_client
from tests.support.clients.life_cycle import Figures, Place, at_once, expect_shares, life_cycle, mixed
from tests.support.clients.members import CONFLUENT, KCOORD, KCOORD_848, KIP_848, Client
from tests.support.go_programs import build_go_programs

SESSION_MS: Final = 20_000
CONFIG: Final = GroupConfig(
    min_session_timeout_ms=1_000,
    initial_rebalance_delay_ms=200,
    consumer_session_timeout_ms=SESSION_MS,
    consumer_heartbeat_interval_ms=500,
    consumer_assignment_interval_ms=0,
)
RANGE, UNIFORM = "range", "uniform"


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Client:
    return java_client(tmp_path_factory.mktemp("classes"), "4.4.0")


@pytest.fixture(scope="module")
def franz_go() -> Client:
    return Client("franz-go", (str(build_go_programs() / "franz"),))


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    with Coordinator(config=CONFIG) as running:
        yield running


def new(client: Client) -> Client:
    """The client with the newer protocol."""
    return replace(client, options=KIP_848)


def place_on(coordinator: Coordinator, name: str) -> Place:
    return replace(Place.on(coordinator, name), session_timeout_ms=SESSION_MS)


def static_life(place: Place, client: Client, assignor: str) -> Figures:
    """A static member is closed and comes again to what it had, and the other notices nothing; then it is killed."""
    with (
        place.member(client, "other", assignor, static=True) as other,
        place.member(client, "restarted", assignor, static=True) as one,
        place.member(client, "restarted", assignor, static=True) as again,
    ):
        for number, member in enumerate([other, one], 1):
            member.join()
            place.share_out([other, one][:number])
        mine, before = one.now_owned, list(other.owned)
        expect_shares([other, one], place.produce(other, "one", 2))
        one.commit()
        other.commit()
        one.leave()
        again.join()
        place.share_out([other, again])
        assert again.now_owned == mine
        records = place.produce(other, "two", 2)
        expect_shares([other, again], records)
        assert other.owned == before, f"a restart has caused a rebalance: {before} became {other.owned}"
        again.commit()
        other.commit()
        return {"killed": place.kill(again, other)}


def rolling_restart(place: Place, before: Client, after: Client, assignors: tuple[str, str]) -> Figures:
    """Two members of one protocol are replaced one by one by members of the other, and those by the former kind."""
    old, fresh = assignors
    with (
        place.member(before, "a", old) as a,
        place.member(before, "b", old) as b,
        place.member(after, "c", fresh) as c,
        place.member(after, "d", fresh) as d,
        place.member(before, "e", old) as e,
        place.member(before, "f", old) as f,
    ):
        a.join()
        place.share_out([a])
        b.join()
        place.share_out([a, b])
        stages = [[a, b], [b, c], [c, d], [d, e], [e, f]]
        for number, members in enumerate(stages):
            if number:
                stages[number - 1][0].leave()
                members[1].join()
            place.share_out(members)
            expect_shares(members, place.produce(a, str(number), 2))
            committed = members[0].commit() | members[1].commit()
            assert committed == dict.fromkeys(place.all, 2 * (number + 1))
        e.leave()
        f.leave()
    return {}


def test_life_cycle_and_static_members(
    java: Client, franz_go: Client, coordinator: Coordinator, record_property: Callable[[str, object], None]
) -> None:
    clients = {"java": (new(java), RANGE), "librdkafka": (new(CONFLUENT), RANGE), "franz-go": (franz_go, UNIFORM)}
    clients["kcoord-wire"] = (KCOORD_848, RANGE)
    together = (new(java), KCOORD_848, new(CONFLUENT))
    scripts: dict[str, Callable[[], Figures]] = {
        "mixed": partial(mixed, place_on(coordinator, "mixed"), together, RANGE)
    }
    for name, (client, assignor) in clients.items():
        scripts[name] = partial(life_cycle, place_on(coordinator, name), client, assignor)
        if name == "franz-go":
            continue  # 1.22.2 leaves for a while without its instance id, which Kafka refuses as we do
        static_place = place_on(coordinator, f"{name}-static")
        scripts[f"{name} static"] = partial(static_life, static_place, client, assignor)
    record_property("figures", at_once(scripts))


def test_rolling_restarts_between_the_protocols(java: Client, coordinator: Coordinator) -> None:
    at_once(
        {
            client.name: partial(
                rolling_restart, place_on(coordinator, client.name.split()[0]), client, newer, (RANGE, RANGE)
            )
            for client, newer in ((java, new(java)), (CONFLUENT, new(CONFLUENT)), (KCOORD, KCOORD_848))
        }
    )
