"""One request and its response on their way past the injected faults.

The server and the simulated network each derive a class from `FaultedExchange`, so that a script of faults does the
same to both.

Laws:

* The delay comes first. After it one thing happens, by this precedence: disconnect, drop, error, copies.
* A response that replaces an answer (`error`) meets no further fault.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

from kcoord_wire.coordinator.core.error_responses import refusal
from kcoord_wire.coordinator.fault_injection import CLEAN, Injection


class FaultedExchange(ABC):
    """A request that faults may meet, and the response to it.

    The host calls `receive` when the request has arrived, and `respond` when the coordinator has answered it. The
    exchange calls the host's methods below in turn.

    :ivar api_key: the request's
    :ivar message: the decoded request
    :ivar version: the request's
    :ivar client_id: from the request's header; empty for null
    """

    __slots__ = ("api_key", "client_id", "message", "version")

    def __init__(self, api_key: int, message: Any, version: int, client_id: str) -> None:
        self.api_key = api_key
        self.message = message
        self.version = version
        self.client_id = client_id

    def receive(self) -> None:
        """Pass the request on to the coordinator, unless a fault prevents that."""
        self._meet("request", self.submit)

    def respond(self, response: Any) -> None:
        """Pass the response on to the client, unless a fault prevents that."""
        self._meet("response", partial(self.answer, response))

    def _meet(self, on: str, go_on: Callable[[int], None]) -> None:
        injection = self.decide(on)
        if injection is CLEAN:
            go_on(1)
        elif injection.delay_ms:
            self.later(injection.delay_ms, partial(self._inject, injection, go_on))
        else:
            self._inject(injection, go_on)

    def _inject(self, injection: Injection, go_on: Callable[[int], None]) -> None:
        if injection.disconnect:
            self.disconnect()
        elif injection.drop:
            self.answer(None, 0)
        elif injection.error is not None:
            self.answer(refusal(self.message, self.version, injection.error), 1)
        else:
            go_on(injection.copies)

    # ---- what the host does

    @abstractmethod
    def decide(self, on: str) -> Injection:
        """Return what the faults in force do to the request, or to the response.

        :param on: ``request`` or ``response``
        """

    @abstractmethod
    def later(self, delay_ms: int, step: Callable[[], None]) -> None:
        """Call `step` after the delay, if the connection still exists. No other request of it is handled until then."""

    @abstractmethod
    def submit(self, copies: int) -> None:
        """Give the coordinator the request `copies` times, of which only the first is answered."""

    @abstractmethod
    def answer(self, response: Any, copies: int) -> None:
        """Send the response `copies` times; 0 ends the exchange without an answer."""

    @abstractmethod
    def disconnect(self) -> None:
        """Close the connection instead."""
