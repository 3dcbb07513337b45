"""The control port: an HTTP server beside a running coordinator.

Laws:

* It listens on the loopback alone, whatever the coordinator does.
* Nothing is said or done without the token, which is compared in constant time. Page and description have no data.
* A request that names another host is refused: a page of another site, whose name was made to lead to the loopback (DNS
  rebinding), cannot use the port.
* What a client costs is bounded: its body, its headers (by http.server), its idleness, and how many there are at once.
* It uses the coordinator's public methods only, each of which is safe in any thread; one thread serves one connection.
* The page, one HTML file with its style and script, has no data and no token: a browser keeps the token behind ``#``,
  and the script sends it with each request.
* The page's policy allows this style and script by their hashes, requests to the port itself, and nothing else.
* Strings of clients become text, never markup (report/page/document.js).

The page's style and helpers are those of the report, whose charts need a library that ``serve`` does not have.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache, cached_property, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import unquote, urlsplit

from kcoord_wire.control.operations import OPERATIONS, Operation, checked_body, checked_query, json_form, openapi
from kcoord_wire.coordinator import Coordinator

TOKEN_VARIABLE: Final = "KCOORD_CONTROL_TOKEN"
"""The environment variable that has the token, for server and client."""

HOST: Final = "127.0.0.1"
LEAST_TOKEN: Final = 16  # characters
MOST_BODY: Final = 65_536  # bytes
MOST_CONNECTIONS: Final = 64
IDLE_SECONDS: Final = 30.0
STOP_SECONDS: Final = 0.05  # until it notices that it is to stop, at most
EVENT_SECONDS: Final = 0.1  # between two events of a stream, at least
REST: Final = 4  # times what an event took: groups of thousands are described in the thread that serves them
KEEP_ALIVE_SECONDS: Final = 10.0  # between two, at most; a client that has gone is noticed by then
MOST_SHOWN: Final = 100  # groups, and rebalances, of an event

_log = logging.getLogger("kcoord_wire.control")


class ControlServer:
    """Serves the control port of a coordinator, in threads of its own.

    :param coordinator: one that runs
    :param port: 0 takes a free one
    :param token: what clients must send as ``Authorization: Bearer``; None takes that of the environment variable
        `TOKEN_VARIABLE`, or a random one where there is none
    :ivar port: the port it listens on
    :ivar token: as described
    :raises ValueError: the token has fewer than 16 characters, or others than printable ones of ASCII
    :raises OSError: the port is taken
    """

    def __init__(self, coordinator: Coordinator, port: int = 0, *, token: str | None = None) -> None:
        if token is None:
            token = os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(24)
        if len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
            what = f"a token has at least {LEAST_TOKEN} characters, printable ones of ASCII without spaces"
            raise ValueError(f"{TOKEN_VARIABLE}: {what}")
        self.token = token
        self._server = _Server(coordinator, port, token)
        self.port: int = self._server.server_port
        serve = partial(self._server.serve_forever, STOP_SECONDS)
        self._thread = threading.Thread(target=serve, name="kcoord-control", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it is: ``http://127.0.0.1:PORT``."""
        return self._server.url

    @property
    def page(self) -> str:
        """The address of its page, with the token: a browser does not send what stands behind ``#``."""
        return f"{self.url}/#{self.token}"

    def stop(self) -> None:
        """Stop listening, and end what is in progress; a wait ends at the latest when the coordinator stops."""
        self._server.stopping.set()
        for changed in tuple(self._server.streams):
            changed.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a wait may take minutes, and ends with the coordinator
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, coordinator: Coordinator, port: int, token: str) -> None:
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise OSError(error.errno, f"control port {port}: {error.strerror}") from error
        self.coordinator = coordinator
        self.token = token.encode()
        self.stopping = threading.Event()
        self.streams: set[threading.Event] = set()
        self.url = f"http://{HOST}:{self.server_port}"
        self.hosts = {f"{name}:{self.server_port}" for name in (HOST, "localhost")}
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)

    @cached_property
    def description(self) -> bytes:
        return json.dumps(openapi(self.url)).encode()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            with suppress(OSError):
                request.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("a connection of the control port has ended", exc_info=True)


class _FailedRequest(Exception):
    """An answer that is not a result."""

    def __init__(self, status: int, text: str, **headers: str) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS
    server_version, sys_version = "kcoord_wire", ""

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def log_message(self, format: str, *arguments: Any) -> None:
        _log.debug(format, *arguments)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what http.server itself refuses, as we answer what we refuse."""
        self.close_connection = True
        self._send(int(code), json.dumps({"error": message or str(code)}).encode())

    def _answer(self) -> None:
        try:
            self._route()
        except _FailedRequest as failure:
            # The body may not have been read, so that the next request could not be found.
            self.close_connection = True
            self._send(failure.status, json.dumps({"error": str(failure)}).encode(), headers=failure.headers)
        except OSError:  # the client has gone
            raise
        except Exception as error:
            _log.exception("a request of the control port has failed")
            self.send_error(500, f"unexpected {type(error).__name__}: {error}")

    def _route(self) -> None:
        if self.headers.get_all("Host", []) not in [[host] for host in self.server.hosts]:
            raise _FailedRequest(403, "the header Host must name this server")
        if not self.path.startswith("/") or self.path.startswith("//"):
            raise _FailedRequest(400, "a request names a path, without a host")
        address = urlsplit(self.path)
        if (self.command, address.path) == ("GET", "/"):
            return self._send(200, live_page(), "text/html; charset=utf-8", policy=live_policy())
        if (self.command, address.path) == ("GET", "/openapi.json"):
            return self._send(200, self.server.description)
        sent = self.headers.get("Authorization", "").removeprefix("Bearer ").encode("latin-1", "replace")
        if not hmac.compare_digest(sent, self.server.token):
            raise _FailedRequest(
                401, "the header Authorization must be: Bearer TOKEN", **{"WWW-Authenticate": "Bearer"}
            )
        body = self._body()
        if (self.command, address.path) == ("GET", "/events"):
            return self._stream()
        if (self.command, address.path) == ("POST", "/stop"):
            self._send(204)
            threading.Thread(target=self.server.coordinator.stop, daemon=True).start()
            return None
        operation, arguments = _find(self.command, address.path)
        return self._run(operation, arguments, address.query, body)

    def _run(self, operation: Operation, arguments: dict[str, Any], query: str, body: Any) -> None:
        try:
            arguments |= checked_query(operation, query) | checked_body(operation, body)
            result = operation.run(self.server.coordinator, **arguments)
        except KeyError as error:
            raise _FailedRequest(404, str(error.args[0])) from None
        except TimeoutError as error:
            raise _FailedRequest(504, str(error)) from None
        except (ValueError, TypeError) as error:
            raise _FailedRequest(400, str(error)) from None
        except (RuntimeError, OSError) as error:  # it has been stopped, or a broker's port has been taken
            raise _FailedRequest(503, str(error)) from None
        if operation.result is None:
            self._send(204)
        else:
            self._send(200, json.dumps(json_form(result)).encode())

    def _body(self) -> Any:
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not (length.isascii() and length.isdecimal()):
            raise _FailedRequest(400, "a body has a Content-Length")
        if len(length) > len(str(MOST_BODY)) or int(length) > MOST_BODY:
            raise _FailedRequest(413, f"a body has at most {MOST_BODY} bytes")
        data = self.rfile.read(int(length))
        if not data:
            return {}
        if self.headers.get_content_type() != "application/json":
            raise _FailedRequest(400, "a body is application/json")
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise _FailedRequest(400, "the body is not JSON") from None

    def _stream(self) -> None:
        """Send the groups and rebalances now and when they have changed, until the client goes or the server stops."""
        coordinator, changed, sent = self.server.coordinator, threading.Event(), ""
        self.close_connection = True
        self._head(200, "text/event-stream")
        self.end_headers()
        self.server.streams.add(changed)
        with suppress(RuntimeError, OSError), coordinator.watching(changed.set):
            while not self.server.stopping.is_set():
                changed.clear()
                began = time.monotonic()
                data = json.dumps(snapshot(coordinator))
                event = f'data: {{"now": {time.time_ns() // 1_000_000}, {data[1:]}' if data != sent else ": still here"
                self.wfile.write(f"{event}\n\n".encode())
                sent = data
                time.sleep(max(EVENT_SECONDS, REST * (time.monotonic() - began)))
                changed.wait(KEEP_ALIVE_SECONDS)
        self.server.streams.discard(changed)

    def _send(
        self,
        status: int,
        body: bytes = b"",
        kind: str = "application/json",
        *,
        headers: Mapping[str, str] | None = None,
        policy: str = "default-src 'none'",
    ) -> None:
        self._head(status, kind)
        self.send_header("Content-Security-Policy", policy)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _head(self, status: int, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")


def snapshot(coordinator: Coordinator) -> dict[str, Any]:
    """Return what an event of the stream shows: groups, and the last rebalances."""
    groups = coordinator.groups()
    return {
        "address": coordinator.address,
        "groups": json_form(groups[:MOST_SHOWN]),
        "groups_left_out": max(0, len(groups) - MOST_SHOWN),
        "rebalances": json_form(coordinator.rebalances[-MOST_SHOWN:]),
    }


def _find(method: str, path: str) -> tuple[Operation, dict[str, Any]]:
    """Return the operation that a request asks for, and the arguments that its path has."""
    parts = path.split("/")
    others = []
    for operation in OPERATIONS:
        template = operation.path.split("/")
        if len(template) == len(parts) and all(
            a == b or a.startswith("{") for a, b in zip(template, parts, strict=True)
        ):
            if operation.method == method:
                pairs = zip(template, parts, strict=True)
                return operation, {name[1:-1]: unquote(part) for name, part in pairs if name.startswith("{")}
            others.append(operation.method)
    if others:
        raise _FailedRequest(405, f"{path[:100]} has {' and '.join(others)} only", Allow=", ".join(others))
    raise _FailedRequest(404, f"there is nothing at {path[:100]}; /openapi.json has all paths")


_HERE: Final = Path(__file__).parent
_REPORT: Final = _HERE.parent / "report" / "page"


@cache
def _style() -> str:
    return "\n".join(path.read_text("utf-8") for path in (_REPORT / "page.css", _HERE / "live.css"))


@cache
def _script() -> str:
    parts = [path.read_text("utf-8") for path in (_REPORT / "document.js", _HERE / "live.js")]
    return "\n".join(['"use strict";', *parts])


@cache
def live_page() -> bytes:
    """Return the page."""
    page = (_HERE / "live.html").read_text("utf-8")
    return page.replace("{{style}}", _style()).replace("{{script}}", _script()).encode()


@cache
def live_policy() -> str:
    """Return its Content-Security-Policy."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(_script())}",
            f"style-src {_hash(_style())}",
            "img-src data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
