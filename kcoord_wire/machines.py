"""What the state machines of this package have in common.

A machine is a pure object: ``handle(event, now)`` takes one event in and returns the effects that its host carries out;
`deadline` is when it wants the next `Tick`. ``now`` is milliseconds and never decreases. A machine has no socket, clock
or random source, so a server and a simulation can run the same one.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Tick"]


@dataclass(slots=True)
class Tick:
    """Time has passed: the machine does what is due."""
