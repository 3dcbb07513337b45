"""Regular expressions: the language, its bounds, and when topics of a subscription are matched."""

from __future__ import annotations

import pytest

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.regexes import (
    MAX_PATTERN,
    MAX_PATTERNS,
    WORK_PER_STEP,
    InvalidRegexError,
    Resolution,
    compile_regex,
)
from kcoord_wire.protocol.error_codes import ErrorCode as E
from tests.support.consumer_script import ConsumerScript

NAMES = ("orders", "orders-eu", "payments", "Ω")


def matching(pattern: str) -> set[str]:
    resolution = Resolution([pattern], frozenset(NAMES), 1, {}, frozenset())
    assert resolution.go_on(compile_regex)
    return resolution.found[pattern]


@pytest.fixture
def script() -> ConsumerScript:
    return ConsumerScript()


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
    assert matching(pattern) == names


@pytest.mark.parametrize(
    "pattern",
    ["(", "[", "a{2,1}", r"(a)\1", "(?=a)", "(?<!a)b", "(?P>x)", "((a{1000}){1000}){1000}", "a" * (MAX_PATTERN + 1)],
)
def test_what_is_no_pattern_of_re2_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRegexError) as refused:
        compile_regex(pattern)
    assert not str(refused.value).startswith("b'"), "the library's text is bytes"
    script = ConsumerScript()
    answer = script.enter("a", topics=[], subscribed_topic_regex=pattern)
    assert answer.error_code == E.INVALID_REGULAR_EXPRESSION
    assert (answer.error_message or "").startswith(f"The pattern {pattern}"[:900])
    assert (script.machine.groups, script.log) == ({}, [])


def test_the_text_for_the_longest_pattern_fits_into_the_answer() -> None:
    answer = ConsumerScript().enter("a", topics=[], subscribed_topic_regex="a" * 32_767)
    assert (answer.error_code, len(answer.error_message)) == (E.INVALID_REGULAR_EXPRESSION, 1_000)


def test_a_pattern_takes_time_in_proportion_to_the_name() -> None:
    assert not compile_regex("(a*)*b").fullmatch("a" * 100_000)  # exponential, where a matcher goes back


def test_a_pattern_is_resolved_after_the_first_heartbeat(script: ConsumerScript) -> None:
    first = script.enter("a", topics=[], subscribed_topic_regex="order.*|pay.*")
    assert (first.member_epoch, first.assignment.topic_partitions) == (1, [])
    record = next(value for key, value in script.records if isinstance(key, m.ConsumerGroupRegularExpressionKey))
    assert record.topics == ["orders", "payments"]
    script.follow("a")
    assert script.counts() == {"a": 20}


def test_new_topics_are_matched_after_a_while(script: ConsumerScript) -> None:
    script.enter("a", topics=[], subscribed_topic_regex="order.*")
    script.follow("a")
    script.topics.set("orders-eu", 2)
    script.follow("a")
    assert script.counts() == {"a": 12}  # patterns are resolved every 10 s at most
    script.wait(10_001)
    script.follow("a")
    assert script.counts() == {"a": 14}


def test_a_pattern_that_nobody_has_is_forgotten(script: ConsumerScript) -> None:
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


def test_a_pattern_that_is_resolved_counts_at_once(script: ConsumerScript) -> None:
    script.enter("a", topics=[], subscribed_topic_regex="order.*")
    script.follow("a")
    answer = script.enter("b", topics=[], subscribed_topic_regex="order.*")
    assert (answer.member_epoch, script.group.epoch) == (3, 3)


class Counting:
    """A pattern that matches all names, and notes them."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def fullmatch(self, name: str) -> bool:
        self.names.append(name)
        return True


def test_names_are_matched_a_bounded_number_at_a_time_and_once() -> None:
    counting = Counting()
    names = frozenset(f"t{number}" for number in range(10))
    resolution = Resolution(["abcde"], names, 1, {}, frozenset())
    rounds = 1
    while not resolution.go_on(lambda pattern: counting, work=20):  # two names of two characters
        rounds += 1
    assert rounds == 5
    assert sorted(counting.names) == sorted(names)
    again = Resolution(["abcde"], names | {"new"}, 2, {"abcde": frozenset(resolution.found["abcde"])}, names)
    assert again.go_on(lambda pattern: counting)
    assert counting.names[10:] == ["new"]
    assert again.found["abcde"] == names | {"new"}


def test_a_name_takes_its_turn_whatever_it_costs() -> None:
    resolution = Resolution(["a" * 4_096], frozenset({"b" * 500}), 1, {}, frozenset())
    assert resolution.go_on(compile_regex, work=1)
    assert WORK_PER_STEP > 1


def test_many_topics_are_matched_in_several_heartbeats(script: ConsumerScript, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(300):
        script.topics.set(f"{'x' * 200}{number}", 1)
    pattern = "x{1,200}[0-9]+|" + "y" * 500
    answer = script.enter("a", topics=[], subscribed_topic_regex=pattern)
    assert answer.error_code == 0
    beats = 0
    while not script.group.regexes:
        assert (beats := beats + 1) < 50
        script.wait(1_000)
        script.follow("a")
    assert beats >= 300 * 515 * 203 // WORK_PER_STEP // 2
    assert len(script.group.regexes[pattern].topics) == 300


def test_a_group_has_a_bounded_number_of_patterns(script: ConsumerScript) -> None:
    for number in range(MAX_PATTERNS):
        assert script.enter(f"m{number}", topics=[], subscribed_topic_regex=f"p{number}").error_code == 0
    more = script.enter("more", topics=[], subscribed_topic_regex="q")
    assert more.error_code == E.INVALID_REGULAR_EXPRESSION
    assert f"{MAX_PATTERNS} patterns" in (more.error_message or "")
    assert script.enter("same", topics=[], subscribed_topic_regex="p0").error_code == 0
