"""The 0.8 draft's frames in captures: distinguished from Kafka's, decoded, paired.

JoinGroup of clients 0.8.2 among Kafka's frames: recognised by its bytes, and decoded with its response.
"""

from __future__ import annotations

import io
import random

import pytest

import kcoord_wire as kw
from kcoord_wire.capture import CapturedFrame, CaptureReport, read_capture
from kcoord_wire.capture.central import (
    LIKELY_CENTRAL,
    MAX_PENDING,
    CentralPending,
    CentralReader,
    assess_central,
    is_central,
    is_rewrite_join,
)
from kcoord_wire.capture.conversation import is_known
from kcoord_wire.capture.splitter import Plausibility
from kcoord_wire.errors import DecodeError
from kcoord_wire.messages import central as m
from kcoord_wire.messages.rewrite.rewrite_join_group import RewriteJoinGroupRequest, RewriteJoinGroupResponse
from tests.support.central_script import CentralScript
from tests.support.packets import Line, asked, frames_of, talk
from tests.support.wire_samples import Talk

REGISTER = kw.encode_request(
    m.RegisterConsumerRequest(group_id="g", consumer_id="c-1", topic_count="{}", session_timeout_ms=6000), 0
)


def one_rebalance() -> CentralScript:
    script = CentralScript(fenced=True)
    first, second = script.consumer("c-1"), script.consumer("c-02")
    script.register(first)
    script.register(second)
    script.rebalance({"c-1": [("orders", "1-0")], "c-02": [("orders", "1-1")]}, [first, second])
    script.ping(first)
    script.ping(second, answered=False)
    script.close(second)
    return script


def read(capture: io.BytesIO, **options: object) -> tuple[list[CapturedFrame], CaptureReport]:
    report = CaptureReport()
    return list(read_capture(capture, report=report, **options)), report  # type: ignore[arg-type]  # ports


def test_a_capture_of_the_draft_is_decoded_to_its_last_frame() -> None:
    frames, report = read(one_rebalance().capture())
    names = [(frame.api, frame.direction) for frame in frames]
    assert names[:4] == [
        ("ClusterMetadata", "request"),
        ("ClusterMetadata", "response"),
        ("RegisterConsumer", "request"),
        ("RegisterConsumer", "response"),
    ]
    assert ("StopFetcher", "request") in names
    assert frames[2].message.consumer_id == "c-1"
    assert frames[2].header.request_type_id == 6
    assert [frame.error for frame in frames] == [None] * len(frames)
    assert report.complete
    assert (report.connections, report.unanswered_requests) == (2, 1)


@pytest.mark.parametrize(
    ("groups", "decides"), [(b"", True), (b"\0\1\0\1g", True), (b"\0\0", True), (b"\0\1\0\1\n", False)]
)
def test_cluster_metadata_may_name_its_group(groups: bytes, decides: bool) -> None:
    assert is_central("request", b"\0\5" + groups) is decides


def test_reversed_roles_are_seen_in_the_direction_of_a_message() -> None:
    frames, _ = read(one_rebalance().capture())
    stops = [frame for frame in frames if frame.api == "StopFetcher"]
    assert [frame.direction for frame in stops] == ["request", "request", "response", "response"]
    assert all(frame.connection.partition("-")[2].startswith("10.9.9.1:9092") for frame in stops)


@pytest.mark.parametrize("ports", [None, [9092]])
def test_a_capture_that_begins_after_the_registration_is_decoded(ports: list[int] | None) -> None:
    whole = one_rebalance()
    script = CentralScript()
    script.frames = [frame for frame in whole.frames if frame.seq > 9]
    frames, report = read(script.capture(), ports=ports)
    assert [frame.api for frame in frames][:3] == ["StopFetcher", "StopFetcher", "StopFetcher"]
    assert frames[0].connection.partition("-")[2].startswith("10.9.9.1:9092")
    assert report.undecodable == 0


def test_frames_of_apis_without_schema_are_not_the_drafts() -> None:
    rng = random.Random(7)
    for api_key in (key for key in range(70) if not is_known(key)):
        for version in range(20):
            for number in (0, 1, 7, 255, 0x00070004, 0x41424344, 2**31 - 1):
                head = api_key.to_bytes(2) + version.to_bytes(2) + number.to_bytes(4)
                for client_id in (b"\xff\xff", b"\x00\x00", b"\x00\x04main"):
                    for tail in (b"", bytes(6), b"\x00\x01g" + bytes(8), rng.randbytes(12)):
                        assert not is_central("request", head + client_id + tail)


def test_no_kafka_response_is_taken_for_the_draft() -> None:
    for codec in (codec for codec in kw.registry.values() if codec.family == "kafka" and codec.type == "response"):
        for version in codec.valid_versions:
            for number in (0x00070001, 0x00070004, 0x00080002, 0x00080003, 0x00090005, 0x00090041):
                body = kw.encode_response(codec.cls(), version, correlation_id=number)
                assert not is_central("response", body), (codec.name, version)


def test_a_request_that_is_also_valid_in_kafka_is_kafkas() -> None:
    for number in range(0x20202020, 0x20202020 + 64):
        for request in (kw.FetchRequest(), kw.OffsetCommitRequest(group_id="g"), kw.OffsetFetchRequest(group_id="g")):
            for version in kw.registry.by_class(type(request)).valid_versions:
                if version < 6:
                    assert not is_central("request", kw.encode_request(request, version, correlation_id=number))


def test_every_cut_of_a_registration_but_the_whole_is_refused() -> None:
    assert is_central("request", REGISTER)
    assert not any(is_central("request", REGISTER[:size]) for size in range(len(REGISTER)))
    assert not is_central("request", REGISTER + b"\x00")
    assert not is_central("request", REGISTER.replace(b"c-1", b"c\x001"))
    assert not is_central("response", REGISTER)


def test_both_protocols_in_one_capture_are_read_each_as_its_own() -> None:
    script = one_rebalance()
    talk = Talk(7)
    talk.open()
    for number in (3, 6):
        request, response = asked(number)
        talk.raw("request", request)
        talk.raw("response", response)
    for at, frame in enumerate(talk.frames):
        frame.time_ns = script.frames[at].time_ns
    script.frames = [*script.frames, *talk.frames]
    frames, report = read(script.capture())
    assert sum(frame.api == "Heartbeat" for frame in frames) == 4
    assert report.complete


def test_a_response_answers_the_oldest_request_of_its_consumer() -> None:
    pending: CentralPending[int] = CentralPending()
    ping = m.PingRequest(consumer_id="c-1")
    for number in range(3):
        pending.ask(7, ping, number)
    pending.ask(8, m.StopFetcherRequest(consumer_id="c-1"), 3)
    assert pending.answer(7, m.PingResponse(consumer_id="c-2")) is None
    assert pending.answer(8, m.StopFetcherResponse(consumer_id="c-1")) == (3, [])
    assert pending.answer(7, m.PingResponse(consumer_id="c-1")) == (0, [])
    assert pending.clear() == [1, 2]


def test_an_answer_to_start_ends_the_stops_before_it() -> None:
    pending: CentralPending[str] = CentralPending()
    for name, type_id in (("stop 1", 8), ("ping", 7), ("stop 2", 8), ("start", 9), ("stop 3", 8)):
        pending.ask(type_id, m.PingRequest(consumer_id="c-1"), name)
    assert pending.answer(8, m.StopFetcherResponse(consumer_id="c-1")) == ("stop 1", [])
    assert pending.answer(9, m.StartFetcherResponse(consumer_id="c-1")) == ("start", ["stop 2"])
    assert pending.clear() == ["ping", "stop 3"]


def test_pending_requests_are_bounded_and_the_oldest_given_up() -> None:
    pending: CentralPending[int] = CentralPending()
    given_up = [old for number in range(MAX_PENDING + 5) for old in pending.ask(7, m.PingRequest(), number)]
    assert given_up == [0, 1, 2, 3, 4]


def test_an_unknown_frame_is_an_error_and_the_next_is_read() -> None:
    reader = CentralReader()
    for side, body in (("request", b"\x00\x63"), ("request", b""), ("response", b"\x00\x00"), ("response", b"\x00")):
        with pytest.raises(DecodeError):
            reader.identify(side, body)  # type: ignore[arg-type]  # literals
    assert reader.identify("request", REGISTER).name == "RegisterConsumer"
    assert reader.identify("response", b"\x00\x00").direction == "response"


def test_likely_places_are_all_that_are_assessed_as_a_frame() -> None:
    for frame in one_rebalance().frames:
        if frame.direction == "request" and frame.frame != b"\x00\x05":
            framed = kw.frame(frame.frame)
            assert assess_central("request", framed, 0, 1 << 20) is Plausibility.YES
            assert LIKELY_CENTRAL.match(framed)
    assert not LIKELY_CENTRAL.search(bytes(1000))


def test_random_bytes_raise_nothing_and_are_all_accounted_for() -> None:
    rng = random.Random(3)
    for _ in range(200):
        script = one_rebalance()
        for frame in rng.sample(script.frames[4:], 5):
            frame.frame = rng.randbytes(rng.randint(0, 40)) if rng.random() < 0.5 else frame.frame[: rng.randint(0, 9)]
        frames, report = read(script.capture())
        assert len(frames) == report.requests + report.responses


# kafka-clients 0.8.2.2 wrote the body: JoinGroupRequest("billing", 6000, ["orders", "payments"], "", "range").
BODY = "000762696c6c696e67000017700000000200066f726465727300087061796d656e74730000000572616e6765"
FRAME = bytes.fromhex("000b00000000000700026d65" + BODY)


def test_bytes_of_clients_082_are_the_rewrites() -> None:
    assert is_rewrite_join(FRAME)
    assert not any(is_rewrite_join(FRAME[:size]) for size in range(len(FRAME)))
    assert not is_rewrite_join(FRAME + b"\x00")


def test_no_join_group_of_kafka_is_the_rewrites() -> None:
    protocols = [kw.JoinGroupRequestProtocol(name="range", metadata=bytes(size)) for size in (0, 1, 30)]
    for member_id in ("", "m-1"):
        for protocol_type in ("", "consumer", "connect"):
            for count in range(4):
                request = kw.JoinGroupRequest(group_id="g", session_timeout_ms=6000, member_id=member_id)
                request.protocol_type, request.protocols = protocol_type, protocols[:count]
                for version in kw.registry.by_class(kw.JoinGroupRequest).valid_versions:
                    assert not is_rewrite_join(kw.encode_request(request, version, correlation_id=1, client_id="c"))


def test_a_request_that_is_both_is_kafkas() -> None:
    assert not is_rewrite_join(kw.encode_request(RewriteJoinGroupRequest(group_id="g"), 0, correlation_id=1))


def test_a_capture_decodes_both_with_their_responses() -> None:
    answer = RewriteJoinGroupResponse(generation_id=1, consumer_id="c-1")
    line = talk(Line().open(), [3])
    line.send(0, kw.frame(FRAME)).send(1, kw.frame(kw.encode_response(answer, 0, correlation_id=7)))
    frames, report = frames_of(talk(line, [6]).packets)
    assert frames[2].message == RewriteJoinGroupRequest(
        group_id="billing", session_timeout_ms=6000, topics=["orders", "payments"], strategy="range"
    )
    assert (frames[2].api, frames[2].client_id, frames[3].api, frames[3].message) == (
        "JoinGroup",
        "me",
        "JoinGroup",
        answer,
    )
    assert report.complete
