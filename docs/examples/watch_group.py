"""A line whenever a group's state or members change, on a blocking socket: `watch_group.py HOST:PORT GROUP`."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

import kcoord_wire as kw


def call(broker: socket.socket, connection: kw.Connection, request: object) -> Any:
    """Send a request and return the response to it."""
    broker.sendall(connection.send(request))
    while True:
        for event in connection.receive_data(broker.recv(1 << 16)):
            match event:
                case kw.Response(error=None):
                    return event.message
                case kw.Closed():
                    raise ConnectionError("the broker has closed the connection")
                case kw.Request() | kw.Response() | kw.Opaque():
                    raise event.error or ConnectionError("the broker has sent what no request asked for")


def connect(host: str, port: int) -> tuple[socket.socket, kw.Connection]:
    broker, connection = socket.create_connection((host, port), timeout=30), kw.Connection("client", client_id="watch")
    asked = kw.ApiVersionsRequest(client_software_name="watch-group", client_software_version="1")
    if call(broker, connection, asked).error_code:  # 35: the broker lacks our newest version, and has said what it has
        call(broker, connection, asked)
    return broker, connection


def watch(address: str, group: str, every_seconds: float = 1.0) -> Iterator[str]:
    """Yield a line for each change that a poll of the group's coordinator shows."""
    host, _, port = address.rpartition(":")
    broker, connection = connect(host, int(port))
    with broker:
        where = call(broker, connection, kw.FindCoordinatorRequest(coordinator_keys=[group])).coordinators[0]
    broker, connection = connect(where.host, where.port)
    before = ""
    with broker:
        while True:
            found = call(broker, connection, kw.DescribeGroupsRequest(groups=[group])).groups[0]
            members = sorted(f"{member.client_id}@{member.client_host.lstrip('/')}" for member in found.members)
            now = f"{group}: {found.group_state}, {len(members)} members {' '.join(members)}".rstrip()
            if now != before:
                yield now
            before = now
            time.sleep(every_seconds)


if __name__ == "__main__":
    for line in watch(sys.argv[1], sys.argv[2]):
        print(line, flush=True)
