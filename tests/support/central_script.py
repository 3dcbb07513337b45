"""Conversations of the 0.8 draft's consumers with their coordinators, by script: as rows of `Frame` and as captures."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import dpkt

import kcoord_wire as kw
from kcoord_wire.forensics.analysis import Analysis, analyze_frames
from kcoord_wire.forensics.model import NS_PER_MS, Frame
from kcoord_wire.messages import central as m
from tests.support.packets import Line
from tests.support.wire_samples import batch

COORDINATOR: Final = "10.9.9.1:9092"
START_MS: Final = 1_700_000_000_001

Parts = Sequence[tuple[str, str]]
"""Topics with their partitions, as the draft names these: ``BROKER-NUMBER``."""


@dataclass
class ScriptedConsumer:
    """A consumer on its connection.

    :ivar connection: its name
    """

    consumer_id: str
    topic_count: str
    connection: str = ""
    owned: Parts = ()

    @property
    def host(self) -> str:
        return f"10.0.0.{len(self.consumer_id)}"


class CentralScript:
    """Plays consumers of group ``g`` and their coordinator; every step takes a millisecond.

    :param fenced: whether messages have epochs, the extension
    :ivar frames: of all connections so far
    """

    def __init__(self, *, fenced: bool = False) -> None:
        self.frames: list[Frame] = []
        self._fenced = fenced
        self._generation = 0
        self._connections = 0

    # ---- what happens

    def consumer(self, consumer_id: str, *, topic_count: str = '{"orders": 1}') -> ScriptedConsumer:
        return ScriptedConsumer(consumer_id, topic_count)

    def register(self, consumer: ScriptedConsumer) -> None:
        """The consumer connects, asks for the coordinator and registers."""
        self._connections += 1
        consumer.connection = f"{consumer.host}:{40000 + self._connections}-{COORDINATOR}#{self._connections}"
        self._say(consumer, "opened")
        self._ask(consumer, m.ClusterMetadataRequest())
        self._answer(consumer, m.ClusterMetadataResponse(coordinator_id=1))
        request = m.RegisterConsumerRequest(
            group_id="g",
            consumer_id=consumer.consumer_id,
            topic_count=consumer.topic_count,
            auto_commit=True,
            auto_offset_rest="smallest",
            session_timeout_ms=6000,
            fence=[] if self._fenced else None,
        )
        self._ask(consumer, request)
        self._answer(consumer, m.RegisterConsumerResponse())

    def ping(self, consumer: ScriptedConsumer, *, answered: bool = True, retries: int = 0) -> None:
        fence = self._fence(m.PingRequestFence)
        self._answer(consumer, m.PingRequest(consumer_id=consumer.consumer_id, num_retries=retries, fence=fence))
        if answered:
            offsets = [m.PingResponseOffset(topic=topic, partition=name, offset=5) for topic, name in consumer.owned]
            self._ask(consumer, m.PingResponse(consumer_id=consumer.consumer_id, offset_info=offsets))

    def rebalance(self, owners: Mapping[str, Parts], consumers: Sequence[ScriptedConsumer]) -> None:
        """StopFetcher to all and their answers, then StartFetcher likewise."""
        self._generation += 1
        for consumer in consumers:
            fence = self._fence(m.StopFetcherRequestFence)
            self._answer(consumer, m.StopFetcherRequest(consumer_id=consumer.consumer_id, fence=fence))
        for consumer in consumers:
            offsets = [
                m.StopFetcherResponseOffset(topic=topic, partition=name, offset=5) for topic, name in consumer.owned
            ]
            self._ask(consumer, m.StopFetcherResponse(consumer_id=consumer.consumer_id, offset_info=offsets))
            consumer.owned = owners.get(consumer.consumer_id, ())
        for consumer in consumers:
            name = consumer.consumer_id
            given = [m.StartFetcherRequestPartition(topic=t, partition=p, offset=0) for t, p in consumer.owned]
            thread = m.StartFetcherRequestOwnership(consumer_thread_id=f"{name}-0", assigned_parts=given)
            threads = [thread] if given else []
            fence = self._fence(m.StartFetcherRequestFence)
            self._answer(consumer, m.StartFetcherRequest(consumer_id=name, ownership_info=threads, fence=fence))
        for consumer in consumers:
            self._ask(consumer, m.StartFetcherResponse(consumer_id=consumer.consumer_id))

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
        return [cls(epoch=1, generation=self._generation)] if self._fenced else None

    def _ask(self, consumer: ScriptedConsumer, message: Any) -> None:
        """The consumer sends a message, be it a request or a response."""
        self._say(consumer, "request", _body(message))

    def _answer(self, consumer: ScriptedConsumer, message: Any) -> None:
        """The coordinator sends a message, be it a request or a response."""
        self._say(consumer, "response", _body(message))

    def _say(self, consumer: ScriptedConsumer, direction: str, body: bytes = b"") -> None:
        seq = len(self.frames)
        time_ns = (START_MS + seq) * NS_PER_MS
        self.frames.append(Frame("made.pcap", seq, seq, time_ns, consumer.connection, direction, body))


def _body(message: Any) -> bytes:
    is_request = kw.registry.by_class(type(message)).type == "request"
    return (kw.encode_request if is_request else kw.encode_response)(message, 0)
