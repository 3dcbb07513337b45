"""Clients that were written from docs/wire-draft.md and docs/wire-rewrite.md alone, beside our own consumers.

One is in Go, one for Node: they need ``go`` and ``node``, as Debian's packages are. `kcoord central serve` needs Java
and pyspark's jars for a ZooKeeper; what needs settings of the coordinator runs at a broker in this process.
"""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE, Process, create_subprocess_exec
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from kcoord_wire.central.broker import CentralBroker
from kcoord_wire.central.client import CentralConsumer, RewriteConsumer
from kcoord_wire.central.draft.events import CentralError, ConsumerSettings, CoordinatorSettings, RebalanceBy
from kcoord_wire.central.rewrite.events import MemberSettings, RewriteError
from kcoord_wire.kernel.machines import BrokerAddress
from tests.support.central_processes import BrokerProcess
from tests.support.go_programs import build_go_programs
from tests.support.kafka_broker import tool

NODE = Path(__file__).parent / "node" / "rewrite.js"
TOPIC_COUNT = '{"orders":1}'
PARTITIONS = 4
SESSION_MS = 3_000


@pytest.fixture(scope="module")
def program() -> Path:
    return build_go_programs() / "draft"


class Client:
    """The program, and what it has written so far.

    :ivar told: every line
    :ivar positions: the next record of each partition that it has been started with, by its own lines
    """

    def __init__(self, process: Process) -> None:
        self.told: list[dict[str, Any]] = []
        self.positions: dict[str, int] = {}
        self._process = process

    async def until(self, what: str, holds: Callable[[dict[str, Any]], bool] = lambda line: True) -> dict[str, Any]:
        """The next line of that kind for which `holds`; on the way, records have to be those that come next."""
        assert self._process.stdout is not None
        while True:
            text = await self._process.stdout.readline()
            assert text, f"it has ended: {self.told[-5:]}"
            line: dict[str, Any] = json.loads(text)
            self.told.append(line)
            self._follow(line)
            if line["what"] == what and holds(line):
                return line

    def _follow(self, line: dict[str, Any]) -> None:
        if line["what"] in ("started", "joined"):
            self.positions = {name: max(offset, 0) for name, offset in line["positions"].items()}
        elif line["what"] == "records":
            partition, values = str(line["partition"]), line["values"]
            first = self.positions[partition]
            name = partition.rpartition("/")[2]
            assert values == [f"orders-{name}@{offset}" for offset in range(first, first + len(values))]
            self.positions[partition] += len(values)

    def last(self, what: str) -> dict[str, int]:
        """The positions that it has reported last, with an answer of that kind."""
        found: dict[str, int] = [line["positions"] for line in self.told if line["what"] == what][-1]
        return found

    async def leave(self) -> int:
        """Let it shut down as the draft says; return its status."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with suppress(AssertionError):
            await self.until("nothing")
        return await self._process.wait()


@asynccontextmanager
async def go_consumer(
    program: Path,
    broker: CentralBroker | BrokerProcess,
    name: str,
    *,
    session_ms: int = SESSION_MS,
    auto_commit: bool = True,
) -> AsyncIterator[Client]:
    arguments = (broker.address, "billing", name, TOPIC_COUNT, str(session_ms), str(auto_commit).lower())
    async with running(program, *arguments) as client:
        yield client


@asynccontextmanager
async def running(*command: str | Path) -> AsyncIterator[Client]:
    process = await create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, limit=1 << 20)
    try:
        yield Client(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def bootstrap_of(broker: CentralBroker | BrokerProcess) -> tuple[BrokerAddress]:
    host, _, port = broker.address.rpartition(":")
    return (BrokerAddress(1, host, int(port)),)


def our_consumer(broker: CentralBroker | BrokerProcess, name: str) -> CentralConsumer:
    bootstrap = bootstrap_of(broker)
    return CentralConsumer(ConsumerSettings("billing", name, TOPIC_COUNT, bootstrap, session_timeout_ms=SESSION_MS))


def played(scenario: Coroutine[Any, Any, None]) -> None:
    async def within() -> None:
        async with asyncio.timeout(120):
            await scenario

    asyncio.run(within())


def a_broker(rebalance_by: RebalanceBy = RebalanceBy.FETCHERS) -> CentralBroker:
    settings = CoordinatorSettings(rebalance_by=rebalance_by)
    return CentralBroker(topics={"orders": PARTITIONS}, rate=50.0, settings=settings)


def test_it_registers_is_pinged_stopped_and_started(program: Path) -> None:
    """It shares the group with our consumer, which goes on where it has stopped; and it with what ours leaves."""

    async def scenario(broker: BrokerProcess) -> None:
        async with go_consumer(program, broker, "go") as go:
            await go.until("registered")
            assert (await go.until("stopped"))["positions"] == {}
            assert set((await go.until("started"))["positions"].items()) == {(f"orders/1-{n}", -2) for n in range(4)}
            for _ in range(2):
                assert (await go.until("ping"))["retries"] == 0
            await go.until("records", lambda line: min(go.positions.values()) > 0)
            async with our_consumer(broker, "ours") as ours:
                kept = (await go.until("started", lambda line: len(line["positions"]) == PARTITIONS // 2))["positions"]
                reported = go.last("stopped")
                assert reported == {**reported, **kept}, "it goes on where it has stopped"
                first = {(record := await anext(ours)).partition.name: record.offset}
                given = {name.partition("/")[2]: reported[name] for name in reported.keys() - kept}
                assert first == {name: given[name] for name in first}, "ours goes on where it has stopped"
                await go.until("records")
            assert (await go.until("started", lambda line: len(line["positions"]) == PARTITIONS))["positions"]
            await go.until("records")
            assert await go.leave() == 0
            assert [line for line in go.told if "frame" in str(line.get("error"))] == []
            reported = go.last("ping")
            async with our_consumer(broker, "ours") as ours:
                record = await anext(ours)
                assert record.offset == reported[f"orders/{record.partition.name}"]

    with BrokerProcess("embedded", 1, "--topics", f"orders:{PARTITIONS}", "--rate", "50") as broker:
        played(scenario(broker))


def test_it_meets_the_errors_of_the_page(program: Path) -> None:
    async def scenario() -> None:
        async with a_broker() as broker, go_consumer(program, broker, "go") as go:
            await go.until("registered")
            async with go_consumer(program, broker, "go") as other:
                refused = await other.until("refused")
                assert refused["error"] == CentralError.DUPLICATE_CONSUMER_ID
                await go.leave()
                await other.until("registered")  # the id is free again
            async with go_consumer(program, broker, "hasty", session_ms=10) as hasty:
                assert (await hasty.until("refused"))["error"] == CentralError.INVALID_SESSION_TIMEOUT
                await hasty.until("failed")
                assert await hasty.leave() == 1, "a final refusal"

    played(scenario())


def test_without_auto_commit_it_begins_anew(program: Path) -> None:
    async def scenario() -> None:
        async with a_broker() as broker, go_consumer(program, broker, "go", auto_commit=False) as go:
            await go.until("records", lambda line: go.positions.get("orders/1-0", 0) > 0)
            await go.until("ping")
            async with our_consumer(broker, "ours"):
                kept = (await go.until("started", lambda line: len(line["positions"]) < PARTITIONS))["positions"]
                assert set(kept.values()) == {-2}
            assert await go.leave() == 0

    played(scenario())


def test_it_serves_rebalances_by_sockets(program: Path) -> None:
    async def scenario() -> None:
        async with a_broker(RebalanceBy.SOCKETS) as broker, go_consumer(program, broker, "go") as go:
            assert len((await go.until("started"))["positions"]) == PARTITIONS
            async with our_consumer(broker, "ours"):
                started = await go.until("started", lambda line: len(line["positions"]) < PARTITIONS)
                assert len(started["positions"]) == PARTITIONS // 2
                await go.until("records")

    played(scenario())


def test_a_member_of_the_rewrite() -> None:
    """It joins, fetches and commits, and shares the group with our consumer, which goes on where it has committed."""

    async def scenario(broker: BrokerProcess) -> None:
        command = (tool("node", "nodejs"), NODE, broker.address, "billing", "orders", "6000")
        async with running(*command) as node:
            joined = await node.until("joined")
            assert (joined["generation"], joined["positions"]) == (1, {str(each): 0 for each in range(PARTITIONS)})
            await node.until("records", lambda line: min(node.positions.values()) > 0)
            settings = MemberSettings("billing", bootstrap_of(broker), topics=("orders",))
            async with RewriteConsumer(settings) as ours:
                await node.until("heartbeat", lambda line: line["error"] == RewriteError.ILLEGAL_GENERATION)
                committed = (await node.until("committed"))["positions"]
                kept = (await node.until("joined", lambda line: len(line["positions"]) == PARTITIONS // 2))["positions"]
                assert committed == {**committed, **kept}, "it goes on where it has committed"
                record = await anext(ours)
                assert record.partition.name not in kept
                assert record.offset == committed[record.partition.name]
                assert await node.leave() == 0
            assert [line for line in node.told if line["what"] == "failed"] == []

    with BrokerProcess("embedded", 1, "--design", "rewrite", "--topics", f"orders:{PARTITIONS}") as broker:
        played(scenario(broker))
