"""Whatever requests come, the coordinator answers each once, and what it answers and logs can be written and read."""

from __future__ import annotations

from typing import Any

import kcoord_wire as kw
from kcoord_wire.assignors.embedded import subscribed_topics
from kcoord_wire.coordinator.consumer_groups.group import ConsumerGroup
from kcoord_wire.coordinator.consumer_groups.machine import CoordinatorMachine
from kcoord_wire.coordinator.core.apis import SERVED, api_of
from kcoord_wire.coordinator.core.brokers import Brokers
from kcoord_wire.coordinator.core.config import Endpoint, GroupConfig
from kcoord_wire.coordinator.core.events import Request, Resign
from kcoord_wire.coordinator.host import Host, HostIO
from kcoord_wire.coordinator.log.batches import TRANSACTIONS
from kcoord_wire.coordinator.log.store import Store
from kcoord_wire.coordinator.topics.catalog import TopicLimits
from kcoord_wire.coordinator.topics.topics import Topics
from kcoord_wire.coordinator.transactions.transaction import PREPARED
from kcoord_wire.kernel.disk import MemoryDisk

BROKERS = Brokers([Endpoint(0, "localhost", 9092)])
LIMITS = TopicLimits(max_partitions=100)
CONFIG = GroupConfig(max_size=3)
STEP_MS = (0, 1, 1_000, 10_000, 60_000)
LEFT_OUT = {17, 36}  # SASL is a connection's affair, not the coordinator's
MOST_TICKS = 1_000


class World(HostIO):
    """All machines with their logs, a time of their own, and every request that waits for its answer."""

    def __init__(self) -> None:
        self.time = 1_700_000_000_000  # also the first producer id
        self.now = lambda: self.time
        topics = Topics(BROKERS, {"orders": 2}, cluster_id="fuzz", auto_create_partitions=1, limits=LIMITS)
        self.open: dict[int, Request] = {}
        self._inner = 0
        self.host = Host(
            CoordinatorMachine(BROKERS, topics, subscribed_topics, CONFIG),
            Store(MemoryDisk()),
            topics,
            self,
            transactions=Store(MemoryDisk(), TRANSACTIONS),
            send=self.send,
            new_token=self.inner_token,
            report=lambda report: None,
        )
        self.groups, self.transactions = self.host.groups, self.host.transactions
        self.groups.recover(self.time)
        self.transactions.recover(self.time)

    def run(self, what: str, work: Any, done: Any, failed: Any) -> None:
        done(work())

    def after(self, ms: int, step: Any) -> None:
        raise AssertionError("a disk in memory does not fail")

    def note(self, what: str, log: str, detail: object = None) -> None:
        pass

    def inner_token(self) -> int:
        self._inner -= 1
        return self._inner

    def ask(self, token: int, header: Any, message: Any) -> None:
        version = header.request_api_version
        request = Request(token, message, version, header.client_id or "", "/127.0.0.1", str(token))
        self.open[token] = request
        self.host.submit(request)
        self.sync()

    def sync(self) -> None:
        """Write the logs, until nothing more follows from it."""
        while self.host.commit():
            pass

    def send(self, token: int, message: Any) -> None:
        if token < 0:
            self.host.flow.answered(token, message, self.time)
            return
        request = self.open.pop(token)  # a second answer finds no request
        if message is not None:
            kw.encode_response(message, request.version)

    def wait(self, ms: int) -> None:
        until = self.time + ms
        for _ in range(MOST_TICKS):
            due = self.host.deadline
            if due is None or due > until:
                self.time = until
                return
            self.time = max(self.time, due)
            self.host.tick()
            self.sync()
        raise AssertionError("time does not get on")


def check(data: bytes) -> None:
    """`data`: frames, each a request with its header; the correlation id says how long it comes after the last one."""
    world = World()
    framer = kw.Framer(1 << 16)
    token = 0
    for body in attempt(framer.feed(data)):
        try:
            header, message = kw.decode_request(body, strict=False)
        except kw.DecodeError:
            continue
        api_key = header.request_api_key
        served = header.request_api_version in SERVED.get(api_key, ()) and api_of(message) is not None
        if not served or api_key in LEFT_OUT:
            continue
        world.wait(STEP_MS[header.correlation_id % len(STEP_MS)])
        token += 1
        world.ask(token, header, message)
    known = {name: (generation(group), dict(group.offsets)) for name, group in world.groups.machine.groups.items()}
    transactions = known_transactions(world)
    world.groups.submit(Resign(), world.time)
    world.transactions.submit(Resign(), world.time)
    world.wait(1 << 24)  # every Fetch has been answered by then
    assert not world.open, "a request has no answer"
    world.groups.recover(world.time)
    for name, (latest, offsets) in known.items():
        loaded = world.groups.machine.groups.get(name)
        assert loaded is None or (generation(loaded) <= latest and loaded.offsets == offsets)
        assert loaded is not None or not offsets
    world.transactions.recover(world.time)
    assert known_transactions(world) == transactions
    world.sync()
    assert PREPARED.isdisjoint(each.state for each in world.transactions.machine.transactions.values())


def generation(group: Any) -> int:
    """Return what never decreases of a group."""
    number: int = group.epoch if isinstance(group, ConsumerGroup) else group.generation_id
    return number


def known_transactions(world: World) -> dict[str, tuple[Any, ...]]:
    """Return what the log must have of each transactional id."""
    return {
        name: (each.producer_id, each.producer_epoch, each.state, each.partitions)
        for name, each in world.transactions.machine.transactions.items()
    }


def attempt(bodies: Any) -> Any:
    try:
        yield from bodies
    except kw.DecodeError:
        return
