"""Every member computes the assignment: the rolling upgrade, metadata hashes, and what an assignor can do wrong."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import pytest

from kcoord_wire.assignors import ASSIGNORS, MemberSubscription
from kcoord_wire.kernel.virtual.scripts import ViolationError
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.worlds.proposal import MemberOptions, ProposalCluster
from kcoord_wire.worlds.proposal.all_members import (
    AllMembersMember,
    AssignmentError,
    assign_checked,
    choose_protocol,
    hash_subscription,
    hash_topics,
    largest,
    topics_of,
)
from kcoord_wire.worlds.proposal.proposal_coordinator import MemberState, Strategy, Subscription
from kcoord_wire.worlds.proposal.single_assignor import RANGE, ROUND_ROBIN
from tests.support.proposals import consumes, count, group, settle, settled

NEWER = Strategy("round-robin", 1, ASSIGNORS["range"].assign)  # another algorithm, so that the version shows
OLD, BOTH, NEW = (consumes(strategies=each) for each in ((ROUND_ROBIN,), (NEWER, ROUND_ROBIN), (NEWER,)))


def _machines(sim: ProposalCluster) -> dict[str, AllMembersMember]:
    machines = {name: process.machine for name, process in sim.processes.items() if process.is_working}
    assert all(isinstance(machine, AllMembersMember) for machine in machines.values())
    return machines  # type: ignore[return-value]  # the line above


def _protocol(sim: ProposalCluster) -> tuple[str, int]:
    [protocol] = {machine.protocol for machine in _machines(sim).values()}
    return protocol


# ---- "Rolling Upgrades (Consumer)": the table of four phases


def test_a_rolling_upgrade_in_the_four_phases_of_the_document() -> None:
    with ProposalCluster("all_members", topics={"orders": 9, "bills": 2}, options=OLD) as sim:
        for name in "ABC":
            sim.member(name)
        settle(sim)
        phases = [_protocol(sim)]
        for name in "ABC":
            sim.restart(name, BOTH)
            settle(sim)
            phases.append(_protocol(sim))
        assert phases == [("round-robin", 0)] * 3 + [("round-robin", 1)]
        owners = sim.owners()
        in_ranges = ASSIGNORS["range"].assign
        subscriptions = {m.member_id: MemberSubscription(["orders", "bills"]) for m in _machines(sim).values()}
        shares = in_ranges(sim.topics, subscriptions)
        names = {machine.member_id: name for name, machine in _machines(sim).items()}
        assert {names[each]: len(share.get("bills", ())) for each, share in shares.items()} == {
            name: sum(owner == name for (topic, _), owner in owners.items() if topic == "bills") for name in "ABC"
        }


def test_another_round_removes_the_old_version() -> None:
    with ProposalCluster("all_members", topics={"orders": 9}, members=3, options=BOTH) as sim:
        settle(sim)
        for name in ("m1", "m2", "m3"):
            sim.restart(name, NEW)
            settle(sim)
            assert _protocol(sim) == ("round-robin", 1)


def test_an_upgrade_of_one_step_is_rejected() -> None:
    """A member that supports none of the group's protocols gets an error; the others go on."""
    with settled("all_members", options=OLD) as sim:
        owners = sim.owners()
        stranger = sim.member("stranger", NEW)
        sim.run(20_000)
        assert stranger.machine.state is MemberState.FAILED
        assert stranger.machine.error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert sim.owners() == owners


def test_the_same_way_leads_to_another_strategy() -> None:
    with ProposalCluster("all_members", topics={"orders": 9}, members=3) as sim:
        for name in ("m1", "m2", "m3"):
            settle(sim)
            assert _protocol(sim) == ("round-robin", 0)
            sim.restart(name, consumes(strategies=(RANGE, ROUND_ROBIN)))
        settle(sim)
        assert _protocol(sim) == ("range", 0)


@pytest.mark.parametrize(
    ("offers", "chosen"),
    [
        (["ab", "ab"], "a"),  # "if all members list protocol a before protocol b, then the coordinator will choose a"
        (["ab", "ba", "ba"], "b"),
        (["ab", "ba"], "a"),  # no agreement: the first in order, where the proposal draws one
        (["ab", "b"], "b"),
        (["cab", "ab", "ba"], "a"),
        (["a", "b"], None),
    ],
)
def test_the_protocol_follows_the_preferences(offers: list[str], chosen: str | None) -> None:
    protocol = choose_protocol([{(name, 0): b"" for name in offer} for offer in offers])
    assert protocol == (None if chosen is None else (chosen, 0))


# ---- subscriptions


def test_members_with_unlike_subscriptions_share_what_they_want() -> None:
    with ProposalCluster("all_members", topics={"foo": 4, "bar": 2}) as sim:
        sim.member("A", consumes("foo"))
        sim.member("B", consumes("foo", "bar"))
        sim.member("C", MemberOptions(subscription=Subscription(pattern="ba.")))
        settle(sim)
        topics = {name: {topic for (topic, _), owner in sim.owners().items() if owner == name} for name in "ABC"}
        assert topics["A"] == {"foo"}
        assert topics["C"] == {"bar"}
        assert all(machine.disagreements == 0 for machine in _machines(sim).values())
        sim.add_partitions("baz", 3)
        settle(sim)
        assert {owner for (topic, _), owner in sim.owners().items() if topic == "baz"} == {"C"}


@pytest.mark.parametrize("variant", ["all_members", "single_assignor"])
def test_a_changed_subscription_makes_all_members_rejoin(variant: str) -> None:
    with ProposalCluster(variant, topics={"foo": 4, "bar": 2}, members=3, options=consumes("foo")) as sim:
        generation = settle(sim)
        since = sim.now
        sim.subscribe("m2", "foo", "bar")
        assert settle(sim) == generation + 1
        told = [count(sim, name, "Heartbeat", since=since, error=27) for name in ("m1", "m2", "m3")]
        assert told == [1, 0, 1]
        assert {owner for (topic, _), owner in sim.owners().items() if topic == "bar"} == {"m2"}


def test_topics_and_hashes_of_subscriptions() -> None:
    counts = {"foo": 4, "bar": 2}
    by_name, by_pattern = Subscription(("foo", "new")), Subscription(pattern="f.*")
    assert (topics_of(by_name, counts), topics_of(by_pattern, counts)) == (["foo"], ["foo"])
    assert hash_topics(by_name, counts) == hashlib.sha256(b"foo\x004\nnew\x000\n").digest()
    assert hash_topics(by_pattern, counts) == hashlib.sha256(b"bar\x002\nfoo\x004\n").digest()
    assert hash_topics(by_name, counts) == hash_topics(by_name, {**counts, "bar": 3})


def test_metadata_that_cannot_be_read_is_an_error_for_all() -> None:
    """A pattern that is no regular expression; no member can say which partitions its sender gets."""
    with settled("all_members") as sim:
        sim.member("m4", MemberOptions(subscription=Subscription(pattern="(")))
        sim.run(20_000)
        assert {process.machine.error for process in sim.processes.values()} == {ErrorCode.INCONSISTENT_GROUP_PROTOCOL}
        text = next(line.detail.text for line in sim.trace if line.what == "fails")
        assert "'(' is not a regular expression" in text


# ---- metadata hashes


def test_new_partitions_are_assigned_once_all_see_them() -> None:
    with settled("all_members") as sim:
        generation = group(sim).generation
        sim.add_partitions("orders", 3, refresh_ms=2_000)
        sim.run_until(sim.is_settled)
        assert len(sim.owners()) == 12
        assert group(sim).generation > generation


def test_a_member_with_stale_metadata_costs_rebalances() -> None:
    with settled("all_members") as sim:
        sim.lag("m2", 1_500)
        sim.add_partitions("orders", 3, refresh_ms=0)
        disagreeing = _machines(sim)["m1"]
        sim.run_until(lambda: disagreeing.disagreements > 0)
        assert settle(sim)
        assert len(sim.owners()) == 12
        assert disagreeing.disagreements == 0


def test_a_sustained_disagreement_ends_in_an_error() -> None:
    """m2's broker is behind for an hour. The delays between the attempts double, and the members give up."""
    with settled("all_members") as sim:
        generation = group(sim).generation
        sim.lag("m2", 3_600_000)
        sim.add_partitions("orders", 3, refresh_ms=0)
        sim.run(120_000)
        members = [process.machine for process in sim.processes.values()]
        assert {member.state for member in members} == {MemberState.FAILED}
        assert {member.error for member in members} == {ErrorCode.INCONSISTENT_GROUP_PROTOCOL}
        assert group(sim).generation - generation <= 12
        errors = [line.detail.text for line in sim.trace if line.what == "fails"]
        assert errors[0] == "members have seen different topic metadata in 6 generations in a row"


def test_metadata_from_the_coordinator_ends_a_disagreement() -> None:
    """The document's remedy: "having the consumers fetch their metadata from the coordinator"."""
    with settled("all_members", options=MemberOptions(asks_coordinator=True)) as sim:
        sim.lag("m2", 3_600_000)
        sim.add_partitions("orders", 3)
        settle(sim)
        assert len(sim.owners()) == 12


def test_consistent_hashing_needs_no_agreement() -> None:
    """The document's example: each partition has one owner, however many partitions a member sees."""

    def assign(counts: Mapping[str, int], members: Mapping[str, MemberSubscription], _racks: Any = None) -> Any:
        def weight(member_id: str, topic: str, index: int) -> bytes:
            return hashlib.sha256(f"{member_id}/{topic}/{index}".encode()).digest()

        shares: dict[str, dict[str, list[int]]] = {member_id: {} for member_id in members}
        for topic, number in counts.items():
            for index in range(number):
                owner = max(members, key=lambda member_id: weight(member_id, topic, index))
                shares[owner].setdefault(topic, []).append(index)
        return shares

    hashing = Strategy("consistent-hash", 0, assign, needs_agreement=False)
    with settled("all_members", options=consumes(strategies=(hashing,))) as sim:
        sim.lag("m2", 3_600_000)
        sim.add_partitions("orders", 30, refresh_ms=0)
        sim.run(60_000)
        assert all(machine.state is MemberState.STABLE for machine in _machines(sim).values())
        assert all(machine.disagreements == 0 for machine in _machines(sim).values())
        assert 9 + 15 < len(sim.owners()) < 39, "what m2 does not see has no owner, and nothing has two"


# ---- what assignors can do wrong


def test_members_that_compute_differently_own_a_partition_twice() -> None:
    """The law sees it. The document asks for deterministic assignors, and the protocol cannot check that."""

    def everything_to(mine: str) -> Strategy:
        def assign(counts: Mapping[str, int], members: Mapping[str, MemberSubscription], _racks: Any = None) -> Any:
            first = next(each for each in members if each.startswith(mine))
            return {first: {topic: range(number) for topic, number in counts.items()}}

        return Strategy("selfish", 0, assign)

    with ProposalCluster("all_members", topics={"orders": 3}) as sim:
        sim.member("m1", consumes(strategies=(everything_to("m1"),)))
        settle(sim)
        sim.member("m2", consumes(strategies=(everything_to("m2"),)))
        with pytest.raises(ViolationError, match="one owner"):
            sim.run(30_000)


def _raises(*_: Any) -> Any:
    raise RuntimeError("no")


@pytest.mark.parametrize(
    ("assign", "text"),
    [
        (_raises, "has failed: RuntimeError"),
        (lambda *_: None, "has failed: AttributeError"),
        (lambda *_: {"m1": {"orders": [0]}, "m2": {"orders": [0]}}, "orders-0 2 times"),
        (lambda *_: {"m1": {"orders": [9]}}, "orders-9 1 times"),
        (lambda *_: {"m1": {"bills": [0]}}, "bills-0 1 times"),
        (lambda *_: {"m3": {"orders": [0]}}, "not in the group"),
    ],
)
def test_an_assignment_is_checked(assign: Any, text: str) -> None:
    members = {"m1": MemberSubscription(["orders"]), "m2": MemberSubscription(["orders"])}
    with pytest.raises(AssignmentError, match=text):
        assign_checked(Strategy("odd", 0, assign), {"orders": 9}, members)


def test_an_assignor_that_raises_ends_in_an_error() -> None:
    with ProposalCluster("all_members", topics={"orders": 3}, members=2) as sim:
        settle(sim)
        sim.restart("m1", consumes(strategies=(Strategy("round-robin", 0, _raises),)))
        sim.run(10_000)
        assert sim.processes["m1"].machine.error == ErrorCode.UNKNOWN_SERVER_ERROR
        assert set(sim.owners().values()) == {"m2"}


OLD_TOPICS, NEW_TOPICS = ("foo",), ("foo", "bar")


def _capacity(sim: ProposalCluster) -> dict[str, int]:
    owners = list(sim.owners().values())
    return {name: owners.count(name) for name in sorted(sim.processes)}


def test_the_example_of_the_document() -> None:
    """A and B consume foo, C consumes foo and bar; then B is upgraded, then A."""
    with ProposalCluster("subscription_hash", topics={"foo": 4, "bar": 2}) as sim:
        for name, topics in (("A", OLD_TOPICS), ("B", OLD_TOPICS), ("C", NEW_TOPICS)):
            sim.member(name, consumes(*topics))
        settle(sim)
        assert _capacity(sim) == {"A": 2, "B": 2, "C": 0}
        assert {topic for topic, _ in sim.owners()} == {"foo"}
        sim.restart("B", consumes(*NEW_TOPICS))
        settle(sim)
        assert _capacity(sim) == {"A": 0, "B": 3, "C": 3}
        assert sim.processes["A"].machine.is_dormant
        sim.restart("A", consumes(*NEW_TOPICS))
        settle(sim)
        assert _capacity(sim) == {"A": 2, "B": 2, "C": 2}


@pytest.mark.parametrize("members", [4, 5, 8])
def test_an_upgrade_halves_the_capacity_for_a_time(members: int) -> None:
    with ProposalCluster(
        "subscription_hash", topics={"foo": 24, "bar": 8}, members=members, options=consumes(*OLD_TOPICS)
    ) as sim:
        active = []
        for number in range(1, members + 1):
            settle(sim)
            active.append(sum(share > 0 for share in _capacity(sim).values()))
            sim.subscribe(f"m{number}", *NEW_TOPICS)
        settle(sim)
        active.append(sum(share > 0 for share in _capacity(sim).values()))
        assert active == [max(members - done, done) for done in range(members + 1)]
        assert min(active) == (members + 1) // 2


def test_the_order_of_the_topics_has_no_meaning() -> None:
    assert hash_subscription(Subscription(OLD_TOPICS)) != hash_subscription(Subscription(NEW_TOPICS))
    assert hash_subscription(Subscription(("bar", "foo"))) == hash_subscription(Subscription(NEW_TOPICS))
    assert hash_subscription(Subscription(pattern="foo")) != hash_subscription(Subscription(OLD_TOPICS))


def test_the_lowest_hash_breaks_a_tie() -> None:
    assert largest([b"b", b"a", b"c", b"c", b"b"]) == b"b"
    with ProposalCluster("subscription_hash", topics={"foo": 4, "bar": 2}) as sim:
        for name, topics in (("A", OLD_TOPICS), ("B", OLD_TOPICS), ("C", NEW_TOPICS), ("D", NEW_TOPICS)):
            sim.member(name, consumes(*topics))
        settle(sim)
        is_old = hash_subscription(Subscription(OLD_TOPICS)) < hash_subscription(Subscription(NEW_TOPICS))
        assert {name for name, share in _capacity(sim).items() if share} == set("AB" if is_old else "CD")


def test_stale_metadata_matters_inside_the_largest_sub_group() -> None:
    with ProposalCluster("subscription_hash", topics={"foo": 4, "bar": 2}) as sim:
        for name, topics in (("A", OLD_TOPICS), ("B", OLD_TOPICS), ("C", NEW_TOPICS)):
            sim.member(name, consumes(*topics))
        generation = settle(sim)
        sim.lag("C", 60_000)
        sim.add_partitions("bar", 3)
        assert settle(sim) == generation, "A and B do not consume bar, and C is dormant"
        sim.lag("B", 1_500)
        sim.add_partitions("foo", 2, refresh_ms=0)
        sim.run_until(lambda: len(sim.owners()) == 6)
        assert settle(sim) > generation + 1
