"""The largest sub-group of equal subscriptions assigns, and the others are dormant."""

from __future__ import annotations

import pytest

from kcoord_wire.worlds.proposal.all_members import hash_subscription, largest
from kcoord_wire.worlds.proposal.coordinator import Subscription
from kcoord_wire.worlds.proposal.proposal_world import ProposalCluster
from tests.support.proposals import consumes, settle

OLD, NEW = ("foo",), ("foo", "bar")


def _capacity(sim: ProposalCluster) -> dict[str, int]:
    owners = list(sim.owners().values())
    return {name: owners.count(name) for name in sorted(sim.processes)}


def test_the_example_of_the_document() -> None:
    """A and B consume foo, C consumes foo and bar; then B is upgraded, then A."""
    with ProposalCluster("subscription_hash", topics={"foo": 4, "bar": 2}) as sim:
        for name, topics in (("A", OLD), ("B", OLD), ("C", NEW)):
            sim.member(name, consumes(*topics))
        settle(sim)
        assert _capacity(sim) == {"A": 2, "B": 2, "C": 0}
        assert {topic for topic, _ in sim.owners()} == {"foo"}
        sim.restart("B", consumes(*NEW))
        settle(sim)
        assert _capacity(sim) == {"A": 0, "B": 3, "C": 3}
        assert sim.processes["A"].machine.is_dormant
        sim.restart("A", consumes(*NEW))
        settle(sim)
        assert _capacity(sim) == {"A": 2, "B": 2, "C": 2}


@pytest.mark.parametrize("members", [4, 5, 8])
def test_an_upgrade_halves_the_capacity_for_a_time(members: int) -> None:
    with ProposalCluster(
        "subscription_hash", topics={"foo": 24, "bar": 8}, members=members, options=consumes(*OLD)
    ) as sim:
        active = []
        for number in range(1, members + 1):
            settle(sim)
            active.append(sum(share > 0 for share in _capacity(sim).values()))
            sim.subscribe(f"m{number}", *NEW)
        settle(sim)
        active.append(sum(share > 0 for share in _capacity(sim).values()))
        assert active == [max(members - done, done) for done in range(members + 1)]
        assert min(active) == (members + 1) // 2


def test_the_order_of_the_topics_has_no_meaning() -> None:
    assert hash_subscription(Subscription(OLD)) != hash_subscription(Subscription(NEW))
    assert hash_subscription(Subscription(("bar", "foo"))) == hash_subscription(Subscription(NEW))
    assert hash_subscription(Subscription(pattern="foo")) != hash_subscription(Subscription(OLD))


def test_the_lowest_hash_breaks_a_tie() -> None:
    assert largest([b"b", b"a", b"c", b"c", b"b"]) == b"b"
    with ProposalCluster("subscription_hash", topics={"foo": 4, "bar": 2}) as sim:
        for name, topics in (("A", OLD), ("B", OLD), ("C", NEW), ("D", NEW)):
            sim.member(name, consumes(*topics))
        settle(sim)
        is_old = hash_subscription(Subscription(OLD)) < hash_subscription(Subscription(NEW))
        assert {name for name, share in _capacity(sim).items() if share} == set("AB" if is_old else "CD")


def test_stale_metadata_matters_inside_the_largest_sub_group() -> None:
    with ProposalCluster("subscription_hash", topics={"foo": 4, "bar": 2}) as sim:
        for name, topics in (("A", OLD), ("B", OLD), ("C", NEW)):
            sim.member(name, consumes(*topics))
        generation = settle(sim)
        sim.lag("C", 60_000)
        sim.add_partitions("bar", 3)
        assert settle(sim) == generation, "A and B do not consume bar, and C is dormant"
        sim.lag("B", 1_500)
        sim.add_partitions("foo", 2, refresh_ms=0)
        sim.run_until(lambda: len(sim.owners()) == 6)
        assert settle(sim) > generation + 1
