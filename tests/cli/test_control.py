"""`kcoord control`, on the port of `kcoord serve --control` or of a coordinator in this process."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from kcoord_wire.cli.main import main
from kcoord_wire.control import ControlServer
from kcoord_wire.control.operations import OPERATIONS
from kcoord_wire.control.server import TOKEN_VARIABLE
from tests.support.fixtures import StartCoordinator
from tests.support.group_client import become_stable
from tests.support.processes import Process
from tests.support.wire import Wire


def test_it_serves_and_obeys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = tmp_path / "token"
    secret.write_text("what was there before")
    command = [sys.executable, "-m", "kcoord_wire", "serve", "--port", "0", "--control", "0", "--topics", "orders:12"]
    ready = r"^kcoord serves on .*, control at http://(127\.0\.0\.1:\d+)\n$"
    with Process([*command, "--control-token-file", str(secret)], ready=ready) as process:
        address = process.ready[1]
        assert secret.stat().st_mode & 0o777 == 0o600
        assert main(["control", address, "--token-file", str(secret), "--format", "json", "topics"]) == 0
        assert json.loads(capsys.readouterr().out) == {"name": "orders", "partitions": 12}
        assert main(["control", address, "--token-file", str(secret), "stop"]) == 0
        assert process.process.wait(60) == 0


def test_the_page_is_printed_with_its_token() -> None:
    command = [sys.executable, "-m", "kcoord_wire", "serve", "--port", "0", "--control", "0"]
    environment = {**os.environ, TOKEN_VARIABLE: "token-of-the-environment"}
    ready = r", control at http://127\.0\.0\.1:\d+/#token-of-the-environment\n$"
    Process(command, ready=ready, environment=environment).kill()


def test_operations(
    coordinator: StartCoordinator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    c = coordinator()
    with ControlServer(c) as server, Wire(c.address, client_id="worker") as wire:
        monkeypatch.setenv(TOKEN_VARIABLE, server.token)

        def control(*words: str) -> str:
            assert main(["control", f"127.0.0.1:{server.port}", *words]) == 0
            return capsys.readouterr().out

        assert control("groups") == ""
        become_stable(wire, "billing")
        assert re.search(r"billing +Stable +1 +consumer +range", control("groups"))
        assert re.search(r"worker +/127\.0\.0\.1", control("group", "billing"))
        assert json.loads(control("wait-until-stable", "billing", "members=1", "--format", "json"))["is_settled"]
        assert re.search("new member +wire|new member +worker", control("rebalances", "group=billing"))
        added = control("add-fault", "action=error", "api=Heartbeat", "error=27", "count=3")
        assert re.search(r"1 .*action error, .*api Heartbeat, .*count 3.*error REBALANCE_IN_PROGRESS", added)
        assert control("remove-fault", "1") == ""
        assert re.search(r"payments +8", control("create-topic", "name=payments", "partitions=8"))
        assert control("rebalance", "billing", "reason=what if?").startswith("group_id")
        assert c.describe("billing").state == "PreparingRebalance"
    assert main(["control", f"127.0.0.1:{server.port}", "groups"]) == 1
    assert capsys.readouterr().err.startswith(f"kcoord: nothing listens on 127.0.0.1:{server.port}: ")


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["gruops"], 2, "no operation 'gruops'; did you mean groups?"),
        (["group"], 2, "group needs group"),
        (["group", "billing", "x"], 2, "'x' is no argument of group: it has none"),
        (["rebalance", "billing", "cause=x"], 2, "'cause=x' is no argument of rebalance: reason"),
        (["group", "billing"], 1, "no group 'billing'"),
        (["create-topic", "name=x"], 1, "body.partitions: is missing: how many"),
        (["wait-until-stable", "billing", "timeout_ms=1"], 1, "group 'billing' is not stable with any members"),
    ],
)
def test_errors(
    coordinator: StartCoordinator,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    status: int,
    text: str,
) -> None:
    with ControlServer(coordinator()) as server:
        monkeypatch.setenv(TOKEN_VARIABLE, server.token)
        assert main(["control", f"127.0.0.1:{server.port}", *words]) == status
    error = capsys.readouterr().err
    assert error.startswith(f"kcoord: {text}"), error
    assert error.count("\n") == 1


def test_the_token_is_needed(
    coordinator: StartCoordinator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    c = coordinator()
    with ControlServer(c) as server:
        address = f"127.0.0.1:{server.port}"
        monkeypatch.setenv(TOKEN_VARIABLE, "")
        assert main(["control", address, "groups"]) == 2
        monkeypatch.setenv(TOKEN_VARIABLE, "wrong")
        assert main(["control", address, "groups"]) == 1
        assert main(["control", c.address, "groups"]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert errors[0].startswith("kcoord: set KCOORD_CONTROL_TOKEN to the token")
    assert errors[1] == f"kcoord: {address} has another token than the one that is given here"
    assert len(errors) == 3


def test_the_help_names_every_operation(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["control", "--help"])
    shown = capsys.readouterr().out
    for operation in OPERATIONS:
        name = re.sub("[A-Z]", lambda letter: f"-{letter[0].lower()}", operation.name)
        assert re.search(rf"[ \n]{name}[,;\n ]", shown), name
