"""Conversations of the 0.8 draft's consumers with their coordinators, by script: as rows of `Frame` and as captures."""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dpkt

import kcoord_wire as kw
from kcoord_wire.central.draft.events import CentralError
from kcoord_wire.forensics.analysis import Analysis, analyze_frames
from kcoord_wire.forensics.model import NS_PER_MS, Frame
from kcoord_wire.messages import central as m
from tests.support.packets import Line
from tests.support.wire_samples import batch

Parts = Sequence[tuple[str, str]]
"""Topics with their partitions, as the draft names these: ``BROKER-NUMBER``."""


@dataclass
class ScriptedConsumer:
    """A consumer on its connection.

    :ivar connection: the name of its present connection
    """

    consumer_id: str
    host: str
    group: str
    session_ms: int
    topic_count: str
    connection: str = ""
    positions: dict[tuple[str, str], int] = field(default_factory=dict)


class CentralScript:
    """Plays consumers and coordinators; every step takes a millisecond.

    :param fenced: whether messages have epochs, the extension
    :ivar frames: of all connections so far
    :ivar coordinator: address of the present coordinator
    :ivar epoch: of its election
    """

    def __init__(self, *, fenced: bool = False, start_ms: int = 1_700_000_000_000) -> None:
        self.frames: list[Frame] = []
        self.coordinator = "10.9.9.1:9092"
        self.epoch = 1
        self.generation = 0
        self.now_ms = start_ms
        self._fenced = fenced
        self._connections = 0

    # ---- what happens

    def wait(self, ms: int) -> None:
        self.now_ms += ms

    def elect(self, coordinator: str) -> None:
        """Another coordinator takes over."""
        self.coordinator, self.epoch, self.generation = coordinator, self.epoch + 1, 0

    def consumer(
        self, consumer_id: str, *, group: str = "g", session_ms: int = 6000, topic_count: str = '{"orders": 1}'
    ) -> ScriptedConsumer:
        return ScriptedConsumer(consumer_id, f"10.0.0.{len(consumer_id)}", group, session_ms, topic_count)

    def register(self, consumer: ScriptedConsumer, *, error: int = 0, owns: Parts | None = None) -> None:
        """The consumer connects, asks for the coordinator and registers.

        :param owns: what the response assigns, in the older passage
        """
        self.park(consumer)
        self.assign([(consumer, owns)], error=error)

    def park(self, consumer: ScriptedConsumer) -> None:
        """The same, until the coordinator has the registration."""
        self._connections += 1
        consumer.connection = f"{consumer.host}:{40000 + self._connections}-{self.coordinator}#{self._connections}"
        self._say(consumer, "opened")
        self._ask(consumer, m.ClusterMetadataRequest())
        self._answer(consumer, m.ClusterMetadataResponse(coordinator_id=1))
        fence = m.RegisterConsumerRequestFence(epoch=self.epoch - 1)
        request = m.RegisterConsumerRequest(
            group_id=consumer.group,
            consumer_id=consumer.consumer_id,
            topic_count=consumer.topic_count,
            auto_commit=True,
            auto_offset_rest="smallest",
            session_timeout_ms=consumer.session_ms,
            fence=([fence] if self.epoch > 1 else []) if self._fenced else None,
        )
        self._ask(consumer, request)

    def assign(self, owners: Sequence[tuple[ScriptedConsumer, Parts | None]], *, error: int = 0) -> None:
        """The coordinator answers registrations, in the older passage with partitions."""
        part = m.RegisterConsumerResponsePartition
        thread = m.RegisterConsumerResponseOwnership
        for consumer, owns in owners:
            response = m.RegisterConsumerResponse(error_code=error)
            if owns is not None:
                parts = [part(topic=topic, partition=name, offset=0) for topic, name in owns]
                name = f"{consumer.consumer_id}-0"
                response.ownership_info = [thread(consumer_thread_id=name, assigned_parts=parts)]
            self._answer(consumer, response)

    def ping(self, consumer: ScriptedConsumer, *, answered: bool = True, retries: int = 0) -> None:
        request = m.PingRequest(consumer_id=consumer.consumer_id, num_retries=retries)
        request.fence = self._fence(m.PingRequestFence)
        self._answer(consumer, request)
        if answered:
            offsets = [
                m.PingResponseOffset(topic=t, partition=p, offset=at) for (t, p), at in consumer.positions.items()
            ]
            self._ask(consumer, m.PingResponse(consumer_id=consumer.consumer_id, offset_info=offsets))

    def stop(
        self,
        consumers: Sequence[ScriptedConsumer],
        *,
        silent: Collection[ScriptedConsumer] = (),
        refused: Collection[ScriptedConsumer] = (),
    ) -> None:
        """StopFetcher to all, then the answers of those that are not silent, of those that refuse with an error."""
        self.generation += 1
        for consumer in consumers:
            request = m.StopFetcherRequest(consumer_id=consumer.consumer_id)
            request.fence = self._fence(m.StopFetcherRequestFence)
            self._answer(consumer, request)
        for consumer in consumers:
            if consumer not in silent:
                held = consumer.positions.items()
                offsets = [m.StopFetcherResponseOffset(topic=t, partition=p, offset=at) for (t, p), at in held]
                error = CentralError.STALE_EPOCH if consumer in refused else 0
                response = m.StopFetcherResponse(consumer_id=consumer.consumer_id, offset_info=offsets)
                response.error_code = int(error)
                self._ask(consumer, response)
                consumer.positions = {}

    def start(
        self, owners: Sequence[tuple[ScriptedConsumer, Parts]], *, silent: Collection[ScriptedConsumer] = ()
    ) -> None:
        """StartFetcher to all, then the answers of those that are not silent."""
        for consumer, parts in owners:
            given = [m.StartFetcherRequestPartition(topic=t, partition=p, offset=0) for t, p in parts]
            thread = m.StartFetcherRequestOwnership(
                consumer_thread_id=f"{consumer.consumer_id}-0", assigned_parts=given
            )
            request = m.StartFetcherRequest(consumer_id=consumer.consumer_id, ownership_info=[thread] if parts else [])
            request.fence = self._fence(m.StartFetcherRequestFence)
            self._answer(consumer, request)
        for consumer, parts in owners:
            if consumer not in silent:
                consumer.positions = dict.fromkeys(parts, 5)
                self._ask(consumer, m.StartFetcherResponse(consumer_id=consumer.consumer_id))

    def rebalance(self, owners: Mapping[str, Parts], consumers: Sequence[ScriptedConsumer]) -> None:
        """A whole rebalance of these consumers."""
        self.stop(consumers)
        self.start([(consumer, owners.get(consumer.consumer_id, ())) for consumer in consumers])

    def close(self, consumer: ScriptedConsumer) -> None:
        self._say(consumer, "closed")

    # ---- what was seen

    def analyze(self) -> Analysis:
        return analyze_frames([batch(self.frames)])

    def capture(self) -> io.BytesIO:
        """The frames as a capture file."""
        file = bytes(dpkt.pcap.LEFileHdr(snaplen=1 << 18))
        lines: dict[str, Line] = {}
        for frame in self.frames:
            client, broker = frame.connection.partition("#")[0].split("-")
            ends = [(end.rpartition(":")[0], int(end.rpartition(":")[2])) for end in (client, broker)]
            line = lines.setdefault(frame.connection, Line(*ends))
            seen = len(line.packets)
            if frame.direction in ("opened", "closed"):
                line.open() if frame.direction == "opened" else line.close()
            else:
                line.send(int(frame.direction == "response"), kw.frame(frame.frame))
            seconds, rest = divmod(frame.time_ns, 10**9)
            for packet in line.packets[seen:]:
                size = {"caplen": len(packet), "len": len(packet)}
                file += bytes(dpkt.pcap.LEPktHdr(tv_sec=seconds, tv_usec=rest // 1000, **size)) + packet
        return io.BytesIO(file)

    def _fence(self, cls: Any) -> Any:
        return [cls(epoch=self.epoch, generation=self.generation)] if self._fenced else None

    def _ask(self, consumer: ScriptedConsumer, message: Any) -> None:
        """The consumer sends a message, be it a request or a response."""
        self._say(consumer, "request", _body(message))

    def _answer(self, consumer: ScriptedConsumer, message: Any) -> None:
        """The coordinator sends a message, be it a request or a response."""
        self._say(consumer, "response", _body(message))

    def _say(self, consumer: ScriptedConsumer, direction: str, body: bytes = b"") -> None:
        self.now_ms += 1
        seq, time_ns = len(self.frames), self.now_ms * NS_PER_MS
        self.frames.append(Frame("made.pcap", seq, seq, time_ns, consumer.connection, direction, body))


def _body(message: Any) -> bytes:
    is_request = kw.registry.by_class(type(message)).type == "request"
    return (kw.encode_request if is_request else kw.encode_response)(message, 0)
