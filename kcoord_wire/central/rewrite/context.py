"""What the parts of the rewrite's coordinator share: the effects of the event in hand, the time, deadlines, procedures.

Laws:

* A request is answered once: of a connection without an unanswered request nothing is sent.
* A request to ZooKeeper that fails in a way that no part expects ends the term of the broker (`broken`): what it has in
  memory may no longer be what ZooKeeper has.
"""

from __future__ import annotations

import logging
from itertools import count
from typing import Any

from kcoord_wire.central.rewrite.events import CoordinatorEffect, Request, RewriteError, group_of, refusal
from kcoord_wire.kernel.machines import Close, LogEvent, Send
from kcoord_wire.kernel.procedures import Procedure
from kcoord_wire.kernel.timers import Timers
from kcoord_wire.zookeeper.requests import Ask, RegistryError, ZooKeeperProcedures


class Outbox:
    """See the module.

    :ivar now: of the event in hand, ms
    :ivar connections: that have sent a request, each with the one that is not answered yet, or None
    :ivar broken: why the term has to end; empty if it need not
    """

    def __init__(self) -> None:
        self.now = 0
        self.connections: dict[int, Request | None] = {}
        self.broken = ""
        self.timers = Timers()
        self.tokens = count(1)
        self.procedures = ZooKeeperProcedures(self.emit, self.tokens, self.timers)
        self._effects: list[CoordinatorEffect] = []

    def drain(self) -> list[CoordinatorEffect]:
        """Return the effects since the last call."""
        effects, self._effects = self._effects, []
        return effects

    def emit(self, effect: Ask | CoordinatorEffect) -> None:
        """Add an effect."""
        self._effects.append(effect)

    def start(self, procedure: Procedure) -> Procedure:
        """Run a procedure. A `RegistryError` that it does not catch ends the term."""
        return self.procedures.start(self._guarded(procedure), self.now)

    def _guarded(self, procedure: Procedure) -> Procedure:
        try:
            yield from procedure
        except RegistryError as error:
            self.broken = str(error)

    def answer(self, connection: int | None, response: Any) -> None:
        """Answer the request of a connection; None, or one that has ended, is answered by nothing."""
        if connection is not None and self.connections.get(connection) is not None:
            self.connections[connection] = None
            self.emit(Send(connection, response))

    def refuse(self, connection: int | None, error: RewriteError, why: str = "") -> None:
        """Answer the request of a connection with an error.

        :param why: given where a correct client does not send such a request: it is logged
        """
        request = None if connection is None else self.connections.get(connection)
        if request is None:
            return
        if why:
            facts = {"request": type(request).__name__, "group": group_of(request)[:100]}
            facts |= {"error": error.name, "reason": why}
            self.note("request refused", logging.WARNING, connection=connection, **facts)
        self.answer(connection, refusal(request, error))

    def close(self, connection: int) -> None:
        """Close a connection, if it is open."""
        if connection in self.connections:
            del self.connections[connection]
            self.emit(Close(connection))

    def note(self, what: str, level: int = logging.INFO, **facts: Any) -> None:
        """Add a line for the log."""
        self.emit(LogEvent(level, what, facts))

    def note_failure(self, what: str, reason: str) -> None:
        """Add a warning, as `Leadership` reports failures."""
        self.note(what, logging.WARNING, reason=reason)
