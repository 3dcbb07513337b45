"""A consumer of the draft as a process that keeps an account of the fetches that were served and the records it had.

    python -m tests.support.central_consumer FILE GROUP CONSUMER TOPICS SESSION_TIMEOUT_MS HOST:PORT ...

Each line of the file is JSON, written before the next step. Times are of the monotonic clock, which all processes of a
machine share, in ms:

    {"fetch": "orders/1-0", "from": 7, "next": 9, "sent": 100, "answered": 103, "epoch": 2, "generation": 1}
    {"processed": "orders/1-0", "offset": 7, "at": 104}
    {"assigned": ["orders/1-0"], "at": 99}

SIGTERM ends it in the draft's order.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable
from typing import Any

from kcoord_wire.central.client import CentralConsumer
from kcoord_wire.central.draft.events import CentralError, ConsumerSettings, Fence, Partition
from kcoord_wire.central.fetcher import BrokerFetcher, Inbox
from kcoord_wire.kernel.driver import monotonic_ms
from kcoord_wire.kernel.machines import BrokerAddress
from kcoord_wire.kernel.net import parse_address
from kcoord_wire.messages import central as m

Write = Callable[[dict[str, Any]], None]


def partition_text(partition: Partition) -> str:
    return f"{partition.topic}/{partition.name}"


class NotingLink:
    """A connection to a broker that writes down what was served over it."""

    def __init__(self, link: Any, partition: Partition, write: Write) -> None:
        self._link = link
        self._partition = partition
        self._write = write

    async def ask(self, request: m.CentralFetchRequest, answer: type) -> Any:
        sent = monotonic_ms()
        response: m.CentralFetchResponse = await self._link.ask(request, answer)
        if response.error_code == CentralError.NONE and request.fence:
            self._write({
                "fetch": partition_text(self._partition), "from": request.offset,
                "next": response.records[-1].offset + 1 if response.records else request.offset,
                "sent": sent, "answered": monotonic_ms(),
                "epoch": request.fence[0].epoch, "generation": request.fence[0].generation,
            })  # fmt: skip
        return response


class NotingFetcher(BrokerFetcher):
    def __init__(self, group_id: str, consumer_id: str, write: Write) -> None:
        super().__init__(group_id, consumer_id)
        self._write = write

    async def _fetch(self, link: Any, partition: Partition, inbox: Inbox, fence: Fence | None) -> bool:
        return await super()._fetch(NotingLink(link, partition, self._write), partition, inbox, fence)


async def consume(settings: ConsumerSettings, write: Write) -> None:
    def assigned(partitions: frozenset[Partition]) -> None:
        write({"assigned": sorted(map(partition_text, partitions)), "at": monotonic_ms()})

    fetcher = NotingFetcher(settings.group_id, settings.consumer_id, write)
    async with CentralConsumer(settings, fetcher=fetcher, on_assigned=assigned) as consumer:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, consumer.shutdown)
        async for record in consumer:
            write({"processed": partition_text(record.partition), "offset": record.offset, "at": monotonic_ms()})


def main(path: str, group: str, consumer: str, topics: str, session_timeout_ms: str, *brokers: str) -> None:
    bootstrap = tuple(BrokerAddress(number, *parse_address(text)) for number, text in enumerate(brokers))
    settings = ConsumerSettings(
        group_id=group, consumer_id=consumer, topic_count=topics, bootstrap=bootstrap,
        session_timeout_ms=int(session_timeout_ms),
    )  # fmt: skip
    with open(path, "w", buffering=1, encoding="utf-8") as file:
        asyncio.run(consume(settings, lambda line: print(json.dumps(line), file=file)))


if __name__ == "__main__":
    main(*sys.argv[1:])
