"""Prints what reading and writing costs: microseconds of processor time a record, and bytes allocated per byte read.

Usage: python -m tests.bench.records
"""

from __future__ import annotations

import timeit
import tracemalloc
from collections.abc import Callable
from time import process_time

from kcoord_wire.records import Compression, Record, RecordHeader, encode_batch, encode_message_set, read_records

COUNT = 20_000
T = 1_700_000_000_000
PLAIN = [Record(b"key-%d" % n, b"value" * 20, T + n) for n in range(COUNT)]
HEADED = [Record(row.key, row.value, row.timestamp, headers=(RecordHeader("trace", b"12345678"),)) for row in PLAIN]


def cost(task: Callable[[], object]) -> float:
    return min(timeit.repeat(task, number=1, repeat=5, timer=process_time)) / COUNT * 1e6


def peak(data: bytes) -> float:
    tracemalloc.start()
    list(read_records(data))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most / len(data)


def main() -> None:
    batch = encode_batch(PLAIN)
    print(f"read batch            {cost(lambda: list(read_records(batch))):6.2f} us/record, {peak(batch):4.1f} B/B")
    headed = encode_batch(HEADED)
    print(f"read batch, headers   {cost(lambda: list(read_records(headed))):6.2f} us/record")
    for codec in Compression:
        data = encode_batch(PLAIN, compression=codec)
        print(f"read batch, {codec.name:9} {cost(lambda data=data: list(read_records(data))):6.2f} us/record")
    old = encode_message_set(PLAIN)
    print(f"read message set      {cost(lambda: list(read_records(old))):6.2f} us/record, {peak(old):4.1f} B/B")
    wrapped = encode_message_set(PLAIN, compression=Compression.GZIP)
    print(f"read wrapper, gzip    {cost(lambda: list(read_records(wrapped))):6.2f} us/record")
    print(f"write batch           {cost(lambda: encode_batch(PLAIN)):6.2f} us/record")
    print(f"write message set     {cost(lambda: encode_message_set(PLAIN)):6.2f} us/record")


main()
