"""The draft's coordinator on a ZooKeeper in memory: election, start-up, its consumers, failover, its status.

Registration, pings, failure, and messages that no consumer sends; what a new coordinator does with the groups of the
former one (section 2, "Co-ordinator").
"""

from __future__ import annotations

from typing import Any

import pytest

from kcoord_wire.central.draft.coordinator import DraftCoordinator
from kcoord_wire.central.draft.events import CentralError, CoordinatorSettings, Fence, Partition
from kcoord_wire.central.draft.subscription import format_topics, format_wildcard
from kcoord_wire.kernel.machines import BrokerAddress, Close, Received, Send
from kcoord_wire.messages import central as m
from kcoord_wire.zookeeper.layout import COORDINATOR, COORDINATOR_EPOCH, COORDINATORS, GroupRecord, format_group
from kcoord_wire.zookeeper.requests import Create, Delete, Fired, SessionChanged, SessionState, SetData
from tests.support.draft_cluster import Consumer, DraftCluster


def metadata(cluster: DraftCluster, broker_id: int) -> m.ClusterMetadataResponse:
    consumer = Consumer(cluster, cluster.brokers[broker_id], "asks")
    consumer.send(m.ClusterMetadataRequest())
    (answer,) = consumer.inbox
    assert isinstance(answer, m.ClusterMetadataResponse)
    return answer


def fetched(cluster: DraftCluster, broker_id: int) -> list[str]:
    """Return the paths that a broker has read with a watch."""
    requests = [ask.request for ask in cluster.brokers[broker_id].asks]
    return [request.path for request in requests if getattr(request, "watch", False)]


def test_coordinator_startup_watches_topics_and_partitions() -> None:
    cluster = DraftCluster(orders=2)
    cluster.add_topic("payments", 1, broker_id=2)
    broker = cluster.add_broker(2)
    assert broker.machine.candidates[0].term is None
    cluster.zookeeper.write(Delete(COORDINATOR))
    cluster.brokers[1].is_paused = True
    cluster.run(0)
    assert broker.machine.candidates[0].term is not None
    watched = fetched(cluster, 2)
    assert {f"/brokers/topics{path}" for path in ("", "/orders", "/orders/1", "/payments", "/payments/2")} <= set(
        watched
    )
    assert broker.machine.candidates[0].term.watches.partitions == {"orders": ("1-0", "1-1"), "payments": ("2-0",)}


def test_coordinator_startup_commits_and_pings() -> None:
    cluster = DraftCluster(orders=1, offset_commit_interval_ms=500)
    consumer = cluster.consumer("a")
    consumer.positions = dict.fromkeys(consumer.started_with, 7)
    cluster.run(2_000)
    assert cluster.committed() == {}
    cluster.run(500)
    assert (cluster.committed(), len(consumer.got(m.PingRequest))) == ({"1-0": 7}, 1)


def test_every_broker_names_the_coordinator() -> None:
    cluster = DraftCluster()
    cluster.add_broker(2)
    for broker_id in (1, 2):
        answer = metadata(cluster, broker_id)
        assert (answer.error_code, answer.coordinator_id) == (0, 1)
        assert [(broker.id, broker.host, broker.port) for broker in answer.brokers_info] == [
            (1, "host", 9_001),
            (2, "host", 9_002),
        ]


def test_a_broker_without_zookeeper_knows_no_coordinator() -> None:
    machine = DraftCoordinator(BrokerAddress(1, "host", 1))
    (sent,) = machine.handle(Received(1, m.ClusterMetadataRequest()), 0)
    assert sent == Send(1, m.ClusterMetadataResponse(coordinator_id=-1))


def test_another_broker_refuses_consumers() -> None:
    cluster = DraftCluster()
    cluster.add_broker(2)
    consumer = cluster.consumer("a", broker_id=2)
    assert consumer.inbox == [m.RegisterConsumerResponse(error_code=CentralError.NOT_COORDINATOR)]
    assert consumer.is_open


def test_the_coordinators_end_elects_another() -> None:
    cluster = DraftCluster()
    cluster.add_broker(2)
    cluster.brokers[1].is_paused = True
    cluster.run(7_000)
    assert cluster.brokers[2].machine.epochs_at(cluster.now) == {0: 2}
    assert cluster.data(COORDINATOR_EPOCH) == b"2"
    assert metadata(cluster, 2).coordinator_id == 2
    assert [broker.id for broker in metadata(cluster, 2).brokers_info] == [2]


def test_a_paused_coordinator_sends_nothing_when_it_goes_on() -> None:
    """Before it reads its sockets, what it does is limited by its lease alone."""
    cluster = DraftCluster(orders=1)
    consumer = cluster.consumer("a")
    cluster.add_broker(2)
    cluster.brokers[1].is_paused = True
    cluster.run(7_000)
    sent = len(consumer.inbox)
    consumer.send(m.PingResponse(consumer_id="a", offset_info=[]))
    assert (len(consumer.inbox), consumer.is_open) == (sent, False)
    assert cluster.brokers[1].noted("resigned")[0]["reason"] == "lease expired"
    cluster.brokers[1].is_paused = False
    cluster.run(1_000)
    assert metadata(cluster, 1).coordinator_id == 2


def test_a_coordinator_that_was_replaced_cannot_write() -> None:
    """Its lease still lasts, but ZooKeeper compares the epoch."""
    cluster = DraftCluster(orders=1, offset_commit_interval_ms=50)
    consumer = cluster.consumer("a")
    consumer.positions = dict.fromkeys(consumer.started_with, 7)
    cluster.run(1_999)
    cluster.zookeeper.write(SetData(COORDINATOR_EPOCH, b"2"))
    cluster.run(100)
    assert (cluster.committed(), consumer.is_open) == ({}, False)
    assert cluster.brokers[1].noted("resigned")[0]["reason"] == "another coordinator has been elected"


def test_handle_new_session_resets_and_elects_again() -> None:
    cluster = DraftCluster(orders=2)
    consumer = cluster.consumer("a")
    broker = cluster.brokers[1]
    cluster.zookeeper.expire(broker.link.registry.session_id)
    cluster.run(200)
    assert not consumer.is_open
    assert [facts["epoch"] for facts in broker.noted("elected")] == [1, 2]
    assert len(broker.noted("new session")) == 1
    assert broker.machine.candidates[0].term is not None
    assert [(group.members, group.awaited) for group in broker.machine.candidates[0].term.groups.by_id.values()] == [
        ({}, {"a"})
    ]
    registration = cluster.zookeeper.node("/brokers/ids/1")
    assert registration is not None
    assert registration.ephemeral_owner == broker.link.registry.session_id


def test_handle_new_session_without_a_word_of_the_old_ones_end() -> None:
    cluster = DraftCluster()
    consumer = cluster.consumer("a")
    broker = cluster.brokers[1]
    broker.handle(SessionChanged(SessionState.CONNECTED, 99, 6_000))
    assert not consumer.is_open
    assert broker.machine.candidates[0].term is None
    assert broker.noted("resigned")[0]["reason"] == "new session"


def test_a_cut_connection_ends_the_term_at_once() -> None:
    cluster = DraftCluster()
    consumer = cluster.consumer("a")
    cluster.brokers[1].link.cut(cluster.now)
    assert (consumer.is_open, metadata(cluster, 1).coordinator_id) == (False, -1)
    cluster.brokers[1].link.heal()
    cluster.run(1_000)
    assert metadata(cluster, 1).coordinator_id == 1
    assert cluster.brokers[1].machine.candidates[0].leadership.epoch == 2


@pytest.mark.parametrize(
    "message",
    [m.PingResponse(consumer_id="a"), m.StopFetcherResponse(consumer_id="a"), m.PingRequest(consumer_id="a")],
    ids=lambda message: type(message).__name__,
)
@pytest.mark.parametrize("broker_id", [1, 2])
def test_a_message_before_the_registration_closes(message: Any, broker_id: int) -> None:
    cluster = DraftCluster()
    cluster.add_broker(2)
    stranger = Consumer(cluster, cluster.brokers[broker_id], "a")
    stranger.send(message)
    assert not stranger.is_open
    assert cluster.brokers[broker_id].noted("unexpected message")[0]["message"] == type(message).__name__


def test_events_of_no_interest_change_nothing() -> None:
    machine = DraftCoordinator(BrokerAddress(1, "host", 1))
    assert machine.handle(Fired("/elsewhere"), 0) == []
    assert machine.deadline is None
    assert machine.handle(Received(5, m.StartFetcherResponse()), 0)[-1] == Close(5)


def test_two_brokers_with_one_id_do_not_depose_each_other() -> None:
    cluster = DraftCluster()
    first = cluster.brokers[1]
    second = cluster.add_broker(1, "elsewhere", under=2)
    cluster.run(5_000)
    epoch = first.machine.candidates[0].leadership.epoch
    cluster.run(20_000)
    assert (first.machine.candidates[0].leadership.epoch, second.machine.candidates[0].leadership.epoch) == (
        epoch,
        None,
    )
    first.is_paused = True
    cluster.run(10_000)
    assert second.machine.candidates[0].term is not None
    first.is_paused = False
    cluster.run(5_000)
    epoch = second.machine.candidates[0].leadership.epoch
    cluster.run(20_000)
    assert (first.machine.candidates[0].leadership.epoch, second.machine.candidates[0].leadership.epoch) == (
        None,
        epoch,
    )


GROUPS = [f"g{number}" for number in range(8)]


@pytest.fixture
def several() -> DraftCluster:
    """Two brokers, and four subsets of the groups."""
    cluster = DraftCluster(orders=2, coordinators=4)
    cluster.run(1_000)
    cluster.add_broker(2)
    cluster.run(3_000)
    return cluster


def coordinator_of(cluster: DraftCluster, group: str) -> int:
    consumer = Consumer(cluster, cluster.brokers[1], "asks")
    consumer.send(m.ClusterMetadataRequest(groups=[m.ClusterMetadataRequestGroup(group_id=group)]))
    answer: m.ClusterMetadataResponse = consumer.inbox[0]
    return answer.coordinator_id


def test_every_broker_coordinates_a_subset_of_the_groups(several: DraftCluster) -> None:
    """Section 1; and as many of them as the others."""
    subsets = [set(broker.machine.epochs_at(several.now)) for broker in several.brokers.values()]
    assert ([len(each) for each in subsets], subsets[0] | subsets[1]) == ([2, 2], {0, 1, 2, 3})
    assert several.brokers[1].noted("resigned")[0]["reason"] == "another broker coordinates fewer subsets"
    assert {coordinator_of(several, group) for group in GROUPS} == {1, 2}


def test_a_group_has_one_coordinator(several: DraftCluster) -> None:
    for group in GROUPS:
        coordinator = coordinator_of(several, group)
        other = several.consumer("a", broker_id=3 - coordinator, group=group)
        assert other.inbox == [m.RegisterConsumerResponse(error_code=CentralError.NOT_COORDINATOR)]
        assert len(several.consumer("a", broker_id=coordinator, group=group).started_with) == 2
    for broker_id, broker in several.brokers.items():
        groups = {group.group_id for group in broker.machine.status(str, several.now).groups}
        assert groups == {group for group in GROUPS if coordinator_of(several, group) == broker_id}


def test_who_names_no_group_finds_its_coordinator_by_going_round(several: DraftCluster) -> None:
    """As the draft draws ClusterMetadata; a broker that coordinates nothing names one that does."""
    assert [metadata(several, broker_id).coordinator_id for broker_id in (1, 2)] == [1, 2]
    for number in range(3, 6):
        several.add_broker(number)
    several.run(3_000)
    idle = [number for number, broker in several.brokers.items() if not broker.machine.epochs_at(several.now)]
    assert len(idle) == 1
    assert metadata(several, idle[0]).coordinator_id not in (-1, *idle)


def test_the_groups_of_a_broker_that_ends_are_taken_over(several: DraftCluster) -> None:
    """Each candidate reads those of its subset, and no others."""
    for each in GROUPS:
        several.consumer("a", broker_id=coordinator_of(several, each), group=each)
    group = next(group for group in GROUPS if coordinator_of(several, group) == 2)
    several.brokers[2].is_paused = True
    machine = several.brokers[1].machine
    while len(machine.epochs_at(several.now)) < 4:
        several.run(100)
    for candidate in machine.candidates:
        assert candidate.term is not None
        own = {each for each in GROUPS if machine.candidate_of(each) is candidate}
        assert set(candidate.term.groups.by_id) == own
    assert coordinator_of(several, group) == 1
    assert len(several.consumer("a", group=group).started_with) == 2
    several.brokers[2].is_paused = False
    several.run(5_000)
    assert len(several.brokers[2].machine.epochs_at(several.now)) == 2


def test_a_connection_belongs_to_one_group(several: DraftCluster) -> None:
    """Also where the broker coordinates both, in different subsets."""
    own = [group for group in GROUPS if coordinator_of(several, group) == 1]
    machine = several.brokers[1].machine
    other = next(group for group in own if machine.candidate_of(group) is not machine.candidate_of(own[0]))
    consumer = several.consumer("a", group=own[0])
    consumer.register(group=other)
    assert not consumer.is_open
    assert [len(group.consumers) for group in machine.status(str, several.now).groups] == [0]


def test_the_first_broker_sets_the_number_of_coordinators() -> None:
    """Else a group would have two coordinators."""
    cluster = DraftCluster(coordinators=2)
    cluster.settings = CoordinatorSettings()
    second = cluster.add_broker(2)
    cluster.run(3_000)
    assert [len(broker.machine.epochs_at(cluster.now)) for broker in cluster.brokers.values()] == [1, 1]
    assert second.noted("number of coordinators stays") == [{"broker": 2, "coordinators": 2, "asked": 1}]


def test_what_is_no_number_of_coordinators_elects_none() -> None:
    cluster = DraftCluster()
    for data in (b"", b"0", b"-1", b"1001", b"99999"):
        cluster.zookeeper.write(SetData(COORDINATORS, data))
        broker = cluster.add_broker(2)
        cluster.run(3_000)
        assert broker.machine.candidates == []
        assert "not a number of coordinators" in broker.noted("request to ZooKeeper failed")[0]["reason"]


@pytest.fixture
def cluster() -> DraftCluster:
    return DraftCluster(orders=4, offset_commit_interval_ms=100)


def test_handle_new_group_has_no_members(cluster: DraftCluster) -> None:
    group = cluster.term.handle_new_group("g")
    assert (cluster.term.groups.by_id, group.members) == ({"g": group}, {})


def test_handle_new_group_once_for_all_its_consumers(cluster: DraftCluster) -> None:
    cluster.consumer("a")
    group = cluster.term.groups.by_id["g"]
    cluster.consumer("b")
    assert cluster.term.groups.by_id == {"g": group}
    assert list(group.members) == ["a", "b"]


def test_handle_added_consumer_schedules_its_pings(cluster: DraftCluster) -> None:
    consumer = cluster.consumer("a", session_timeout_ms=3_000)
    cluster.run(999)
    assert consumer.got(m.PingRequest) == []
    cluster.run(1)
    assert consumer.got(m.PingRequest) == [m.PingRequest(consumer_id="a")]


def test_handle_added_consumer_indexes_its_topics(cluster: DraftCluster) -> None:
    cluster.add_topic("ordinary", 1)
    cluster.consumer("a", topics=format_topics({"orders": 2, "missing": 1}))
    cluster.consumer("b", group="w", topics=format_wildcard("ord.*"))
    groups = cluster.term.groups
    interested = {topic: [group.group_id for group in groups.interested_in(topic)] for topic in ("orders", "ordinary")}
    assert interested == {"orders": ["g", "w"], "ordinary": ["w"]}
    assert [group.group_id for group in groups.interested_in("missing")] == ["g"]
    assert list(groups.wildcards) == ["w"]


def test_handle_added_consumer_rebalances_its_group(cluster: DraftCluster) -> None:
    cluster.consumer("a")
    cluster.consumer("b")
    assert cluster.owners() == {"1-0": "a-0", "1-1": "a-0", "1-2": "b-0", "1-3": "b-0"}


def test_a_refused_consumer_may_try_again_on_its_connection(cluster: DraftCluster) -> None:
    cluster.consumer("a")
    other = cluster.consumer("a")
    assert other.inbox == [m.RegisterConsumerResponse(error_code=CentralError.DUPLICATE_CONSUMER_ID)]
    other.consumer_id = "b"
    other.register()
    cluster.run(0)
    assert set(cluster.owners().values()) == {"a-0", "b-0"}


def test_a_consumer_that_knows_a_later_coordinator_is_refused(cluster: DraftCluster) -> None:
    consumer = cluster.consumer("a", fence=[m.RegisterConsumerRequestFence(epoch=2, generation=1)])
    assert consumer.inbox == [m.RegisterConsumerResponse(error_code=CentralError.NOT_COORDINATOR)]


def test_fences_go_to_consumers_that_ask_for_them(cluster: DraftCluster) -> None:
    fenced = cluster.consumer("a", fence=[])
    plain = cluster.consumer("b")
    cluster.run(2_000)
    assert [request.fence for request in plain.inbox[1:]] == [None] * (len(plain.inbox) - 1)
    fences = [Fence(each.fence[0].epoch, each.fence[0].generation) for each in fenced.inbox[1:]]
    assert fences == [Fence(1, 1), Fence(1, 1), Fence(1, 2), Fence(1, 2), Fence(1, 2)]


# ---- failure


def fails_by_disconnect(cluster: DraftCluster, consumer: Consumer) -> None:
    consumer.disconnect()


def fails_by_silence(cluster: DraftCluster, consumer: Consumer) -> None:
    consumer.answers.clear()
    cluster.run(11_999 - cluster.now % 2_000)


@pytest.mark.parametrize("fail", [fails_by_disconnect, fails_by_silence])
def test_handle_consumer_failure(cluster: DraftCluster, fail: Any) -> None:
    """Ping task, socket and registry are gone, and the others own what it had."""
    first, second = cluster.consumer("a"), cluster.consumer("b")
    fail(cluster, first)
    cluster.run(0)
    assert not first.is_open
    pings = len(first.got(m.PingRequest))
    cluster.run(10_000)
    assert len(first.got(m.PingRequest)) == pings
    assert list(cluster.term.groups.by_id["g"].members) == ["b"]
    assert set(cluster.owners().values()) == {"b-0"}
    assert len(second.started_with) == 4


def test_handle_consumer_failure_ends_an_ongoing_rebalance(cluster: DraftCluster) -> None:
    """Step 4: the rebalance does not wait for the failed consumer's time."""
    first = cluster.consumer("a")
    first.answers.discard(m.StopFetcherRequest)
    second = cluster.consumer("b")
    assert second.got(m.StartFetcherRequest) == []
    first.disconnect()
    cluster.run(0)
    assert len(second.started_with) == 4
    assert cluster.brokers[1].noted("rebalance attempt failed")[0]["reason"] == "consumer a failed"


def test_handle_consumer_failure_of_the_last_keeps_its_owners(cluster: DraftCluster) -> None:
    cluster.consumer("a").disconnect()
    cluster.run(1_000)
    assert set(cluster.owners().values()) == {"a-0"}


def test_a_group_without_consumers_is_forgotten(cluster: DraftCluster) -> None:
    cluster.consumer("a", fence=[]).disconnect()
    cluster.run(1_000)
    assert cluster.term.groups.by_id == {}
    again = cluster.consumer("a", fence=[])
    assert again.got(m.StopFetcherRequest)[0].fence[0].generation == 2


# ---- pings


def test_handle_ping_response_records_offsets(cluster: DraftCluster) -> None:
    consumer = cluster.consumer("a")
    consumer.positions = {Partition("orders", "1-2"): 9, Partition("orders", "1-3"): 11}
    cluster.run(2_200)
    assert cluster.committed() == {"1-2": 9, "1-3": 11}


def test_handle_ping_response_clears_the_watcher(cluster: DraftCluster) -> None:
    consumer = cluster.consumer("a")
    cluster.run(2_000)
    assert len(cluster.term.pings.purgatory) == 0
    consumer.answers.discard(m.PingRequest)
    cluster.run(2_000)
    assert len(cluster.term.pings.purgatory) == 1


def test_offsets_of_partitions_of_others_are_not_recorded(cluster: DraftCluster) -> None:
    consumer = cluster.consumer("a")
    cluster.consumer("b")
    consumer.positions = {Partition("orders", "1-3"): 5, Partition("x", "1-0"): 5, Partition("orders", "1-0"): -7}
    cluster.run(2_200)
    assert cluster.committed() == {}
    assert cluster.brokers[1].noted("offsets of partitions of others")[0]["partitions"] == 3
    assert consumer.is_open


def test_without_auto_commit_no_offset_is_recorded(cluster: DraftCluster) -> None:
    consumer = cluster.consumer("a", auto_commit=False)
    consumer.positions = {Partition("orders", "1-0"): 5}
    cluster.run(2_200)
    assert cluster.committed() == {}


# ---- messages of broken consumers


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (m.PingResponse(consumer_id="b"), "in the name of 'b'"),
        (m.StopFetcherResponse(consumer_id="x" * 20_000), "in the name of 'xxx"),
        (m.PingResponse(consumer_id="a"), "PingResponse that was not asked for"),
        (m.StartFetcherResponse(consumer_id="a"), "StartFetcherResponse that was not asked for"),
        (m.PingResponse(consumer_id="a", error_code=102), "with the error 102"),
        (m.PingRequest(consumer_id="a"), "a PingRequest, which a consumer does not send"),
        (m.RegisterConsumerResponse(), "a RegisterConsumerResponse, which a consumer does not send"),
        (m.RegisterConsumerRequest(group_id="h", consumer_id="z"), "a second RegisterConsumer"),
    ],
)
def test_a_broken_consumer_loses_its_connection_alone(cluster: DraftCluster, message: Any, reason: str) -> None:
    broken, other = cluster.consumer("a"), cluster.consumer("b")
    broken.send(message)
    cluster.run(0)
    (noted,) = cluster.brokers[1].noted("consumer failed")
    assert (noted["group"], noted["consumer"]) == ("g", "a")
    assert reason in noted["reason"]
    assert len(noted["reason"]) < 400
    assert (broken.is_open, other.is_open, len(other.started_with)) == (False, True, 4)


def test_messages_after_the_end_of_a_registration_are_strange(cluster: DraftCluster) -> None:
    consumer = cluster.consumer("a")
    consumer.send(m.PingResponse(consumer_id="b"))
    broker = cluster.brokers[1]
    assert (consumer.is_open, broker.noted("unexpected message")) == (False, [])


@pytest.fixture
def pair() -> DraftCluster:
    return DraftCluster(orders=4)


def take_over(pair: DraftCluster) -> None:
    """The first broker is paused until its session has ended, and the second one elected."""
    pair.add_broker(2)
    pair.brokers[1].is_paused = True
    while pair.brokers[2].machine.candidates[0].term is None:
        pair.run(100)


def test_takeover_waits_for_all_former_owners(pair: DraftCluster) -> None:
    for name in ("a", "b"):
        pair.consumer(name)
    take_over(pair)
    third = pair.consumer("c", broker_id=2)
    first = pair.consumer("a", broker_id=2)
    pair.run(1_000)
    assert third.got(m.StartFetcherRequest) == first.got(m.StartFetcherRequest) == []
    second = pair.consumer("b", broker_id=2)
    assert [len(consumer.started_with) for consumer in (first, second, third)] == [2, 1, 1]


def test_takeover_reads_the_groups_before_a_consumer_registers(pair: DraftCluster) -> None:
    """Section 2, "Co-ordinator", steps 1 to 3."""
    for group in ("g", "h"):
        pair.consumer("a", group=group)
    take_over(pair)
    broker = pair.brokers[2]
    groups = broker.machine.status(str, pair.now).groups
    assert [(group.group_id, group.phase, group.waits_for) for group in groups] == [
        ("g", "restoring", ["a"]),
        ("h", "restoring", ["a"]),
    ]
    pair.consumer("a", group="h", broker_id=2)
    pair.run(6_000)
    assert broker.noted("former consumers failed") == [{"group": "g", "consumers": 1, "first": "a"}]
    pair.run(1_000)
    assert [group.group_id for group in broker.machine.status(str, pair.now).groups] == ["h"]


def test_takeover_reads_one_group_after_another(pair: DraftCluster) -> None:
    """An election does not flood ZooKeeper, and a group whose consumer registers does not wait for the others."""
    for group in ("g", "h", "i"):
        pair.consumer("a", group=group)
    second = pair.add_broker(2)
    second.held = lambda ask: getattr(ask.request, "path", "") == "/consumers/g"
    pair.brokers[1].is_paused = True
    while second.machine.candidates[0].term is None:
        pair.run(100)
    consumer = pair.consumer("a", group="i", broker_id=2)
    assert len(consumer.started_with) == 4
    read = [ask.request.path for ask in second.asks if hasattr(ask.request, "path")]
    assert [path for path in ("/consumers/g", "/consumers/h", "/consumers/i") if path in read] == [
        "/consumers/g",
        "/consumers/i",
    ]
    second.release()
    assert set(second.machine.candidates[0].term.groups.by_id) == {"g", "h", "i"}


def test_takeover_waits_a_session_timeout_at_most(pair: DraftCluster) -> None:
    pair.consumer("a", session_timeout_ms=9_000)
    take_over(pair)
    elected_at = pair.brokers[2].machine.candidates[0].term.context.elected_at  # type: ignore[union-attr]  # it is elected
    second = pair.consumer("b", broker_id=2)
    pair.run(elected_at + 8_999 - pair.now)
    assert second.got(m.StopFetcherRequest) == []
    pair.run(1)
    assert len(second.started_with) == 4


def test_takeover_within_a_start_waits_the_whole_time(pair: DraftCluster) -> None:
    """The owners in ZooKeeper do not have the consumers that were being started."""
    pair.consumer("a")
    pair.zookeeper.write(SetData("/consumers/g", format_group(GroupRecord(6_000, is_starting=True))))
    take_over(pair)
    first = pair.consumer("a", broker_id=2)
    pair.run(5_500)
    assert first.got(m.StopFetcherRequest) == []
    pair.run(600)
    assert len(first.started_with) == 4


def test_takeover_reads_the_topics_before_it_rebalances(pair: DraftCluster) -> None:
    """Without them the partitions that are owned would seem to be gone."""
    pair.consumer("a")
    take_over(pair)
    term = pair.brokers[2].machine.candidates[0].term
    assert term is not None
    term.context.has_topics = False
    consumer = pair.consumer("a", broker_id=2)
    pair.run(2_000)
    assert (consumer.got(m.StopFetcherRequest), len(pair.owners())) == ([], 4)
    term.context.has_topics = True
    pair.run(500)
    assert len(consumer.started_with) == 4


def test_takeover_reads_the_offsets(pair: DraftCluster) -> None:
    consumer = pair.consumer("a")
    consumer.positions = {Partition("orders", f"1-{number}"): 40 + number for number in range(4)}
    pair.run(4_000)
    take_over(pair)
    assert list(pair.consumer("a", broker_id=2).started_with.values()) == [40, 41, 42, 43]


def test_takeover_counts_generations_in_a_higher_epoch(pair: DraftCluster) -> None:
    pair.consumer("a", fence=[])
    take_over(pair)
    known = [m.RegisterConsumerRequestFence(epoch=1, generation=1)]
    (fence,) = pair.consumer("a", broker_id=2, fence=known).got(m.StartFetcherRequest)[0].fence
    assert (fence.epoch, fence.generation) == (2, 1)


def test_a_group_of_0_7_without_a_record_is_not_waited_for(pair: DraftCluster) -> None:
    for path in ("/consumers/g", "/consumers/g/owners", "/consumers/g/owners/orders"):
        pair.zookeeper.write(Create(path))
    pair.zookeeper.write(Create("/consumers/g/owners/orders/1-0", b"old-0"))
    consumer = pair.consumer("a")
    assert len(consumer.started_with) == 4
    assert set(pair.owners().values()) == {"a-0"}


def test_a_record_that_cannot_be_read_counts_as_none(pair: DraftCluster) -> None:
    pair.zookeeper.write(Create("/consumers/g", b"\xff{"))
    assert len(pair.consumer("a").started_with) == 4


def status(cluster: DraftCluster) -> m.CentralStatusResponse:
    return cluster.brokers[1].machine.status(str, cluster.now)


def test_a_stable_group_is_described() -> None:
    cluster = DraftCluster(orders=1)
    consumer = cluster.consumer("a")
    (group,) = status(cluster).groups
    assert (status(cluster).error_code, status(cluster).epoch) == (0, 1)
    assert (group.group_id, group.phase, group.generation, group.waits_for) == ("g", "stable", 1, [])
    assert group.consumers == [
        m.CentralStatusResponseConsumer(
            consumer_id="a",
            host=str(consumer.connection),
            topic_count=format_topics({"orders": 1}),
            session_timeout_ms=6_000,
            partitions=1,
        )
    ]


def test_what_a_rebalance_waits_for_is_described() -> None:
    cluster = DraftCluster(orders=1)
    consumer = cluster.consumer("a")
    consumer.answers.clear()
    cluster.consumer("0")
    cluster.run(2_000)
    phases = {group.group_id: (group.phase, group.waits_for) for group in status(cluster).groups}
    assert phases == {"g": ("stopping", ["a"])}
    found = cluster.term
    assert (len(found.fetchers.stops), len(found.pings.purgatory)) == (1, 1)
    consumer.answer(m.StopFetcherRequest())


def test_a_group_that_waits_for_former_consumers_is_described() -> None:
    cluster = DraftCluster(orders=2)
    for name in ("a", "b"):
        cluster.consumer(name)
    cluster.zookeeper.expire(cluster.brokers[1].link.registry.session_id)
    cluster.run(200)
    cluster.consumer("a")
    (group,) = status(cluster).groups
    assert (group.phase, group.waits_for) == ("restoring", ["b"])


def test_a_broker_that_is_not_the_coordinator_has_no_status() -> None:
    cluster = DraftCluster()
    machine = cluster.add_broker(2).machine
    assert machine.status(str, cluster.now) == m.CentralStatusResponse(error_code=CentralError.NOT_COORDINATOR)
    assert machine.coordinator_id() == 1
