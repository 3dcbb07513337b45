"""The broker's own log as a second witness of what was captured on the wire.

A rebalance on the wire and one in the text are the same where they led to the same generation, and their beginnings lie
within `NEAR_NS` once the clocks are compared: the difference of the clocks is the median over all that share a
generation, so that a log read in a wrong time zone is joined all the same, and said.

Laws:

* The wire decides: the text adds evidence, and a sentence where it states another cause; it changes no cause but an
  unknown one.
* The group's history of the text stays where it has a rebalance that the wire does not have, and only then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Final

from kcoord_wire.forensics.model import NS_PER_MS, Cause, Evidence, GroupHistory, Rebalance

NEAR_NS: Final = 30_000 * NS_PER_MS
"""How far apart the two may see one rebalance begin."""

_NOTABLE_NS: Final = 60_000 * NS_PER_MS  # clocks that differ by more are mentioned
_FROM_TEXT: Final = 0.9


def join_witnesses(histories: Iterable[GroupHistory]) -> list[GroupHistory]:
    """Return the histories, those of the wire with what the text says of the same group."""
    found = list(histories)
    on_wire = {history.group.group_id: history for history in found if history.group.origin == "wire"}
    kept = []
    for history in found:
        seen = on_wire.get(history.group.group_id)
        if history.group.origin != "text" or seen is None or not _join(seen, history):
            kept.append(history)
    return kept


def _join(wire: GroupHistory, text: GroupHistory) -> bool:
    """Add what the text says; return whether the wire has all of its rebalances."""
    pairs = list(_of_one_generation(wire.rebalances, text.rebalances))
    ahead = round(median(b.started_ns - a.started_ns for a, b in pairs)) if pairs else 0
    matched: dict[int, int] = {}
    for seen, stated in pairs:
        if abs(stated.started_ns - ahead - seen.started_ns) <= NEAR_NS and stated.number not in matched.values():
            matched[seen.number] = stated.number
            _add_statement(seen, stated, ahead)
    if abs(ahead) > _NOTABLE_NS:
        minutes = round(ahead / _NOTABLE_NS)
        wire.group.blind.append(
            f"The clock of the log is {abs(minutes)} min {'ahead of' if minutes > 0 else 'behind'} that of the capture:"
            " a time zone (--timezone)?"
        )
    return len(matched) == len(text.rebalances)


def _of_one_generation(wire: Sequence[Rebalance], text: Sequence[Rebalance]) -> Iterable[tuple[Rebalance, Rebalance]]:
    stated: dict[int, Rebalance] = {}
    for rebalance in text:
        if rebalance.generation_id is not None:
            stated.setdefault(rebalance.generation_id, rebalance)
    for rebalance in wire:
        if rebalance.generation_id in stated:
            yield rebalance, stated[rebalance.generation_id]


def _add_statement(seen: Rebalance, stated: Rebalance, ahead: int) -> None:
    seen.evidence += [
        Evidence(fact.time_ns - ahead, fact.source, fact.seq, f"the log has it too: {fact.text}")
        for fact in stated.evidence
    ]
    if stated.cause in (seen.cause, Cause.UNKNOWN):
        return
    if seen.cause == Cause.UNKNOWN:
        seen.cause, seen.detail, seen.confidence = stated.cause, stated.detail, min(stated.confidence, _FROM_TEXT)
        seen.member_id, seen.client_id, seen.instance_id = stated.member_id, stated.client_id, stated.instance_id
        return
    why = f"the broker's log names another cause: {stated.cause}"
    seen.evidence.append(Evidence(seen.started_ns, stated.evidence[0].source if stated.evidence else "", -1, why))
