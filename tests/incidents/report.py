"""What the judge found, as tables: by kind, and what is not right, run by run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kcoord_wire.forensics.analysis import analyze
from tests.incidents.judge import RULES, Verdict, judge
from tests.incidents.labels import Act, Incident
from tests.support.clients.members import ROOT

__all__ = ["PAGE", "in_full", "judge_all", "markdown", "write"]

PAGE: Final = ROOT / "docs" / "incidents.md"


def judge_all(incidents: Iterable[Incident]) -> list[Verdict]:
    """The verdicts on all runs of these incidents."""
    return [verdict for incident in incidents for verdict in judge_one(incident)]


def judge_one(incident: Incident) -> list[Verdict]:
    ports = [int(address.rpartition(":")[2]) for address in incident.brokers]
    analysis = analyze([incident.capture], ports=ports)
    return [judge(analysis, run) for run in incident.runs]


def markdown(verdicts: Sequence[Verdict]) -> str:
    """The whole report."""
    named = sum(verdict.names for verdict in verdicts)
    criticals = sum(len(verdict.false_criticals) for verdict in verdicts)
    harmful = sum(len(verdict.harmful) for verdict in verdicts)
    lines = [
        f"{len(verdicts)} runs: {named} ({named / max(1, len(verdicts)):.1%}) name the essential and blame nobody else, "
        f"{criticals} false criticals, {harmful} pieces of advice that would harm.",
        "",
        "| what was done | runs | essential named | false criticals | harmful advice | what an operator must learn |",
        "|---|--:|--:|--:|--:|---|",
        *_rows(verdicts),
        "",
        "## Not right",
        "",
        *(_faults(verdicts) or ["Nothing."]),
    ]
    return "\n".join(lines)


def _rows(verdicts: Sequence[Verdict]) -> Iterator[str]:
    kinds: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        kinds[verdict.run.kind].append(verdict)
    for kind in sorted(kinds, key=list(RULES).index):
        of = kinds[kind]
        criticals, harmful = (sum(map(len, lists)) for lists in zip(*((v.false_criticals, v.harmful) for v in of)))
        yield f"| {kind} | {len(of)} | {sum(v.names for v in of)} | {criticals} | {harmful} | {RULES[kind].learns} |"


def _faults(verdicts: Sequence[Verdict]) -> list[str]:
    lines = []
    for verdict in verdicts:
        faults = [f"does not say `{words}`" for words in verdict.missing]
        faults += [f"says wrongly: {text}" for text in verdict.wrong]
        faults += [f"false critical: {text}" for text in verdict.false_criticals]
        faults += [f"advice that would harm: {text}" for text in verdict.harmful]
        if faults:
            lines.append(f"* {verdict.run.group} ({verdict.run.kind}): {'; '.join(faults)}")
    return lines


def in_full(verdicts: Sequence[Verdict]) -> str:
    """What was done, and all that is read first, of each run."""
    blocks = []
    for verdict in verdicts:
        run = verdict.run
        start = run.from_ns
        acts = [f"  {(act.at_ns - start) / 1e9:+7.1f} s  {act.did}: {act.to}" + _until(act) for act in run.acts]
        said = [f"  {(s.from_ns - start) / 1e9 if s.from_ns else 0:+7.1f} s  {s}" for s in verdict.said]
        head = f"{run.group} ({run.kind}, {run.library}, victims {', '.join(run.victims)})"
        blocks.append("\n".join([head, "done:", *acts, "said:", *said]))
    return "\n\n".join([*blocks, *_faults(verdicts)])


def _until(act: Act) -> str:
    return "" if act.until_ns is None else f", for {(act.until_ns - act.at_ns) / 1e9:.1f} s"
