"""Packets that a capture lacks make up no rebalance and nothing critical."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.truth.losses import CAPTURES, SINGLE, Losses, main, measure, random_losses, single_losses


def complaints(*copies: Losses) -> list[str]:
    tally = measure(copies)
    assert tally.runs == len(copies)
    assert tally.rebalances > 0
    return [note for note in tally.notes if note.startswith(("invented", "false criticals"))]


@pytest.mark.parametrize("file", SINGLE, ids=lambda file: file.stem)
def test_a_lost_packet_makes_nothing_up(file: Path) -> None:
    assert complaints(*single_losses(file, 31)) == []


@pytest.mark.parametrize("share", [0.01, 0.1])
def test_random_losses_make_nothing_up(share: float) -> None:
    copies = [
        each
        for name in ("aiokafka", "static_bounce")
        for each in random_losses(CAPTURES / f"{name}.pcap", share, range(3))
    ]
    assert complaints(*copies) == []


def test_the_experiment_finds_what_is_made_up() -> None:
    """A capture without its first half lacks rebalances."""
    file = CAPTURES / "eager_range.pcap"
    half = Losses(file, "second half", frozenset(range(250)))
    tally = measure([half])
    assert tally.counts["missed"] > 0


def test_the_command_counts(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(CAPTURES / "aiokafka.pcap")
    assert main(["--captures", file, "--step", "200", "--shares", "0.01", "--seeds", "1", "--jobs", "1"]) == 0
    out = capsys.readouterr().out
    assert "| aiokafka.pcap, single | 3 | 12 | 0 | 0 |" in out
    assert "| 1.0% | 1 | 4 | 0 | 0 |" in out
