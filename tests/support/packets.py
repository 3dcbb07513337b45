"""Kafka connections as captured packets, and capture files of them."""

from __future__ import annotations

import io
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import dpkt

import kcoord_wire as kw
from kcoord_wire.capture import CapturedFrame, CaptureReport, read_capture
from kcoord_wire.capture.packets import ACK, FIN, SYN

CLIENT, BROKER = ("10.0.0.1", 50000), ("10.0.0.2", 9092)


@dataclass
class Line:
    """One TCP connection between a client and a broker, as Ethernet packets.

    :ivar initials: the first sequence numbers of client and broker
    :ivar packets: so far
    """

    client: tuple[str, int] = CLIENT
    broker: tuple[str, int] = BROKER
    initials: tuple[int, int] = (1000, 2**32 - 50)
    packets: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.next = list(self.initials)

    def send(self, sender: int, payload: bytes = b"", flags: int = ACK, size: int = 1460) -> Line:
        """Send a payload in segments of `size` bytes, from the client (0) or the broker (1)."""
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
    """Send a request and its response for each number."""
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


def frames_of(
    packets: Sequence[bytes], *, snaplen: int = 65535, **options: Any
) -> tuple[list[CapturedFrame], CaptureReport]:
    """The frames of a capture of packets, and the report about it."""
    report = CaptureReport()
    return list(read_capture(capture(packets, snaplen), report=report, **options)), report


def summary(frames: Sequence[CapturedFrame]) -> list[tuple[int | None, str, bytes]]:
    """Correlation id, direction and body of each frame."""
    return [(frame.correlation_id, frame.direction, frame.raw) for frame in frames]


def expected(numbers: Sequence[int]) -> list[tuple[int, str, bytes]]:
    """The `summary` of what `talk` sends."""
    return [
        (number, side, body)
        for number in numbers
        for side, body in zip(("request", "response"), asked(number), strict=True)
    ]
