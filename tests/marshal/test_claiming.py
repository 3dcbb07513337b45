"""The steps of "Consuming a New Partition" and of a restart, each with its name, by members in virtual time.

Members that balance, in virtual time: handoffs that work, and those that are cut short at each step.

Rounds of giving, from any state, converge, stop, and leave no member empty, also where members see old states.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcoord_wire.marshal import member_events as events
from kcoord_wire.marshal.claiming import Give, View, plan_gives, receivers
from kcoord_wire.marshal.context import Context
from kcoord_wire.marshal.log import coordination_partition
from kcoord_wire.marshal.member_events import (
    Append,
    Balance,
    Delivered,
    LossReason,
    MemberSettings,
    Processed,
    StartFetching,
    StopFetching,
)
from kcoord_wire.marshal.world_state import Claim, Handoff, KnownMember, Place, Rules, WorldState
from kcoord_wire.messages.marshal import ClaimingPartition, HandingOver, Heartbeat, Presence, ReleasingPartition
from tests.support.marshal_script import LOST, Fate, MarshalScript, ScriptedMember, one_member

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
    world, a = one_member()
    b = world.start("b")
    world.run(20 * INTERVAL)
    assert asked(b, ClaimingPartition) == []
    assert world.held_by("orders", 0) is a
    assert "held by a (instance i-a)" in b.member.describe().values()


def test_step_6_a_stale_claim_may_be_claimed() -> None:
    world, a = one_member()
    b = world.start("b")
    a.kill()
    world.run_until(lambda: bool(asked(b, ClaimingPartition)), 5 * INTERVAL)
    last = max(entry.time_ms for entry in world.entries(Heartbeat))
    assert 2 * INTERVAL < world.now - last < 2 * INTERVAL + 1_000
    assert world.run_until(lambda: world.held_by("orders", 0) is b, 1_000)


def test_step_7_a_claim_is_one_message() -> None:
    world, _ = one_member()
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
    world, a = one_member()
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
    world, a = one_member()
    entries = world.entries()
    assert [type(entry.message) for entry in entries] == [ClaimingPartition, Heartbeat]
    assert entries[1].time_ms - entries[0].time_ms < 50
    assert asked(a, events.FindStart)[0] >= asked(a, Heartbeat)[0]


def test_the_offset_is_that_of_the_log_after_the_claim_was_won() -> None:
    """A release that lands between the look at the state and the claim must not be missed."""
    world, a = one_member(cooldown_ms=60_000)
    b = world.start("b")
    world.run(1_000)
    a.work(50)
    a.deliver(events.Release("orders", 0))
    assert world.run_until(lambda: world.held_by("orders", 0) is b, 3_000)
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
    a.cut_off(3_000)
    world.run(2_900)
    assert len(a.noted("claim timed out")) >= 1
    assert a.member.tenures() == []
    assert world.run_until(lambda: world.held_by("orders", 0) is a, 5_000)
    kinds = [type(entry.message) for entry in world.entries()]
    assert kinds == [ClaimingPartition, ReleasingPartition, ClaimingPartition, Heartbeat]


def test_a_claim_that_is_read_back_late_is_not_begun() -> None:
    """Its fence has passed already: a member that claims after two intervals might hold it beside this one."""
    world = MarshalScript({"orders": 1})
    a = world.start("a", claim_timeout_ms=3 * INTERVAL)
    assert world.run_until(lambda: world.entries(ClaimingPartition) != [], 1_000)
    a.cut_off(INTERVAL + 1_000)
    world.run(INTERVAL + 2_000)
    assert a.noted("tenure began") == []
    assert [type(entry.message) for entry in world.entries()][:2] == [ClaimingPartition, ReleasingPartition]


def test_at_most_max_claims_partitions_of_a_topic_are_held() -> None:
    world = MarshalScript({"orders": 5, "payments": 5}, max_claims=2, greedy=True)
    a = world.start("a")
    world.run(5_000)
    assert world.shares() == {"a": 4}
    assert list(a.member.describe().values()).count("this member has as many as it may") == 6


def test_a_handed_over_partition_is_left_to_its_new_member() -> None:
    world, a = one_member(cooldown_ms=60_000)
    b = world.start("b")
    world.run(1_000)
    (place,) = a.member.describe()
    message = a.member.context.message(HandingOver, place, to_instance_id="i-c")
    message.deadline = message.time + 20
    world.land(coordination_partition("orders", 4), message)
    world.run(100)
    a.deliver(events.Release("orders", 0))
    world.run(2_000)
    assert world.held_by("orders", 0) is None
    assert "handed over to instance i-c" in b.member.describe().values()
    assert world.run_until(lambda: world.held_by("orders", 0) is b, 20_000)


# ---- "Consuming Recently Used Partitions on Restart"


def restarted(world: MarshalScript, after_ms: int) -> ScriptedMember:
    a = world.start("a", greedy=True)
    world.run(1_000)
    a.work(100)
    world.run(INTERVAL)
    a.kill()
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
    heartbeats = [entry.offset for entry in world.entries(Heartbeat)]
    assert set(tokens) <= set(heartbeats)


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
    world, a = one_member()
    a.deliver(events.Release("orders", 0))
    world.run(9_000)
    assert len(asked(a, ClaimingPartition)) == 1
    assert "given it up" in "".join(a.member.describe().values())
    assert world.run_until(lambda: world.held_by("orders", 0) is a, 2_000)
    assert len(world.entries(ReleasingPartition)) == 1


BALANCE = Balance(round_ms=1_000, handoff_ms=20_000)


def _world(partitions: int, **settings: Any) -> MarshalScript:
    return MarshalScript({"orders": partitions}, **({"greedy": True, "presence": True, "balance": BALANCE} | settings))


def _announced(world: MarshalScript) -> Callable[[], bool]:
    return lambda: bool(world.entries(HandingOver))


def _two(world: MarshalScript) -> tuple[ScriptedMember, ScriptedMember]:
    """A member that holds everything, and a newcomer."""
    a = world.start("a")
    world.run(2_000)
    return a, world.start("b")


def _stopped(member: ScriptedMember) -> list[StopFetching]:
    return [effect for effect in member.done(StopFetching) if effect.why is LossReason.HANDED_OVER]


# ---- presence


def test_presence_is_sent_without_holding_anything() -> None:
    world = _world(0)
    world.start("a", max_claims=3)
    world.run(3 * INTERVAL)
    times = [entry.time_ms for entry in world.entries(Presence)]
    assert all(INTERVAL // 4 <= after - before < INTERVAL for before, after in itertools.pairwise(times))
    assert len(times) >= 4
    assert world.entries(Presence)[0].message.max_claims == 3


def test_presence_and_balance_are_off_by_default() -> None:
    world = MarshalScript({"orders": 4}, greedy=True)
    _two(world)
    world.run(5 * INTERVAL)
    assert world.shares() == {"a": 4, "b": 0}
    assert world.entries(Presence) == world.entries(HandingOver) == []


def test_balance_without_presence_is_refused() -> None:
    with pytest.raises(ValueError, match="sends Presence"):
        Context(MemberSettings("g", "c", "i", ("t",), 1, balance=BALANCE))


def test_two_of_one_client_do_not_silence_each_other_for_ever() -> None:
    world = _world(2)
    world.start("a")
    world.run(2_000)
    world.start("a2", client="a")
    world.run(8 * INTERVAL)
    assert sum(world.shares().values()) == 2
    assert world.entries(Presence)[-1].time_ms > world.now - INTERVAL


# ---- balance


@pytest.mark.parametrize("rules", Rules)
def test_newcomer_gets_its_share_and_then_all_stay_still(rules: Rules) -> None:
    world = _world(8, rules=rules)
    _two(world)
    assert world.run_until(lambda: sorted(world.shares().values())[0] >= 3, 8 * BALANCE.round_ms)
    world.run(2 * BALANCE.handoff_ms)
    before, handoffs = world.shares(), len(world.entries(HandingOver))
    world.run(5 * INTERVAL)
    assert world.shares() == before
    assert len(world.entries(HandingOver)) == handoffs
    assert sum(before.values()) == 8


def test_members_that_come_one_by_one_end_even() -> None:
    world = _world(12)
    for index in range(5):
        world.start(f"m{index}", wall_error_ms=1_000 * index)
        world.run(500)
    world.run(30_000)
    assert sum(world.shares().values()) == 12
    assert max(world.shares().values()) - min(world.shares().values()) <= 2
    before = world.shares()
    world.run(30_000)
    assert world.shares() == before


def test_members_that_know_nothing_of_it_are_given_nothing() -> None:
    world = _world(4)
    world.start("a")
    world.run(2_000)
    world.start("go", presence=False, balance=None)
    world.run(5 * INTERVAL)
    assert world.shares() == {"a": 4, "go": 0}


# ---- one handoff


def test_handoff_gives_the_processed_prefix_to_the_successor() -> None:
    world = _world(2)
    a, b = _two(world)
    tenure, first = list(a.fetching.items())[-1]
    for each, offset in a.fetching.items():
        a.deliver(Delivered(each, [offset, offset + 1, offset + 2], offset + 3))
        a.deliver(Processed(each, [offset, offset + 2]))
    assert world.run_until(lambda: bool(_stopped(a)), 5_000)
    stop = _stopped(a)[0]
    given = stop.tenure
    assert (given.topic, given.token >= 0) == (tenure.topic, True)
    assert stop.deadline - a.member.context.now == pytest.approx(BALANCE.handoff_ms // 2, abs=100)
    world.run(2_000)
    assert world.entries(ReleasingPartition) == []  # the application still works on a record
    a.deliver(Processed(given, [first + 1]))
    assert world.run_until(lambda: bool(b.fetching), 200)
    (started,) = b.done(StartFetching)
    assert (started.tenure.partition, started.offset) == (given.partition, first + 3)
    assert started.tenure.token > given.token


def test_drain_ends_at_half_of_the_handoff_s_time() -> None:
    world = _world(2)
    a, b = _two(world)
    a.work(5, processed=2)
    assert world.run_until(lambda: bool(_stopped(a)), 5_000)
    assert not world.run_until(lambda: bool(b.fetching), BALANCE.handoff_ms // 2 - 200)
    assert world.run_until(lambda: bool(b.fetching), 400)
    assert [effect.offset for effect in b.done(StartFetching)] == [2]


def test_others_wait_for_the_successor_until_the_handoff_expires() -> None:
    world = _world(2)
    a, b = _two(world)
    world.start("c", presence=False, balance=None)
    assert world.run_until(lambda: bool(_stopped(a)), 5_000)
    b.kill()
    until = world.now + BALANCE.handoff_ms
    assert world.run_until(lambda: sum(world.shares().values()) == 2, 2 * BALANCE.handoff_ms)
    assert until - 1_500 <= world.now <= until + 2_000


def test_successor_claims_at_once_after_the_release() -> None:
    world = _world(2, pass_ms=8_000)
    _a, b = _two(world)
    assert world.run_until(lambda: bool(world.entries(ReleasingPartition)), 20_000)
    assert world.run_until(lambda: bool(b.fetching), 200)


# ---- handoffs that are cut short


def test_announcement_that_was_lost_leaves_the_partition() -> None:
    world = _world(2)
    world.fate = lambda _member, message: LOST if isinstance(message, HandingOver) else Fate()
    a, _b = _two(world)
    assert world.run_until(lambda: bool(a.noted("handoff given up")), 10_000)
    world.run(INTERVAL)
    assert world.shares() == {"a": 2, "b": 0}
    assert a.done(StopFetching) == []


def test_announcement_without_an_answer_counts_if_it_landed() -> None:
    world = _world(2)
    world.fate = lambda _member, message: Fate((5,), None) if isinstance(message, HandingOver) else Fate()
    _two(world)
    assert world.run_until(lambda: world.shares() == {"a": 1, "b": 1}, 10_000)


def test_handoff_to_a_member_that_is_silent_is_given_up() -> None:
    world = _world(2)
    world.fate = lambda _member, message: Fate((12_000,), 12_001) if isinstance(message, HandingOver) else Fate()
    a, b = _two(world)
    assert world.run_until(lambda: any(isinstance(each.message, HandingOver) for each in a.done(Append)), 5_000)
    b.kill()
    world.run(13_000)
    assert a.noted("handoff given up")[0].facts["reason"] == "the successor is not heard of"
    assert world.shares()["a"] == 2


def test_shutdown_during_a_handoff_releases_to_the_successor() -> None:
    world = _world(2)
    a, b = _two(world)
    a.work(5, processed=2)
    assert world.run_until(lambda: bool(_stopped(a)), 5_000)
    world.shut_down(a)
    assert world.run_until(lambda: len(b.fetching) == 2, BALANCE.handoff_ms)
    assert not a.is_working


# ---- the lessons of KCL


def test_kcl_1765_an_expired_handoff_makes_nothing_available() -> None:
    world = _world(1)
    a = world.start("a")
    world.run(2_000)
    message = world.entries(Heartbeat)[-1].message
    who = {"client_id": "a", "instance_id": message.instance_id, "group_id": "group", "topic": "orders"}
    announced = HandingOver(time=world.now // 1_000, to_instance_id="i-b", deadline=world.now // 1_000 + 3, **who)
    world.land(world.entries(Heartbeat)[-1].partition, announced)
    world.run(5_000)  # the handoff has expired, its holder beats on
    world.start("b")
    world.run(3 * INTERVAL)
    assert world.shares() == {"a": 1, "b": 0}
    assert all(entry.message.client_id == "a" for entry in world.entries(ClaimingPartition))
    a.kill()
    assert world.run_until(lambda: world.shares()["b"] == 1, 4 * INTERVAL)


def test_kcl_1765_an_expired_handoff_binds_nobody() -> None:
    world = _world(2)
    a, b = _two(world)
    assert world.run_until(_announced(world), 5_000)
    b.kill()
    world.run(BALANCE.handoff_ms + 1_000)
    c = world.start("c")
    world.shut_down(a)
    assert world.run_until(lambda: len(c.fetching) == 2, 2_000)


def test_kcl_1729_no_heartbeat_follows_the_release() -> None:
    world = _world(2)
    a, b = _two(world)
    a.work(5, processed=2)
    assert world.run_until(lambda: bool(b.fetching), 20_000)
    (released,) = world.entries(ReleasingPartition)
    world.run(3 * INTERVAL)
    later = [entry for entry in world.entries(Heartbeat) if entry.offset > released.offset]
    given = released.message.partition
    assert all(entry.message.instance_id == "i-b" for entry in later if entry.message.partition == given)


def test_kcl_1729_heartbeats_go_on_while_the_application_drains() -> None:
    world = _world(2, heartbeat_interval_ms=4_000)
    a, b = _two(world)
    a.work(5, processed=2)
    assert world.run_until(lambda: bool(_stopped(a)), 5_000)
    assert world.run_until(lambda: bool(b.fetching), BALANCE.handoff_ms)
    assert [stop.why for stop in a.done(StopFetching)] == [LossReason.HANDED_OVER]  # it did not expire


def test_kcl_1729_a_release_that_cannot_land_ends_at_the_fence() -> None:
    world = _world(2)
    a, b = _two(world)
    assert world.run_until(_announced(world), 5_000)
    world.fate = lambda member, message: LOST if member is a else Fate()
    assert world.run_until(lambda: len(b.fetching) == 2, 4 * INTERVAL)
    assert world.shares() == {"a": 0, "b": 2}


def test_kcl_1718_a_restart_does_not_inherit_the_handoff() -> None:
    world = _world(2)
    a, b = _two(world)
    assert world.run_until(_announced(world), 5_000)
    a.kill()
    b.kill()
    again = world.start("a2", client="a")
    assert world.run_until(lambda: len(again.fetching) == 2, 1_000)
    world.run(2 * BALANCE.handoff_ms)
    assert world.shares()["a2"] == 2
    assert all(claim.handoff is None for claim in again.member.context.state.claims.values())


def test_kcl_1718_a_restarted_successor_is_not_waited_for() -> None:
    world = _world(2)
    a, b = _two(world)
    a.work(5, processed=2)
    assert world.run_until(lambda: bool(_stopped(a)), 5_000)
    b.kill()
    again = world.start("b2", client="b")
    assert world.run_until(lambda: len(again.fetching) == 1, 2 * BALANCE.handoff_ms)


def _play(seed: int) -> MarshalScript:
    """Members that come and go while appends fail, land late, land twice; then nothing fails any more."""
    draw = random.Random(seed)
    world = _world(6, balance=Balance(hysteresis=0, round_ms=1_000, handoff_ms=6_000))
    fates = (Fate(), Fate(), Fate(), LOST, Fate((5,), None), Fate((2_000,), None), Fate((5, 3_000)))
    world.fate = lambda *_: draw.choice(fates)
    for step in range(25):
        alive = world.working()
        if len(alive) < 2 or draw.random() < 0.2:
            world.start(f"m{step}")
        elif draw.random() < 0.15:
            draw.choice((ScriptedMember.kill, world.shut_down))(draw.choice(alive))
        for each in alive:
            each.work(2, processed=draw.randint(0, 2))
        world.run(draw.choice((500, 2_000)))
    world.fate = lambda *_: Fate()
    return world


@pytest.mark.parametrize("seed", range(8))
def test_no_partition_stays_unclaimed_whatever_fails(seed: int) -> None:
    world = _play(seed)
    assert world.run_until(lambda: sum(world.shares().values()) == 6, 6 * INTERVAL)


NOW = 1_000_000
TOKENS = 1_000


def _view(
    holders: Sequence[str], limits: dict[str, int | None], handoffs: dict[int, str] | None = None, late_ms: int = 0
) -> View:
    """What the log shows: who holds each partition (empty for free), who has sent Presence, what is handed over."""
    state = WorldState(Rules.DOCUMENT)
    for partition, holder in enumerate(holders):
        claim = Claim(Place("g", "t", partition), holder, holder, token=partition)
        if holder:
            claim.last_heartbeat, claim.heartbeat_ms = NOW // 1000, NOW
        if handoffs and partition in handoffs:
            claim.handoff = Handoff(handoffs[partition], NOW - late_ms)
        state.claims[claim.place] = claim
    state.members["g", "t"] = {each: KnownMember(each, each, NOW, limit) for each, limit in limits.items()}
    return View(state, "g", "t", len(holders), NOW, NOW)


def _gives(view: View, who: str, balance: Balance | None = None, giving: dict[int, str] | None = None) -> list[Give]:
    return plan_gives(view, who, balance or Balance(), giving or {})


_TWO: dict[str, int | None] = {"a": 0, "b": 0}


@pytest.mark.parametrize(
    ("view", "balance", "giving", "gives"),
    [
        pytest.param(_view("aaab", _TWO | {"c": 0}), Balance(), {}, [Give(2, "c")], id="the newest to a newcomer"),
        pytest.param(_view("aaaabb", _TWO), Balance(), {}, [], id="a difference within the hysteresis"),
        pytest.param(_view("aaaabb", _TWO), Balance(hysteresis=0), {}, [Give(3, "b")], id="no hysteresis"),
        pytest.param(_view("a", _TWO), Balance(hysteresis=0), {}, [], id="one partition is never passed on"),
        pytest.param(_view("aaaaab", {"a": 0, "b": 1}), Balance(), {}, [], id="the receiver has its max_claims"),
        pytest.param(_view("aaaaab", {"a": 0, "b": 2}), Balance(), {}, [Give(4, "b")], id="and one more"),
        pytest.param(_view(["a", "a", "a", "", "", ""], _TWO), Balance(), {}, [], id="free ones go to the fewest"),
        pytest.param(_view("aaaaaa", _TWO, {5: "b"}), Balance(), {}, [], id="one is handed over already"),
        pytest.param(_view("aaaaaa", _TWO), Balance(), {5: "b"}, [], id="which the log does not show yet"),
        pytest.param(
            _view("aaaaaa", _TWO, {5: "b"}), Balance(gives_per_round=2), {}, [Give(4, "b")], id="two in a round"
        ),
        pytest.param(
            _view("aaaaaa", _TWO, {5: "b"}, late_ms=1), Balance(), {}, [Give(5, "b")], id="an expired handoff"
        ),
    ],
)
def test_what_a_member_gives(view: View, balance: Balance, giving: dict[int, str], gives: list[Give]) -> None:
    assert plan_gives(view, "a", balance, giving) == gives


def test_members_without_presence_keep_theirs_and_get_none() -> None:
    view = _view("gggggaab", {"a": 0, "b": 0, "g": None, "h": None})
    assert all(_gives(view, each) == [] for each in "abgh")


def test_silent_members_and_former_processes_are_given_nothing() -> None:
    view = _view("aaaaaa", {"a": 0, "b": 0, "b2": 0, "c": 0})
    members = view.state.members["g", "t"]
    members["b"].client_id = members["b2"].client_id = "b"
    members["b"].seen_ms -= 1
    members["c"].seen_ms -= 60_000
    assert receivers(view) == {"a": 0, "b2": 0}
    assert _gives(view, "a") == [Give(5, "b2")]


@dataclass
class _Group:
    """Members that all balance, and what each of them sees: the present, or the state of one round ago.

    A handoff that was announced in one round is done in the next.
    """

    holders: list[str]
    limits: dict[str, int | None]
    balance: Balance
    handoffs: dict[int, str] = field(default_factory=dict)
    moves: int = 0

    def round(self, seen: Sequence[tuple[list[str], dict[int, str]]]) -> int:
        """Let all plan at once; return how many partitions they begin to give."""
        present = self.present()
        done, self.handoffs = self.handoffs, {}
        planned: dict[int, str] = {}
        for who, (holders, handoffs) in zip(self.limits, seen, strict=True):
            # A member knows of itself: what it holds, and what it has announced.
            known = [now if who in (was, now) else was for was, now in zip(holders, present[0], strict=True)]
            own = {partition: to for partition, to in present[1].items() if present[0][partition] == who}
            gives = _gives(_view(known, self.limits, handoffs | own), who, self.balance, own)
            assert len(gives) + len(own) <= max(self.balance.gives_per_round, len(own))
            assert all(self.holders[give.partition] == who and give.partition not in own for give in gives)
            planned |= dict(gives)
        for partition, to in done.items():
            self.holders[partition] = to
        self.handoffs = planned
        self.moves += len(planned)
        return len(planned)

    def present(self) -> tuple[list[str], dict[int, str]]:
        """What a member sees that has read everything."""
        return self.holders.copy(), self.handoffs.copy()

    def counts(self) -> dict[str, int]:
        found = Counter(self.holders)
        return {each: found[each] for each, limit in self.limits.items() if limit is not None}


@st.composite
def _groups(draw: st.DrawFn) -> _Group:
    present = [f"p{i}" for i in range(draw(st.integers(1, 7)))]
    foreign = [f"go{i}" for i in range(draw(st.integers(0, 2)))]
    limits: dict[str, int | None] = {each: draw(st.sampled_from([0, 0, 0, 2, 5])) for each in present}
    holders = draw(st.lists(st.sampled_from(present + foreign), min_size=1, max_size=30))
    balance = Balance(draw(st.integers(0, 2)), draw(st.integers(1, 3)))
    return _Group(holders, limits | dict.fromkeys(foreign), balance)


def _check_even(group: _Group) -> None:
    counts = group.counts()
    fullest = max(counts.values())
    for each, count in counts.items():
        limit = group.limits[each]
        if not limit or count < limit:
            assert fullest - count < 2 + group.balance.hysteresis
            assert count > 0 or fullest < 2


@settings(max_examples=60, deadline=None)
@given(_groups())
def test_rounds_with_the_same_view_converge_and_stay_still(group: _Group) -> None:
    before, counts = group.holders.copy(), group.counts()
    still = 0
    for _ in range(2 * len(before) + 3):
        still = 0 if group.round([group.present()] * len(group.limits)) or group.handoffs else still + 1
    assert still >= 2
    _check_even(group)
    assert group.moves <= len(before)
    for each, count in group.counts().items():
        limit = group.limits[each]
        assert not limit or count <= max(limit, counts[each])
    for was, now in zip(before, group.holders, strict=True):
        assert was == now or not was.startswith("go")


@settings(max_examples=60, deadline=None)
@given(_groups(), st.data())
def test_rounds_with_old_views_converge_and_stay_still(group: _Group, data: st.DataObject) -> None:
    old, still = group.present(), 0
    for _ in range(6 * len(group.holders) + 6):
        present = group.present()
        seen = [old if data.draw(st.booleans()) else present for _ in group.limits]
        still = 0 if group.round(seen) or present[1] else still + 1
        old = present
        if still == 3:
            break
    assert still == 3
    _check_even(group)


@pytest.mark.parametrize(("members", "each"), [(2, 8), (8, 8), (20, 3), (63, 1)])
def test_newcomer_gets_its_share_within_bounded_rounds(members: int, each: int) -> None:
    present = [f"p{i}" for i in range(members)]
    balance = Balance()
    group = _Group([who for who in present for _ in range(each)], dict.fromkeys([*present, "new"], 0), balance)
    share = members * each // (members + 1)
    for _ in range(share + 1):
        group.round([group.present()] * len(group.limits))
    assert group.counts()["new"] >= share - balance.hysteresis
