"""A running coordinator over HTTP: groups, rebalances, faults and topics for programs that are not Python, and a page.

    with Coordinator({"orders": 12}) as coordinator, ControlServer(coordinator) as control:
        print(control.url, control.token)

`kcoord serve --control PORT` is the same from the command line, `kcoord control` its client.

To add an operation: a row in `operations`, from which `server` routes, the OpenAPI description is made and `kcoord
control` asks; the page: ``live.js`` (the stream, tabs), ``card.js`` (a group), ``table.js``.
"""

from __future__ import annotations

from kcoord_wire.control.server import ControlServer

__all__ = ["ControlServer"]
