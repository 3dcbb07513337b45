"""Brokers of all kinds behind a recorder, and what was recorded."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import kcoord_wire as kw
from kcoord_wire.coordinator import Coordinator, GroupConfig
from kcoord_wire.recorder.recording import Damage, Recorded, read_recording, recording_files

SOON = 20
HEARTBEAT = kw.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


@contextmanager
def coordinator(**settings: Any) -> Iterator[Coordinator]:
    settings.setdefault("config", GroupConfig(initial_rebalance_delay_ms=0))
    with Coordinator({"orders": 3}, **settings) as running:
        yield running


def recorded(folder: Path) -> list[Recorded]:
    """All records of a folder, which is undamaged."""
    found = [piece for file in recording_files(folder) for piece in read_recording(file)]
    assert not [piece for piece in found if isinstance(piece, Damage)]
    return cast(list[Recorded], found)


def frames(folder: Path, direction: str | None = None) -> list[bytes]:
    """The recorded bodies of requests, responses or both."""
    return [r.body for r in recorded(folder) if r.direction in (direction or "request", direction or "response")]


class FakeBroker:
    """A server of a test: `serve` is called with each connection, in a separate thread."""

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.failures: list[BaseException] = []
        self._serve = serve
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> FakeBroker:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for client in self._open:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
            client.close()
        for thread in self._threads:
            thread.join(SOON)
        assert not self.failures

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.settimeout(SOON)
            self._open.append(client)
            thread = threading.Thread(target=self._run, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self, client: socket.socket) -> None:
        try:
            self._serve(client)
        except OSError:
            pass
        except BaseException as error:
            self.failures.append(error)
        finally:
            client.close()


def answering(answer: Callable[[bytes], bytes | None]) -> Callable[[socket.socket], None]:
    """Serve a connection frame by frame: `answer` takes a body and returns the bytes to send, or None."""

    def serve(client: socket.socket) -> None:
        framer = kw.Framer()
        while chunk := client.recv(1 << 16):
            for body in framer.feed(chunk):
                answered = answer(body)
                if answered is not None:
                    client.sendall(answered)

    return serve


def echo(client: socket.socket) -> None:
    while chunk := client.recv(1 << 16):
        client.sendall(chunk)


def receive(client: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (chunk := client.recv(1 << 16)):
        data += chunk
    return bytes(data)


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), SOON)


class Tap:
    """Passes bytes to a coordinator and keeps them by connection, to compare a recording with."""

    def __init__(self) -> None:
        self.passed: dict[str, dict[str, bytearray]] = {}
        self.target = ""
        self.broker = FakeBroker(self._serve)

    def _serve(self, client: socket.socket) -> None:
        passed = self.passed["{}:{}".format(*client.getpeername())] = {"request": bytearray(), "response": bytearray()}
        with connect(self.target) as server:

            def back() -> None:
                try:
                    while chunk := server.recv(1 << 16):
                        passed["response"] += chunk
                        client.sendall(chunk)
                except OSError:
                    pass

            thread = threading.Thread(target=back, daemon=True)
            thread.start()
            while chunk := client.recv(1 << 16):
                passed["request"] += chunk
                server.sendall(chunk)
            server.shutdown(socket.SHUT_WR)
            thread.join(SOON)
