"""A member's connection to its coordinator: found by ConsumerMetadata, kept, found again.

Laws:

* One connection at a time, and one request in flight on it.
* An answer is accepted once, on the connection on which its request went out.
* After each failure, the next attempt waits for the back-off and asks the next broker of the bootstrap list.
* A broker that does not answer in time is left.

Source: "Kafka 0.9 Consumer Rewrite Design", "Co-ordinator failover or connection loss to the co-ordinator".
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kcoord_wire.central.rewrite.events import MemberSettings, RewriteError
from kcoord_wire.kernel.machines import BrokerAddress, Close, Connect, Connected, Disconnected, Noted, Received, Send
from kcoord_wire.messages import FindCoordinatorRequest, FindCoordinatorResponse


@dataclass(frozen=True, slots=True)
class Answered:
    """The coordinator has answered.

    :ivar request: what it answers
    :ivar sent_at: when that was sent, in ms
    """

    request: Any
    response: Any
    sent_at: int


class CoordinatorLink:
    """Looks for the coordinator whenever there is no connection to it.

    :param emit: adds an effect to those that the member's `handle` returns
    :ivar is_open: False once the member has ended it
    """

    def __init__(self, settings: MemberSettings, emit: Callable[[Any], None]) -> None:
        self.is_open = True
        self._settings = settings
        self._emit = emit
        self._connection = 0  # the last number; in use while `_broker` is one
        self._broker: BrokerAddress | None = None
        self._is_coordinator = False
        self._is_connected = False
        self._request: Any = None
        self._sent_at = 0
        self._answer_by = 0  # of the request, or of Connect
        self._attempts = 0
        self._wait_until = 0

    @property
    def is_found(self) -> bool:
        """Whether there is a connection to the coordinator."""
        return self._is_coordinator and self._is_connected

    def is_ready(self, now: int) -> bool:
        """Return whether a request can be sent to the coordinator."""
        return self.is_found and self._request is None and self._wait_until <= now

    @property
    def deadline(self) -> int | None:
        """When something is due, in ms; None for nothing."""
        if not self.is_open:
            return None
        if self._request is not None or (self._broker is not None and not self._is_connected):
            return self._answer_by
        return None if self.is_ready(self._wait_until) else self._wait_until

    @property
    def ready_at(self) -> int | None:
        """When the next request can be sent, in ms; None while that depends on others."""
        return self._wait_until if self.is_found and self._request is None else None

    # ---- what the member wants

    def send(self, request: Any, now: int, timeout_ms: int | None = None) -> None:
        """Send a request to the coordinator, which `is_ready`."""
        self._request, self._sent_at = request, now
        self._answer_by = now + (timeout_ms or self._settings.request_timeout_ms)
        self._emit(Send(self._connection, request))

    def back_off(self, now: int) -> None:
        """Send no request for the time of the back-off."""
        self._wait_until = now + self._settings.retry_backoff_ms

    def look_again(self, now: int, reason: str) -> None:
        """Leave the broker, and look for the coordinator after the back-off."""
        if self._broker is not None:
            self._emit(Close(self._connection))
        self._lost(now, reason)

    def end(self) -> None:
        """Close the connection and open no other."""
        if self._broker is not None:
            self._emit(Close(self._connection))
        self.is_open, self._broker, self._request = False, None, None
        self._is_connected = self._is_coordinator = False

    # ---- events

    def handle(self, event: Any, now: int) -> Answered | None:
        """Take in an event of a connection; return what the coordinator has answered to the member, if it has."""
        if self._broker is None or event.connection != self._connection:
            return None
        if isinstance(event, Connected):
            self._is_connected = True
            if not self._is_coordinator:
                self.send(FindCoordinatorRequest(key=self._settings.group_id), now)
        elif isinstance(event, Disconnected):
            self._lost(now, "disconnected")
        elif isinstance(event, Received) and self._request is not None:
            answered = Answered(self._request, event.message, self._sent_at)
            self._request = None
            if self._is_coordinator:
                return answered
            self._found(event.message, now)
        return None

    def advance(self, now: int) -> None:
        """Do what is due."""
        due = self.deadline
        if due is None or due > now:
            return
        if self._broker is not None:
            self.look_again(now, "no answer")
        else:
            bootstrap = self._settings.bootstrap
            self._connect(bootstrap[self._attempts % len(bootstrap)], now)

    def _connect(self, broker: BrokerAddress, now: int) -> None:
        self._connection += 1
        self._broker, self._is_connected = broker, False
        self._answer_by = now + self._settings.request_timeout_ms
        self._emit(Connect(self._connection, broker))

    def _found(self, response: FindCoordinatorResponse, now: int) -> None:
        if response.error_code != RewriteError.NONE:
            self.look_again(now, f"error {response.error_code}")
            return
        self._emit(Close(self._connection))
        self._is_coordinator = True
        self._connect(BrokerAddress(response.node_id, response.host, response.port), now)

    def _lost(self, now: int, reason: str) -> None:
        broker = self._broker.broker_id if self._broker is not None else None
        what = "coordinator lost" if self._is_coordinator else "coordinator not found"
        self._emit(Noted(logging.INFO, what, {"broker": broker, "reason": reason}))
        self._broker, self._request = None, None
        self._is_connected = self._is_coordinator = False
        self._attempts += 1
        self.back_off(now)
