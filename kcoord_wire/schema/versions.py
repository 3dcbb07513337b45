"""Version ranges as schema files write them: ``none``, ``3``, ``0-9``, ``4+``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

MAX_VERSION: Final = 32767
_RANGE: Final = re.compile(r"([0-9]{1,5})(?:(\+)|-([0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions from `low` to `high`, both included; empty where `low` is above `high`."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str) -> Versions:
        """The range that `text` names (as Kafka's Versions.parse reads it).

        :raises ValueError: it is not a range
        """
        text = text.strip()
        if text == "none":
            return NONE
        match = _RANGE.fullmatch(text)
        if match is None:
            raise ValueError(f'"{text}" is not a version range: write none, 3, 0-9 or 4+')
        low = int(match[1])
        high = MAX_VERSION if match[2] else int(match[3] or low)
        if not low <= high <= MAX_VERSION:
            raise ValueError(f'"{text}" is not a version range: it must ascend and end at {MAX_VERSION} at most')
        return cls(low, high)

    def __contains__(self, version: int) -> bool:
        return self.low <= version <= self.high

    def __bool__(self) -> bool:
        return self.low <= self.high

    def __and__(self, other: Versions) -> Versions:
        both = Versions(max(self.low, other.low), min(self.high, other.high))
        return both if both else NONE

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.low, self.high + 1))

    def covers(self, other: Versions) -> bool:
        """Whether this range contains every version of `other`."""
        return not other or (self.low <= other.low and other.high <= self.high)

    @property
    def open_ended(self) -> bool:
        return self.high == MAX_VERSION

    def __str__(self) -> str:
        if not self:
            return "none"
        if self.low == self.high:
            return str(self.low)
        return f"{self.low}+" if self.open_ended else f"{self.low}-{self.high}"


NONE: Final = Versions(1, 0)
ALL: Final = Versions(0, MAX_VERSION)
