"""The control port: an HTTP server beside a running coordinator.

Laws:

* It listens on the loopback alone, whatever the coordinator does.
* Nothing is said or done without the token, which is compared in constant time. Page and description have no data.
* Who is served, and what a client may cost: `kcoord_wire.kernel.http_server`. Clients without the token cannot keep out
  one that has it.
* It uses the coordinator's public methods only, each of which is safe in any thread; a request has one of its own.
* The page, one HTML file with its style and script, has no data and no token: a browser keeps the token behind ``#``,
  and the script sends it with each request.
* A report is made by `kcoord analyze` in a process of its own, so that the coordinator answers meanwhile; one at a
  time.
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
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import unquote

from kcoord_wire.control.operations import OPERATIONS, Operation, checked_body, checked_query, json_form, openapi
from kcoord_wire.coordinator import Coordinator, GroupDescription, RebalanceAccount
from kcoord_wire.coordinator.overview import Changes
from kcoord_wire.kernel.http_server import HttpError, HttpServer, Request, Response
from kcoord_wire.protocol.key_partitions import partition_of

TOKEN_VARIABLE: Final = "KCOORD_CONTROL_TOKEN"
"""The environment variable that has the token, for server and client."""

HOST: Final = "127.0.0.1"
LEAST_TOKEN: Final = 16  # characters
EVENT_SECONDS: Final = 0.2  # between two looks for a stream, at least
REST: Final = 4  # times what a look took: groups of thousands are described in the thread that serves them
KEEP_ALIVE_SECONDS: Final = 10.0  # between two events, at most; a client that has gone is noticed by then
MOST_REBALANCES: Final = 500  # of an event
MOST_NAMED: Final = 5  # members that one rebalance has removed
REPORT_SECONDS: Final = 300
ANALYZE: Final = (sys.executable, "-m", "kcoord_wire", "analyze")

_log = logging.getLogger("kcoord_wire.control")


class ControlServer:
    """Serves the control port of a coordinator, in threads of its own, and has it keep its traffic for reports.

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
        coordinator.keep_traffic()
        self._server = _Server(coordinator, port, token)
        self.port: int = self._server.port

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
        self._server.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


class _Server(HttpServer):
    def __init__(self, coordinator: Coordinator, port: int, token: str) -> None:
        self.coordinator = coordinator
        self.stopping = threading.Event()
        self._reporting = threading.Lock()
        self.streams: set[threading.Event] = set()
        self._authorization = f"Bearer {token}".encode()
        try:
            super().__init__("control port", HOST, port, _log)
        except OSError as error:
            raise OSError(error.errno, f"control port {port}: {error.strerror}") from error

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @cached_property
    def description(self) -> bytes:
        return json.dumps(openapi(self.url)).encode()

    def names(self, host: str) -> bool:
        return host in (f"{HOST}:{self.port}", f"localhost:{self.port}")

    def admit(self, request: Request) -> Response | None:
        if (request.method, request.path) == ("GET", "/"):
            policy = {"Content-Security-Policy": live_policy()}
            return Response(200, live_page(), "text/html; charset=utf-8", policy)
        if (request.method, request.path) == ("GET", "/openapi.json"):
            return Response(200, self.description)
        sent = request.fields.get("authorization", "").encode("latin-1")
        if not hmac.compare_digest(sent, self._authorization):
            raise HttpError(401, "the header Authorization must be: Bearer TOKEN", **{"WWW-Authenticate": "Bearer"})
        return None

    def answer(self, request: Request) -> Response:
        if (request.method, request.path) == ("GET", "/events"):
            return Response(200, self._events(), "text/event-stream")
        if (request.method, request.path) == ("GET", "/report"):
            return self._report()
        body = _body(request)
        if (request.method, request.path) == ("POST", "/stop"):
            threading.Thread(target=self.coordinator.stop, daemon=True).start()
            return Response(204)
        operation, arguments = _find(request.method, request.path)
        return self._run(operation, arguments, request.query, body)

    def _run(self, operation: Operation, arguments: dict[str, Any], query: str, body: Any) -> Response:
        try:
            arguments |= checked_query(operation, query) | checked_body(operation, body)
            result = operation.run(self.coordinator, **arguments)
        except KeyError as error:
            raise HttpError(404, str(error.args[0])) from None
        except TimeoutError as error:
            raise HttpError(504, str(error)) from None
        except (ValueError, TypeError) as error:
            raise HttpError(400, str(error)) from None
        except (RuntimeError, OSError) as error:  # it has been stopped, or a broker's port has been taken
            raise HttpError(503, str(error)) from None
        return Response(204) if operation.result is None else Response(200, json.dumps(json_form(result)).encode())

    def _events(self) -> Iterator[bytes]:
        """Yield all groups, and then what changes, until the server stops."""
        changed = threading.Event()
        self.streams.add(changed)
        try:
            with suppress(RuntimeError, OSError), self.coordinator.watching(changed.set):
                yield from self._changes(changed)
        finally:
            self.streams.discard(changed)

    def _changes(self, changed: threading.Event) -> Iterator[bytes]:
        seen: Changes | None = None
        sent = 0.0
        while not self.stopping.is_set():
            changed.clear()
            began = time.monotonic()
            now = self.coordinator.changes(seen)
            if seen is None or now.is_news(seen):
                yield f"data: {json.dumps(event_of(now, self.coordinator, is_first=seen is None))}\n\n".encode()
                sent = time.monotonic()
            elif began - sent >= KEEP_ALIVE_SECONDS:
                yield b": still here\n\n"
                sent = began
            seen = now
            if not self.stopping.wait(max(EVENT_SECONDS, REST * (time.monotonic() - began))):
                changed.wait(KEEP_ALIVE_SECONDS)

    def _report(self) -> Response:
        if not self._reporting.acquire(blocking=False):
            raise HttpError(503, "a report is being made already")
        try:
            with tempfile.TemporaryDirectory(prefix="kcoord-") as folder:
                recording, out = Path(folder, self.coordinator.addresses[0]), Path(folder, "report")
                self.coordinator.write_recording(recording)
                self._analyze(recording, out)
                page = (out / "report.html").read_bytes()
        except (RuntimeError, OSError) as error:
            raise HttpError(503, str(error)) from None
        finally:
            self._reporting.release()
        named = {"Content-Disposition": 'attachment; filename="report.html"'}
        return Response(200, page, "text/html; charset=utf-8", named)

    def _analyze(self, recording: Path, out: Path) -> None:
        command = (*ANALYZE, str(recording), "--out", str(out), "--quiet")
        until = time.monotonic() + REPORT_SECONDS
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            while process.returncode is None:
                try:
                    _, said = process.communicate(timeout=EVENT_SECONDS)
                except subprocess.TimeoutExpired:
                    if self.stopping.is_set() or time.monotonic() > until:
                        process.kill()
        if process.returncode:
            last = said.strip().rpartition("\n")[2].replace(str(recording), "what was kept")
            raise HttpError(503, last or "kcoord analyze was ended")


def _body(request: Request) -> Any:
    if not request.body:
        return {}
    if request.fields.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HttpError(400, "a body is application/json")
    try:
        return json.loads(request.body)
    except (ValueError, RecursionError):
        raise HttpError(400, "the body is not JSON") from None


def event_of(changes: Changes, coordinator: Coordinator, *, is_first: bool) -> dict[str, Any]:
    """Return an event of the stream.

    :param is_first: it has all groups, not those alone that have changed
    """
    brokers = zip(coordinator.node_ids, changes.brokers, coordinator.addresses, strict=True)
    partitions = len(changes.leaders)
    return {
        "now": time.time_ns() // 1_000_000,
        "address": coordinator.address,
        "is_first": is_first,
        "brokers": [{"node": node, "state": state, "address": at} for node, state, at in brokers],
        "leaders": changes.leaders,
        "groups": [
            {**_shown_group(group), "partition": partition_of(group.group_id, partitions)} for group in changes.groups
        ],
        "gone": changes.gone,
        "groups_left_out": changes.left_out,
        "rebalances": [_shown_rebalance(account) for account in changes.rebalances[-MOST_REBALANCES:]],
        "ended": changes.ended,
    }


def _shown_group(group: GroupDescription) -> dict[str, Any]:
    shown: dict[str, Any] = json_form(replace(group, offsets={}, rebalance=None))
    return {**shown, "rebalance": None if group.rebalance is None else _shown_rebalance(group.rebalance)}


def _shown_rebalance(account: RebalanceAccount) -> dict[str, Any]:
    """Return an account with as many joins and removals as people read: a group of thousands has as many of both."""
    shown: dict[str, Any] = json_form(replace(account, joins=[], removed=account.removed[:MOST_NAMED]))
    return {**shown, "joined": len(account.joins), "lost": len(account.removed)}


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
        raise HttpError(405, f"{path[:100]} has {' and '.join(others)} only", Allow=", ".join(others))
    raise HttpError(404, f"there is nothing at {path[:100]}; /openapi.json has all paths")


_HERE: Final = Path(__file__).parent
_REPORT: Final = _HERE.parent / "report" / "page"


@cache
def _style() -> str:
    return "\n".join(path.read_text("utf-8") for path in (_REPORT / "page.css", _HERE / "live.css"))


@cache
def _script() -> str:
    own = (_HERE / name for name in ("table.js", "card.js", "live.js"))
    parts = [path.read_text("utf-8") for path in (_REPORT / "document.js", *own)]
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
