"""A client of one broker on asyncio, with any number of calls at once: `mini_client.py HOST:PORT` prints its groups."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import kcoord_wire as kw


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str) -> None:
        self.connection = kw.Connection("client", client_id=client_id)
        self.reader, self.writer = reader, writer
        self.reading = asyncio.create_task(self.read())

    @classmethod
    async def open(cls, address: str, client_id: str = "mini-client") -> Client:
        self = cls(*await asyncio.open_connection(*address.rsplit(":", 1)), client_id)
        asked = kw.ApiVersionsRequest(client_software_name="mini-client", client_software_version="1")
        if (await self.call(asked)).error_code:  # 35: the broker lacks our newest version, and has said what it has
            await self.call(asked)
        return self

    async def call(self, request: object, version: int | None = None) -> Any:
        waiting = asyncio.get_running_loop().create_future()
        self.writer.write(self.connection.send(request, version, context=waiting))
        await self.writer.drain()  # raises where the connection is broken
        return await waiting

    async def read(self) -> None:
        why: Exception = ConnectionError("the broker has closed the connection")
        try:
            while not self.connection.closed:
                for event in self.connection.receive_data(await self.reader.read(1 << 16)):
                    if isinstance(event, kw.Response):
                        settle(event.request.context, event.message, event.error)
        except (kw.WireError, OSError) as error:
            why = error
        for request in self.connection.pending:
            settle(request.context, None, why)
        self.writer.close()


def settle(waiting: asyncio.Future[Any], message: object, error: Exception | None) -> None:
    if not waiting.done():
        waiting.set_exception(error) if error else waiting.set_result(message)


async def main(address: str) -> None:
    client = await Client.open(address)
    for group in (await client.call(kw.ListGroupsRequest())).groups:
        print(group.group_id, group.group_state)
    client.writer.close()
    await client.reading


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
