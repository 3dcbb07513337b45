"""Findings that are alike share a card."""

from __future__ import annotations

from kcoord_wire.forensics.model import Finding
from kcoord_wire.report.cards import cards_of


def finding(detector: str, severity: str, at: int, subject: str | None = None, to_ns: int | None = 9) -> Finding:
    text = f"{detector} of {subject} at {at}"
    return Finding("g", detector, severity, at, to_ns, subject, text, "Do it.", 1.0, 1.0, [at], [])


def test_every_finding_is_in_one_card_worst_first() -> None:
    refused = [finding("refused", "warning", at, f"c-{at}") for at in range(57)]
    others = [finding("storm", "critical", 30), finding("refused", "info", 1), finding("stuck", "warning", 2)]
    cards = cards_of([*reversed(refused), *others])
    found = [(card.first.detector, card.first.severity, len(card.others)) for card in cards]
    assert found == [
        ("storm", "critical", 0),
        ("refused", "warning", 56),
        ("stuck", "warning", 0),
        ("refused", "info", 0),
    ]
    kept = [each.text for card in cards for each in (card.first, *card.others)]
    assert sorted(kept) == sorted(each.text for each in [*refused, *others])


def test_two_alike_keep_their_own_cards() -> None:
    cards = cards_of([finding("refused", "warning", at, f"c-{at}") for at in (1, 2)])
    assert [(card.first.subject, card.more) for card in cards] == [("c-1", ""), ("c-2", "")]


def test_a_card_names_what_the_others_are_about() -> None:
    [card] = cards_of([finding("refused", "warning", at, f"c-{at}", at) for at in range(1, 17)])
    assert card.more == f"15 more like this: {', '.join(f'c-{at}' for at in range(2, 14))} and 3 more."
    assert (card.rebalances, card.to_ns) == (list(range(1, 17)), 16)
    [nameless] = cards_of([finding("storm", "info", at, None, None) for at in range(3)])
    assert (nameless.more, nameless.to_ns) == ("2 more like this.", None)
