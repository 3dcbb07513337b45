"""One machine on the test's clock: events go in, its effects are carried out, and its deadlines are kept."""

from __future__ import annotations

from typing import Any

from kcoord_wire.kernel.machines import Machine, Tick


class Driven:
    """What drives a machine by hand; a subclass says what becomes of its effects.

    :ivar machine: the machine
    :ivar now: ms
    """

    machine: Machine
    now: int

    def do(self, event: Any) -> list[Any]:
        """Give the machine an event, and carry out what it wants."""
        effects = list(self.machine.handle(event, self.now))
        for effect in effects:
            self.carry_out(effect)
        return effects

    def carry_out(self, effect: Any) -> None:
        """Carry out one effect."""

    def wait(self, ms: int) -> list[Any]:
        """Let time pass, with a tick at every deadline in between; gives the effects of the ticks."""
        until, effects = self.now + ms, list[Any]()
        while (due := self.machine.deadline) is not None and due <= until:
            self.now = max(self.now, due)
            effects += self.do(Tick())
        self.now = until
        return effects
