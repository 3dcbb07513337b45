"""What goes wrong by the rules of the Go library, by kind.

With `Rules.LIBRARY` the state that a reader computes depends on its clock at the moment of reading. So each kind below
is possible, and random runs count them; a run that looks for one kind ends with the first of it, as with a broken law.

Source: the Go library's measured behaviour.
"""

from __future__ import annotations

import enum
from collections import Counter

from kcoord_wire.kernel.virtual.violation import ViolationError


class Anomaly(enum.StrEnum):
    """A kind.

    Each but the first two compares a reader with one that has read each entry when it landed, by the true time.
    """

    TWO_HOLDERS = "two holders"  # two members that would deliver records of a partition at one time
    OVERWRITTEN = "overwritten by late heartbeat"  # of a former holder, while another member's claim is live
    PHANTOM = "phantom claim by replay"  # a reader that came later takes a claim for won, which was refused
    LOST_OFFSET = "lost released offset"  # it drops a release that was in force, and with it the offset
    SKEWED = "claim misjudged by a skewed clock"  # a reader that came in time takes a claim for won or refused


class Anomalies:
    """How often each kind was seen.

    :param looks_for: the kind that ends the run; None for none
    """

    def __init__(self, looks_for: Anomaly | None = None) -> None:
        self.found: Counter[Anomaly] = Counter()
        self._looks_for = looks_for

    def add(self, kind: Anomaly, what: str) -> None:
        """Count one.

        :raises ViolationError: it is looked for
        """
        self.found[kind] += 1
        if kind is self._looks_for:
            raise ViolationError(kind.value, what)
