"""What was done in an incident, and where its capture lies.

A file NAME.json in tests/data/incidents is the label of NAME.pcap.gz beside it, and NAME.log.gz has what its brokers
logged about groups meanwhile. One capture has several runs: each is one group on these brokers. A capture in several
files has NAME.1.pcap.gz and so on as well.

Law: a label is written by the program that does what it says, when it does it, never from an analysis.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from tests.support.processes import ROOT

DATA: Final = ROOT / "tests" / "data" / "incidents"
CAPTURE: Final = "capture"
LOG: Final = "log"


@dataclass(frozen=True)
class Act:
    """One thing that was done.

    :ivar at_ns: when it began, by the clock of the capture
    :ivar to: the client or broker that it was done to
    :ivar until_ns: when it was over; None for what has no end
    """

    at_ns: int
    did: str
    to: str
    until_ns: int | None = None


@dataclass
class Run:
    """One group and what was done to it.

    :ivar group: its id; of a run without a group (a client that never came that far) its name
    :ivar kind: which rule of judge.py judges it
    :ivar library: of the members, or of the one that it was done to
    :ivar session_ms: session timeout of the member or members that it was done to
    :ivar victims: client ids or instance ids whose trouble it is, or addresses of brokers
    :ivar from_ns: when the group was ready for it
    :ivar to_ns: when the run ended
    :ivar drawn: the kind that was drawn, where this was; `kind` is what came of it
    :ivar reads: what the report is made of: `CAPTURE` (or recording), `LOG` of the brokers, or both
    :ivar is_skewed: whether it is in files whose clocks differ
    """

    group: str
    kind: str
    library: str
    session_ms: int
    victims: list[str]
    from_ns: int = 0
    to_ns: int = 0
    acts: list[Act] = field(default_factory=list)
    drawn: str = ""
    reads: list[str] = field(default_factory=lambda: [CAPTURE])
    is_skewed: bool = False


_KINDS: Final = {"broker": "pcap", "recorder": "kcrec", "logs": "log"}


@dataclass
class Incident:
    """The runs of one capture.

    :ivar kafka: version of the brokers
    :ivar point: where it was captured: ``broker`` (packets), ``recorder`` (`kcoord record`) or ``logs``: not at all,
        what brokers or clients logged is all that there is
    :ivar brokers: their addresses
    :ivar damage: what happened to the capture; empty for nothing
    :ivar parts: of the names of the capture's files
    :ivar left_out: drawn groups in the capture that nobody can judge, and why
    """

    name: str
    kafka: str
    point: str
    brokers: list[str]
    runs: list[Run]
    damage: str = ""
    parts: list[str] = field(default_factory=lambda: [""])
    left_out: list[str] = field(default_factory=list)

    def captures_in(self, folder: Path) -> list[Path]:
        """The files of the capture, or what is there in its place."""
        kind = _KINDS[self.point]
        if self.damage.startswith("rotated"):  # tcpdump -C numbers them like this, so that they are one source
            return [folder / f"{self.name}.{kind}{part}.gz" for part in self.parts]
        return [folder / ".".join(filter(None, (self.name, part, kind, "gz"))) for part in self.parts]

    def sources_in(self, folder: Path, reads: Sequence[str]) -> list[Path]:
        """The files that a report of a run is made of."""
        logs = [self.log_in(folder)] if LOG in reads else []
        return [*(self.captures_in(folder) if CAPTURE in reads else []), *logs]

    def log_in(self, folder: Path) -> Path:
        return folder / f"{self.name}.log.gz"


def write_label(incident: Incident, folder: Path) -> None:
    (folder / f"{incident.name}.json").write_text(json.dumps(asdict(incident), indent=1) + "\n", encoding="utf-8")


def write_list(folder: Path) -> None:
    """A page that says of each run of a folder what it was."""
    lines = ["# Incidents", ""]
    lines += [
        "Times are seconds after the group was ready (`from_ns` of NAME.json). NAME.log.gz is what the brokers wrote;"
    ]
    lines += ["where `log` alone is read, the report is made of it without the capture.", ""]
    lines += ["| capture | group | kind | library | read | victims | damage | what was done |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for incident in read_incidents(folder):
        files = ", ".join(path.name for path in incident.captures_in(folder))
        for run in incident.runs:
            cells = [files, run.group, run.kind, f"{run.library}, Kafka {incident.kafka}", " + ".join(run.reads)]
            cells += [", ".join(run.victims), incident.damage, "; ".join(_done(act, run.from_ns) for act in run.acts)]
            lines.append(f"| {' | '.join(cells)} |")
    (folder / "README.md").write_text("\n".join([*lines, ""]), encoding="utf-8")


def _done(act: Act, start_ns: int) -> str:
    lasted = "" if act.until_ns is None else f" for {(act.until_ns - act.at_ns) / 1e9:.1f} s"
    return f"{(act.at_ns - start_ns) / 1e9:+.1f} s {act.did}: {act.to}{lasted}"


def read_label(path: Path) -> Incident:
    label = json.loads(path.read_text(encoding="utf-8"))
    label["runs"] = [Run(**{**run, "acts": [Act(**act) for act in run["acts"]]}) for run in label["runs"]]
    return Incident(**label)


def read_incidents(folder: Path = DATA, names: Sequence[str] = ()) -> Iterator[Incident]:
    """The stored incidents in order of their names, or those that are named."""
    for path in sorted(folder.glob("*.json")):
        if not names or path.stem in names:
            yield read_label(path)
