"""Loses packets of captures, and reports what the analysis then makes up and what it misses.

    python -m tests.truth.losses                        # single packets of two captures, and random losses of six
    python -m tests.truth.losses --captures tests/data/captures/aiokafka.pcap --seeds 9 --show

The whole capture is the truth. What the lossy one shows beside it is counted:

* invented: rebalances that the whole capture does not have
* false criticals, false warnings: findings that the whole capture does not have
* false causes: rebalances that the whole capture explains otherwise, though the confidence is 0.9 or more
* silent: rebalances that are missed, and that no sentence of `GroupSummary.blind` covers
"""

from __future__ import annotations

import argparse
import gzip
import multiprocessing
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from kcoord_wire.forensics.analysis import analyze
from kcoord_wire.forensics.model import Finding, GroupHistory, Rebalance
from tests.truth.scorer import MS, match

CAPTURES = Path(__file__).parents[1] / "data" / "captures"
SINGLE = [CAPTURES / "cooperative.pcap", CAPTURES / "eager_range.pcap"]
RANDOM = [*sorted(CAPTURES.glob("*.pcap")), *sorted((CAPTURES / "incidents").glob("*.pcap.gz"))]
SHARES = (0.001, 0.01, 0.05, 0.1)
SURE = 0.9
KEYS = ("invented", "false criticals", "false warnings", "false causes", "missed", "silent")


@dataclass(frozen=True)
class Losses:
    """The packets that a copy of a capture lacks, by number."""

    file: Path
    name: str
    lost: frozenset[int]


@dataclass(frozen=True)
class Known:
    """A rebalance of the whole capture, with the times by which it is found in the copy."""

    row: Rebalance

    @property
    def generation_id(self) -> int | None:
        return self.row.generation_id

    @property
    def started_ms(self) -> int:
        return self.row.started_ns // MS

    @property
    def joined_ms(self) -> int | None:
        return None if self.row.joined_ns is None else self.row.joined_ns // MS

    @property
    def ended_ms(self) -> int | None:
        return None if self.row.ended_ns is None else self.row.ended_ns // MS


@dataclass
class Tally:
    """What copies of captures showed.

    :ivar runs: how many copies
    :ivar rebalances: how many the whole captures have, once per copy
    :ivar counts: what was made up or missed, by the words of this module's docstring
    :ivar notes: each of these in a line
    """

    runs: int = 0
    rebalances: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.runs += other.runs
        self.rebalances += other.rebalances
        self.counts += other.counts
        self.notes += other.notes

    def note(self, what: str, losses: Losses, text: str) -> None:
        self.counts[what] += 1
        self.notes.append(f"{what:<15} {losses.file.name} {losses.name}: {text}")


# ---- which packets


@cache
def packets_of(file: Path) -> tuple[bytes, list[bytes]]:
    """The header of a pcap file, and its packets with their own headers."""
    whole = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    packets, at = [], 24
    while at < len(whole):
        end = at + 16 + int.from_bytes(whole[at + 8 : at + 12], "little")
        packets.append(whole[at:end])
        at = end
    return whole[:24], packets


def single_losses(file: Path, step: int = 1) -> Iterator[Losses]:
    """Each packet in turn."""
    for number in range(0, len(packets_of(file)[1]), step):
        yield Losses(file, f"without packet {number}", frozenset({number}))


def random_losses(file: Path, share: float, seeds: Iterable[int]) -> Iterator[Losses]:
    """A share of the packets, by chance."""
    count = len(packets_of(file)[1])
    for seed in seeds:
        chance = random.Random(f"{file.name} {share} {seed}")
        lost = frozenset(number for number in range(count) if chance.random() < share)
        yield Losses(file, f"without {share:.1%}, seed {seed}", lost)


# ---- one copy


def explain(losses: Losses) -> dict[str, GroupHistory]:
    """The histories that a copy shows, by group."""
    head, packets = packets_of(losses.file)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy.pcap"
        copy.write_bytes(head + b"".join(each for number, each in enumerate(packets) if number not in losses.lost))
        return {history.group.group_id: history for history in analyze([copy]).histories}


@cache
def explain_whole(file: Path) -> dict[str, GroupHistory]:
    return explain(Losses(file, "whole", frozenset()))


def judge(losses: Losses) -> Tally:
    """Compare a copy with the whole capture."""
    tally = Tally(runs=1)
    whole, found = explain_whole(losses.file), explain(losses)
    for group in sorted({*whole, *found}):
        truth, shown = whole.get(group), found.get(group)
        tally.rebalances += len(truth.rebalances) if truth else 0
        _judge_rebalances(tally, losses, truth, shown)
        _judge_findings(tally, losses, truth.findings if truth else [], shown.findings if shown else [])
    return tally


def _judge_rebalances(tally: Tally, losses: Losses, truth: GroupHistory | None, shown: GroupHistory | None) -> None:
    truths = [Known(row) for row in truth.rebalances] if truth else []
    for known, guess in match(truths, shown.rebalances if shown else []):
        true = None if known is None else known.row
        if true is None:
            tally.note("invented", losses, line_of(guess))
        elif guess is None:
            tally.counts["missed"] += 1
            if shown is not None and not is_said(true, shown):
                tally.note("silent", losses, f"{line_of(true)}; blind: {' | '.join(shown.group.blind)}")
        elif guess.cause != true.cause and guess.confidence >= SURE:
            tally.note("false causes", losses, f"{line_of(guess)} for {line_of(true)}")


def is_said(missed: Rebalance, shown: GroupHistory) -> bool:
    """Whether the report says that it may lack this rebalance."""
    return any(f" {missed.generation_id}" in sentence or "may be missing" in sentence for sentence in shown.group.blind)


def _judge_findings(tally: Tally, losses: Losses, truths: Sequence[Finding], found: Sequence[Finding]) -> None:
    known = Counter((each.detector, each.severity) for each in truths)
    worse = Counter(each.detector for each in truths if each.severity == "critical")
    for each in found:
        key = each.detector, each.severity
        if known[key]:
            known[key] -= 1
        elif each.severity == "critical":
            tally.note("false criticals", losses, f"{each.detector}: {each.text}")
        elif each.severity == "warning" and not worse[each.detector]:
            tally.note("false warnings", losses, f"{each.detector}: {each.text}")


def line_of(row: Rebalance | None) -> str:
    if row is None:
        return "nothing"
    cause = f"{row.cause} ({row.confidence:.2f})"
    return f"#{row.number} generation {row.generation_id}, {cause} {row.outcome}: {row.detail}"


# ---- many copies


def measure(copies: Sequence[Losses], jobs: int = 1) -> Tally:
    """ClaimRules all copies."""
    tally = Tally()
    if jobs == 1:
        for losses in copies:
            tally.add(judge(losses))
        return tally
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for part in pool.imap(judge, copies, 16):
            tally.add(part)
    return tally


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 1 if anything critical was made up, or a rebalance."""
    parser = argparse.ArgumentParser(prog="tests.truth.losses", description="What do lost packets make up?")
    parser.add_argument("--captures", type=Path, nargs="*", help="these, in place of those of the repository")
    parser.add_argument("--shares", type=float, nargs="*", default=SHARES)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--step", type=int, default=1, help="of single packets; 0: none")
    parser.add_argument("--show", action="store_true", help="each thing made up, in a line")
    given = parser.parse_args(arguments)
    plans = {}
    if given.step:
        for file in given.captures or SINGLE:
            plans[f"{file.name}, single"] = list(single_losses(file, given.step))
    for share in given.shares:
        files = given.captures or RANDOM
        plans[f"{share:.1%}"] = [each for file in files for each in random_losses(file, share, range(given.seeds))]
    print(f"| lost | copies | rebalances | {' | '.join(KEYS)} |\n|---|--:|--:|{'--:|' * len(KEYS)}")
    bad = 0
    notes = []
    for name, copies in plans.items():
        tally = measure(copies, given.jobs)
        counts = " | ".join(str(tally.counts[key]) for key in KEYS)
        print(f"| {name} | {tally.runs} | {tally.rebalances} | {counts} |", flush=True)
        bad += tally.counts["invented"] + tally.counts["false criticals"]
        notes += tally.notes
    if given.show:
        print("\n".join(notes))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
