"""The computation of 1.3 and the comparison of step 3 (section 9); the listeners of topics (section 6)."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from kcoord_wire.central.draft.context import assign, partition_order, why_rebalance
from kcoord_wire.central.draft.events import Partition
from kcoord_wire.central.draft.groups import Group, GroupStore, RegisteredConsumer
from kcoord_wire.central.draft.subscription import format_topics, format_wildcard, parse_topic_count
from kcoord_wire.zookeeper.layout import GroupRecord
from kcoord_wire.zookeeper.requests import Ask, Create, Delete, Outcome, Read, Replied, SetData
from tests.support.draft_cluster import DraftCluster


def make_group(**topic_counts: str) -> Group:
    group = Group("g", GroupStore("g"))
    for connection, (name, text) in enumerate(topic_counts.items()):
        count = parse_topic_count(text)
        group.members[name] = RegisteredConsumer(
            group, name, connection, count, True, "smallest", 6_000, is_fenced=False
        )
    return group


def assigned(group: Group, **partitions: int) -> dict[str, list[str]]:
    names = {topic: [f"1-{number}" for number in range(count)] for topic, count in partitions.items()}
    found: dict[str, list[str]] = {}
    for partition, thread_id in assign(list(group.members.values()), names).items():
        found.setdefault(thread_id, []).append(f"{partition.topic} {partition.name}")
    return found


def test_threads_of_a_topic_get_runs_of_partitions() -> None:
    group = make_group(a=format_topics({"t": 2}), b=format_topics({"t": 1, "u": 1}))
    assert assigned(group, t=4, u=1) == {"a-0": ["t 1-0", "t 1-1"], "a-1": ["t 1-2"], "b-0": ["t 1-3", "u 1-0"]}


def test_streams_of_topics_differ() -> None:
    group = make_group(a=format_topics({"t": 1, "u": 3}))
    assert assigned(group, t=2, u=2) == {"a-0": ["t 1-0", "t 1-1", "u 1-0"], "a-1": ["u 1-1"]}


def test_more_streams_than_partitions_cost_nothing() -> None:
    group = make_group(a=format_wildcard(".*", 1_000), b=format_wildcard("t", 1_000))
    assert assigned(group, t=3) == {"a-0": ["t 1-0"], "a-1": ["t 1-1"], "a-2": ["t 1-2"]}


def test_wildcards_have_the_topics_that_exist() -> None:
    group = make_group(a=format_wildcard("t|missing"), b=format_wildcard("t", is_blacklist=True))
    assert assigned(group, t=1, u=1) == {"a-0": ["t 1-0"], "b-0": ["u 1-0"]}


@pytest.mark.parametrize("seed", range(30))
def test_every_partition_has_one_owner_and_none_has_two_more(seed: int) -> None:
    chooser = random.Random(seed)
    topics = {f"t{number}": chooser.randint(0, 12) for number in range(4)}
    wanted = {
        f"c{number}": {topic: chooser.randint(1, 3) for topic in topics if chooser.random() < 0.7} or {"t0": 1}
        for number in range(chooser.randint(1, 6))
    }
    found = assigned(make_group(**{name: format_topics(counts) for name, counts in wanted.items()}), **topics)
    for topic, partitions in topics.items():
        threads = {f"{name}-{n}": 0 for name, counts in wanted.items() for n in range(counts.get(topic, 0))}
        for thread_id, owned in found.items():
            if mine := [name for name in owned if name.split()[0] == topic]:
                threads[thread_id] += len(mine)
        if threads:
            assert sum(threads.values()) == partitions
            assert max(threads.values()) - min(threads.values()) <= 1


def test_partitions_are_ordered_by_number() -> None:
    assert sorted(["2-0", "10-0", "1-10", "1-9"], key=partition_order) == ["1-9", "1-10", "2-0", "10-0"]


P0, P1 = Partition("t", "1-0"), Partition("t", "1-1")


@pytest.mark.parametrize(
    ("owners", "computed", "reason"),
    [
        ({}, {P0: "a-0"}, "3.1"),
        ({P0: "a-0"}, {P0: "a-0", P1: "a-0"}, "3.2"),
        ({P0: "a-0", P1: "a-0"}, {P0: "a-0"}, "3.3"),
        ({P0: "b-0"}, {P0: "a-0"}, "3.4"),
        ({P0: "a-0"}, {P0: "a-0"}, ""),
        ({}, {}, ""),
    ],
)
def test_why_a_rebalance_is_necessary(
    owners: Mapping[Partition, str], computed: Mapping[Partition, str], reason: str
) -> None:
    group = make_group(a='{"t": 1}', b='{"t": 1}')
    group.store.owners.update(owners)
    group.members["a"].is_started = True
    assert why_rebalance(group, computed).split(" ")[0] == reason


def test_why_a_rebalance_is_necessary_that_no_owner_shows() -> None:
    group = make_group(a='{"t": 1}')
    group.store.owners[P0] = "a-0"
    assert why_rebalance(group, {P0: "a-0"}) == "a consumer has registered again"
    group.store.record = GroupRecord(6_000, is_starting=True)
    assert why_rebalance(group, {P0: "a-0"}) == "the former coordinator did not finish"


@pytest.fixture
def cluster() -> DraftCluster:
    return DraftCluster(orders=1)


def started(cluster: DraftCluster) -> list[str]:
    return [facts["group"] for facts in cluster.brokers[1].noted("rebalance started")]


def test_handle_topic_change_adds_it_to_wildcard_groups(cluster: DraftCluster) -> None:
    consumer = cluster.consumer("a", topics=format_wildcard("ord.*"))
    cluster.consumer("x", group="other", topics=format_wildcard("pay.*"))
    cluster.add_topic("ordinary", 2)
    assert set(consumer.started_with) == {
        Partition("orders", "1-0"),
        Partition("ordinary", "1-0"),
        Partition("ordinary", "1-1"),
    }
    assert started(cluster) == ["g", "g"]


def test_handle_topic_change_of_a_topic_that_was_awaited(cluster: DraftCluster) -> None:
    consumer = cluster.consumer("a", topics=format_topics({"later": 1}))
    cluster.add_topic("later", 1)
    assert set(consumer.started_with) == {Partition("later", "1-0")}


def test_handle_topic_change_disturbs_no_other_group(cluster: DraftCluster) -> None:
    cluster.consumer("a")
    cluster.add_topic("payments", 3)
    assert started(cluster) == ["g"]


def test_handle_topic_change_watches_again(cluster: DraftCluster) -> None:
    consumer = cluster.consumer("a", topics=format_wildcard(".*"))
    for number in range(5):
        cluster.add_topic(f"t{number}", 1)
    assert len(consumer.started_with) == 6


def test_handle_partition_change_rebalances_its_groups(cluster: DraftCluster) -> None:
    first, second = cluster.consumer("a"), cluster.consumer("b", group="h")
    cluster.consumer("x", group="other", topics=format_topics({"missing": 1}))
    for partitions in (2, 5):
        cluster.add_topic("orders", partitions)
        assert len(first.started_with) == len(second.started_with) == partitions
    assert started(cluster) == ["g", "h"] * 3


def test_handle_partition_change_at_another_broker(cluster: DraftCluster) -> None:
    consumer = cluster.consumer("a")
    cluster.add_topic("orders", 2, broker_id=12)
    assert [partition.name for partition in consumer.started_with] == ["1-0", "12-0", "12-1"]


def test_handle_partition_change_that_is_none(cluster: DraftCluster) -> None:
    cluster.consumer("a")
    cluster.zookeeper.write(SetData("/brokers/topics/orders/1", b"1"))
    cluster.run(0)
    assert started(cluster) == ["g"]


def test_a_deleted_topic_has_no_partitions(cluster: DraftCluster) -> None:
    """The draft does not expect it: topics are persistent."""
    cluster.consumer("a")
    for path in ("/brokers/topics/orders/1", "/brokers/topics/orders"):
        cluster.zookeeper.write(Delete(path))
    cluster.run(0)
    assert cluster.owners() == {}
    cluster.add_topic("orders", 2)
    assert len(cluster.owners()) == 2


@pytest.mark.parametrize("data", [b"", b"x", b"-1", b"1.5", b"10001", b"9" * 4_000, b"\xff"])
def test_a_number_of_partitions_that_is_none_counts_as_zero(cluster: DraftCluster, data: bytes) -> None:
    consumer = cluster.consumer("a")
    cluster.zookeeper.write(Create("/brokers/topics/orders/7", data))
    cluster.zookeeper.write(Create("/brokers/topics/orders/word", b"3"))
    cluster.run(0)
    assert set(consumer.started_with) == {Partition("orders", "1-0")}
    assert cluster.brokers[1].noted("not a number of partitions")[0]["broker"] == "7"


def test_a_topic_whose_name_is_none_is_left_alone(cluster: DraftCluster) -> None:
    consumer = cluster.consumer("a", topics=format_wildcard(".*"))
    cluster.add_topic("not a topic", 1)
    assert set(consumer.started_with) == {Partition("orders", "1-0")}


def test_handle_topic_change_waits_for_a_topic_that_is_refused(cluster: DraftCluster) -> None:
    broker = cluster.brokers[1]
    ask, is_refused = broker.link.ask, True

    def refuse(asked: Ask) -> None:
        if is_refused and asked.request == Read("/brokers/topics/secret/1", watch=True):
            broker.handle(Replied(asked.token, Outcome.NO_AUTH))
        else:
            ask(asked)

    broker.link.ask = refuse  # type: ignore[method-assign]  # ZooKeeper in memory has no access control
    cluster.add_topic("secret", 2)
    consumer = cluster.consumer("a", topics=format_topics({"secret": 1}))
    cluster.run(2_000)
    assert broker.noted("read failed")
    is_refused = False
    cluster.run(1_000)
    assert set(consumer.started_with) == {Partition("secret", "1-0"), Partition("secret", "1-1")}
