"""Judges an assignor, a user's own too, by playing generated histories of a group with it.

Laws:

* Each broken rule is reported once, with the smallest group that the search found to show it; the same arguments give
  the same report.
* Which rules hold for an assignor is what it claims: those of the contract for every one, those of KIP-429 for a
  cooperative one, `PROMISES` where the caller says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from kcoord_wire.assignors.histories import Case, Given, leaders_view, play, shown, smaller
from kcoord_wire.assignors.rules import PROMISED, PROMISES, Rule, Violation, check_assignment, members_of
from kcoord_wire.assignors.subscriptions import Assignor, RebalanceProtocol


def check_assignor(
    assignor: Assignor, promises: Collection[Rule] = (), *, histories: int = 200, rounds: int = 8, seed: int = 0
) -> list[Violation]:
    """Play generated histories of a group with an assignor; return the broken rules, each once.

    Members join, leave, change their subscriptions and come back with claims of an older generation; topics appear,
    grow and vanish; half of the groups have racks, half have equal subscriptions, some members are static. An eager
    member gives its partitions up before it joins: if the assignor has `on_join`, it sees them there alone.
    `on_assignment` is not called.

    :param promises: of `PROMISES`, the rules that the assignor promises to keep
    :param histories: how many groups
    :param rounds: the rebalances of each
    :raises ValueError: a promise that is not one; no history or no round
    :raises TypeError: it is no `Assignor`
    """
    given: Any = assignor  # a name, or the function alone
    if not isinstance(given, Assignor):
        raise TypeError(f"{given!r} is no Assignor")
    if histories < 1 or rounds < 1:
        raise ValueError(f"{histories} histories of {rounds} rounds show nothing")
    if not PROMISES.issuperset(promises):
        raise ValueError(f"no promises: {', '.join(sorted(set(promises) - PROMISES))}")
    judge = _Judge(assignor, frozenset(promises))
    found: dict[Rule, Violation] = {}
    for number in range(histories):
        for case in play(judge.given, seed=seed + number, rounds=rounds):
            for violation in judge.violations(case):
                if violation.rule not in found:
                    found[violation.rule] = _shrunk(judge, violation.rule, case)
    return list(found.values())


def assert_assignor(
    assignor: Assignor, promises: Collection[Rule] = (), *, histories: int = 200, seed: int = 0
) -> None:
    """Do as `check_assignor`; for tests.

    :raises AssertionError: a rule is broken; the text has every one, with the group that shows it
    """
    found = check_assignor(assignor, promises, histories=histories, seed=seed)
    if found:
        raise AssertionError(f"{assignor.name} breaks {len(found)} rules\n" + "\n".join(map(str, found)))


MOST_STEPS: Final = 2000  # of shrinking; an assignor that is slow as well as wrong shall not take hours


def _shrunk(judge: _Judge, rule: Rule, case: Case) -> Violation:
    """Return the violation in the smallest group that one change after the other leads to."""
    best = next(each for each in judge.violations(case) if each.rule is rule)
    steps, candidates = 0, smaller(case)
    while steps < MOST_STEPS and (candidate := next(candidates, None)) is not None:
        steps += 1
        shown = next((each for each in judge.violations(candidate) if each.rule is rule), None)
        if shown is not None:
            case, best, candidates = candidate, shown, smaller(candidate)
    return replace(best, case=case)


class _Judge:
    """Judges an assignor on one group at a time."""

    def __init__(self, assignor: Assignor, promises: frozenset[Rule]) -> None:
        self.assignor = assignor
        self.promises = promises
        self.is_cooperative = assignor.protocol is RebalanceProtocol.COOPERATIVE

    def answer(self, asked: Case) -> Any:
        """Call the assignor's functions on a group of their own."""
        assignment: Any = self.assignor.assign(asked.partitions_per_topic, asked.members, asked.racks)
        if self.assignor.assignment_user_data is not None:
            self.assignor.assignment_user_data(asked.partitions_per_topic, asked.members, assignment)
        return assignment

    def given(self, case: Case) -> Given:
        """Return the assignment, or none at all if it is one that a leader would refuse."""
        try:
            assignment = self.answer(leaders_view(case, self.assignor))
        except Exception:
            return {}
        wrong = check_assignment(assignment, case.partitions_per_topic, case.members)
        return {} if wrong else _plain(assignment)

    def violations(self, case: Case) -> list[Violation]:
        """Return the rules that the assignor breaks on this group."""
        try:
            asked = leaders_view(case, self.assignor)
            before = asked.copy()
            assignment = self.answer(asked)
        except Exception as error:  # whatever a plug-in raises is the finding
            return [Violation(Rule.NO_ERROR, f"it raises {type(error).__name__}: {error}")]
        found = check_assignment(assignment, case.partitions_per_topic, case.members, self.assignor.protocol)
        if asked != before:
            found.append(Violation(Rule.INPUTS, "it has changed its input"))
        if any(each.rule is not Rule.GIVEN_UP for each in found):
            return found
        found += _check_form(assignment)
        first = _plain(assignment)
        for rule, other in ((Rule.DETERMINISTIC, case), (Rule.ORDER, case.reordered())):
            if (again := self.given(other)) != first:
                found.append(Violation(rule, f"{shown(first)}; then {shown(again)}"))
        return found + self.of_final(case, first)

    def of_final(self, case: Case, first: Given) -> list[Violation]:
        """Judge what is left when, after a cooperative assignment, members have rejoined once."""
        final, found = first, []
        if self.is_cooperative and _revoked(case, first):
            final = self.given(case.rejoined(first))
            if again := _revoked(case.rejoined(first), final):
                text = f"first {shown(first)}; in the second rebalance {again[0]} is taken away once more"
                found.append(Violation(Rule.FOLLOW_UP, text))
        if missing := sorted(case.assignable() - members_of(final).keys()):
            topic, number = missing[0]
            found.append(Violation(Rule.COMPLETE, f"{topic}-{number} goes to no member: {shown(final)}"))
        if not found:
            found += [each for rule in PROMISES & self.promises for each in PROMISED[rule](case, first, final)]
        return found


def _plain(assignment: Mapping[str, Mapping[str, Sequence[int]]]) -> Given:
    """Return an assignment as dicts of lists, in the order of their keys."""
    return {
        member_id: {topic: sorted(numbers) for topic, numbers in sorted(has.items()) if len(numbers)}
        for member_id, has in sorted(assignment.items())
    }


def _revoked(case: Case, given: Given) -> list[str]:
    """Return what members own and have to give up."""
    return [
        f"{topic}-{number} of {member_id}"
        for member_id, member in case.members.items()
        for topic, numbers in member.owned.items()
        for number in sorted(set(numbers).difference(given.get(member_id, {}).get(topic, ())))
    ]


def _check_form(assignment: Mapping[str, Mapping[str, Sequence[int]]]) -> Iterator[Violation]:
    for member_id, has in assignment.items():
        for topic, numbers in has.items():
            if not len(numbers):
                yield Violation(Rule.FORM, f"member {member_id} has an entry for {topic} without partitions")
            elif list(numbers) != sorted(set(numbers)):
                yield Violation(Rule.FORM, f"the partitions of {topic} for {member_id} do not ascend: {list(numbers)}")
