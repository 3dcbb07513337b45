"""Consumers of an elected coordinator: registration, pings, failure, and messages that no consumer sends."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord_wire.central.draft.events import CentralError, Fence, Partition
from kcoord_wire.central.draft.subscription import format_topics, format_wildcard
from kcoord_wire.messages import central as m
from tests.support.draft_cluster import Consumer, DraftBroker, DraftCluster


@pytest.fixture
def cluster() -> DraftCluster:
    cluster = DraftCluster(offset_commit_interval_ms=100)
    cluster.add_topic("orders", 4)
    return cluster


def term(cluster: DraftCluster) -> Any:
    found = cluster.brokers[1].machine.term
    assert found is not None
    return found


def test_handle_new_group_has_no_members(cluster: DraftCluster) -> None:
    group = term(cluster).handle_new_group("g")
    assert (term(cluster).groups.by_id, group.members) == ({"g": group}, {})


def test_handle_new_group_once_for_all_its_consumers(cluster: DraftCluster) -> None:
    cluster.consumer("a")
    group = term(cluster).groups.by_id["g"]
    cluster.consumer("b")
    assert term(cluster).groups.by_id == {"g": group}
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
    groups = term(cluster).groups
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
    assert list(term(cluster).groups.by_id["g"].members) == ["b"]
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
    assert term(cluster).groups.by_id == {}
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
    assert len(term(cluster).pings.purgatory) == 0
    consumer.answers.discard(m.PingRequest)
    cluster.run(2_000)
    assert len(term(cluster).pings.purgatory) == 1


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
    broker: DraftBroker = cluster.brokers[1]
    assert (consumer.is_open, broker.noted("unexpected message")) == (False, [])
