"""The state of a cluster of the draft: what is in ZooKeeper, and what the coordinator has in memory.

Laws:

* Groups' consumers and what a rebalance waits for are known to the coordinator alone (section 4 removes
  ``/consumers/groups/ids``). Where it does not answer, that is said, and the rest is what ZooKeeper has.
* Reading changes nothing.

Source: "the 0.8 consumer-coordinator draft", sections 4 and 5.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import kcoord_wire as kw
from kcoord_wire.central.dialects import draft_frame
from kcoord_wire.central.draft.coordinator import DraftCoordinator, MemberDescription
from kcoord_wire.central.draft.events import CentralError, Partition
from kcoord_wire.kernel.machines import BrokerAddress
from kcoord_wire.kernel.net import address_text
from kcoord_wire.messages import central as m
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.zookeeper.layout import (
    BROKER_IDS,
    BROKER_TOPICS,
    CONSUMERS,
    COORDINATOR,
    broker_path,
    group_path,
    parse_broker,
    topic_path,
)
from kcoord_wire.zookeeper.leadership import LeaderRecord, parse_leader
from kcoord_wire.zookeeper.requests import (
    Ask,
    Node,
    Outcome,
    Read,
    ReadChildren,
    Registry,
    RegistryEvent,
    Replied,
    Request,
)

ANSWER_SECONDS: Final = 5.0
LARGEST_ANSWER: Final = 64 << 20
_NOT_GROUPS: Final = ("coordinator", "coordinator_epoch")


@dataclass(slots=True)
class GroupStatus:
    """What ZooKeeper has of a group.

    :ivar owners: consumer thread of each partition
    :ivar offsets: committed offset of each partition
    """

    owners: dict[Partition, str] = field(default_factory=dict)
    offsets: dict[Partition, int] = field(default_factory=dict)


@dataclass(slots=True)
class ClusterStatus:
    """A cluster.

    :ivar leader: the elected broker; None if there is none
    :ivar brokers: those that are registered, by id
    :ivar topics: number of partitions at each broker, by topic
    :ivar groups: by name
    :ivar live: what the coordinator has answered; None if it did not
    :ivar silence: why it did not
    """

    leader: LeaderRecord | None = None
    brokers: dict[int, BrokerAddress] = field(default_factory=dict)
    topics: dict[str, dict[int, int]] = field(default_factory=dict)
    groups: dict[str, GroupStatus] = field(default_factory=dict)
    live: m.CentralStatusResponse | None = None
    silence: str = ""


class StatusReader:
    """Reads a cluster's state through a registry.

    :ivar registry: to be set before `read`; its events go to `deliver`
    """

    registry: Registry

    def __init__(self) -> None:
        self._tokens = count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    def deliver(self, event: RegistryEvent) -> None:
        """Take in an event of the registry."""
        if isinstance(event, Replied) and (waiting := self._waiting.pop(event.token, None)) is not None:
            if event.outcome is Outcome.OK:
                waiting.set_result(event.value)
            else:
                waiting.set_exception(ConnectionError(f"ZooKeeper: {event.detail or event.outcome.value}"))

    async def read(self) -> ClusterStatus:
        """Return what ZooKeeper and the coordinator know.

        :raises ConnectionError: ZooKeeper does not answer, or refuses
        """
        status = ClusterStatus()
        [leader, names, topics, groups] = await self._ask(
            [Read(COORDINATOR), ReadChildren(BROKER_IDS), ReadChildren(BROKER_TOPICS), ReadChildren(CONSUMERS)]
        )
        if leader is not None:
            status.leader = parse_leader(leader.data)
        await self._read_brokers(status, [int(name) for name in names or () if name.isdecimal()])
        await self._read_topics(status, topics or ())
        for group in groups or ():
            if group not in _NOT_GROUPS:
                status.groups[group] = await self._read_group(group)
        await self._read_live(status)
        return status

    async def broker(self, broker_id: int) -> BrokerAddress | None:
        """Return the broker that is registered under an id; None if there is none."""
        [node] = await self._ask([Read(broker_path(broker_id))])
        return None if node is None else BrokerAddress(broker_id, *parse_broker(node.data))

    async def _ask(self, requests: Iterable[Request]) -> list[Any]:
        futures = []
        for request in requests:
            token = next(self._tokens)
            self._waiting[token] = future = asyncio.get_running_loop().create_future()
            futures.append(future)
            self.registry.ask(Ask(token, request))
        return await asyncio.gather(*futures)

    async def _read_brokers(self, status: ClusterStatus, ids: list[int]) -> None:
        nodes: list[Node | None] = await self._ask(Read(broker_path(broker_id)) for broker_id in ids)
        for broker_id, node in zip(ids, nodes, strict=True):
            if node is not None:
                with suppress(ValueError):  # others use the same ZooKeeper
                    status.brokers[broker_id] = BrokerAddress(broker_id, *parse_broker(node.data))

    async def _read_topics(self, status: ClusterStatus, topics: Iterable[str]) -> None:
        names = list(topics)
        for topic, brokers in zip(names, await self._children(map(topic_path, names)), strict=True):
            nodes: list[Node | None] = await self._ask(Read(f"{topic_path(topic)}/{broker}") for broker in brokers)
            status.topics[topic] = {
                int(broker): int(node.data)
                for broker, node in zip(brokers, nodes, strict=True)
                if node is not None and broker.isdecimal() and node.data.isdigit()
            }

    async def _read_group(self, group: str) -> GroupStatus:
        owners = await self._read_partitions(f"{group_path(group)}/owners")
        offsets = await self._read_partitions(f"{group_path(group)}/offsets")
        return GroupStatus(owners, {each: int(text) for each, text in offsets.items() if text.isdecimal()})

    async def _read_partitions(self, path: str) -> dict[Partition, str]:
        [topics] = await self._children([path])
        names = await self._children(f"{path}/{topic}" for topic in topics)
        partitions = [Partition(topic, name) for topic, found in zip(topics, names, strict=True) for name in found]
        nodes: list[Node | None] = await self._ask(Read(f"{path}/{topic}/{name}") for topic, name in partitions)
        found = zip(partitions, nodes, strict=True)
        return {partition: node.data.decode(errors="replace") for partition, node in found if node is not None}

    async def _children(self, paths: Iterable[str]) -> list[tuple[str, ...]]:
        return [names or () for names in await self._ask(ReadChildren(path) for path in paths)]

    async def _read_live(self, status: ClusterStatus) -> None:
        if status.leader is None:
            status.silence = "no broker is elected"
        elif (broker := status.brokers.get(status.leader.broker_id)) is None:
            status.silence = f"broker {status.leader.broker_id} is elected, and has no registration"
        else:
            try:
                live = await asyncio.wait_for(ask_coordinator(broker.host, broker.port), ANSWER_SECONDS)
            except (OSError, EOFError, TimeoutError, kw.DecodeError) as error:
                address = address_text(broker.host, broker.port)
                status.silence = f"it does not answer at {address}: {str(error) or 'no answer in time'}"
            else:
                status.live = None if live.error_code else live
                status.silence = ErrorCode(live.error_code).name if live.error_code else ""


async def ask_coordinator(host: str, port: int) -> m.CentralStatusResponse:
    """Return the state of the coordinator that listens there, or its error.

    :raises OSError: it cannot be reached
    :raises EOFError: it has closed the connection
    :raises DecodeError: its answer does not decode
    """
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(draft_frame(m.CentralStatusRequest()))
        size = int.from_bytes(await reader.readexactly(4), "big")
        if size > LARGEST_ANSWER:
            raise kw.DecodeError("frame", 0, "Frame.size", f"an answer of {size} bytes")
        return kw.decode(m.CentralStatusResponse, await reader.readexactly(size), 0)
    finally:
        writer.close()


def coordinator_status(machine: DraftCoordinator, host_of: Callable[[int], str], now: int) -> m.CentralStatusResponse:
    """Return what a broker's machine knows.

    :param host_of: returns the address of a connection's peer; empty if it has ended
    :param now: ms, of the machine's clock
    """
    term, described = machine.term, machine.describe()
    if term is None or machine.epoch_at(now) is None:
        return m.CentralStatusResponse(error_code=CentralError.NOT_COORDINATOR)
    return m.CentralStatusResponse(
        epoch=term.context.epoch,
        elected_ms=now - term.context.elected_at,
        groups=[
            m.CentralStatusResponseGroup(
                group_id=group.group_id,
                generation=group.generation,
                phase=group.phase,
                waits_for=list(group.waits_for),
                consumers=[_consumer_status(member, host_of(member.connection)) for member in group.members],
            )
            for group in described.groups
        ],
    )


def _consumer_status(member: MemberDescription, host: str) -> m.CentralStatusResponseConsumer:
    return m.CentralStatusResponseConsumer(
        consumer_id=member.consumer_id,
        host=host,
        topic_count=member.topic_count,
        session_timeout_ms=member.session_timeout_ms,
        failed_pings=member.failed_pings,
        partitions=len(member.owned) if member.is_started else 0,
    )
