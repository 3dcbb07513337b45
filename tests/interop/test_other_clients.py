"""Clients in other languages live the same life on the coordinator: kafkajs, franz-go and sarama, alone and mixed.

Their programs are in node/ and go/, at the newest versions there were; the scripts are those of the Python clients
(tests/support/clients). Needs ``node`` 14 or newer with ``npm``, and ``go``, as Debian's packages are. What is fetched
and built lies under build/interop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest

from tests.support.clients.kafkajs import kafkajs_client
from tests.support.clients.life_cycle import Figures, Place, at_once, life_cycle, mixed, static
from tests.support.clients.members import AIOKAFKA, CONFLUENT, KAFKA_PYTHON, Client
from tests.support.clients.served import Served
from tests.support.go_programs import build_go_programs
from tests.support.kafka_broker import KafkaBroker, create_topics, wait_for_producer_ids

RANGE = "range"
COOPERATIVE = "cooperative-sticky"

SARAMA_ALLOWED = {
    "|".join(
        (
            r"^(Initializing new|Successfully initialized new|Closing) [Cc]lient$",
            r"^client/metadata fetching metadata for ",
            r"^client/brokers registered new broker #\d ",
            r"^client/coordinator (requesting coordinator for \S+ from |coordinator for \S+ is #\d )",
            r"^Completed ApiVersionsRequest V\d ",
            r"^(Connected to|Closed connection to) broker ",
            r"^consumer/broker/\d (accumulated \d+ new subscriptions|(added|closed dead) subscription to )",
            r"^consumergroup/session/\S+ (heartbeat loop stopped|released)$",
            r"^txnmgr/(transition|init-producer-id) \[\] (transition|invoking|successful|obtained)",
            r"^producer/broker/\d (starting up|state change to \[open\] on |input chan closed|shut down)",
            r"^Producer shutting down\.$",
            r"^consumergroup/\S+ loop check partition number goroutine will exit, ",
        )
    ): "its log has no levels: this is what it says when all goes well"
}


@pytest.fixture(scope="session")
def kafkajs() -> Client:
    return kafkajs_client()


@pytest.fixture(scope="session")
def go_programs() -> Path:
    return build_go_programs()


@pytest.fixture(scope="session")
def franz_go(go_programs: Path) -> Client:
    return Client("franz-go", (str(go_programs / "franz"),))


@pytest.fixture(scope="session")
def sarama(go_programs: Path) -> Client:
    return Client("sarama", (str(go_programs / "sarama"),), SARAMA_ALLOWED)


Script = Callable[[Place], Figures]


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Mapping[str, Script]], None]:
    """Plays scripts side by side on a `kcoord serve` of their own."""

    def play(scripts: Mapping[str, Script]) -> None:
        with Served(dict.fromkeys(scripts, 6), tmp_path / "log") as served:
            figures = at_once({name: partial(script, served.place(name)) for name, script in scripts.items()})
        print(figures)

    return play


Play = Callable[[Mapping[str, Script]], None]


def test_kafkajs(kafkajs: Client, play: Play) -> None:
    play({"life": lambda place: life_cycle(place, kafkajs, "RoundRobinAssigner")})


def test_franz_go(franz_go: Client, play: Play) -> None:
    assignors = (RANGE, "roundrobin", "sticky", COOPERATIVE)
    play({name: partial(life_cycle, client=franz_go, assignor=name) for name in assignors})


def test_sarama(sarama: Client, play: Play) -> None:
    play({name: partial(life_cycle, client=sarama, assignor=name) for name in (RANGE, "roundrobin", "sticky")})


def test_static_members(franz_go: Client, sarama: Client, play: Play) -> None:
    play(
        {
            f"{client.name}-{'leader' if leads else 'follower'}": partial(
                static, client=client, assignor=RANGE, leads=leads
            )
            for client in (franz_go, sarama)
            for leads in (True, False)
        }
    )


def test_languages_together(franz_go: Client, sarama: Client, play: Play) -> None:
    together = (
        ((franz_go, sarama, CONFLUENT), RANGE),
        ((sarama, KAFKA_PYTHON, franz_go), RANGE),
        ((AIOKAFKA, franz_go, sarama), RANGE),
        ((franz_go, CONFLUENT, KAFKA_PYTHON), COOPERATIVE),
        ((CONFLUENT, KAFKA_PYTHON, franz_go), COOPERATIVE),
    )
    play(
        {
            "-".join((*(client.name for client in clients), assignor)): partial(
                mixed, clients=clients, assignor=assignor
            )
            for clients, assignor in together
        }
    )


def test_the_scripts_hold_on_kafka(franz_go: Client, sarama: Client, tmp_path: Path) -> None:
    """They ask for what clients get of Kafka's own broker, complaints and bounds of time included."""
    scripts: dict[str, Script] = {
        "alone": partial(life_cycle, client=CONFLUENT, assignor=COOPERATIVE),
        "static": partial(static, client=franz_go, assignor=RANGE, leads=True),
        "mixed": partial(mixed, clients=(AIOKAFKA, sarama, CONFLUENT), assignor=RANGE),
    }
    brisk = {"group.min.session.timeout.ms": "1000", "group.initial.rebalance.delay.ms": "200", "num.partitions": "6"}
    with KafkaBroker(tmp_path / "other-clients", brisk) as broker:
        create_topics(broker.address, list(scripts))
        wait_for_producer_ids(broker.address)
        places = {name: Place(broker.address, topic=name, group=f"{name}-readers") for name in scripts}
        figures = at_once({name: partial(script, places[name]) for name, script in scripts.items()})
    print(figures)
