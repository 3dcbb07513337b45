"""What a drawn incident was: judged by the log of what was done and by the brokers' own logs, before any report.

Laws:

* No analysis is read, only acts and lines that brokers wrote.
* A run that did not go as drawn is given the kind that it was, or left out, by the rule of its kind.
* A member that was removed although nothing was done to it (a busy machine) makes a run unusable.
* A run of which the capture's end is cut off is left out: what followed is in no source.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from tests.incidents.labels import Run

_SECOND: Final = 1_000_000_000
_LATE_NS: Final = 5 * _SECOND
"""A coordinator's timers, and what follows from an act, on a busy machine."""
_LINE: Final = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3})\] \w+ (.*)")
_EXPIRED: Final = re.compile(r"removing member (\S+) on heartbeat expiration|Member (\S+) in group \S+ has failed")
_FENCED: Final = re.compile(r"Member (\S+) fenced from the group because")
_TOO_SLOW: Final = re.compile(r"fenced from the group because it failed to transition")
_LEFT: Final = re.compile(r"Member (\S+) has left group")
_GENERATION: Final = re.compile(r"Stabilized group \S+ generation (\d+) with|Bumped group epoch to (\d+)")
_CREATED: Final = re.compile(r"Created a new member id (\S+) ")
_OWNED: Final = re.compile(r"instance id \S+ cannot join the group because the instance id is owned by member")
_REPLACED: Final = re.compile(r"Replacing previously mapped member")


@dataclass(frozen=True)
class Line:
    """A line of a broker's log."""

    at_ns: int
    text: str


@dataclass
class Seen:
    """What the brokers wrote of one group.

    :ivar lines: that name it
    """

    run: Run
    lines: Sequence[Line]

    def found(self, pattern: re.Pattern[str], since_ns: int = 0, until_ns: int | None = None) -> list[str]:
        """What a pattern finds in the lines of some time: its first group that took part, or all of it."""
        found = []
        for line in self.lines:
            if since_ns <= line.at_ns and (until_ns is None or line.at_ns <= until_ns):
                match = pattern.search(line.text)
                if match is not None:
                    found.append(next(filter(None, match.groups()), match[0]))
        return found

    @property
    def begin_ns(self) -> int:
        return min((act.at_ns for act in self.run.acts), default=self.run.from_ns)

    @property
    def end_ns(self) -> int:
        """When what was done, and what follows from it, is over."""
        end = max((act.until_ns or act.at_ns for act in self.run.acts), default=self.run.from_ns)
        return end + self.run.session_ms * 1_000_000 + _LATE_NS

    def expired(self) -> list[str]:
        """The members whose sessions ended."""
        return self.found(_EXPIRED, self.run.from_ns, self.run.to_ns) + self.fenced()

    def fenced(self) -> list[str]:
        return self.found(_FENCED, self.run.from_ns, self.run.to_ns)

    def removed(self) -> bool:
        """Whether the session of a victim ended because of what was done."""
        expired = self.found(_EXPIRED, self.begin_ns, self.end_ns)
        return any(self.is_victim(member) for member in expired) or bool(
            self.found(_FENCED, self.begin_ns, self.end_ns)
        )

    def left(self) -> bool:
        """Whether a victim left meanwhile."""
        return any(self.is_victim(member) for member in self.found(_LEFT, self.begin_ns, self.end_ns))

    def left_or_removed(self, victim: str) -> bool:
        """Whether one of the victims left or was removed meanwhile."""
        gone = self.found(_LEFT, self.begin_ns, self.end_ns) + self.found(_EXPIRED, self.begin_ns, self.end_ns)
        return any(member.startswith(f"{victim}-") for member in gone)

    def is_victim(self, member: str) -> bool:
        """Whether a member id is one of a victim: its client id comes first, or its instance id."""
        return any(member.startswith(victim) for victim in self.run.victims)

    def came(self) -> int:
        """How often a victim came as a new member."""
        created = self.found(_CREATED, self.run.from_ns, self.run.to_ns)
        return sum(self.is_victim(member) for member in created)

    def generations(self) -> int:
        """How many it formed from the first act to the last."""
        return len(set(self.found(_GENERATION, self.begin_ns, self.run.to_ns)))


Rule = Callable[[Seen], str | None]
"""What kind a run was; None for none that can be judged."""


def _as_drawn(seen: Seen) -> str | None:
    return seen.run.kind


def _is(kind: str, condition: Callable[[Seen], bool], otherwise: str | None = None) -> Rule:
    return lambda seen: kind if condition(seen) else otherwise


def _silent(seen: Seen) -> bool:
    return not seen.expired()


def _swings(seen: Seen) -> bool:
    return seen.generations() >= 2 * len(seen.run.acts) and _silent(seen)


RULES: Final[Mapping[str, Rule]] = {
    "healthy": _is("healthy", _silent),
    "frozen shortly": _is("frozen shortly", _silent, "frozen"),
    "killed": _is("killed", Seen.removed),
    "frozen": _is("frozen", Seen.removed, "frozen shortly"),
    "cut off": _is("cut off", Seen.removed, "frozen shortly"),
    "cut from the coordinator": _is("cut from the coordinator", Seen.removed, "frozen shortly"),
    "cut from a leader": _is("cut from a leader", _silent),
    "crash loop": _is("crash loop", lambda seen: seen.came() >= len(seen.run.acts)),
    "max poll": _is("max poll", lambda seen: seen.left() or seen.removed()),
    "fenced": _is("fenced", lambda seen: bool(seen.found(_REPLACED, seen.begin_ns))),
    "instance in use": _is("instance in use", lambda seen: bool(seen.found(_OWNED, seen.begin_ns))),
    "deploy": _is("deploy", lambda seen: seen.generations() >= len(seen.run.acts) and _silent(seen)),
    "static deploy": _is("static deploy", lambda seen: _silent(seen) and seen.generations() == 0),
    "autoscaler": _is("autoscaler", _swings),
    "slow revocation": _is("slow revocation", lambda seen: not seen.fenced(), "fenced epoch"),
    "fenced epoch": _is("fenced epoch", lambda seen: bool(seen.found(_TOO_SLOW)), "slow revocation"),
    "tight heartbeats": _is("tight heartbeats", Seen.removed),
    "streams killed": _is("streams killed", Seen.removed),
    "streams frozen": _is("streams frozen", Seen.removed, "frozen shortly"),
    "streams restarted": _is("streams restarted", Seen.removed),
    "protocol changed": _is("protocol changed", _silent),
    "blocked loop": _is("blocked loop", Seen.removed, "frozen shortly"),
    "connection dropped": _is("connection dropped", Seen.removed),
    "lossy network": _is("lossy network", Seen.removed, "lossy shortly"),
    "poll storm": _is("poll storm", lambda seen: all(seen.left_or_removed(each) for each in seen.run.victims)),
    "new topics": _is("new topics", _silent),
    "outside commit refused": _is("outside commit refused", _silent),
}
"""Of the others the scene itself waited for what had to follow."""
_ANY_REMOVED: Final = frozenset({"broker outage", "coordinator moved", "unwritten log", "two applications"})
"""Where members may be removed that nothing was done to."""


def judge_truth(runs: Sequence[Run], log: Sequence[str], end_ns: int | None = None) -> tuple[list[Run], list[str]]:
    """The runs that can be judged, each with the kind that it was; and which are left out, and why.

    :param log: what the brokers wrote
    :param end_ns: of the capture, where its end is cut off
    """
    lines = list(_lines(log))
    kept, left_out = [], []
    for run in runs:
        seen = Seen(run, [line for line in lines if _names(line.text, run.group)])
        kind = RULES.get(run.kind, _as_drawn)(seen)
        why = ""
        if end_ns is not None and seen.end_ns - _LATE_NS > end_ns:
            why = "the end of the capture is cut off"
        elif others := _disturbed(seen):
            why = f"others were removed: {', '.join(others)}"
        elif kind is None:
            why = f"the brokers' logs do not confirm it; removed were {seen.expired() or 'none'}"
        if why:
            left_out.append(f"{run.group} ({run.kind}, {run.library}): {why}")
        else:
            run.kind = kind or run.kind
            kept.append(run)
    return kept, left_out


def _disturbed(seen: Seen) -> list[str]:
    """The members that were removed although nothing was done to them."""
    if seen.run.kind in _ANY_REMOVED:
        return []
    removed = seen.found(_EXPIRED, seen.run.from_ns, seen.run.to_ns)
    return sorted({member for member in removed if not seen.is_victim(member)})


def _names(text: str, group: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(group)}(?![\w.-])", text) is not None


def _lines(log: Sequence[str]) -> list[Line]:
    found = []
    for text in log:
        match = _LINE.match(text)
        if match is not None:
            at = datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
            found.append(Line(int(at.timestamp()) * _SECOND + int(match[2]) * 1_000_000, match[3]))
    return found
