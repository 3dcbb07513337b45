"""rebalance(group), section 9, step by step; by closed connections, the older passage (section 2); when it runs."""

from __future__ import annotations

import pytest

from kcoord_wire.central.draft import rebalance
from kcoord_wire.central.draft.events import Partition, RebalanceBy
from kcoord_wire.central.draft.subscription import format_topics
from kcoord_wire.messages import central as m
from kcoord_wire.zookeeper.layout import GroupRecord, parse_group
from kcoord_wire.zookeeper.requests import Create, Delete, Multi, SetData
from tests.support.draft_cluster import Consumer, DraftCluster

OWNERS = "/consumers/g/owners/orders"


@pytest.fixture
def cluster() -> DraftCluster:
    return DraftCluster(orders=4, rebalance_backoff_ms=1_000, max_rebalance_retries=2, offset_commit_interval_ms=60_000)


def reasons(cluster: DraftCluster) -> list[str]:
    return [facts["reason"] for facts in cluster.brokers[1].noted("rebalance started")]


def again(cluster: DraftCluster, consumer: Consumer) -> Consumer:
    """The consumer's connection ends, and it registers again at once."""
    consumer.disconnect()
    return cluster.consumer(consumer.consumer_id)


def test_rebalance_1_ranges_over_consumer_threads(cluster: DraftCluster) -> None:
    cluster.add_topic("orders", 3, broker_id=2)
    cluster.consumer("a", topics=format_topics({"orders": 2}))
    cluster.consumer("b")
    assert cluster.owners() == {
        "1-0": "a-0", "1-1": "a-0", "1-2": "a-0", "1-3": "a-1", "2-0": "a-1", "2-1": "b-0", "2-2": "b-0",
    }  # fmt: skip


def test_rebalance_3_1_nothing_is_registered(cluster: DraftCluster) -> None:
    cluster.consumer("a")
    assert reasons(cluster) == ["3.1 no owners are registered"]


def test_rebalance_3_2_a_partition_has_no_owner(cluster: DraftCluster) -> None:
    cluster.consumer("a")
    cluster.add_topic("orders", 5)
    assert reasons(cluster)[1:] == ["3.2 some partitions have no owner"]
    assert cluster.owners()["1-4"] == "a-0"


def test_rebalance_3_3_an_owned_partition_is_gone(cluster: DraftCluster) -> None:
    cluster.consumer("a")
    cluster.add_topic("orders", 2)
    assert reasons(cluster)[1:] == ["3.3 some owned partitions no longer exist"]
    assert cluster.owners() == {"1-0": "a-0", "1-1": "a-0"}


def test_rebalance_3_4_the_owners_are_others(cluster: DraftCluster) -> None:
    cluster.consumer("a")
    cluster.consumer("b")
    assert reasons(cluster)[1:] == ["3.4 the owners are not those of the new assignment"]


def test_rebalance_3_5_is_not_necessary(cluster: DraftCluster) -> None:
    cluster.add_topic("single", 1)
    first = cluster.consumer("a", topics=format_topics({"single": 1}))
    second = cluster.consumer("b", topics=format_topics({"single": 1}))
    assert (len(reasons(cluster)), len(first.got(m.StopFetcherRequest)), second.got(m.StopFetcherRequest)) == (1, 1, [])


def test_a_topic_that_is_switched_off_stays_with_its_owners(cluster: DraftCluster) -> None:
    """KAFKA-364: also while they are away, and new partitions have none."""
    first = cluster.consumer("a")
    cluster.switch_rebalancing("orders", is_on=False)
    second = cluster.consumer("b")
    cluster.add_topic("orders", 5)
    first.disconnect()
    cluster.run(60_000)
    assert (len(reasons(cluster)), second.got(m.StopFetcherRequest), set(cluster.owners().values())) == (1, [], {"a-0"})
    first = cluster.consumer("a")
    assert reasons(cluster)[1:] == ["a consumer has registered again"]
    assert (len(first.started_with), second.started_with) == (4, {})
    cluster.switch_rebalancing("orders", is_on=True)
    assert (len(first.started_with), len(second.started_with)) == (3, 2)


def test_only_the_topic_that_is_switched_off_stays(cluster: DraftCluster) -> None:
    cluster.add_topic("payments", 4)
    both = format_topics({"orders": 1, "payments": 1})
    first = cluster.consumer("a", topics=both)
    cluster.switch_rebalancing("orders", is_on=False)
    second = cluster.consumer("b", topics=both)
    assert {each.topic for each in second.started_with} == {"payments"}
    assert (len(first.started_with), len(second.started_with)) == (6, 2)
    first.disconnect()
    cluster.consumer("a", topics=format_topics({"payments": 1}))
    assert set(cluster.owners().values()) == {"a-0"}, "who does not subscribe to it any more is not started with it"
    assert len(cluster.term.groups.by_id["g"].members["a"].owned) == 2


def test_a_first_group_gets_a_topic_that_is_switched_off(cluster: DraftCluster) -> None:
    cluster.switch_rebalancing("orders", is_on=False)
    assert len(cluster.consumer("a").started_with) == 4


def test_who_takes_over_knows_what_is_switched_off(cluster: DraftCluster) -> None:
    cluster.consumer("a")
    cluster.switch_rebalancing("orders", is_on=False)
    cluster.zookeeper.expire(cluster.brokers[1].link.registry.session_id)
    cluster.run(200)
    cluster.consumer("b")
    cluster.run(10_000)
    assert set(cluster.owners().values()) == {"a-0"}


def test_rebalance_of_a_consumer_that_registers_again(cluster: DraftCluster) -> None:
    """By 3.1 to 3.5 it would never be started: the owners are what they were."""
    consumer = again(cluster, cluster.consumer("a"))
    assert reasons(cluster)[1:] == ["a consumer has registered again"]
    assert len(consumer.started_with) == 4


def test_rebalance_4_1_stops_every_consumer_of_the_group(cluster: DraftCluster) -> None:
    first = cluster.consumer("a")
    first.answers.discard(m.StopFetcherRequest)
    other = cluster.consumer("x", group="other")
    second = cluster.consumer("b")
    assert [len(each.got(m.StopFetcherRequest)) for each in (first, second, other)] == [2, 1, 1]
    assert second.got(m.StopFetcherRequest) == [m.StopFetcherRequest(consumer_id="b")]


def test_rebalance_4_2_waits_for_every_answer(cluster: DraftCluster) -> None:
    first = cluster.consumer("a")
    first.answers.discard(m.StopFetcherRequest)
    second = cluster.consumer("b")
    cluster.run(3_000)
    assert second.got(m.StartFetcherRequest) == []
    first.answer(
        first.inbox[-1] if first.inbox[-1] == m.StopFetcherRequest(consumer_id="a") else m.StopFetcherRequest()
    )
    cluster.run(0)
    assert len(second.started_with) == len(first.started_with) == 2


def test_rebalance_4_3_commits_before_it_starts(cluster: DraftCluster) -> None:
    first = cluster.consumer("a")
    first.positions = {Partition("orders", f"1-{number}"): 10 + number for number in range(4)}
    second = cluster.consumer("b")
    assert cluster.committed() == {"1-0": 10, "1-1": 11, "1-2": 12, "1-3": 13}
    assert second.started_with == {Partition("orders", "1-2"): 12, Partition("orders", "1-3"): 13}


def test_rebalance_4_3_awaits_the_commit(cluster: DraftCluster) -> None:
    first = cluster.consumer("a")
    broker = cluster.brokers[1]
    first.positions = {Partition("orders", "1-0"): 5}
    first.answers.discard(m.StopFetcherRequest)
    second = cluster.consumer("b")
    asked = len(broker.asks)
    first.answer(m.StopFetcherRequest())
    (commit,) = [ask.request for ask in broker.asks[asked:]]
    assert isinstance(commit, Multi)
    assert second.got(m.StartFetcherRequest) == []
    cluster.run(0)
    assert len(second.started_with) == 2


@pytest.mark.parametrize(("reset", "offset"), [("smallest", -2), ("largest", -1)])
def test_rebalance_4_4_without_an_offset_sends_the_reset(cluster: DraftCluster, reset: str, offset: int) -> None:
    consumer = cluster.consumer("a", auto_offset_rest=reset)
    assert set(consumer.started_with.values()) == {offset}


def test_rebalance_4_4_sends_threads_and_brokers(cluster: DraftCluster) -> None:
    consumer = cluster.consumer("a", topics=format_topics({"orders": 2}))
    (start,) = consumer.got(m.StartFetcherRequest)
    threads = {
        owned.consumer_thread_id: [part.partition for part in owned.assigned_parts] for owned in start.ownership_info
    }
    assert threads == {"a-0": ["1-0", "1-1"], "a-1": ["1-2", "1-3"]}
    assert start.brokers_info == [m.StartFetcherRequestBroker(id=1, host="host", port=9_001)]


def test_rebalance_4_5_a_start_without_answer_is_retried(cluster: DraftCluster) -> None:
    consumer = Consumer(cluster, cluster.brokers[1], "a")
    consumer.answers.discard(m.StartFetcherRequest)
    consumer.register()
    cluster.run(4_000)
    assert cluster.brokers[1].noted("rebalance attempt failed")[0]["reason"] == "no answer in time from a"
    assert cluster.owners() == {}
    consumer.answers.add(m.StartFetcherRequest)
    consumer.answer(consumer.got(m.StartFetcherRequest)[0])
    cluster.run(1_000)
    assert len(cluster.owners()) == 4
    assert len(consumer.got(m.StopFetcherRequest)) == 2


def test_rebalance_4_6_writes_the_owners_after_the_answers(cluster: DraftCluster) -> None:
    """Until then a mark says that the owners are not the whole truth."""
    consumer = Consumer(cluster, cluster.brokers[1], "a")
    consumer.answers.discard(m.StartFetcherRequest)
    consumer.register()
    cluster.run(0)
    assert (cluster.owners(), parse_group(cluster.data("/consumers/g"))) == ({}, GroupRecord(6_000, is_starting=True))
    consumer.answer(consumer.got(m.StartFetcherRequest)[0])
    cluster.run(0)
    assert (len(cluster.owners()), parse_group(cluster.data("/consumers/g"))) == (4, GroupRecord(6_000))


def test_rebalance_5_waits_before_each_retry(cluster: DraftCluster) -> None:
    first = cluster.consumer("a")
    first.answers.discard(m.StopFetcherRequest)
    second = cluster.consumer("b")
    cluster.run(4_999)
    assert len(second.got(m.StopFetcherRequest)) == 1
    cluster.run(1)
    assert len(second.got(m.StopFetcherRequest)) == 2


def test_rebalance_5_fails_after_its_retries(cluster: DraftCluster) -> None:
    """The consumer that answers pings alone is then taken for failed, and the group goes on without it."""
    first = cluster.consumer("a")
    first.answers.discard(m.StopFetcherRequest)
    second = cluster.consumer("b")
    cluster.run(4_000 + 2 * 5_000)
    (failed,) = cluster.brokers[1].noted("rebalance failed")
    assert failed["error"] == "ConsumerRebalanceFailedException"
    assert (failed["group"], first.is_open) == ("g", False)
    assert len(second.got(m.StopFetcherRequest)) == 4
    assert len(second.started_with) == 4


def test_rebalance_5_ends_a_mute_consumer_of_a_busy_group(cluster: DraftCluster) -> None:
    """Each attempt is the first of a new task, because another consumer has registered meanwhile."""
    mute = cluster.consumer("mute")
    mute.answers = {m.PingRequest}
    cluster.consumer("c0")
    cluster.run(2_000)
    for number in range(1, 4):
        assert mute.is_open
        cluster.consumer(f"c{number}")
        cluster.run(4_000)
    assert not mute.is_open
    assert set(cluster.owners().values()) == {"c0-0", "c1-0", "c2-0", "c3-0"}


def test_rebalance_a_late_stop_answers_no_later_request(cluster: DraftCluster) -> None:
    first = cluster.consumer("a")
    first.answers.discard(m.StopFetcherRequest)
    second = cluster.consumer("b")
    cluster.run(5_000)
    assert len(first.got(m.StopFetcherRequest)) == 3
    first.answer(m.StopFetcherRequest())
    cluster.run(0)
    assert second.got(m.StartFetcherRequest) == []
    first.answer(m.StopFetcherRequest())
    cluster.run(0)
    assert len(second.started_with) == 2


def test_rebalance_ends_with_the_lease(cluster: DraftCluster) -> None:
    """The coordinator was paused; the first thing that it reads is the answer that it waited for."""
    first = cluster.consumer("a")
    first.answers.discard(m.StopFetcherRequest)
    second = cluster.consumer("b")
    broker = cluster.brokers[1]
    broker.is_paused = True
    cluster.run(2_100)
    asked = len(broker.asks)
    first.answer(m.StopFetcherRequest())
    assert broker.noted("resigned")[0]["reason"] == "lease expired"
    assert second.got(m.StartFetcherRequest) == []
    assert not any(isinstance(ask.request, Multi) for ask in broker.asks[asked:])


def test_rebalance_reads_again_after_a_write_that_failed(cluster: DraftCluster) -> None:
    """Another client has changed the owners."""
    cluster.consumer("a")
    for name in ("1-2", "1-3"):
        cluster.zookeeper.write(Delete(f"{OWNERS}/{name}"))
    cluster.zookeeper.write(Create(f"{OWNERS}/1-9", b"z-0"))
    cluster.consumer("b")
    assert len(cluster.brokers[1].noted("write failed")) == 1
    cluster.run(1_000)
    assert cluster.owners() == {"1-0": "a-0", "1-1": "a-0", "1-2": "b-0", "1-3": "b-0"}


def test_rebalance_of_a_change_during_a_rebalance_follows_it(cluster: DraftCluster) -> None:
    first = cluster.consumer("a")
    first.answers.discard(m.StopFetcherRequest)
    cluster.consumer("b")
    cluster.add_topic("orders", 6)
    cluster.consumer("c")
    first.answer(m.StopFetcherRequest())
    cluster.run(0)
    first.answer(m.StopFetcherRequest())
    cluster.run(0)
    owned = list(cluster.owners().values())
    assert [owned.count(f"{name}-0") for name in "abc"] == [2, 2, 2]
    assert len(reasons(cluster)) == 3


def test_rebalance_without_a_topic_gives_nothing(cluster: DraftCluster) -> None:
    consumer = cluster.consumer("a", topics=format_topics({"missing": 1}))
    assert consumer.inbox == [m.RegisterConsumerResponse()]
    cluster.add_topic("missing", 1)
    assert consumer.started_with == {Partition("missing", "1-0"): -2}


def test_rebalance_after_an_unreadable_offset_begins_anew(cluster: DraftCluster) -> None:
    for path in ("/consumers/g", "/consumers/g/offsets", "/consumers/g/offsets/orders"):
        cluster.zookeeper.write(Create(path))
    for number, data in enumerate((b"17", b"x", b"-5", b"")):
        cluster.zookeeper.write(Create(f"/consumers/g/offsets/orders/1-{number}", data))
    consumer = cluster.consumer("a")
    assert list(consumer.started_with.values()) == [17, -2, -2, -2]
    consumer.positions = {Partition("orders", "1-1"): 3}
    consumer.disconnect()
    cluster.zookeeper.write(SetData("/consumers/g/offsets/orders/1-0", b"18"))
    assert cluster.consumer("a").started_with[Partition("orders", "1-0")] == 17


@pytest.fixture
def sockets() -> DraftCluster:
    return DraftCluster(orders=4, rebalance_by=RebalanceBy.SOCKETS, offset_commit_interval_ms=60_000)


def owned(consumer: Consumer) -> dict[Partition, int]:
    return consumer.owned(consumer.got(m.RegisterConsumerResponse)[-1])


def test_the_response_has_the_partitions(sockets: DraftCluster) -> None:
    consumer = sockets.consumer("a")
    assert owned(consumer) == {Partition("orders", f"1-{number}"): -2 for number in range(4)}
    assert sockets.owners() == {f"1-{number}": "a-0" for number in range(4)}


def test_a_new_consumer_closes_the_connections_of_the_others(sockets: DraftCluster) -> None:
    first, other = sockets.consumer("a"), sockets.consumer("x", group="other")
    second = sockets.consumer("b")
    assert (first.is_open, second.is_open, other.is_open) == (False, True, True)
    assert second.inbox == []


def test_the_responses_wait_until_all_have_registered_again(sockets: DraftCluster) -> None:
    sockets.consumer("a")
    second = sockets.consumer("b")
    third = sockets.consumer("c")
    sockets.run(3_000)
    assert second.inbox == third.inbox == []
    first = sockets.consumer("a")
    assert [len(owned(consumer)) for consumer in (first, second, third)] == [2, 1, 1]
    assert sorted(sockets.owners().values()) == ["a-0", "a-0", "b-0", "c-0"]


def test_a_missing_consumer_is_waited_for_a_session_timeout(sockets: DraftCluster) -> None:
    sockets.consumer("a", session_timeout_ms=9_000)
    second = sockets.consumer("b")
    sockets.run(8_999)
    assert second.inbox == []
    sockets.run(1)
    assert len(owned(second)) == 4


def test_a_failed_consumer_is_replaced_by_those_that_come_back(sockets: DraftCluster) -> None:
    sockets.consumer("a")
    second = sockets.consumer("b")
    first = sockets.consumer("a")
    second.disconnect()
    sockets.run(0)
    assert not first.is_open
    first = sockets.consumer("a")
    assert len(owned(first)) == 4
    assert set(sockets.owners().values()) == {"a-0"}


def test_a_consumer_that_leaves_while_it_waits_is_not_missed(sockets: DraftCluster) -> None:
    sockets.consumer("a")
    second = sockets.consumer("b")
    second.disconnect()
    first = sockets.consumer("a")
    assert len(owned(first)) == 4
    assert sockets.brokers[1].noted("rebalance attempt failed") == []


def test_a_group_that_does_not_come_back_keeps_its_owners(sockets: DraftCluster) -> None:
    sockets.consumer("a")
    sockets.consumer("b").disconnect()
    sockets.run(20_000)
    assert set(sockets.owners().values()) == {"a-0"}
    assert len(owned(sockets.consumer("a"))) == 4


def test_a_consumer_without_partitions_is_answered_at_once(sockets: DraftCluster) -> None:
    sockets.add_topic("single", 1)
    first = sockets.consumer("a", topics=format_topics({"single": 1}))
    second = sockets.consumer("b", topics=format_topics({"single": 1}))
    assert (first.is_open, len(owned(first)), owned(second)) == (True, 1, {})


def test_offsets_of_pings_are_where_the_next_owner_begins(sockets: DraftCluster) -> None:
    first = sockets.consumer("a")
    first.positions = {Partition("orders", f"1-{number}"): 30 + number for number in range(4)}
    sockets.run(2_000)
    second = sockets.consumer("b")
    sockets.consumer("a")
    assert owned(second) == {Partition("orders", "1-2"): 32, Partition("orders", "1-3"): 33}
    assert sockets.committed() == {"1-0": 30, "1-1": 31, "1-2": 32, "1-3": 33}


def test_pings_begin_with_the_answer(sockets: DraftCluster) -> None:
    sockets.consumer("a")
    second = sockets.consumer("b")
    sockets.run(5_000)
    assert second.inbox == []
    sockets.consumer("a")
    sockets.run(2_000)
    assert len(second.got(m.PingRequest)) == 1


def test_answers_to_requests_of_the_later_passages_are_strange(sockets: DraftCluster) -> None:
    consumer = sockets.consumer("a")
    consumer.send(m.StopFetcherResponse(consumer_id="a"))
    sockets.run(0)
    assert not consumer.is_open


def test_a_group_that_does_not_come_back_is_forgotten(sockets: DraftCluster) -> None:
    sockets.consumer("a")
    sockets.add_topic("orders", 5)
    sockets.run(70_000)
    assert sockets.term.groups.by_id == {}


def test_no_message_is_too_large_for_a_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebalance, "LARGEST_MESSAGE", (1 << 20) + 70)
    cluster = DraftCluster(orders=3)
    assert cluster.consumer("a").got(m.StartFetcherRequest) == []
    cluster.run(1_000)
    assert "take 75 bytes" in cluster.brokers[1].noted("rebalance attempt failed")[0]["reason"]
    assert cluster.consumer("b").started_with.keys() == {Partition("orders", "1-2")}


def hold(cluster: DraftCluster, groups: int) -> list[Consumer]:
    """Register a consumer in each group; none answers StopFetcher."""
    consumers = []
    for number in range(groups):
        consumer = Consumer(cluster, cluster.brokers[1], "a")
        consumer.answers.discard(m.StopFetcherRequest)
        consumer.register(f"g{number}")
        consumers.append(consumer)
    cluster.run(0)
    return consumers


def test_groups_that_do_not_answer_delay_no_other() -> None:
    cluster = DraftCluster(orders=1)
    held = hold(cluster, 150)
    assert all(consumer.got(m.StopFetcherRequest) for consumer in held)
    for number in range(20):
        assert len(cluster.consumer("a", group=f"new{number}").started_with) == 1


def test_a_backoff_ends_when_the_group_has_a_new_task() -> None:
    cluster = DraftCluster(orders=2, rebalance_backoff_ms=20_000)
    (silent,) = hold(cluster, 1)
    cluster.run(5_000)
    assert cluster.term.groups.by_id["g0"].attempt.phase == "backing off"
    second = cluster.consumer("b", group="g0")
    assert len(silent.got(m.StopFetcherRequest)) == 2
    assert len(second.got(m.StopFetcherRequest)) == 1
