"""Requests in any order, of members of all kinds: what holds of a group after every step, and that all are answered."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.events import Load, LogRecord, Tick
from kcoord_wire.coordinator.core.groups import Group, State
from tests.support.scripted import Script

STEPS = 250


def check(group: Group) -> None:
    """The laws of a group between two events."""
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
    assert all(timer.live for timer in group.pending.values())
    for member in members:
        assert member.join is None or group.state is State.PREPARING
        assert member.sync is None or group.state is State.COMPLETING
        assert member.join is not None or not member.is_new
        waits = member.join is not None or member.sync is not None
        assert waits or (member.session is not None and member.session.live), "nobody looks after it"
    joining = group.join_timer is not None and group.join_timer.live
    assert joining == (group.state is State.PREPARING), "a join without an end"
    syncing = group.sync_timer is not None and group.sync_timer.live
    assert syncing == (group.state in (State.COMPLETING, State.STABLE) and bool(group.unsynced))
    if group.state is State.EMPTY:
        assert not members
    if group.state is State.PREPARING:
        assert group.filling or not group.all_joined, "a join that should be over"
    else:
        assert not group.filling
    assert (group.rebalance is not None) == (group.state in (State.PREPARING, State.COMPLETING))


class Chance:
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
        generation = 1 if group is None else group.generation_id
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
        if what == "join":
            script.join(
                member_id,
                version=choice([5, 9] if instance is not None else [0, 3, 5, 9]),
                names=choice([("range",)] * 5 + [("range", "sticky"), ("sticky", "range"), ("range", "range"), ()]),
                instance=instance,
                session_ms=choice([6_000, 60_000, 600_000]),
                rebalance_ms=choice([-1, 0, 1, 5_000, 60_000]),
            )
        elif what == "sync":
            script.sync(member_id, generation, {}, group_instance_id=instance)
        elif what == "beat":
            script.heartbeat(member_id, generation, instance)
        elif what == "commit":
            script.commit(member_id=member_id, generation=choice([generation, -1]))
        elif what == "leave":
            leavers = [(choice([member_id, ""]), instance), (choice([*known, ""]), None)]
            members = [
                m.LeaveGroupRequestMemberIdentity(member_id=name, group_instance_id=static) for name, static in leavers
            ]
            script.send(m.LeaveGroupRequest(group_id=script.group_id, members=members))
        elif what == "wait":
            script.wait(choice([1, 1_000, 3_000, 6_000]))
        elif what == "late":
            script.now += choice([100, 1_000, 10_000, 700_000])
            script.do(Tick())
        elif what == "delete":
            script.send(m.DeleteGroupsRequest(groups_names=[script.group_id]))
        elif self.random.random() < 0.1:
            self.crash()

    def crash(self) -> None:
        script = self.script
        script.resign()
        assert script.asked == script.answers.keys(), "who waited has no answer"
        last: dict[str, LogRecord] = {}
        for record in (record for records in script.log for record in records):
            last.pop(repr(record.key), None)
            last[repr(record.key)] = record
        script.do(Load([record for record in last.values() if record.value is not None]))


@pytest.mark.parametrize("seed", range(40))
def test_whatever_comes_in_whatever_order(seed: int) -> None:
    chance = Chance(seed)
    try:
        for _ in range(STEPS):
            chance.step()
            for group in chance.script.machine.groups.values():
                check(group)
        chance.crash()
    except BaseException:
        print(*chance.history, sep="\n")
        raise
