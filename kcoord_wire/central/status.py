"""The state of a cluster of the draft: what is in ZooKeeper, and what the coordinator has in memory.

Laws:

* Groups' consumers and what a rebalance waits for are known to the coordinator alone (section 4 removes
  ``/consumers/groups/ids``). Where it does not answer, that is said, and the rest is what ZooKeeper has.
* Reading changes nothing. `ClusterClient.switch_rebalancing` changes the topics' nodes, and nothing else.

Source: "the 0.8 consumer-coordinator draft", sections 4 and 5.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
    COORDINATORS,
    broker_path,
    election_of,
    is_switched_off,
    parse_broker,
    parse_coordinators,
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

    :ivar leaders: the broker that is elected for each subset of the groups, one by default; None for none
    :ivar brokers: those that are registered, by id
    :ivar topics: number of partitions at each broker, by topic
    :ivar fixed: the topics whose rebalancing is switched off
    :ivar groups: by name
    :ivar live: what the coordinators have answered, joined; None if none did
    :ivar silence: why one did not
    """

    leaders: list[LeaderRecord | None] = field(default_factory=lambda: [None])
    brokers: dict[int, BrokerAddress] = field(default_factory=dict)
    topics: dict[str, dict[int, int]] = field(default_factory=dict)
    fixed: set[str] = field(default_factory=set)
    groups: dict[str, GroupStatus] = field(default_factory=dict)
    live: m.CentralStatusResponse | None = None
    silence: str = ""

    @property
    def leader(self) -> LeaderRecord | None:
        """The coordinator of the first subset."""
        return self.leaders[0]


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
        """Ask each coordinator once, whatever number of subsets it has."""
        asked = dict.fromkeys(None if leader is None else leader.broker_id for leader in status.leaders)
        answers = [await _ask(broker_id, status.brokers) for broker_id in asked]
        status.silence = "; ".join(answer for answer in answers if isinstance(answer, str))
        live = [answer for answer in answers if not isinstance(answer, str)]
        if live:
            groups = [group for answer in live for group in answer.groups]
            status.live = replace(live[0], groups=groups)


async def _ask(broker_id: int | None, brokers: Mapping[int, BrokerAddress]) -> m.CentralStatusResponse | str:
    """Return what a coordinator knows, or why it does not say it."""
    if broker_id is None:
        return "no broker is elected"
    if (broker := brokers.get(broker_id)) is None:
        return f"broker {broker_id} is elected, and has no registration"
    try:
        async with open_link(broker, ANSWER_SECONDS, LARGEST_ANSWER) as link:
            live: m.CentralStatusResponse = await link.ask(m.CentralStatusRequest(), m.CentralStatusResponse)
    except (OSError, EOFError, BadAnswerError, kw.DecodeError) as error:
        address = address_text(broker.host, broker.port)
        return f"it does not answer at {address}: {str(error) or 'no answer in time'}"
    return ErrorCode(live.error_code).name if live.error_code else live


def _switch(topics: Sequence[str], data: bytes) -> Procedure:
    nodes: list[Node | None] = yield [Read(topic_path(topic)) for topic in topics]
    if missing := [topic for topic, node in zip(topics, nodes, strict=True) if node is None]:
        raise ValueError(f"there is no topic {missing[0]!r}")
    yield Multi(tuple(SetData(topic_path(topic), data) for topic in topics))


def _read(status: ClusterStatus) -> Procedure:
    """Take in what ZooKeeper has."""
    subsets, ids, topics, groups = yield [
        Read(COORDINATORS), ReadChildren(BROKER_IDS), ReadChildren(BROKER_TOPICS), ReadChildren(CONSUMERS)
    ]  # fmt: skip
    count = 1 if subsets is None else parse_coordinators(subsets.data)
    leaders: list[Node | None] = yield [Read(election_of(subset)[0]) for subset in range(count)]
    status.leaders = [None if leader is None else parse_leader(leader.data) for leader in leaders]
    nodes = yield from _read_nodes(BROKER_IDS, ids or ())
    for name, data in nodes.items():
        with suppress(ValueError):  # others use the same ZooKeeper
            status.brokers[int(name)] = BrokerAddress(int(name), *parse_broker(data))
    for topic in topics or ():
        yield from _read_topic(status, topic)
    for group in groups or ():
        if group not in _NOT_GROUPS:
            store = GroupStore(group)
            yield from store.load()
            offsets = {partition: offset for partition, offset in store.offsets.items() if offset >= 0}
            status.groups[group] = GroupStatus(store.owners, offsets)


def _read_topic(status: ClusterStatus, topic: str) -> Procedure:
    node, names = yield [Read(topic_path(topic)), ReadChildren(topic_path(topic))]
    if node is not None and is_switched_off(node.data):
        status.fixed.add(topic)
    nodes = yield from _read_nodes(topic_path(topic), names or ())
    status.topics[topic] = {int(broker): int(data) for broker, data in nodes.items() if data.isdigit()}


def _read_nodes(path: str, names: Sequence[str]) -> Generator[Any, Any, dict[str, bytes]]:
    """Return the data of the children whose names are numbers."""
    numbers = [name for name in names if name.isdecimal()]
    nodes: list[Node | None] = yield [Read(f"{path}/{name}") for name in numbers]
    return {name: node.data for name, node in zip(numbers, nodes, strict=True) if node is not None}
