"""What the records of ``__consumer_offsets`` can show of a true rebalance, and how an explanation from them is judged.

Laws:

* A rebalance that led to no generation has no record; it is neither missed nor scored.
* Causes that leave the same records are one class (`CLASSES`); within a class any answer is right.
* Where two things happened between two records, these do not show which was first: `is_shown` is false, and the cause
  is not compared. The same holds for what leaves no trace at all (`CANNOT_SHOW`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.model import GroupHistory
from tests.truth.labels import Label
from tests.truth.scorer import Comparison, Tolerance, compare

CANNOT_SHOW = (
    "a rebalance that another one cut short, or that a crash of the coordinator did: no generation, no record",
    "whether a member left, did not poll, or was removed by a timeout or by group.max.size: it is gone",
    "that a new member is one that had missed the join of an earlier generation",
    "what began a rebalance in which members came and others went, or that followed one without a record",
    "a failover of the coordinator, and other lists of assignors unless another assignor is chosen",
    "when a rebalance began, who joined last, and the members' stated reasons",
)

_GONE = (
    Cause.MEMBER_LEFT,
    Cause.SESSION_EXPIRED,
    Cause.POLL_TIMEOUT,
    Cause.SYNC_EXPIRED,
    Cause.GROUP_TOO_LARGE,
)
CLASSES: Mapping[Cause, Cause] = MappingProxyType(
    {**dict.fromkeys(_GONE, Cause.MEMBER_LEFT), Cause.REBALANCE_TIMEOUT: Cause.NEW_MEMBER}
)
"""The representative of all causes that leave the same records."""


def in_the_records(labels: Sequence[Label]) -> list[Label]:
    """Those that have left a record: the leader's assignment was taken, or the group became empty. (Whether it is there
    if the power failed while it was written, only the log knows.)"""
    return [
        label
        for label in labels
        if label.generation_id is not None and (label.stable_ms is not None or label.outcome == "empty")
    ]


def is_shown(label: Label, former: Label | None) -> bool:
    """Whether the records of two generations, one behind the other, leave one cause."""
    if label.cause is Cause.COORDINATOR_FAILOVER:
        return False
    if former is None:
        return label.generation_id == 1
    if former.generation_id is None or label.generation_id != former.generation_id + 1:
        return False
    if label.cause is Cause.ASSIGNORS_CHANGED and label.assignor == former.assignor:
        return False
    came, went = _changes(label, former)
    is_more, is_less = bool(came), bool(went)
    kind = CLASSES.get(label.cause, label.cause)
    if kind is Cause.NEW_MEMBER:
        return is_more and not is_less
    if kind is Cause.MEMBER_LEFT:
        return is_less and not is_more
    return not is_more and not is_less


def _changes(label: Label, former: Label) -> tuple[set[str], set[str]]:
    """The members that came and those that went."""
    before = {member_id for member_id, _ in former.joins}
    after = {member_id for member_id, _ in label.joins} - {member_id for member_id, _ in label.removed}
    return after - before, before - after


def log_comparisons(
    scenario: str, labels: Sequence[Label], histories: Mapping[str, GroupHistory], tolerance: Tolerance
) -> list[Comparison]:
    """A comparison on every rebalance that has left a record, and on every one inferred."""
    former: dict[tuple[str, int], Label | None] = {}
    last: dict[str, Label] = {}
    for label in labels:
        former[label.group_id, label.number] = last.get(label.group_id)
        last[label.group_id] = label
    comparisons = [
        comparison
        for comparison in compare(scenario, labels, histories, tolerance, lambda _: True)
        if comparison.inferred is not None or comparison.truth is None or not comparison.truth.cut
    ]
    for comparison in comparisons:
        truth, guess = comparison.truth, comparison.inferred
        if truth is None or guess is None:
            continue
        inferred = Cause(guess.cause)
        is_right = CLASSES.get(inferred, inferred) is CLASSES.get(truth.cause, truth.cause)
        before = former[truth.group_id, truth.number]
        shown = is_shown(truth, before)
        kept = {name: comparison.checks.get(name) for name in ("generation", "assignor", "leader")}
        if before is not None and sum(map(len, _changes(truth, before))) == 1:  # with several, the first is not known
            kept |= {name: comparison.checks.get(name) for name in ("member", "client", "host")}
        comparison.checks = {"cause": is_right if shown else None, **(kept if shown else {})}
    return comparisons
