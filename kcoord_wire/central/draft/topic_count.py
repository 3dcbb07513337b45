"""What a consumer consumes, as RegisterConsumerRequest writes it: topics with numbers of streams, or a wildcard.

The draft draws no form for ``topic_count``; this is that of Kafka 0.7 (`kafka.consumer.TopicCount`):

    {"orders": 2, "payments": 1}     topics, and the number of streams (threads) for each
    *2*ord.*                         every topic that matches, 2 streams each (whitelist)
    !1!test-.*|tmp-.*                every topic that does not match (blacklist)

Laws:

* Text from outside cannot stop a coordinator: text, topics, streams and pattern have limits, and a match costs at most
  (pattern length x topic length) steps, whatever the pattern. Patterns are those of `topic_pattern`.
* Equal texts give equal objects.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from kcoord_wire.central.draft.topic_pattern import TopicPattern

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
