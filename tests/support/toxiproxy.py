"""The HTTP interface of toxiproxy for a program that sets no toxics: every proxy exists, and resetting them works."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        proxy = {"name": self.path.rpartition("/")[2], "listen": "", "upstream": "", "enabled": True}
        self._answer(200, json.dumps(proxy).encode())

    def do_POST(self) -> None:
        self._answer(*((204, b"") if self.path == "/reset" else (501, b"no toxics here")))

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """The requests are of no interest."""


@contextmanager
def proxies_without_toxics() -> Iterator[str]:
    """Serve on a free port of loopback; gives the URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
