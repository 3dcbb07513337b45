"""The requests of each client library can be encoded, and those in flight are kept by number."""

from __future__ import annotations

import pytest

import kcoord_wire as kw
from kcoord_wire import messages as m
from kcoord_wire.assignors import TopicPartition
from kcoord_wire.consumer import requests
from kcoord_wire.consumer.events import CLIENT_VERSIONS, MemberSettings
from kcoord_wire.consumer.requests import NEVER, InFlight, Kind

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
        Kind.COMMIT: requests.commit(settings, 3, "x", OFFSETS),
        Kind.FETCH: requests.fetch_offsets(settings, OFFSETS),
        Kind.LEAVE: requests.leave(settings, "x", "reason"),
    }
    assert set(built) == set(Kind)
    for kind, request in built.items():
        version = getattr(versions, kind.value)
        assert kw.decode(type(request), kw.encode(request, version), version) == request


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
