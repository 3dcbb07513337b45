"""Answers that are waited for, the scheduler of pings (section 5, scheduler.run; section 8), and the committer."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord_wire.central.draft.events import Partition
from kcoord_wire.central.draft.groups import Group, GroupStore, RegisteredConsumer
from kcoord_wire.central.draft.purgatory import Answer, Purgatory
from kcoord_wire.central.draft.subscription import parse_topic_count
from kcoord_wire.kernel.timers import Timers
from kcoord_wire.messages import central as m
from kcoord_wire.zookeeper.requests import Ask, Delete, Multi, SetData
from tests.support.draft_cluster import Consumer, DraftCluster


def make() -> tuple[Timers, Purgatory, list[Any], RegisteredConsumer]:
    timers, expired = Timers(), []
    group = Group("g", GroupStore("g"))
    member = RegisteredConsumer(
        group, "a", 1, parse_topic_count('{"orders": 1}'), True, "smallest", 6_000, is_fenced=False
    )
    return timers, Purgatory(timers, expired.append), expired, member


def test_an_answer_in_time_clears_the_watcher() -> None:
    timers, purgatory, expired, member = make()
    purgatory.watch(member, 100)
    assert (len(purgatory), purgatory.answered(member), len(purgatory)) == (1, Answer.IN_TIME, 0)
    timers.run_due(1_000)
    assert (expired, timers.next) == ([], None)


def test_a_request_without_an_answer_expires_once() -> None:
    timers, purgatory, expired, member = make()
    purgatory.watch(member, 100)
    timers.run_due(99)
    assert expired == []
    timers.run_due(100)
    timers.run_due(500)
    assert expired == [member]


def test_a_late_answer_is_not_that_of_a_later_request() -> None:
    timers, purgatory, _, member = make()
    purgatory.watch(member, 100)
    timers.run_due(100)
    purgatory.watch(member, 300)
    assert purgatory.answered(member) is Answer.LATE
    assert purgatory.answered(member) is Answer.IN_TIME
    assert purgatory.answered(member) is Answer.UNASKED


def test_answers_to_several_requests_come_in_their_order() -> None:
    timers, purgatory, expired, member = make()
    purgatory.watch(member, 100)
    purgatory.watch(member, 200)
    assert purgatory.answered(member) is Answer.IN_TIME
    timers.run_due(200)
    assert (expired, purgatory.answered(member)) == ([member], Answer.LATE)


def test_no_answer_is_expected_from_a_forgotten_consumer() -> None:
    timers, purgatory, expired, member = make()
    purgatory.watch(member, 100)
    purgatory.forget(member)
    timers.run_due(100)
    assert (expired, len(purgatory), purgatory.answered(member)) == ([], 0, Answer.UNASKED)


def test_an_answer_to_a_request_that_was_given_up_is_late() -> None:
    timers, purgatory, expired, member = make()
    purgatory.watch(member, 100)
    purgatory.give_up(member)
    purgatory.watch(member, 200)
    timers.run_due(150)
    assert expired == []
    assert (purgatory.answered(member), purgatory.answered(member)) == (Answer.LATE, Answer.IN_TIME)


def pinged(cluster: DraftCluster, until: int, step: int = 100) -> list[tuple[int, str, int]]:
    """Return time, consumer and retry of each ping until a time."""
    found: list[tuple[int, str, int]] = []
    counts = dict.fromkeys(cluster.peers.values(), 0)
    begun = cluster.now
    while cluster.now < begun + until:
        cluster.run(step)
        for consumer in counts:
            pings = consumer.got(m.PingRequest)
            found += [(cluster.now - begun, ping.consumer_id, ping.num_retries) for ping in pings[counts[consumer] :]]
            counts[consumer] = len(pings)
    return found


def test_scheduler_run_pings_every_third_of_a_session() -> None:
    cluster = DraftCluster()
    cluster.consumer("a", session_timeout_ms=3_000)
    cluster.consumer("b", session_timeout_ms=6_000)
    assert pinged(cluster, 4_000) == [
        (1_000, "a", 0), (2_000, "a", 0), (2_000, "b", 0), (3_000, "a", 0), (4_000, "a", 0), (4_000, "b", 0),
    ]  # fmt: skip


def test_scheduler_run_counts_retries_after_two_thirds() -> None:
    cluster = DraftCluster(max_ping_retries=3)
    cluster.consumer("a", session_timeout_ms=3_000).answers.clear()
    assert pinged(cluster, 6_000) == [
        (1_000, "a", 0),
        (2_000, "a", 0),
        (3_000, "a", 1),
        (4_000, "a", 2),
        (5_000, "a", 3),
    ]


@pytest.mark.parametrize("retries", [0, 1, 5])
def test_more_failures_than_retries_fail_the_consumer(retries: int) -> None:
    cluster = DraftCluster(max_ping_retries=retries)
    consumer = cluster.consumer("a", session_timeout_ms=3_000)
    consumer.answers.clear()
    cluster.run(3_000 + 1_000 * retries - 1)
    assert consumer.is_open
    cluster.run(1)
    assert not consumer.is_open
    assert cluster.brokers[1].noted("consumer failed")[0]["reason"].startswith(f"{retries + 1} pings")


def test_an_answer_in_time_ends_the_retries() -> None:
    cluster = DraftCluster(max_ping_retries=1)
    consumer = cluster.consumer("a", session_timeout_ms=3_000)
    consumer.answers.clear()
    cluster.run(3_100)
    for ping in consumer.got(m.PingRequest):
        consumer.answer(ping)
    consumer.answers.add(m.PingRequest)
    cluster.run(30_000)
    assert consumer.is_open
    assert consumer.got(m.PingRequest)[-1].num_retries == 0
    assert len(cluster.brokers[1].noted("late answer")) == 1


def test_a_slow_machine_skips_pings() -> None:
    cluster = DraftCluster()
    consumer = cluster.consumer("a", session_timeout_ms=1_000)
    cluster.now += 1_500
    cluster.run(0)
    assert len(consumer.got(m.PingRequest)) == 1


@pytest.fixture
def cluster() -> DraftCluster:
    return DraftCluster(orders=400, offset_commit_interval_ms=500)


def report(consumer: Consumer, offset: int, partitions: int = 400) -> None:
    consumer.positions = {Partition("orders", f"1-{number}"): offset for number in range(partitions)}


def commits(cluster: DraftCluster, begin: int) -> list[Multi]:
    """Return the writes of offsets since the ask with that index."""
    requests = [ask.request for ask in cluster.brokers[1].asks[begin:]]
    return [request for request in requests if isinstance(request, Multi) and len(request.writes) > 1
            and "offsets" in request.writes[-1].path]  # fmt: skip


def test_committer_writes_at_its_interval(cluster: DraftCluster) -> None:
    consumer = cluster.consumer("a")
    report(consumer, 5, partitions=1)
    cluster.run(2_400)
    assert cluster.committed() == {}
    cluster.run(100)
    assert cluster.committed() == {"1-0": 5}


def test_committer_writes_only_what_has_changed(cluster: DraftCluster) -> None:
    consumer = cluster.consumer("a")
    report(consumer, 5)
    cluster.run(3_000)
    begin = len(cluster.brokers[1].asks)
    cluster.run(20_000)
    assert commits(cluster, begin) == []
    consumer.positions = {Partition("orders", "1-7"): 6}
    cluster.run(3_000)
    (commit,) = commits(cluster, begin)
    assert commit.writes[1:] == (SetData("/consumers/g/offsets/orders/1-7", b"6"),)


def test_committer_writes_in_transactions_of_a_limited_size(cluster: DraftCluster) -> None:
    report(cluster.consumer("a"), 5)
    begin = len(cluster.brokers[1].asks)
    cluster.run(3_000)
    assert [len(commit.writes) for commit in commits(cluster, begin)] == [201, 201, 3]
    assert set(cluster.committed().values()) == {5}


def test_committer_joins_the_offsets_of_many_groups(cluster: DraftCluster) -> None:
    for number in range(50):
        report(cluster.consumer("a", group=f"g{number}"), 5, partitions=3)
    cluster.run(2_600)
    begin = len(cluster.brokers[1].asks)
    for consumer in cluster.peers.values():
        report(consumer, 6, partitions=3)
    cluster.run(2_000)
    assert [len(commit.writes) for commit in commits(cluster, begin)] == [151]
    assert all(cluster.committed(f"g{number}") == {"1-0": 6, "1-1": 6, "1-2": 6} for number in range(50))


def test_committer_reads_again_after_a_write_that_failed(cluster: DraftCluster) -> None:
    consumer = cluster.consumer("a")
    report(consumer, 5, partitions=2)
    cluster.run(3_000)
    cluster.zookeeper.write(Delete("/consumers/g/offsets/orders/1-1"))
    report(consumer, 6, partitions=2)
    cluster.run(4_000)
    assert cluster.committed() == {"1-0": 6, "1-1": 6}
    assert len(cluster.brokers[1].noted("write failed")) == 1
    assert cluster.term.committer.waiting == 0


def test_committer_leaves_out_a_group_whose_nodes_became_unknown(cluster: DraftCluster) -> None:
    for group in ("g", "h"):
        report(cluster.consumer("a", group=group), 5, partitions=200)
    broker = cluster.brokers[1]
    term, ask, begin = cluster.term, broker.link.ask, len(broker.asks)

    def forget(asked: Ask) -> None:
        if isinstance(asked.request, Multi) and "/h/offsets" in asked.request.writes[-1].path:
            term.groups.by_id["g"].store.forget()  # a write of its rebalance has failed meanwhile
        ask(asked)

    broker.link.ask = forget  # type: ignore[method-assign]  # between two batches
    cluster.run(3_000)
    assert set(cluster.committed("h").values()) == {5}
    assert all("/h/" in commit.writes[-1].path for commit in commits(cluster, begin))
