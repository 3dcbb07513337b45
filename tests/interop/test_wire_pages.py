"""Clients written from docs/wire-draft.md, wire-rewrite.md and wire-marshal.md alone, beside our own consumers.

Two are for Node, one is in Go: they need ``node`` and ``go``, as Debian's packages are. `kcoord central serve` needs
Java and pyspark's jars for a ZooKeeper; what needs settings of the coordinator runs at a broker in this process.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process, create_subprocess_exec
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import kcoord_wire as kw
from kcoord_wire.central.broker import CentralBroker
from kcoord_wire.central.client import CentralConsumer, RewriteConsumer
from kcoord_wire.central.dialects import draft_frame
from kcoord_wire.central.draft.events import CentralError, ConsumerSettings, CoordinatorSettings, RebalanceBy
from kcoord_wire.central.rewrite.events import MemberSettings, RewriteError
from kcoord_wire.coordinator import Coordinator
from kcoord_wire.kernel.machines import BrokerAddress
from kcoord_wire.marshal import KafkaLog
from kcoord_wire.marshal.kafka_log import create_topic
from kcoord_wire.marshal.values import read_entry
from kcoord_wire.marshal.world_state import Outcome, Rules, WorldState
from kcoord_wire.messages import central as m
from tests.support.central_processes import BrokerProcess
from tests.support.draft_wire import listening, read_body
from tests.support.go_programs import build_go_programs
from tests.support.kafka_broker import tool
from tests.support.marshal_group import feeding

DRAFT, REWRITE = (Path(__file__).parent / "node" / f"{name}.js" for name in ("draft", "rewrite"))
TOPIC_COUNT = '{"orders":1}'
PARTITIONS = 4
SESSION_MS = 3_000


class Client:
    """The program, and what it has written so far.

    :ivar told: every line
    :ivar positions: the next record of each partition that it has been started with, by its own lines
    """

    def __init__(self, process: Process) -> None:
        self.lines: list[dict[str, Any]] = []
        self.positions: dict[str, int] = {}
        self._process = process

    async def until(self, what: str, holds: Callable[[dict[str, Any]], bool] = lambda line: True) -> dict[str, Any]:
        """The next line of that kind for which `holds`; on the way, records have to be those that come next."""
        assert self._process.stdout is not None
        while True:
            text = await self._process.stdout.readline()
            assert text, f"it has ended: {self.lines[-5:]}"
            line: dict[str, Any] = json.loads(text)
            line.setdefault("what", line.get("type"))  # of our own command
            self.lines.append(line)
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
        found: dict[str, int] = [line["positions"] for line in self.lines if line["what"] == what][-1]
        return found

    async def end(self, number: int) -> int:
        """Send it a signal, read what it writes until it has ended, and return its status."""
        self._process.send_signal(number)
        return await self._ended()

    async def leave(self) -> int:
        """Let it shut down as the draft says; return its status."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return await self._ended()

    async def _ended(self) -> int:
        with suppress(AssertionError):
            await self.until("nothing")
        return await self._process.wait()


@asynccontextmanager
async def draft_consumer(
    address: str, name: str, *more: str, session_ms: int = SESSION_MS, auto_commit: bool = True
) -> AsyncIterator[Client]:
    options = {"brokers": address, "group": "billing", "consumer": name, "topics": TOPIC_COUNT}
    named = [text for option, value in options.items() for text in (f"--{option}", value)]
    flags = () if auto_commit else ("--no-auto-commit",)
    command = (tool("node", "nodejs"), DRAFT, *named, "--session-timeout", str(session_ms), *flags, *more)
    async with running(*command) as client:
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


def test_it_registers_is_pinged_stopped_and_started() -> None:
    """It shares the group with our consumer, which goes on where it has stopped; and it with what ours leaves."""

    async def scenario(broker: BrokerProcess) -> None:
        async with draft_consumer(broker.address, "node") as node:
            await node.until("registered")
            assert (await node.until("stopped"))["positions"] == {}
            assert set((await node.until("started"))["positions"].items()) == {(f"orders/1-{n}", -2) for n in range(4)}
            for _ in range(2):
                assert (await node.until("ping"))["retries"] == 0
            await node.until("records", lambda line: min(node.positions.values()) > 0)
            async with our_consumer(broker, "ours") as ours:
                kept = (await node.until("started", lambda line: len(line["positions"]) == PARTITIONS // 2))[
                    "positions"
                ]
                reported = node.last("stopped")
                assert reported == {**reported, **kept}, "it goes on where it has stopped"
                first = {(record := await anext(ours)).partition.name: record.offset}
                given = {name.partition("/")[2]: reported[name] for name in reported.keys() - kept}
                assert first == {name: given[name] for name in first}, "ours goes on where it has stopped"
                await node.until("records")
            assert (await node.until("started", lambda line: len(line["positions"]) == PARTITIONS))["positions"]
            await node.until("records")
            assert await node.leave() == 0
            assert [line for line in node.lines if line["what"] in ("lost", "not fetched")] == []
            reported = node.last("ping")
            async with our_consumer(broker, "ours") as ours:
                record = await anext(ours)
                assert record.offset == reported[f"orders/{record.partition.name}"]

    with BrokerProcess("embedded", 1, "--topics", f"orders:{PARTITIONS}", "--rate", "50") as broker:
        played(scenario(broker))


def test_it_meets_the_errors_of_the_page() -> None:
    async def scenario() -> None:
        async with a_broker() as broker, draft_consumer(broker.address, "node") as node:
            await node.until("registered")
            async with draft_consumer(broker.address, "node") as other:
                refused = await other.until("refused")
                assert refused["error"] == CentralError.DUPLICATE_CONSUMER_ID
                await node.leave()
                await other.until("registered")  # the id is free again
            async with draft_consumer(broker.address, "hasty", session_ms=10) as hasty:
                assert (await hasty.until("refused"))["error"] == CentralError.INVALID_SESSION_TIMEOUT
                await hasty.until("left")
                assert await hasty.leave() == 1, "a final refusal"

    played(scenario())


def test_without_auto_commit_it_begins_anew() -> None:
    async def scenario() -> None:
        async with a_broker() as broker, draft_consumer(broker.address, "node", auto_commit=False) as node:
            await node.until("records", lambda line: node.positions.get("orders/1-0", 0) > 0)
            await node.until("ping")
            async with our_consumer(broker, "ours"):
                kept = (await node.until("started", lambda line: len(line["positions"]) < PARTITIONS))["positions"]
                assert set(kept.values()) == {-2}
            assert await node.leave() == 0

    played(scenario())


def test_it_serves_rebalances_by_sockets() -> None:
    async def scenario() -> None:
        async with a_broker(RebalanceBy.SOCKETS) as broker, draft_consumer(broker.address, "node") as node:
            assert len((await node.until("started"))["positions"]) == PARTITIONS
            async with our_consumer(broker, "ours"):
                started = await node.until("started", lambda line: len(line["positions"]) < PARTITIONS)
                assert len(started["positions"]) == PARTITIONS // 2
                await node.until("records")

    played(scenario())


# ---- a coordinator that the test plays


class Played:
    """Broker 1 and the coordinator. The partition has the records 0 to 2.

    :ivar registrations: each with its connection, which the test serves from then on
    :ivar fetches: of the partition, in order
    """

    def __init__(self) -> None:
        self.registrations: asyncio.Queue[tuple[m.RegisterConsumerRequest, Wire]] = asyncio.Queue()
        self.fetches: list[m.CentralFetchRequest] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = Wire(reader, writer)
        address, port = writer.get_extra_info("sockname")
        while True:
            kind, request = await wire.read(ASKED_BY_CONSUMERS)
            if kind == 6:
                await self.registrations.put((request, wire))
                await wire.ended.wait()  # the test reads from now on
                return
            if kind == 5:
                brokers = [m.ClusterMetadataResponseBroker(id=1, host=address, port=port)]
                wire.send(m.ClusterMetadataResponse(coordinator_id=1, brokers_info=brokers))
            else:
                wire.send(self._fetch(request))

    def _fetch(self, request: m.CentralFetchRequest) -> m.CentralFetchResponse:
        self.fetches.append(request)
        if not 0 <= request.offset <= 3:
            return m.CentralFetchResponse(error_code=CentralError.OFFSET_OUT_OF_RANGE, first_offset=0, end_offset=3)
        records = [
            m.CentralFetchResponseRecord(offset=offset, payload=f"orders-1-0@{offset}".encode())
            for offset in range(request.offset, 3)
        ]
        return m.CentralFetchResponse(first_offset=0, end_offset=3, records=records)


class Wire:
    """A connection of the consumer's."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.ended = asyncio.Event()
        self._reader, self._writer = reader, writer

    async def read(self, of: dict[int, type]) -> tuple[int, Any]:
        body = await read_body(self._reader)
        kind = int.from_bytes(body[:2], "big")
        return kind, kw.decode(of[kind], body[2:], 0)

    def send(self, *messages: Any) -> None:
        """Send them as one segment."""
        self._writer.write(b"".join(map(draft_frame, messages)))

    async def send_split(self, message: Any) -> None:
        """Send it byte by byte."""
        for byte in draft_frame(message):
            self._writer.write(bytes([byte]))
            await self._writer.drain()
            await asyncio.sleep(0)

    async def ask(self, request: Any) -> Any:
        """Send a request; return the answer, which has to be the next frame."""
        self.send(request)
        return (await self.read(ANSWERED_BY_CONSUMERS))[1]

    async def closes(self) -> bool:
        """Wait until the consumer has closed it; return whether it has sent nothing before."""
        rest = await self._reader.read()
        self.ended.set()
        return not rest


ASKED_BY_CONSUMERS = {1: m.CentralFetchRequest, 5: m.ClusterMetadataRequest, 6: m.RegisterConsumerRequest}
ANSWERED_BY_CONSUMERS = {7: m.PingResponse, 8: m.StopFetcherResponse, 9: m.StartFetcherResponse}


def start(port: int, offset: int, fence: list[m.StartFetcherRequestFence] | None = None) -> m.StartFetcherRequest:
    given = m.StartFetcherRequestPartition(topic="orders", partition="1-0", offset=offset)
    owned = m.StartFetcherRequestOwnership(consumer_thread_id="c-0", assigned_parts=[given])
    broker = m.StartFetcherRequestBroker(id=1, host="127.0.0.1", port=port)
    return m.StartFetcherRequest(consumer_id="c", ownership_info=[owned], brokers_info=[broker], fence=fence)


PING, STOP = m.PingRequest(consumer_id="c"), m.StopFetcherRequest(consumer_id="c")


async def reports(wire: Wire, offset: int, fence: list[m.PingRequestFence] | None = None) -> None:
    """Ping until the consumer reports that position."""
    while True:
        answer = await wire.ask(m.PingRequest(consumer_id="c", fence=fence))
        if [(each.partition, each.offset) for each in answer.offset_info] == [("1-0", offset)]:
            return
        await asyncio.sleep(0.02)


def test_segments_that_are_split_and_merged() -> None:
    async def scenario() -> None:
        other = Played()
        async with listening(other.serve) as broker, draft_consumer(f"127.0.0.1:{broker.port}", "c") as node:
            _, wire = await other.registrations.get()
            wire.send(m.RegisterConsumerResponse(), PING, STOP, start(broker.port, 1), PING)
            answers = [await wire.read(ANSWERED_BY_CONSUMERS) for _ in range(4)]
            assert [kind for kind, _ in answers] == [7, 8, 9, 7]
            assert answers[1][1].offset_info == []
            await node.until("records")
            await wire.send_split(PING)
            [position] = (await wire.read(ANSWERED_BY_CONSUMERS))[1].offset_info
            assert (position.partition, position.offset) == ("1-0", 3)
            await wire.send_split(m.StopFetcherRequest(consumer_id="another"))
            assert (await wire.read(ANSWERED_BY_CONSUMERS))[1].error_code == CentralError.UNKNOWN_CONSUMER_ID
            assert await wire.closes()

    played(scenario())


def test_an_offset_out_of_range_is_not_tried_twice() -> None:
    async def scenario() -> None:
        other = Played()
        async with listening(other.serve) as broker, draft_consumer(f"127.0.0.1:{broker.port}", "c"):
            for is_first in (True, False):
                _, wire = await other.registrations.get()
                wire.send(m.RegisterConsumerResponse(), STOP, start(broker.port, 99))
                assert [(await wire.read(ANSWERED_BY_CONSUMERS))[0] for _ in range(2)] == [8, 9]
                if is_first:
                    assert await wire.closes()
            await reports(wire, 3)
            assert [fetch.offset for fetch in other.fetches][:3] == [99, -2, 0]
            wire.ended.set()

    played(scenario())


def test_a_former_coordinator_is_refused() -> None:
    """With the extensions: by its epoch, and because it sends none."""

    async def scenario() -> None:
        other = Played()
        async with (
            listening(other.serve) as broker,
            draft_consumer(f"127.0.0.1:{broker.port}", "c", "--extensions") as node,
        ):
            known: list[m.RegisterConsumerRequestFence] = []
            for late in ([m.PingRequestFence(epoch=2, generation=9)], None):
                request, wire = await other.registrations.get()
                assert request.fence == known
                known = [m.RegisterConsumerRequestFence(epoch=3, generation=5)]
                fence = [m.StartFetcherRequestFence(epoch=3, generation=5)]
                wire.send(m.RegisterConsumerResponse(), start(broker.port, 0, fence))
                assert (await wire.read(ANSWERED_BY_CONSUMERS))[0] == 9
                await reports(wire, 3, [m.PingRequestFence(epoch=3, generation=5)])
                answer = await wire.ask(m.PingRequest(consumer_id="c", fence=late))
                assert (answer.error_code, answer.offset_info) == (CentralError.STALE_EPOCH, None)
                assert await wire.closes()
            await node.until("refusing")
            sent = m.CentralFetchRequestFence(group_id="billing", consumer_id="c", epoch=3, generation=5)
            assert all(fetch.fence == [sent] for fetch in other.fetches)

    played(scenario())


# ---- the rewrite


def test_a_member_of_the_rewrite() -> None:
    """It joins, fetches and commits, and shares the group with our consumer, which goes on where it has committed."""

    async def scenario(broker: BrokerProcess) -> None:
        command = (tool("node", "nodejs"), REWRITE, broker.address, "billing", "orders", "6000")
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
            assert [line for line in node.lines if line["what"] == "failed"] == []

    with BrokerProcess("embedded", 1, "--design", "rewrite", "--topics", f"orders:{PARTITIONS}") as broker:
        played(scenario(broker))


# ---- Marshal

CLAIMED = 6  # partitions
HALF = CLAIMED // 2
INTERVAL_S = 1
LOG_PARTITIONS = 4


def outcomes_of(address: str) -> dict[tuple[str, Outcome], list[int]]:
    """What the messages of each client have done by the rules of the document: the partitions that they name."""
    state = WorldState(Rules.DOCUMENT, heartbeat_interval_s=INTERVAL_S, partitions=LOG_PARTITIONS)
    found: dict[tuple[str, Outcome], list[int]] = {}
    log = KafkaLog(address)
    try:
        log.read_from_start(range(LOG_PARTITIONS))
        while any(log.position(each) < log.end(each) for each in range(LOG_PARTITIONS)):
            for entry in map(read_entry, log.poll(0.1)):
                outcome = state.apply(entry, 0)
                found.setdefault((entry.message.client_id, outcome), []).append(entry.message.partition)
    finally:
        log.close()
    return found


async def partitions_of(member: Client, what: str) -> set[int]:
    """The partitions of the next lines of a kind, half of all."""
    return {line["partition"] for line in [await member.until(what) for _ in range(HALF)]}


def test_members_of_marshal_share_a_group() -> None:
    """One in Go is killed, ours takes its partitions over, and two in Go share what ours releases.

    A member that works on a partition which it does not hold sends heartbeats for it, and they are refused. There are
    none: each partition had one member at a time.
    """
    program = build_go_programs() / "marshal"

    def in_go(address: str, name: str) -> AbstractAsyncContextManager[Client]:
        options = ("-bootstrap", address, "-group", "billing", "-client", name, "-topics", "orders")
        return running(program, *options, "-interval", f"{INTERVAL_S}s", "-max-claims", str(HALF))

    def ours_at(address: str) -> AbstractAsyncContextManager[Client]:
        options = ("--kafka", address, "--group", "billing", "--client-id", "ours", "--topics", "orders", "--greedy")
        command = (sys.executable, "-m", "kcoord_wire", "marshal", "consume", "--format", "json", *options)
        return running(*command, "--heartbeat-interval", str(INTERVAL_S))

    async def scenario(address: str) -> None:
        async with AsyncExitStack() as running_ones:
            enter = running_ones.enter_async_context
            first = await enter(in_go(address, "go-1"))
            taken = await partitions_of(first, "claimed")
            ours = await enter(ours_at(address))
            with feeding(address, "orders", CLAIMED, rate=60):
                assert await partitions_of(ours, "gained") == set(range(CLAIMED)) - taken
                await first.until("record")
                await first.end(signal.SIGKILL)
                assert await partitions_of(ours, "gained") == taken
                others = [await enter(in_go(address, f"go-{number}")) for number in (2, 3)]
                for each in others:
                    await each.until("ready")
                for _ in range(100):  # while they find nothing that is free
                    await ours.until("record")
                assert await ours.end(signal.SIGTERM) == 0
            for each in others:
                for _ in range(HALF):
                    await each.until("record", lambda line: line["value"] == "last")
                assert await each.end(signal.SIGTERM) == 0
        records = [line for each in (first, ours, *others) for line in each.lines if line["what"] == "record"]
        last = {line["partition"]: line["offset"] for line in records if line["value"] == "last"}
        got = {(line["partition"], line["offset"]) for line in records}
        assert got == {(partition, offset) for partition in range(CLAIMED) for offset in range(last[partition] + 1)}

    with Coordinator(topics={"orders": CLAIMED}) as broker:
        assert create_topic(broker.address, "__marshal", LOG_PARTITIONS, heartbeat_interval_ms=INTERVAL_S * 1000)
        played(scenario(broker.address))
        outcomes = outcomes_of(broker.address)
    refused = {Outcome.HEARTBEAT_REFUSED, Outcome.RELEASE_REFUSED, Outcome.SKIPPED}
    assert {key for key in outcomes if key[1] in refused} == set()
    released = outcomes["go-2", Outcome.RELEASED] + outcomes["go-3", Outcome.RELEASED]
    assert sorted(released) == list(range(CLAIMED))
