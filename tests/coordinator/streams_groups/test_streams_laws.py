"""Laws of streams groups in random scripts: members of a few processes join, beat, keep what they should give up, leave
and fall silent, and the coordinator is restarted. Bugs that are planted break the law that they concern."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from kcoord_wire.assignors.streams import Task
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.streams_groups import progress
from kcoord_wire.coordinator.streams_groups.streams_group import HeldTasks, StreamsGroup, StreamsMember
from kcoord_wire.coordinator.streams_groups.streams_records import tasks_from
from tests.support.streams_script import NO_WAIT, StreamsScript

SEEDS = range(25)
STEPS = 60


class Play:
    """A group and its members.

    :ivar runs: what each member runs, by its id: what it was given and has not said that it has given up
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.script = StreamsScript(GroupConfig(**NO_WAIT, streams_num_standby_replicas=self.random.randint(0, 2)))
        self.runs: dict[str, set[Task]] = {}
        self._take("m0", self.script.enter("m0"))

    def step(self, number: int) -> None:
        """Let something happen."""
        script, random = self.script, self.random
        live = [*script.group.members]
        what = random.random()
        if not live or (what < 0.15 and len(live) < 6):
            self._take(f"m{number}", script.enter(f"m{number}", process_id=f"p{number % 3}"))
            return
        chosen = script.group.members[random.choice(live)]
        if what < 0.2:
            script.beat(chosen.member_id, -1)
        elif what < 0.23:
            script.wait(46_000)  # all of them are silent for too long
        elif what < 0.27:
            self.script = script.restarted()
        else:
            self._take(chosen.member_id, script.beat(chosen.member_id, chosen.epoch, owned=self._said(chosen)))

    def settle(self) -> None:
        """Let all members do what they are to do."""
        for _ in range(20):
            for member_id, member in [*self.script.group.members.items()]:
                self.runs[member_id] = {*member.assigned.active}
                self._take(member_id, self.script.beat(member_id, member.epoch, owned=member.assigned))

    def _said(self, member: StreamsMember) -> HeldTasks | None:
        """What a member says that it holds: nothing of it, what it was given, or also what it has to give up."""
        what = self.random.random()
        if what < 0.3:
            return None
        if what < 0.5:
            return member.assigned._replace(active={**member.assigned.active, **member.revoking.active})
        self.runs[member.member_id] = {*member.assigned.active}
        return member.assigned

    def _take(self, member_id: str, answer: Any) -> None:
        assert answer.error_code == 0, answer
        self.runs.setdefault(member_id, set()).update(tasks_from(answer.active_tasks or ()))

    def check(self) -> None:
        """See that the laws hold."""
        group = self.script.group
        self.runs = {name: tasks for name, tasks in self.runs.items() if name in group.members}
        owners = Counter(task for tasks in self.runs.values() for task in tasks)
        assert not [task for task, count in owners.items() if count > 1], "two members run one task"
        check_one_in_each_process(group)


def play(seed: int) -> None:
    """Run one script; after each step the laws hold, and at the end every task runs once."""
    run = Play(seed)
    for number in range(1, STEPS):
        run.step(number)
        run.check()
    if run.script.group.members:
        run.settle()
        run.check()
        check_all_run(run.script.group)


def play_all() -> None:
    for seed in SEEDS:
        play(seed)


def check_one_in_each_process(group: StreamsGroup) -> None:
    """The members of a process are given a task once: its state has one directory there."""
    held = Counter(
        (member.process_id, task)
        for member in group.members.values()
        for task in {*member.assigned.active, *member.assigned.standby, *member.assigned.warmup}
    )
    assert not [each for each, count in held.items() if count > 1], "two members of a process have one task"


def check_all_run(group: StreamsGroup) -> None:
    """A group that is settled runs every task."""
    assert group.configured is not None
    assert group.configured.subtopologies is not None
    wanted = Counter((name, n) for name, each in group.configured.subtopologies.items() for n in range(each.tasks))
    assert Counter(tuple(task) for member in group.members.values() for task in member.assigned.active) == wanted


@pytest.mark.parametrize("seed", SEEDS)
def test_the_laws_hold(seed: int) -> None:
    play(seed)


def never(*arguments: Any) -> bool:
    return False


@pytest.mark.parametrize(
    ("place", "name", "broken"),
    [
        pytest.param(progress._Step, "_is_active_taken", "two members run one task", id="gives what others run"),
        pytest.param(progress, "_holds_any", "two members run one task", id="does not wait for what is given up"),
        pytest.param(progress._Step, "_is_elsewhere", "two members of a process have", id="looks at no other thread"),
    ],
)
def test_a_planted_bug_breaks_a_law(place: Any, name: str, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, name, never)
    with pytest.raises(AssertionError, match=broken):
        play_all()
