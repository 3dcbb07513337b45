"""The computation of 1.3 and the comparison of step 3 (section 9)."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from kcoord_wire.central.draft.context import assign, partition_order, why_rebalance
from kcoord_wire.central.draft.events import Partition
from kcoord_wire.central.draft.groups import Group, GroupStore, Member
from kcoord_wire.central.draft.subscription import format_topics, format_wildcard, parse_topic_count
from kcoord_wire.zookeeper.layout import GroupRecord


def make_group(**topic_counts: str) -> Group:
    group = Group("g", GroupStore("g"))
    for connection, (name, text) in enumerate(topic_counts.items()):
        count = parse_topic_count(text)
        group.members[name] = Member(group, name, connection, count, True, "smallest", 6_000, is_fenced=False)
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
