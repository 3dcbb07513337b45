"""`CentralBroker`: a broker of the draft with a real socket, in its own thread and event loop.

    with CentralBroker("zk1:2181,zk2:2181/kafka", broker_id=1, topics={"orders": 4}) as broker:
        ...  # consumers find the coordinator through broker.address

    with CentralBroker(topics={"orders": 4}) as broker:  # alone, with a ZooKeeper of its own in memory

Laws, besides those of `hosting`:

* A fetch with a fence is refused, ``STALE_EPOCH``, if its epoch is lower than the coordinator's that this broker knows,
  or, while this broker itself coordinates, if it is another one.

Source: "the 0.8 consumer-coordinator draft", sections 5 and 10.
"""

from __future__ import annotations

import time

from kcoord_wire.central.draft.coordinator import DraftCoordinator
from kcoord_wire.central.draft.events import CentralError, CoordinatorSettings
from kcoord_wire.central.hosting import HostedBroker
from kcoord_wire.central.server import Server
from kcoord_wire.central.status import coordinator_status
from kcoord_wire.central.topics import GeneratedTopics
from kcoord_wire.kernel.hosts import monotonic_ms
from kcoord_wire.kernel.machines import BrokerAddress
from kcoord_wire.messages import central as m


class CentralBroker(HostedBroker[CoordinatorSettings]):
    """A broker that stands for election as the coordinator. Its parameters are those of `HostedBroker`."""

    _machine: DraftCoordinator
    _generated: GeneratedTopics | None = None

    @property
    def epoch(self) -> int | None:
        """Of its term as the coordinator; None if another broker, or none, is elected."""
        return self._life.call(lambda: self._machine.epoch_at(monotonic_ms()))

    def _make_server(self) -> Server:
        return Server({m.CentralFetchRequest: self._fetch, m.CentralStatusRequest: self._status}, limits=self._limits)

    def _make_machine(self, own: BrokerAddress) -> DraftCoordinator:
        return DraftCoordinator(own, self._settings or CoordinatorSettings())

    def _fetch(self, request: m.CentralFetchRequest) -> m.CentralFetchResponse:
        clock = self._own_topics.clock
        if clock is None:
            return m.CentralFetchResponse(error_code=CentralError.UNKNOWN_TOPIC_OR_PARTITION)
        if self._generated is None:
            partitions = self._own_topics.announced
            self._generated = GeneratedTopics(self._broker_id, partitions, clock.since_ms, clock.rate)
        if request.fence and self._is_stale(request.fence[0].epoch):
            return m.CentralFetchResponse(error_code=CentralError.STALE_EPOCH)
        return self._generated.fetch(request, int(time.time() * 1000))

    def _is_stale(self, epoch: int) -> bool:
        own, leader = self._machine.epoch_at(monotonic_ms()), self._machine.leadership.leader
        if own is not None:
            return epoch != own
        return leader is not None and epoch < leader.epoch

    def _status(self, request: m.CentralStatusRequest) -> m.CentralStatusResponse:
        return coordinator_status(self._machine, self._server.host_of, monotonic_ms())
