"""Patterns of topics: the subset means what it means in other engines, and nothing takes long."""

from __future__ import annotations

import itertools
import random
import re
import time

import pytest

from kcoord_wire.central.draft.subscription import LONGEST, TopicPattern

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
