"""Findings as people read them: what one detector finds of many members is one card.

Law: every finding is in one card; a card's first finding is the worst, and the earliest of these.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kcoord_wire.forensics.importance import by_importance
from kcoord_wire.forensics.model import Finding

_ALIKE: Final = 3  # findings of one detector and severity from which on they share a card
_NAMED: Final = 12


@dataclass(slots=True)
class Card:
    """A finding, and others of the same detector and severity.

    :ivar first: the finding that is shown in full
    :ivar others: the rest, in order of time
    """

    first: Finding
    others: list[Finding]

    @property
    def more(self) -> str:
        """What the others are about, in a sentence; empty where there are none."""
        if not self.others:
            return ""
        names = list(dict.fromkeys(finding.subject for finding in self.others if finding.subject))
        count = f"{len(self.others):,} more like this"
        if not names:
            return f"{count}."
        rest = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
        return f"{count}: {', '.join(names[:_NAMED])}{rest}."

    @property
    def rebalances(self) -> list[int]:
        """The numbers of all rebalances concerned."""
        return sorted({number for finding in (self.first, *self.others) for number in finding.rebalances})

    @property
    def to_ns(self) -> int | None:
        """The last moment of all; None where one lasts to the end of the source."""
        ends = [finding.to_ns for finding in (self.first, *self.others)]
        return None if None in ends else max(end for end in ends if end is not None)


def cards_of(findings: Iterable[Finding]) -> list[Card]:
    """Return the cards, the most important first."""
    alike: dict[tuple[str, str], list[Finding]] = {}
    for finding in by_importance(findings):
        alike.setdefault((finding.severity, finding.detector), []).append(finding)
    cards = []
    for found in alike.values():
        if len(found) >= _ALIKE:
            cards.append(Card(found[0], found[1:]))
        else:
            cards += [Card(finding, []) for finding in found]
    return cards
