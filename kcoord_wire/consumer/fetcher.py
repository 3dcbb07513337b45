"""Fetches records and looks up offsets, from the leaders of the assigned partitions, in the background.

Laws:

* At most one request to a broker is in flight, and none for a partition whose records wait for the application: what is
  buffered is at most one response for each broker.
* It needs no coordinator: while the member looks for one, or joins, the partitions that it holds are fetched.
* A leader that fails or has moved means new metadata and a pause, not an error for the application.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kcoord_wire.consumer.brokers import Brokers, backoff_seconds
from kcoord_wire.consumer.connection import Connection
from kcoord_wire.consumer.errors import BrokerError
from kcoord_wire.consumer.fetching import (
    NEWEST_LIST_OFFSETS,
    ask_for_offsets,
    ask_for_records,
    newest_fetch,
    take_offsets,
    take_records,
)
from kcoord_wire.consumer.positions import PartitionState, Positions
from kcoord_wire.consumer.settings import ConsumerSettings
from kcoord_wire.errors import EncodeError
from kcoord_wire.protocol.api_keys import ApiKey


class Fetcher:
    """Keeps a request in flight to each broker that leads a partition with nothing buffered.

    :param refresh: asks for new metadata
    :param changed: called when there is something new for the application
    """

    def __init__(
        self,
        settings: ConsumerSettings,
        brokers: Brokers,
        positions: Positions,
        refresh: Callable[[], None],
        changed: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._brokers = brokers
        self._positions = positions
        self._refresh = refresh
        self._changed = changed
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def start(self) -> None:
        """Send what can be sent now. Called after everything that may give a broker work."""
        for node_id in self._work().keys() - self._tasks.keys():
            task = asyncio.get_running_loop().create_task(self._serve(node_id), name=f"consumer fetches from {node_id}")
            self._tasks[node_id] = task

    async def close(self) -> None:
        """End; requests in flight are given up."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _work(self) -> dict[int, list[PartitionState]]:
        """Return the partitions that wait for a broker, by its node id."""
        work: dict[int, list[PartitionState]] = {}
        has_leaders = True
        for state in self._positions:
            if state.reset_to is not None or state.is_fetchable:
                leader = self._brokers.metadata.leader(state.partition)
                if leader is None:
                    has_leaders = False
                else:
                    work.setdefault(leader.node_id, []).append(state)
        if not has_leaders:
            self._refresh()
        return work

    async def _serve(self, node_id: int) -> None:
        """Send one request after another to a broker, as long as there is work for it."""
        failures = 0
        try:
            while node_id in self._work():
                stale = False
                try:
                    connection = await self._brokers.to(node_id)
                    if states := self._work().get(node_id):  # it may have changed while the connection was opened
                        stale = await self._ask(connection, states)
                except (BrokerError, EncodeError):  # of the latter: an offset that a broker has made up
                    stale = True
                failures = failures + 1 if stale else 0
                self._changed()
                if stale:
                    self._refresh()
                    await asyncio.sleep(backoff_seconds(self._settings, failures))
        finally:
            del self._tasks[node_id]

    async def _ask(self, connection: Connection, states: list[PartitionState]) -> bool:
        """Look up offsets or fetch, both if there is both to do, so that a partition whose offset cannot be looked up
        does not hold up the others; return whether to pause, and to ask for metadata."""
        metadata = self._brokers.metadata
        stale = False
        resets = [state for state in states if state.reset_to is not None]
        if resets:
            version = connection.highest_version(ApiKey.LIST_OFFSETS, NEWEST_LIST_OFFSETS)
            looked_up = ask_for_offsets(resets, metadata, self._settings)
            stale = take_offsets(looked_up, await connection.request(looked_up.message, version), self._positions)
        wanted = [state for state in states if self._may_fetch(state)]
        if not wanted:
            return stale
        version = connection.highest_version(ApiKey.FETCH, newest_fetch(wanted, metadata))
        asked = ask_for_records(wanted, metadata, self._settings, version)
        response = await connection.request(asked.message, version)
        return take_records(asked, response, self._positions, self._settings) or stale

    def _may_fetch(self, state: PartitionState) -> bool:
        """Whether the partition is still assigned, wants records and has a leader: it may have changed meanwhile."""
        leader = self._brokers.metadata.leader(state.partition)
        return state.is_fetchable and self._positions.is_current(state) and leader is not None
