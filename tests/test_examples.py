"""The programs of docs/examples run against our own coordinator, and are short."""

from __future__ import annotations

import asyncio
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

import kcoord_wire as kw
from tests.support.fixtures import StartCoordinator
from tests.support.group_client import become_stable, join_request
from tests.support.wire import Wire

EXAMPLES = Path(__file__).resolve().parent.parent / "docs" / "examples"
LONGEST = 60  # lines


def load(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name=name)


def test_examples_are_short() -> None:
    sizes = {path.name: len(path.read_text("utf-8").splitlines()) for path in EXAMPLES.glob("*.py")}
    assert set(sizes) == {"mini_client.py", "rename_clients.py", "watch_group.py"}
    assert {name: size for name, size in sizes.items() if size > LONGEST} == {}


def test_the_mini_client_lists_groups(
    coordinator: StartCoordinator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    address = coordinator().address
    with Wire(address) as wire:
        become_stable(wire, "billing")
        monkeypatch.setattr(sys, "argv", ["mini_client.py", address])
        runpy.run_path(str(EXAMPLES / "mini_client.py"), run_name="__main__")
    assert capsys.readouterr().out == "billing Stable\n"


def test_the_mini_client_awaits_each_call_by_itself(coordinator: StartCoordinator) -> None:
    client_class = load("mini_client")["Client"]
    server = coordinator()

    async def run() -> None:
        client = await client_class.open(server.address)
        requests = [kw.FindCoordinatorRequest(coordinator_keys=[f"g{n}"]) for n in range(50)]
        answers = await asyncio.gather(*(client.call(request) for request in requests))
        assert [answer.coordinators[0].key for answer in answers] == [f"g{n}" for n in range(50)]
        with pytest.raises(kw.EncodeError):
            await client.call(join_request("g", group_instance_id="x" * 40_000), 5)
        server.stop()
        with pytest.raises((ConnectionError, kw.ProtocolError)):
            await client.call(kw.ListGroupsRequest())
        await client.reading

    asyncio.run(run())


def test_the_mini_client_refuses_calls_on_a_broken_connection(coordinator: StartCoordinator) -> None:
    client_class = load("mini_client")["Client"]

    async def run() -> None:
        client = await client_class.open(coordinator().address)
        client.reader.set_exception(ConnectionResetError("by the peer"))
        await client.reading
        with pytest.raises(ConnectionResetError):
            await client.call(kw.ListGroupsRequest())

    asyncio.run(run())


def test_the_watcher_yields_a_line_for_each_change(coordinator: StartCoordinator) -> None:
    address = coordinator().address
    lines = load("watch_group")["watch"](address, "billing", 0)
    assert next(lines) == "billing: Dead, 0 members"
    with Wire(address, client_id="c1") as wire:
        beat = become_stable(wire, "billing")
        assert next(lines) == "billing: Stable, 1 members c1@127.0.0.1"
        wire.call(kw.LeaveGroupRequest(group_id="billing", member_id=beat.member_id), 0)
        assert next(lines) == "billing: Empty, 0 members"
    lines.close()


def test_the_proxy_renames_clients(coordinator: StartCoordinator) -> None:
    address = coordinator().address
    client_class, serve = load("mini_client")["Client"], load("rename_clients")["serve"]

    async def run() -> None:
        proxy = await serve("127.0.0.1:0", address, "tenant-1.")
        host, port = proxy.sockets[0].getsockname()[:2]
        client = await client_class.open(f"{host}:{port}", "c1")
        beats = [client.call(kw.HeartbeatRequest(group_id="g", member_id="m")) for _ in range(20)]
        joined = await client.call(join_request("g"), 3)  # the last version that needs no member id
        assert joined.member_id.startswith("tenant-1.c1-")
        assert {answer.error_code for answer in await asyncio.gather(*beats)} == {25}  # UNKNOWN_MEMBER_ID
        client.writer.close()
        await client.reading
        proxy.close()

    asyncio.run(run())
