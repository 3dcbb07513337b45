"""What the state machines of this package have in common.

A machine is a pure object: it has no socket, clock or random source, so a server and a simulation can run the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["Machine", "Tick"]


@dataclass(slots=True)
class Tick:
    """Time has passed: the machine does what is due."""


class Machine(Protocol):
    """A state machine; its events and effects are dataclasses of its protocol."""

    @property
    def deadline(self) -> int | None:
        """When the machine wants the next `Tick`, in ms; None for never."""

    def handle(self, event: Any, now: int) -> Sequence[Any]:
        """Take in one event and return the effects that the host carries out.

        :param now: ms; never decreases from one call to the next
        """
