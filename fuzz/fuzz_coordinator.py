"""Whatever requests come, the coordinator answers each once, and what it answers and logs can be written and read."""

from __future__ import annotations

from functools import partial
from typing import Any

import kcoord_wire as kw
from kcoord_wire.assignors.embedded import subscribed_topics
from kcoord_wire.coordinator.consumer_groups.group import ConsumerGroup
from kcoord_wire.coordinator.consumer_groups.machine import CoordinatorMachine
from kcoord_wire.coordinator.core.apis import SERVED, api_of
from kcoord_wire.coordinator.core.brokers import Brokers
from kcoord_wire.coordinator.core.config import Endpoint, GroupConfig
from kcoord_wire.coordinator.core.events import Reply, Request, Resign, TopicsDeleted
from kcoord_wire.coordinator.host import Runtime
from kcoord_wire.coordinator.log.segments import TRANSACTIONS
from kcoord_wire.coordinator.log.store import Store
from kcoord_wire.coordinator.topics.catalog import TopicLimits
from kcoord_wire.coordinator.topics.topics import Topics
from kcoord_wire.coordinator.transaction_flow import TransactionFlow
from kcoord_wire.coordinator.transactions.machine import TransactionMachine
from kcoord_wire.coordinator.transactions.model import PREPARED
from kcoord_wire.kernel.disk import MemoryDisk
from kcoord_wire.kernel.machines import Tick

BROKERS = Brokers([Endpoint(0, "localhost", 9092)])
LIMITS = TopicLimits(max_partitions=100)
CONFIG = GroupConfig(max_size=3)
STEP_MS = (0, 1, 1_000, 10_000, 60_000)
LEFT_OUT = {17, 36}  # SASL is a connection's affair, not the coordinator's
MOST_TICKS = 1_000


class World:
    """All machines with their logs, a time of their own, and every request that waits for its answer."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000  # also the first producer id
        self.topics = Topics(BROKERS, {"orders": 2}, cluster_id="fuzz", auto_create_partitions=1, limits=LIMITS)
        groups = CoordinatorMachine(BROKERS, self.topics, subscribed_topics, CONFIG)
        self.groups = Runtime(groups, Store(MemoryDisk()), self.send, lambda effect: None)
        partition_of = BROKERS.partition_of_group
        transactions = TransactionMachine(self.topics, partition_of, self.topics.new_producer_id, CONFIG)
        self.transactions = Runtime(transactions, Store(MemoryDisk(), TRANSACTIONS), self.send, self.write_markers)
        self.flow = TransactionFlow(
            transactions=partial(self.submit, self.transactions),
            groups=partial(self.submit, self.groups),
            topics=self.submit_to_topics,
            unverified=self.topics.unverified,
            offsets_partition=partition_of,
            send=self.send,
            new_token=self.inner_token,
        )
        self.open: dict[int, Request] = {}
        self._inner = 0
        self.groups.recover(self.now)
        self.transactions.recover(self.now)

    def inner_token(self) -> int:
        self._inner -= 1
        return self._inner

    def ask(self, token: int, header: Any, message: Any) -> None:
        version = header.request_api_version
        request = Request(token, message, version, header.client_id or "", "/127.0.0.1", str(token))
        self.open[token] = request
        if isinstance(message, kw.TxnOffsetCommitRequest):
            self.flow.commit_offsets(request, self.now)
        elif isinstance(message, kw.ProduceRequest) and message.transactional_id is not None:
            self.flow.produce(request, self.now)
        elif type(message) in self.transactions.machine.serves:
            self.submit(self.transactions, request, self.now)
        elif type(message) in self.groups.machine.serves - {kw.WriteTxnMarkersRequest}:
            self.submit(self.groups, request, self.now)
        else:
            self.submit_to_topics(request, self.now)
        self.sync()

    def submit(self, runtime: Any, event: Any, now: int) -> None:
        runtime.submit(event, now)

    def submit_to_topics(self, event: Any, now: int) -> None:
        for effect in self.topics.handle(event, now):
            if isinstance(effect, Reply):
                self.send(effect.token, effect.message)
            elif isinstance(effect, TopicsDeleted):
                self.groups.submit(effect, now)

    def sync(self) -> None:
        """Write the logs, until nothing more follows from it."""
        runtimes: list[Any] = [self.groups, self.transactions]
        while any(self.sync_one(runtime) for runtime in runtimes):
            pass

    @staticmethod
    def sync_one(runtime: Any) -> bool:
        sync = runtime.begin_sync()
        if sync is None:
            return False
        sync.run()
        runtime.end_sync(sync)
        return True

    def write_markers(self, effect: Any) -> None:
        self.flow.write_markers(effect, self.now)

    def send(self, token: int, message: Any) -> None:
        if token < 0:
            self.flow.answered(token, message, self.now)
            return
        request = self.open.pop(token)  # a second answer finds no request
        if message is not None:
            kw.encode_response(message, request.version)

    def wait(self, ms: int) -> None:
        until = self.now + ms
        for _ in range(MOST_TICKS):
            due = min((each for each in self.deadlines() if each is not None and each <= until), default=None)
            if due is None:
                self.now = until
                return
            self.now = max(self.now, due)
            self.tick()
        raise AssertionError("time does not get on")

    def deadlines(self) -> list[int | None]:
        return [self.groups.deadline, self.transactions.deadline, self.topics.deadline, self.flow.deadline]

    def tick(self) -> None:
        groups, transactions, topics, _ = (each is not None and each <= self.now for each in self.deadlines())
        if groups:
            self.groups.submit(Tick(), self.now)
        if transactions:
            self.transactions.submit(Tick(), self.now)
        if topics:
            self.submit_to_topics(Tick(), self.now)
        self.flow.tick(self.now)
        self.sync()


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
    world.groups.submit(Resign(), world.now)
    world.transactions.submit(Resign(), world.now)
    world.wait(1 << 24)  # every Fetch has been answered by then
    assert not world.open, "a request has no answer"
    world.groups.recover(world.now)
    for name, (latest, offsets) in known.items():
        loaded = world.groups.machine.groups.get(name)
        assert loaded is None or (generation(loaded) <= latest and loaded.offsets == offsets)
        assert loaded is not None or not offsets
    world.transactions.recover(world.now)
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
