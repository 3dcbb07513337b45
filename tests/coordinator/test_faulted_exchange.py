"""A request and its response past the faults: what happens, in which order, on a host that notes it down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kcoord_wire.coordinator.fault_injection import CLEAN, FaultedExchange, Injection
from kcoord_wire.messages import HeartbeatRequest, HeartbeatResponse
from kcoord_wire.protocol.error_codes import ErrorCode

OK = HeartbeatResponse()
REFUSED = HeartbeatResponse(error_code=ErrorCode.NOT_COORDINATOR)
ERROR = Injection(error=ErrorCode.NOT_COORDINATOR)


class Exchange(FaultedExchange):
    """Answers at once, and notes what it is asked to do."""

    def __init__(self, **faults: Injection) -> None:
        super().__init__(12, HeartbeatRequest(), 4, "c")
        self.faults = faults
        self.happened: list[Any] = []

    def decide(self, on: str) -> Injection:
        return self.faults.get(on, CLEAN)

    def later(self, delay_ms: int, step: Callable[[], None]) -> None:
        self.happened.append(delay_ms)
        step()

    def submit(self, copies: int) -> None:
        self.happened.append(copies)
        self.respond(OK)

    def answer(self, response: Any, copies: int) -> None:
        self.happened.append((response, copies))

    def disconnect(self) -> None:
        self.happened.append("disconnect")


@pytest.mark.parametrize(
    ("faults", "happens"),
    [
        ({}, [1, (OK, 1)]),
        ({"request": Injection(delay_ms=7)}, [7, 1, (OK, 1)]),
        ({"request": Injection(copies=3)}, [3, (OK, 1)]),
        ({"request": Injection(drop=True)}, [(None, 0)]),
        ({"request": ERROR, "response": Injection(drop=True)}, [(REFUSED, 1)]),
        ({"request": Injection(disconnect=True, drop=True, delay_ms=5)}, [5, "disconnect"]),
        ({"response": Injection(delay_ms=7, copies=2)}, [1, 7, (OK, 2)]),
        ({"response": Injection(drop=True, error=ErrorCode.NOT_COORDINATOR)}, [1, (None, 0)]),
        ({"response": ERROR}, [1, (REFUSED, 1)]),
        ({"response": Injection(disconnect=True)}, [1, "disconnect"]),
    ],
)
def test_faults_apply_in_their_order(faults: dict[str, Injection], happens: list[Any]) -> None:
    exchange = Exchange(**faults)
    exchange.receive()
    assert exchange.happened == happens
