"""A client of the control port, by http.client: requests with a token, and the events of its stream."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from typing import Any

from kcoord_wire.control import ControlServer

SECONDS = 60.0


def ask(
    control: ControlServer,
    method: str,
    path: str,
    body: Any = None,
    *,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, Any]:
    """Status and decoded answer of a request. A header with the value None is not sent."""
    connection = http.client.HTTPConnection("127.0.0.1", control.port, timeout=SECONDS)
    try:
        sent = {"Authorization": f"Bearer {control.token}", "Content-Type": "application/json", **(headers or {})}
        connection.request(method, path, body if body is None else json.dumps(body), sent)
        response = connection.getresponse()
        data = response.read()
        return response.status, json.loads(data) if data else None
    finally:
        connection.close()


def events(control: ControlServer) -> Iterator[dict[str, Any]]:
    """What the stream sends, one object an event."""
    connection = http.client.HTTPConnection("127.0.0.1", control.port, timeout=SECONDS)
    try:
        connection.request("GET", "/events", headers={"Authorization": f"Bearer {control.token}"})
        response = connection.getresponse()
        assert response.status == 200
        while line := response.readline():
            if line.startswith(b"data: "):
                yield json.loads(line.removeprefix(b"data: "))
    finally:
        connection.close()
