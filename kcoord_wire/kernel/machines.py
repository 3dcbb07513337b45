"""What the state machines of this package have in common.

A machine is a pure object: it has no socket, clock or random source, so a server and a simulation can run the same one.

Machines also share how they see connections. A connection is named by an int that the host never uses twice, or by 0
where a machine has one at a time, as a consumer's. After `Disconnected`, or the machine's own `Close`, nothing more
comes from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol


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


# ---- connections


class BrokerAddress(NamedTuple):
    """A broker of the cluster."""

    broker_id: int
    host: str
    port: int


@dataclass(slots=True)
class Connect:
    """Open a connection to a broker; `Connected` or `Disconnected` follows.

    :ivar connection: the number that the machine has chosen for it
    """

    connection: int
    broker: BrokerAddress


@dataclass(slots=True)
class Connected:
    """`Connect` succeeded."""

    connection: int


@dataclass(slots=True)
class Received:
    """A message has arrived: a request, or the answer to one."""

    connection: int
    message: Any


@dataclass(slots=True)
class Disconnected:
    """The connection is closed, by the other side or the network. Also: a `Connect` failed."""

    connection: int = 0


@dataclass(slots=True)
class Send:
    """Send a message on a connection."""

    connection: int
    message: Any


@dataclass(slots=True)
class Close:
    """Close a connection; what was sent before is delivered first."""

    connection: int = 0


# ---- the end, and the log, of a machine


@dataclass(slots=True)
class Shutdown:
    """The application wants to end: the machine finishes what it has to, and `Ended` follows."""


@dataclass(slots=True)
class Ended:
    """The machine has ended: everything is closed, and no event is wanted any more."""


@dataclass(slots=True)
class LogEvent:
    """Something to log: what, and the facts of it.

    :ivar level: of the module `logging`: 20 info, 30 warning, 40 error
    :ivar what: a short phrase in lower case: ``elected``, ``consumer failed``, ``rebalance completed`` ...
    :ivar facts: names to values that print well: group, consumer, epoch, reason ...
    """

    level: int
    what: str
    facts: Mapping[str, Any] = field(default_factory=dict)
