"""Entries of a Marshal log from lines of text, for tests of what reads it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from confluent_kafka import Producer

from kcoord_wire.marshal.log import RawEntry, coordination_partition
from kcoord_wire.marshal.values import read_entry
from kcoord_wire.marshal.world_state import Entry

T0 = 1_795_000_000
"""s since the Unix epoch, where the lines count from."""


def entries_of(lines: Iterable[str], *, first: int = 0, partition: int = 0, lag_ms: int = 200) -> Sequence[Entry]:
    """Return one entry a line, ``SECOND TYPE FIELDS``: ``5 Heartbeat i1/c1/g/t/0/7`` is sent 5 s after `T0`.

    :param first: offset of the first
    :param lag_ms: how much later the broker appends each
    """
    found = []
    for offset, line in enumerate(lines, start=first):
        second, kind, fields = line.split(" ", 2)
        at = T0 + int(second)
        value = f"{kind}/1/{at}/{fields}"
        found.append(read_entry(RawEntry(partition, offset, at * 1000 + lag_ms, True, value.encode())))
    return found


def append_lines(address: str, partitions: int, now: int, *lines: str) -> None:
    """Append lines to the topic ``__marshal`` of a broker, each to the coordination partition of its topic.

    :param now: s since the Unix epoch, where the lines count from
    """
    producer = Producer({"bootstrap.servers": address})
    for line in lines:
        second, kind, fields = line.split(" ", 2)
        value = f"{kind}/1/{now + int(second)}/{fields}"
        partition = coordination_partition(fields.split("/")[3], partitions)
        producer.produce("__marshal", value=value.encode(), partition=partition)
    assert producer.flush(60) == 0
