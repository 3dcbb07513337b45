"""Fetching: the requests for records and for offsets, what their responses mean for the positions, and who sends them.

Laws:

* A response changes only partitions that were asked for, and only where they still stand where they stood then: what
  the application has sought or given up in the meantime stays as it is.
* Fetch goes without a session (KIP-227): each request names every partition that it wants.
* Each partition's leader epoch goes with it (KIP-320), so that a broker that has fallen behind, or a client that has,
  is noticed; a log that was cut back moves the position back to where it diverges.
* `Fetcher`, which alone does IO, has at most one request to a broker in flight, and none for a partition whose records
  wait for the application. A request asks for what ``fetch_max_bytes`` leaves beside the waiting records of the same
  broker: of each broker at most that is buffered, and one batch, which it always sends (KIP-74). Paused partitions do
  not count, else they would stop the others.
* It needs no coordinator: while the member looks for one, or joins, the partitions that it holds are fetched.
* A leader that fails or has moved means new metadata and a pause, not an error for the application.

Source: kafka/clients `AbstractFetch.java`, `FetchCollector.java`, `OffsetFetcher.java`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kcoord_wire import messages as m
from kcoord_wire.assignors import TopicPartition
from kcoord_wire.consumer.brokers import Brokers, Metadata, backoff_seconds
from kcoord_wire.consumer.connection import BrokerConnection
from kcoord_wire.consumer.errors import BrokerError, CorruptRecordsError, TopicError
from kcoord_wire.consumer.positions import FetchedRecords, PartitionState, Positions
from kcoord_wire.consumer.settings import ConsumerSettings
from kcoord_wire.errors import EncodeError
from kcoord_wire.protocol.api_keys import ApiKey
from kcoord_wire.protocol.error_codes import ErrorCode

NEWEST_FETCH: Final = 17
_NEWEST_BY_NAME: Final = 12  # from the next version on topics go by their ids
NEWEST_LIST_OFFSETS: Final = 7  # the later ones are about tiered storage

_NO_SESSION: Final = -1


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, and where its partitions stood.

    :ivar message: the request
    :ivar states: the partitions, each with the offset (of Fetch) or the timestamp (of ListOffsets) that was asked for
    """

    message: Any
    states: Mapping[TopicPartition, tuple[PartitionState, int]]
    names: Mapping[Any, str]


def newest_fetch(states: Iterable[PartitionState], metadata: Metadata) -> int:
    """Return the newest version of Fetch in which these partitions can be asked for."""
    has_ids = all(state.partition.topic in metadata.topic_ids for state in states)
    return NEWEST_FETCH if has_ids else _NEWEST_BY_NAME


def ask_for_records(
    states: Iterable[PartitionState], metadata: Metadata, settings: ConsumerSettings, version: int, max_bytes: int
) -> Asked:
    """Return a Fetch request for these partitions, whose positions are known."""
    asked: dict[TopicPartition, tuple[PartitionState, int]] = {}
    topics: dict[str, m.FetchRequestFetchTopic] = {}
    for state in states:
        name, index = state.partition
        offset = state.offset
        leader = metadata.leader(state.partition)
        assert offset is not None  # the caller has chosen such partitions
        assert leader is not None
        asked[state.partition] = state, offset
        topic = topics.get(name)
        if topic is None:
            topics[name] = topic = m.FetchRequestFetchTopic(topic=name)
            if name in metadata.topic_ids:
                topic.topic_id = metadata.topic_ids[name]
        topic.partitions.append(
            m.FetchRequestFetchPartition(
                partition=index,
                current_leader_epoch=leader.epoch,
                fetch_offset=offset,
                last_fetched_epoch=state.leader_epoch if version >= 12 else -1,
                partition_max_bytes=settings.max_partition_fetch_bytes,
            )
        )
    request = m.FetchRequest(
        max_wait_ms=settings.fetch_max_wait_ms,
        min_bytes=settings.fetch_min_bytes,
        max_bytes=max_bytes,
        isolation_level=_isolation(settings),
        session_epoch=_NO_SESSION,
        topics=list(topics.values()),
    )
    by_id = {topic.topic_id: name for name, topic in topics.items()} if version > _NEWEST_BY_NAME else {}
    return Asked(request, asked, by_id)


def _isolation(settings: ConsumerSettings) -> int:
    return 1 if settings.isolation_level == "read_committed" else 0


def take_records(asked: Asked, response: m.FetchResponse, positions: Positions, settings: ConsumerSettings) -> bool:
    """Take in the response to a Fetch; return whether the metadata is stale or something has to be tried again."""
    stale = bool(response.error_code)
    for topic in response.responses:
        name = asked.names.get(topic.topic_id) if asked.names else topic.topic
        for partition in topic.partitions:
            state, offset = asked.states.get(TopicPartition(name or "", partition.partition_index), (None, -1))
            if state is None or not positions.is_current(state) or state.offset != offset or state.fetched is not None:
                continue
            stale |= _take_partition(state, offset, partition, positions, settings)
            end = partition.last_stable_offset if _isolation(settings) else partition.high_watermark
            if not partition.error_code and end >= 0:
                state.end_offset = end
    return stale


def _take_partition(
    state: PartitionState, offset: int, answer: Any, positions: Positions, settings: ConsumerSettings
) -> bool:
    error = answer.error_code
    if error == ErrorCode.OFFSET_OUT_OF_RANGE:
        positions.out_of_range(state)
    elif error == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        positions.fail(TopicError(state.partition.topic, ErrorCode(error)))
    elif error == ErrorCode.CORRUPT_MESSAGE:
        positions.fail(CorruptRecordsError(state.partition, offset, ErrorCode(error).meaning))
    elif not error and answer.diverging_epoch.end_offset >= 0:
        positions.diverges(state, answer.diverging_epoch.end_offset, answer.diverging_epoch.epoch)
    elif not error and answer.records:
        aborted = (answer.aborted_transactions or []) if settings.isolation_level == "read_committed" else None
        state.fetched = FetchedRecords(
            state.partition, offset, answer.records, aborted=aborted, check_crcs=settings.check_crcs
        )
    return bool(error) and error != ErrorCode.OFFSET_OUT_OF_RANGE


def list_offsets(
    timestamps: Mapping[TopicPartition, int], metadata: Metadata, settings: ConsumerSettings
) -> m.ListOffsetsRequest:
    """Return the request for the offsets of these timestamps, in ms, or `EARLIEST` or `LATEST`."""
    topics: dict[str, m.ListOffsetsRequestListOffsetsTopic] = {}
    for partition, timestamp in timestamps.items():
        name, index = partition
        leader = metadata.leader(partition)
        assert leader is not None  # the caller has chosen such partitions
        topics.setdefault(name, m.ListOffsetsRequestListOffsetsTopic(name=name)).partitions.append(
            m.ListOffsetsRequestListOffsetsPartition(
                partition_index=index, current_leader_epoch=leader.epoch, timestamp=timestamp
            )
        )
    return m.ListOffsetsRequest(replica_id=-1, isolation_level=_isolation(settings), topics=list(topics.values()))


def listed_offsets(
    response: m.ListOffsetsResponse,
) -> Iterator[tuple[TopicPartition, m.ListOffsetsResponseListOffsetsPartitionResponse]]:
    """Yield the partitions of the response, each with its answer."""
    for topic in response.topics:
        for partition in topic.partitions:
            yield TopicPartition(topic.name, partition.partition_index), partition


def ask_for_offsets(states: Iterable[PartitionState], metadata: Metadata, settings: ConsumerSettings) -> Asked:
    """Return a ListOffsets request for partitions with a ``reset_to``."""
    asked = {state.partition: (state, state.reset_to) for state in states if state.reset_to is not None}
    timestamps = {partition: timestamp for partition, (_, timestamp) in asked.items()}
    return Asked(list_offsets(timestamps, metadata, settings), asked, {})


def take_offsets(asked: Asked, response: m.ListOffsetsResponse, positions: Positions) -> bool:
    """Take in the response to ListOffsets; return whether some partitions have to be asked for again."""
    left = dict(asked.states)
    stale = False
    for key, answer in listed_offsets(response):
        state, timestamp = left.pop(key, (None, 0))
        if state is None or not positions.is_current(state) or state.reset_to != timestamp:
            continue
        if answer.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            positions.fail(TopicError(key.topic, ErrorCode(answer.error_code)))
            stale = True
        elif answer.error_code or answer.offset < 0:
            stale = True
        else:
            state.move(answer.offset, answer.leader_epoch)
    return stale or bool(left)


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    """A record's place in its partition.

    :ivar timestamp: its time, ms since 1970 UTC; -1 where it is the end that was asked for
    :ivar leader_epoch: -1 for unknown
    """

    offset: int
    timestamp: int
    leader_epoch: int = -1


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

    async def look_up(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Ask the leaders for the first records from these times on, again until all of them have answered.

        :param timestamps: in ms, or `EARLIEST` or `LATEST`
        :returns: None for a partition without such a record
        :raises TopicError: a topic may not be read, or its name is not valid
        :raises BrokerError: a broker refuses this client for good
        """
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        failures = 0
        while left := timestamps.keys() - found.keys():
            metadata = self._brokers.metadata
            by_leader: dict[int, dict[TopicPartition, int]] = {}
            for partition in sorted(left):
                if partition.topic in metadata.refused:
                    raise metadata.refused[partition.topic]
                leader = metadata.leader(partition)
                if leader is not None:
                    by_leader.setdefault(leader.node_id, {})[partition] = timestamps[partition]
            answers = await asyncio.gather(*(self._look_up_at(*each) for each in by_leader.items()))
            found |= {partition: offset for answer in answers for partition, offset in answer.items()}
            if timestamps.keys() - found.keys():
                failures += 1
                self._refresh()
                await asyncio.sleep(backoff_seconds(self._settings, failures))
        return found

    async def _look_up_at(
        self, node_id: int, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Ask one leader; return what it knows."""
        try:
            connection = await self._brokers.to(node_id)
            version = connection.highest_version(ApiKey.LIST_OFFSETS, NEWEST_LIST_OFFSETS)
            metadata = self._brokers.metadata
            asked = {each: time for each, time in timestamps.items() if metadata.leader(each) is not None}
            response = await connection.request(list_offsets(asked, metadata, self._settings), version)
        except BrokerError as error:
            if not error.retriable:
                raise
            return {}
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        for partition, answer in listed_offsets(response):
            if answer.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                raise TopicError(partition.topic, ErrorCode(answer.error_code))
            if not answer.error_code and partition in timestamps:
                place = OffsetAndTimestamp(answer.offset, answer.timestamp, answer.leader_epoch)
                found[partition] = place if answer.offset >= 0 else None
        return found

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
        room = self._room()
        for state in self._positions:
            if state.reset_to is not None or state.is_fetchable:
                leader = self._brokers.metadata.leader(state.partition)
                if leader is None:
                    has_leaders = False
                elif state.reset_to is not None or room.get(leader.node_id, 1):
                    work.setdefault(leader.node_id, []).append(state)
        if not has_leaders:
            self._refresh()
        return work

    def _room(self) -> dict[int, int]:
        """Return how many bytes of records a broker may be asked for, by the node id of those that have sent some."""
        room: dict[int, int] = {}
        for state in self._positions:
            if state.fetched is not None and not state.is_paused:
                leader = self._brokers.metadata.leader(state.partition)
                if leader is not None:
                    left = room.get(leader.node_id, self._settings.fetch_max_bytes)
                    room[leader.node_id] = max(left - state.fetched.size, 0)
        return room

    async def _serve(self, node_id: int) -> None:
        """Send one request after another to a broker, as long as there is work for it."""
        failures = 0
        try:
            while node_id in self._work():
                stale = False
                try:
                    connection = await self._brokers.to(node_id)
                    if states := self._work().get(node_id):  # it may have changed while the connection was opened
                        stale = await self._ask(node_id, connection, states)
                except (BrokerError, EncodeError):  # of the latter: an offset that a broker has made up
                    stale = True
                failures = failures + 1 if stale else 0
                self._changed()
                if stale:
                    self._refresh()
                    await asyncio.sleep(backoff_seconds(self._settings, failures))
        finally:
            del self._tasks[node_id]

    async def _ask(self, node_id: int, connection: BrokerConnection, states: list[PartitionState]) -> bool:
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
        room = self._room().get(node_id, self._settings.fetch_max_bytes)
        if not wanted or not room:
            return stale
        version = connection.highest_version(ApiKey.FETCH, newest_fetch(wanted, metadata))
        asked = ask_for_records(wanted, metadata, self._settings, version, room)
        loop = asyncio.get_running_loop()
        began = loop.time()
        response = await connection.request(asked.message, version)
        is_stale = take_records(asked, response, self._positions, self._settings)
        self._brokers.metrics.took("fetch", loop.time() - began)
        self._brokers.metrics.count("bytes_fetched_total", sum(each.fetched.size for each in wanted if each.fetched))
        return is_stale or stale

    def _may_fetch(self, state: PartitionState) -> bool:
        """Whether the partition is still assigned, wants records and has a leader: it may have changed meanwhile."""
        leader = self._brokers.metadata.leader(state.partition)
        return state.is_fetchable and self._positions.is_current(state) and leader is not None
