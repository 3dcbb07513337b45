"""Reads the records of a draft's partitions from Kafka: the draft assigns and commits, a Kafka broker has the records.

    CentralConsumer(settings, fetcher=KafkaFetcher(["127.0.0.1:9092"], settings.group_id))

The draft names a partition by the broker that has it and its number there, as 0.7 did; in Kafka a topic's partitions
have one numbering, and move between brokers. So partition ``BROKER-NUMBER`` of a topic is Kafka's partition NUMBER,
whichever broker of the draft announces it: a topic is announced by one of them, with as many partitions as it has.

Laws:

* Positions, requests and connections are those of `kcoord_wire.consumer`: every version of Kafka that it speaks,
  leaders that move, leader epochs, compressed and transactional records.
* An offset out of range ends the partition's fetcher ``OFFSET_OUT_OF_RANGE``, and so does a log that was cut back below
  it: the draft's machine registers again, and begins where ``auto_offset_reset`` says.
* What is held is what `Inbox` bounds, and beside it one response of each broker.
* Kafka does not know the draft's fences: of two owners it serves both, as it serves consumers without the extension.

Source: "the 0.8 consumer-coordinator draft", sections 2 and 11.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import groupby
from typing import Final

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.central.draft.events import CentralError, Partition, StartFetchers
from kcoord_wire.central.fetcher import LARGEST_INBOX, FetcherTasks, FetchSettings, Inbox, parse_partition
from kcoord_wire.consumer import fetching
from kcoord_wire.consumer.brokers import Brokers, Metadata, MetadataKeeper, Signal
from kcoord_wire.consumer.errors import OffsetOutOfRangeError, TopicError
from kcoord_wire.consumer.positions import ConsumerRecord, Positions
from kcoord_wire.consumer.settings import ConsumerSettings

_AT_ONCE: Final = 500
"""Records that are taken over before the event loop goes on."""
_NO_END: Final = -1


class KafkaFetcher(FetcherTasks):
    """Fetches from Kafka's brokers; a `kcoord_wire.central.fetcher.Fetcher`.

    :param bootstrap: ``HOST:PORT`` of some of them
    :param group_id: of the draft's group; Kafka does not see it
    :raises ValueError: these are no addresses
    """

    def __init__(self, bootstrap: Sequence[str], group_id: str, settings: FetchSettings | None = None) -> None:
        super().__init__(settings)
        self._kafka = ConsumerSettings(
            bootstrap_servers=bootstrap,
            group_id=group_id,
            auto_offset_reset="none",
            allow_auto_create_topics=False,
            max_partition_fetch_bytes=self._settings.max_size,
            fetch_max_bytes=LARGEST_INBOX,
        )

    def start(self, start: StartFetchers, inbox: Inbox) -> None:
        """See `Fetcher`."""
        partitions: dict[TopicPartition, Partition] = {}
        for partition in inbox.partitions:
            try:
                place = TopicPartition(partition.topic, parse_partition(partition.name)[1])
            except ValueError as error:
                self._warn(f"partition of {partition.topic}", error)
                continue
            if (other := partitions.setdefault(place, partition)) is not partition:
                self._warn(partition.topic, f"{other.name} and {partition.name} are one partition of Kafka, read once")
        if partitions:
            changed = Signal()
            self._spawn(self._follow(partitions, inbox, changed))
            self._spawn(_relay(inbox, changed))

    async def _follow(self, partitions: Mapping[TopicPartition, Partition], inbox: Inbox, changed: Signal) -> None:
        """Fetch until the task is cancelled.

        :param changed: set when there is something to do
        """

        def updated(failures: Sequence[TopicError]) -> None:
            for failure in failures or _missing(partitions, brokers.metadata):
                self._warn("Kafka", failure)
            changed.set()

        positions = _positions(partitions, inbox)
        topics = {place.topic for place in partitions}
        brokers = Brokers(self._kafka)
        metadata = MetadataKeeper(self._kafka, brokers, lambda: topics, updated)
        fetcher = fetching.Fetcher(self._kafka, brokers, positions, metadata.request, changed.set)
        async with AsyncExitStack() as stack:
            for each in (brokers, metadata, fetcher):
                stack.push_async_callback(each.close)
            metadata.request()
            while True:
                has_records = _hand_over(positions, partitions, inbox)
                has_failed = self._report(positions, partitions, inbox)
                fetcher.start()
                if has_failed:
                    await self._back_off()
                elif has_records:
                    await asyncio.sleep(0)
                else:
                    await changed.wait()

    def _report(self, positions: Positions, partitions: Mapping[TopicPartition, Partition], inbox: Inbox) -> bool:
        """Take in what has failed; return whether anything has that is tried again."""
        failures, positions.failures = positions.failures, []
        is_tried_again = False
        for failure in failures:
            if isinstance(failure, OffsetOutOfRangeError):
                inbox.fail(partitions[failure.partition], CentralError.OFFSET_OUT_OF_RANGE)
            else:
                self._warn("Kafka", failure)
                is_tried_again = True
        return is_tried_again


def _positions(partitions: Mapping[TopicPartition, Partition], inbox: Inbox) -> Positions:
    """Return where the inbox begins."""
    positions = Positions("none")
    positions.assign(partitions)
    positions.announce(partitions)
    for state in positions:
        begins = inbox.partitions[partitions[state.partition]].next_fetch
        if begins < 0:
            state.look_up(begins)  # the draft's -1 and -2 are those of ListOffsets
        else:
            state.move(begins)
    return positions


def _missing(partitions: Mapping[TopicPartition, Partition], metadata: Metadata) -> Iterator[str]:
    """Yield what to say about partitions that Kafka does not have, if it has answered."""
    for topic, number in partitions:
        count = metadata.counts.get(topic, 0)
        if metadata.addresses and number >= count:
            yield f"{topic!r} has {count} partitions there, none with the number {number}"


def _hand_over(positions: Positions, partitions: Mapping[TopicPartition, Partition], inbox: Inbox) -> bool:
    """Give the inbox what it wants; return whether there was any of it."""
    for state in positions:
        partition = partitions[state.partition]
        if state.offset is not None and inbox.partitions[partition].next_fetch < 0:
            inbox.resolve(partition, state.offset)
        state.is_paused = not inbox.wants(partition)
    records = positions.next_records(_AT_ONCE)
    for place, found in groupby(records, _place):
        end = positions.state(place).end_offset
        values = [(record.offset, record.value or b"") for record in found]
        inbox.put(partitions[place], values, _NO_END if end is None else end)
    return bool(records)


def _place(record: ConsumerRecord) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)


async def _relay(inbox: Inbox, changed: Signal) -> None:
    """Set the signal whenever the application has taken a record."""
    while True:
        await inbox.wait_for_room()
        changed.set()
