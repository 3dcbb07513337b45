"""kazoo's client, with two guarantees that kazoo's does not give.

* What comes from the server is handed on in the order of the connection, watches included: kazoo has a thread for
  answers and another for watches, so that a watch could come after the answer with the new value.
* A caller can see whether a connection is still the same (`changes`, while `order` is held): kazoo keeps a request that
  is made without a connection and sends it over the next one, which may have another session.

Only `registry` uses it. It relies on internals of kazoo 2.11 (kazoo/client.py `_session_callback`, kazoo/protocol/
connection.py `_invoke`); the contract's tests fail if they change.
"""

from __future__ import annotations

import threading
from typing import Any

from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import Connect, Create
from kazoo.security import OPEN_ACL_UNSAFE


class _Immediately(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """Calls back in the thread of the connection: a handler that does not run does so for answers."""

    def start(self) -> None:
        """Start no threads."""

    def stop(self) -> None:
        """There are no threads."""

    def dispatch_callback(self, callback: Any) -> None:
        """Call a watch."""
        callback.func(*callback.args)


class StrictClient(KazooClient):  # type: ignore[misc]  # kazoo has no types
    """A client that calls back in order, in its own thread: what it calls must not block.

    :ivar order: held by kazoo while the state of its connection changes
    :ivar changes: how often the state has changed
    :ivar granted_ms: session timeout, as the server granted it at the last connection
    """

    def __init__(self, **settings: Any) -> None:
        self.order = threading.RLock()
        self.changes = 0
        self.granted_ms = 0
        super().__init__(handler=_Immediately(), **settings)
        self._invoke = self._connection._invoke
        self._connection._invoke = self._invoke_and_note

    def create_chroot(self) -> None:
        """Create the nodes of the chroot that are missing, before all requests that come later."""
        names = self.chroot.strip("/").split("/")
        for depth in range(1, len(names) + 1):
            path = "/" + "/".join(names[:depth])
            self._call(Create(path, b"", self.default_acl or OPEN_ACL_UNSAFE, 0), self.handler.async_result())

    def _session_callback(self, state: Any) -> None:
        with self.order:
            self.changes += 1
            super()._session_callback(state)

    def _invoke_and_note(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        answer = self._invoke(timeout, request, xid)
        if isinstance(request, Connect):
            self.granted_ms = answer[0].time_out
        return answer
