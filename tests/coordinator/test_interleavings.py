"""Requests in any order, of all kinds of members: the laws of a group hold after every step, and all are answered."""

from __future__ import annotations

import random
from collections import Counter
from typing import NamedTuple

import pytest

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.events import Load, LogRecord
from kcoord_wire.coordinator.core.groups import Group, Member, State
from kcoord_wire.kernel.machines import Tick
from tests.support.scripted import Script

STEPS = 250


def check(group: Group) -> None:
    """Check the laws of a group between two events."""
    check_counts(group)
    for member in group.members.values():
        check_member(group, member)
    check_timers(group)
    if group.state is State.EMPTY:
        assert not group.members
    if group.state is State.PREPARING:
        assert group.filling or not group.all_joined, "a join that should be complete"
    else:
        assert not group.filling
    assert (group.rebalance is not None) == (group.state in (State.PREPARING, State.COMPLETING))


def check_counts(group: Group) -> None:
    members = group.members.values()
    assert group.waiting == sum(member.join is not None for member in members)
    assert all(member_id == member.member_id for member_id, member in group.members.items())
    assert group.instances == {
        member.group_instance_id: member.member_id for member in members if member.group_instance_id is not None
    }
    assert group._offered == Counter(name for member in members for name, _ in member.protocols)
    assert (group.leader_id in group.members) if members else group.leader_id is None
    assert group.unsynced <= group.members.keys()
    assert not group.pending.keys() & group.members.keys()


def check_member(group: Group, member: Member) -> None:
    assert member.join is None or group.state is State.PREPARING
    assert member.sync is None or group.state is State.COMPLETING
    assert member.join is not None or not member.is_new
    is_parked = member.join is not None or member.sync is not None
    assert is_parked or (member.session is not None and member.session.live), "a member that would stay for ever"


def check_timers(group: Group) -> None:
    assert all(timer.live for timer in group.pending.values())
    joining = group.join_timer is not None and group.join_timer.live
    assert joining == (group.state is State.PREPARING), "a join without an end"
    syncing = group.sync_timer is not None and group.sync_timer.live
    assert syncing == (group.state in (State.COMPLETING, State.STABLE) and bool(group.unsynced))


class Situation(NamedTuple):
    """The group and the member that the next step is about."""

    group: Group | None
    member_id: str
    instance: str | None

    @property
    def generation(self) -> int:
        return 1 if self.group is None else self.group.generation_id


class RandomSteps:
    """Chooses what comes next, and remembers it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.known: dict[str, list[str]] = {"g": [], "h": []}
        self.history: list[str] = []
        choice = self.random.choice
        self.script = Script(
            config=GroupConfig(
                initial_rebalance_delay_ms=choice([0, 1_000, 3_000]),
                max_size=choice([2, 4, 1_000]),
                new_member_join_timeout_ms=choice([8_000, 300_000]),
            )
        )

    def step(self) -> None:
        script, choice = self.script, self.random.choice
        script.group_id = choice(["g", "g", "g", "h"])
        known = self.known[script.group_id]
        group = script.machine.groups.get(script.group_id)
        if group is not None:
            known.extend(name for name in (*group.members, *group.pending) if name not in known)
        member_id = choice([*known[-8:], ""])
        instance: str | None = choice([None, None, None, "x", "y", "z"])
        if group is not None and member_id in group.members and self.random.random() < 0.9:
            instance = group.members[member_id].group_instance_id
        what = choice(
            ["join"] * 6 + ["sync"] * 4 + ["beat", "commit", "leave", "wait", "wait", "late", "delete", "crash"]
        )
        if what == "sync" and group is not None and self.random.random() < 0.6:
            member_id, instance = group.leader_id or "", None
        self.history.append(f"{script.now} {what} {script.group_id} {member_id!r} {instance}")
        getattr(self, f"do_{what}")(Situation(group, member_id, instance))

    def do_join(self, at: Situation) -> None:
        choice = self.random.choice
        self.script.join(
            at.member_id,
            version=choice([5, 9] if at.instance is not None else [0, 3, 5, 9]),
            names=choice([("range",)] * 5 + [("range", "sticky"), ("sticky", "range"), ("range", "range"), ()]),
            instance=at.instance,
            session_ms=choice([6_000, 60_000, 600_000]),
            rebalance_ms=choice([-1, 0, 1, 5_000, 60_000]),
        )

    def do_sync(self, at: Situation) -> None:
        self.script.sync(at.member_id, at.generation, {}, group_instance_id=at.instance)

    def do_beat(self, at: Situation) -> None:
        self.script.heartbeat(at.member_id, at.generation, at.instance)

    def do_commit(self, at: Situation) -> None:
        self.script.commit(member_id=at.member_id, generation=self.random.choice([at.generation, -1]))

    def do_leave(self, at: Situation) -> None:
        choice, known = self.random.choice, self.known[self.script.group_id]
        leavers = [(choice([at.member_id, ""]), at.instance), (choice([*known, ""]), None)]
        members = [
            m.LeaveGroupRequestMemberIdentity(member_id=name, group_instance_id=static) for name, static in leavers
        ]
        self.script.send(m.LeaveGroupRequest(group_id=self.script.group_id, members=members))

    def do_wait(self, at: Situation) -> None:
        self.script.wait(self.random.choice([1, 1_000, 3_000, 6_000]))

    def do_late(self, at: Situation) -> None:
        self.script.now += self.random.choice([100, 1_000, 10_000, 700_000])
        self.script.do(Tick())

    def do_delete(self, at: Situation) -> None:
        self.script.send(m.DeleteGroupsRequest(groups_names=[self.script.group_id]))

    def do_crash(self, at: Situation) -> None:
        if self.random.random() < 0.1:
            self.crash()

    def crash(self) -> None:
        script = self.script
        script.resign()
        assert script.asked == script.answers.keys(), "a parked request has no answer"
        last: dict[str, LogRecord] = {}
        for record in (record for records in script.log for record in records):
            last.pop(repr(record.key), None)
            last[repr(record.key)] = record
        script.do(Load([record for record in last.values() if record.value is not None]))


@pytest.mark.parametrize("seed", range(40))
def test_the_laws_hold_for_requests_in_any_order(seed: int) -> None:
    steps = RandomSteps(seed)
    try:
        for _ in range(STEPS):
            steps.step()
            for group in steps.script.machine.groups.values():
                check(group)
        steps.crash()
    except BaseException:
        print(*steps.history, sep="\n")
        raise
