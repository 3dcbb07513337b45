"""The registry: which groups are interested in a topic, as consumers come and go."""

from __future__ import annotations

import random

import pytest

from kcoord_wire.central.draft.groups import Attempt, AttemptFailedError, Group, Groups, GroupStore, Member
from kcoord_wire.central.draft.subscription import format_topics, format_wildcard, parse_topic_count

TOPICS = ["a", "b", "ab", "c"]
COUNTS = [
    format_topics({"a": 1}),
    format_topics({"b": 1, "c": 2}),
    format_wildcard("a.*"),
    format_wildcard("a", 1, is_blacklist=True),
]


def make_member(group: Group, connection: int, text: str) -> Member:
    count = parse_topic_count(text)
    return Member(group, f"c{connection}", connection, count, True, "smallest", 6_000, is_fenced=False)


@pytest.mark.parametrize("seed", range(40))
def test_the_index_has_what_the_consumers_want(seed: int) -> None:
    """Consumers come and go, topics are added; the index is compared with the definition after each step."""
    chooser = random.Random(seed)
    groups, made = Groups(), [Group(name, GroupStore(name)) for name in "gh"]
    members: list[Member] = []
    left = TOPICS.copy()
    for connection in range(60):
        if members and chooser.random() < 0.4:
            groups.remove_member(members.pop(chooser.randrange(len(members))))
        elif left and chooser.random() < 0.15:
            groups.topic_added(left.pop())
        else:
            members.append(make_member(chooser.choice(made), connection, chooser.choice(COUNTS)))
            groups.add_member(members[-1])
        for topic in TOPICS:
            wanted = {
                member.group.group_id
                for member in members
                if member.topic_count.streams_of(topic) and (topic not in left or not member.topic_count.is_wildcard)
            }
            assert {group.group_id for group in groups.interested_in(topic)} == wanted
        assert set(groups.wildcards) == {each.group.group_id for each in members if each.topic_count.is_wildcard}
        assert set(groups.by_connection) == {member.connection for member in members}


def test_an_attempt_ends_its_phase_with_the_last_answer() -> None:
    group = Group("g", GroupStore("g"))
    first, second = make_member(group, 1, COUNTS[0]), make_member(group, 2, COUNTS[0])
    attempt = Attempt(1)
    attempt.wait_for("stopping", [first, second])
    attempt.answered(first)
    assert not attempt.changed.is_open
    attempt.answered(second)
    assert attempt.changed.is_open
    attempt.check()


def test_an_attempt_that_failed_begins_no_phase() -> None:
    attempt = Attempt(1)
    attempt.fail("first")
    attempt.fail("second")
    attempt.wait_for("starting", [make_member(Group("g", GroupStore("g")), 1, COUNTS[0])])
    assert attempt.changed.is_open
    with pytest.raises(AttemptFailedError, match="first"):
        attempt.check()
