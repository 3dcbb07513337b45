"""Stored captures with packets taken out: what is said of the whole capture is right, and nothing may come on top."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.incidents.judge import Verdict
from tests.incidents.labels import DATA, Run
from tests.truth import losses
from tests.truth.losses import Losses, random_losses, single_losses

CAPTURES: Final = ("clients-1", "outage-freeze-short")
SHARES: Final = (0.001, 0.01, 0.05)
SEED: Final = 13
STEP: Final = 611
"""Of single packets: some of each capture, for each takes an analysis."""
WRONG: Final = ("invented", "false warnings")


def judge_lossy(folder: Path = DATA) -> Iterator[Verdict]:
    """A verdict on each copy of each capture: all its groups together are one run."""
    for name in CAPTURES:
        file = folder / f"{name}.pcap.gz"
        copies = list(single_losses(file, STEP))[1:4]
        for share in SHARES:
            copies += random_losses(file, share, [SEED])
        yield from (_judge(name, copy) for copy in copies)


def _judge(name: str, copy: Losses) -> Verdict:
    tally = losses.judge(copy)
    run = Run(f"{name} {copy.name}", "loss", "", 0, [])
    return Verdict(
        run,
        wrong=[note for note in tally.notes if note.startswith(WRONG)],
        false_criticals=[note for note in tally.notes if note.startswith("false criticals")],
    )
