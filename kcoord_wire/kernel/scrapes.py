"""The port at which metrics are scraped.

Laws:

* What clients may cost is bounded as `kcoord_wire.kernel.http_server` says.
* The field Host of a scrape has an address, or a name of this machine: others are made to lead here (DNS rebinding).
"""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Any, Final

from kcoord_wire.kernel.http_server import HttpServer, Request, Response

_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(?::[0-9]+)?")
_log = logging.getLogger("kcoord_wire.metrics")


class Scrapes(HttpServer):
    """The metrics port, at any path.

    :param expose: an application of WSGI
    :param known: names of this machine
    """

    def __init__(self, expose: Any, host: str, port: int, known: Iterable[str]) -> None:
        self._expose = expose
        self._known = {name.lower() for name in (host, "localhost", socket.gethostname(), *known)}
        super().__init__("metrics port", host, port, _log)

    def names(self, host: str) -> bool:
        """Return whether this is an address, or one of the names."""
        parts = _HOST.fullmatch(host.lower())
        return parts is not None and (parts[1] in self._known or _is_address(parts[1].strip("[]")))

    def answer(self, request: Request) -> Response:
        """Return the samples in the form that the client wants."""
        environment = {
            "REQUEST_METHOD": request.method,
            "PATH_INFO": request.path,
            "QUERY_STRING": request.query,
            "HTTP_ACCEPT": request.fields.get("accept"),
            "HTTP_ACCEPT_ENCODING": request.fields.get("accept-encoding"),
        }
        heads: list[tuple[str, list[tuple[str, str]]]] = []
        body = b"".join(self._expose(environment, lambda *head: heads.append(head)))
        [(status, fields)] = heads
        return Response(int(status[:3]), body, "text/plain", dict(fields))


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
