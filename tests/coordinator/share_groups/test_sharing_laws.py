"""Laws of share groups' members in random scripts, and planted bugs of the coordinator, each of which a law sees.

What happens is chosen by a seed: members join, beat, repeat a heartbeat whose answer was lost, change their topics,
leave and fall silent; topics are created, grow and are deleted; state comes late, or cannot be initialized, or is lost;
the coordinator is started again from its log. In the end every member beats until nothing changes.

* The group's epoch and a member's never decrease, as long as the member stays.
* What a member is given is part of its target, of topics that it subscribes to, and of partitions whose state is there.
* A heartbeat with the member's epoch, or the one before, is answered without an error.
* In the end every partition of a topic with a subscriber is given to one, and a restart finds the whole group.
"""

from __future__ import annotations

import random
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import pytest

from kcoord_wire.coordinator.consumer_groups.epochs import Epochs
from kcoord_wire.coordinator.core.events import TopicsDeleted
from kcoord_wire.coordinator.share_groups import share_records, sharing
from kcoord_wire.coordinator.share_groups.share_group import ShareGroup, ShareMember
from kcoord_wire.coordinator.share_groups.sharing import ShareGroups
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.share_script import ShareScript

SEEDS: Final = 60
STEPS: Final = 40
HALF_RETRY_MS: Final = sharing.RETRY_MS // 2  # less than a session
TOPICS: Final = ("orders", "payments", "later")


@dataclass
class Client:
    """A member, as it knows itself.

    :ivar epochs: of the answers of its present membership
    """

    topics: tuple[str, ...]
    epochs: list[int] = field(default_factory=lambda: [0])


class Life:
    """One script, of one seed, and its laws."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.script = ShareScript()
        self.script.topics.known = {"orders": 2, "payments": 3}
        self.clients: dict[str, Client] = {}
        self.epoch = 0

    def play(self) -> None:
        steps: list[Callable[[], None]] = [self.join, self.beat, self.beat, self.beat, self.change, self.leave]
        steps += [self.wait, self.topics, self.state, self.state, self.restart]
        for _ in range(STEPS):
            self.random.choice(steps)()
            self.check()
        self.end()

    # ---- what happens

    def join(self) -> None:
        name = f"m{self.random.randrange(5)}"
        client = self.clients.setdefault(name, Client(self.some_topics()))
        client.epochs = [0]
        self.say(name, 0, client.topics)

    def beat(self) -> None:
        if self.clients:
            name = self.random.choice([*self.clients])
            epochs = self.clients[name].epochs
            is_repeated = len(epochs) > 2 and self.random.random() < 0.2
            self.say(name, epochs[-2] if is_repeated else epochs[-1])

    def change(self) -> None:
        if self.clients:
            name = self.random.choice([*self.clients])
            client = self.clients[name]
            client.topics = self.some_topics()
            self.say(name, client.epochs[-1], client.topics)

    def leave(self) -> None:
        if self.clients and self.random.random() < 0.5:
            name = self.random.choice([*self.clients])
            del self.clients[name]
            assert self.script.beat(name, -1).error_code == ErrorCode.NONE

    def wait(self) -> None:
        """Time passes, in which members may be silent for too long."""
        self.script.wait(self.random.choice((10, 31_000, 46_000)))
        group = self.script.machine.groups.get("g")
        members = group.members if isinstance(group, ShareGroup) else {}
        self.clients = {name: client for name, client in self.clients.items() if name in members}

    def topics(self) -> None:
        name, known = self.random.choice(TOPICS), self.script.topics.known
        if name in known and self.random.random() < 0.4:
            del known[name]
            self.script.topics.changes += 1
            self.script.do(TopicsDeleted(frozenset({name})))
        else:
            self.script.topics.set(name, known.get(name, 0) + 1)

    def state(self) -> None:
        """State that was asked for comes, or cannot be initialized, or what was asked is lost."""
        luck = self.random.random()
        if luck < 0.1:
            self.script.wanted.clear()
        else:
            self.script.initialize(ErrorCode.COORDINATOR_NOT_AVAILABLE if luck < 0.2 else ErrorCode.NONE)

    def restart(self) -> None:
        if self.random.random() < 0.5:
            self.script = self.script.restarted()

    def some_topics(self) -> tuple[str, ...]:
        return tuple(sorted(self.random.sample(TOPICS, self.random.randint(1, len(TOPICS)))))

    def say(self, name: str, epoch: int, topics: tuple[str, ...] = ()) -> None:
        answer = self.script.beat(name, epoch, *topics)
        assert answer.error_code == ErrorCode.NONE, f"{name} in {epoch}: {answer}"
        client = self.clients[name]
        assert answer.member_epoch >= client.epochs[-1], "a member's epoch goes back"
        if answer.member_epoch > client.epochs[-1]:
            client.epochs.append(answer.member_epoch)
        if answer.assignment is not None:
            self.check_given(name, {part.topic_id: set(part.partitions) for part in answer.assignment.topic_partitions})

    # ---- laws

    def check_given(self, name: str, given: dict[uuid.UUID, set[int]]) -> None:
        group = self.script.group
        target, member = group.target.get(name, {}), group.members[name]
        for topic_id, partitions in given.items():
            assert partitions <= target.get(topic_id, frozenset()), "more than the target"
            assert self.script.topics.name_of(topic_id) in member.topics, "of a topic without subscription"
            known = group.initialized.get(topic_id)
            assert known is not None
            assert partitions <= known.partitions, "without state"

    def check(self) -> None:
        group = self.script.machine.groups.get("g")
        if isinstance(group, ShareGroup):
            assert group.epoch >= self.epoch, "the group's epoch goes back"
            assert group.assignment_epoch <= group.epoch
            assert group.members.keys() == self.clients.keys()
            self.epoch = group.epoch

    def end(self) -> None:
        """Nothing disturbs the group any more."""
        if not self.clients:
            return
        for _ in range(3):
            for name in self.clients:
                self.say(name, self.clients[name].epochs[-1])
            self.script.initialize()
            self.script.wait(HALF_RETRY_MS)
        for _ in range(3):
            for name in self.clients:
                self.say(name, self.clients[name].epochs[-1])
        group = self.script.group
        assert not group.is_incomplete
        for topic, count in self.script.topics.known.items():
            subscribers = [member for member in group.members.values() if topic in member.topics]
            topic_id = self.script.topics.id_of(topic)
            assert topic_id is not None
            given = [number for member in subscribers for number in member.assigned.get(topic_id, ())]
            assert set(given) == (set(range(count)) if subscribers else set()), "a partition is nobody's"
        self.check_restart(group)

    def check_restart(self, group: ShareGroup) -> None:
        found = self.script.restarted().group
        for name in ("epoch", "assignment_epoch", "assigned_at", "metadata_hash", "members", "target"):
            assert getattr(found, name) == getattr(group, name), f"a restart finds another {name}"
        assert {key: known[:2] for key, known in found.initialized.items()} == {
            key: known[:2] for key, known in group.initialized.items()
        }


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_laws_hold(seed: int) -> None:
    Life(seed).play()


# ---- planted bugs


def _ignore(*arguments: Any, **more: Any) -> Any:
    return None


def _everything(self: ShareGroups, group: ShareGroup, member: ShareMember, records: Any, *, has_news: bool) -> Any:
    """A step that does not look at the subscription."""
    target = group.target.get(member.member_id, {})
    updated = replace(member, epoch=group.assignment_epoch, previous_epoch=member.epoch, assigned=target)
    group.put(updated)
    records.append(share_records.assignment_record(group, updated))
    return updated


def _all_of(counts: Any, members: Any, *, is_homogeneous: bool) -> dict[str, Any]:
    """A target in which the first member has everything."""
    return {each: counts if at == 0 else {} for at, each in enumerate(sorted(members))}


def _forgets_the_last(original: Any, *arguments: Any, **more: Any) -> dict[str, Any]:
    return {
        each: {topic: numbers - {max(numbers, default=0)} for topic, numbers in has.items()}
        for each, has in original(*arguments, **more).items()
    }


PLANTED: Final[dict[str, tuple[Any, str, Any]]] = {
    "no epoch begins": (Epochs, "bump", _ignore),
    "deleted topics keep their state": (ShareGroups, "forget_topics", _ignore),
    "new state is not noticed": (ShareGroup, "has_unassigned", False),
    "a member's record is not written": (
        share_records,
        "member_record",
        lambda group, member: share_records.states_record(group),
    ),
    "what a member has is not written": (
        share_records,
        "assignment_record",
        lambda group, member: share_records.member_record(group, member),
    ),
    "the subscription does not matter": (ShareGroups, "_step", _everything),
    "one member has all": (sharing, "simple", _all_of),
    "the last partition is left out": (sharing, "simple", partial(_forgets_the_last, sharing.simple)),
    "state is never asked for again": (sharing, "RETRY_MS", 1 << 40),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_law_sees_the_planted_bug(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, value = PLANTED[bug]
    monkeypatch.setattr(owner, name, value)
    with pytest.raises((AssertionError, KeyError)):
        deque(map(Life.play, map(Life, range(SEEDS))), maxlen=0)
