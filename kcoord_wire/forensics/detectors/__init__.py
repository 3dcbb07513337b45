"""What is wrong with a group beyond a single rebalance.

A detector is a function of `Seen` that yields `DetectorResult`, declared with `detector`; its name is that of its
findings. Its docstring says what it looks for, what counts as normal, and from which threshold on it reports.

To add a detector, write its function in the module of its subject, with its rank and basis, and a row in
docs/analyze.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

# Each of these modules declares its detectors in `DETECTORS`.
from kcoord_wire.forensics.detectors import (
    assignment,
    brokers,
    deaths,
    epochs,
    handlers,
    load,
    logged,
    marshal,
    membership,
    offsets,
    rebalances,
    sizes,
    sources,
    topics,
)
from kcoord_wire.forensics.detectors.brokers import clients_of, history_of_clients, outside_findings
from kcoord_wire.forensics.detectors.finding import (
    DETECTORS,
    Detector,
    DetectorResult,
    Seen,
    by_importance,
    finding_of,
    share_costs,
    weigh,
)
from kcoord_wire.forensics.detectors.logged import share_lines
from kcoord_wire.forensics.model import Clock, Finding, GroupHistory, LogLine, Sighting

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "DETECTORS",
    "assignment",
    "brokers",
    "by_importance",
    "clients_of",
    "deaths",
    "detect",
    "epochs",
    "findings_of",
    "handlers",
    "history_of_clients",
    "load",
    "logged",
    "marshal",
    "membership",
    "offsets",
    "rebalances",
    "share_lines",
    "sizes",
    "sources",
    "topics",
]


def findings_of(detector: str, history: GroupHistory, exchanges: pa.Table | None = None) -> list[Finding]:
    """Return what one detector finds in a group.

    :param exchanges: rows of `Exchange` of the group; None where the source is a log
    :raises KeyError: there is no such detector
    """
    return [finding for finding, _ in _found(DETECTORS[detector], Seen(history, exchanges))]


def _found(detector: Detector, seen: Seen) -> Iterator[tuple[Finding, DetectorResult]]:
    if detector.origin in (None, seen.history.group.origin):
        yield from ((finding_of(detector.name, each, seen.history), each) for each in detector.find(seen))


def detect(
    history: GroupHistory,
    exchanges: pa.Table | None = None,
    errors: Iterable[Sighting] = (),
    clocks: Sequence[Clock] = (),
    lines: Sequence[LogLine] = (),
    too_tight: Collection[tuple[str, str]] = (),
) -> list[Finding]:
    """Return what all detectors find in a group, the most important first.

    :param exchanges: as in `findings_of`
    :param errors: rows of ERROR, of its clients (`clients_of`); those of others have no effect
    :param clocks: of sources that differed, and were corrected
    :param lines: of logs about the group, in order of time
    :param too_tight: client id and host of those that `tight_heartbeats` has explained by exchanges not given here
    """
    errors = list(errors)
    seen = Seen(history, exchanges, clocks, errors, lines, too_tight)
    found = [each for detector in DETECTORS.values() for each in _found(detector, seen)]
    outside = (finding_of("refused", each, history) for each in outside_findings(history, errors))
    return by_importance(share_costs([*weigh(found, history), *outside], history))
