"""From packets to frames: one conversation, through every kind of bad network and bad capture.

Decoding captured frames: whatever is in them, each is returned with what is known of it.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kcoord_wire as kw
from kcoord_wire.capture import CaptureReport, RawFrame, read_raw_frames
from kcoord_wire.capture.frames import _Reader
from kcoord_wire.capture.lanes import lane_of
from kcoord_wire.capture.packets import ACK, FIN, RST, SYN, Endpoint
from tests.support.packets import BROKER, Line, asked, capture, expected, frames_of, summary, talk

CAPTURES = Path(__file__).parents[1] / "data" / "captures"


@pytest.mark.parametrize("size", [1, 3, 100, 1460])
@pytest.mark.parametrize("ports", [None, [9092]])
def test_frames_and_their_fields(size: int, ports: list[int] | None) -> None:
    frames, report = frames_of(talk(Line().open(), range(6), size=size).close().packets, ports=ports)
    assert summary(frames) == expected(range(6))
    assert report.complete
    assert (report.connections, report.requests, report.responses, report.unanswered_requests) == (1, 6, 6, 0)
    first = frames[0]
    assert first.connection == "10.0.0.1:50000-10.0.0.2:9092#1"
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
    assert {frame.connection for frame in frames} == {"[fd00::1]:50000-[fd00::2]:9092#1"}
    assert report.complete


def test_the_syn_shows_the_client_among_two_brokers() -> None:
    line = Line(client=("10.0.0.3", 9092))
    frames, _ = frames_of(talk(line.open(), [1]).packets, ports=[9092])
    assert summary(frames) == expected([1])
    assert frames[0].connection.startswith("10.0.0.3:9092-10.0.0.2:9092#")


# With a window of 8, a late packet has at most those of 16 others before it, each twice: the 32 of `tcp.PATIENCE`.
@given(st.randoms(use_true_random=False), st.integers(1, 1500), st.integers(0, 8), st.integers(0, 2**32 - 1))
def test_segmentation_copies_and_order_make_no_difference(
    random: random.Random, size: int, window: int, initial: int
) -> None:
    line = talk(Line(initials=(initial, initial ^ 0x55555555)).open(), range(1, 5), size=size)
    opening, rest = line.packets[:2], list(enumerate(line.packets[2:]))
    closing = line.close().packets[-3:]  # in its place: a FIN before a last byte shows the other side's FIN instead
    rest += random.sample(rest, len(rest) // 4)
    rest.sort(key=lambda item: item[0] + random.randint(0, window))
    frames, report = frames_of([*opening, *(packet for _, packet in rest), *closing])
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
    assert [frame.connection.partition("#")[2] for frame in frames] == ["1"] * 4 + ["11"] * 4
    assert report.complete


def test_a_reset_ends_a_connection() -> None:
    line = talk(Line().open(), [1]).send(0, kw.frame(asked(3)[0])).send(1, kw.frame(asked(3)[1])[:-2])
    frames, _ = frames_of(line.send(0, flags=RST).send(1, b"12").packets)
    assert summary(frames)[:3] == (expected([1, 3]))[:3]
    assert [frame.error for frame in frames[3:]] == ["2 of its 12 bytes were not captured"]


@pytest.mark.parametrize("opened", [True, False])
def test_connections_without_kafka_are_left_out(opened: bool) -> None:
    other = Line(broker=("10.0.0.2", 22), client=("10.0.0.1", 40000))
    other = (other.open() if opened else other).send(0, b"SSH-2.0-OpenSSH_9.2\r\n").send(1, bytes(range(256)) * 5)
    frames, report = frames_of(other.packets + talk(Line().open(), [1, 2]).packets)
    assert summary(frames) == expected([1, 2])
    assert (report.connections, report.foreign_connections, report.complete) == (1, 1, True)
    what = "left out: 10.0.0.1:40000-10.0.0.2:22, which looks like plain text"
    size = 21 if opened else 1301
    assert [note for note in report.notes if "left out" in note] == [
        f"a connection without a Kafka request, {what} ({size} bytes)"
    ]


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


def test_a_frame_above_the_limit_is_skipped() -> None:
    line = talk(Line().open(), [1]).send(0, kw.frame(bytes(3000)))
    frames, report = frames_of(talk(line, [3, 4]).packets, max_frame_size=2000)
    assert summary(frames) == expected([1, 3, 4])
    assert report.skipped_bytes == 3004


# ---- undecoded frames


def test_raw_frames_are_the_decoded_ones_with_their_places() -> None:
    report = CaptureReport()
    frames = list(read_raw_frames(CAPTURES / "eager_range.pcap", report=report))
    assert report.requests == sum(found.kind == "request" for found in frames) == 147
    assert report.responses == sum(found.kind == "response" for found in frames) == 143
    assert report.packets > 400
    positions = [
        found.position for found in frames if found.kind != "closed"
    ]  # a closing is found when both sides have
    assert positions == sorted(positions)
    assert positions[-1] <= report.packets


def raw_frames(packets: Sequence[bytes], folder: Path) -> list[RawFrame]:
    file = folder / "made.pcap"
    file.write_bytes(capture(packets).read())
    return list(read_raw_frames(file))


# ---- connections that are left out


ODD_CLIENT_IDS = {
    "300 bytes": b"x" * 300,
    "32,767 bytes": b"x" * 32_767,
    "Latin-1": "dienst-k\u00f6ln".encode("latin-1"),
    "no-break space": "a\u00a0b".encode(),
    "tab": b"a\tb",
    "empty": b"",
    "null": None,
}


@pytest.mark.parametrize("opened", [True, False])
@pytest.mark.parametrize("client_id", ODD_CLIENT_IDS.values(), ids=ODD_CLIENT_IDS)
def test_any_client_id_that_kafka_accepts_is_a_client(client_id: bytes | None, opened: bool, tmp_path: Path) -> None:
    """Before the port of the broker is known from another connection."""
    line = Line().open() if opened else Line()
    for number in (-5, 6):
        header = struct.pack(">hhih", 12, 0, number, -1 if client_id is None else len(client_id)) + (client_id or b"")
        line.send(0, kw.frame(header + b"\0\x01g\0\0\0\x01\0\x01m")).send(1, kw.frame(struct.pack(">ih", number, 0)))
    found = raw_frames(line.packets, tmp_path)
    assert sorted(item.kind for item in found) == ["opened", *["request"] * 2, *["response"] * 2]


def test_a_connection_left_out_is_a_loss_with_its_place(tmp_path: Path) -> None:
    other = Line(broker=("10.0.0.2", 443), client=("10.0.0.1", 40000)).open()
    other.send(0, b"\x16\x03\x01" + bytes(200)).send(1, bytes(500))
    silent = Line(broker=("10.0.0.2", 443), client=("10.0.0.1", 40001)).open().close()
    found = raw_frames(talk(Line().open(), [1]).packets + other.packets + silent.packets, tmp_path)
    (loss,) = [item for item in found if item.kind == "damage"]
    assert (loss.connection, loss.position, loss.lost) == ("", 9, 203)
    assert loss.error == (
        "a connection without a Kafka request, left out: 10.0.0.1:40000-10.0.0.2:443, which looks like TLS"
    )


def test_tls_to_a_broker_that_is_known_is_said_to_be(tmp_path: Path) -> None:
    other = Line(client=("10.0.0.1", 40000)).open().send(0, b"\x16\x03\x01\x02\x05" + bytes(200))
    found = raw_frames(talk(Line().open(), [1]).packets + other.packets, tmp_path)
    first = next(item for item in found if item.kind == "damage")
    assert first.error is not None
    assert first.error.startswith("request: frame size")
    assert first.error.endswith(", which looks like TLS")


def test_bytes_that_nothing_acknowledges_are_a_row(tmp_path: Path) -> None:
    line = talk(Line().open(), [1])
    line.send(0, kw.frame(asked(3)[0]))
    (found,) = [item for item in raw_frames([*line.packets, *line.packets[-1:] * 4], tmp_path) if item.kind == "resent"]
    assert (found.by, found.since_ns, found.time_ns) == ("client", 1_005_000_005_000, 1_009_000_005_000)
    size = len(asked(3)[0]) + 4
    assert found.error == f"{size} bytes sent again 4 times without an acknowledgement"


# ---- the ends of connections, and those that were never made


def ends(packets: Sequence[bytes], folder: Path, **options: Any) -> list[tuple[str, str, str | None, str | None, int]]:
    """Kind, connection, who, why and packet of what happened to connections besides their opening."""
    file = folder / "made.pcap"
    file.write_bytes(capture(packets).read())
    return [
        (item.kind, item.connection, item.by, item.error, item.position)
        for item in read_raw_frames(file, **options)
        if item.kind in ("closed", "reset", "refused")
    ]


def refused(port: int, broker: tuple[str, int] = BROKER) -> list[bytes]:
    return Line(client=("10.0.0.1", port), broker=broker).send(0, flags=SYN).send(1, flags=RST | ACK).packets


def test_an_end_names_the_side_and_the_packet(tmp_path: Path) -> None:
    name = "10.0.0.1:50000-10.0.0.2:9092#1"
    made = [talk(Line().open(), [1]) for _ in range(4)]
    assert ends(made[0].close().packets, tmp_path) == [("closed", name, "client", None, 6)]
    closed_by_broker = made[1].send(1, flags=FIN | ACK).send(0, flags=FIN | ACK).packets
    assert ends(closed_by_broker, tmp_path) == [("closed", name, "broker", None, 6)]
    assert ends(made[2].send(1, flags=RST | ACK).packets, tmp_path) == [("reset", name, "broker", None, 6)]
    assert ends(made[3].packets, tmp_path) == [], "the capture ended first"


def test_refused_connections_count_where_a_broker_is_known(tmp_path: Path) -> None:
    """Known before or after, or by its port; a refusal of anything else is none of Kafka's."""
    before, after, other = refused(40001), refused(40002), refused(40003, ("10.0.0.2", 22))
    found = ends([*other, *before, *talk(Line().open(), [1]).packets, *after], tmp_path)
    why = "answered with a reset"
    assert found == [
        ("refused", "10.0.0.1:40001-10.0.0.2:9092#3", None, why, 3),
        ("refused", "10.0.0.1:40002-10.0.0.2:9092#10", None, why, 10),
    ]
    assert ends([*other, *before], tmp_path) == []
    assert ends([*other, *before], tmp_path, ports=[9092]) == [
        ("refused", "10.0.0.1:40001-10.0.0.2:9092#3", None, why, 3)
    ]


def test_a_refused_connection_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not again for each broker that is found."""
    asked = []
    real = _Reader._is_broker

    def is_broker(reader: _Reader, endpoint: Endpoint) -> bool:
        asked.append(endpoint)
        return real(reader, endpoint)

    monkeypatch.setattr(_Reader, "_is_broker", is_broker)
    strangers = [packet for port in range(1, 40) for packet in refused(40000, ("10.0.0.9", port))]
    brokers = [Line(client=("10.0.0.1", 50000), broker=(f"10.0.1.{number}", 9092)) for number in range(20)]
    talks = [packet for line in brokers for packet in talk(line.open(), [1]).packets]
    assert ends([*refused(40001), *strangers, *talks, *talk(Line().open(), [1]).packets], tmp_path) == [
        ("refused", "10.0.0.1:40001-10.0.0.2:9092#1", None, "answered with a reset", 1)
    ]
    assert len([endpoint for endpoint in asked if endpoint[0] == "10.0.0.9"]) <= 3 * 39


def test_of_many_refused_connections_of_a_lane_the_first_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcoord_wire.capture.frames._MAX_REFUSED", 3)
    lane = lane_of((("10.0.0.1", 40000), ("10.0.0.9", 22)))
    ports = [port for port in range(40001, 50000) if lane_of((("10.0.0.1", port), BROKER)) == lane][:5]
    made = [packet for port in ports for packet in refused(port)]
    found = ends([*refused(40000, ("10.0.0.9", 22)), *made, *talk(Line().open(), [1]).packets], tmp_path)
    assert [name.split("-")[0] for _, name, *_ in found] == [f"10.0.0.1:{port}" for port in ports[2:]]


# ---- lost packets


@pytest.mark.parametrize("name", ["aiokafka", "cooperative", "eager_range", "static_bounce"])
def test_a_lost_packet_changes_no_other_frame_s_time(name: str, tmp_path: Path) -> None:
    """One packet at a time, every hundredth: all other frames have the times that they have without the loss."""
    whole = (CAPTURES / f"{name}.pcap").read_bytes()
    packets, at = [], 24
    while at < len(whole):
        end = at + 16 + int.from_bytes(whole[at + 8 : at + 12], "little")
        packets.append(whole[at:end])
        at = end
    times = times_by_frame(CAPTURES / f"{name}.pcap")
    file = tmp_path / "lossy.pcap"
    for lost in range(7, len(packets), 100):
        file.write_bytes(whole[:24] + b"".join(packets[:lost] + packets[lost + 1 :]))
        left = times_by_frame(file)
        assert len(left) >= len(times) - 3
        assert {key: time_ns for key, time_ns in left.items() if times.get(key) != time_ns} == {}, lost


def times_by_frame(file: Path) -> dict[tuple[str, str, bytes], int]:
    """The times of whole frames. A connection's number may change with a lost SYN; ports are not used twice."""
    return {
        (item.connection.partition("#")[0], item.kind, item.body): item.time_ns
        for item in read_raw_frames(file)
        if item.body and item.error is None
    }


def hole_rows(packets: Sequence[bytes], folder: Path) -> list[RawFrame]:
    return [item for item in raw_frames(packets, folder) if item.since_ns is not None]


def test_a_hole_has_its_interval_and_its_side(tmp_path: Path) -> None:
    line = talk(Line().open(), range(1, 10))
    lost = 9  # the request of the fourth exchange
    (hole,) = [
        item
        for item in hole_rows(line.packets[:lost] + line.packets[lost + 1 :], tmp_path)
        if "were not" in str(item.error)
    ]
    assert (hole.by, hole.since_ns, hole.time_ns) == ("client", 1007 * 10**9 + 5000, 1009 * 10**9 + 5000)


def test_missing_data_of_fetch_and_produce_hides_nothing(tmp_path: Path) -> None:
    line = Line().open()
    for number in range(1, 30):
        fetch = kw.frame(struct.pack(">hhih", 1, 4, number, -1) + bytes(30))
        line.send(0, fetch).send(1, kw.frame(struct.pack(">i", number) + bytes(20_000)), size=1000)
        talk(line, [100 + number], size=1000)
    data = [at for at, packet in enumerate(line.packets) if len(packet) == 1054 and bytes(900) in packet]
    assert len(data) > 500
    for lost in (data[5], data[50], data[150]):
        packets = line.packets[:lost] + line.packets[lost + 1 :]
        assert hole_rows(packets, tmp_path) == []
        missing = [item.lost for item in raw_frames(packets, tmp_path) if "data of Fetch" in str(item.error)]
        assert missing == [1000]


@pytest.mark.parametrize("begin", range(4, 9))
def test_a_capture_that_begins_midway_says_what_it_lacks(begin: int, tmp_path: Path) -> None:
    line = talk(Line().open(), range(1, 10))
    first = [item for item in raw_frames(line.packets[begin:], tmp_path) if item.kind == "damage"]
    if begin in (4, 8):
        assert [(item.by, item.error) for item in first] == [
            ("broker", "response: the answer to a request that was not captured")
        ]


def test_unknown_api_and_unknown_version() -> None:
    header = b"\x00\x00\x00\x07\x00\x02me"
    unknown_api, unknown_version = b"\x00\x06\x00\x00" + header, b"\x00\x0c\x00\x63" + header
    line = talk(Line().open(), [3]).send(0, kw.frame(unknown_api)).send(1, kw.frame(b"\x00\x00\x00\x07body"))
    frames, report = frames_of(line.send(0, kw.frame(unknown_version)).packets)
    _, _, request, response, versioned = frames
    assert (request.api, request.message, request.error) == ("UpdateMetadata", None, None)
    assert (response.api, response.api_version, response.message, response.error) == (request.api, 0, None, None)
    assert request.header.client_id == "me"
    assert response.header.correlation_id == 7
    assert (versioned.api, versioned.api_version, versioned.message) == ("Heartbeat", 99, None)
    assert "[version]" in (versioned.error or "")
    assert (report.unknown_apis, report.undecodable) == (2, 1)


def test_responses_and_requests_without_the_other() -> None:
    line = Line().open()
    for number in (3, 6, 9):
        line.send(0, kw.frame(asked(number)[0]))
    line.send(1, kw.frame(asked(6)[1])).send(1, kw.frame(asked(3)[1]))
    frames, report = frames_of(line.packets)
    assert [frame.error for frame in frames] == [None] * 4 + ["its request was not captured"]
    assert (report.unmatched_responses, report.unanswered_requests) == (1, 2)


def test_a_produce_without_acknowledgement_is_not_pending() -> None:
    produce = kw.ProduceRequest(acks=0, timeout_ms=1, topic_data=[])
    line = Line().open().send(0, kw.frame(kw.encode_request(produce, 3, correlation_id=1, client_id="p")))
    frames, report = frames_of(talk(line, [3]).packets)
    assert (len(frames), report.unanswered_requests) == (3, 0)


def test_an_unsupported_api_versions_is_answered_in_version_0() -> None:
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


def test_a_body_that_does_not_decode_has_an_error() -> None:
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


def record(kind: int, size: int) -> bytes:
    return struct.pack(">BHH", kind, 0x0303, size) + bytes(size)


HELLO, CHANGE, FINISHED_12, FINISHED_13, SEALED_ALERT, TICKET = (
    record(22, 200), record(20, 1), record(22, 40), record(23, 53), record(23, 19), record(23, 217),
)  # fmt: skip
UNKNOWN_CA, CLOSE_NOTIFY = b"\x15\x03\x03\0\2\2\x30", b"\x15\x03\x03\0\2\1\0"

HANDSHAKES = {
    "an alert of the client": (
        [(0, HELLO), (1, HELLO + SEALED_ALERT), (0, UNKNOWN_CA)], ": alert 48, unknown_ca, of the client",
    ),
    "one of the broker, behind Finished": (
        [(0, HELLO), (1, HELLO), (0, CHANGE + FINISHED_12), (1, b"\x15\x03\x03\0\2\2\xf0")],
        ": alert 240, unknown, of the broker",
    ),
    "no alert": ([(0, HELLO), (1, HELLO + FINISHED_13)], ""),
    "an encrypted one of the client": (
        [(0, HELLO), (1, HELLO + FINISHED_13), (0, CHANGE + SEALED_ALERT)], ": an encrypted alert of the client",
    ),
    "one of the broker, which refuses the client's certificate": (
        [(0, HELLO), (1, HELLO + FINISHED_13), (0, CHANGE + record(23, 900) + FINISHED_13), (1, SEALED_ALERT)],
        ": an encrypted alert of the broker",
    ),
    "TLS 1.2": ([(0, HELLO), (1, HELLO), (0, CHANGE + FINISHED_12), (1, CHANGE + FINISHED_12)], None),
    "TLS 1.3": ([(0, HELLO), (1, HELLO + FINISHED_13), (0, CHANGE + FINISHED_13), (1, TICKET + SEALED_ALERT)], None),
    "TLS 1.3, ended at once": ([(0, HELLO), (1, HELLO + FINISHED_13), (0, CHANGE + FINISHED_13)], None),
    "unanswered": ([(0, HELLO), (0, CLOSE_NOTIFY)], None),
    "not TLS": ([(0, HELLO), (1, b"HTTP/1.1 400 Bad Request")], None),
    "a version that is none": ([(0, HELLO), (1, b"\x16\x02\x03\0\2\2\x28")], None),
    "a size that is none": ([(0, HELLO), (1, b"\x16\x03\x03\xff\xff")], None),
}  # fmt: skip


@pytest.mark.parametrize("size", [1, 1460])
@pytest.mark.parametrize(("sent", "failure"), HANDSHAKES.values(), ids=HANDSHAKES)
def test_a_tls_handshake_that_fails_has_its_connection(
    sent: list[tuple[int, bytes]], failure: str | None, size: int, tmp_path: Path
) -> None:
    line = Line(broker=("10.0.0.2", 443), client=("10.0.0.1", 40000)).open()
    for side, data in sent:
        line.send(side, data, size=size)
    (row,) = left_out(line.close().packets, tmp_path)
    assert row.error is not None
    begin, _, end = row.error.partition(", which looks like TLS")
    assert begin.endswith("left out: 10.0.0.1:40000-10.0.0.2:443")
    name = "10.0.0.1:40000-10.0.0.2:443#1"
    assert (row.connection, end) == (("", "") if failure is None else (name, f", and its handshake failed{failure}"))


@pytest.mark.parametrize("ended_by", [0, 1])
def test_tls_that_a_port_turns_away_has_its_connection(ended_by: int, tmp_path: Path) -> None:
    line = Line(broker=("10.0.0.2", 443), client=("10.0.0.1", 40000)).open().send(0, HELLO)
    line.send(ended_by, flags=FIN | ACK).send(1 - ended_by, flags=FIN | ACK)
    (row,) = left_out(line.packets, tmp_path)
    name = "10.0.0.1:40000-10.0.0.2:443#1"
    assert (row.connection, row.by) == ((name, "client") if ended_by else ("", None))
    beside = left_out([*talk(Line().open(), [1]).packets, *line.packets], tmp_path)
    assert [row.connection for row in beside] == [""], "the port of a broker is known"


@pytest.mark.parametrize("lost", [None, 4])
def test_a_tls_handshake_that_is_cut_did_not_fail(lost: int | None, tmp_path: Path) -> None:
    line = Line(broker=("10.0.0.2", 443)).open().send(0, HELLO).send(1, HELLO).send(1, HELLO)
    packets = line.packets if lost is None else line.close().packets
    found = left_out([packet for at, packet in enumerate(packets) if at != lost], tmp_path)
    assert [row.connection for row in found] == [""]


def left_out(packets: Sequence[bytes], folder: Path) -> list[RawFrame]:
    return [row for row in raw_frames(packets, folder) if "left out" in (row.error or "")]
