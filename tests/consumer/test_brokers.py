"""Connections and metadata: which broker is asked, and what happens when none answers."""

from __future__ import annotations

import asyncio
import gc

import pytest

from kcoord_wire.consumer import Consumer
from kcoord_wire.consumer.brokers import Brokers, MetadataKeeper, backoff_seconds
from kcoord_wire.consumer.errors import AuthenticationError, BrokerError, ConnectionLostError, TopicError
from kcoord_wire.consumer.settings import Sasl
from kcoord_wire.coordinator import Fault, Users
from tests.support.consumers import settings
from tests.support.fixtures import StartCoordinator


def test_pauses_grow_up_to_a_limit() -> None:
    given = settings("h:1", retry_backoff_ms=100, retry_backoff_max_ms=1_000)
    assert [backoff_seconds(given, failures) for failures in (1, 2, 3, 4, 5, 1_000)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_a_bootstrap_server_that_is_away_is_passed_over(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        server = coordinator()
        brokers = Brokers(settings(f"127.0.0.1:1,{server.address}"))
        connection = await brokers.any()
        assert connection.address == server.address
        assert await brokers.any() is connection
        await brokers.close()
        assert connection.lost.done()

    asyncio.run(run())


@pytest.mark.parametrize("address", ["127.0.0.1:1", "a..b:9092"])
def test_no_broker_at_all_is_an_error(address: str) -> None:
    with pytest.raises(ConnectionLostError, match=address.partition(":")[0]):
        asyncio.run(Brokers(settings(address)).any())


def test_metadata_is_asked_for_until_it_is_complete(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        server = coordinator(topics={"orders": 2})
        server.add_fault(Fault("disconnect", api="Metadata", count=2))
        updates: list[list[TopicError]] = []
        given = settings(server.address)
        brokers = Brokers(given)
        keeper = MetadataKeeper(given, brokers, lambda: ["orders", "later"], updates.append)
        await keeper.answer(asyncio.get_running_loop().time() + 60)
        assert brokers.metadata.counts == {"orders": 2}
        server.create_topic("later", 3)
        async with asyncio.timeout(60):
            while "later" not in brokers.metadata.counts:
                await asyncio.sleep(0.01)
        assert len(updates) >= 4
        await keeper.close()
        await brokers.close()

    asyncio.run(run())


def test_credentials_that_are_refused_end_the_consumer(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        server = coordinator(users=Users({"alice": "right"}))
        async with Consumer(settings(server.address, sasl=Sasl("PLAIN", "alice", "wrong"))) as consumer:
            consumer.subscribe(["orders"])
            with pytest.raises(AuthenticationError) as refused:
                await consumer.poll(60_000)
            assert isinstance(refused.value, BrokerError)

    asyncio.run(run())


def test_a_leader_that_goes_while_a_connection_opens(coordinator: StartCoordinator) -> None:
    """The application runs meanwhile: what was to be asked for may not be there any more."""

    async def run() -> None:
        crashes: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: crashes.append(context))
        async with Consumer(settings(coordinator(topics={"orders": 1}).address)) as consumer:
            open_connection = consumer._brokers.to

            async def losing(node_id: int) -> object:
                connection = await open_connection(node_id)
                consumer._brokers.to = open_connection
                consumer._brokers.metadata._forget("orders")
                return connection

            consumer._brokers.to = losing
            consumer.subscribe(["orders"])
            for _ in range(10):
                await consumer.poll(20)
            assert consumer._brokers.metadata.counts == {"orders": 1}, "it was asked for again"
        gc.collect()  # a task that has failed is reported when it is collected
        assert crashes == []

    asyncio.run(run())


def test_that_no_broker_answers_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with Consumer(settings("127.0.0.1:1")) as consumer:
            consumer.subscribe(["orders"])
            assert await consumer.poll(timeout_ms=800) == []

    asyncio.run(run())
    [text] = [record.getMessage() for record in caplog.records if record.name == "kcoord_wire.consumer.brokers"]
    assert text.startswith("no broker answers, trying again: 127.0.0.1:1: ")


def test_a_broker_that_answers_again_is_logged(coordinator: StartCoordinator, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        server = coordinator(topics={"orders": 1})
        server.add_fault(Fault("disconnect", api="Metadata", count=2))
        given = settings(server.address)
        brokers = Brokers(given)
        keeper = MetadataKeeper(given, brokers, lambda: ["orders"], lambda failures: None)
        await keeper.answer(asyncio.get_running_loop().time() + 60)
        assert keeper.failure is None
        await keeper.close()
        await brokers.close()

    asyncio.run(run())
    texts = [record.getMessage() for record in caplog.records if record.name == "kcoord_wire.consumer.brokers"]
    assert texts[-1] == "a broker answers again"
    assert len(texts) == 2
