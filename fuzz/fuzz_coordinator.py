"""Whatever requests come, the coordinator answers each once, and what it answers and logs can be written."""

from __future__ import annotations

from typing import Any

import kcoord_wire as kw
from kcoord_wire.assignors.embedded import subscribed_topics
from kcoord_wire.coordinator.consumer_groups.machine import CoordinatorMachine
from kcoord_wire.coordinator.core.brokers import Brokers
from kcoord_wire.coordinator.core.config import Endpoint, GroupConfig
from kcoord_wire.coordinator.core.error_responses import can_refuse
from kcoord_wire.coordinator.core.events import Append, Event, Load, LogRecord, Reply, Request, Resign, Tick
from kcoord_wire.coordinator.topics.limits import TopicLimits
from kcoord_wire.coordinator.topics.served import SERVED
from kcoord_wire.coordinator.topics.topics import Topics
from kcoord_wire.records import encode_offsets_record

BROKERS = Brokers([Endpoint(0, "localhost", 9092)])
LIMITS = TopicLimits(max_partitions=100)
STEP_MS = (0, 1, 1_000, 10_000, 60_000)
LEFT_OUT = {17, 36}  # SASL is a connection's affair, not the coordinator's
LEFT_OUT |= {22, 24, 25, 26, 65, 66}  # transactions are a machine of their own, with a log of its own
MOST_TICKS = 1_000


class World:
    """Machine and topics, with a time of their own and every request that waits for its answer."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000
        self.topics = Topics(BROKERS, {"orders": 2}, cluster_id="fuzz", auto_create_partitions=1, limits=LIMITS)
        self.groups = CoordinatorMachine(BROKERS, self.topics, subscribed_topics, GroupConfig(max_size=3))
        self.open: dict[int, Request] = {}
        self.log: list[LogRecord] = []
        self.handle(self.groups, Load([]))

    def ask(self, token: int, header: Any, message: Any) -> None:
        version = header.request_api_version
        request = Request(token, message, version, header.client_id or "", "/127.0.0.1", str(token))
        self.open[token] = request
        machine: Any = self.groups if type(message) in self.groups.serves else self.topics
        self.handle(machine, request)

    def handle(self, machine: Any, event: Event) -> None:
        for effect in machine.handle(event, self.now):
            if isinstance(effect, Reply):
                request = self.open.pop(effect.token)  # a second answer finds no request
                assert effect.after <= self.groups.appended
                if effect.message is not None:
                    kw.encode_response(effect.message, request.version)
            elif isinstance(effect, Append):
                for key, value in effect.records:
                    encode_offsets_record(key, value)
                self.log += effect.records

    def wait(self, ms: int) -> None:
        until = self.now + ms
        for _ in range(MOST_TICKS):
            dues = [(machine.deadline, machine) for machine in (self.groups, self.topics)]
            ahead = [(due, machine) for due, machine in dues if due is not None and due <= until]
            if not ahead:
                self.now = until
                return
            due, machine = min(ahead, key=lambda pair: pair[0])
            self.now = max(self.now, due)
            self.handle(machine, Tick())
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
        served = header.request_api_version in SERVED.get(api_key, ()) and can_refuse(message)
        if not served or api_key in LEFT_OUT:
            continue
        world.wait(STEP_MS[header.correlation_id % len(STEP_MS)])
        token += 1
        world.ask(token, header, message)
    known = {name: (group.generation_id, dict(group.offsets)) for name, group in world.groups.groups.items()}
    world.handle(world.groups, Resign())
    world.wait(1 << 32)  # every Fetch has been answered by then
    assert not world.open, "a request has no answer"
    world.handle(world.groups, Load(world.log))
    for name, (generation, offsets) in known.items():
        loaded = world.groups.groups.get(name)
        assert loaded is None or (loaded.generation_id <= generation and loaded.offsets == offsets)
        assert loaded is not None or not offsets


def attempt(bodies: Any) -> Any:
    try:
        yield from bodies
    except kw.DecodeError:
        return
