"""Connections and metadata: which broker is asked, and what happens when none answers.

The cluster as the brokers describe it.

The signal that something has changed.
"""

from __future__ import annotations

import asyncio
import gc
import re
import uuid
from collections.abc import Mapping

import pytest

from kcoord_wire import messages as m
from kcoord_wire.assignors import TopicPartition
from kcoord_wire.consumer import Consumer
from kcoord_wire.consumer.brokers import (
    Brokers,
    Leader,
    Metadata,
    MetadataKeeper,
    Signal,
    backoff_seconds,
    metadata_request,
)
from kcoord_wire.consumer.errors import AuthenticationError, BrokerError, ConnectionLostError, TopicError
from kcoord_wire.consumer.settings import Sasl
from kcoord_wire.coordinator import Fault, Users
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.consumers import settings
from tests.support.fixtures import StartCoordinator
from tests.support.waiting import eventually_async


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
        await eventually_async(lambda: "later" in brokers.metadata.counts)
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


def answer(
    leaders: Mapping[str, list[tuple[int, int]]],
    *,
    brokers: tuple[int, ...] = (1, 2),
    ids: Mapping[str, int] | None = None,
    errors: Mapping[str, ErrorCode] | None = None,
    internal: tuple[str, ...] = (),
) -> m.MetadataResponse:
    """A response with each topic's leaders, and their epochs, in the order of its partitions."""
    topics = [
        m.MetadataResponseTopic(
            name=name,
            topic_id=uuid.UUID(int=(ids or {}).get(name, 0)),
            is_internal=name in internal,
            partitions=[
                m.MetadataResponsePartition(partition_index=index, leader_id=node, leader_epoch=epoch)
                for index, (node, epoch) in enumerate(parts)
            ],
        )
        for name, parts in leaders.items()
    ]
    topics += [m.MetadataResponseTopic(name=name, error_code=error) for name, error in (errors or {}).items()]
    known = [m.MetadataResponseBroker(node_id=node, host=f"h{node}", port=node) for node in brokers]
    return m.MetadataResponse(brokers=known, topics=topics)


A0 = TopicPartition("a", 0)


def test_it_knows_addresses_topics_and_leaders() -> None:
    metadata = Metadata()
    assert metadata.update(answer({"a": [(1, 5), (2, 0)]}, ids={"a": 7}), is_all=False) == (True, [])
    assert metadata.addresses == {1: ("h1", 1), 2: ("h2", 2)}
    assert (metadata.counts, metadata.topic_ids) == ({"a": 2}, {"a": uuid.UUID(int=7)})
    assert metadata.leader(A0) == Leader(1, 5)
    assert metadata.leader(TopicPartition("a", 2)) is None


@pytest.mark.parametrize(
    ("response", "complete"),
    [
        (answer({}, brokers=()), False),
        (answer({"a": [(-1, 5)]}), False),
        (answer({"a": [(3, 5)]}), False),
        (answer({}, errors={"a": ErrorCode.LEADER_NOT_AVAILABLE}), False),
        (answer({}, errors={"a": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}), False),
        (answer({}, errors={"a": ErrorCode.TOPIC_AUTHORIZATION_FAILED}), True),
    ],
)
def test_what_is_missing_is_asked_for_again(response: m.MetadataResponse, complete: bool) -> None:
    metadata = Metadata()
    assert metadata.update(response, is_all=False)[0] is complete
    assert metadata.leader(A0) is None


def test_topics_that_may_not_be_read_are_reported() -> None:
    _, failures = Metadata().update(answer({}, errors={"a": ErrorCode.TOPIC_AUTHORIZATION_FAILED}), is_all=False)
    assert [(each.topic, each.error) for each in failures] == [("a", ErrorCode.TOPIC_AUTHORIZATION_FAILED)]


def test_an_older_epoch_does_not_replace_a_leader() -> None:
    metadata = Metadata()
    metadata.update(answer({"a": [(1, 5)]}), is_all=False)
    metadata.update(answer({"a": [(2, 4)]}), is_all=False)
    assert metadata.leader(A0) == Leader(1, 5)
    metadata.update(answer({"a": [(2, 6)]}), is_all=False)
    assert metadata.leader(A0) == Leader(2, 6)
    metadata.update(answer({"a": [(1, -1)]}), is_all=False)
    assert metadata.leader(A0) == Leader(1, -1), "a broker that knows no epochs is believed"


def test_a_topic_that_was_created_anew_begins_with_new_epochs() -> None:
    metadata = Metadata()
    metadata.update(answer({"a": [(1, 5)]}, ids={"a": 7}), is_all=False)
    metadata.update(answer({"a": [(2, 0)]}, ids={"a": 8}), is_all=False)
    assert metadata.leader(A0) == Leader(2, 0)


def test_topics_vanish() -> None:
    metadata = Metadata()
    metadata.update(answer({"a": [(1, 5)], "b": [(1, 5)]}), is_all=True)
    metadata.update(answer({"b": [(1, 5)]}), is_all=True)
    assert metadata.counts == {"b": 1}
    metadata.update(answer({}, errors={"b": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}), is_all=False)
    assert metadata.counts == {}


def test_a_pattern_matches_whole_names() -> None:
    metadata = Metadata()
    metadata.update(answer({"ab": [], "b": [], "__ab": []}, internal=("__ab",)), is_all=True)
    assert metadata.matching(re.compile("a?b"), exclude_internal=True) == ["ab", "b"]
    assert metadata.matching(re.compile(".*ab"), exclude_internal=True) == ["ab"]
    assert metadata.matching(re.compile(".*ab"), exclude_internal=False) == ["__ab", "ab"]


def test_requests_name_topics_or_ask_for_all() -> None:
    assert metadata_request(None, may_create=True).topics is None
    assert not metadata_request(None, may_create=True).allow_auto_topic_creation
    request = metadata_request({"b", "a"}, may_create=True)
    assert [topic.name for topic in request.topics or ()] == ["a", "b"]
    assert request.allow_auto_topic_creation


def test_it_wakes_every_task_that_waits() -> None:
    async def run() -> None:
        signal = Signal()
        waiting = [asyncio.create_task(signal.wait()) for _ in range(2)]
        await asyncio.sleep(0)
        signal.set()
        assert await asyncio.gather(*waiting) == [True, True]

    asyncio.run(run())


def test_a_wait_ends_at_its_deadline() -> None:
    async def run() -> None:
        signal = Signal()
        signal.set()  # not kept
        assert await signal.wait(asyncio.get_running_loop().time() + 0.01) is False
        signal.set()  # nothing waits any more

    asyncio.run(run())
