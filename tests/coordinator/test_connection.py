"""A connection on a real socket: the order of answers, cuts in the bytes, and what ends it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import kcoord_wire as kw
from kcoord_wire.coordinator.connection import PeerLimits
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.fixtures import StartCoordinator
from tests.support.group_client import (
    SOON,
    VERSIONS,
    become_stable,
    join_request,
    request_bytes,
)
from tests.support.waiting import eventually
from tests.support.wire import Wire


@pytest.mark.usefixtures("each_loop")
def test_answers_come_in_the_order_of_the_requests(coordinator: StartCoordinator) -> None:
    with Wire(coordinator().address) as wire:
        heartbeat = become_stable(wire, "g")
        requests = [(heartbeat, 4), (VERSIONS, 3), (kw.MetadataRequest(topics=None), 12), (heartbeat, 0)] * 150
        sent = [wire.send(request, version) for request, version in requests]
        answers = [wire.receive(correlation_id) for correlation_id in sent]
    assert all(answer.error_code == 0 for answer in answers if not isinstance(answer, kw.MetadataResponse))


@pytest.mark.usefixtures("each_loop")
def test_a_parked_join_holds_up_its_own_connection_alone(coordinator: StartCoordinator) -> None:
    address = coordinator().address
    with Wire(address) as first, Wire(address) as second, Wire(address) as third:
        heartbeat = become_stable(first, "g")
        second_id = second.call(join_request("g"), 9).member_id
        parked = second.send(join_request("g", second_id), 9)
        behind = second.send(VERSIONS, 3)
        assert third.call(VERSIONS, 3).error_code == 0
        eventually(lambda: first.call(heartbeat, 4).error_code == ErrorCode.REBALANCE_IN_PROGRESS)
        assert become_stable(third, "other")
        assert first.call(join_request("g", heartbeat.member_id), 9).generation_id == 2
        assert second.receive(parked).generation_id == 2
        assert second.receive(behind).error_code == 0


def test_a_client_id_in_latin_1_is_served(coordinator: StartCoordinator) -> None:
    """As Kafka serves it: the broker reads U+FFFD where the text is not UTF-8."""
    with Wire(coordinator().address) as wire:
        for n, (request, version) in enumerate(((VERSIONS, 3), (kw.MetadataRequest(topics=None), 12), (VERSIONS, 0))):
            wire.send_raw(request_bytes(request, version, n, "J?rg").replace(b"J?rg", b"J\xf6rg"))
            _, answer = kw.decode_response(wire.receive_body(), kw.registry.by_class(type(request)).api_key, version)
            assert getattr(answer, "error_code", 0) == 0


def chunks_of(data: bytes, how: str) -> Iterator[bytes]:
    if how == "whole":
        yield data
    elif how == "byte by byte":
        yield from (data[i : i + 1] for i in range(len(data)))
    else:
        size = {"pairs of frames and a half": 90, "thirteen": 13}[how]
        yield from (data[i : i + size] for i in range(0, len(data), size))


@pytest.mark.usefixtures("each_loop")
@pytest.mark.parametrize("how", ["whole", "byte by byte", "pairs of frames and a half", "thirteen"])
@pytest.mark.parametrize("junk", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff\xff\xff\xff", b"\0\0\0\4abcd"])
def test_requests_may_be_cut_anywhere(coordinator: StartCoordinator, how: str, junk: bytes) -> None:
    requests = [
        (VERSIONS, 3),
        (kw.MetadataRequest(topics=[]), 9),
        (kw.FindCoordinatorRequest(key="g"), 2),
        (kw.HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4),
    ]
    data = b"".join(request_bytes(request, version, n) for n, (request, version) in enumerate(requests)) + junk
    with Wire(coordinator().address) as wire:
        for chunk in chunks_of(data, how):
            try:
                wire.send_raw(chunk)
            except ConnectionError:  # it was closed within the junk
                break
        for n, (request, version) in enumerate(requests):
            body = wire.receive_body()
            api_key = kw.registry.by_class(type(request)).api_key
            assert api_key is not None
            header, answer = kw.decode_response(body, api_key, version)
            assert header.correlation_id == n
            if isinstance(request, kw.HeartbeatRequest):
                assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
        if junk:
            assert wire.is_closed_by_peer()


def test_a_produce_without_acknowledgement_is_not_answered(coordinator: StartCoordinator) -> None:
    with Wire(coordinator().address) as wire:
        wire.send(kw.ProduceRequest(acks=0, timeout_ms=1000), 9)
        assert wire.call(VERSIONS, 3).error_code == 0


def test_a_failed_produce_without_acknowledgement_hangs_up(coordinator: StartCoordinator) -> None:
    """As Kafka does, after what was answered before."""
    part = kw.ProduceRequestPartitionProduceData(index=0, records=b"no batch")
    topic = kw.ProduceRequestTopicProduceData(name="orders", partition_data=[part])
    with Wire(coordinator().address) as wire:
        assert wire.call(VERSIONS, 3).error_code == 0
        wire.send(kw.ProduceRequest(acks=0, timeout_ms=1000, topic_data=[topic]), 9)
        assert wire.is_closed_by_peer()


@pytest.mark.parametrize("sent", [b"", b"\0\0", request_bytes(VERSIONS, 3, 1)[:-1], b"\0\0\0\x20" + b"a" * 31])
def test_a_silent_connection_is_closed(coordinator: StartCoordinator, sent: bytes) -> None:
    limits = PeerLimits(idle_ms=300, frame_ms=300)
    with Wire(coordinator(limits=limits).address, timeout=SOON) as wire:
        wire.call(VERSIONS, 3)
        wire.send_raw(sent)
        assert wire.is_closed_by_peer()


def test_a_client_with_a_parked_request_is_not_idle(coordinator: StartCoordinator) -> None:
    address = coordinator(limits=PeerLimits(idle_ms=1_000)).address
    with Wire(address) as first:
        heartbeat = become_stable(first, "g")
        with Wire(address) as second:
            member_id = second.call(join_request("g"), 9).member_id
            parked = second.send(join_request("g", member_id), 9)
            time.sleep(1.5)
            with Wire(address) as again:  # the first one was idle
                again.call(join_request("g", heartbeat.member_id), 9)
            assert second.receive(parked).error_code == 0
        assert first.is_closed_by_peer()
