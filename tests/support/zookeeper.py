"""A real ZooKeeper for tests: one node for each test process, and the end of a session at will."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Protocol

import pytest
from kazoo.client import KazooClient

from kcoord_wire.zookeeper.ensemble import Ensemble
from kcoord_wire.zookeeper.memory import MemoryLink, MemoryZooKeeper
from kcoord_wire.zookeeper.registry import ZooKeeperRegistry
from kcoord_wire.zookeeper.requests import Ask, Replied, Request, SessionChanged, SessionState
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import eventually_async

SECONDS = 60.0
SESSION_MS = 6_000
_CHROOTS = itertools.count()
_STEP_MS = 50


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[Ensemble]:
    """A single node."""
    with Ensemble() as ensemble:
        yield ensemble


@pytest.fixture
def real_driver(zookeeper: Ensemble) -> Iterator[RealDriver]:
    with ExitStack() as stack:
        yield RealDriver(zookeeper, stack)


@pytest.fixture(params=["memory", "real"])
def each_driver(request: pytest.FixtureRequest) -> Driver:
    driver: Driver = MemoryDriver() if request.param == "memory" else request.getfixturevalue("real_driver")
    return driver


def chroot_of_its_own() -> str:
    return f"/test-{next(_CHROOTS)}"


def end_session(connect: str, session: tuple[int, bytes] | None) -> None:
    """Let the servers end a session: a second client goes on with it, and closes it."""
    assert session is not None
    second = KazooClient(connect, client_id=session)
    second.start(SECONDS)
    second.stop()
    second.close()


class Client:
    """A registry whose events are collected.

    :ivar seen: the events, oldest first
    :ivar connected: the first of them
    """

    def __init__(self, driver: Driver) -> None:
        self.seen: list[Any] = []
        self.connected: SessionChanged
        self.registry: Any = None
        self.proxy: TcpProxy | None = None
        self._driver = driver
        self._tokens = itertools.count(1)

    def start(self, request: Request) -> int:
        """Ask, and return the token."""
        token = next(self._tokens)
        self.registry.ask(Ask(token, request))
        return token

    def reply(self, token: int) -> Replied:
        """Wait for the answer to `start`, and return it."""
        found: list[Replied] = []
        self._driver.until(
            lambda: found.extend(e for e in self.seen if isinstance(e, Replied) and e.token == token) or found
        )
        return found[0]

    def ask(self, request: Request) -> Replied:
        return self.reply(self.start(request))

    def wait_for(self, state: SessionState) -> SessionChanged:
        """Wait for a change of the session that has not been waited for, and return it."""

        def has_come() -> bool:
            return any(isinstance(event, SessionChanged) and event.state is state for event in self.seen)

        self._driver.until(has_come)
        index = next(i for i, e in enumerate(self.seen) if isinstance(e, SessionChanged) and e.state is state)
        change = self.seen[index]
        del self.seen[: index + 1]
        return change


class Driver(Protocol):
    """Lets time pass for the clients of one of the two registries."""

    @property
    def now(self) -> int:
        """The time, in ms."""

    def connect(self, *, session_timeout_ms: int = SESSION_MS) -> Client:
        """Return another client, connected."""

    def until(self, holds: Callable[[], object]) -> None:
        """Let time pass until something holds."""

    def cut(self, client: Client) -> None:
        """Cut a client off."""

    def heal(self, client: Client) -> None:
        """End `cut` or `hold`."""

    def hold(self, client: Client) -> None:
        """Let nothing through between a client and the server; both do not notice at once."""

    def expire(self, client: Client) -> None:
        """Let the server end a client's session."""


class MemoryDriver:
    def __init__(self) -> None:
        self.zookeeper = MemoryZooKeeper()
        self.now = 0
        self._clients: list[Client] = []

    def connect(self, *, session_timeout_ms: int = SESSION_MS) -> Client:
        client = Client(self)
        client.registry = MemoryLink(self.zookeeper, client.seen.append, timeout_ms=session_timeout_ms)
        self._clients.append(client)
        client.connected = client.wait_for(SessionState.CONNECTED)
        return client

    def until(self, holds: Callable[[], object]) -> None:
        until = self.now + int(SECONDS * 1_000)
        while not holds():
            assert self.now < until
            self.now += _STEP_MS
            for client in self._clients:
                client.registry.advance(self.now)

    def cut(self, client: Client) -> None:
        client.registry.cut(self.now)

    def heal(self, client: Client) -> None:
        client.registry.heal()

    def hold(self, client: Client) -> None:
        client.registry.is_cut = True

    def expire(self, client: Client) -> None:
        self.zookeeper.expire(client.registry.registry.session_id)


class RealDriver:
    """Real clients of a real server, in an event loop that runs in `until`."""

    def __init__(self, ensemble: Ensemble, stack: ExitStack) -> None:
        self._runner = stack.enter_context(asyncio.Runner())
        self._stack = stack
        self._node = ensemble.nodes[0]
        self._chroot = chroot_of_its_own()

    @property
    def address(self) -> str:
        """Of the server, without a proxy, with the chroot of the driver's clients."""
        return self._node.address + self._chroot

    @property
    def now(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def connect(self, *, session_timeout_ms: int = SESSION_MS, **settings: Any) -> Client:
        client = Client(self)
        client.proxy = self._stack.enter_context(TcpProxy(self._node.port))
        address = client.proxy.address + self._chroot
        settings["session_timeout_ms"] = session_timeout_ms
        client.registry = ZooKeeperRegistry(address, client.seen.append, **settings)
        self._runner.run(client.registry.start(SECONDS))
        self._stack.callback(self.close, client)
        client.connected = client.wait_for(SessionState.CONNECTED)
        return client

    def close(self, client: Client) -> None:
        self._runner.run(client.registry.close())

    def until(self, holds: Callable[[], object]) -> None:
        self._runner.run(eventually_async(holds))

    def cut(self, client: Client) -> None:
        assert client.proxy is not None
        client.proxy.cut()

    def heal(self, client: Client) -> None:
        assert client.proxy is not None
        client.proxy.heal()

    def hold(self, client: Client) -> None:
        assert client.proxy is not None
        client.proxy.hold()

    def expire(self, client: Client) -> None:
        end_session(self._node.address, client.registry.session)
