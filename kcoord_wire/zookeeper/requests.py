"""What a coordinator asks of ZooKeeper, and what comes back, as data: pure machines ask, a registry executes.

A machine returns an `Ask` among its effects and later gets a `Replied` with the same token. A registry executes asks:
in memory (`zookeeper.memory`, on a virtual clock) or on an ensemble (`zookeeper.registry`, by kazoo).

Laws of every registry:

* Each `Ask` gets exactly one `Replied`, in the order of the asks. While there is no connection the outcome is
  ``CONNECTION_LOSS`` and a write may or may not have happened: the client that wrote has to read.
* A watch fires at most once, and before the client can read the new value (ZooKeeper Programmer's Guide, "ZooKeeper
  Watches"). `SessionChanged` to anything but ``CONNECTED`` ends all watches: kazoo drops them, so the machine reads
  again.
* A session that expired is never connected again: the next ``CONNECTED`` has another `session_id`. There may be no
  ``EXPIRED`` between them (CURATOR-220): a machine compares the session ids.
* An ephemeral node lives until the session that created it has expired at the server, which may be after its client has
  connected with a new session (ZOOKEEPER-2985).

A procedure waits for a `Request` at a ``yield``; one that fails raises `RegistryError` at its ``yield``.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from kcoord_wire.kernel.procedures import Procedure, Procedures
from kcoord_wire.kernel.timers import Timers

ANY_VERSION: Final = -1

_NO_NODE_NAME: Final = re.compile("[/\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]")


def can_be_node(name: str) -> bool:
    """Whether ZooKeeper creates a node with this name. The server looks at units of UTF-16, of which each character
    beyond U+FFFF has two that it refuses.

    Source: ZooKeeper, ``PathUtils.validatePath``; it lets the names of U+F900 to U+FFEF pass, unlike the "Programmer's
    Guide", section "The ZooKeeper Data Model".
    """
    return name not in ("", ".", "..") and not _NO_NODE_NAME.search(name)


# ---- requests


@dataclass(frozen=True, slots=True)
class Create:
    """Create a node; its parent must exist. ``NODE_EXISTS``, ``NO_NODE`` (the parent).

    :ivar is_ephemeral: the node ends with the session
    """

    path: str
    data: bytes = b""
    is_ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    """Replace a node's data. ``NO_NODE``, ``BAD_VERSION``."""

    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a node without children. ``NO_NODE``, ``BAD_VERSION``, ``NOT_EMPTY``."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """Succeed only if the node has this version. Used in a `Multi`. ``NO_NODE``, ``BAD_VERSION``."""

    path: str
    version: int


Write: TypeAlias = Create | SetData | Delete | Check


@dataclass(frozen=True, slots=True)
class Multi:
    """Execute all writes or none. The outcome is that of the first write that fails; ``failed`` names it."""

    writes: tuple[Write, ...]


@dataclass(frozen=True, slots=True)
class Read:
    """Return a `Node`, or None if it does not exist.

    :ivar watch: fire once when the node is created, changed or deleted
    """

    path: str
    watch: bool = False


@dataclass(frozen=True, slots=True)
class ReadChildren:
    """Return the names of a node's children, sorted; None if the node does not exist.

    :ivar watch: fire once when a child is created or deleted, or the node is; of a node that does not exist, when it is
        created
    """

    path: str
    watch: bool = False


Request: TypeAlias = Create | SetData | Delete | Multi | Read | ReadChildren


@dataclass(frozen=True, slots=True)
class Ask:
    """An effect: execute a request.

    :ivar token: names it in its `Replied`; never used twice by one machine
    """

    token: int
    request: Request


# ---- results


@dataclass(frozen=True, slots=True)
class Node:
    """A node's data.

    :ivar version: number of changes of the data
    :ivar ephemeral_owner: id of the session that created it; 0 for a persistent node
    """

    data: bytes
    version: int
    ephemeral_owner: int = 0


class Outcome(enum.Enum):
    """How a request ended."""

    OK = "ok"
    NO_NODE = "no node"
    NODE_EXISTS = "node exists"
    BAD_VERSION = "bad version"
    NOT_EMPTY = "not empty"
    NO_AUTH = "not authorized"
    CONNECTION_LOSS = "connection loss"
    SESSION_EXPIRED = "session expired"
    OTHER = "another error"


@dataclass(frozen=True, slots=True)
class Replied:
    """The answer to an `Ask`.

    :ivar outcome: see `Outcome`
    :ivar value: of `Read` a `Node` or None, of `ReadChildren` a tuple of names or None, of `SetData` the new version;
        None for the others
    :ivar failed: of a `Multi`, the index of the write that failed; -1 otherwise
    :ivar detail: for ``OTHER``, what the server or the client library said
    """

    token: int
    outcome: Outcome = Outcome.OK
    value: Any = None
    failed: int = -1
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Fired:
    """A watch has fired.

    :ivar path: of the node
    :ivar of_children: whether the watch was one of `ReadChildren`
    """

    path: str
    of_children: bool = False


class SessionState(enum.Enum):
    """What the client knows of its session."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"  # no connection: the session may live or not
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class SessionChanged:
    """The connection to ZooKeeper changed.

    :ivar session_id: of the session that is connected; 0 unless ``CONNECTED``
    :ivar timeout_ms: as the server granted it; 0 unless ``CONNECTED``
    """

    state: SessionState
    session_id: int = 0
    timeout_ms: int = 0


RegistryEvent: TypeAlias = Replied | Fired | SessionChanged


class Registry(Protocol):
    """Executes asks and delivers events, in the order of the protocol, to the function that it was made with. The
    function runs where the host runs its machine: in its event loop, never in a thread of a client library."""

    def ask(self, ask: Ask) -> None:
        """Execute a request; a `Replied` follows, never within this call."""


Deliver: TypeAlias = Callable[[RegistryEvent], None]


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


def answer_to(request: Request) -> Generator[Any, Any, Any]:
    """Return the value of one request; a part of other procedures."""
    return (yield request)


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
