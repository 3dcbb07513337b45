"""The client of real servers: what ZooKeeper's and kazoo's users were surprised by, one test each."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time
from typing import Any

import pytest
from kazoo.client import KazooClient

from kcoord_wire.extras import MissingLibraryError
from kcoord_wire.zookeeper.ensemble import Ensemble
from kcoord_wire.zookeeper.registry import ZooKeeperRegistry, ZooKeeperUnreachableError
from kcoord_wire.zookeeper.requests import (
    Ask,
    Create,
    Fired,
    Multi,
    Outcome,
    Read,
    ReadChildren,
    Replied,
    SessionChanged,
    SessionState,
    SetData,
)
from tests.support.waiting import eventually
from tests.support.zookeeper import SECONDS, RealDriver, chroot_of_its_own

SUSPENDED = SessionChanged(SessionState.SUSPENDED)
EXPIRED = SessionChanged(SessionState.EXPIRED)


def test_suspended_comes_in_time_and_expired_does_not(real_driver: RealDriver) -> None:
    """kazoo has no timer for its session: without servers there is no word of its end, however long ago that is."""
    client = real_driver.connect(session_timeout_ms=2_000)
    client.ask(Create("/mine", is_ephemeral=True))
    assert client.proxy is not None
    client.proxy.hold()
    held_at = time.monotonic()
    client.wait_for(SessionState.SUSPENDED)
    other = real_driver.connect()
    eventually(lambda: other.ask(Read("/mine")).value is None)
    real_driver.until(lambda: time.monotonic() - held_at > 5.0)
    assert EXPIRED not in client.seen, "the session has ended at the server"
    client.proxy.heal()
    client.wait_for(SessionState.EXPIRED)
    client.wait_for(SessionState.CONNECTED)


def test_a_create_that_was_lost_but_landed_is_ones_own(real_driver: RealDriver) -> None:
    """KAFKA-7165, ZOOKEEPER-2985: the retry is refused, and the node's owner is the session that made it."""
    client = real_driver.connect()
    assert client.proxy is not None
    client.proxy.swallow_answers()
    lost = client.start(Create("/coordinator", b"1", is_ephemeral=True))
    other = real_driver.connect()
    while other.ask(Read("/coordinator")).value is None:
        pass
    real_driver.cut(client)
    assert client.reply(lost).outcome is Outcome.CONNECTION_LOSS
    client.proxy.heal()
    session = client.wait_for(SessionState.CONNECTED).session_id
    assert client.ask(Create("/coordinator", b"1", is_ephemeral=True)).outcome is Outcome.NODE_EXISTS
    assert client.ask(Read("/coordinator")).value.ephemeral_owner == session


def test_an_ephemeral_of_the_former_session_outlives_its_client(real_driver: RealDriver) -> None:
    """The client comes back with another session while the server still keeps the one before."""
    former = real_driver.connect()
    former.ask(Create("/coordinator", b"1", is_ephemeral=True))
    owner = former.ask(Read("/coordinator")).value.ephemeral_owner
    real_driver.cut(former)
    again = real_driver.connect()
    assert again.ask(Create("/coordinator", b"1", is_ephemeral=True)).outcome is Outcome.NODE_EXISTS
    node = again.ask(Read("/coordinator", watch=True)).value
    assert (node.data, node.ephemeral_owner) == (b"1", owner)
    assert again.registry.session[0] != owner


def test_a_request_never_uses_a_later_connection(real_driver: RealDriver) -> None:
    """The loop is busy, or the process was paused, while kazoo connects anew: the machine has had no event of it, so
    what it asks now was meant for the connection before."""
    client = real_driver.connect()
    first, changes = client.registry.session, client.registry._client.changes
    real_driver.cut(client)
    real_driver.heal(client)
    registry = client.registry  # the loop does not run here
    eventually(lambda: registry.session is not None and registry._client.changes != changes)
    token = client.start(Create("/late"))
    client.reply(token)
    again = SessionChanged(SessionState.CONNECTED, first[0], 6_000)
    assert client.seen == [SUSPENDED, again, Replied(token, Outcome.CONNECTION_LOSS)]
    assert client.ask(Read("/late")).value is None
    assert client.seen.count(SUSPENDED) == 1


def test_events_are_delivered_in_the_loop(zookeeper: Ensemble) -> None:
    async def run() -> list[tuple[str, bool]]:
        seen: list[tuple[str, bool]] = []
        done = asyncio.Event()
        loop = asyncio.get_running_loop()

        def deliver(event: Any) -> None:
            is_here = asyncio.get_running_loop() is loop and threading.current_thread() is threading.main_thread()
            seen.append((type(event).__name__, is_here))
            if len(seen) == 4:
                done.set()

        registry = ZooKeeperRegistry(zookeeper.connect + chroot_of_its_own(), deliver)
        await registry.start()
        registry.ask(Ask(1, ReadChildren("/", watch=True)))
        registry.ask(Ask(2, Create("/a")))
        assert len(seen) == 1, "never within the call"
        await asyncio.wait_for(done.wait(), SECONDS)
        await registry.close()
        return seen

    assert asyncio.run(run()) == [(name, True) for name in ("SessionChanged", "Replied", "Fired", "Replied")]


def test_the_granted_timeout_is_the_servers(real_driver: RealDriver) -> None:
    client = real_driver.connect(session_timeout_ms=100)
    assert client.connected.timeout_ms == 1_000


def test_a_closed_registry_ends_its_session_at_once(real_driver: RealDriver) -> None:
    leaving, staying = real_driver.connect(session_timeout_ms=60_000), real_driver.connect()
    leaving.ask(Create("/mine", is_ephemeral=True))
    assert staying.ask(Read("/mine")).value is not None
    real_driver.close(leaving)
    assert staying.ask(Read("/mine")).value is None


def test_nodes_of_a_digest_user_are_closed_to_others(real_driver: RealDriver) -> None:
    owner = real_driver.connect(credentials=("kafka", "secret:with a colon"))
    same = real_driver.connect(credentials=("kafka", "secret:with a colon"))
    others = [real_driver.connect(), real_driver.connect(credentials=("kafka", "guessed"))]
    owner.ask(Create("/a", b"1"))
    owner.ask(Multi((Create("/b", b"1"), Create("/a/c"))))
    for path in ("/a", "/b"):
        assert same.ask(SetData(path, b"2")).outcome is Outcome.OK
        for other in others:
            for request in (Read(path), ReadChildren(path), SetData(path, b"3"), Create(f"{path}/x")):
                assert other.ask(request).outcome is Outcome.NO_AUTH, request
            assert other.ask(Multi((Create("/mine"), SetData(path, b"3")))).failed in (0, 1)
    real_driver.cut(owner)
    owner.wait_for(SessionState.SUSPENDED)
    real_driver.heal(owner)
    owner.wait_for(SessionState.CONNECTED)
    assert owner.ask(Read("/a")).value.data == b"2", "it has said who it is on the new connection, too"


@pytest.mark.parametrize("listens", [True, False], ids=["silent", "refusing"])
def test_a_start_without_servers_ends_with_a_clear_error(listens: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        if not listens:
            server.close()
        registry = ZooKeeperRegistry(address, lambda event: None, session_timeout_ms=1_000)
        with pytest.raises(ZooKeeperUnreachableError, match=f"^no ZooKeeper answers at {address} within 0.5 s$"):
            asyncio.run(registry.start(0.5))


def test_bad_addresses_and_a_missing_kazoo_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for hosts in ("127.0.0.1:port", ":2181", "h:1,", "h:99999"):
        with pytest.raises(ValueError, match=f"'{hosts}' is not HOST:PORT"):
            ZooKeeperRegistry(hosts, lambda event: None)
    monkeypatch.setitem(sys.modules, "kazoo", None)
    with pytest.raises(MissingLibraryError, match=r"needs kazoo: pip install 'kcoord_wire\[zookeeper\]'"):
        ZooKeeperRegistry("127.0.0.1:2181", lambda event: None)


@pytest.mark.parametrize("creates", [True, False])
def test_a_chroot_is_created_with_its_parents_or_not(zookeeper: Ensemble, creates: bool) -> None:
    chroot = f"{chroot_of_its_own()}/deep/er"

    async def ask(connect: str, request: Create | Read, *, creates_chroot: bool) -> Replied:
        replies: asyncio.Queue[Replied] = asyncio.Queue()

        def deliver(event: Any) -> None:
            if isinstance(event, Replied):
                replies.put_nowait(event)

        registry = ZooKeeperRegistry(connect, deliver, creates_chroot=creates_chroot)
        await registry.start(SECONDS)
        registry.ask(Ask(1, request))
        try:
            return await asyncio.wait_for(replies.get(), SECONDS)
        finally:
            await registry.close()

    created = asyncio.run(ask(zookeeper.connect + chroot, Create("/node"), creates_chroot=creates))
    assert created.outcome is (Outcome.OK if creates else Outcome.NO_NODE)
    there = asyncio.run(ask(zookeeper.connect, Read(chroot.partition("/deep")[0]), creates_chroot=False))
    assert (there.value is not None) == creates


def test_a_change_while_a_watch_is_set_fires_it(real_driver: RealDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch is set by one request and the node read by the next; another client writes between them."""
    client = real_driver.connect()
    client.ask(Create("/n"))
    other = KazooClient(client.registry._hosts)
    other.start(SECONDS)
    set_watch = client.registry._client.exists_async

    def set_watch_and_change(*arguments: Any) -> Any:
        result = set_watch(*arguments)
        result.get(timeout=SECONDS)
        other.set("/n", b"new")
        return result

    monkeypatch.setattr(client.registry._client, "exists_async", set_watch_and_change)
    reply = client.ask(Read("/n", watch=True))
    assert reply.value.data == b"new"
    real_driver.until(lambda: Fired("/n") in client.seen)
    assert client.seen.index(reply) < client.seen.index(Fired("/n"))
    other.stop()
    other.close()
