"""Our consumer on Kafka's own brokers: the life that all client libraries live, beside Java's client, and security.

The scripts are those of tests/support/clients/life_cycle.py. What our consumer does where something goes wrong, and how
that is explained, is in test_explain_situations.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import pytest
import trustme
from confluent_kafka import KafkaException, Producer

import kcoord_wire as kw
from kcoord_wire.assignors import TopicPartition
from kcoord_wire.consumer import Consumer, ConsumerSettings, OffsetAndMetadata, OffsetAndTimestamp
from kcoord_wire.consumer.connection import BrokerConnection, ConnectionSettings
from kcoord_wire.consumer.errors import AuthenticationError
from kcoord_wire.consumer.settings import MECHANISMS, Sasl, tls_context
from kcoord_wire.kernel.net import parse_address
from tests.support.clients.java import java_client
from tests.support.clients.life_cycle import Figures, Place, at_once, life_cycle, mixed, static
from tests.support.clients.members import CONFLUENT, KCOORD, KCOORD_848, KIP_848, Client
from tests.support.consumers import drive, send_offset, take
from tests.support.kafka_broker import KAFKA, KafkaBroker, create_topics, pem, wait_for_producer_ids

VERSIONS: Final = (KAFKA, "4.1.0")
RANGE: Final = "range"
COOPERATIVE: Final = "cooperative-sticky"
SESSION_MS: Final = 15_000  # of SASL; clients renew it with 15 % of it left, which is time for a busy machine too
LOGIN: Final = "org.apache.kafka.common.security"
PROPERTIES: Final = {
    "auto.create.topics.enable": "true",
    "num.partitions": "6",
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "200",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": str(Place.session_timeout_ms),
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "500",
}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ca.pem, broker.pem and client.pem."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    for role, name in (("broker", "127.0.0.1"), ("client", "client")):
        (folder / f"{role}.pem").write_bytes(pem(authority.issue_cert(name)))
    return folder


@pytest.fixture(scope="module")
def brokers(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, KafkaBroker]]:
    """Brokers with one listener for every client, and one that requires a certificate and a password."""
    listener = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates / "ca.pem"),
        "ssl.client.auth": "required",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "plain.sasl.jaas.config": f'{LOGIN}.plain.PlainLoginModule required user_alice="secret";',
        "scram-sha-256.sasl.jaas.config": f"{LOGIN}.scram.ScramLoginModule required;",
        "scram-sha-512.sasl.jaas.config": f"{LOGIN}.scram.ScramLoginModule required;",
        "connections.max.reauth.ms": str(SESSION_MS),
    }
    folder = tmp_path_factory.mktemp("brokers")

    def started(version: str) -> KafkaBroker:
        path = folder / f"consumer-kafka-{version}"
        broker = KafkaBroker(path, PROPERTIES, version, secured=listener, users={"alice": "secret"})
        return stack.enter_context(broker)

    with ExitStack() as stack:
        with ThreadPoolExecutor(len(VERSIONS)) as threads:
            running = dict(zip(VERSIONS, threads.map(started, VERSIONS), strict=True))
        yield running


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Client]:
    return {version: java_client(tmp_path_factory.mktemp("classes"), version) for version in VERSIONS}


def test_life_on_kafka(brokers: dict[str, KafkaBroker], java: dict[str, Client]) -> None:
    old, new = VERSIONS
    scripts: dict[str, dict[str, Callable[[Place], Figures]]] = {
        version: {
            "eager": partial(life_cycle, client=KCOORD, assignor=RANGE),
            "cooperative": partial(life_cycle, client=KCOORD, assignor=COOPERATIVE),
            "mixed-eager": partial(mixed, clients=(KCOORD, java[version], CONFLUENT), assignor=RANGE),
            "mixed-cooperative": partial(mixed, clients=(java[version], KCOORD, CONFLUENT), assignor=COOPERATIVE),
        }
        for version in VERSIONS
    }
    scripts[old]["static-leader"] = partial(static, client=KCOORD, assignor=COOPERATIVE, leads=True)
    scripts[new]["static-follower"] = partial(static, client=KCOORD, assignor=RANGE, leads=False)
    newer = [replace(client, options=KIP_848) for client in (java[new], CONFLUENT)]
    scripts[new]["server-assigned"] = partial(life_cycle, client=KCOORD_848, assignor=RANGE)
    scripts[new]["mixed-server-assigned"] = partial(mixed, clients=(newer[0], KCOORD_848, newer[1]), assignor=RANGE)
    playing: dict[str, Callable[[], Figures]] = {}
    for version, played in scripts.items():
        address = brokers[version].address
        create_topics(address, list(played))
        wait_for_producer_ids(address)
        for name, script in played.items():
            playing[f"{name} on {version}"] = partial(script, Place(address, topic=name, group=f"{name}-readers"))
    print(at_once(playing))


@pytest.mark.parametrize(("version", "protocol"), [(KAFKA, "classic"), ("4.1.0", "classic"), ("4.1.0", "consumer")])
def test_kafka_takes_offsets_of_a_transaction_for_the_group(
    version: str, protocol: str, brokers: dict[str, KafkaBroker]
) -> None:
    """With the group metadata of our consumer and a producer of librdkafka; those of another generation are refused."""
    address, topic = brokers[version].address, f"offsets-{protocol}"
    create_topics(address, [topic])
    wait_for_producer_ids(address)
    first = TopicPartition(topic, 0)

    async def run() -> None:
        settings = ConsumerSettings(
            bootstrap_servers=address, group_id=topic, group_protocol=protocol, enable_auto_commit=False
        )
        async with Consumer(settings) as consumer:
            consumer.subscribe([topic])
            await drive(lambda: len(consumer.assignment) == 6, consumer)
            metadata = consumer.group_metadata()
            await asyncio.to_thread(send_offset, address, metadata, first, 5)
            await consumer.commit({TopicPartition(topic, 1): OffsetAndMetadata(7, "text", 0)})
            assert await consumer.committed([first, TopicPartition(topic, 1), TopicPartition(topic, 2)]) == {
                first: OffsetAndMetadata(5),
                TopicPartition(topic, 1): OffsetAndMetadata(7, "text", 0),
                TopicPartition(topic, 2): None,
            }
            stale = replace(metadata, generation_id=metadata.generation_id + 1)
            with pytest.raises(KafkaException):
                await asyncio.to_thread(send_offset, address, stale, first, 6)

    asyncio.run(run())


@pytest.mark.parametrize("version", VERSIONS)
def test_kafka_answers_about_offsets(version: str, brokers: dict[str, KafkaBroker]) -> None:
    address = brokers[version].address
    create_topics(address, ["timed"])
    producer = Producer({"bootstrap.servers": address})
    for number in range(4):
        producer.produce("timed", b"x", partition=1, timestamp=1_000 + 10 * number)
    assert producer.flush(30) == 0
    first, second = (TopicPartition("timed", number) for number in range(2))

    async def run() -> None:
        settings = ConsumerSettings(bootstrap_servers=address, group_id="timed", auto_offset_reset="earliest")
        async with Consumer(settings) as consumer:
            assert await consumer.beginning_offsets([first, second]) == {first: 0, second: 0}
            assert await consumer.end_offsets([first, second]) == {first: 0, second: 4}
            assert await consumer.offsets_for_times({first: 0, second: 1_011}) == {
                first: None,
                second: OffsetAndTimestamp(2, 1_020, 0),
            }
            consumer.assign([second])
            assert len(await take(consumer, 4)) == 4
            assert consumer.current_lag(second) == 0
            await consumer.commit()
            assert await consumer.committed([first, second]) == {first: None, second: OffsetAndMetadata(4)}

    asyncio.run(run())


# ---- security


async def opened(broker: KafkaBroker, certificates: Path, sasl: Sasl, *, is_certified: bool = True) -> BrokerConnection:
    tls = tls_context(certificates / "ca.pem", certificates / "client.pem" if is_certified else None)
    return await BrokerConnection.open(*parse_address(broker.secured_address), ConnectionSettings(tls=tls, sasl=sasl))


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("version", VERSIONS)
def test_kafka_admits_and_refuses(
    version: str, mechanism: str, brokers: dict[str, KafkaBroker], certificates: Path
) -> None:
    broker = brokers[version]

    async def use() -> None:
        connection = await opened(broker, certificates, Sasl(mechanism, "alice", "secret"))
        answer = await connection.request(kw.MetadataRequest(topics=[]), 12)
        assert [known.node_id for known in answer.brokers] == [1]
        await connection.close()
        with pytest.raises(AuthenticationError, match="Authentication failed"):
            await opened(broker, certificates, Sasl(mechanism, "alice", "wrong"))
        with pytest.raises(AuthenticationError, match=r"(?i)certificate"):
            await opened(broker, certificates, Sasl(mechanism, "alice", "secret"), is_certified=False)

    asyncio.run(use())


def test_sessions_on_kafka_are_renewed(brokers: dict[str, KafkaBroker], certificates: Path) -> None:
    """The broker closes a connection whose session is over at its next request (connections.max.reauth.ms)."""

    async def use(broker: KafkaBroker) -> None:
        connection = await opened(broker, certificates, Sasl("SCRAM-SHA-256", "alice", "secret"))
        over = time.monotonic() + SESSION_MS / 1000 + 1
        while time.monotonic() < over:
            assert (await connection.request(kw.MetadataRequest(topics=[]), 12)).brokers
            await asyncio.sleep(0.1)
        assert (await connection.request(kw.MetadataRequest(topics=[]), 12)).brokers
        assert not connection.lost.done()
        await connection.close()

    async def use_all() -> None:
        await asyncio.gather(*map(use, brokers.values()))

    asyncio.run(use_all())
