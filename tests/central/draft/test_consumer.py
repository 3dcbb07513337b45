"""The consumer's machine of the draft, procedure by procedure; the names are those of the document."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from kcoord_wire.central.draft import events
from kcoord_wire.central.draft.consumer import ConsumerState, DraftConsumer
from kcoord_wire.central.draft.events import CentralError, Fence, FetchersStopped, Partition
from kcoord_wire.kernel import machines
from kcoord_wire.kernel.machines import BrokerAddress, Tick
from kcoord_wire.messages import central as m

A, B, C = BrokerAddress(1, "a", 9092), BrokerAddress(2, "b", 9092), BrokerAddress(3, "c", 9092)
P0, P1 = Partition("orders", "1-0"), Partition("orders", "1-1")
SETTINGS = events.ConsumerSettings("g", "c-1", '{"orders": 1}', (A, B))
TIMEOUT, BACKOFF = SETTINGS.session_timeout_ms, SETTINGS.reconnect_backoff_ms
ASKS = m.ClusterMetadataRequest(groups=[m.ClusterMetadataRequestGroup(group_id="g")])
PING = m.PingRequest(consumer_id="c-1")
STOP = m.StopFetcherRequest(consumer_id="c-1")


def fenced(request: Any, epoch: int, generation: int = 1) -> Any:
    kinds = {
        m.PingRequest: m.PingRequestFence,
        m.StopFetcherRequest: m.StopFetcherRequestFence,
        m.StartFetcherRequest: m.StartFetcherRequestFence,
    }
    return replace(request, fence=[kinds[type(request)](epoch=epoch, generation=generation)])


def start(offsets: dict[Partition, int], brokers: Sequence[BrokerAddress] = ()) -> m.StartFetcherRequest:
    parts = [
        m.StartFetcherRequestPartition(topic=partition.topic, partition=partition.name, offset=offset)
        for partition, offset in offsets.items()
    ]
    return m.StartFetcherRequest(
        consumer_id="c-1",
        ownership_info=[m.StartFetcherRequestOwnership(consumer_thread_id="c-1-0", assigned_parts=parts)],
        brokers_info=[m.StartFetcherRequestBroker(id=b.broker_id, host=b.host, port=b.port) for b in brokers],
    )


def metadata(coordinator: int, brokers: Sequence[BrokerAddress] = (A, B)) -> m.ClusterMetadataResponse:
    return m.ClusterMetadataResponse(
        coordinator_id=coordinator,
        brokers_info=[m.ClusterMetadataResponseBroker(id=b.broker_id, host=b.host, port=b.port) for b in brokers],
    )


class Host:
    """Hands events to a machine and keeps its effects of the last event, the notes apart."""

    def __init__(self, **settings: Any) -> None:
        self.machine = DraftConsumer(replace(SETTINGS, **settings))
        self.now = 0
        self.notes: list[machines.LogEvent] = []
        self.effects: list[Any] = []
        self.running = False

    def deliver(self, event: Any, *, after_ms: int = 0) -> list[Any]:
        self.now += after_ms
        effects = self.machine.handle(event, self.now)
        self.notes += [effect for effect in effects if isinstance(effect, machines.LogEvent)]
        self.effects = [effect for effect in effects if not isinstance(effect, machines.LogEvent)]
        return self.effects

    @property
    def connection(self) -> int:
        """The newest."""
        return self.machine._last_connection

    def receive(self, message: Any, *, after_ms: int = 0) -> list[Any]:
        return self.deliver(machines.Received(self.connection, message), after_ms=after_ms)

    def stop(self, **positions: int) -> list[Any]:
        """The fetchers have stopped; ``p0=7`` says where."""
        named = {"p0": P0, "p1": P1}
        return self.deliver(FetchersStopped({named[name]: offset for name, offset in positions.items()}))

    def tick(self) -> list[Any]:
        """Advance to the deadline."""
        deadline = self.machine.deadline
        assert deadline is not None
        self.now = max(self.now, deadline)
        return self.deliver(Tick())

    def connect(self) -> list[Any]:
        return self.deliver(machines.Connected(self.connection))

    def asking(self) -> Host:
        """Go through consumerStartup up to step 2."""
        self.tick()
        self.connect()
        return self

    def registering(self) -> Host:
        """Go through it up to step 4; broker 2 is the coordinator."""
        self.asking().receive(metadata(2))
        self.connect()
        return self

    def register(self) -> Host:
        """Go through all of it."""
        self.registering()
        self.receive(m.RegisterConsumerResponse())
        assert self.machine.state is ConsumerState.REGISTERED
        return self

    def own(self, **offsets: int) -> Host:
        """Register and start fetchers."""
        self.register()
        named = {"p0": P0, "p1": P1}
        self.receive(start({named[name]: offset for name, offset in offsets.items()}))
        return self

    def what(self) -> list[str]:
        return [note.what for note in self.notes]


def sent(effects: list[Any]) -> list[Any]:
    return [effect.message for effect in effects if isinstance(effect, machines.Send)]


def kinds(effects: list[Any]) -> list[str]:
    return [type(effect).__name__ for effect in effects]


# ---- consumerStartup


def test_consumer_startup_1_takes_brokers_round_robin() -> None:
    host = Host()
    assert host.machine.deadline == 0
    tried = []
    for _ in range(2):
        assert host.tick() == [machines.Connect(host.connection, A)]
        assert host.deliver(machines.Disconnected(host.connection)) == [machines.Connect(host.connection, B)]
        assert host.deliver(machines.Disconnected(host.connection)) == []
        tried.append(host.now)
    assert tried == [0, BACKOFF]
    note = host.notes[0]
    assert (note.level, note.what, note.facts["broker"]) == (logging.ERROR, "broker not reached", "1 at a:9092")


def test_consumer_startup_1_1_a_broker_that_never_connects() -> None:
    host = Host()
    host.tick()
    first = host.connection
    assert host.tick() == [machines.Close(first), machines.Connect(host.connection, B)]
    assert host.now == TIMEOUT


def test_consumer_startup_1_2_retries_until_it_is_shut_down() -> None:
    host = Host()
    for _ in range(50):
        host.tick()
        host.deliver(machines.Disconnected(host.connection))
        host.deliver(machines.Disconnected(host.connection))
    assert host.machine.state is ConsumerState.WAITING
    assert host.deliver(machines.Shutdown()) == [machines.Ended()]
    assert host.machine.deadline is None


def test_consumer_startup_2_no_answer_leads_to_the_next_broker() -> None:
    host = Host()
    host.tick()
    assert host.connect() == [machines.Send(host.connection, ASKS)]
    assert host.tick() == [machines.Close(host.connection)]
    assert host.tick() == [machines.Connect(host.connection, B)]


def test_consumer_startup_3_replaces_its_list_of_brokers() -> None:
    host = Host().asking()
    host.receive(metadata(-1, [C, B]))
    assert host.tick() == [machines.Connect(host.connection, C)]


def test_consumer_startup_3_keeps_a_bounded_list_of_brokers() -> None:
    host = Host().asking()
    host.receive(metadata(-1, [A] * 32_000))
    host.tick()
    for _ in range(999):
        assert kinds(host.deliver(machines.Disconnected(host.connection))) == ["Connect"]
    assert host.deliver(machines.Disconnected(host.connection)) == []


def test_consumer_startup_3_begins_anew_if_no_broker_is_left() -> None:
    host = Host(bootstrap=(A,)).asking()
    host.receive(metadata(-1, [C]))
    host.tick()
    host.deliver(machines.Disconnected(host.connection))
    assert host.tick() == [machines.Connect(host.connection, A)]


@pytest.mark.parametrize("answer", [metadata(-1), metadata(9), m.ClusterMetadataResponse(error_code=16)])
def test_consumer_startup_3_without_coordinator_tries_again(answer: Any) -> None:
    host = Host().asking()
    assert host.receive(answer) == [machines.Close(1)]
    assert (host.machine.state, host.machine.deadline) == (ConsumerState.WAITING, BACKOFF)


@pytest.mark.parametrize(("is_fenced", "fence"), [(True, []), (False, None)])
def test_consumer_startup_4_registers_at_the_coordinator(is_fenced: bool, fence: list[Any] | None) -> None:
    host = Host(is_fenced=is_fenced).asking()
    assert host.receive(metadata(2)) == [machines.Close(1), machines.Connect(2, B)]
    (request,) = sent(host.connect())
    assert request == m.RegisterConsumerRequest(
        group_id="g",
        consumer_id="c-1",
        topic_count='{"orders": 1}',
        auto_commit=True,
        auto_offset_rest="smallest",
        session_timeout_ms=TIMEOUT,
        fence=fence,
    )


def test_consumer_startup_4_the_coordinator_cannot_be_reached() -> None:
    host = Host().asking()
    host.receive(metadata(2))
    assert host.deliver(machines.Disconnected(2)) == []
    assert host.tick() == [machines.Connect(3, B)]


def test_consumer_startup_5_waits_for_requests() -> None:
    host = Host().register()
    assert host.machine.deadline == host.now + TIMEOUT
    assert host.what() == ["registered"]


def test_consumer_startup_5_after_an_error_it_restarts() -> None:
    host = Host().registering()
    assert host.receive(m.RegisterConsumerResponse(error_code=CentralError.DUPLICATE_CONSUMER_ID)) == [
        machines.Close(2)
    ]
    assert host.notes[-1].facts["error"] == "DUPLICATE_CONSUMER_ID"
    assert host.machine.deadline == BACKOFF
    assert host.tick() == [machines.Connect(3, B)]


def test_consumer_startup_5_waits_longer_for_the_older_answer() -> None:
    """The coordinator of section 2 answers when all consumers have registered, or their session timeouts are over."""
    host = Host().registering()
    assert host.machine.deadline == 2 * TIMEOUT
    assert host.tick() == [machines.Close(2)]


def test_consumer_startup_attempts_are_spaced_by_the_backoff() -> None:
    """Against a coordinator that registers it and closes."""
    host = Host()
    for attempt in range(3):
        host.register()
        assert host.now == attempt * BACKOFF
        host.deliver(machines.Disconnected(host.connection))


def test_section_2_register_consumer_response_has_the_partitions() -> None:
    host = Host().registering()
    part = m.RegisterConsumerResponsePartition(topic="orders", partition="1-0", offset=5)
    owned = m.RegisterConsumerResponseOwnership(consumer_thread_id="c-1-0", assigned_parts=[part])
    effects = host.receive(m.RegisterConsumerResponse(ownership_info=[owned]))
    assert effects == [events.StartFetchers({"c-1-0": {P0: 5}}, (A, B), None), events.Assigned(frozenset({P0}))]


def test_section_2_a_closed_socket_stops_fetchers_first() -> None:
    host = Host().own(p0=5)
    assert host.deliver(machines.Disconnected(host.connection)) == [events.StopFetchers()]
    assert host.machine.deadline is None  # nothing is registered while a fetcher runs
    assert host.stop(p0=9) == [events.Assigned(frozenset())]
    assert kinds(host.tick()) == ["Connect"]


# ---- section 8, point 5, and section 10: silence


def test_section_10_silence_stops_fetchers_closes_rediscovers() -> None:
    host = Host().own(p0=5)
    connection = host.connection
    assert host.tick() == [events.StopFetchers()]
    assert host.now == TIMEOUT
    assert host.notes[-1].what == "coordinator suspected"
    assert host.stop(p0=5) == [events.Assigned(frozenset()), machines.Close(connection)]
    assert host.tick() == [machines.Connect(connection + 1, B)]


@pytest.mark.parametrize("request_", [PING, STOP, start({})])
def test_section_10_any_request_ends_the_silence(request_: Any) -> None:
    host = Host().register()
    host.receive(request_, after_ms=TIMEOUT - 1)
    assert host.machine.deadline == host.now + TIMEOUT


def test_section_8_5_after_a_pause_the_deadline_comes_first() -> None:
    """The ping was in the socket when the process stopped; the coordinator may have given the partition away since."""
    host = Host().own(p0=5)
    assert host.receive(PING, after_ms=TIMEOUT) == [events.StopFetchers()]
    assert host.machine.state is ConsumerState.LEAVING


def test_section_8_5_after_a_pause_no_fetcher_starts() -> None:
    host = Host().register()
    assert host.receive(start({P0: 5}), after_ms=TIMEOUT) == [machines.Close(host.connection)]


def test_section_10_requests_of_an_old_connection_are_dropped() -> None:
    host = Host().own(p0=5)
    old = host.connection
    host.tick()
    host.stop(p0=5)
    host.register()
    assert host.deliver(machines.Received(old, start({P0: 5}))) == []
    assert host.deliver(machines.Disconnected(old)) == []
    assert host.machine.state is ConsumerState.REGISTERED


# ---- handlePingRequest


def test_handle_ping_request_3_1_without_auto_commit() -> None:
    host = Host(auto_commit=False).own(p0=5)
    assert sent(host.receive(PING)) == [m.PingResponse(consumer_id="c-1", offset_info=None)]
    host.receive(STOP)
    assert sent(host.stop(p0=9)) == [m.StopFetcherResponse(consumer_id="c-1")]


def test_handle_ping_request_3_2_with_offsets() -> None:
    host = Host().own(p0=5, p1=8)
    host.deliver(events.Progress({P0: 7, Partition("orders", "1-2"): 9}))  # the latter is of others
    assert sent(host.receive(PING)) == [
        m.PingResponse(
            consumer_id="c-1",
            offset_info=[
                m.PingResponseOffset(topic="orders", partition="1-0", offset=7),
                m.PingResponseOffset(topic="orders", partition="1-1", offset=8),
            ],
        )
    ]


def test_handle_ping_request_3_2_an_unknown_offset_is_not_sent() -> None:
    host = Host().own(p0=-1)
    assert sent(host.receive(PING))[0].offset_info == []


def test_handle_ping_request_while_the_fetchers_stop() -> None:
    host = Host().own(p0=5)
    assert host.receive(STOP) == [events.StopFetchers()]
    assert sent(host.receive(PING))[0].offset_info == [m.PingResponseOffset(topic="orders", partition="1-0", offset=5)]


def test_handle_ping_request_1_1_ends_without_auto_commit() -> None:
    host = Host(auto_commit=False).own(p0=5)
    connection = host.connection
    assert host.deliver(machines.Shutdown()) == []
    assert host.receive(PING) == [
        machines.Send(connection, m.PingResponse(consumer_id="c-1")),
        events.StopFetchers(),
    ]
    assert host.stop(p0=5) == [events.Assigned(frozenset()), machines.Close(connection), machines.Ended()]
    assert host.machine.state is ConsumerState.ENDED
    assert host.deliver(PING) == []


def test_handle_ping_request_1_2_waits_for_the_next_ping() -> None:
    host = Host().own(p0=5)
    connection = host.connection
    host.deliver(machines.Shutdown())
    assert kinds(host.receive(PING)) == ["Send"]
    assert kinds(host.receive(replace(PING, num_retries=1))) == ["Send"], "a retry is no sign"
    assert host.machine.state is ConsumerState.REGISTERED
    assert host.receive(PING) == [events.StopFetchers()]
    assert host.stop(p0=5) == [events.Assigned(frozenset()), machines.Close(connection), machines.Ended()]


def test_handle_ping_request_1_shutdown_ends_if_the_ping_fails() -> None:
    """The coordinator has died: there is no ping to wait for."""
    host = Host().own(p0=5)
    host.deliver(machines.Shutdown())
    host.tick()
    assert host.stop(p0=5)[-1] == machines.Ended()


def test_handle_ping_request_1_a_second_shutdown_waits_for_none() -> None:
    host = Host().own(p0=5)
    host.deliver(machines.Shutdown())
    assert host.deliver(machines.Shutdown()) == [events.StopFetchers()]
    assert host.stop()[-1] == machines.Ended()


def test_handle_ping_request_2_out_of_range_reconnects() -> None:
    host = Host().own(p0=5, p1=8)
    connection = host.connection
    assert host.deliver(events.FetcherFailed(P0, CentralError.OFFSET_OUT_OF_RANGE)) == []
    assert host.receive(PING) == [events.StopFetchers()]
    assert host.notes[-1].facts["partitions"] == "orders/1-0"
    assert host.stop(p0=5, p1=9) == [events.Assigned(frozenset()), machines.Close(connection)]
    assert kinds(host.tick()) == ["Connect"]


@pytest.mark.parametrize(("reset", "offset"), [("smallest", -2), ("largest", -1)])
def test_handle_ping_request_2_the_same_offset_is_not_retried(reset: str, offset: int) -> None:
    """Otherwise each registration would lead to the next: the coordinator has no other offset."""
    host = Host(auto_offset_reset=reset).own(p0=5)
    host.deliver(events.FetcherFailed(P0, CentralError.OFFSET_OUT_OF_RANGE))
    host.receive(PING)
    host.stop(p0=5)
    host.register()
    (effect,) = [each for each in host.receive(start({P0: 5})) if isinstance(each, events.StartFetchers)]
    assert effect.threads == {"c-1-0": {P0: offset}}
    host.deliver(events.Progress({P0: 100}))
    host.receive(STOP)
    host.stop(p0=100)
    (effect,) = [each for each in host.receive(start({P0: 100})) if isinstance(each, events.StartFetchers)]
    assert effect.threads == {"c-1-0": {P0: 100}}


def test_handle_ping_request_2_a_rebalance_comes_before_the_ping() -> None:
    """Then the fetchers stop anyway, and the connection stays."""
    host = Host().own(p0=5)
    host.deliver(events.FetcherFailed(P0, CentralError.OFFSET_OUT_OF_RANGE))
    host.receive(STOP)
    host.stop(p0=5)
    assert kinds(host.receive(PING)) == ["Send"]


def test_a_fetcher_with_a_stale_fence_rediscovers_at_once() -> None:
    host = Host().own(p0=5)
    assert host.deliver(events.FetcherFailed(P0, CentralError.STALE_EPOCH)) == [events.StopFetchers()]
    assert host.machine.state is ConsumerState.LEAVING
    facts = host.notes[-1].facts
    assert (facts["partition"], facts["error"]) == ("orders/1-0", "STALE_EPOCH")


# ---- StopFetcherRequest


def test_handle_stop_fetcher_request_stops_then_reports_once() -> None:
    """Another consumer may have the partition after the answer, and may be further."""
    host = Host().own(p0=5)
    assert host.receive(STOP) == [events.StopFetchers()]
    offsets = [m.StopFetcherResponseOffset(topic="orders", partition="1-0", offset=9)]
    assert host.stop(p0=9) == [
        events.Assigned(frozenset()),
        machines.Send(host.connection, m.StopFetcherResponse(consumer_id="c-1", offset_info=offsets)),
    ]
    assert sent(host.receive(PING))[0].offset_info == []
    assert sent(host.receive(STOP))[0].offset_info == []


def test_handle_stop_fetcher_request_without_fetchers() -> None:
    host = Host().register()
    assert sent(host.receive(STOP)) == [m.StopFetcherResponse(consumer_id="c-1", offset_info=[])]


def test_handle_stop_fetcher_request_twice_gets_two_answers() -> None:
    """The coordinator's watcher expired, and it has begun the rebalance again."""
    host = Host().own(p0=5)
    host.receive(STOP)
    assert host.receive(STOP) == []
    assert [len(each.offset_info) for each in sent(host.stop(p0=5))] == [1, 0]


def test_handle_stop_fetcher_request_endlessly_ends_in_a_close() -> None:
    host = Host().own(p0=5)
    for _ in range(17):
        host.receive(STOP)
    assert host.what()[-1] == "too many requests while the fetchers stop"
    assert host.stop()[-1] == machines.Close(host.connection)


# ---- handleStartFetcherRequest


def test_handle_start_fetcher_request_2_to_5() -> None:
    host = Host().register()
    effects = host.receive(fenced(start({P0: 5, P1: -1}, [A, B, C]), 3, 2))
    assert effects == [
        events.StartFetchers({"c-1-0": {P0: 5, P1: -2}}, (A, B, C), Fence(3, 2)),
        events.Assigned(frozenset({P0, P1})),
        machines.Send(host.connection, m.StartFetcherResponse(consumer_id="c-1")),
    ]


def test_handle_start_fetcher_request_updates_the_brokers() -> None:
    host = Host().register()
    host.receive(start({}, [C]))
    host.deliver(machines.Disconnected(host.connection))
    host.stop()
    assert host.tick() == [machines.Connect(host.connection, C)]


def test_handle_start_fetcher_request_to_running_fetchers() -> None:
    host = Host().own(p0=5)
    assert host.receive(start({P1: 6})) == [events.StopFetchers()]
    assert kinds(host.stop(p0=9)) == ["Assigned", "StartFetchers", "Assigned", "Send"]
    assert host.machine.positions == {P1: 6}


def test_handle_start_fetcher_request_while_fetchers_stop() -> None:
    host = Host().own(p0=5)
    host.receive(STOP)
    assert host.receive(start({P1: 6})) == []
    assert kinds(host.stop(p0=9)) == ["Assigned", "Send", "StartFetchers", "Assigned", "Send"]


def test_handle_start_fetcher_request_twice_while_fetchers_stop() -> None:
    host = Host().own(p0=5)
    for request in (STOP, start({P1: 6}), STOP, start({P0: 9})):
        host.receive(request)
    assert kinds(host.stop(p0=9)) == ["Assigned", "Send", "StartFetchers", "Assigned", "Send", "StopFetchers"]
    assert kinds(host.stop(p1=6)) == ["Assigned", "Send", "StartFetchers", "Assigned", "Send"]
    assert host.machine.positions == {P0: 9}


def test_handle_start_fetcher_request_with_a_partition_twice() -> None:
    host = Host().register()
    request = start({P0: 5})
    request.ownership_info.append(replace(request.ownership_info[0], consumer_thread_id="c-1-1"))
    assert host.receive(request) == [machines.Close(host.connection)]
    assert host.notes[-1].what == "assignment names a partition twice"


# ---- the coordinator is not the one, or does what it must not


@pytest.mark.parametrize(
    ("request_", "answer"),
    [(PING, m.PingResponse), (STOP, m.StopFetcherResponse), (start({P0: 1}), m.StartFetcherResponse)],
)
def test_a_request_for_another_consumer_is_refused(request_: Any, answer: type) -> None:
    host = Host().register()
    effects = host.receive(replace(request_, consumer_id="c-2"))
    expected = answer(error_code=CentralError.UNKNOWN_CONSUMER_ID, consumer_id="c-1")
    assert effects == [machines.Send(host.connection, expected), machines.Close(host.connection)]
    assert (host.notes[-1].level, host.notes[-1].facts["addressee"]) == (logging.ERROR, "c-2")


@pytest.mark.parametrize("request_", [PING, *(fenced(each, 3) for each in (PING, STOP, start({P0: 1})))])
def test_a_lower_epoch_or_none_is_refused(request_: Any) -> None:
    host = Host().register()
    host.receive(fenced(start({P1: 5}), 4))
    effects = host.receive(request_)
    assert sent(effects)[0].error_code == CentralError.STALE_EPOCH
    assert effects[1:] == [events.StopFetchers()]
    facts = host.notes[-1].facts
    assert (facts["request"], facts["error"], facts["known"].epoch) == (type(request_).__name__, "STALE_EPOCH", 4)
    assert host.stop()[-1] == machines.Close(host.connection)


def test_the_epoch_is_remembered_from_one_coordinator_to_another() -> None:
    host = Host().register()
    host.receive(fenced(PING, 4, 2))
    host.deliver(machines.Disconnected(host.connection))
    host.tick()
    host.connect()
    host.receive(metadata(1))
    (request,) = sent(host.connect())
    assert request.fence == [m.RegisterConsumerRequestFence(epoch=4, generation=2)]
    host.receive(m.RegisterConsumerResponse())
    assert sent(host.receive(fenced(start({P0: 5}), 3)))[0].error_code == CentralError.STALE_EPOCH


def test_without_the_extension_a_stale_coordinator_is_obeyed() -> None:
    """Which is why the extension exists."""
    host = Host(is_fenced=False).register()
    host.receive(fenced(PING, 4))
    assert "StartFetchers" in kinds(host.receive(fenced(start({P0: 5}), 3)))


def test_an_unexpected_message_closes_the_connection() -> None:
    host = Host().register()
    assert host.receive(m.ClusterMetadataResponse()) == [machines.Close(host.connection)]
    assert host.notes[-1].facts["message"] == "ClusterMetadataResponse"


def test_messages_while_the_fetchers_stop_for_good_are_dropped() -> None:
    host = Host().own(p0=5)
    host.tick()
    assert host.receive(start({P0: 5})) == []
    assert host.deliver(machines.Disconnected(host.connection)) == []
    assert host.stop(p0=5) == [events.Assigned(frozenset())]


def test_requests_of_a_former_connection_are_not_answered() -> None:
    host = Host().own(p0=5)
    host.receive(STOP)
    host.receive(STOP)
    host.deliver(machines.Disconnected(host.connection))
    host.stop(p0=5)
    host.register()
    assert kinds(host.receive(STOP)) == ["Send"]


def test_late_reports_of_fetchers_are_ignored() -> None:
    host = Host().register()
    assert host.stop(p0=5) == []
    assert host.deliver(events.FetcherFailed(P0, CentralError.STALE_EPOCH)) == []
    assert host.deliver(events.Progress({P0: 5})) == []
    assert host.machine.positions == {}


def test_an_offset_that_was_out_of_range_stays_so() -> None:
    """The coordinator sends it again while other partitions are out of range: no ping is answered meanwhile."""
    host = Host().own(p0=5, p1=8)
    host.deliver(events.FetcherFailed(P0, CentralError.OFFSET_OUT_OF_RANGE))
    host.receive(PING)
    host.stop(p0=5, p1=8)
    host.register()
    host.receive(start({P0: 5, P1: 8}))
    host.deliver(events.Progress({P0: 100}))
    host.deliver(events.FetcherFailed(P1, CentralError.OFFSET_OUT_OF_RANGE))
    host.receive(PING)
    host.stop(p0=100, p1=8)
    host.register()
    (effect,) = [each for each in host.receive(start({P0: 5, P1: 8})) if isinstance(each, events.StartFetchers)]
    assert effect.threads == {"c-1-0": {P0: -2, P1: -2}}
