"""Measures what the recorder costs, next to no proxy and to one that only moves bytes.

Server, proxies and load are processes of their own; the server is `kcoord serve`. Round trips: one client sends a
Heartbeat, waits for the answer, and so on; the three ways take turns of a few hundred, so that what else the machine
does hits them alike. Throughput: 50 connections, each with 32 Heartbeats on their way at any time; the load only counts
bytes, so that it costs little. Writing and reading the format: in this process, frames of 60 bytes.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import kcoord_wire as kw
from kcoord_wire.recorder.recording import RecordingWriter, read_recording, recording_files, scan_recording
from tests.support.processes import Process

from ..runner import Bench, conditions, table
from ..scale.servers import cpu_seconds

CONNECTIONS, DEPTH = 50, 32
TURN = 250  # round trips
ROUNDS = 60  # of that many round trips, on each way
SECONDS = 3.0  # of throughput, three times each way
RECORD = (
    "import sys; from kcoord_wire.recorder.proxy import Recorder; "
    "r = Recorder(sys.argv[1], folder=sys.argv[2]).start(); print(r.address, flush=True); r.wait()"
)


class Way(Process):
    """Where clients connect, and the process that takes them."""

    def __init__(self, *command: str) -> None:
        super().__init__([sys.executable, *command], ready=r"127\.0\.0\.1:\d+")
        self.address = self.ready[0]

    def processor_seconds(self) -> float:
        """What the process has used so far."""
        return cpu_seconds(self.pid)


def heartbeat() -> bytes:
    request = kw.HeartbeatRequest(group_id="billing", generation_id=7, member_id="consumer-1-0b6f4f6e-2a0c-4d2b")
    return kw.frame(kw.encode_request(request, 4, correlation_id=1, client_id="consumer-1"))


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    client = socket.create_connection((host, int(port)), 30)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def round_trips(client: socket.socket, request: bytes, count: int) -> list[int]:
    """Nanoseconds of each."""
    clock, taken = time.perf_counter_ns, []
    for _ in range(count):
        began = clock()
        client.sendall(request)
        client.recv(4096)
        taken.append(clock() - began)
    return taken


def latencies(ways: dict[str, Way], rounds: int) -> dict[str, dict[str, float]]:
    """Of each way p50 and p99 in microseconds, and the median of what it adds to the direct one, turn by turn."""
    request = heartbeat()
    with ExitStack() as stack:
        clients = {name: stack.enter_context(connect(way.address)) for name, way in ways.items()}
        turns: dict[str, list[list[int]]] = {name: [] for name in ways}
        for client in clients.values():
            round_trips(client, request, 4 * TURN)
        for _ in range(rounds):
            for name, client in clients.items():
                turns[name].append(sorted(round_trips(client, request, TURN)))
    figures = {}
    for name, of_way in turns.items():
        every = sorted(value for turn in of_way for value in turn)
        added = [turn[TURN // 2] - direct[TURN // 2] for turn, direct in zip(of_way, turns["direct"], strict=True)]
        figures[name] = {
            "p50_us": every[len(every) // 2] / 1e3,
            "p99_us": every[len(every) * 99 // 100] / 1e3,
            "adds_p50_us": median(added) / 1e3,
        }
    return figures


def throughput(way: Way, seconds: float) -> tuple[float, float]:
    """Many connections, each with many on their way: round trips a second, and what one costs the way's process in
    microseconds of processor time."""
    request, address = heartbeat(), way.address
    with ExitStack() as stack:
        probe = stack.enter_context(connect(address))
        probe.sendall(request)
        answer = len(probe.recv(4096))
        ready = stack.enter_context(selectors.DefaultSelector())
        for _ in range(CONNECTIONS):
            client = stack.enter_context(connect(address))
            client.sendall(request * DEPTH)
            client.setblocking(False)
            ready.register(client, selectors.EVENT_READ, [0])
        done, used, began = 0, way.processor_seconds(), time.perf_counter()
        until = began + seconds
        while (now := time.perf_counter()) < until:
            for key, _ in ready.select(1):
                key.data[0] += len(key.fileobj.recv(1 << 16))  # type: ignore[union-attr]
                answered, key.data[0] = divmod(key.data[0], answer)
                done += answered
                key.fileobj.sendall(request * answered)  # type: ignore[union-attr]
        return done / (now - began), (way.processor_seconds() - used) / done * 1e6


def format_speed(count: int = 500_000) -> dict[str, float]:
    """Records a second of processor time, written and read."""
    body = os.urandom(60)

    def rate(work: Callable[[], object]) -> float:
        began = time.process_time()
        work()
        return count / (time.process_time() - began)

    with tempfile.TemporaryDirectory() as folder:

        def write() -> None:
            with RecordingWriter(folder) as writer:
                for number in range(count):
                    writer.frame(1, "request", body, number)

        figures = {"write": rate(write)}
        (file,) = recording_files(folder)
        figures["read"] = rate(lambda: sum(1 for _ in read_recording(file)))
        figures["scan"] = rate(lambda: scan_recording(file, 0, 2 * count))
    return figures


def measure(rounds: int, seconds: float) -> dict[str, Any]:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        direct = stack.enter_context(Way("-m", "kcoord_wire", "serve", "--port", "0"))
        ways = {
            "direct": direct,
            "moves bytes": stack.enter_context(Way("-m", "tests.bench.record.forward", direct.address)),
            "recorder": stack.enter_context(Way("-c", RECORD, direct.address, folder)),
        }
        figures: dict[str, Any] = {"round trips": latencies(ways, rounds)}
        runs = [{name: throughput(way, seconds) for name, way in ways.items()} for _ in range(3)]
        for name, each in figures["round trips"].items():
            each["per_second"] = median(run[name][0] for run in runs)
            each["processor_us"] = median(run[name][1] for run in runs)
        damaged = [
            piece for file in recording_files(folder) for piece in read_recording(file) if not hasattr(piece, "body")
        ]
        assert all(piece.at_end for piece in damaged), damaged  # type: ignore[union-attr]
    figures["format"] = format_speed()
    return figures


def markdown(result: dict[str, Any]) -> str:
    trips, speed = result["round trips"], result["format"]
    heads = ["Heartbeats", "p50, us", "p99, us", "adds to p50, us", f"a second, {CONNECTIONS} connections pipelining"]
    rows = []
    for name, each in trips.items():
        adds = "" if name == "direct" else f"{each['adds_p50_us']:.0f}"
        cells = [name, f"{each['p50_us']:.0f}", f"{each['p99_us']:.0f}", adds, f"{each['per_second']:,.0f}"]
        rows.append([*cells, f"{each['processor_us']:.1f}"])
    said = (
        f"The format, frames of 60 bytes, a second of processor time: {speed['write']:,.0f} written, "
        f"{speed['read']:,.0f} read, {speed['scan']:,.0f} scanned."
    )
    lines = table([*heads, "of which a process takes, us each"], rows)
    return "\n".join([conditions(result), "", *lines, "", said, ""])


BENCH = Bench(
    about="`kcoord record` next to no proxy and to one that only forwards bytes.",
    results=Path(__file__).parent / "results",
    measure=lambda options: measure(1, 0.1) if options.quick else measure(ROUNDS, SECONDS),
    markdown=markdown,
    quick=True,
    title="The recorder",
    command="make bench",
    summary=markdown,
)
