"""A proxy that puts a prefix before each client id: `rename_clients.py HOST:PORT BROKER:PORT PREFIX`.

No message is decoded: any api passes. The broker has to advertise the proxy's address instead of its own.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from functools import partial

import kcoord_wire as kw


async def relay(target: str, prefix: str, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
    broker, to_broker = await asyncio.open_connection(*target.rsplit(":", 1))
    front, back = kw.Connection("server", decode=()), kw.Connection("client", decode=())

    def forward(events: Iterable[kw.Event]) -> None:
        for event in events:
            if isinstance(event, kw.Request):
                name = f"{prefix}{event.header.client_id or ''}"
                to_broker.write(back.send_raw(event.body, client_id=name, context=event))

    async def requests() -> None:
        while data := await client.read(1 << 16):
            forward(front.receive_data(data))
            await to_broker.drain()
        to_broker.write_eof()

    async def responses() -> None:
        while data := await broker.read(1 << 16):
            for event in back.receive_data(data):
                if isinstance(event, kw.Response):
                    to_client.write(front.respond_raw(event.request.context, event.body))
            forward(front.events())  # those that waited while `front` was paused
            await to_client.drain()
        to_client.close()

    try:
        await asyncio.gather(requests(), responses())
    except (kw.WireError, OSError) as error:
        print("closed:", error, file=sys.stderr)
    finally:
        to_client.close()
        to_broker.close()


async def serve(here: str, target: str, prefix: str) -> asyncio.Server:
    return await asyncio.start_server(partial(relay, target, prefix), *here.rsplit(":", 1))


async def main() -> None:
    await (await serve(*sys.argv[1:4])).serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
