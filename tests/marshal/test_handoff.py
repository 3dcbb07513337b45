"""Members that balance, in virtual time: handoffs that work, and those that are cut short at each step."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from kcoord_wire.marshal.context import Context
from kcoord_wire.marshal.events import (
    Append,
    Balance,
    Delivered,
    LossReason,
    MemberSettings,
    Processed,
    StartFetching,
    StopFetching,
)
from kcoord_wire.marshal.state import Rules
from kcoord_wire.messages.marshal import ClaimingPartition, HandingOver, Heartbeat, Presence, ReleasingPartition
from tests.support.marshal_script import LOST, Fate, MarshalScript, ScriptedMember

INTERVAL = 10_000
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
        world.give(a, Delivered(each, [offset, offset + 1, offset + 2], offset + 3))
        world.give(a, Processed(each, [offset, offset + 2]))
    assert world.run_until(lambda: bool(_stopped(a)), 5_000)
    stop = _stopped(a)[0]
    given = stop.tenure
    assert (given.topic, given.token >= 0) == (tenure.topic, True)
    assert stop.deadline - a.machine.context.now == pytest.approx(BALANCE.handoff_ms // 2, abs=100)
    world.run(2_000)
    assert world.entries(ReleasingPartition) == []  # the application still works on a record
    world.give(a, Processed(given, [first + 1]))
    assert world.run_until(lambda: bool(b.fetching), 200)
    (started,) = b.done(StartFetching)
    assert (started.tenure.partition, started.offset) == (given.partition, first + 3)
    assert started.tenure.token > given.token


def test_drain_ends_at_half_of_the_handoff_s_time() -> None:
    world = _world(2)
    a, b = _two(world)
    world.work(a, 5, processed=2)
    assert world.run_until(lambda: bool(_stopped(a)), 5_000)
    assert not world.run_until(lambda: bool(b.fetching), BALANCE.handoff_ms // 2 - 200)
    assert world.run_until(lambda: bool(b.fetching), 400)
    assert [effect.offset for effect in b.done(StartFetching)] == [2]


def test_others_wait_for_the_successor_until_the_handoff_expires() -> None:
    world = _world(2)
    a, b = _two(world)
    world.start("c", presence=False, balance=None)
    assert world.run_until(lambda: bool(_stopped(a)), 5_000)
    world.kill(b)
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
    world.kill(b)
    world.run(13_000)
    assert a.noted("handoff given up")[0].facts["reason"] == "the successor is not heard of"
    assert world.shares()["a"] == 2


def test_shutdown_during_a_handoff_releases_to_the_successor() -> None:
    world = _world(2)
    a, b = _two(world)
    world.work(a, 5, processed=2)
    assert world.run_until(lambda: bool(_stopped(a)), 5_000)
    world.shut_down(a)
    assert world.run_until(lambda: len(b.fetching) == 2, BALANCE.handoff_ms)
    assert not a.is_alive


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
    world.kill(a)
    assert world.run_until(lambda: world.shares()["b"] == 1, 4 * INTERVAL)


def test_kcl_1765_an_expired_handoff_binds_nobody() -> None:
    world = _world(2)
    a, b = _two(world)
    assert world.run_until(_announced(world), 5_000)
    world.kill(b)
    world.run(BALANCE.handoff_ms + 1_000)
    c = world.start("c")
    world.shut_down(a)
    assert world.run_until(lambda: len(c.fetching) == 2, 2_000)


def test_kcl_1729_no_heartbeat_follows_the_release() -> None:
    world = _world(2)
    a, b = _two(world)
    world.work(a, 5, processed=2)
    assert world.run_until(lambda: bool(b.fetching), 20_000)
    (released,) = world.entries(ReleasingPartition)
    world.run(3 * INTERVAL)
    later = [entry for entry in world.entries(Heartbeat) if entry.offset > released.offset]
    given = released.message.partition
    assert all(entry.message.instance_id == "i-b" for entry in later if entry.message.partition == given)


def test_kcl_1729_heartbeats_go_on_while_the_application_drains() -> None:
    world = _world(2, heartbeat_interval_ms=4_000)
    a, b = _two(world)
    world.work(a, 5, processed=2)
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
    world.kill(a)
    world.kill(b)
    again = world.start("a2", client="a")
    assert world.run_until(lambda: len(again.fetching) == 2, 1_000)
    world.run(2 * BALANCE.handoff_ms)
    assert world.shares()["a2"] == 2
    assert all(claim.handoff is None for claim in again.machine.context.state.claims.values())


def test_kcl_1718_a_restarted_successor_is_not_waited_for() -> None:
    world = _world(2)
    a, b = _two(world)
    world.work(a, 5, processed=2)
    assert world.run_until(lambda: bool(_stopped(a)), 5_000)
    world.kill(b)
    again = world.start("b2", client="b")
    assert world.run_until(lambda: len(again.fetching) == 1, 2 * BALANCE.handoff_ms)


def _play(seed: int) -> MarshalScript:
    """Members that come and go while appends fail, land late, land twice; then nothing fails any more."""
    draw = random.Random(seed)
    world = _world(6, balance=Balance(hysteresis=0, round_ms=1_000, handoff_ms=6_000))
    fates = (Fate(), Fate(), Fate(), LOST, Fate((5,), None), Fate((2_000,), None), Fate((5, 3_000)))
    world.fate = lambda *_: draw.choice(fates)
    for step in range(25):
        alive = [each for each in world.members.values() if each.is_alive]
        if len(alive) < 2 or draw.random() < 0.2:
            world.start(f"m{step}")
        elif draw.random() < 0.15:
            draw.choice((world.kill, world.shut_down))(draw.choice(alive))
        for each in alive:
            world.work(each, 2, processed=draw.randint(0, 2))
        world.run(draw.choice((500, 2_000)))
    world.fate = lambda *_: Fate()
    return world


@pytest.mark.parametrize("seed", range(8))
def test_no_partition_stays_unclaimed_whatever_fails(seed: int) -> None:
    world = _play(seed)
    assert world.run_until(lambda: sum(world.shares().values()) == 6, 6 * INTERVAL)
