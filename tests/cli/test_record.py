"""`kcoord record` as a user runs it: a process, its line, its signals, its counters, and its errors."""

from __future__ import annotations

import json
import re
import resource
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme

import kcoord_wire as kw
from kcoord_wire.coordinator import Coordinator
from kcoord_wire.recorder.recording import Recorded, read_recording, recording_files
from tests.support.processes import Process
from tests.support.waiting import eventually
from tests.support.wire import Wire

SOON = 30
COMMAND = [sys.executable, "-m", "kcoord_wire", "record"]
READY = r"^kcoord records on (\S+) what goes to (\S+), in (.+)\n$"
HEARTBEAT = kw.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")

Start = Callable[..., "Recording"]

pytestmark = pytest.mark.slow


def fill_the_disk() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))


class Recording(Process):
    """The command at work.

    :ivar address: from its line
    """

    def __init__(self, *arguments: str, before: Callable[[], None] | None = None) -> None:
        super().__init__([*COMMAND, *arguments], ready=READY, before=before)
        self.address = self.ready[1]


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Start]:
    """Starts the command, on a free port and into the test's folder unless the arguments say otherwise."""
    started: list[Recording] = []

    def start(*arguments: str, **options: Callable[[], None]) -> Recording:
        free = ("--listen", "127.0.0.1:0", "--out", str(tmp_path / "out"))
        started.append(Recording(*free, *arguments, **options))
        return started[-1]

    yield start
    for recording in started:
        recording.kill()


@pytest.fixture
def broker() -> Iterator[Coordinator]:
    with Coordinator({"orders": 3}) as running:
        yield running


def recorded(tmp_path: Path) -> list[Recorded]:
    found = [piece for file in recording_files(tmp_path / "out") for piece in read_recording(file)]
    assert all(isinstance(piece, Recorded) for piece in found)
    return [piece for piece in found if isinstance(piece, Recorded)]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_signals_end_it_in_order(record: Start, broker: Coordinator, tmp_path: Path, number: int, status: int) -> None:
    recording = record("--upstream", broker.address)
    with Wire(recording.address) as wire:
        (known,) = wire.call(kw.MetadataRequest(topics=None), 12).brokers
        assert f"{known.host}:{known.port}" == recording.address
        wire.call(HEARTBEAT, 4)
        ended, out, errors = recording.end(number)
        assert wire.is_closed_by_peer()
    assert (ended, out) == (status, "")
    folder = tmp_path / "out"
    kept = f"kcoord: the recording is in {folder}: kcoord analyze {folder}\n" if number == signal.SIGINT else ""
    assert errors.startswith(kept)
    assert re.fullmatch(
        r"kcoord: \d+ s: 1 connections \(0 open\), 2 requests, 2 responses, 0\.0 MB; recorded 6 in 0\.0 MB\n",
        errors.removeprefix(kept),
    )
    found = [r.direction for r in recorded(tmp_path)]
    assert found == ["opened", "request", "response", "request", "response", "closed"]


def test_a_killed_recorder_leaves_whole_records(record: Start, broker: Coordinator, tmp_path: Path) -> None:
    recording = record("--upstream", broker.address)
    with Wire(recording.address) as wire:
        for _ in range(500):
            wire.call(HEARTBEAT, 4)
        said = "what was recorded does not reach the file"
        eventually(lambda: len(recorded(tmp_path)), said, until=lambda count: count >= 1_001, every=0.05)
        recording.kill()
    assert len(recorded(tmp_path)) >= 1_001
    record("--upstream", broker.address).end()
    assert [path.name for path in recording_files(tmp_path / "out")] == ["frames-000001.kcrec", "frames-000002.kcrec"]


def test_everything_at_once(record: Start, tmp_path: Path) -> None:
    """Brokers behind TLS that demand a certificate, small files, counters, durable writes, nothing rewritten."""
    authority = trustme.CA()
    theirs = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(theirs)
    authority.configure_trust(theirs)
    theirs.verify_mode = ssl.CERT_REQUIRED
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate = authority.issue_cert("client")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    files = {name: str(tmp_path / f"{name}.pem") for name in ("ca", "cert", "key")}
    with Coordinator({"orders": 3}, tls=theirs) as broker:
        recording = record(
            *("--upstream", broker.address, "--upstream-tls", "--upstream-ca", files["ca"]),
            *("--upstream-cert", files["cert"], "--upstream-key", files["key"]),
            *("--max-file", "1K", "--fsync", "--progress", "0.2", "--no-rewrite", "--apis", "all", "--max-frame", "1M"),
            *("--format", "json"),
        )
        with Wire(recording.address) as wire:
            (known,) = wire.call(kw.MetadataRequest(topics=None), 12).brokers
            assert known.port == broker.port
            for _ in range(20):
                wire.call(HEARTBEAT, 4)
            time.sleep(1.5)  # several times --progress
        status, _, errors = recording.end()
    assert status == 0
    counters = [line for line in map(json.loads, errors.splitlines()) if line["event"] == "counters"]
    assert len(counters) >= 2
    assert (counters[-1]["connections"], counters[-1]["requests"], counters[-1]["cut"]) == (1, 21, 0)
    assert len(recording_files(tmp_path / "out")) > 2
    assert len([r for r in recorded(tmp_path) if r.direction in ("request", "response")]) == 42


def test_insecure_tls_on_demand(record: Start) -> None:
    theirs = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("elsewhere.example").configure_cert(theirs)
    with Coordinator({"orders": 3}, tls=theirs) as broker:
        recording = record("--upstream", broker.address, "--upstream-tls", "--upstream-insecure")
        with Wire(recording.address) as wire:
            wire.call(HEARTBEAT, 4)
        assert recording.end()[0] == 0


def test_a_failed_disk_is_reported_at_the_end(record: Start, broker: Coordinator, tmp_path: Path) -> None:
    recording = record("--upstream", broker.address, before=fill_the_disk)
    with Wire(recording.address) as wire:
        for _ in range(20):
            wire.call(HEARTBEAT, 4)
            time.sleep(0.01)
        wire.call(kw.MetadataRequest(topics=None), 12)
    status, _, errors = recording.end()
    assert status == 1
    assert re.search(r"ERROR nothing is recorded any more: .*/out: File too large", errors)
    assert re.search(r"recorded \d+ in 0\.0 MB, \d+ not recorded", errors)
    assert errors.endswith("/out: the recording is not complete: File too large\n")
    assert len(recorded(tmp_path)) >= 2


def test_listening_on_all_addresses_warns(record: Start, broker: Coordinator) -> None:
    recording = record("--upstream", broker.address, "--listen", "0.0.0.0:0")
    _, _, errors = recording.end()
    assert "0.0.0.0 is reachable from other machines" in errors


def test_an_unreachable_broker_is_logged(record: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    recording = record("--upstream", f"127.0.0.1:{port}")
    with Wire(recording.address) as wire:
        assert wire.is_closed_by_peer()
    status, _, errors = recording.end()
    assert status == 0
    assert re.search(rf"WARNING cannot reach 127\.0\.0\.1:{port} for 127\.0\.0\.1:\d+: ", errors)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--listen", "no-such-host.invalid:0"), "--listen no-such-host.invalid:0: "),
        (("--listen", "127.0.0.1:0", "--out", "/dev/null"), "/dev/null: File exists"),
        (("--listen", "TAKEN"), "in use"),
    ],
)
def test_an_unusable_port_or_folder_is_an_error(
    arguments: tuple[str, ...], text: str, broker: Coordinator, tmp_path: Path
) -> None:
    given = [broker.address if each == "TAKEN" else each for each in arguments]
    done = subprocess.run(
        [*COMMAND, "--upstream", "k:1", "--out", str(tmp_path), *given],
        capture_output=True,
        text=True,
        timeout=SOON,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("kcoord: ")
    assert text in done.stderr
    assert done.stderr.count("\n") == 1
