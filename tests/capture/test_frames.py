"""From packets to frames: one conversation, sent through every kind of bad network and bad capture."""

from __future__ import annotations

import io
import random
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import dpkt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kcoord_wire as kw
from kcoord_wire.capture import CapturedFrame, CaptureReport, Conversation, read_capture
from kcoord_wire.capture.packets import ACK, FIN, RST, SYN
from kcoord_wire.capture.splitter import SEARCH_WINDOW

Frames = tuple[list[CapturedFrame], CaptureReport]

CLIENT, BROKER = ("10.0.0.1", 50000), ("10.0.0.2", 9092)


@dataclass
class Line:
    """One TCP connection, written as packets: (flags, sequence number, payload, whether from the client, ack)."""

    client: tuple[str, int] = CLIENT
    broker: tuple[str, int] = BROKER
    initials: tuple[int, int] = (1000, 2**32 - 50)
    packets: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.next = list(self.initials)

    def send(self, sender: int, payload: bytes = b"", flags: int = ACK, size: int = 1460) -> Line:
        """Payload in segments of `size` bytes."""
        for start in range(0, max(1, len(payload)), size):
            part = payload[start : start + size]
            self.packets.append(self._packet(sender, part, flags))
            self.next[sender] += len(part) + bool(flags & (SYN | FIN))
        return self

    def open(self) -> Line:
        return self.send(0, flags=SYN).send(1, flags=SYN | ACK).send(0)

    def close(self) -> Line:
        return self.send(0, flags=FIN | ACK).send(1, flags=FIN | ACK).send(0)

    def _packet(self, sender: int, payload: bytes, flags: int) -> bytes:
        (source, sport), (destination, dport) = (self.client, self.broker)[:: -1 if sender else 1]
        sequence, ack = self.next[sender] & 0xFFFFFFFF, self.next[1 - sender] & 0xFFFFFFFF if flags & ACK else 0
        tcp = dpkt.tcp.TCP(sport=sport, dport=dport, seq=sequence, ack=ack, flags=flags, data=payload)
        if ":" in source:
            ends = [socket.inet_pton(socket.AF_INET6, ip) for ip in (source, destination)]
            ip = dpkt.ip6.IP6(src=ends[0], dst=ends[1], nxt=6, plen=len(bytes(tcp)), data=tcp)
            return bytes(dpkt.ethernet.Ethernet(type=0x86DD, data=ip))
        ip = dpkt.ip.IP(src=socket.inet_aton(source), dst=socket.inet_aton(destination), p=6, data=tcp)
        return bytes(dpkt.ethernet.Ethernet(type=0x0800, data=ip))


def asked(number: int) -> tuple[bytes, bytes]:
    """A request and its response, as frame bodies; the number is the correlation id and is in both."""
    client = {"correlation_id": number, "client_id": f"client-{number}"}
    if number % 3 == 0:
        request: object = kw.HeartbeatRequest(group_id="g", generation_id=number, member_id="m" * (number % 50))
        return (
            kw.encode_request(request, 4, **client),
            kw.encode_response(kw.HeartbeatResponse(throttle_time_ms=number), 4, correlation_id=number),
        )
    request = kw.SyncGroupRequest(group_id="g", generation_id=number, member_id="m")
    response = kw.SyncGroupResponse(throttle_time_ms=number, assignment=bytes([number & 255]) * (number * 37 % 4000))
    return kw.encode_request(request, 3, **client), kw.encode_response(response, 3, correlation_id=number)


def talk(line: Line, numbers: Sequence[int], **sizes: int) -> Line:
    for number in numbers:
        request, response = asked(number)
        line.send(0, kw.frame(request), **sizes).send(1, kw.frame(response), **sizes)
    return line


def capture(packets: Sequence[bytes], snaplen: int = 65535) -> io.BytesIO:
    """A capture file with a packet a second; each is cut to `snaplen` bytes."""
    file = bytes(dpkt.pcap.LEFileHdr(snaplen=snaplen))
    for at, packet in enumerate(packets):
        kept = packet[:snaplen]
        file += bytes(dpkt.pcap.LEPktHdr(tv_sec=1000 + at, tv_usec=5, caplen=len(kept), len=len(packet))) + kept
    return io.BytesIO(file)


def frames_of(packets: Sequence[bytes], *, snaplen: int = 65535, **options: Any) -> Frames:
    report = CaptureReport()
    return list(read_capture(capture(packets, snaplen), report=report, **options)), report


def summary(frames: Sequence[CapturedFrame]) -> list[tuple[int | None, str, bytes]]:
    return [(frame.correlation_id, frame.direction, frame.raw) for frame in frames]


def expected(numbers: Sequence[int]) -> list[tuple[int, str, bytes]]:
    return [
        (number, side, body)
        for number in numbers
        for side, body in zip(("request", "response"), asked(number), strict=True)
    ]


@pytest.mark.parametrize("size", [1, 3, 100, 1460])
@pytest.mark.parametrize("ports", [None, [9092]])
def test_frames_and_their_fields(size: int, ports: list[int] | None) -> None:
    frames, report = frames_of(talk(Line().open(), range(6), size=size).close().packets, ports=ports)
    assert summary(frames) == expected(range(6))
    assert report.complete
    assert (report.connections, report.requests, report.responses, report.unanswered_requests) == (1, 6, 6, 0)
    first = frames[0]
    assert first.connection == "10.0.0.1:50000-10.0.0.2:9092#0"
    assert (first.api_key, first.api, first.api_version, first.client_id) == (12, "Heartbeat", 4, "client-0")
    assert (first.size, first.error, first.irregularity) == (len(first.raw), None, None)
    assert isinstance(first.message, kw.HeartbeatRequest)
    assert isinstance(frames[1].message, kw.HeartbeatResponse)
    assert frames[1].client_id == "client-0"
    assert first.time_ns == (1000 + 3 + (len(first.raw) + 3) // size) * 10**9 + 5000
    assert first.time == pytest.approx(first.time_ns / 1e9)


def test_a_connection_over_ipv6() -> None:
    line = Line(client=("fd00::1", 50000), broker=("fd00::2", 9092))
    frames, report = frames_of(talk(line.open(), [1, 2]).close().packets)
    assert summary(frames) == expected([1, 2])
    assert {frame.connection for frame in frames} == {"[fd00::1]:50000-[fd00::2]:9092#0"}
    assert report.complete


def test_brokers_among_themselves_are_told_apart_by_the_syn() -> None:
    line = Line(client=("10.0.0.3", 9092))
    frames, _ = frames_of(talk(line.open(), [1]).packets, ports=[9092])
    assert summary(frames) == expected([1])
    assert frames[0].connection.startswith("10.0.0.3:9092-10.0.0.2:9092#")


@given(st.randoms(use_true_random=False), st.integers(1, 1500), st.integers(0, 12), st.integers(0, 2**32 - 1))
def test_segmentation_duplication_and_reordering_make_no_difference(
    random: random.Random, size: int, window: int, initial: int
) -> None:
    line = talk(Line(initials=(initial, initial ^ 0x55555555)).open(), range(1, 5), size=size).close()
    opening, rest = line.packets[:2], list(enumerate(line.packets[2:]))
    rest += random.sample(rest, len(rest) // 4)
    rest.sort(key=lambda item: item[0] + random.randint(0, window))
    frames, report = frames_of(opening + [packet for _, packet in rest])
    assert sorted(summary(frames)) == sorted(expected(range(1, 5)))
    assert report.complete


@pytest.mark.parametrize("ports", [None, [9092]])
@pytest.mark.parametrize("start", range(4, 12))
def test_a_capture_that_begins_midway(ports: list[int] | None, start: int) -> None:
    """Frames come from the first request on that begins within the capture; what is before it is counted."""
    line = Line().open()
    begins = {}
    for number in range(1, 12):
        begins[number] = len(line.packets)
        talk(line, [number], size=60)
    frames, report = frames_of(line.packets[start:], ports=ports)
    assert summary(frames) == expected([number for number, packet in begins.items() if packet >= start])
    assert report.undecodable == 0
    assert bool(report.skipped_bytes) == (start not in begins.values())


@pytest.mark.parametrize("lost", range(3, 25))
def test_a_lost_segment_costs_its_own_frame_alone(lost: int) -> None:
    """Even where the size of the frame is lost with it, the next one is found."""
    line = talk(Line().open(), range(1, 10), size=700)
    for number in range(10, 60):
        talk(line, [number])
    packets = line.close().packets
    frames, report = frames_of(packets[:lost] + packets[lost + 1 :])
    decoded = [frame for frame in frames if frame.error is None]
    missing = [row for row in expected(range(1, 60)) if row not in summary(decoded)]
    assert report.holes == 1
    assert not report.complete
    assert 1 <= len(missing) <= 2  # a request that is lost whole takes the name of its response with it
    assert len({number for number, *_ in missing}) == 1
    assert len(summary(decoded)) == 2 * 59 - len(missing)
    assert all("not captured" in (frame.error or "") for frame in frames if frame not in decoded)


def test_packets_that_the_capture_cut() -> None:
    line = talk(Line().open(), range(1, 40)).close()
    frames, report = frames_of(line.packets, snaplen=14 + 20 + 20 + 80)
    assert report.cut_packets > 20
    assert report.hole_bytes == sum(max(0, len(packet) - 134) for packet in line.packets)
    assert len([frame for frame in frames if frame.direction == "request" and frame.error is None]) == 39
    assert {frame.correlation_id for frame in frames if frame.direction == "response"} == set(range(1, 40))
    assert report.skipped_bytes == 0


def test_ports_that_are_used_again_are_two_connections() -> None:
    packets = talk(Line().open(), [1, 2]).close().packets + talk(Line(initials=(9, 7)).open(), [1, 2]).close().packets
    frames, report = frames_of(packets)
    assert summary(frames) == expected([1, 2]) * 2
    assert [frame.connection[-2:] for frame in frames] == ["#0"] * 4 + ["#1"] * 4
    assert report.complete


def test_a_reset_ends_a_connection() -> None:
    line = talk(Line().open(), [1]).send(0, kw.frame(asked(3)[0])).send(1, kw.frame(asked(3)[1])[:-2])
    frames, _ = frames_of(line.send(0, flags=RST).send(1, b"12").packets)
    assert summary(frames)[:3] == (expected([1, 3]))[:3]
    assert [frame.error for frame in frames[3:]] == ["2 of its 12 bytes were not captured"]


@pytest.mark.parametrize("opened", [True, False])
def test_connections_that_do_not_speak_kafka_are_left_alone(opened: bool) -> None:
    other = Line(broker=("10.0.0.2", 22), client=("10.0.0.1", 40000))
    other = (other.open() if opened else other).send(0, b"SSH-2.0-OpenSSH_9.2\r\n").send(1, bytes(range(256)) * 5)
    frames, report = frames_of(other.packets + talk(Line().open(), [1, 2]).packets)
    assert summary(frames) == expected([1, 2])
    assert (report.connections, report.foreign_connections, report.complete) == (1, 1, True)


def test_ports_choose_the_connections() -> None:
    other = talk(Line(broker=("10.0.0.2", 9093)).open(), [3])
    frames, report = frames_of(other.packets + talk(Line().open(), [1]).packets, ports=[9092])
    assert summary(frames) == expected([1])
    assert report.connections == 1


def test_with_a_port_given_even_garbage_is_reported() -> None:
    frames, report = frames_of(Line().open().send(0, b"\xff" * 100).packets, ports=[9092])
    assert frames == []
    assert report.skipped_bytes == 100
    assert "negative" in report.notes[0]


def test_a_frame_above_the_limit_is_skipped_and_the_next_one_found() -> None:
    line = talk(Line().open(), [1]).send(0, kw.frame(bytes(3000)))
    frames, report = frames_of(talk(line, [3, 4]).packets, max_frame_size=2000)
    assert summary(frames) == expected([1, 3, 4])
    assert report.skipped_bytes == 3004


def test_unknown_api_and_unknown_version() -> None:
    header = b"\x00\x00\x00\x07\x00\x02me"
    unknown_api, unknown_version = b"\x00\x47\x00\x00" + header, b"\x00\x0c\x00\x63" + header
    line = talk(Line().open(), [3]).send(0, kw.frame(unknown_api)).send(1, kw.frame(b"\x00\x00\x00\x07body"))
    frames, report = frames_of(line.send(0, kw.frame(unknown_version)).packets)
    _, _, request, response, versioned = frames
    assert (request.api, request.message, request.error) == ("GetTelemetrySubscriptions", None, None)
    assert (response.api, response.api_version, response.message, response.error) == (request.api, 0, None, None)
    assert request.header.client_id == "me"
    assert response.header.correlation_id == 7
    assert (versioned.api, versioned.api_version, versioned.message) == ("Heartbeat", 99, None)
    assert "[version]" in (versioned.error or "")
    assert (report.unknown_apis, report.undecodable) == (2, 1)


def test_responses_without_request_and_requests_without_response() -> None:
    line = Line().open()
    for number in (3, 6, 9):
        line.send(0, kw.frame(asked(number)[0]))
    line.send(1, kw.frame(asked(6)[1])).send(1, kw.frame(asked(3)[1]))
    frames, report = frames_of(line.packets)
    assert [frame.error for frame in frames] == [None] * 4 + ["its request was not captured"]
    assert (report.unmatched_responses, report.unanswered_requests) == (1, 2)


def test_a_produce_that_wants_no_acknowledgement_waits_for_none() -> None:
    produce = kw.ProduceRequest(acks=0, timeout_ms=1, topic_data=[])
    line = Line().open().send(0, kw.frame(kw.encode_request(produce, 3, correlation_id=1, client_id="p")))
    frames, report = frames_of(talk(line, [3]).packets)
    assert (len(frames), report.unanswered_requests) == (3, 0)


def test_api_versions_that_the_broker_does_not_have_is_answered_in_version_0() -> None:
    message = kw.ApiVersionsRequest(client_software_name="c", client_software_version="1")
    request = kw.encode_request(message, 3, correlation_id=5)
    answer = kw.encode_response(kw.ApiVersionsResponse(error_code=35), 0, correlation_id=5)
    frames, report = frames_of(Line().open().send(0, kw.frame(request)).send(1, kw.frame(answer)).packets)
    assert (frames[1].api_version, frames[1].message.error_code, frames[1].error) == (3, 35, None)
    assert report.complete


def test_bare_sasl_tokens_after_a_handshake_of_version_0() -> None:
    handshake = kw.encode_request(kw.SaslHandshakeRequest(mechanism="PLAIN"), 0, correlation_id=1, client_id="c")
    answer = kw.encode_response(kw.SaslHandshakeResponse(mechanisms=["PLAIN"]), 0, correlation_id=1)
    token = b"\0user\0password"
    line = Line().open().send(0, kw.frame(handshake)).send(1, kw.frame(answer))
    frames, report = frames_of(talk(line.send(0, kw.frame(token)).send(1, kw.frame(b"")), [3, 4]).packets)
    tokens = [(frame.api, frame.raw, frame.error) for frame in frames[2:4]]
    assert tokens == [(None, token, None), (None, b"", None)]
    assert summary(frames[4:]) == expected([3, 4])
    assert (report.sasl_tokens, report.complete) == (2, True)


def test_a_body_that_does_not_decode_is_a_frame_with_its_error() -> None:
    request = asked(3)[0]
    line = talk(Line().open(), [1]).send(0, kw.frame(request[:-3])).send(0, kw.frame(b"abc"))
    frames, report = frames_of(line.packets)
    assert [frame.raw for frame in frames[2:]] == [request[:-3], b"abc"]
    assert "[truncated]" in (frames[2].error or "")
    assert frames[2].correlation_id == 3
    assert (frames[3].api, frames[3].correlation_id) == (None, None)
    assert report.undecodable == 2


def test_bytes_after_a_message_are_an_irregularity() -> None:
    frames, report = frames_of(Line().open().send(0, kw.frame(asked(3)[0] + b"more")).packets)
    assert isinstance(frames[0].message, kw.HeartbeatRequest)
    assert "[trailing]" in (frames[0].irregularity or "")
    assert (report.irregular, report.undecodable) == (1, 0)


def test_an_endless_search_holds_a_window_at_most() -> None:
    report = CaptureReport()
    conversation = Conversation("c-b#0", report, in_step=(False, False))
    noise = random.Random(3).randbytes(64 * 1024)
    for _ in range(2 * SEARCH_WINDOW // len(noise)):
        assert list(conversation.feed("request", noise, 0)) == []
        assert len(conversation._splitters["request"]._window) <= SEARCH_WINDOW
    assert [frame.correlation_id for frame in conversation.feed("request", kw.frame(asked(3)[0]), 0)] == [3]
    assert report.skipped_bytes == 2 * SEARCH_WINDOW


@given(st.lists(st.tuples(st.booleans(), st.binary(max_size=60) | st.integers(1, 60)), max_size=30), st.booleans())
def test_any_conversation_at_all_is_survived(pieces: list[tuple[bool, bytes | int]], in_step: bool) -> None:
    """Bytes are in frames or counted, whatever is said."""
    report = CaptureReport()
    conversation = Conversation("c-b#0", report, in_step=(in_step, in_step))
    frames = []
    for client, piece in pieces:
        side = "request" if client else "response"
        step = conversation.hole if isinstance(piece, int) else conversation.feed
        frames += step(side, piece, 0)  # type: ignore[operator]
    frames += conversation.close(0)
    total = sum(len(piece) for _, piece in pieces if isinstance(piece, bytes))
    assert sum(4 + len(frame.raw) for frame in frames) + report.skipped_bytes == total
