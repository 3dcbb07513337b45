"""Whole members over a log in memory, in virtual time: restarts, a paused group, foreign peers, faults at random.

Garbage in the log: skipped, counted, reported once per kind, never fatal.

Which of two processes with one client id yields.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcoord_wire.kernel.machines import Ended, Shutdown
from kcoord_wire.marshal import member_events as events
from kcoord_wire.marshal.log import RawEntry, coordination_partition
from kcoord_wire.marshal.member import MISPLACED, ClientIdReuse, Refusals
from kcoord_wire.marshal.member_events import LossReason, StopFetching
from kcoord_wire.marshal.values import read_entry
from kcoord_wire.marshal.world_state import Entry, Outcome, Rules, WorldState
from kcoord_wire.messages.marshal import ClaimingPartition, Heartbeat, ReleaseGroup, ReleasingPartition
from tests.support.marshal_garbage import GARBAGE
from tests.support.marshal_script import LOST, Fate, MarshalScript, ScriptedMember, one_member
from tests.support.marshal_world import TOPIC, claim

INTERVAL = 10_000


def stopped(member: ScriptedMember) -> list[LossReason]:
    return [effect.why for effect in member.done(StopFetching)]


def foreign(world: MarshalScript, kind: type, *, instance: str, client: str = "a", **fields: Any) -> None:
    """Append a message of a process that is not in the script."""
    who = {"client_id": client, "instance_id": instance, "group_id": "group", "topic": "orders"}
    message = kind(**({"time": world.now // 1_000} | who | fields))
    world.land(coordination_partition("orders", world.log.partitions), message)


def trim(world: MarshalScript) -> None:
    """Retention removes the first entry about orders; members that start later do not see it."""
    world.log._logs[coordination_partition("orders", 4)].first = 1


# ---- the ends of a member


def test_shutdown_releases_everything_then_ends() -> None:
    world, a = one_member(3, greedy=True)
    a.work(5)
    world.shut_down(a)
    world.run(100)
    assert len(world.entries(ReleasingPartition)) == 3
    assert stopped(a) == [LossReason.RELEASED] * 3
    assert isinstance(a.effects[-1][1], Ended)
    assert a.member.deadline is None


def test_suspend_keeps_the_claims_for_a_restart() -> None:
    world, a = one_member(3, greedy=True)
    a.work(5)
    a.deliver(events.Suspend())
    world.run(100)
    assert stopped(a) == [LossReason.KEPT] * 3
    assert not a.is_working
    assert world.entries(ReleasingPartition) == []
    again = world.start("a2", client="a")
    world.run(500)
    assert [effect.offset for effect in again.done(events.StartFetching)] == [5, 5, 5]


def test_a_second_shutdown_waits_for_nothing() -> None:
    world, a = one_member()
    world.fate = lambda *_: LOST
    a.deliver(Shutdown())
    assert a.is_working
    a.deliver(Shutdown())
    assert not a.is_working


def test_shutdown_during_a_claim_leaves_no_claim_behind() -> None:
    world = MarshalScript({"orders": 1})
    a = world.start("a")
    assert world.run_until(
        lambda: any(isinstance(each.message, ClaimingPartition) for each in a.done(events.Append)), 1_000
    )
    world.shut_down(a)
    world.run(2_000)
    assert not a.is_working
    assert [type(entry.message) for entry in world.entries()] == [ClaimingPartition, ReleasingPartition]


def test_a_dead_member_s_partitions_go_to_the_others() -> None:
    world, a = one_member(6, greedy=True)
    b = world.start("b")
    a.work(40)
    world.run(INTERVAL)
    a.kill()
    assert world.run_until(lambda: world.shares()["b"] == 6, 3 * INTERVAL)
    assert {effect.offset for effect in b.done(events.StartFetching)} == {40}


def test_tokens_grow_from_holder_to_holder() -> None:
    world = MarshalScript({"orders": 1}, cooldown_ms=0)
    members = [world.start(name) for name in "abc"]
    for _ in range(6):
        assert world.run_until(lambda: world.held_by("orders", 0) is not None, 5_000)
        (world.held_by("orders", 0) or members[0]).deliver(events.Release("orders", 0))
        world.run(2_000)
    started = [(time, effect.tenure.token) for each in members for time, effect in each.effects
               if isinstance(effect, events.StartFetching)]  # fmt: off
    tokens = [token for _, token in sorted(started)]
    assert len(tokens) >= 6
    assert tokens == sorted(set(tokens))


# ---- what the group is given


def test_a_topic_that_does_not_exist_yet_is_waited_for() -> None:
    world = MarshalScript({"orders": 0})
    a = world.start("a")
    world.run(5_000)
    assert world.entries() == []
    world.topics["orders"] = 2
    a.deliver(events.TopicPartitions(world.topics))
    assert world.run_until(lambda: world.shares() == {"a": 2}, 2_000)


def test_new_partitions_of_a_topic_are_claimed() -> None:
    world = MarshalScript({"orders": 2})
    a = world.start("a")
    world.run(3_000)
    world.topics["orders"] = 5
    a.deliver(events.TopicPartitions(world.topics))
    assert world.run_until(lambda: world.shares() == {"a": 5}, 3_000)


def test_a_topic_that_is_deleted_is_released() -> None:
    _, a = one_member()
    a.deliver(events.TopicPartitions({}))
    assert stopped(a) == [LossReason.FETCH_FAILED]


def test_a_release_is_read_back_before_the_tenure_ends() -> None:
    """Another's refused claim is read before it: without that the claim looks like one that nothing works on."""
    world, a = one_member()
    a.reader.lag_ms = (500, 500)
    foreign(world, ClaimingPartition, instance="b", client="b", partition=0)
    a.deliver(events.Release("orders", 0))
    world.run(2_000)
    assert len(world.entries(ReleasingPartition)) == 1
    assert world.shares() == {"a": 0}


def test_partitions_that_vanish_are_released() -> None:
    world = MarshalScript({"orders": 3}, greedy=True)
    a = world.start("a")
    world.run(3_000)
    a.deliver(events.TopicPartitions({"orders": 1}))
    world.run(500)
    assert world.shares() == {"a": 1}
    assert stopped(a) == [LossReason.FETCH_FAILED] * 2
    world.run(5 * INTERVAL)
    assert len(world.entries(ClaimingPartition)) == 3


def test_a_paused_group_releases_and_claims_nothing() -> None:
    world, a = one_member(2, greedy=True, cooldown_ms=0)
    b = world.start("b")
    world.run(1_000)
    end = world.now // 1_000 + 60
    foreign(world, ReleaseGroup, instance="admin", client="admin", topic="", msg_expire_time=end)
    world.run(500)
    assert stopped(a) == [LossReason.PAUSED] * 2
    assert set(a.member.describe().values()) == {"the group is paused"}
    world.run(58_000)
    assert world.shares() == {"a": 0, "b": 0}
    assert len(a.noted("group paused")) == len(b.noted("group paused")) == 1
    assert world.run_until(lambda: sum(world.shares().values()) == 2, 4_000)


def test_a_pause_holds_for_its_coordination_partition() -> None:
    """By the document; an admin sends one to each coordination partition that it needs."""
    world = MarshalScript({"orders": 1, "events": 1}, partitions=50)
    a = world.start("a")
    world.run(1_000)
    end = world.now // 1_000 + 60
    foreign(world, ReleaseGroup, instance="admin", client="admin", topic="", msg_expire_time=end)
    world.run(2 * INTERVAL)
    assert [tenure.topic for tenure in a.member.tenures()] == ["events"]


def test_a_member_that_starts_during_a_pause_waits() -> None:
    world = MarshalScript({"orders": 2})
    foreign(world, ReleaseGroup, instance="x", client="admin", topic="", msg_expire_time=world.now // 1_000 + 60)
    world.run(10_000)
    a = world.start("a")
    world.run(45_000)
    assert world.shares() == {"a": 0}
    assert world.run_until(lambda: world.shares() == {"a": 2}, 8_000), a.member.describe()


def test_an_empty_group_waits_for_a_stale_claim_on_a_quiet_log() -> None:
    """No entry moves the log's time on: what passes is estimated."""
    world = MarshalScript({"orders": 1})
    foreign(world, ClaimingPartition, instance="gone", client="gone")
    world.run(1_000)
    a = world.start("a")
    assert world.run_until(lambda: world.held_by("orders", 0) is a, 2 * INTERVAL)
    assert len(world.entries(ClaimingPartition)) == 2


def test_nothing_is_claimed_before_a_trimmed_log_is_warm() -> None:
    """The first entry that is left has offset 1: the claim before it may be live."""
    world = MarshalScript({"orders": 2})
    foreign(world, ClaimingPartition, instance="b", client="b", partition=1)
    foreign(world, Heartbeat, instance="b", client="b", partition=1)
    trim(world)
    a = world.start("a")
    world.run(2 * INTERVAL)
    assert world.shares() == {"a": 0}
    assert any("trimmed" in text for text in a.member.describe().values())
    assert world.run_until(lambda: world.shares() == {"a": 2}, INTERVAL + 2_000)


@pytest.mark.parametrize("kind", [ClaimingPartition, Heartbeat])
def test_what_a_trimmed_log_cannot_show_is_not_claimed(kind: type) -> None:
    """A claim that came before the log was warm, or a heartbeat without one, and a release, which may be late: a reader
    of everything may know another holder."""
    world = MarshalScript({"orders": 2})
    for ms, said, partition in ((1, Heartbeat, 0), (25_000, Heartbeat, 0), (100, kind, 1)):
        foreign(world, said, instance="b", client="b", partition=partition)
        world.run(ms)
    trim(world)
    world.run(8_000)
    foreign(world, ReleasingPartition, instance="b", client="b", partition=1)
    released = world.now
    a = world.start("a")
    assert world.run_until(lambda: world.shares() == {"a": 1}, 5_000), a.member.describe()
    assert "whether it is free is not known yet: the log's beginning was trimmed" in a.member.describe().values()
    assert world.run_until(lambda: world.shares() == {"a": 2}, 3 * INTERVAL)
    assert world.now - released > 2 * INTERVAL


# ---- foreign writers


def test_two_processes_with_one_client_id_the_older_yields() -> None:
    world, a = one_member(3, greedy=True)
    again = world.start("a2", client="a")
    world.run(INTERVAL)
    assert world.shares() == {"a": 0, "a2": 3}
    assert set(stopped(a)) <= {LossReason.TAKEN, LossReason.CLIENT_ID_REUSED}
    (note,) = a.noted("client id reused")
    assert (note.level, note.facts["instance"]) == (40, "i-a2")
    assert again.noted("client id reused") == []
    world.run(5 * INTERVAL)
    assert world.shares() == {"a": 0, "a2": 3}
    assert "instance i-a2 uses the client id a, too" in a.member.describe().values()


def test_who_yielded_claims_again_when_the_other_is_gone() -> None:
    world, a = one_member(3, greedy=True)
    again = world.start("a2", client="a")
    world.run(2 * INTERVAL)
    again.kill()
    assert world.run_until(lambda: world.shares()["a"] == 3, 3 * INTERVAL)
    assert stopped(a)[3:] == []


def test_who_judges_by_another_interval_is_reported_once() -> None:
    world, a = one_member()
    text = "two members hold a partition: their heartbeat intervals or rules differ"
    foreign(world, Heartbeat, instance="late", client="b")
    foreign(world, Heartbeat, instance="c", client="c")
    world.run(1_000)
    assert a.noted(text) == []
    for _ in range(3):
        foreign(world, Heartbeat, instance="c", client="c")
        world.run(1_000)
    (note,) = a.noted(text)
    assert (note.facts["other"], note.facts["partition"]) == ("c", 0)
    assert world.shares() == {"a": 1}


def test_one_that_does_not_know_the_rule_is_yielded_to() -> None:
    """A Go process with our client id: it was there first and goes on."""
    world = MarshalScript({"orders": 2}, greedy=True, fast_reclaim=False)
    foreign(world, ClaimingPartition, instance="go")
    a = world.start("a")
    for _ in range(10):
        foreign(world, Heartbeat, instance="go")
        world.run(INTERVAL // 2)
    assert world.shares() == {"a": 0}
    assert stopped(a) == [LossReason.CLIENT_ID_REUSED]
    assert len(a.noted("client id reused")) == 1


def test_a_skewed_clock_is_reported_once_also_our_own() -> None:
    world = MarshalScript({"orders": 2})
    world.start("a", max_claims=1, wall_error_ms=30_000)
    b = world.start("b", max_claims=1, wall_error_ms=-30_000)
    world.run(5 * INTERVAL)
    assert world.shares() == {"a": 1, "b": 1}
    found = {note.facts["clock"]: note.facts["ahead_ms"] for note in b.noted("clock skewed")}
    assert found.keys() == {"a", "own"}
    assert len(b.noted("clock skewed")) == 2
    assert abs(found["a"] - 30_000) < 1_100
    assert abs(found["own"] + 30_000) < 1_100
    assert set(b.member.context.clocks.senders) == {"i-a", "i-b"}


def test_without_append_times_skew_is_measured_by_the_own_clock() -> None:
    world = MarshalScript({"orders": 2}, is_append_time=False)
    world.start("a", max_claims=1, wall_error_ms=8_000)
    b = world.start("b", max_claims=1)
    world.run(3 * INTERVAL)
    assert [note.facts["clock"] for note in b.noted("clock skewed")] == ["a"]


@pytest.mark.parametrize("rules", ["document", "library"])
def test_a_wall_clock_that_is_set_back_costs_no_tenure(rules: str) -> None:
    world, a = one_member(rules=rules, heartbeat_interval_ms=60_000)
    a.set_clock(-30_000)
    world.run(300_000)
    assert stopped(a) == []


def test_garbage_in_the_log_is_noted_once_and_skipped() -> None:
    world, a = one_member()
    for _ in range(5):
        world.land(coordination_partition("orders", 4), b"\xff" * 100)
    world.land(coordination_partition("orders", 4), b"")
    foreign(world, Heartbeat, instance="x", client="x", topic="unheard-of", partition=99_999)
    foreign(world, ReleasingPartition, instance="x", client="x", group_id="other")
    world.run(INTERVAL)
    assert stopped(a) == []
    noted = [note.facts["kind"] for note in a.noted("entry skipped")]
    assert len(noted) == len(set(noted)) == 3


# ---- the library's rules


def test_by_the_library_a_claim_is_stale_at_two_intervals() -> None:
    world, a = one_member(rules="library")
    b = world.start("b")
    a.kill()
    last = world.entries(Heartbeat)[-1].message.time * 1_000
    assert world.run_until(lambda: world.held_by("orders", 0) is b, 3 * INTERVAL)
    assert last + 2 * INTERVAL <= world.now < last + 2 * INTERVAL + 1_000


@pytest.mark.parametrize("late_ms", [0, 40])
def test_by_the_library_the_earliest_claim_wins_a_race(late_ms: int) -> None:
    world = MarshalScript({"orders": 1}, rules="library")
    world.fate = lambda member, _: Fate((5 + late_ms,), 10 + late_ms) if member.name == "a" else Fate()
    for name in "ab":
        world.start(name)
    world.run(2_000)
    winner = world.entries(ClaimingPartition)[0].message.client_id
    assert world.held_by("orders", 0) is world.members[winner]


def test_by_the_library_a_clock_ahead_loses_its_claims() -> None:
    """Its heartbeats are of the future, so for the others there is no claim. By the document the same costs nothing."""
    for rules, is_lost in (("library", True), ("document", False)):
        world = MarshalScript({"orders": 1}, rules=rules)
        world.is_judged = False
        a = world.start("a", wall_error_ms=30_000)
        world.run(1_000)
        b = world.start("b")
        world.run(INTERVAL)
        assert (world.held_by("orders", 0) is b) is is_lost
        assert (stopped(a) == [LossReason.TAKEN]) is is_lost
        assert (world.violations != []) is is_lost


# ---- faults at random


FATES = st.sampled_from(
    [
        Fate(),
        Fate((400,), 450),
        Fate((3_000,), 3_100),
        LOST,
        Fate((5,), None),  # landed, and its answer was lost
        Fate((2_000,), None),  # landed after the sender had given up
        Fate((25_000,), None),  # landed when others may have claimed
        Fate((5, 9, 4_000), 12),
        Fate((5, 30_000), 12),
    ]
)
STEPS = st.one_of(
    st.tuples(st.just("run"), st.integers(1, 25_000)),
    st.tuples(st.just("pause"), st.integers(0, 2), st.integers(1, 40_000)),
    st.tuples(st.just("release"), st.integers(0, 2)),
    st.tuples(st.just("fates"), st.lists(FATES, min_size=1, max_size=8)),
    st.tuples(st.just("wall"), st.integers(0, 2), st.integers(-3_600_000, 3_600_000)),
    st.tuples(st.just("restart"), st.integers(0, 2)),
    st.tuples(st.just("cut off"), st.integers(0, 2), st.integers(1, 60_000)),
)


class _Run:
    """Three members and three partitions, of which each takes two."""

    def __init__(self) -> None:
        self.world = MarshalScript({"orders": 3}, greedy=True, max_claims=2, cooldown_ms=0, drain_ms=500)
        self.world.fate = lambda *_: self.fates.pop() if self.fates else Fate()
        self.fates: list[Fate] = []
        self.generation = 0
        self.members = [self.world.start(name) for name in "abc"]

    def step(self, what: str, *values: Any) -> None:
        if what == "run":
            self.world.run(values[0])
        elif what == "fates":
            self.fates = list(values[0])
        else:
            self.do(what, self.members[values[0]], *values)

    def do(self, what: str, member: ScriptedMember, *values: Any) -> None:
        if what == "cut off":
            member.cut_off(values[1])
        elif what == "pause" and not member.is_paused:
            member.pause(values[1])
        elif what == "release":
            for partition in range(3):
                member.deliver(events.Release("orders", partition))
        elif what == "wall":
            member.set_clock(values[1])
        elif what == "restart":  # at once, so also before the claims of the former process are stale
            member.kill()
            self.generation += 1
            name = f"{member.member.settings.client_id}{self.generation}"
            self.members[values[0]] = self.world.start(name, client=member.member.settings.client_id)


@settings(max_examples=30, deadline=None)
@given(st.lists(STEPS, min_size=3, max_size=14))
def test_no_two_members_hold_one_partition_at_one_time(steps: list[tuple[Any, ...]]) -> None:
    """The world looks after every event; in the end everything is held again."""
    run = _Run()
    for step in steps:
        run.step(*step)
    run.fates = []
    run.world.run(110_000)
    held = [run.world.held_by("orders", partition) for partition in range(3)]
    assert None not in held, [member.member.describe() for member in run.members]


@pytest.mark.parametrize("rules", list(Rules))
def test_garbage_changes_nothing(rules: Rules) -> None:
    state = WorldState(rules, partitions=1)
    state.apply(Entry(0, 0, 1_000, True, claim("a1", time=1)), 1)
    before = repr((state.claims, state.members, state.pauses))
    for offset, (value, _) in enumerate(GARBAGE.values(), start=1):
        entry = read_entry(RawEntry(0, offset, 1_000, True, value))
        assert state.apply(entry, 1) is Outcome.SKIPPED
    assert repr((state.claims, state.members, state.pauses)) == before


def test_each_kind_is_reported_once_on_each_partition() -> None:
    refusals, noted = Refusals(), []
    for partition in (0, 1):
        for _ in range(3):
            for offset, (value, _) in enumerate(GARBAGE.values()):
                note = refusals.skipped(read_entry(RawEntry(partition, offset, -1, False, value)))
                noted += [] if note is None else [note]
    kinds = {kind for _, kind in GARBAGE.values()}
    assert sorted((note.facts["kind"], note.facts["partition"]) for note in noted) == sorted(
        (kind, partition) for kind in kinds for partition in (0, 1)
    )
    assert sum(refusals.counts.values()) == 2 * 3 * len(GARBAGE)
    assert all(len(note.facts["reason"]) < 300 for note in noted)


def test_a_misplaced_message_is_a_kind_of_its_own() -> None:
    refusals = Refusals()
    wrong = Entry(1 - coordination_partition(TOPIC, 2), 7, -1, False, claim("a1"))
    note = refusals.skipped(wrong)
    assert note is not None
    assert (note.facts["kind"], note.facts["offset"]) == (MISPLACED, 7)
    assert TOPIC in note.facts["reason"]
    assert refusals.skipped(wrong) is None


def test_a_member_holds_what_it_holds_between_garbage() -> None:
    world = MarshalScript({"orders": 2}, partitions=1)
    a = world.start("a", greedy=True)
    assert world.run_until(lambda: world.shares() == {"a": 2}, 3_000)
    for _ in range(2):
        for value, _ in GARBAGE.values():
            world.land(0, value)
    world.run(60_000)
    assert world.shares() == {"a": 2}
    assert len(world.entries(ClaimingPartition)) == 2
    assert len(a.noted("entry skipped")) == len({kind for _, kind in GARBAGE.values()})


def seen_by(instance_id: str) -> ClientIdReuse:
    return ClientIdReuse("g", "c", instance_id, INTERVAL)


def beat(
    reader: ClientIdReuse, sender: str, time_ms: int, *, is_after_start: bool = True, kind: type = Heartbeat
) -> None:
    message = kind(group_id="g", client_id="c", instance_id=sender)
    reader.see(message, time_ms, time_ms, is_after_start=is_after_start)


def test_the_one_heard_of_first_yields() -> None:
    older, newer = seen_by("a"), seen_by("b")
    for reader in (older, newer):
        beat(reader, "a", 1_000)
        beat(reader, "b", 2_000)
        beat(reader, "a", 2_500)
    assert older.rival(2_500) == "b"
    assert newer.rival(2_500) == ""


def test_the_later_one_yields_to_one_that_goes_on() -> None:
    newer = seen_by("b")
    beat(newer, "a", 1_000)
    beat(newer, "b", 2_000)
    beat(newer, "a", 2_000 + INTERVAL)
    assert newer.rival(2_000 + INTERVAL) == ""
    beat(newer, "a", 2_001 + INTERVAL)
    assert newer.rival(2_001 + INTERVAL) == "a"


def test_a_former_process_is_no_rival() -> None:
    reader = seen_by("b")
    beat(reader, "a", 1_000, is_after_start=False)
    beat(reader, "b", 2_000)
    assert reader.rival(2_000) == ""


def test_a_rival_that_was_silent_for_two_intervals_is_gone() -> None:
    reader = seen_by("a")
    beat(reader, "a", 1_000)
    beat(reader, "b", 2_000)
    assert reader.rival(2_000 + 2 * INTERVAL) == "b"
    assert reader.rival(2_001 + 2 * INTERVAL) == ""


def test_releases_of_the_one_that_yields_are_no_sign_of_life() -> None:
    reader = seen_by("b")
    beat(reader, "a", 1_000)
    beat(reader, "b", 2_000)
    beat(reader, "a", 3_000 + INTERVAL, kind=ReleasingPartition)
    assert reader.rival(3_000 + INTERVAL) == ""


def test_other_clients_and_groups_are_no_rivals() -> None:
    reader = seen_by("a")
    beat(reader, "a", 1_000)
    for group, client in (("g", "d"), ("h", "c")):
        reader.see(Heartbeat(group_id=group, client_id=client, instance_id="b"), 2_000, 2_000, is_after_start=True)
    assert reader.rival(2_000) == ""
