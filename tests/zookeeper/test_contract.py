"""The contract of registries, on the one in memory and on a client of a real server."""

from __future__ import annotations

import pytest

from kcoord_wire.zookeeper.requests import (
    Check,
    Create,
    Delete,
    Fired,
    Multi,
    Node,
    Outcome,
    Read,
    ReadChildren,
    Replied,
    SessionChanged,
    SessionState,
    SetData,
    can_be_node,
)
from tests.support.zookeeper import Client, Driver


@pytest.fixture
def client(each_driver: Driver) -> Client:
    return each_driver.connect()


def events_of(client: Client) -> list[object]:
    """What has come besides answers."""
    return [event for event in client.seen if not isinstance(event, Replied)]


def test_nodes_are_created_read_changed_and_deleted(client: Client) -> None:
    assert client.ask(Read("/a")).value is None
    assert client.ask(ReadChildren("/a")).value is None
    assert client.ask(Create("/a", b"1")) == Replied(3)
    assert client.ask(Read("/a")).value == Node(b"1", 0)
    assert client.ask(ReadChildren("/a")).value == ()
    assert client.ask(SetData("/a", b"2")).value == 1
    assert client.ask(SetData("/a", b"3", 1)).value == 2
    assert client.ask(Create("/a/y")).outcome is Outcome.OK
    assert client.ask(Create("/a/x")).outcome is Outcome.OK
    assert client.ask(ReadChildren("/a")).value == ("x", "y")
    assert client.ask(Read("/a")).value == Node(b"3", 2), "children do not change a node's version"
    assert client.ask(Delete("/a/x", 0)).outcome is Outcome.OK
    assert client.ask(ReadChildren("/a")).value == ("y",)


def test_requests_that_cannot_be_executed_say_why(client: Client) -> None:
    client.ask(Create("/a"))
    client.ask(Create("/a/b"))
    for request, outcome in (
        (Create("/a"), Outcome.NODE_EXISTS),
        (Create("/x/y"), Outcome.NO_NODE),
        (SetData("/x", b""), Outcome.NO_NODE),
        (SetData("/a", b"", 1), Outcome.BAD_VERSION),
        (Delete("/x"), Outcome.NO_NODE),
        (Delete("/a", 1), Outcome.BAD_VERSION),
        (Delete("/a"), Outcome.NOT_EMPTY),
    ):
        assert client.ask(request).outcome is outcome, request
    assert client.ask(Create("/a/e", is_ephemeral=True)).outcome is Outcome.OK
    assert client.ask(Create("/a/e/child")).outcome is Outcome.OTHER


def test_names_are_refused_before_the_server_would(client: Client) -> None:
    edges = (
        0x1,
        0x1F,
        0x20,
        0x7E,
        0x7F,
        0x9F,
        0xA0,
        0xD7FF,
        0xE000,
        0xF8FF,
        0xF900,
        0xFFEF,
        0xFFF0,
        0xFFFF,
        0x10000,
        0x1F600,
    )
    names = [f"g{chr(point)}" for point in (*edges, 0x10FFFF)] + [".", "..", "...", "g."]
    kept = [name for name in names if client.ask(Create(f"/{name}")).outcome is Outcome.OK]
    assert kept == [name for name in names if can_be_node(name)]
    assert len(kept) == 8
    assert set(client.ask(ReadChildren("/")).value) >= set(kept)


def test_a_multi_is_executed_whole_or_not_at_all(client: Client) -> None:
    client.ask(Create("/epoch", b"0"))
    client.ask(Create("/old"))
    good = (Check("/epoch", 0), Create("/new", b"n"), SetData("/epoch", b"1"), Delete("/old"))
    refused = client.ask(Multi((*good, Check("/epoch", 0))))
    assert (refused.outcome, refused.failed) == (Outcome.BAD_VERSION, 4)
    refused = client.ask(Multi((Create("/new"), Create("/old"), Delete("/epoch"))))
    assert (refused.outcome, refused.failed) == (Outcome.NODE_EXISTS, 1)
    assert client.ask(Read("/new")).value is None
    done = client.ask(Multi(good))
    assert (done.outcome, done.value, done.failed) == (Outcome.OK, None, -1)
    assert [client.ask(Read(path)).value for path in ("/new", "/epoch", "/old")] == [Node(b"n", 0), Node(b"1", 1), None]


def test_answers_come_in_the_order_of_the_asks(client: Client) -> None:
    """Also those that a registry executes in several steps, and more than it has under way at once."""
    asked = [client.start(Create("/n"))]
    for number in range(200):
        asked.append(client.start(Read("/missing", watch=True)))
        asked.append(client.start(ReadChildren("/missing", watch=True)))
        asked.append(client.start(SetData("/n", b"%d" % number)))
        asked.append(client.start(Read("/n")))
    client.reply(asked[-1])
    assert [event.token for event in client.seen] == asked
    values = [reply.value for reply in client.seen if isinstance(reply.value, Node)]
    assert values == [Node(b"%d" % number, number + 1) for number in range(200)], "each request sees those before it"


def test_a_watch_fires_once_for_each_kind_of_change(each_driver: Driver, client: Client) -> None:
    other = each_driver.connect()
    for request, change in (
        (Read("/a", watch=True), Create("/a")),
        (Read("/a", watch=True), SetData("/a", b"x")),
        (ReadChildren("/a", watch=True), Create("/a/b")),
        (ReadChildren("/a", watch=True), Delete("/a/b")),
        (Read("/a", watch=True), Delete("/a")),
        (ReadChildren("/a", watch=True), Create("/a")),
        (ReadChildren("/a", watch=True), Delete("/a")),
    ):
        client.ask(request)
        client.ask(request)
        other.ask(change)
        fired = Fired(request.path, of_children=isinstance(request, ReadChildren))
        each_driver.until(lambda fired=fired: fired in client.seen)
        assert events_of(client) == [fired], change
        client.seen.clear()
    for change in (Create("/a"), SetData("/a", b"y"), Create("/a/b")):
        other.ask(change)
    client.ask(Read("/a"))
    assert events_of(client) == []


def test_changes_that_a_watch_is_not_about_do_not_fire_it(each_driver: Driver, client: Client) -> None:
    other = each_driver.connect()
    other.ask(Create("/a"))
    other.ask(Create("/a/b"))
    client.ask(Read("/a", watch=True))
    client.ask(ReadChildren("/", watch=True))
    client.ask(ReadChildren("/a/b", watch=True))
    for change in (Create("/a/c"), SetData("/a/b", b"x"), Delete("/a/c"), SetData("/a/b", b"y")):
        other.ask(change)
    client.ask(Read("/a/b"))
    assert events_of(client) == []
    other.ask(Create("/z"))
    each_driver.until(lambda: events_of(client))
    assert events_of(client) == [Fired("/", of_children=True)]


def test_a_watch_fires_before_the_new_value_is_read(each_driver: Driver, client: Client) -> None:
    other = each_driver.connect()
    other.ask(Create("/a", b"0"))
    for number in range(1, 20):
        client.seen.clear()
        client.ask(Read("/a", watch=True))
        change = other.start(SetData("/a", b"%d" % number))
        while client.ask(Read("/a")).value.version < number:
            pass
        other.reply(change)
        # A real server reads and writes in several threads: a read under way may return the old value after the event.
        before = client.seen[: client.seen.index(Fired("/a"))]
        assert all(event.value.version == number - 1 for event in before if isinstance(event, Replied))
        versions = [event.value.version for event in client.seen if isinstance(event, Replied)]
        assert versions == [number - 1] * (len(versions) - 1) + [number]


def test_ones_own_change_fires_before_its_answer(client: Client) -> None:
    client.ask(Read("/a", watch=True))
    asked = client.start(Create("/a"))
    client.reply(asked)
    assert client.seen == [Replied(1), Fired("/a"), Replied(2)]


def test_without_a_connection_requests_are_lost(each_driver: Driver, client: Client) -> None:
    client.ask(Create("/a"))
    before = client.ask(Read("/a"))
    client.ask(Read("/a", watch=True))
    each_driver.cut(client)
    client.wait_for(SessionState.SUSPENDED)
    lost = [client.start(SetData("/a", b"x")), client.start(Read("/a"))]
    assert [client.reply(token).outcome for token in lost] == [Outcome.CONNECTION_LOSS] * 2
    each_driver.heal(client)
    client.wait_for(SessionState.CONNECTED)
    assert client.ask(Read("/a")).value == before.value, "a request made without a connection is not executed later"
    client.ask(SetData("/a", b"y"))
    client.ask(Read("/a"))
    assert events_of(client) == [], "the watch ended with the connection"


def test_a_session_goes_on_after_a_short_cut(each_driver: Driver, client: Client) -> None:
    client.ask(Create("/mine", is_ephemeral=True))
    owner = client.ask(Read("/mine")).value.ephemeral_owner
    each_driver.cut(client)
    client.wait_for(SessionState.SUSPENDED)
    each_driver.heal(client)
    again = client.wait_for(SessionState.CONNECTED)
    assert (again.session_id, again.timeout_ms) == (owner, 6_000)
    assert client.ask(Read("/mine")).value.ephemeral_owner == owner


def test_an_expired_session_takes_its_ephemerals(each_driver: Driver, client: Client) -> None:
    other = each_driver.connect()
    client.ask(Create("/mine", is_ephemeral=True))
    first = client.ask(Read("/mine")).value.ephemeral_owner
    other.ask(Read("/mine", watch=True))
    other.ask(ReadChildren("/", watch=True))
    each_driver.expire(client)
    each_driver.until(lambda: len(events_of(other)) == 2)
    assert set(events_of(other)) == {Fired("/mine"), Fired("/", of_children=True)}
    client.wait_for(SessionState.SUSPENDED)
    assert client.wait_for(SessionState.EXPIRED) == SessionChanged(SessionState.EXPIRED)
    again = client.wait_for(SessionState.CONNECTED)
    assert again.session_id not in (0, first)
    assert client.ask(Read("/mine")).value is None
    client.ask(Create("/mine", is_ephemeral=True))
    assert client.ask(Read("/mine")).value.ephemeral_owner == again.session_id
