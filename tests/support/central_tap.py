"""The frames of a virtual cluster of the draft, as a capture on the brokers' machines would have them."""

from __future__ import annotations

from typing import Any

from kcoord_wire.central.wire import draft_frame
from kcoord_wire.forensics.analysis import Analysis, analyze_frames
from kcoord_wire.forensics.model import NS_PER_MS, Frame
from kcoord_wire.kernel.virtual.clock import EPOCH_MS
from kcoord_wire.worlds.central.cluster import CentralCluster
from kcoord_wire.worlds.central.wire import Link, VirtualBroker
from tests.support.wire_samples import batch

_SIZE = 4


class CentralTap:
    """Listens on the wire of a cluster and changes nothing.

    :ivar frames: so far
    """

    def __init__(self, sim: CentralCluster) -> None:
        self.frames: list[Frame] = []
        self._sim = sim
        self._open: set[str] = set()
        wire: Any = sim.wire
        self._arrived, self._answer, self._end = wire.arrived, wire.answer, wire.end
        self._notice_close, self._crashed = wire._notice_close, wire.crashed
        wire.arrived, wire.answer, wire.end = self.arrived, self.answer, self.end
        wire._notice_close, wire.crashed = self.notice_close, self.crashed

    def arrived(self, connection: Link, *message: Any) -> None:
        [frame] = message
        if not frame:
            self._open.add(connection.name)
            self._say(connection, "opened")
        elif connection.name in self._open:
            self._say(connection, "request", frame[_SIZE:])
        self._arrived(connection, *message)

    def answer(self, number: int, message: Any) -> Link | None:
        link = self._sim.wire.link(number)
        if link.is_open and link.name in self._open:
            self._say(link, "response", draft_frame(message)[_SIZE:])
        answered: Link | None = self._answer(number, message)
        return answered

    def end(self, number: int) -> None:
        self._close(self._sim.wire.link(number))
        self._end(number)

    def notice_close(self, link: Link) -> None:
        self._close(link)
        self._notice_close(link)

    def crashed(self, broker: VirtualBroker) -> None:
        for link in list(self._sim.wire._links.values()):
            if link.broker is broker:
                self._close(link)
        self._crashed(broker)

    def analyze(self) -> Analysis:
        return analyze_frames([batch(self.frames)])

    def _close(self, link: Link) -> None:
        if link.name in self._open:
            self._open.discard(link.name)
            self._say(link, "closed")

    def _say(self, link: Link, direction: str, body: bytes = b"") -> None:
        seq, time_ns = len(self.frames), (EPOCH_MS + self._sim.now) * NS_PER_MS
        self.frames.append(Frame("sim", seq, seq, time_ns, link.name, direction, body))
