"""`kcoord serve` as a user runs it: a process, its one line, its log, its signals, and its errors."""

from __future__ import annotations

import inspect
import json
import re
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

import kcoord_wire as kw
from kcoord_wire.cli.serve import Serve
from kcoord_wire.coordinator.core.apis import Kind, Operation
from kcoord_wire.coordinator.fault_injection import Faults
from kcoord_wire.coordinator.security.authentication import Credential, Users
from kcoord_wire.coordinator.security.permissions import Permissions
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.group_client import (
    SOON,
    VERSIONS,
    become_stable,
    commit,
    committed,
    join_request,
)
from tests.support.processes import Process
from tests.support.wire import Wire

COMMAND = [sys.executable, "-m", "kcoord_wire", "serve"]
READY = r"^kcoord serves on (\S+), groups (in memory|in .+?)(?:, metrics on port (\d+))?\n$"
AT_ONCE = ("--config", "group.initial.rebalance.delay.ms=0")

Start = Callable[..., "Served"]
Refused = Callable[..., tuple[int, str]]


class Served(Process):
    """The command at work.

    :ivar address: from its line
    :ivar metrics_port: likewise, None if there is none
    """

    def __init__(self, *arguments: str) -> None:
        super().__init__([*COMMAND, "--port", "0", *arguments], ready=READY)
        self.address = self.ready[1]
        self.metrics_port = self.ready[3] and int(self.ready[3])


@pytest.fixture
def serve() -> Iterator[Start]:
    started: list[Served] = []

    def start(*arguments: str) -> Served:
        started.append(Served(*arguments))
        return started[-1]

    yield start
    for served in started:
        served.kill()


@pytest.fixture
def refused(kcoord: Callable[..., tuple[int, str, str]]) -> Refused:
    """Run the command in this process, with arguments that it refuses: status and stderr."""

    def run(*arguments: str) -> tuple[int, str]:
        status, out, errors = kcoord("serve", *arguments)
        assert out == ""
        return status, errors

    return run


def test_a_group_and_its_log(serve: Start) -> None:
    served = serve("--topics", "orders:12,payments:8", "--topics", "refunds:1", "--node-id", "101", *AT_ONCE)
    with Wire(served.address) as wire:
        cluster = wire.call(kw.MetadataRequest(topics=None), 12)
        assert (cluster.controller_id, [broker.node_id for broker in cluster.brokers]) == (101, [101])
        assert {t.name: len(t.partitions) for t in cluster.topics} == {"orders": 12, "payments": 8, "refunds": 1}
        become_stable(wire, "billing")
    status, out, log = served.end()
    assert (status, out) == (0, "")
    lines = log.splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO group billing: ", line) for line in lines)
    assert "stable at generation 1" in lines[-1]


def test_the_log_as_json(serve: Start) -> None:
    served = serve("--topics", "orders:12", "--log-format", "json", *AT_ONCE)
    with Wire(served.address) as wire:
        become_stable(wire, "billing")
        wire.send_raw(b"GET / HTTP/1.1\r\n\r\n")
        assert wire.is_closed_by_peer()
    events: list[dict[str, Any]] = [json.loads(line) for line in served.end()[2].splitlines()]
    ended = [event for event in events if event.get("phase") == "ended"]
    assert [(event["group"], event["outcome"], event["level"]) for event in ended] == [("billing", "stable", "info")]
    assert [event["text"] for event in events if event["event"] == "log"] == [
        "closed the connection from 127.0.0.1: malformed: a frame of 1195725856 bytes, which looks like plain text"
    ]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_signals_end_it_in_order(serve: Start, tmp_path: Path, number: int, status: int) -> None:
    served = serve("--topics", "orders:12", "--data-dir", str(tmp_path), *AT_ONCE)
    with Wire(served.address) as wire, Wire(served.address) as other:
        assert commit(wire, "simple", 7) == 0
        become_stable(wire, "g")
        member_id = other.call(join_request("g"), 9).member_id
        parked = other.send(join_request("g", member_id), 9)
        assert other.send(VERSIONS, 3)  # so that the one before has come
        while wire.call(kw.DescribeGroupsRequest(groups=["g"]), 5).groups[0].group_state != "PreparingRebalance":
            pass
        ended, out, errors = served.end(number)
        assert (ended, out) == (status, "")
        kept = f"kcoord: groups, offsets and topics are kept in {tmp_path}\n"
        assert (kept in errors) == (number == signal.SIGINT)
        assert other.receive(parked).error_code == 16
    with Wire(serve("--topics", "orders:12", "--data-dir", str(tmp_path)).address) as wire:
        assert committed(wire, "simple") == 7


def test_metrics_over_http(serve: Start) -> None:
    served = serve("--metrics-port", "0", "--auto-create", "3")
    assert served.metrics_port is not None
    with Wire(served.address) as wire:
        asked = kw.MetadataRequest(topics=[kw.MetadataRequestTopic(name="new")], allow_auto_topic_creation=True)
        assert wire.call(asked, 9).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert len(wire.call(asked, 9).topics[0].partitions) == 3
    with socket.create_connection(("127.0.0.1", served.metrics_port), SOON) as scrape:
        scrape.sendall(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
        text = b"".join(iter(lambda: scrape.recv(65536), b"")).decode()
    assert 'kcoord_requests_total{api="Metadata",error="UNKNOWN_TOPIC_OR_PARTITION"} 1.0' in text
    assert 'kcoord_requests_total{api="Metadata",error="NONE"} 1.0' in text
    assert served.end()[0] == 0


def test_tls_users_permissions_and_faults(serve: Start, tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    (tmp_path / "users.toml").write_text('[users.alice]\npassword = "secret"\n')
    (tmp_path / "permissions.toml").write_text(
        '[[allow]]\nprincipals = ["User:alice"]\ngroups = ["billing"]\noperations = ["all"]\n'
    )
    (tmp_path / "faults.toml").write_text('[[fault]]\napi = "Heartbeat"\naction = "error"\nerror = "NOT_COORDINATOR"\n')
    files = {"tls-cert": "cert.pem", "tls-key": "key.pem", "sasl-users": "users.toml"}
    files |= {"permissions": "permissions.toml", "faults": "faults.toml"}
    served = serve(*(part for option, name in files.items() for part in (f"--{option}", str(tmp_path / name))))
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    with Wire(served.address, ssl_context=trust) as wire:
        assert wire.call(kw.SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
        assert wire.call(kw.SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret"), 2).error_code == 0
        heartbeat = kw.HeartbeatRequest(group_id="billing", generation_id=1, member_id="m")
        assert wire.call(heartbeat, 4).error_code == 16
        assert wire.call(kw.FindCoordinatorRequest(key="billing"), 2).error_code == 0
        assert wire.call(kw.FindCoordinatorRequest(key="payroll"), 2).error_code == 30
    assert served.end()[0] == 0


def test_a_port_or_folder_in_use_is_an_error(serve: Start, refused: Refused, tmp_path: Path) -> None:
    served = serve("--data-dir", str(tmp_path))
    port = served.address.rpartition(":")[2]
    status, errors = refused("--port", port)
    assert (status, errors.count("\n")) == (1, 1)
    assert "in use" in errors
    status, errors = refused("--port", "0", "--data-dir", str(tmp_path))
    assert (status, errors.count("\n")) == (1, 1)
    assert "is in use by another coordinator" in errors


def test_a_damaged_log_is_named(serve: Start, refused: Refused, tmp_path: Path) -> None:
    served = serve("--topics", "orders:12", "--data-dir", str(tmp_path))
    with Wire(served.address) as wire:
        for offset in range(3):
            assert commit(wire, "simple", offset) == 0
    served.end()
    segment = next(tmp_path.glob("__consumer_offsets*/*.log"))
    data = bytearray(segment.read_bytes())
    data[70] ^= 0xFF
    segment.write_bytes(data)
    status, errors = refused("--port", "0", "--data-dir", str(tmp_path))
    assert (status, errors.count("\n")) == (1, 1)
    assert f"{tmp_path}: {segment.name} at byte " in errors
    assert "nothing was changed" in errors


def test_a_torn_end_is_told(serve: Start, tmp_path: Path) -> None:
    served = serve("--topics", "orders:12", "--data-dir", str(tmp_path))
    with Wire(served.address) as wire:
        for offset in range(3):
            assert commit(wire, "simple", offset) == 0
    served.end()
    segment = next(tmp_path.glob("__consumer_offsets*/*.log"))
    with segment.open("r+b") as file:
        file.truncate(segment.stat().st_size - 1)
    served = serve("--topics", "orders:12", "--data-dir", str(tmp_path))
    with Wire(served.address) as wire:
        assert committed(wire, "simple") == 1
    assert re.search(r"WARNING the log ended in \d+ bytes of a write that a crash had torn", served.end()[2])


def test_the_files_that_the_help_shows_are_taken(tmp_path: Path) -> None:
    blocks = dict(re.findall(r"^--([a-z-]+): .*\n((?:  .*\n)+)", inspect.cleandoc(Serve.__doc__ or ""), re.MULTILINE))
    files = {}
    for option, text in blocks.items():
        files[option] = tmp_path / f"{option}.toml"
        files[option].write_text(text)
    credential = Credential.derive("SCRAM-SHA-512", "secret", 8192)
    users = re.sub(r"salt=.*(?=\")", str(credential), files["sasl-users"].read_text())
    files["sasl-users"].write_text(users)
    assert Users.from_file(files["sasl-users"]).mechanisms == ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
    permissions = Permissions.from_file(files["permissions"])
    assert permissions.allows("User:alice", Operation.READ, Kind.GROUP, "billing-eu")
    assert not permissions.allows("User:alice", Operation.READ, Kind.TOPIC, "secret-plans")
    assert [tally.fault.api for tally in Faults.from_file(files["faults"]).tallies()] == ["Heartbeat", "OffsetCommit"]
