"""Compares what was inferred with what happened: which rebalance is which, and what of each is right.

Laws:

* Every true rebalance is matched with at most one inferred one of its group, in order; those without a match are missed
  or invented.
* A check that the source cannot answer is None and is not counted; everything else is right or wrong.
* The agreement is the share of right causes among all rebalances that happened and all that were invented.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, TypeVar

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.model import GroupHistory, Rebalance
from tests.truth.labels import Label

MS = 1_000_000  # nanoseconds
CHECKS = (
    "cause",
    "generation",
    "member",
    "client",
    "host",
    "reason",
    "assignor",
    "leader",
    "last joiner",
    "how late",
    "joining time",
    "duration",
    "removed",
    "outcome",
)
TIMERS = (Cause.SESSION_EXPIRED, Cause.SYNC_EXPIRED, Cause.GROUP_TOO_LARGE)


class Timed(Protocol):
    """A rebalance that happened: its generation, and its times in ms since the epoch; None where it had none."""

    @property
    def generation_id(self) -> int | None: ...
    @property
    def started_ms(self) -> int: ...
    @property
    def joined_ms(self) -> int | None: ...
    @property
    def ended_ms(self) -> int | None: ...


TimedT = TypeVar("TimedT", bound=Timed)


@dataclass(frozen=True)
class Tolerance:
    """How far a time may be off, in ms.

    :ivar network_ms: the longest time that a message takes
    :ivar heartbeat_ms: the longest time until a member shows that it has seen the effect of a timer
    """

    network_ms: int
    heartbeat_ms: int

    @property
    def plain_ms(self) -> int:
        """For a time that a frame shows."""
        return 3 * self.network_ms + 15

    def start_ms(self, cause: Cause) -> int:
        """For the start: a timer sends nothing."""
        return self.plain_ms + (self.heartbeat_ms if cause in TIMERS else 0)


@dataclass
class Comparison:
    """A true rebalance with the inferred one that it was matched with, either of which may be missing.

    :ivar rule: the rule of `kcoord_wire.forensics.wire.rules` behind the inferred cause; None from the log
    :ivar checks: what is right; None where the source cannot show it
    """

    scenario: str
    group_id: str
    truth: Label | None
    inferred: Rebalance | None
    rule: str | None = None
    checks: dict[str, bool | None] = field(default_factory=dict)

    @property
    def is_right(self) -> bool:
        """Whether the cause is right."""
        return self.checks.get("cause") is True

    @property
    def cell(self) -> tuple[str, str]:
        """Its cell of the confusion matrix: true cause, inferred cause."""
        return (
            "invented" if self.truth is None else self.truth.cause.name,
            "missed" if self.inferred is None else Cause(self.inferred.cause).name,
        )


def compare(
    scenario: str,
    labels: Sequence[Label],
    histories: Mapping[str, GroupHistory],
    tolerance: Tolerance,
    is_shown: Callable[[str], bool],
    rules: Mapping[str, Mapping[int, str]] = MappingProxyType({}),
) -> list[Comparison]:
    """Compare every rebalance, true or inferred.

    :param histories: by group
    :param is_shown: whether a member id is in the source at all
    :param rules: the rules behind the inferred causes, by group and number of the rebalance
    """
    groups = dict.fromkeys([*(label.group_id for label in labels), *histories])
    comparisons = []
    for group_id in groups:
        truths = [label for label in labels if label.group_id == group_id]
        history = histories.get(group_id)
        inferred = [] if history is None else history.rebalances
        for truth, guess in match(truths, inferred):
            rule = rules.get(group_id, {}).get(guess.number) if guess is not None else None
            comparison = Comparison(scenario, group_id, truth, guess, rule)
            if truth is None or guess is None:
                comparison.checks["cause"] = False
            else:
                comparison.checks = _checks(truth, guess, tolerance, is_shown)
            comparisons.append(comparison)
    return comparisons


# ---- which is which


def match(truths: Sequence[TimedT], guesses: Sequence[Rebalance]) -> list[tuple[TimedT | None, Rebalance | None]]:
    """Find the pairing, in the order of both, that has most in common (an alignment of two sequences)."""
    rows, columns = len(truths), len(guesses)
    best = [[0.0] * (columns + 1) for _ in range(rows + 1)]
    for row in range(rows - 1, -1, -1):
        for column in range(columns - 1, -1, -1):
            alike = likeness(truths[row], guesses[column])
            paired = alike + best[row + 1][column + 1] if alike > 0 else 0.0
            best[row][column] = max(paired, best[row + 1][column], best[row][column + 1])
    pairs: list[tuple[TimedT | None, Rebalance | None]] = []
    row = column = 0
    while row < rows or column < columns:
        alike = likeness(truths[row], guesses[column]) if row < rows and column < columns else 0.0
        if alike > 0 and best[row][column] == alike + best[row + 1][column + 1]:
            pairs.append((truths[row], guesses[column]))
            row += 1
            column += 1
        elif row < rows and (column == columns or best[row][column] == best[row + 1][column]):
            pairs.append((truths[row], None))
            row += 1
        else:
            pairs.append((None, guesses[column]))
            column += 1
    return pairs


def likeness(truth: Timed, guess: Rebalance) -> float:
    """How alike two rebalances are, apart from their causes; 0 if they cannot be the same."""
    start, joined = guess.started_ns / MS, None if guess.joined_ns is None else guess.joined_ns / MS
    apart = abs(start - truth.started_ms)
    near = 1 / (1 + apart / 1_000)
    if truth.joined_ms is not None and joined is not None:
        is_same = guess.generation_id == truth.generation_id
        if abs(joined - truth.joined_ms) > (5_000 if is_same else 400):  # answers may be held back by a fault
            return 0.0
        return 4 + near + 2 * is_same
    end = truth.ended_ms if truth.ended_ms is not None else truth.started_ms
    until = guess.ended_ns / MS if guess.ended_ns is not None else start
    if start > end + 3_000 or until < truth.started_ms - 3_000:
        return 0.0
    if guess.generation_id is not None and guess.generation_id == truth.generation_id:
        return 3 + near
    return 1 + near if apart < 10_000 and (truth.joined_ms is None) == (joined is None) else near / 2


# ---- what is right


def _checks(
    truth: Label, guess: Rebalance, tolerance: Tolerance, is_shown: Callable[[str], bool]
) -> dict[str, bool | None]:
    known = is_shown(truth.member_id)
    is_anonymous = truth.cause is Cause.GROUP_TOO_LARGE  # the account names a member only because it has to name one
    checks: dict[str, bool | None] = dict.fromkeys(CHECKS)
    checks["cause"] = Cause(guess.cause) is truth.cause
    checks["generation"] = guess.generation_id == truth.generation_id
    if not is_anonymous:
        checks["member"] = guess.member_id == truth.member_id if known else None
        checks["client"] = guess.client_id == truth.client_id
        checks["host"] = guess.client_host == truth.client_host
        if truth.cause is Cause.COORDINATOR_FAILOVER and guess.member_id is None:
            checks |= {"member": None, "client": None, "host": None}  # no member need have started it
        if truth.reason is not None:
            checks["reason"] = guess.reason == truth.reason
    if truth.joined_ms is not None:
        checks["assignor"] = guess.assignor == truth.assignor
        checks["leader"] = guess.leader_id == truth.leader_id
        _check_joins(checks, truth, guess, tolerance, is_shown)
    if truth.outcome == "stable" and truth.joined_ms is not None and truth.ended_ms is not None:
        spread = tolerance.start_ms(truth.cause) + tolerance.plain_ms
        checks["duration"] = _close(guess.duration_ms, truth.ended_ms - truth.started_ms, spread)
    removed = {(member_id, why) for member_id, why in truth.removed if is_shown(member_id)}
    checks["removed"] = removed == {(each.member_id, _plain_why(each.why)) for each in guess.removed}
    checks["outcome"] = guess.outcome == truth.outcome
    return checks


def _check_joins(
    checks: dict[str, bool | None],
    truth: Label,
    guess: Rebalance,
    tolerance: Tolerance,
    is_shown: Callable[[str], bool],
) -> None:
    assert truth.joined_ms is not None
    checks["joining time"] = _close(
        guess.joining_ms, truth.joined_ms - truth.started_ms, tolerance.start_ms(truth.cause)
    )
    if len(truth.joins) < 2 or not all(is_shown(member_id) for member_id, _ in truth.joins):
        return
    (_, before), (_, last) = truth.joins[-2:]
    at_the_same_time = {member_id for member_id, ms in truth.joins if last - ms <= 1}
    checks["last joiner"] = guess.last_member_id in at_the_same_time
    checks["how late"] = _close(guess.late_ms, last - before, tolerance.plain_ms)


def _close(guess: float | None, truth: float, spread: float) -> bool:
    return guess is not None and abs(guess - truth) <= spread


def _plain_why(why: str) -> str:
    return "left" if why == "poll timeout" else why


# ---- all together


@dataclass
class Score:
    """The sum of comparisons.

    :ivar unshown: rebalances whose cause the source cannot show; no other figure counts them
    :ivar matrix: how often a true cause was given an inferred one
    :ivar rules: how often a true rule was found by an inferred one, and whether the cause was right
    """

    scenarios: int = 0
    unshown: int = 0
    right: int = 0
    true: int = 0
    missed: int = 0
    invented: int = 0
    matrix: Counter[tuple[str, str]] = field(default_factory=Counter)
    rules: Counter[tuple[str, str, bool]] = field(default_factory=Counter)
    checks: dict[str, list[int]] = field(default_factory=lambda: {name: [0, 0] for name in CHECKS})
    wrong: list[Comparison] = field(default_factory=list)

    def add(self, comparisons: Sequence[Comparison]) -> None:
        """Add the comparisons of one scenario."""
        self.scenarios += 1
        for comparison in comparisons:
            if comparison.checks.get("cause") is None:
                self.unshown += 1
                continue
            self.true += comparison.truth is not None
            self.right += comparison.is_right
            self.missed += comparison.inferred is None
            self.invented += comparison.truth is None
            self.matrix[comparison.cell] += 1
            if comparison.truth is not None:
                found = "missed" if comparison.inferred is None else comparison.rule or "none"
                self.rules[comparison.truth.rule, found, comparison.is_right] += 1
            if not comparison.is_right:
                self.wrong.append(comparison)
            if comparison.truth is None or comparison.inferred is None:
                continue
            for name, is_right in comparison.checks.items():
                if is_right is not None:
                    self.checks[name][0] += is_right
                    self.checks[name][1] += 1

    @property
    def agreement(self) -> float:
        """0 to 1."""
        return self.right / max(self.true + self.invented, 1)

    def recall(self, cause: Cause) -> tuple[int, int]:
        """How many rebalances of a cause were given that cause, of how many."""
        of = sum(count for (truth, _), count in self.matrix.items() if truth == cause.name)
        return self.matrix[cause.name, cause.name], of

    @property
    def without_new_members(self) -> float:
        """The agreement on all other causes: new members are the most frequent cause, and the easiest."""
        right, true = self.recall(Cause.NEW_MEMBER)
        return (self.right - right) / max(self.true - true + self.invented, 1)

    def worst(self) -> list[tuple[str, int]]:
        """Scenarios by the number of wrong causes, the worst first."""
        return Counter(comparison.scenario for comparison in self.wrong).most_common()
