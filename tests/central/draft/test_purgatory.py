"""Purgatory: an answer belongs to the oldest request without one; each request expires once."""

from __future__ import annotations

from typing import Any

from kcoord_wire.central.draft.groups import Group, GroupStore, Member
from kcoord_wire.central.draft.purgatory import Answer, Purgatory
from kcoord_wire.central.draft.subscription import parse_topic_count
from kcoord_wire.kernel.timers import Timers


def make() -> tuple[Timers, Purgatory, list[Any], Member]:
    timers, expired = Timers(), []
    group = Group("g", GroupStore("g"))
    member = Member(group, "a", 1, parse_topic_count('{"orders": 1}'), True, "smallest", 6_000, is_fenced=False)
    return timers, Purgatory(timers, expired.append), expired, member


def test_an_answer_in_time_clears_the_watcher() -> None:
    timers, purgatory, expired, member = make()
    purgatory.watch(member, 100)
    assert (len(purgatory), purgatory.answered(member), len(purgatory)) == (1, Answer.IN_TIME, 0)
    timers.run_due(1_000)
    assert (expired, timers.next) == ([], None)


def test_a_request_without_an_answer_expires_once() -> None:
    timers, purgatory, expired, member = make()
    purgatory.watch(member, 100)
    timers.run_due(99)
    assert expired == []
    timers.run_due(100)
    timers.run_due(500)
    assert expired == [member]


def test_a_late_answer_is_not_that_of_a_later_request() -> None:
    timers, purgatory, _, member = make()
    purgatory.watch(member, 100)
    timers.run_due(100)
    purgatory.watch(member, 300)
    assert purgatory.answered(member) is Answer.LATE
    assert purgatory.answered(member) is Answer.IN_TIME
    assert purgatory.answered(member) is Answer.UNASKED


def test_answers_to_several_requests_come_in_their_order() -> None:
    timers, purgatory, expired, member = make()
    purgatory.watch(member, 100)
    purgatory.watch(member, 200)
    assert purgatory.answered(member) is Answer.IN_TIME
    timers.run_due(200)
    assert (expired, purgatory.answered(member)) == ([member], Answer.LATE)


def test_no_answer_is_expected_from_a_forgotten_consumer() -> None:
    timers, purgatory, expired, member = make()
    purgatory.watch(member, 100)
    purgatory.forget(member)
    timers.run_due(100)
    assert (expired, len(purgatory), purgatory.answered(member)) == ([], 0, Answer.UNASKED)


def test_an_answer_to_a_request_that_was_given_up_is_late() -> None:
    timers, purgatory, expired, member = make()
    purgatory.watch(member, 100)
    purgatory.give_up(member)
    purgatory.watch(member, 200)
    timers.run_due(150)
    assert expired == []
    assert (purgatory.answered(member), purgatory.answered(member)) == (Answer.LATE, Answer.IN_TIME)
