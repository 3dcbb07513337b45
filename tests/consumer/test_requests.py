"""The requests of each client library can be encoded, and those in flight are kept by number.

What a leader sends, and what it refuses to send.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire import messages as m
from kcoord_wire.assignors import ASSIGNORS, Assignor, MemberSubscription, RebalanceProtocol, TopicPartition
from kcoord_wire.consumer import requests
from kcoord_wire.consumer.errors import AssignmentError
from kcoord_wire.consumer.member_events import CLIENT_VERSIONS, Assigning, MemberSettings, OffsetAndMetadata
from kcoord_wire.consumer.requests import NEVER, InFlight, Kind, assign, assign_checked

ANNOTATED = OffsetAndMetadata(7, "text", 3)
OFFSETS = {TopicPartition("a", 1): 7, TopicPartition("b", 0): 8, TopicPartition("a", 0): 9}


@pytest.mark.parametrize("instance_id", [None, "i1"])
@pytest.mark.parametrize("client", CLIENT_VERSIONS)
def test_every_request_survives_the_clients_version(client: str, instance_id: str | None) -> None:
    versions = CLIENT_VERSIONS[client]
    settings = MemberSettings(group_id="g", group_instance_id=instance_id, versions=versions)
    built = {
        Kind.FIND: requests.find_coordinator(settings),
        Kind.JOIN: requests.join(settings, "x", [m.JoinGroupRequestProtocol(name="range", metadata=b"")], "reason"),
        Kind.SYNC: requests.sync(settings, 3, "x", "range", []),
        Kind.HEARTBEAT: requests.heartbeat(settings, 3, "x"),
        Kind.COMMIT: requests.commit(settings, 3, "x", {**OFFSETS, TopicPartition("c", 0): ANNOTATED}),
        Kind.FETCH: requests.fetch_offsets(settings, OFFSETS, ("x", 3)),
        Kind.LEAVE: requests.leave(settings, "x", "reason"),
    }
    assert set(built) == set(Kind) - {Kind.BEAT}, "which a machine of its own builds"
    for kind, request in built.items():
        version = getattr(versions, kind.value)
        assert kw.decode(type(request), kw.encode(request, version), version) == request


def test_a_kind_is_in_flight_until_all_of_it_are_answered() -> None:
    in_flight = InFlight()
    first, second = (in_flight.add(Kind.FETCH, None, 10) for _ in range(2))
    in_flight.pop(first)
    assert in_flight.has(Kind.FETCH)
    in_flight.pop(second)
    assert not in_flight.has(Kind.FETCH)


def test_commits_group_partitions_by_topic() -> None:
    request = requests.commit(MemberSettings(group_id="g"), 3, "x", OFFSETS)
    assert {
        topic.name: [(each.partition_index, each.committed_offset) for each in topic.partitions]
        for topic in request.topics
    } == {"a": [(1, 7), (0, 9)], "b": [(0, 8)]}


def test_an_instance_id_needs_a_join_that_has_the_field() -> None:
    old = MemberSettings(group_id="g", group_instance_id="i", versions=CLIENT_VERSIONS["java"]._replace(join=4))
    assert not requests.is_static(old)
    assert requests.heartbeat(old, 1, "x").group_instance_id is None


def test_requests_in_flight_are_taken_once() -> None:
    in_flight = InFlight()
    assert (in_flight.deadline, bool(in_flight)) == (NEVER, False)
    assert [in_flight.add(Kind.HEARTBEAT, "a", 30), in_flight.add(Kind.COMMIT, "b", 20)] == [1, 2]
    assert in_flight.deadline == 20
    assert (1 in in_flight, 3 in in_flight) == (True, False)
    taken = in_flight.pop(1)
    assert taken is not None
    assert taken.context == "a"
    assert in_flight.pop(1) is None
    assert (in_flight.has(Kind.HEARTBEAT), in_flight.has(Kind.COMMIT)) == (False, True)
    assert [pending.context for pending in in_flight.take_all()] == ["b"]
    assert not in_flight.has(Kind.COMMIT)
    assert in_flight.add(Kind.LEAVE, None, 1) == 3


MEMBERS = {"x": MemberSubscription(["orders"]), "y": MemberSubscription(["orders"], owned={"orders": [0]})}


def task(of: Callable[..., Any], protocol: RebalanceProtocol = RebalanceProtocol.EAGER, **fields: Any) -> Assigning:
    return Assigning(1, Assignor("own", protocol, of, **fields), MEMBERS, {"orders": 2}, {})


def test_each_member_gets_partitions_and_user_data() -> None:
    given = task(ASSIGNORS["range"].assign, assignment_user_data=lambda *_: {"y": b"!"})
    for assigned in (assign(given), assign_checked(given)):
        assert {name: dict(each.partitions) for name, each in assigned.items()} == {
            "x": {"orders": range(1)},
            "y": {"orders": range(1, 2)},
        }
        assert [assigned[name].user_data for name in "xy"] == [b"", b"!"]


NONSENSE = {
    "nothing": lambda *_: None,
    "a member is missing": lambda *_: {"x": {}},
    "a member too many": lambda *_: {"x": {}, "y": {}, "z": {}},
    "two owners": lambda *_: {"x": {"orders": [0, 1]}, "y": {"orders": [1]}},
    "no such partition": lambda *_: {"x": {"orders": [0, 1, 2]}, "y": {}},
    "not subscribed": lambda *_: {"x": {"payments": [0]}, "y": {}},
    "an error": lambda *_: 1 // 0,
}


@pytest.mark.parametrize("of", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_not_sent(of: Callable[..., Any]) -> None:
    with pytest.raises(AssignmentError) as raised:
        assign_checked(task(of))
    assert raised.value.assignor == "own"


def test_the_error_of_an_assignor_is_the_cause() -> None:
    with pytest.raises(AssignmentError, match="ZeroDivisionError") as raised:
        assign_checked(task(NONSENSE["an error"]))
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_a_cooperative_assignor_may_not_move_at_once() -> None:
    def moves(*_: object) -> dict[str, Any]:
        return {"x": {"orders": [0]}, "y": {"orders": [1]}}

    assert assign_checked(task(moves))
    with pytest.raises(AssignmentError, match="not valid"):
        assign_checked(task(moves, RebalanceProtocol.COOPERATIVE))
