"""What is wrong with a group beyond a single rebalance: one module a detector, each with its threshold.

A detector is a function ``find(history, exchanges)`` that yields findings and never raises for what a peer sent. Its
module says what it looks for, what it takes for normal, and from where on it speaks. `exchanges` is the group's table
of exchanges, or None where the source is a log; a detector that needs them says nothing then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from kcoord_wire.forensics.detectors import (
    commit_after_revoke,
    cooperative_loop,
    flapping_member,
    generation_reset,
    mixed_assignors,
    storm,
    stuck_completing,
    stuck_preparing,
    uneven_assignment,
)
from kcoord_wire.forensics.model import Finding, GroupHistory

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["DETECTORS", "detect"]

Detector = Callable[["GroupHistory", "pa.Table | None"], Iterator[Finding]]

DETECTORS: Final[Mapping[str, Detector]] = MappingProxyType(
    {
        module.__name__.rpartition(".")[2]: module.find
        for module in (
            storm,
            flapping_member,
            stuck_preparing,
            stuck_completing,
            cooperative_loop,
            generation_reset,
            uneven_assignment,
            mixed_assignors,
            commit_after_revoke,
        )
    }
)
"""The detectors by the name that their findings carry."""

_WORST_FIRST: Final = {"critical": 0, "warning": 1, "info": 2}


def detect(history: GroupHistory, exchanges: pa.Table | None = None) -> list[Finding]:
    """All findings about a group, the worst first, then by time."""
    found = [finding for find in DETECTORS.values() for finding in find(history, exchanges)]
    return sorted(found, key=lambda f: (_WORST_FIRST[f.severity], f.from_ns, f.detector, f.subject or ""))
