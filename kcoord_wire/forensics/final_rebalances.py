"""When a rebalance of a source that grows is final: what the readers of logs and of frames share.

Laws:

* A rebalance is final when the source is one window past its end: by then every detector that counts within a window
  has seen what follows. A group is looked at when the source passes a tenth of a window, so that a rebalance comes
  1.0 to 1.1 windows after its end.
* Rebalances of a group come in order, each once, numbered through. One that is under way holds back those behind it; it
  comes when it has ended, or when the next one shows that it has no end.
* Numbers go on from those that were emitted, whatever the history of what is kept has of earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from kcoord_wire.forensics.model import Finding, GroupHistory, Rebalance

STEPS: Final = 10
"""In a window: how often it is looked for what has become final."""


class Explained(NamedTuple):
    """A rebalance that is final, and the findings about it."""

    rebalance: Rebalance
    findings: list[Finding]


@dataclass(slots=True)
class Awaited:
    """What of a group was emitted, and what is awaited.

    :ivar due: the time from which on a window has to pass until something may be final; None: nothing is awaited
    :ivar since: when what is awaited began; what the source has of the group from then on is kept
    :ivar emitted: the place of the last rebalance that was emitted: where the source shows that it began
    :ivar number: of that rebalance
    """

    due: int | None = None
    since: int = 0
    emitted: int = -1
    number: int = 0

    def expect(self, time_ns: int) -> None:
        """Something may have begun at that time."""
        if self.due is None:
            self.due = self.since = time_ns
        self.due, self.since = min(self.due, time_ns), min(self.since, time_ns)

    def is_due(self, now_ns: int, window_ns: int) -> bool:
        return self.due is not None and self.due + window_ns <= now_ns

    def settle(
        self,
        history: GroupHistory,
        now_ns: int,
        window_ns: int,
        place_of: Callable[[Rebalance], int],
        *,
        is_over: bool,
    ) -> Iterator[Explained]:
        """Yield the rebalances that are final, and set when to look again.

        :param history: of the group, with its findings
        :param place_of: where a rebalance began
        :param is_over: whether a rebalance that is still under way will have no end
        """
        shift = self.number - sum(place_of(row) <= self.emitted for row in history.rebalances)
        for finding in history.findings:
            finding.rebalances = [number + shift for number in finding.rebalances]
        for row in self._final(history.rebalances, now_ns, window_ns, place_of, is_over=is_over):
            row.number += shift
            self.emitted, self.number = place_of(row), row.number
            yield Explained(row, [each for each in history.findings if row.number in each.rebalances])

    def _final(
        self,
        rebalances: Iterable[Rebalance],
        now_ns: int,
        window_ns: int,
        place_of: Callable[[Rebalance], int],
        *,
        is_over: bool,
    ) -> list[Rebalance]:
        """Return those of `settle`, of which those that began at one place come together, and await the next."""
        rows = [row for row in rebalances if place_of(row) > self.emitted]
        self.due = None
        for at, row in enumerate(rows):
            ended_ns = _ended(row, is_over or row is not rows[-1])
            if ended_ns is None or ended_ns + window_ns > now_ns:
                self.due = now_ns - window_ns if ended_ns is None else ended_ns
                self.since = min([row.started_ns, *(item.time_ns for item in row.evidence)])
                return [each for each in rows[:at] if place_of(each) != place_of(row)]
        return rows


def _ended(row: Rebalance, is_over: bool) -> int | None:
    """Return when a rebalance ended, or began if it never will; None: it is under way."""
    return row.started_ns if row.ended_ns is None and is_over else row.ended_ns
