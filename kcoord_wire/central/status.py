"""The state of a cluster of the draft: what is in ZooKeeper, and what the coordinator has in memory.

Laws:

* Groups' consumers and what a rebalance waits for are known to the coordinator alone (section 4 removes
  ``/consumers/groups/ids``). Where it does not answer, that is said, and the rest is what ZooKeeper has.
* Reading changes nothing. `ClusterClient.switch_rebalancing` changes the topics' nodes, and nothing else.

Source: "the 0.8 consumer-coordinator draft", sections 4 and 5.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self

import kcoord_wire as kw
from kcoord_wire.central.draft.events import Partition
from kcoord_wire.central.draft.groups import GroupStore
from kcoord_wire.central.fetcher import BadAnswerError, open_link
from kcoord_wire.kernel.machines import BrokerAddress
from kcoord_wire.kernel.net import address_text
from kcoord_wire.kernel.procedures import Procedure
from kcoord_wire.messages import central as m
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.zookeeper.layout import (
    BROKER_IDS,
    BROKER_TOPICS,
    CONSUMERS,
    COORDINATOR,
    broker_path,
    is_switched_off,
    parse_broker,
    topic_path,
    topic_switch,
)
from kcoord_wire.zookeeper.leadership import LeaderRecord, parse_leader
from kcoord_wire.zookeeper.registry import ZooKeeperRegistry
from kcoord_wire.zookeeper.requests import (
    Multi,
    Node,
    Read,
    ReadChildren,
    RegistryError,
    RegistryEvent,
    Replied,
    SetData,
    ZooKeeperProcedures,
    answer_to,
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
    :ivar fixed: the topics whose rebalancing is switched off
    :ivar groups: by name
    :ivar live: what the coordinator has answered; None if it did not
    :ivar silence: why it did not
    """

    leader: LeaderRecord | None = None
    brokers: dict[int, BrokerAddress] = field(default_factory=dict)
    topics: dict[str, dict[int, int]] = field(default_factory=dict)
    fixed: set[str] = field(default_factory=set)
    groups: dict[str, GroupStatus] = field(default_factory=dict)
    live: m.CentralStatusResponse | None = None
    silence: str = ""


class ClusterClient:
    """Reads a cluster's state, and switches rebalancing, on a session of its own: to be entered.

    :param zookeeper: ``HOST:PORT,...[/CHROOT]``
    :param seconds: that ZooKeeper may take to answer at the start
    :param settings: of the `ZooKeeperRegistry`
    """

    def __init__(self, zookeeper: str, *, seconds: float = 15.0, **settings: Any) -> None:
        self._registry = ZooKeeperRegistry(zookeeper, self._deliver, **settings)
        self._seconds = seconds
        self._procedures = ZooKeeperProcedures(self._registry.ask)

    async def __aenter__(self) -> Self:
        await self._registry.start(self._seconds)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._registry.close()

    def _deliver(self, event: RegistryEvent) -> None:
        if isinstance(event, Replied):
            self._procedures.replied(event, 0)

    async def read(self) -> ClusterStatus:
        """Return what ZooKeeper and the coordinator know.

        :raises ConnectionError: ZooKeeper does not answer, or refuses
        """
        status = ClusterStatus()
        await self._run(_read(status))
        await self._read_live(status)
        return status

    async def switch_rebalancing(self, topics: Sequence[str], *, is_on: bool) -> None:
        """Switch the rebalancing of topics on or off (KAFKA-364); nothing is changed unless all of them exist.

        :raises ConnectionError: ZooKeeper does not answer, or refuses
        :raises ValueError: there is no such topic
        """
        await self._run(_switch(topics, topic_switch(is_on)))

    async def exists(self, path: str) -> bool:
        """Whether there is a node."""
        return await self._run(answer_to(Read(path))) is not None

    async def broker(self, broker_id: int) -> BrokerAddress | None:
        """Return the broker that is registered under an id; None if there is none."""
        node: Node | None = await self._run(answer_to(Read(broker_path(broker_id))))
        return None if node is None else BrokerAddress(broker_id, *parse_broker(node.data))

    async def _run(self, procedure: Generator[Any, Any, Any]) -> Any:
        """Return what a procedure returns."""
        done = asyncio.get_running_loop().create_future()

        def run() -> Procedure:
            try:
                done.set_result((yield from procedure))
            except RegistryError as error:
                text = error.reply.detail or error.outcome.value
                done.set_exception(ConnectionError(f"ZooKeeper: {text}"))
            except Exception as error:  # else nobody learns of it
                done.set_exception(error)

        self._procedures.start(run(), 0)
        return await done

    async def _read_live(self, status: ClusterStatus) -> None:
        if status.leader is None:
            status.silence = "no broker is elected"
        elif (broker := status.brokers.get(status.leader.broker_id)) is None:
            status.silence = f"broker {status.leader.broker_id} is elected, and has no registration"
        else:
            try:
                async with open_link(broker, ANSWER_SECONDS, LARGEST_ANSWER) as link:
                    live = await link.ask(m.CentralStatusRequest(), m.CentralStatusResponse)
            except (OSError, EOFError, BadAnswerError, kw.DecodeError) as error:
                address = address_text(broker.host, broker.port)
                status.silence = f"it does not answer at {address}: {str(error) or 'no answer in time'}"
            else:
                status.live = None if live.error_code else live
                status.silence = ErrorCode(live.error_code).name if live.error_code else ""


def _switch(topics: Sequence[str], data: bytes) -> Procedure:
    nodes: list[Node | None] = yield [Read(topic_path(topic)) for topic in topics]
    if missing := [topic for topic, node in zip(topics, nodes, strict=True) if node is None]:
        raise ValueError(f"there is no topic {missing[0]!r}")
    yield Multi(tuple(SetData(topic_path(topic), data) for topic in topics))


def _read(status: ClusterStatus) -> Procedure:
    """Take in what ZooKeeper has."""
    leader, ids, topics, groups = yield [
        Read(COORDINATOR), ReadChildren(BROKER_IDS), ReadChildren(BROKER_TOPICS), ReadChildren(CONSUMERS)
    ]  # fmt: skip
    if leader is not None:
        status.leader = parse_leader(leader.data)
    nodes = yield from _read_nodes(BROKER_IDS, ids or ())
    for name, data in nodes.items():
        with suppress(ValueError):  # others use the same ZooKeeper
            status.brokers[int(name)] = BrokerAddress(int(name), *parse_broker(data))
    for topic in topics or ():
        node, names = yield [Read(topic_path(topic)), ReadChildren(topic_path(topic))]
        if node is not None and is_switched_off(node.data):
            status.fixed.add(topic)
        nodes = yield from _read_nodes(topic_path(topic), names or ())
        status.topics[topic] = {int(broker): int(data) for broker, data in nodes.items() if data.isdigit()}
    for group in groups or ():
        if group not in _NOT_GROUPS:
            store = GroupStore(group)
            yield from store.load()
            offsets = {partition: offset for partition, offset in store.offsets.items() if offset >= 0}
            status.groups[group] = GroupStatus(store.owners, offsets)


def _read_nodes(path: str, names: Sequence[str]) -> Generator[Any, Any, dict[str, bytes]]:
    """Return the data of the children whose names are numbers."""
    numbers = [name for name in names if name.isdecimal()]
    nodes: list[Node | None] = yield [Read(f"{path}/{name}") for name in numbers]
    return {name: node.data for name, node in zip(numbers, nodes, strict=True) if node is not None}
