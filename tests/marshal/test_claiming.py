"""The steps of "Consuming a New Partition" and of a restart, each with its name, by members in virtual time."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from kcoord_wire.marshal import events
from kcoord_wire.marshal.log import coordination_partition
from kcoord_wire.messages.marshal import ClaimingPartition, HandingOver, Heartbeat, ReleasingPartition
from tests.support.marshal_script import LOST, Fate, MarshalScript, ScriptedMember

INTERVAL = 10_000


def first(world: MarshalScript, kind: type) -> Any:
    return world.entries(kind)[0].message


def asked(member: ScriptedMember, kind: type) -> list[int]:
    """The times of a member's effects of a kind; appends by the kind of their message."""
    return [
        time
        for time, effect in member.effects
        if isinstance(effect, kind) or (isinstance(effect, events.Append) and isinstance(effect.message, kind))
    ]


def test_step_1_one_partition_is_picked_in_each_pass() -> None:
    world = MarshalScript({"orders": 8})
    a = world.start("a")
    assert world.run_until(lambda: world.shares() == {"a": 8}, 8 * 450)
    times = asked(a, ClaimingPartition)
    assert len(times) == 8
    assert min(later - earlier for earlier, later in pairwise(times)) >= 200


def test_step_1_a_greedy_member_picks_all_at_once() -> None:
    world = MarshalScript({"orders": 100}, greedy=True)
    world.start("a")
    assert world.run_until(lambda: world.shares() == {"a": 100}, 300)


def test_step_2_members_begin_at_different_partitions() -> None:
    firsts = set()
    for name in "abcdefgh":
        world = MarshalScript({"orders": 64})
        world.start(name)
        world.run(300)
        firsts.add(first(world, ClaimingPartition).partition)
    assert len(firsts) > 4


def test_step_3_the_topic_decides_the_coordinating_partition() -> None:
    world = MarshalScript({"orders": 3, "payments": 3, "events": 3}, partitions=50, greedy=True)
    world.start("a")
    world.run(2_000)
    entries = world.entries()
    assert {entry.message.topic for entry in entries} == set(world.topics)
    assert all(entry.partition == coordination_partition(entry.message.topic, 50) for entry in entries)


def test_step_4_the_state_is_read_before_the_claim() -> None:
    world = MarshalScript({"orders": 1})
    a = world.start("a")
    world.run(300)
    kinds = [type(effect) for _, effect in a.effects]
    claim = kinds.index(events.Append)
    assert kinds[:claim].count(events.ReadToEnd) == 2, "once for the start, once for the claim"


def test_step_5_a_claim_that_is_not_stale_is_left_alone() -> None:
    world = MarshalScript({"orders": 1})
    a = world.start("a")
    world.run(1_000)
    b = world.start("b")
    world.run(20 * INTERVAL)
    assert asked(b, ClaimingPartition) == []
    assert world.held_by("orders", 0) is a
    assert "held by a (instance i-a)" in b.machine.describe().values()


def test_step_6_a_stale_claim_may_be_claimed() -> None:
    world = MarshalScript({"orders": 1})
    a = world.start("a")
    world.run(1_000)
    b = world.start("b")
    world.kill(a)
    world.run_until(lambda: bool(asked(b, ClaimingPartition)), 5 * INTERVAL)
    last = max(entry.time_ms for entry in world.entries(Heartbeat))
    assert 2 * INTERVAL < world.now - last < 2 * INTERVAL + 1_000
    assert world.run_until(lambda: world.held_by("orders", 0) is b, 1_000)


def test_step_7_a_claim_is_one_message() -> None:
    world = MarshalScript({"orders": 1})
    world.start("a")
    world.run(1_000)
    message = first(world, ClaimingPartition)
    assert (message.client_id, message.instance_id, message.group_id) == ("a", "i-a", "group")
    assert len(world.entries(ClaimingPartition)) == 1


def test_step_7_an_append_that_failed_but_landed_wins() -> None:
    world = MarshalScript({"orders": 1})
    world.fate = lambda _, message: Fate((5,), None) if isinstance(message, ClaimingPartition) else Fate()
    a = world.start("a")
    assert world.run_until(lambda: world.held_by("orders", 0) is a, 1_500)
    assert len(world.entries(ClaimingPartition)) == 1


def test_step_7_an_append_that_failed_is_tried_again() -> None:
    world = MarshalScript({"orders": 1})
    fates = [LOST, LOST]
    world.fate = lambda *_: fates.pop() if fates else Fate()
    a = world.start("a")
    assert world.run_until(lambda: world.held_by("orders", 0) is a, 5_000)
    assert len(a.noted("claims not appended")) == 2


def test_step_8_the_log_is_read_to_its_end_after_the_claim() -> None:
    world = MarshalScript({"orders": 1})
    a = world.start("a")
    world.run(1_000)
    claimed, read = asked(a, ClaimingPartition)[0], asked(a, events.ReadToEnd)
    appended = world.entries(ClaimingPartition)[0]
    assert any(time >= claimed for time in read)
    assert asked(a, events.StartFetching)[0] > max(time for time in read if time >= appended.time_ms)


@pytest.mark.parametrize("late_ms", [0, 3, 40, 200])
def test_step_9_the_earliest_claim_wins_a_race(late_ms: int) -> None:
    world = MarshalScript({"orders": 1})
    world.fate = lambda member, _: Fate((5 + late_ms,), 10 + late_ms) if member.name == "a" else Fate()
    a, b = world.start("a"), world.start("b")
    world.run(2_000)
    claims = world.entries(ClaimingPartition)
    assert len(claims) == (1 if len(asked(a, ClaimingPartition)) + len(asked(b, ClaimingPartition)) == 1 else 2)
    winner = world.members[claims[0].message.client_id]
    assert world.held_by("orders", 0) is winner
    assert winner.done(events.StartFetching)[0].tenure.token == claims[0].offset


def test_step_10_who_lost_goes_on_with_another_partition() -> None:
    world = MarshalScript({"orders": 2}, greedy=True)
    world.start("a", max_claims=1)
    world.start("b", max_claims=1)
    assert world.run_until(lambda: world.shares() == {"a": 1, "b": 1}, 2_000)


def test_step_11_a_heartbeat_follows_the_won_claim_at_once() -> None:
    world = MarshalScript({"orders": 1})
    a = world.start("a")
    world.run(1_000)
    entries = world.entries()
    assert [type(entry.message) for entry in entries] == [ClaimingPartition, Heartbeat]
    assert entries[1].time_ms - entries[0].time_ms < 50
    assert asked(a, events.FindStart)[0] >= asked(a, Heartbeat)[0]


def test_the_offset_is_that_of_the_log_after_the_claim_was_won() -> None:
    """A release that lands between the look at the state and the claim must not be missed."""
    world = MarshalScript({"orders": 1}, cooldown_ms=60_000)
    a = world.start("a")
    world.run(1_000)
    b = world.start("b")
    world.run(1_000)
    world.work(a, 50)
    world.give(a, events.Release("orders", 0))
    assert world.run_until(lambda: world.held_by("orders", 0) is b, 3_000)
    assert b.done(events.FindStart)[0].offset == 50
    assert b.done(events.StartFetching)[0].offset == 50


def test_a_claim_that_landed_too_late_is_released() -> None:
    world = MarshalScript({"orders": 1}, cooldown_ms=0)
    fates = [Fate((20_000,), None)]
    world.fate = lambda *_: fates.pop() if fates else Fate()
    a = world.start("a", claim_timeout_ms=300)
    assert world.run_until(lambda: world.held_by("orders", 0) is a, 2_000)
    world.shut_down(a)
    world.run(1_000)
    b = world.start("b", pass_ms=100_000)
    assert world.run_until(lambda: world.held_by("orders", 0) is b, 1_000)
    world.run(30_000)
    assert world.held_by("orders", 0) is b, "the claim that landed now is refused"


def test_a_claim_that_is_not_read_back_in_time_is_given_up() -> None:
    """It has won, but no member works on it: it is released when the log is back, then claimed anew."""
    world = MarshalScript({"orders": 1})
    a = world.start("a", claim_timeout_ms=1_000)
    assert world.run_until(lambda: world.entries(ClaimingPartition) != [], 1_000)
    world.cut_off(a, 3_000)
    world.run(2_900)
    assert len(a.noted("claim timed out")) >= 1
    assert a.machine.tenures() == []
    assert world.run_until(lambda: world.held_by("orders", 0) is a, 5_000)
    kinds = [type(entry.message) for entry in world.entries()]
    assert kinds == [ClaimingPartition, ReleasingPartition, ClaimingPartition, Heartbeat]


def test_at_most_max_claims_partitions_of_a_topic_are_held() -> None:
    world = MarshalScript({"orders": 5, "payments": 5}, max_claims=2, greedy=True)
    a = world.start("a")
    world.run(5_000)
    assert world.shares() == {"a": 4}
    assert list(a.machine.describe().values()).count("this member has as many as it may") == 6


def test_a_handed_over_partition_is_left_to_its_new_member() -> None:
    world = MarshalScript({"orders": 1}, cooldown_ms=60_000)
    a = world.start("a")
    world.run(1_000)
    b = world.start("b")
    world.run(1_000)
    (place,) = a.machine.describe()
    message = a.machine.context.message(HandingOver, place, to_instance_id="i-c")
    message.deadline = message.time + 20
    world.land(coordination_partition("orders", 4), message)
    world.run(100)
    world.give(a, events.Release("orders", 0))
    world.run(2_000)
    assert world.held_by("orders", 0) is None
    assert "handed over to instance i-c" in b.machine.describe().values()
    assert world.run_until(lambda: world.held_by("orders", 0) is b, 20_000)


# ---- "Consuming Recently Used Partitions on Restart"


def restarted(world: MarshalScript, after_ms: int) -> ScriptedMember:
    a = world.start("a", greedy=True)
    world.run(1_000)
    world.work(a, 100)
    world.run(INTERVAL)
    world.kill(a)
    world.run(after_ms)
    return world.start("a2", client="a")


def test_restart_steps_1_to_3_fresh_claims_are_recovered() -> None:
    world = MarshalScript({"orders": 3})
    again = restarted(world, 500)
    assert world.run_until(lambda: world.shares()["a2"] == 3, 1_000)
    assert asked(again, ClaimingPartition) == []


def test_restart_step_4_consumption_goes_on_where_it_was() -> None:
    world = MarshalScript({"orders": 3})
    again = restarted(world, 500)
    world.run(1_000)
    assert [effect.offset for effect in again.done(events.StartFetching)] == [100, 100, 100]
    tokens = [effect.tenure.token for effect in again.done(events.StartFetching)]
    assert all(isinstance(world.log[coordination_partition("orders", 4)][token].message, Heartbeat) for token in tokens)


def test_claims_that_are_not_fresh_are_not_recovered() -> None:
    world = MarshalScript({"orders": 3})
    again = restarted(world, INTERVAL)
    world.run(3_000)
    assert world.shares()["a2"] == 0
    assert world.run_until(lambda: world.shares()["a2"] == 3, INTERVAL)
    assert len(asked(again, ClaimingPartition)) == 3


def test_without_fast_reclaim_nothing_is_recovered() -> None:
    world = MarshalScript({"orders": 3}, fast_reclaim=False)
    restarted(world, 500)
    world.run(3_000)
    assert world.shares()["a2"] == 0


def test_a_partition_given_up_cools_down() -> None:
    world = MarshalScript({"orders": 1})
    a = world.start("a")
    world.run(1_000)
    world.give(a, events.Release("orders", 0))
    world.run(9_000)
    assert len(asked(a, ClaimingPartition)) == 1
    assert "given it up" in "".join(a.machine.describe().values())
    assert world.run_until(lambda: world.held_by("orders", 0) is a, 2_000)
    assert len(world.entries(ReleasingPartition)) == 1
