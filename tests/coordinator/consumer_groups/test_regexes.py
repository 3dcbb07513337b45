"""Subscriptions by pattern: the language, its bounds, and when topics are matched."""

from __future__ import annotations

import pytest

from kcoord_wire import messages as m
from kcoord_wire.coordinator.consumer_groups.regexes import MAX_PATTERN, InvalidRegexError, compile_regex, matching
from kcoord_wire.error_codes import ErrorCode as E
from tests.support.consumer_script import ConsumerScript

NAMES = ("orders", "orders-eu", "payments", "Ω")


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("orders", {"orders"}),  # whole names, not parts of them
        ("order.*", {"orders", "orders-eu"}),
        ("(?i)ORDERS(-[a-z]{2})?", {"orders", "orders-eu"}),
        (r"\p{Greek}", {"Ω"}),
        ("[[:alpha:]]+", {"orders", "payments"}),
        ("x|payments", {"payments"}),
        (".*", set(NAMES)),
    ],
)
def test_patterns_match_whole_names(pattern: str, names: set[str]) -> None:
    assert matching(compile_regex(pattern), NAMES) == names


@pytest.mark.parametrize(
    "pattern",
    ["(", "[", "a{2,1}", r"(a)\1", "(?=a)", "(?<!a)b", "(?P>x)", "((a{1000}){1000}){1000}", "a" * (MAX_PATTERN + 1)],
)
def test_what_is_no_pattern_of_re2_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRegexError):
        compile_regex(pattern)
    script = ConsumerScript()
    answer = script.enter("a", topics=[], subscribed_topic_regex=pattern)
    assert answer.error_code == E.INVALID_REGULAR_EXPRESSION
    assert (script.machine.groups, script.log) == ({}, [])


def test_the_text_for_the_longest_pattern_fits_into_the_answer() -> None:
    answer = ConsumerScript().enter("a", topics=[], subscribed_topic_regex="a" * 32_767)
    assert (answer.error_code, len(answer.error_message)) == (E.INVALID_REGULAR_EXPRESSION, 1_000)


def test_a_pattern_takes_time_in_proportion_to_the_name() -> None:
    assert not compile_regex("(a*)*b").fullmatch("a" * 100_000)  # exponential, where a matcher goes back


def test_a_pattern_is_resolved_after_the_first_heartbeat() -> None:
    script = ConsumerScript()
    first = script.enter("a", topics=[], subscribed_topic_regex="order.*|pay.*")
    assert (first.member_epoch, first.assignment.topic_partitions) == (1, [])
    record = next(value for key, value in script.records if isinstance(key, m.ConsumerGroupRegularExpressionKey))
    assert record.topics == ["orders", "payments"]
    script.follow("a")
    assert script.counts() == {"a": 20}


def test_new_topics_are_matched_after_a_while() -> None:
    script = ConsumerScript()
    script.enter("a", topics=[], subscribed_topic_regex="order.*")
    script.follow("a")
    script.topics.set("orders-eu", 2)
    script.follow("a")
    assert script.counts() == {"a": 12}  # patterns are resolved every 10 s at most
    script.wait(10_001)
    script.follow("a")
    assert script.counts() == {"a": 14}


def test_a_pattern_that_nobody_has_is_forgotten() -> None:
    script = ConsumerScript()
    for member_id in ("a", "b"):
        script.enter(member_id, topics=[], subscribed_topic_regex="order.*")
    script.follow("a", "b")
    script.beat("b", -1)
    assert list(script.group.regexes) == ["order.*"]
    script.beat("a", script.group.members["a"].epoch, subscribed_topic_regex="", topics=["payments"])
    assert script.group.regexes == {}
    tombstones = [key for key, value in script.records if value is None]
    assert m.ConsumerGroupRegularExpressionKey(group_id="g", regular_expression="order.*") in tombstones
    script.follow("a")
    assert script.counts() == {"a": 8}


def test_a_pattern_that_is_resolved_counts_at_once() -> None:
    script = ConsumerScript()
    script.enter("a", topics=[], subscribed_topic_regex="order.*")
    script.follow("a")
    answer = script.enter("b", topics=[], subscribed_topic_regex="order.*")
    assert (answer.member_epoch, script.group.epoch) == (3, 3)
