"""Comparing what a script recorded on Kafka with what it recorded on our coordinator, and the table of differences."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.interop.exchanges import Exchange, Script
from tests.interop.exchanges.played import Outcome, Played

ABSENT = "(absent)"


@dataclass(frozen=True)
class Difference:
    """A line of the table: where it applies (regular expressions that fit to the end), both sides, and why."""

    id: str
    script: str
    api: str
    field: str
    reason: str
    kafka: str = ".*"
    ours: str = ".*"

    def covers(self, found: Found) -> bool:
        return (
            re.fullmatch(self.script, found.script) is not None
            and re.fullmatch(self.api, found.api) is not None
            and re.fullmatch(self.field, found.field) is not None
            and re.fullmatch(self.kafka, str(found.kafka), re.DOTALL) is not None
            and re.fullmatch(self.ours, str(found.ours), re.DOTALL) is not None
        )


@dataclass(frozen=True)
class Found:
    """One field in which the two answers to one request differ."""

    script: str
    step: int
    api: str
    version: int
    field: str
    kafka: Any
    ours: Any

    def __str__(self) -> str:
        return f"[{self.step}] {self.api} v{self.version} {self.field}: Kafka {self.kafka!r}, ours {self.ours!r}"


@cache
def table(path: Path) -> list[Difference]:
    return [Difference(**line) for line in tomllib.loads(path.read_text("utf-8"))["difference"]]


def compare(script: Script, kafka: Sequence[Exchange], ours: Sequence[Exchange]) -> Iterator[Found]:
    """Every field that differs."""
    for step, (theirs, mine) in enumerate(zip(kafka, ours, strict=True)):
        assert (theirs.who, theirs.api, theirs.version) == (mine.who, mine.api, mine.version)
        for field in sorted({*theirs.fields, *mine.fields}):
            pair = theirs.fields.get(field, ABSENT), mine.fields.get(field, ABSENT)
            if pair[0] != pair[1]:
                yield Found(script.name, step, theirs.api, theirs.version, field, *pair)


def recorded(side: str, outcome: Outcome) -> list[Exchange]:
    if isinstance(outcome, Exception):
        raise AssertionError(f"the script does not come to its end on {side}") from outcome
    return outcome


def unexplained(script: Script, played: Played, path: Path) -> list[Found]:
    """The fields of one script that differ, and that no line of the table covers."""
    return [found for found in differing(script, played) if not any(line.covers(found) for line in table(path))]


def differing(script: Script, played: Played) -> Iterator[Found]:
    """The fields of one script that differ."""
    kafka, ours = recorded("Kafka", played.kafka[script.name]), recorded("ours", played.ours[script.name])
    return compare(script, kafka, ours)


def unneeded(scripts: Iterable[Script], played: Played, path: Path) -> list[str]:
    """The ids of the lines of a table that cover no difference, give no reason, or have the id of another."""
    found = [found for script in scripts for found in differing(script, played)]
    ids = Counter(line.id for line in table(path))
    return [
        line.id
        for line in table(path)
        if ids[line.id] > 1 or not line.reason or not any(line.covers(each) for each in found)
    ]
