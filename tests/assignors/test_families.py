"""The families of cases that other projects test their assignors with, as cases of our own.

Names are theirs: Kafka's AbstractStickyAssignorTest, StickyAssignorTest and CooperativeStickyAssignorTest, the tests of
librdkafka's rdkafka_sticky_assignor.c (the same families), and the graphs of franz-go's sticky_test.go.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

import pytest

from kcoord_wire.assignors import ASSIGNORS, Assignment, Assignor, MemberSubscription, Partitions, TopicPartition
from kcoord_wire.assignors import list_partitions as named
from kcoord_wire.assignors.embedded import ConsumerProtocol
from kcoord_wire.assignors.rules import check_assignment
from tests.support.assignments import loads_are_balanced, partitions_of

STICKY = pytest.mark.parametrize(
    "assignor", [ASSIGNORS["sticky"], ASSIGNORS["cooperative-sticky"]], ids=lambda a: a.name
)


class Play:
    """A group through its rebalances: members report what they own, as the protocol has it.

    :ivar counts: the topics
    :ivar subscribed: the members' topics
    :ivar owned: what each member has
    :ivar follow_ups: rebalances that the last one made necessary
    """

    def __init__(self, assignor: Assignor, counts: Mapping[str, int], subscribed: Mapping[str, Iterable[str]]) -> None:
        self.assignor = assignor
        self.counts = dict(counts)
        self.subscribed = {member: list(topics) for member, topics in subscribed.items()}
        self.owned: Assignment = {}
        self.generation = 0
        self.follow_ups = 0

    def own(self, **owned: Partitions) -> Play:
        self.owned, self.generation = owned, self.generation + 1
        return self

    def rebalance(self) -> int:
        """Rebalance until no member has to give anything up; return how many partitions moved from living members."""
        before = {each: member for member in self.subscribed for each in named(self.owned.get(member, {}))}
        self.follow_ups = -1
        revoked = True
        while revoked:
            members = {
                member: MemberSubscription(topics, self.owned.get(member, {}), self.generation)
                for member, topics in self.subscribed.items()
            }
            given = self.assignor.assign(self.counts, members)
            assert check_assignment(given, self.counts, members, self.assignor.protocol) == []
            lost = [set(named(self.owned.get(member, {}))) - set(named(given[member])) for member in given]
            revoked = self.assignor.name == "cooperative-sticky" and any(lost)
            self.owned, self.generation, self.follow_ups = given, self.generation + 1, self.follow_ups + 1
        wanted = {topic for topics in self.subscribed.values() for topic in topics}
        assert sorted(partitions_of(self.owned)) == sorted(
            TopicPartition(topic, number)
            for topic in wanted & self.counts.keys()
            for number in range(self.counts[topic])
        )
        assert loads_are_balanced(self.owned, members)
        assert self.follow_ups <= 1
        assert self.assignor.assign(self.counts, members | self._present()) == self.owned, "it is stable"
        after = {each: member for member, has in self.owned.items() for each in named(has)}
        return sum(after.get(each) != member for each, member in before.items() if each in after)

    def _present(self) -> dict[str, MemberSubscription]:
        return {
            member: MemberSubscription(topics, self.owned[member], self.generation)
            for member, topics in self.subscribed.items()
        }

    def loads(self) -> list[int]:
        return [len(named(has)) for _, has in sorted(self.owned.items())]


# ---- Kafka and librdkafka


@pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=lambda assignor: assignor.name)
@pytest.mark.parametrize(
    ("counts", "subscribed", "loads"),
    [
        pytest.param({}, {"c": []}, [0], id="one consumer no topic"),
        pytest.param({}, {"c": ["t"]}, [0], id="one consumer nonexistent topic"),
        pytest.param({"t": 3}, {"c": ["t"]}, [3], id="one consumer one topic"),
        pytest.param({"t": 3, "other": 3}, {"c": ["t"]}, [3], id="only assigns partitions from subscribed topics"),
        pytest.param({"t": 1, "u": 2}, {"c": ["t", "u"]}, [3], id="one consumer multiple topics"),
        pytest.param({"t": 1}, {"c": ["t"], "d": ["t"]}, [1, 0], id="two consumers one topic one partition"),
        pytest.param({"t": 2}, {"c": ["t"], "d": ["t"]}, [1, 1], id="two consumers one topic two partitions"),
        pytest.param({"t": 3, "u": 3}, {"c": ["t", "u"], "d": ["t", "u"]}, None, id="two topics six partitions"),
        pytest.param({"t": 3, "u": 2}, {"c": ["t"], "d": ["t", "u"], "e": ["t"]}, None, id="mixed topic subscriptions"),
    ],
)
def test_first_assignments(
    assignor: Assignor, counts: dict[str, int], subscribed: dict[str, list[str]], loads: list[int] | None
) -> None:
    members = {member: MemberSubscription(topics) for member, topics in subscribed.items()}
    given = assignor.assign(counts, members)
    assert check_assignment(given, counts, members, assignor.protocol) == []
    assert len(partitions_of(given)) == sum(counts.get(t, 0) for t in {t for each in subscribed.values() for t in each})
    if loads is not None:
        assert [len(named(has)) for has in given.values()] == loads


@STICKY
@pytest.mark.parametrize(
    ("counts", "owned", "loads", "moves"),
    [
        pytest.param(
            {"t": 2, "u": 3},
            {"a": {"t": [0], "u": [1]}, "b": {"t": [1], "u": [2]}},
            [3, 2],
            0,
            id="owning min quota expected max quota",
        ),
        pytest.param(
            {"t": 2, "u": 2},
            {"a": {"t": [0], "u": [0]}, "b": {"t": [1], "u": [1]}, "c": {}},
            [2, 1, 1],
            1,
            id="max quota members more than expected",
        ),
        pytest.param(
            {"t": 2, "u": 3}, {"a": {"t": [0]}, "b": {"t": [1]}, "c": {}}, [2, 2, 1], 0, id="all are under min quota"
        ),
        pytest.param({"t": 3}, {"a": {"t": [0]}, "b": {"t": [1, 2]}}, [1, 2], 0, id="add remove consumer one topic"),
        pytest.param({"t": 4, "u": 3}, {"a": {"t": range(4)}, "b": {}}, [4, 3], 0, id="topic added"),
        pytest.param({"u": 3}, {"a": {"t": range(4), "u": [0]}, "b": {"u": [1, 2]}}, [1, 2], 0, id="deleted topic"),
        pytest.param({"t": 6}, {"a": {"t": [1, 3, 5]}, "b": {"t": [0, 2, 4]}}, [3, 3], 0, id="nothing to do"),
        pytest.param({"t": 9}, {"a": {"t": range(9)}, "b": {}, "c": {}}, [3, 3, 3], 6, id="all at one"),
    ],
)
def test_quotas(
    assignor: Assignor, counts: dict[str, int], owned: dict[str, Partitions], loads: list[int], moves: int
) -> None:
    play = Play(assignor, counts, dict.fromkeys(owned, counts)).own(**owned)
    assert play.rebalance() == moves
    assert play.loads() == loads


@STICKY
def test_reassignment_after_one_consumer_leaves(assignor: Assignor) -> None:
    counts = {f"t{number:02}": number + 1 for number in range(19)}
    play = Play(assignor, counts, {f"c{number:02}": list(counts)[: number + 1] for number in range(19)})
    play.rebalance()
    del play.subscribed["c10"]
    held = len(named(play.owned.pop("c10")))
    assert play.rebalance() <= held


@STICKY
def test_reassignment_after_one_consumer_added(assignor: Assignor) -> None:
    play = Play(assignor, {"t": 20}, {f"c{number}": ["t"] for number in range(9)})
    play.rebalance()
    play.subscribed["c9"] = ["t"]
    assert play.rebalance() == 2
    assert play.loads() == [2] * 10


@STICKY
def test_same_subscriptions(assignor: Assignor) -> None:
    counts = {f"t{number:02}": number + 1 for number in range(14)}
    play = Play(assignor, counts, {f"c{number}": counts for number in range(9)})
    play.rebalance()
    del play.subscribed["c5"], play.owned["c5"]
    assert play.rebalance() == 0


@STICKY
@pytest.mark.parametrize("seed", range(4))
def test_many_consumers_leave_with_random_subscriptions(assignor: Assignor, seed: int) -> None:
    """40 topics, 200 members, of which 50 leave."""
    chance = random.Random(seed)
    counts = {f"t{number}": chance.randint(1, 10) for number in range(40)}
    names = sorted(counts)
    play = Play(assignor, counts, {f"c{n}": chance.sample(names, chance.randint(1, 20)) for n in range(200)})
    play.rebalance()
    for member in chance.sample(sorted(play.subscribed), 50):
        del play.subscribed[member], play.owned[member]
    total = sum(counts.values())
    assert play.rebalance() < total / 4, "fewer than the members that left had"


@STICKY
@pytest.mark.parametrize("seed", range(6))
def test_random_subscriptions_and_changes(assignor: Assignor, seed: int) -> None:
    """KAFKA-9029: Kafka's own test lets a cooperative assignment take four rebalances more; `Play` allows one."""
    chance = random.Random(seed)
    counts = {f"t{number}": chance.randint(1, 8) for number in range(8)}
    names = sorted(counts)
    play = Play(assignor, counts, {f"c{n}": chance.sample(names, chance.randint(1, 8)) for n in range(12)})
    for step in range(8):
        play.rebalance()
        member = chance.choice(sorted(play.subscribed))
        play.subscribed[member] = chance.sample(names, chance.randint(1, 8))
        if step % 3 == 0:
            del play.subscribed[member], play.owned[member]
            play.subscribed[f"new{step}"] = chance.sample(names, chance.randint(1, 8))
        play.counts[chance.choice(names)] += 1


@STICKY
def test_new_subscription(assignor: Assignor) -> None:
    """A member subscribes to a topic that only another had."""
    play = Play(assignor, {"t": 1, "u": 2}, {"a": ["t", "u"], "b": ["t"]})
    play.rebalance()
    play.subscribed["b"] = ["t", "u"]
    assert play.rebalance() == 0
    assert sorted(play.loads()) == [1, 2]


@STICKY
def test_move_existing_assignments(assignor: Assignor) -> None:
    play = Play(assignor, {"t": 2, "u": 2, "v": 1, "w": 1}, {"a": "tu", "b": "tuvw", "c": "vw"})
    play.own(a={"t": [0]}, b={"t": [1], "u": [0, 1], "v": [0]}, c={"w": [0]})
    assert play.rebalance() == 2
    assert play.loads() == [2, 2, 2]


@STICKY
def test_poor_round_robin_assignment(assignor: Assignor) -> None:
    counts = {"t1": 2, "t2": 1, "t3": 2, "t4": 1, "t5": 2}
    everything = list(counts)
    play = Play(assignor, counts, {"a": everything, "b": ["t1", "t3", "t5"], "c": ["t1", "t3", "t5"], "d": everything})
    play.rebalance()
    assert play.loads() == [2, 2, 2, 2]


# ---- generations


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        pytest.param({"a": (1, [0, 1, 2]), "b": (2, [0, 1, 2])}, {"b": [0, 1, 2]}, id="the higher generation wins"),
        pytest.param({"a": (2, [0, 1]), "b": (1, [1, 2]), "c": (1, [2])}, {"a": [0, 1]}, id="conflicting generations"),
        pytest.param({"a": (-1, [0, 1]), "b": (4, [1, 2])}, {"a": [0], "b": [1, 2]}, id="no generation"),
        pytest.param({"a": (3, [0, 1]), "b": (3, [1, 2])}, {"a": [0], "b": [2]}, id="equal generations: neither"),
        pytest.param({"a": (1, [5]), "b": (9, [0])}, {"a": [5], "b": [0]}, id="stale, but alone"),
    ],
)
def test_claims_of_several_generations(
    claims: dict[str, tuple[int, list[int]]], expected: dict[str, list[int]]
) -> None:
    """What stays where it is; no other member gets what a member still claims."""
    members = {
        name: MemberSubscription(["t"], {"t": owned}, generation) for name, (generation, owned) in claims.items()
    }
    given = ASSIGNORS["cooperative-sticky"].assign({"t": 6}, members)
    kept = {name: sorted(set(given[name].get("t", ())) & set(owned)) for name, (_, owned) in claims.items()}
    assert {name: numbers for name, numbers in kept.items() if numbers} == expected
    claimed = {number for _, owned in claims.values() for number in owned}
    for name, has in given.items():
        assert set(has.get("t", ())) & claimed == set(expected.get(name, ()))


def test_old_versions_have_their_generation_in_the_user_data() -> None:
    """A member with subscription version 1 (Kafka 2.4 to 3.1) and a stale one with version 3."""
    assignor = ASSIGNORS["cooperative-sticky"]
    assert assignor.on_join is not None
    members = {}
    for name, version, generation in (("old client", 1, 7), ("stale", 3, 6)):
        data = assignor.on_join(["t"], {"t": [0, 1]}, generation)
        sent = ConsumerProtocol(version).encode_subscription(
            MemberSubscription(["t"], {"t": [0, 1]}, generation, user_data=data)
        )
        members[name] = ConsumerProtocol().decode_subscription(sent, None)
    assert assignor.assign({"t": 4}, members) == {"old client": {"t": [0, 1]}, "stale": {"t": [2, 3]}}


# ---- franz-go


GRAPHS = {
    # One member holds nearly everything, in topics of very unequal size.
    "bigly disbalancy": ({"x": 40, "y": 3, "z": 1}, {"a": "xyz", "b": "xyz", "c": "x", "d": "yz"}),
    # What the last member may take has to be stolen over two others.
    "complicated steals": ({"x": 6, "y": 5, "z": 4}, {"a": "x", "b": "xy", "c": "yz", "d": "z", "e": "z"}),
    # Two members can only pass partitions to each other.
    "back and forth": ({"x": 5, "y": 5}, {"a": "xy", "b": "xy", "c": "x"}),
    # Each member subscribes to one topic more than the next.
    "odd pyramid": (
        {"v": 5, "w": 4, "x": 3, "y": 2, "z": 1},
        {"a": "vwxyz", "b": "vwxy", "c": "vwx", "d": "vw", "e": "v"},
    ),
    # A chain that ends at a member without a further topic; one topic does not exist.
    "chain stop and noexist drop": ({"x": 4, "y": 4, "z": 4}, {"a": "x", "b": "xy", "c": "yz", "d": "z?"}),
    # Every member is reached from every other, but over different numbers of steps.
    "graph reachy": (
        {"u": 2, "v": 4, "w": 6, "x": 8, "y": 10},
        {"a": "uv", "b": "vw", "c": "wx", "d": "xy", "e": "yu", "f": "u"},
    ),
    # The loads cannot be equal: one topic with one subscriber.
    "imbalance hard": ({"x": 30, "y": 2, "z": 2}, {"a": "x", "b": "yz", "c": "yz", "d": "z"}),
}


@STICKY
@pytest.mark.parametrize("graph", GRAPHS)
def test_hard_graphs_from_every_start(assignor: Assignor, graph: str) -> None:
    """From nothing, and from everything at the first, or at the last, member that may have it."""
    counts, subscribed = GRAPHS[graph]
    orders = [None, sorted(subscribed), sorted(subscribed, reverse=True)]
    for order in orders:
        play = Play(assignor, counts, subscribed)
        if order is not None:
            first = {topic: next(member for member in order if topic in subscribed[member]) for topic in counts}
            play.own(**{m: {t: range(counts[t]) for t in counts if first[t] == m} for m in subscribed})
        play.rebalance()
        for leaving in sorted(subscribed):
            left = {member: topics for member, topics in subscribed.items() if member != leaving}
            smaller = Play(assignor, counts, left)
            smaller.own(**{member: has for member, has in play.owned.items() if member != leaving})
            smaller.rebalance()
