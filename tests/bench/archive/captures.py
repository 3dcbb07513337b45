"""Captures of groups at work, by the million frames: members that join, are assigned, heartbeat, commit and rejoin.

A group has one connection for each member, which begins with its SYN. Every `REJOINS` rounds of 3 s one member's
request to join again makes all others do so. All groups of a capture run at the same time, so that their packets are
mixed as a broker sees them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

import kcoord_wire as kw
from kcoord_wire.protocol.error_codes import ErrorCode

REJOINS: Final = 200
COMMITS: Final = 2  # a commit each so many heartbeats
_BEAT_NS: Final = 3_000_000_000
_START_NS: Final = 1_700_000_000_000_000_000
_PORT: Final = 9092
_BROKER: Final = bytes((10, 0, 0, 1))
_SYN, _ACK, _PUSH = 2, 16, 24
_TOPIC: Final = "orders"
_HOUR_NS: Final = 3_600_000_000_000
SHAPES: Final[dict[str, tuple[tuple[int, int], ...]]] = {
    "even": ((5, 1),) * 10,
    "connection": ((5, 450),) + ((5, 1),) * 9,
    "group": ((45, 1),) + ((1, 1),) * 5,
}
"""Members of each group, and how many times as often its first member sends: nine tenths of the frames are those of one
connection, or of one group."""

_Packet = tuple[int, bytes]
"""When it was captured, in nanoseconds, and its record in the file."""


class _Connection:
    """One client's connection: packets with sequence numbers as TCP counts them."""

    def __init__(self, number: int) -> None:
        self._client = struct.pack(">I", (10 << 24) + 256 + number // 20_000)
        self._port = 20_000 + number % 20_000
        self._sent = [1000, 5000]  # of the client, of the broker
        self._correlation = 0

    def open(self, at: int) -> Iterator[_Packet]:
        yield self._packet(at, 0, _SYN, b"")
        yield self._packet(at + 1000, 1, _SYN | _ACK, b"")
        self._sent = [each + 1 for each in self._sent]

    def exchange(self, at: int, took: int, request: object, response: object, version: int) -> Iterator[_Packet]:
        self._correlation += 1
        for side, time, frame in (
            (0, at, kw.encode_request(request, version, correlation_id=self._correlation, client_id="orders-service")),
            (1, at + took, kw.encode_response(response, version, correlation_id=self._correlation)),
        ):
            data = struct.pack(">i", len(frame)) + frame
            yield self._packet(time, side, _PUSH, data)
            self._sent[side] += len(data)

    def _packet(self, time: int, side: int, flags: int, data: bytes) -> _Packet:
        ends = [(self._client, self._port), (_BROKER, _PORT)]
        (source, from_port), (target, to_port) = ends[side], ends[1 - side]
        tcp = struct.pack(
            ">HHIIBBHHH", from_port, to_port, self._sent[side], self._sent[1 - side], 5 << 4, flags, 65535, 0, 0
        )
        ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 40 + len(data), 0, 0, 64, 6, 0, source, target)
        packet = bytes(12) + b"\x08\x00" + ip + tcp + data
        return time, struct.pack("<IIII", time // 10**9, time % 10**9, len(packet), len(packet)) + packet


class _Group:
    """A group at work.

    :ivar number: unlike that of any other group
    :ivar hour: in which its members have joined: processes that start again have other member ids
    :ivar often: how many times as often as the others its first member sends
    """

    def __init__(self, number: int, members: int, *, hour: int = 0, often: int = 1) -> None:
        self.often = often
        self.name = f"orders-{number:05}"
        start = f"5f0c2b1e-97d4-4a0e-8f6a-5a1e{hour:08}"
        self.members = [f"consumer-{number}-{each}-{start}" for each in range(members)]
        self.connections = [_Connection(number * members + each) for each in range(members)]
        self.generation = 0
        self.subscription = kw.encode_prefixed(kw.ConsumerProtocolSubscription(topics=[_TOPIC]), 1)
        self.assignments = [
            kw.encode_prefixed(
                kw.ConsumerProtocolAssignment(
                    assigned_partitions=[
                        kw.ConsumerProtocolAssignmentTopicPartition(topic=_TOPIC, partitions=[each, each + members])
                    ]
                ),
                1,
            )
            for each in range(members)
        ]

    def round(self, number: int, start: int = _START_NS) -> Iterator[_Packet]:
        """The packets of three seconds.

        :param start: of the first round
        """
        start += number * _BEAT_NS
        if number == 0:
            for connection in self.connections:
                yield from connection.open(start)
        if number % REJOINS == 0:
            yield from self._join(start + 10_000_000)
        for each, (connection, member) in enumerate(zip(self.connections, self.members, strict=True)):
            at = start + 1_000_000_000 + each * 1_000_000
            ends = number % REJOINS == REJOINS - 1 and each
            code = ErrorCode.REBALANCE_IN_PROGRESS if ends else ErrorCode.NONE
            beat = kw.HeartbeatRequest(group_id=self.name, generation_id=self.generation, member_id=member)
            for more in range(1 if each else self.often):
                later = at + more * _BEAT_NS // 2 // self.often
                yield from connection.exchange(later, 300_000, beat, kw.HeartbeatResponse(error_code=code), 4)
                if (number + more) % COMMITS == 0:
                    yield from connection.exchange(later + 500_000, 900_000, *self._commit(each, number), 8)

    def _join(self, at: int) -> Iterator[_Packet]:
        self.generation += 1
        offers = [kw.JoinGroupRequestProtocol(name="range", metadata=self.subscription)]
        everyone = [kw.JoinGroupResponseMember(member_id=name, metadata=self.subscription) for name in self.members]
        given = [
            kw.SyncGroupRequestAssignment(member_id=name, assignment=data)
            for name, data in zip(self.members, self.assignments, strict=True)
        ]
        for each, (connection, member) in enumerate(zip(self.connections, self.members, strict=True)):
            request = kw.JoinGroupRequest(
                group_id=self.name,
                session_timeout_ms=45_000,
                rebalance_timeout_ms=300_000,
                member_id=member,
                protocol_type="consumer",
                protocols=offers,
            )
            response = kw.JoinGroupResponse(
                generation_id=self.generation,
                protocol_type="consumer",
                protocol_name="range",
                leader=self.members[0],
                member_id=member,
                members=[] if each else everyone,
            )
            asked = at + each * 100_000
            yield from connection.exchange(asked, at + 50_000_000 - asked, request, response, 7)
        for each, (connection, member) in enumerate(zip(self.connections, self.members, strict=True)):
            sync = kw.SyncGroupRequest(
                group_id=self.name,
                generation_id=self.generation,
                member_id=member,
                protocol_type="consumer",
                protocol_name="range",
                assignments=[] if each else given,
            )
            answer = kw.SyncGroupResponse(
                protocol_type="consumer", protocol_name="range", assignment=self.assignments[each]
            )
            asked = at + 60_000_000 + each * 100_000
            yield from connection.exchange(asked, at + 90_000_000 - asked, sync, answer, 5)

    def _commit(self, each: int, number: int) -> tuple[object, object]:
        partitions = (each, each + len(self.members))
        request = kw.OffsetCommitRequest(
            group_id=self.name,
            generation_id_or_member_epoch=self.generation,
            member_id=self.members[each],
            topics=[
                kw.OffsetCommitRequestTopic(
                    name=_TOPIC,
                    partitions=[
                        kw.OffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=100 * number, committed_metadata=""
                        )
                        for partition in partitions
                    ],
                )
            ],
        )
        answers = [kw.OffsetCommitResponsePartition(partition_index=partition) for partition in partitions]
        return request, kw.OffsetCommitResponse(topics=[kw.OffsetCommitResponseTopic(name=_TOPIC, partitions=answers)])


def _write_capture(path: Path, first: int, groups: int, members: int, rounds: int) -> None:
    _write_rounds(path, [_Group(first + number, members) for number in range(groups)], rounds, _START_NS)


def _write_rounds(path: Path, every: Sequence[_Group], rounds: int, start: int) -> None:
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 1 << 18, 1))  # nanoseconds, Ethernet
        for number in range(rounds):
            packets = sorted(
                (packet for group in every for packet in group.round(number, start)), key=lambda packet: packet[0]
            )
            file.writelines(data for _, data in packets)


def write_captures(folder: Path, frames: int, files: int, groups: int, members: int) -> int:
    """Write captures with about so many frames together, and return their bytes.

    :param groups: of each file, which no other file has
    :param members: of each group
    """
    folder.mkdir(parents=True)
    each = 2 * (1 + 1 / COMMITS + 2 / REJOINS)  # of a member in a round
    rounds = max(2, round(frames / files / groups / members / each))
    with ProcessPoolExecutor() as pool:
        for run in [
            pool.submit(_write_capture, folder / f"broker-{number:04}.pcap", number * groups, groups, members, rounds)
            for number in range(files)
        ]:
            run.result()
    return sum(path.stat().st_size for path in folder.iterdir())


def write_hours(folder: Path, frames: int, files: int, shape: str) -> int:
    """Write captures of the same groups, a folder each, with about so many frames together; return their bytes.

    :param shape: one of `SHAPES`
    """
    folder.mkdir(parents=True)
    each = 2 * (1 + 1 / COMMITS)
    rounds = max(2, round(frames / files / each / sum(members - 1 + often for members, often in SHAPES[shape])))
    with ProcessPoolExecutor() as pool:
        for run in [
            pool.submit(_write_hour, folder / f"hour-{number:02}", number, shape, rounds) for number in range(files)
        ]:
            run.result()
    return sum(path.stat().st_size for path in folder.rglob("*.pcap"))


def _write_hour(folder: Path, number: int, shape: str, rounds: int) -> None:
    groups = [_Group(at, members, hour=number, often=often) for at, (members, often) in enumerate(SHAPES[shape])]
    folder.mkdir()
    _write_rounds(folder / "broker.pcap", groups, rounds, _START_NS + number * max(_HOUR_NS, 2 * rounds * _BEAT_NS))
