"""Procedures that wait for ZooKeeper: their requests are those of `model.Request`.

A request that fails raises `RegistryError` at its ``yield``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from kcoord_wire.kernel.procedures import Procedure, Procedures
from kcoord_wire.kernel.timers import Timers
from kcoord_wire.zookeeper.model import Ask, Create, Outcome, Replied, Request

RETRY_MS: Final = 500
"""How long a procedure waits before it repeats what ZooKeeper has refused."""


class RegistryError(Exception):
    """ZooKeeper refused a request, or its answer is not known.

    :ivar reply: its answer
    """

    def __init__(self, request: Request, reply: Replied) -> None:
        super().__init__(f"{request}: {reply.detail or reply.outcome.value}")
        self.request = request
        self.reply = reply

    @property
    def outcome(self) -> Outcome:
        """How it ended."""
        return self.reply.outcome


def create_missing(*paths: str, data: bytes = b"") -> Procedure:
    """Create the nodes that do not exist, parents first; a part of other procedures (``yield from``)."""
    for path in paths:
        try:
            yield Create(path, data)
        except RegistryError as error:
            if error.outcome is not Outcome.NODE_EXISTS:
                raise


class ZooKeeperProcedures(Procedures):
    """The procedures of one machine that ask ZooKeeper.

    :param emit: adds an effect (an `Ask`) to those that `handle` returns
    :param tokens: gives each `Ask` its number; shared by the `Procedures` of one machine
    :param timers: of the machine, where it has its own
    """

    def __init__(
        self, emit: Callable[[Any], None], tokens: Iterator[int] | None = None, timers: Timers | None = None
    ) -> None:
        super().__init__(lambda token, request: emit(Ask(token, request)), tokens, timers)

    def replied(self, reply: Replied, now: int) -> None:
        """Resume the procedure that asked, after the last of its replies; a reply for which none waits is dropped."""
        if reply.outcome is Outcome.OK:
            self.answered(reply.token, reply.value, now)
        else:
            self.failed(reply.token, lambda request: RegistryError(request, reply), now)
