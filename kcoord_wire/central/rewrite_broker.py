"""`RewriteBroker`: a broker of "Kafka 0.9 Consumer Rewrite Design" with a real socket.

    with RewriteBroker("zk1:2181,zk2:2181/kafka", broker_id=1, topics={"orders": 4}) as broker:
        ...  # members find the coordinator of their group through broker.address

Laws, besides those of `hosting`:

* Each broker coordinates the groups of its shards; there is no broker that coordinates all.
* It serves ConsumerMetadata, JoinGroup, Heartbeat, OffsetCommit, OffsetFetch, Metadata and Fetch, in the versions of
  clients 0.8.2 (`rewrite_wire.VERSIONS`), and closes connections that send anything else.
"""

from __future__ import annotations

import time
from dataclasses import replace

from kcoord_wire import messages as m
from kcoord_wire.central.connection import Limits
from kcoord_wire.central.hosting import HostedBroker
from kcoord_wire.central.rewrite.coordinator import RewriteCoordinator
from kcoord_wire.central.rewrite.events import CoordinatorSettings
from kcoord_wire.central.rewrite_topics import RewriteTopics
from kcoord_wire.central.rewrite_wire import RewriteDialect
from kcoord_wire.central.server import Server
from kcoord_wire.kernel.machines import BrokerAddress


class RewriteBroker(HostedBroker[CoordinatorSettings]):
    """A broker that coordinates the groups of its shards. Its parameters are those of `HostedBroker`."""

    topics_class = RewriteTopics
    _machine: RewriteCoordinator
    _own_topics: RewriteTopics

    @property
    def shards(self) -> dict[int, int]:
        """The shards whose groups it coordinates, each with the epoch of its takeover."""
        return self._life.call(
            lambda: {shard.number: shard.epoch for shard in self._machine.shards.own.values() if shard.is_loaded}
        )

    def _make_server(self) -> Server:
        limits = self._limits or Limits()
        # No peer is registered here, and commits are as long as an assignment.
        limits = replace(limits, max_unregistered_frame_size=limits.max_frame_size)
        return Server({m.FetchRequest: self._fetch}, dialect=RewriteDialect(), limits=limits)

    def _make_machine(self, own: BrokerAddress) -> RewriteCoordinator:
        return RewriteCoordinator(own, self._settings)

    def _fetch(self, request: m.FetchRequest) -> m.FetchResponse:
        return self._own_topics.fetch(request, int(time.time() * 1000))
