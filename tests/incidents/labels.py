"""What was done in an incident, and where its capture lies.

A file NAME.json in tests/data/incidents is the label of NAME.pcap.gz beside it, and NAME.log.gz has what its brokers
logged about groups meanwhile. One capture has several runs: each is one group on these brokers.

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
    """

    group: str
    kind: str
    library: str
    session_ms: int
    victims: list[str]
    from_ns: int = 0
    to_ns: int = 0
    acts: list[Act] = field(default_factory=list)


_KINDS: Final = {"broker": "pcap", "recorder": "kcrec", "logs": "log"}


@dataclass
class Incident:
    """The runs of one capture.

    :ivar kafka: version of the brokers
    :ivar point: where it was captured: ``broker`` (packets), ``recorder`` (`kcoord record`) or ``logs``: not at all,
        what brokers or clients logged is all that there is
    :ivar brokers: their addresses
    """

    name: str
    kafka: str
    point: str
    brokers: list[str]
    runs: list[Run]

    def capture_in(self, folder: Path) -> Path:
        """Return what is analyzed."""
        return folder / f"{self.name}.{_KINDS[self.point]}.gz"

    def log_in(self, folder: Path) -> Path:
        return folder / f"{self.name}.log.gz"


def write_label(incident: Incident, folder: Path) -> None:
    (folder / f"{incident.name}.json").write_text(json.dumps(asdict(incident), indent=1) + "\n", encoding="utf-8")


def read_label(path: Path) -> Incident:
    label = json.loads(path.read_text(encoding="utf-8"))
    label["runs"] = [Run(**{**run, "acts": [Act(**act) for act in run["acts"]]}) for run in label["runs"]]
    return Incident(**label)


def read_incidents(folder: Path = DATA, names: Sequence[str] = ()) -> Iterator[Incident]:
    """The stored incidents in order of their names, or those that are named."""
    for path in sorted(folder.glob("*.json")):
        if not names or path.stem in names:
            yield read_label(path)
