"""topic_count: what is read and what is refused; patterns mean what they mean in other engines, and none takes long."""

from __future__ import annotations

import itertools
import random
import re
import time

import pytest

from kcoord_wire.central.draft.subscription import (
    LONGEST,
    TopicPattern,
    format_topics,
    format_wildcard,
    is_topic_name,
    parse_topic_count,
)

NAMES = ["".join(letters) for length in range(5) for letters in itertools.product("ab-", repeat=length)]
ATOMS = ["a", "b", ".", "[ab]", "[^a]", "[a-b]", r"\-", "(a|b)", "(ab)", "(a*b)", "()", "[b-]"]


@pytest.mark.parametrize("seed", range(80))
def test_a_pattern_means_what_it_means_in_re(seed: int) -> None:
    chooser = random.Random(seed)
    text = "".join(
        chooser.choice(ATOMS) + chooser.choice(["", "", "*", "+", "?"]) + chooser.choice(["", "", "|"])
        for _ in range(chooser.randint(0, 5))
    )
    pattern, expected = TopicPattern(text), re.compile(text)
    assert [name for name in NAMES if pattern.matches(name)] == [name for name in NAMES if expected.fullmatch(name)]


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("ord.*", "orders", True),
        ("ord.*", "border", False),
        ("^orders$", "orders", True),
        ("orders,payments", "payments", True),
        (r"eu\.orders", "eu.orders", True),
        (r"eu\.orders", "eu-orders", False),
        (r"a\$", "a$", True),
    ],
)
def test_a_pattern_matches_whole_names(text: str, name: str, expected: bool) -> None:
    assert TopicPattern(text).matches(name) is expected


@pytest.mark.parametrize(
    "text",
    [
        "(",
        ")",
        "a**",
        "*",
        "[a",
        "[",
        "a{2}",
        r"\d",
        "\\",
        "(?:a)",
        "(?=a)",
        "a^b",
        "a$b",
        "]",
        "[[]",
        "(" * 40 + ")" * 40,
        "a" * (LONGEST + 1),
        "[a-",
    ],
)
def test_what_is_not_in_the_subset_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        TopicPattern(text)


@pytest.mark.parametrize("text", ["(a*)*b", "(a|a)*b", "(a?)" * 60 + "b", "(.*)(.*)(.*)(.*)(.*)b", "((((a*)*)*)*)*b"])
def test_hostile_patterns_take_no_time(text: str) -> None:
    """A backtracking matcher would need 2 to the power of the name's length steps."""
    begun = time.process_time()
    assert not TopicPattern(text).matches("a" * 249)
    assert time.process_time() - begun < 5


def test_topics_with_their_streams() -> None:
    found = parse_topic_count(format_topics({"orders": 2, "payments": 1}))
    assert [found.streams_of(topic) for topic in ("orders", "payments", "other")] == [2, 1, 0]
    assert not found.is_wildcard


def test_a_whitelist_selects_what_matches() -> None:
    found = parse_topic_count(format_wildcard("ord.*", 3))
    assert (found.text, found.is_wildcard) == ("*3*ord.*", True)
    assert [found.streams_of(topic) for topic in ("orders", "payments")] == [3, 0]


def test_a_blacklist_selects_what_does_not_match() -> None:
    found = parse_topic_count(format_wildcard("test-.*", is_blacklist=True))
    assert found.text == "!1!test-.*"
    assert [found.streams_of(topic) for topic in ("orders", "test-1")] == [1, 0]


def test_equal_texts_are_one_subscription() -> None:
    assert parse_topic_count('{"a": 1}') is parse_topic_count('{"a": 1}')
    assert parse_topic_count('{"a": 1}') != parse_topic_count('{"a": 2}')


@pytest.mark.parametrize(
    "text",
    [
        "",
        "orders",
        "{}",
        "[]",
        "null",
        '{"a": 0}',
        '{"a": -1}',
        '{"a": 1001}',
        '{"a": true}',
        '{"a": "1"}',
        '{"a": 1.5}',
        '{"": 1}',
        '{"a/b": 1}',
        '{"..": 1}',
        '{"a b": 1}',
        '{"%s": 1}' % ("a" * 250),
        "[" * 30000,
        "*",
        "*1",
        "*x*a",
        "*0*a",
        "*99999*a",
        "*1001*a",
        "*-1*a",
        "*1*(",
        "!1",
        "**a",
        "*\u0661*a",
        format_topics({f"t{number}": 1 for number in range(1001)}),
    ],
)
def test_what_is_no_topic_count_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"topic|wildcard|pattern|streams"):
        parse_topic_count(text)


def test_names_of_topics_are_those_of_kafka() -> None:
    names = ["orders", "a.b_c-D9", "a" * 249, "", ".", "..", "a" * 250, "a b", "a/b", "ä"]
    assert [is_topic_name(name) for name in names] == [True] * 3 + [False] * 7
