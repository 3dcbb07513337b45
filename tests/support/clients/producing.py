"""Produces records for tests and programs of our consumer, which has no producer beside it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import kcoord_wire as kw
from kcoord_wire.consumer.connection import BrokerConnection, ConnectionSettings
from kcoord_wire.kernel.net import parse_address
from kcoord_wire.protocol.api_keys import ApiKey
from kcoord_wire.protocol.error_codes import describe_error
from kcoord_wire.records import Record, encode_batch

NEWEST = 12  # the last version with names of topics


async def produce(
    bootstrap: str, topic: str, records: Sequence[tuple[int, bytes]], settings: ConnectionSettings | None = None
) -> list[int]:
    """Append records over a connection of their own. See `append`."""
    connection = await BrokerConnection.open(*parse_address(bootstrap), settings)
    try:
        return await append(connection, topic, records)
    finally:
        await connection.close()


async def append(connection: BrokerConnection, topic: str, records: Sequence[tuple[int, bytes]]) -> list[int]:
    """Produce values, each with its partition before it, on a broker that leads all of these; give their offsets.

    :raises RuntimeError: the broker has refused some
    """
    values: dict[int, list[Record]] = defaultdict(list)
    for partition, value in records:
        values[partition].append(Record(value=value))
    data = [
        kw.ProduceRequestPartitionProduceData(index=partition, records=encode_batch(batch))
        for partition, batch in values.items()
    ]
    named = kw.ProduceRequestTopicProduceData(name=topic, partition_data=data)
    version = connection.highest_version(ApiKey.PRODUCE, NEWEST)
    answer = await connection.request(kw.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[named]), version)
    following = {}
    for partition in answer.responses[0].partition_responses:
        if partition.error_code:
            raise RuntimeError(f"{topic}-{partition.index}: {describe_error(partition.error_code)}")
        following[partition.index] = partition.base_offset
    offsets = []
    for partition, _ in records:
        offsets.append(following[partition])
        following[partition] += 1
    return offsets
