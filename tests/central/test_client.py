"""A consumer of the draft: what it answers, what it delivers, and that nothing of it is left.

One scenario runs on sockets too, all others on the virtual loop, where times are exact.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire.central.client import CentralConsumer, RegistrationRefusedError
from kcoord_wire.central.draft.consumer import ConsumerState
from kcoord_wire.central.draft.events import Partition
from kcoord_wire.central.fetcher import Record
from kcoord_wire.kernel.machines import BrokerAddress
from kcoord_wire.messages import central as m
from tests.support.scripted_coordinator import ScriptedCoordinator, consumer_settings, running_broker, start_request
from tests.support.virtual import leaving_no_task, on_virtual_loop, run_virtually
from tests.support.waiting import eventually_async

P0, P1 = Partition("orders", "1-0"), Partition("orders", "1-1")
STOP = m.StopFetcherRequest(consumer_id="c-1")


def offsets(answer: Any) -> dict[str, int]:
    return {each.partition: each.offset for each in answer.offset_info}


async def registered(coordinator: ScriptedCoordinator) -> None:
    await eventually_async(lambda: "c-1" in coordinator.registered)


async def started(coordinator: ScriptedCoordinator, positions: dict[Partition, int]) -> None:
    await registered(coordinator)
    coordinator.send(start_request(positions, coordinator.broker))


@asynccontextmanager
async def consuming(
    positions: dict[Partition, int], *, ping_ms: int = 100
) -> AsyncIterator[tuple[ScriptedCoordinator, CentralConsumer]]:
    """A coordinator, and a consumer that it has started at these positions."""
    async with (
        running_broker(ScriptedCoordinator(ping_ms=ping_ms)) as coordinator,
        CentralConsumer(consumer_settings(coordinator.broker)) as consumer,
    ):
        await started(coordinator, positions)
        yield coordinator, consumer


async def take(consumer: CentralConsumer, count: int) -> list[Record]:
    async with asyncio.timeout(60):
        return [await anext(consumer) for _ in range(count)]


@pytest.mark.parametrize("run", [run_virtually, asyncio.run])
def test_records_come_in_order_from_their_offsets(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    async def scenario() -> None:
        async with consuming({P0: 5, P1: 100}) as (_coordinator, consumer):
            records = await take(consumer, 1500)
            consumer.shutdown()
        for partition, first in ((P0, 5), (P1, 100)):
            of_it = [record for record in records if record.partition == partition]
            assert [record.offset for record in of_it] == list(range(first, first + len(of_it)))
            assert of_it
            assert all(record.value == f"orders-{partition.name}@{record.offset}".encode() for record in of_it)
            assert {record.thread for record in of_it} == {"c-1-0"}

    run(leaving_no_task(scenario()))


@on_virtual_loop
async def test_a_position_moves_when_the_next_record_is_asked_for() -> None:
    async with consuming({P0: 5}, ping_ms=20) as (coordinator, consumer):
        await take(consumer, 3)
        pings = len(coordinator.answers)
        await eventually_async(lambda: len(coordinator.answers) > pings + 1)
        assert offsets(coordinator.answers[-1]) == {"1-0": 7}
        assert consumer.partitions[P0].processed == 2
        coordinator.send(STOP)
        await eventually_async(lambda: coordinator.answers_of(m.StopFetcherResponse))
        assert offsets(coordinator.answers_of(m.StopFetcherResponse)[0]) == {"1-0": 7}
        coordinator.send(start_request({P0: 7}, coordinator.broker))
        assert [record.offset for record in await take(consumer, 1)] == [7]


@on_virtual_loop
async def test_a_record_in_hand_at_the_stop_is_not_counted_later() -> None:
    async with consuming({P0: 5}, ping_ms=20) as (coordinator, consumer):
        await take(consumer, 1)
        coordinator.send(STOP)
        coordinator.send(start_request({P0: 5}, coordinator.broker))
        await eventually_async(lambda: len(coordinator.answers_of(m.StartFetcherResponse)) == 2)
        assert [record.offset for record in await take(consumer, 1)] == [5]  # settles the record of before
        assert consumer.partitions[P0].position == 5


@pytest.mark.parametrize(("reset", "first"), [("smallest", 900), ("largest", 1000)])
@on_virtual_loop
async def test_without_a_committed_offset_the_reset_decides(reset: str, first: int) -> None:
    coordinator = ScriptedCoordinator(ping_ms=20)
    async with running_broker(coordinator, rate=1, kept=100, age_ms=1_000_000):
        settings = consumer_settings(coordinator.broker, auto_offset_reset=reset)
        async with CentralConsumer(settings) as consumer:
            await started(coordinator, {P0: -1})
            (record,) = await take(consumer, 1)
            assert first <= record.offset <= first + 60  # the end grows by one record a second
            await eventually_async(
                lambda: {"1-0": record.offset} in map(offsets, coordinator.answers_of(m.PingResponse))
            )


@on_virtual_loop
async def test_handle_ping_request_2_out_of_range_reconnects_once() -> None:
    coordinator = ScriptedCoordinator(ping_ms=20)
    async with (
        running_broker(coordinator, rate=1, kept=100, age_ms=1_000_000),
        CentralConsumer(consumer_settings(coordinator.broker)) as consumer,
    ):
        await started(coordinator, {P0: 5})
        await eventually_async(lambda: len(coordinator.registrations) == 2)
        await started(coordinator, {P0: 5})  # it has no other offset
        (record,) = await take(consumer, 1)
        assert record.offset >= 900
        assert len(coordinator.registrations) == 2


@on_virtual_loop
async def test_pings_are_answered_while_a_function_blocks() -> None:
    coordinator = ScriptedCoordinator(ping_ms=20)
    blocked = asyncio.Event()
    loop = asyncio.get_running_loop()
    pings = 0

    def process(_record: Record) -> None:
        nonlocal pings
        if pings:
            return
        loop.call_soon_threadsafe(blocked.set)
        before = len(coordinator.answers)
        while len(coordinator.answers) < before + 5:
            time.sleep(0.01)
        pings = len(coordinator.answers) - before

    async with (
        running_broker(coordinator),
        CentralConsumer(consumer_settings(coordinator.broker)) as consumer,
    ):
        await started(coordinator, {P0: 5})
        running = asyncio.create_task(consumer.run(process))
        await blocked.wait()
        await eventually_async(lambda: pings >= 5)
        consumer.shutdown()
        await running


@on_virtual_loop
async def test_pings_are_answered_while_the_application_is_busy() -> None:
    """Records are always there, so that the loop is served only because the iteration yields."""
    coordinator = ScriptedCoordinator(ping_ms=20)
    async with (
        running_broker(coordinator, rate=1e6),
        CentralConsumer(consumer_settings(coordinator.broker)) as consumer,
    ):
        await started(coordinator, {P0: 0})
        before = None
        async with asyncio.timeout(60):
            async for _record in consumer:
                time.sleep(0.002)  # does not return to the loop
                before = len(coordinator.answers) if before is None else before
                if len(coordinator.answers) >= before + 5:
                    break
        assert consumer.partitions[P0].processed


@on_virtual_loop
async def test_an_error_of_the_function_does_not_count_its_record() -> None:
    def process(record: Record) -> None:
        if record.offset == 7:
            raise LookupError("a fault of the application")

    async with consuming({P0: 5}, ping_ms=20) as (_coordinator, consumer):
        with pytest.raises(LookupError):
            await consumer.run(process)
        assert consumer.partitions[P0].position == 7


@on_virtual_loop
async def test_shutdown_waits_for_the_second_ping() -> None:
    async with consuming({P0: 5}, ping_ms=50) as (coordinator, consumer):
        await take(consumer, 3)
        connection = coordinator.registered["c-1"]
        before = len(coordinator.answers_of(m.PingResponse))
        consumer.shutdown()
        assert [record async for record in consumer] == []  # and the third record is processed
        await eventually_async(lambda: connection in coordinator.closed)
        (last,) = coordinator.answers_of(m.PingResponse)[before:]
        assert offsets(last) == {"1-0": 8}


@on_virtual_loop
async def test_shutdown_is_bounded_if_no_ping_comes() -> None:
    async with running_broker(ScriptedCoordinator(ping_ms=0)) as coordinator:
        consumer = CentralConsumer(consumer_settings(coordinator.broker, session_timeout_ms=500))
        async with consumer:
            await registered(coordinator)
        assert consumer.machine.state is ConsumerState.ENDED


@on_virtual_loop
async def test_a_second_shutdown_does_not_wait() -> None:
    async with running_broker(ScriptedCoordinator(ping_ms=0)) as coordinator:
        settings = consumer_settings(coordinator.broker, session_timeout_ms=600_000)
        async with CentralConsumer(settings) as consumer:
            await registered(coordinator)
            consumer.shutdown()
            consumer.shutdown()
            assert [record async for record in consumer] == []
        await eventually_async(lambda: coordinator.closed)


@on_virtual_loop
async def test_a_consumer_may_be_shut_down_before_it_begins() -> None:
    async with running_broker(ScriptedCoordinator()) as coordinator:
        consumer = CentralConsumer(consumer_settings(coordinator.broker))
        consumer.shutdown()
        async with consumer:
            assert [record async for record in consumer] == []
        assert not coordinator.registered


@on_virtual_loop
async def test_silence_leads_to_another_registration() -> None:
    coordinator = ScriptedCoordinator(ping_ms=50)
    assigned: list[frozenset[Partition]] = []
    async with running_broker(coordinator):
        settings = consumer_settings(coordinator.broker, session_timeout_ms=1_000)
        async with CentralConsumer(settings, on_assigned=assigned.append):
            await started(coordinator, {P0: 5})
            await eventually_async(lambda: assigned == [frozenset({P0})])
            coordinator.is_silent = True
            await eventually_async(lambda: len(coordinator.registrations) == 2)
            assert assigned == [frozenset({P0}), frozenset()]
            coordinator.is_silent = False


@on_virtual_loop
async def test_a_coordinator_that_moved_is_found() -> None:
    async with (
        running_broker(ScriptedCoordinator()) as gone,
        running_broker(ScriptedCoordinator()) as other,
        CentralConsumer(consumer_settings(gone.broker, other.broker)),
    ):
        await registered(gone)
        await gone.server.close()
        await registered(other)


@on_virtual_loop
async def test_a_broker_that_is_not_there_is_tried_again() -> None:
    async with running_broker(ScriptedCoordinator()) as coordinator:
        nowhere = [BrokerAddress(7, "127.0.0.1", 1), BrokerAddress(8, "host.invalid", 70_000)]
        async with CentralConsumer(consumer_settings(*nowhere, coordinator.broker)):
            await registered(coordinator)


@on_virtual_loop
async def test_a_refused_registration_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "kcoord_wire.central")
    refusing = ScriptedCoordinator(register=m.RegisterConsumerResponse(error_code=100))
    async with running_broker(refusing), CentralConsumer(consumer_settings(refusing.broker)):
        await eventually_async(lambda: len(refusing.registrations) == 2)
        refusing.response = m.RegisterConsumerResponse()
        await registered(refusing)
    assert "registration refused group=g consumer=c-1 error=DUPLICATE_CONSUMER_ID" in caplog.text


@on_virtual_loop
async def test_a_final_refusal_ends_the_consumer() -> None:
    refusing = ScriptedCoordinator(register=m.RegisterConsumerResponse(error_code=26))
    async with running_broker(refusing), CentralConsumer(consumer_settings(refusing.broker)) as consumer:
        with pytest.raises(RegistrationRefusedError, match="INVALID_SESSION_TIMEOUT"):
            await anext(consumer)
    assert len(refusing.registrations) == 1


@on_virtual_loop
async def test_an_assignment_of_many_long_names_is_taken() -> None:
    positions = {Partition("t" * 249, f"1-{number}"): 0 for number in range(10_000)}
    async with consuming(positions) as (_coordinator, consumer):
        await eventually_async(lambda: len(consumer.partitions) == 10_000)


def test_an_id_that_does_not_fit_is_refused_at_once() -> None:
    settings = consumer_settings(BrokerAddress(1, "127.0.0.1", 1))
    with pytest.raises(kw.EncodeError):
        CentralConsumer(type(settings)("g" * 40_000, "c", "{}", settings.bootstrap))


@on_virtual_loop
async def test_a_fault_of_the_application_callback_ends_the_iteration() -> None:
    def fail(_partitions: frozenset[Partition]) -> None:
        raise LookupError("a fault of the application")

    async with (
        running_broker(ScriptedCoordinator()) as coordinator,
        CentralConsumer(consumer_settings(coordinator.broker), on_assigned=fail) as consumer,
    ):
        await started(coordinator, {P0: 5})
        with pytest.raises(LookupError):
            await take(consumer, 1)


@on_virtual_loop
async def test_a_connection_being_opened_ends_with_the_consumer() -> None:
    async def never(*_arguments: object) -> None:
        await asyncio.get_running_loop().create_future()

    asyncio.get_running_loop().create_connection = never  # type: ignore[method-assign, assignment]  # as where packets are dropped
    async with CentralConsumer(consumer_settings(BrokerAddress(1, "127.0.0.1", 1))) as consumer:
        await asyncio.sleep(0)
        assert consumer.machine.state is ConsumerState.CONNECTING
