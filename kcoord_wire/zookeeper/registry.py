"""The registry that is a client of real ZooKeeper servers, by kazoo (extra ``zookeeper``).

Laws, besides those of `zookeeper.requests`:

* Events are delivered in the event loop in which `start` was called, in the order in which they came from the server.
* A request is executed over the connection that the machine knew when it asked, or not at all: not over a later one,
  whose session may be another.
* ``SUSPENDED`` comes before the answers of the requests that were lost with the connection. It comes when kazoo
  notices: after two thirds of the session timeout without an answer, or when the connection is reset.
* At most `WINDOW` requests are under way; more wait here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from kcoord_wire.extras import require
from kcoord_wire.zookeeper.requests import (
    Ask,
    Check,
    Create,
    Delete,
    Deliver,
    Fired,
    Multi,
    Node,
    Outcome,
    Read,
    ReadChildren,
    Replied,
    SessionChanged,
    SessionState,
    SetData,
    Write,
)

WINDOW: Final = 64
"""kazoo wakes its thread by a byte for each request, through a socket that blocks when it holds some 270 of them."""

_RETRY: Final = {"max_tries": -1, "delay": 0.1, "backoff": 2, "max_delay": 1.0}
_OUTCOMES: Final = {
    "NoNodeError": Outcome.NO_NODE,
    "NodeExistsError": Outcome.NODE_EXISTS,
    "BadVersionError": Outcome.BAD_VERSION,
    "NotEmptyError": Outcome.NOT_EMPTY,
    "NoAuthError": Outcome.NO_AUTH,
    "ConnectionLoss": Outcome.CONNECTION_LOSS,
    "ConnectionClosedError": Outcome.CONNECTION_LOSS,
    "SessionExpiredError": Outcome.SESSION_EXPIRED,
}
_NOT_TRIED: Final = (
    "RolledBackError",
    "RuntimeInconsistency",
)  # writes of a Multi before and after the one that failed

logger = logging.getLogger(__name__)
logger.addHandler(logging.NullHandler())  # silent unless logging is configured


class ZooKeeperUnreachableError(ConnectionError):
    """No server has answered in time."""


@dataclass(frozen=True, slots=True)
class _Watch:
    """What kazoo calls when a watch fires; equal watches of a node are one to it."""

    fired: Fired
    is_of_missing_node: bool
    call: Callable[[Fired], None] = field(compare=False)

    def __call__(self, event: Any) -> None:
        is_change = event.type != "NONE"  # that is the end of the connection
        if is_change and (event.type == "CREATED" or not self.is_of_missing_node):
            self.call(self.fired)


class ZooKeeperRegistry:
    """A client of ZooKeeper, for one event loop.

    :param hosts: ``HOST:PORT,HOST:PORT``, with ``/NAME/NAME`` behind for a chroot
    :param deliver: called with each event
    :param session_timeout_ms: that it asks for; the server may grant another
    :param credentials: user and password of the scheme digest; every node is created for that user alone
    :param creates_chroot: whether to create the nodes of the chroot that are missing
    :raises MissingLibraryError: kazoo is not installed
    :raises ValueError: `hosts` is not of that form
    """

    def __init__(
        self,
        hosts: str,
        deliver: Deliver,
        *,
        session_timeout_ms: int = 6_000,
        credentials: tuple[str, str] | None = None,
        creates_chroot: bool = True,
    ) -> None:
        require("kazoo", "zookeeper", "a ZooKeeper registry")
        from kazoo.security import make_digest_acl

        from kcoord_wire.zookeeper.strict_client import StrictClient

        settings: dict[str, Any] = {}
        if credentials is not None:
            settings["auth_data"] = [("digest", ":".join(credentials))]
            settings["default_acl"] = [make_digest_acl(*credentials, all=True)]
        try:
            self._client = StrictClient(
                hosts=hosts,
                timeout=session_timeout_ms / 1_000,
                connection_retry=dict(_RETRY),
                logger=logger,
                **settings,
            )
        except ValueError as error:
            raise ValueError(f"{hosts!r} is not HOST:PORT,HOST:PORT ...: {error}") from None
        self._hosts = hosts
        self._creates_chroot = creates_chroot and bool(self._client.chroot)
        self._deliver = deliver
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_started = asyncio.Event()
        self._is_connected = False
        self._changes = 0  # of the client, when it was connected
        self._waiting: deque[Ask] = deque()
        self._under_way = 0
        self._watches: set[Fired] = set()
        self._setting: Counter[Fired] = Counter()  # watches whose request is under way
        self._early: set[Fired] = set()  # those of them that have fired

    @property
    def session(self) -> tuple[int, bytes] | None:
        """Id and password of the session that is connected: with them any client can continue it, and end it."""
        session: tuple[int, bytes] | None = self._client.client_id
        return session

    async def start(self, within: float = 15.0) -> None:
        """Connect, and wait for that; the first event is ``CONNECTED``.

        :param within: seconds
        :raises ZooKeeperUnreachableError: no server has answered in that time
        """
        self._loop = asyncio.get_running_loop()
        self._client.add_listener(self._listen)
        self._client.start_async()
        try:
            await asyncio.wait_for(self._has_started.wait(), within)
        except BaseException as error:
            await self.close()
            if isinstance(error, TimeoutError):
                raise ZooKeeperUnreachableError(f"no ZooKeeper answers at {self._hosts} within {within:g} s") from None
            raise

    async def close(self) -> None:
        """End the session, with its ephemeral nodes, and wait for that; no event is delivered any more."""
        self._deliver = lambda event: None
        await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        self._client.stop()
        self._client.close()

    # ---- requests

    def ask(self, ask: Ask) -> None:
        """Execute a request; see `Registry`."""
        self._waiting.append(ask)
        self._send_waiting()

    def _send_waiting(self) -> None:
        while self._waiting and self._under_way < WINDOW:
            self._under_way += 1
            ask = self._waiting.popleft()
            with self._client.order:
                if self._is_connected and self._client.changes == self._changes:
                    self._setting.update(_watches_of(ask))
                    self._send(ask).rawlink(partial(self._hand_over, self._answered, ask, self._changes))
                else:
                    self._hand_over(self._answered, ask, self._changes, None)

    def _send(self, ask: Ask) -> Any:
        """Start a request; return kazoo's result to be."""
        client = self._client
        match ask.request:
            case Read(path, True):
                client.exists_async(path, _Watch(Fired(path), False, self._fire))  # of a missing node, too
                return client.get_async(path)
            case Read(path):
                return client.get_async(path)
            case ReadChildren(path, True):
                watched = Fired(path, of_children=True)
                client.exists_async(path, _Watch(watched, True, self._fire))
                return client.get_children_async(path, _Watch(watched, False, self._fire))
            case ReadChildren(path):
                return client.get_children_async(path)
            case Create(path, data, is_ephemeral):
                return client.create_async(path, data, ephemeral=is_ephemeral)
            case SetData(path, data, version):
                return client.set_async(path, data, version)
            case Delete(path, version):
                return client.delete_async(path, version)
            case Multi(writes):
                return self._transaction(writes)

    def _transaction(self, writes: tuple[Write, ...]) -> Any:
        transaction = self._client.transaction()
        for write in writes:
            match write:
                case Create(path, data, is_ephemeral):
                    transaction.create(path, data, ephemeral=is_ephemeral)
                case SetData(path, data, version):
                    transaction.set_data(path, data, version)
                case Delete(path, version):
                    transaction.delete(path, version)
                case Check(path, version):
                    transaction.check(path, version)
        return transaction.commit_async()

    # ---- what comes back: in kazoo's thread, then in the loop

    def _hand_over(self, function: Callable[..., None], *arguments: Any) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function, *arguments)

    def _fire(self, fired: Fired) -> None:
        self._hand_over(self._fired, fired)

    def _listen(self, state: str) -> None:
        client = self._client
        if state == "CONNECTED":
            if self._creates_chroot:
                client.create_chroot()
            session = SessionChanged(SessionState.CONNECTED, client.client_id[0], client.granted_ms)
            self._hand_over(self._connected, session, client.changes)
        elif state == "SUSPENDED":
            self._hand_over(self._suspended)
        else:
            self._hand_over(self._expired)

    def _connected(self, session: SessionChanged, changes: int) -> None:
        self._is_connected, self._changes = True, changes
        self._has_started.set()
        self._deliver(session)

    def _suspended(self) -> None:
        if self._is_connected:
            self._is_connected = False
            self._watches.clear()
            self._setting.clear()
            self._early.clear()
            self._deliver(SessionChanged(SessionState.SUSPENDED))

    def _expired(self) -> None:
        self._suspended()
        self._deliver(SessionChanged(SessionState.EXPIRED))

    def _fired(self, fired: Fired) -> None:
        if fired in self._watches:
            self._watches.remove(fired)
            self._deliver(fired)
        elif self._setting[fired] > 0:
            # A watch is set by one request, and what it watches is read by the next: a change came between them.
            self._early.add(fired)

    def _answered(self, ask: Ask, changes: int, result: Any) -> None:
        self._under_way -= 1
        reply = Replied(ask.token, Outcome.CONNECTION_LOSS) if result is None else _reply(ask, result)
        is_of_this_connection = changes == self._changes
        if reply.outcome in (Outcome.CONNECTION_LOSS, Outcome.SESSION_EXPIRED) and is_of_this_connection:
            self._suspended()
        watches = _watches_of(ask) if is_of_this_connection and self._is_connected else ()
        self._setting -= Counter(watches)
        self._watches.update(watches)
        self._deliver(reply)
        for fired in self._early.intersection(watches):
            self._early.discard(fired)
            self._fired(fired)
        self._send_waiting()


def _watches_of(ask: Ask) -> tuple[Fired, ...]:
    request = ask.request
    if isinstance(request, Read | ReadChildren) and request.watch:
        return (Fired(request.path, isinstance(request, ReadChildren)),)
    return ()


def _reply(ask: Ask, result: Any) -> Replied:
    """Return the answer for a result of kazoo."""
    if result.exception is not None:
        outcome, detail = _outcome(result.exception)
        if outcome is Outcome.NO_NODE and isinstance(ask.request, Read | ReadChildren):
            return Replied(ask.token)
        return Replied(ask.token, outcome, detail=detail)
    match ask.request:
        case Read():
            data, stat = result.value
            return Replied(ask.token, value=Node(data, stat.version, stat.ephemeralOwner))
        case ReadChildren():
            return Replied(ask.token, value=tuple(sorted(result.value)))
        case SetData():
            return Replied(ask.token, value=result.value.version)
        case Multi():
            return _reply_of_multi(ask.token, result.value)
        case _:
            return Replied(ask.token)


def _reply_of_multi(token: int, results: list[Any]) -> Replied:
    for index, result in enumerate(results):
        if isinstance(result, Exception) and type(result).__name__ not in _NOT_TRIED:
            outcome, detail = _outcome(result)
            return Replied(token, outcome, failed=index, detail=detail)
    return Replied(token)


def _outcome(error: Exception) -> tuple[Outcome, str]:
    outcome = _OUTCOMES.get(type(error).__name__, Outcome.OTHER)
    return outcome, repr(error) if outcome is Outcome.OTHER else ""
