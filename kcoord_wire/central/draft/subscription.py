r"""What a consumer consumes: topics with numbers of streams, or a pattern that cannot take long to match.

The syntax of patterns is a subset of Java's regular expressions, in which wildcard subscriptions are written:
characters, ``.``, ``[a-z]``, ``[^a-z]``, ``\.``, ``( )``, ``|``, and ``*``, ``+``, ``?`` behind any of them. ``,`` is
``|``, as in 0.7. The whole name has to match; ``^`` in front and ``$`` at the end change nothing. Everything else is
refused: counts ``{2,3}``, classes like ``\d``, look-around and references.

Laws:

* A match runs all alternatives side by side (Thompson's construction), so it costs at most pattern length x name length
  steps: the usual backtracking matcher needs exponential time for patterns like ``(a*)*b``.
* A pattern has at most `LONGEST` characters, and parentheses that are 32 deep.

The draft draws no form for ``TopicCount``; this is that of Kafka 0.7 (`kafka.consumer.TopicCount`):

    {"orders": 2, "payments": 1}     topics, and the number of streams (threads) for each
    *2*ord.*                         every topic that matches, 2 streams each (whitelist)
    !1!test-.*|tmp-.*                every topic that does not match (blacklist)

Laws:

* Text from outside cannot stop a coordinator: text, topics, streams and pattern have limits, and a match costs at most
  (pattern length x topic length) steps, whatever the pattern. Patterns are as above.
* Equal texts give equal objects.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, TypeAlias

LONGEST: Final = 256
_SPECIAL: Final = frozenset("\\^$.|?*+()[]{},")
_REPEATS: Final = ("*", "+", "?")
_DEEPEST: Final = 32  # parentheses in parentheses
_Accepts: TypeAlias = Callable[[str], bool]


class TopicPattern:
    """A pattern, ready to match.

    :raises ValueError: it is longer than `LONGEST`, or not in the subset
    """

    def __init__(self, text: str) -> None:
        if len(text) > LONGEST:
            raise ValueError(f"a pattern has at most {LONGEST} characters")
        body = text[1:] if text.startswith("^") else text
        if body.endswith("$") and not body.endswith("\\$"):
            body = body[:-1]
        self.text = text
        parser = _Parser(body)
        self._start = parser.parse()
        self._steps, self._ways = parser.steps, parser.ways
        self.matches = lru_cache(maxsize=1_024)(self._matches)

    def _matches(self, name: str) -> bool:
        states = self._closure({self._start})
        for character in name:
            after = {step[1] for state in states if (step := self._steps.get(state)) and step[0](character)}
            if not after:
                return False
            states = self._closure(after)
        return _END in states

    def _closure(self, states: set[int]) -> set[int]:
        """Add the states that can be reached without a character."""
        left = list(states)
        while left:
            for state in self._ways.get(left.pop(), ()):
                if state not in states:
                    states.add(state)
                    left.append(state)
        return states


_END: Final = 0


class _Parser:
    """Builds the automaton from its end: each part is given the state that follows it, and returns its first state.

    :ivar steps: of a state: the characters that lead on, and where to
    :ivar ways: of a state: those that it is, too
    """

    def __init__(self, text: str) -> None:
        self.steps: dict[int, tuple[_Accepts, int]] = {}
        self.ways: dict[int, list[int]] = {}
        self._text = text
        self._at = 0
        self._states = 1
        self._depth = 0

    def parse(self) -> int:
        tree = self._alternatives()
        if self._at < len(self._text):
            raise self._error("unexpected")
        return tree(_END)

    def _error(self, what: str) -> ValueError:
        return ValueError(f"pattern {self._text!r}: {what} {self._text[self._at : self._at + 1]!r} at {self._at}")

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        character = self._peek()
        self._at += 1
        return character

    def _state(self) -> int:
        self._states += 1
        return self._states

    def _alternatives(self) -> Callable[[int], int]:
        branches = [self._sequence()]
        while self._peek() in ("|", ","):
            self._take()
            branches.append(self._sequence())
        return lambda after: self._fork([branch(after) for branch in branches])

    def _fork(self, ways: list[int]) -> int:
        state = self._state()
        self.ways[state] = ways
        return state

    def _sequence(self) -> Callable[[int], int]:
        parts = []
        while self._peek() not in ("", "|", ",", ")"):
            parts.append(self._repeated())

        def build(after: int) -> int:
            for part in reversed(parts):
                after = part(after)
            return after

        return build

    def _repeated(self) -> Callable[[int], int]:
        part = self._atom()
        if self._peek() not in _REPEATS:
            return part
        mark = self._take()
        if self._peek() in _REPEATS:
            raise self._error("unexpected")

        def build(after: int) -> int:
            if mark == "?":
                return self._fork([part(after), after])
            loop = self._fork([after])
            first = part(loop)
            self.ways[loop].append(first)
            return first if mark == "+" else loop

        return build

    def _atom(self) -> Callable[[int], int]:
        character = self._take()
        if character == "(":
            self._depth += 1
            if self._depth > _DEEPEST:
                raise self._error("too many parentheses before")
            inner = self._alternatives()
            self._depth -= 1
            if self._take() != ")":
                raise ValueError(f"pattern {self._text!r}: a parenthesis is not closed")
            return inner
        if character == "[":
            return self._step(self._characters())
        if character == ".":
            return self._step(lambda found: True)
        if character == "\\":
            character = self._take()
            if character not in _SPECIAL | {"-"}:
                self._at -= 1
                raise self._error("unknown escape")
        elif character in _SPECIAL:
            self._at -= 1
            raise self._error("unexpected")
        return self._step(character.__eq__)

    def _step(self, accepts: _Accepts) -> Callable[[int], int]:
        def build(after: int) -> int:
            state = self._state()
            self.steps[state] = (accepts, after)
            return state

        return build

    def _characters(self) -> _Accepts:
        """Read a class up to its bracket."""
        is_negated = self._peek() == "^"
        self._at += is_negated
        ranges: list[tuple[str, str]] = []
        while (first := self._take()) != "]":
            if first in ("", "[", "\\"):
                raise ValueError(f"pattern {self._text!r}: a class has characters and ranges, and ends with ]")
            last = first
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._take()
                last = self._take()
            ranges.append((first, last))
        return lambda found: any(first <= found <= last for first, last in ranges) != is_negated


MOST_STREAMS: Final = 1_000  # of one topic
MOST_TOPICS: Final = 1_000
LONGEST_TOPIC: Final = 249  # as in Kafka
_TOPIC_CHARACTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_WHITELIST: Final = "*"
_BLACKLIST: Final = "!"


@dataclass(frozen=True, slots=True)
class TopicCount:
    """A subscription.

    :ivar text: as it is sent
    :ivar streams: of each topic; empty for a wildcard
    :ivar pattern: of a wildcard
    :ivar is_blacklist: the pattern says which topics are not wanted
    :ivar wildcard_streams: of each topic that a wildcard selects
    """

    text: str
    streams: Mapping[str, int] = field(default_factory=dict, compare=False)
    pattern: TopicPattern | None = field(default=None, compare=False)
    is_blacklist: bool = field(default=False, compare=False)
    wildcard_streams: int = field(default=0, compare=False)

    @property
    def is_wildcard(self) -> bool:
        """Whether topics that are created later may belong to it."""
        return self.pattern is not None

    def streams_of(self, topic: str) -> int:
        """Return the number of streams for a topic; 0 if it is not subscribed to."""
        if self.pattern is None:
            return self.streams.get(topic, 0)
        return self.wildcard_streams if self.pattern.matches(topic) != self.is_blacklist else 0


def is_topic_name(name: str) -> bool:
    """Whether Kafka allows this name for a topic."""
    return 0 < len(name) <= LONGEST_TOPIC and name not in (".", "..") and _TOPIC_CHARACTERS.issuperset(name)


def format_topics(streams: Mapping[str, int]) -> str:
    """Return the text for topics with their numbers of streams."""
    return json.dumps(dict(streams))


def format_wildcard(pattern: str, streams: int = 1, *, is_blacklist: bool = False) -> str:
    """Return the text for the topics that match a pattern, or that do not."""
    marker = _BLACKLIST if is_blacklist else _WHITELIST
    return f"{marker}{streams}{marker}{pattern}"


@lru_cache(maxsize=1_024)
def parse_topic_count(text: str) -> TopicCount:
    """Return the subscription that the text says.

    :raises ValueError: it says none, or exceeds a limit
    """
    if text[:1] in (_WHITELIST, _BLACKLIST):
        number, found, pattern = text[1:].partition(text[0])
        if not found or not number.isascii() or not number.isdecimal() or len(number) > len(str(MOST_STREAMS)):
            raise ValueError(f"a wildcard is {text[0]}STREAMS{text[0]}PATTERN")
        return TopicCount(text, {}, TopicPattern(pattern), text[0] == _BLACKLIST, _checked_streams(int(number)))
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("a topic count is JSON, or begins with * or !") from None
    if not isinstance(value, dict) or not 0 < len(value) <= MOST_TOPICS:
        raise ValueError(f"a topic count has 1 to {MOST_TOPICS} topics")
    if wrong := [topic for topic in value if not is_topic_name(topic)]:
        raise ValueError(f"not a topic: {wrong[0][:LONGEST_TOPIC]!r}")
    return TopicCount(text, {topic: _checked_streams(streams) for topic, streams in value.items()})


def _checked_streams(streams: Any) -> int:
    if type(streams) is not int or not 0 < streams <= MOST_STREAMS:
        raise ValueError(f"a topic has 1 to {MOST_STREAMS} streams")
    return streams
