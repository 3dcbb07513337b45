"""`kcoord control`: ask a running `kcoord serve --control` for something, or have it do something.

Laws:

* The operations and their arguments are those of the control port: one table has them both.
* The token comes from a file or from the environment, never from the command line, which other users can see.
"""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote, urlencode

from kcoord_wire.cli.options import Argument, Command, Format, Option, UsageError
from kcoord_wire.cli.output import print_json, print_table, styled, table
from kcoord_wire.codec.fields import number_runs
from kcoord_wire.kernel.net import parse_address
from kcoord_wire.kernel.settings import suggestion

if TYPE_CHECKING:
    from kcoord_wire.control.operations import Operation

CONNECT_SECONDS: Final = 10.0


@dataclass(frozen=True, kw_only=True)
class Control(Command):
    """Ask a coordinator that runs with --control for its groups, or have it do something.

    examples:
      kcoord control 127.0.0.1:9180 groups
      kcoord control 127.0.0.1:9180 group billing
      kcoord control 127.0.0.1:9180 wait-until-stable billing members=2 timeout_ms=10000
      kcoord control 127.0.0.1:9180 rebalance billing reason='what if?'
      kcoord control 127.0.0.1:9180 add-fault action=error api=Heartbeat error=REBALANCE_IN_PROGRESS count=3
      kcoord control 127.0.0.1:9180 remove-fault 1
      kcoord control 127.0.0.1:9180 create-topic name=payments partitions=8
      kcoord control 127.0.0.1:9180 move billing to=2
      kcoord control 127.0.0.1:9180 stop-broker 1
      kcoord control 127.0.0.1:9180 stop

    operations: groups, group, rebalance, wait-until-stable, wait-for-commit, rebalances, coordinator-of, move, brokers,
    stop-broker, restart-broker, pause-broker, resume-broker, faults, add-fault, clear-faults, remove-fault, topics,
    create-topic, delete-topic, partitions, add-partitions, compact, lags, transactions, stop; their arguments:
    /openapi.json of the port
    """

    address: Annotated[tuple[str, int], parse_address, Argument("HOST:PORT", "its control port")]
    operation: Annotated[str, Argument("OPERATION", "what to do (below)")]
    arguments: Annotated[tuple[str, ...], Argument("ARGUMENT", "a group, a topic ..., then NAME=VALUE")] = ()
    token_file: Annotated[
        Path | None, Option("has the token (default: the environment variable KCOORD_CONTROL_TOKEN)", "FILE")
    ] = None
    format: Format = "text"

    def run(self) -> None:
        """Send one request and print its answer.

        :raises UsageError: the operation does not exist, or has other arguments
        :raises ValueError: the coordinator refuses it, or nothing listens
        :raises OSError: it does not answer
        """
        method, path, body = _request(self.operation, self.arguments)
        answer = _call(self.address, _token(self.token_file), method, path, body)
        rows = answer if isinstance(answer, list) else [] if answer is None else [answer]
        if self.format == "json":
            for row in rows:
                print_json(row)
        elif rows:
            _print_rows(rows)
            if not isinstance(answer, list):
                _print_rows(answer.get("members", []))


def _request(name: str, words: Sequence[str]) -> tuple[str, str, dict[str, Any]]:
    """Return method, path and body of a request."""
    from kcoord_wire.control.operations import OPERATIONS

    if name == "stop" and not words:
        return "POST", "/stop", {}
    operations = {_dashed(operation.name): operation for operation in OPERATIONS}
    if name not in operations:
        raise UsageError(f"no operation {name!r}; {suggestion(name, [*operations, 'stop'])}")
    return _asked(operations[name], words)


def _asked(operation: Operation, words: Sequence[str]) -> tuple[str, str, dict[str, Any]]:
    places = [part for part in operation.path.split("/") if part.startswith("{")]
    if len(words) < len(places):
        raise UsageError(f"{_dashed(operation.name)} needs {', '.join(place[1:-1] for place in places)}")
    path = operation.path
    for place, word in zip(places, words, strict=False):
        path = path.replace(place, quote(word, safe=""))
    given = _named(operation, words[len(places) :])
    if operation.query is not None:
        return operation.method, f"{path}?{urlencode(given)}", {}
    return operation.method, path, given


def _named(operation: Operation, words: Sequence[str]) -> dict[str, Any]:
    known = {**(operation.body or {}), **(operation.query or {})}
    given: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in known:
            raise UsageError(
                f"{word!r} is no argument of {_dashed(operation.name)}: {', '.join(known) or 'it has none'}"
            )
        given[name] = value if known[name].kind is str else _number_or_text(value)
    return given


def _number_or_text(text: str) -> int | str:
    return int(text) if text.removeprefix("-").isascii() and text.removeprefix("-").isdecimal() else text


def _dashed(name: str) -> str:
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name)


def _token(path: Path | None) -> str:
    from kcoord_wire.control.server import TOKEN_VARIABLE

    token = os.environ.get(TOKEN_VARIABLE, "") if path is None else path.read_text("utf-8").strip()
    if not token:
        where = "which kcoord serve has printed behind #"
        raise UsageError(f"set {TOKEN_VARIABLE} to the token, {where}, or name a --token-file")
    return token


def _call(address: tuple[str, int], token: str, method: str, path: str, body: dict[str, Any]) -> Any:
    from kcoord_wire.control.operations import LONGEST_WAIT_MS

    connection = http.client.HTTPConnection(*address, timeout=CONNECT_SECONDS)
    try:
        connection.connect()
        connection.sock.settimeout(LONGEST_WAIT_MS / 1000 + CONNECT_SECONDS)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        connection.request(method, path, json.dumps(body) if body else None, headers)
        response = connection.getresponse()
        data = response.read()
    except http.client.HTTPException as error:
        raise ValueError(f"{address[0]}:{address[1]} does not speak HTTP: {error}") from None
    except ConnectionRefusedError:
        raise ValueError(f"nothing listens on {address[0]}:{address[1]}: is it the port of --control?") from None
    finally:
        connection.close()
    answer = json.loads(data) if data else None
    if response.status == http.client.UNAUTHORIZED:
        raise ValueError(f"{address[0]}:{address[1]} has another token than the one that is given here")
    if response.status >= http.client.BAD_REQUEST:
        raise ValueError(answer["error"] if isinstance(answer, dict) else f"HTTP status {response.status}")
    return answer


def _print_rows(rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    made = table("", *(name for name in rows[0] if name not in _LEFT_OUT))
    for row in rows:
        made.add_row(*(styled(_cell(value)) for name, value in row.items() if name not in _LEFT_OUT))
    print_table(made)


# Times and details, which JSON has.
_LEFT_OUT = {
    "state_since",
    "started_at",
    "joined_at",
    "ended_at",
    "joining",
    "owned",
    "joins",
    "rebalance",
    "leader_id",
}


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        if all(isinstance(each, int) for each in value):
            return number_runs(value)
        return ", ".join(value) if all(isinstance(each, str) for each in value) else str(len(value))
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_cell(each)}" for key, each in value.items() if each is not None) or "-"
    return str(value)
