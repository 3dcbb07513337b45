"""The nodes of the old consumers in ZooKeeper: paths, what is in them, and who registers the brokers.

Sources: "the 0.8 consumer-coordinator draft", section 4 "Paths Stored in ZooKeeper", and the layout of Kafka 0.7, which
it keeps: a broker's partitions of a topic are a node with their number, and a partition is named ``BROKER-NUMBER``.

    /brokers/ids/[broker]                             host and port, ephemeral
    /brokers/coordinators                             number of subsets of the groups, each with a coordinator
    /brokers/coordinators/[n], [n]_epoch              of subset n from 1 on: what the two nodes below are of the first
    /brokers/topics/[topic]                           JSON of this project, where its rebalancing is switched off
    /brokers/topics/[topic]/[broker]                  number of the topic's partitions at that broker
    /consumers/coordinator                            the coordinator's broker id, ephemeral
    /consumers/coordinator_epoch                      number of elections; every write checks its version
    /consumers/[group]                                JSON of this project: what a new coordinator has to know (below)
    /consumers/[group]/owners/[topic]/[partition]     the consumer thread that owns it, persistent
    /consumers/[group]/offsets/[topic]/[partition]    the committed offset

Laws of `Brokers`, the own registration and the list of all:

* While the session is connected, the own ephemeral registration is made again whenever it is missing: after a new
  session, and when another client has deleted it.
* A registration of a former session with the same address is our own, and is replaced (KAFKA-7165); with another
  address it belongs to a broker with the same id, which keeps it until it ends.
* `known` is what ZooKeeper had when it was last read; it is kept while there is no connection.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from kcoord_wire.kernel.machines import BrokerAddress
from kcoord_wire.kernel.procedures import Latch, Latched, Procedure, Sleep
from kcoord_wire.zookeeper.requests import (
    RETRY_MS,
    Ask,
    Create,
    Delete,
    Fired,
    Node,
    Outcome,
    Read,
    ReadChildren,
    RegistryError,
    Replied,
    SessionChanged,
    SessionState,
    ZooKeeperProcedures,
    can_be_node,
    create_missing,
)

BROKER_IDS: Final = "/brokers/ids"
BROKER_TOPICS: Final = "/brokers/topics"
CONSUMERS: Final = "/consumers"
COORDINATOR: Final = "/consumers/coordinator"
COORDINATOR_EPOCH: Final = "/consumers/coordinator_epoch"
COORDINATORS: Final = "/brokers/coordinators"
MOST_COORDINATORS: Final = 1_000
LONGEST_NAME: Final = 255
ROOTS: Final = ("/brokers", BROKER_IDS, BROKER_TOPICS, CONSUMERS)
"""The nodes that have to exist before anything else, parents first; COORDINATOR_EPOCH is created with ``0``."""


def election_of(subset: int) -> tuple[str, str]:
    """Return the paths of the coordinator of a subset of the groups, and of its epoch; the first has the draft's."""
    return (
        (f"{COORDINATORS}/{subset}", f"{COORDINATORS}/{subset}_epoch") if subset else (COORDINATOR, COORDINATOR_EPOCH)
    )


def parse_coordinators(data: bytes) -> int:
    """Return the number of subsets of the groups.

    :raises ValueError: it is none
    """
    if not data.isdigit() or len(data) > len(str(MOST_COORDINATORS)) or not 0 < int(data) <= MOST_COORDINATORS:
        raise ValueError(f"not a number of coordinators: {data[:40]!r}")
    return int(data)


def broker_path(broker_id: int) -> str:
    """Return the path of a broker's registration."""
    return f"{BROKER_IDS}/{broker_id}"


def topic_path(topic: str) -> str:
    """Return the path of a topic; its children are the brokers that have partitions of it."""
    return f"{BROKER_TOPICS}/{topic}"


def topic_switch(is_on: bool) -> bytes:
    """Return the data of a topic's node with its rebalancing switched on, or off (KAFKA-364)."""
    return b"" if is_on else json.dumps({"rebalancing": False}).encode()


def is_switched_off(data: bytes) -> bool:
    """Whether a topic's node has its rebalancing switched off; any other data has it on."""
    value = parse_json(data)
    return isinstance(value, dict) and value.get("rebalancing") is False


def group_path(group: str) -> str:
    """Return the path of a group."""
    return f"{CONSUMERS}/{group}"


def owner_path(group: str, topic: str, partition: str) -> str:
    """Return the path of a partition's owner."""
    return f"{CONSUMERS}/{group}/owners/{topic}/{partition}"


def offset_path(group: str, topic: str, partition: str) -> str:
    """Return the path of a partition's committed offset."""
    return f"{CONSUMERS}/{group}/offsets/{topic}/{partition}"


def is_node_name(name: str) -> bool:
    """Whether a group or a consumer can have this name: ZooKeeper takes it, it is not the name of another node of this
    layout, and it is printable and not too long."""
    is_own = name not in ("zookeeper", "coordinator", "coordinator_epoch") and len(name) <= LONGEST_NAME
    return is_own and can_be_node(name) and name.isprintable()


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """What the draft's layout does not have, but a coordinator that takes over needs; the data of the group's node.

    :ivar session_timeout_ms: the longest of the consumers that may have partitions: so long they may fetch without
        hearing from a coordinator
    :ivar is_starting: consumers may have been started with partitions that are not yet in ``owners``
    """

    session_timeout_ms: int = 0
    is_starting: bool = False


def format_group(record: GroupRecord) -> bytes:
    """Return the data of a group's node."""
    return json.dumps({"session_timeout_ms": record.session_timeout_ms, "is_starting": record.is_starting}).encode()


def parse_json(data: bytes | str) -> Any:
    """Return a JSON value; None for what is none."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def parse_object(data: bytes, what: str) -> dict[str, Any]:
    """Return the JSON object in a node's data.

    :param what: it should be, for the error
    :raises ValueError: there is something else
    """
    value = parse_json(data)
    if not isinstance(value, dict):
        raise ValueError(f"not {what}: {data[:200]!r}")
    return value


def parse_group(data: bytes) -> GroupRecord:
    """Return the record in a group's node; the default for a group of 0.7, which has none.

    :raises ValueError: there is something else
    """
    if not data:
        return GroupRecord()
    value = parse_object(data, "a group's record")
    if not isinstance(value.get("session_timeout_ms"), int):
        raise ValueError(f"not a group's record: {data!r}")
    return GroupRecord(value["session_timeout_ms"], bool(value.get("is_starting")))


def broker_record(host: str, port: int) -> bytes:
    """Return a broker's registration, in the form of Kafka 0.8: JSON with ``host`` and ``port``."""
    return json.dumps({"version": 1, "host": host, "port": port}).encode()


def parse_broker(data: bytes) -> tuple[str, int]:
    """Return host and port of a broker's registration.

    :raises ValueError: it is not one
    """
    value = parse_object(data, "a broker's registration")
    if not isinstance(value.get("host"), str) or not isinstance(value.get("port"), int):
        raise ValueError(f"not a broker's registration: {data!r}")
    return value["host"], value["port"]


class Brokers:
    """One broker's registration, and its list of all.

    :param own: this broker, and where it listens
    :param emit: adds an `Ask` to the effects of the machine
    :param tokens: for `ZooKeeperProcedures`
    :param failed: called with a text when a request failed that should not
    :ivar known: by broker id, in the order of the ids
    :ivar is_taken: another broker is registered with the own id
    """

    def __init__(
        self,
        own: BrokerAddress,
        emit: Callable[[Ask], None],
        tokens: Iterator[int],
        failed: Callable[[str], None],
    ) -> None:
        self.own = own
        self.known: dict[int, BrokerAddress] = {}
        self.is_taken: bool = False
        self._path = broker_path(own.broker_id)
        self._record = broker_record(own.host, own.port)
        self._session_id = 0
        self._now = 0
        self._changed = Latch()
        self._procedures = ZooKeeperProcedures(emit, tokens)
        self._failed = failed

    @property
    def deadline(self) -> int | None:
        """When `handle` has something to do, in ms; None for never."""
        return self._procedures.deadline

    def handle(self, event: object, now: int) -> None:
        """Take in an event of the machine, of whatever class."""
        if isinstance(event, Replied):
            self._procedures.replied(event, now)
        elif isinstance(event, SessionChanged):
            self._procedures.cancel_all()
            if event.state is SessionState.CONNECTED:
                self._session_id = event.session_id
                self._procedures.start(self._follow(), now)
        elif isinstance(event, Fired) and event.path == BROKER_IDS:
            self._changed.open()
        self._procedures.advance(now)

    def _follow(self) -> Procedure:
        """Register, read the list, and again when it has changed."""
        while True:
            try:
                yield from create_missing(*ROOTS)
                while True:
                    yield from self._register()
                    yield from self._read()
                    if self.own.broker_id in self.known:
                        yield Latched(self._changed)
            except RegistryError as error:
                self._failed(str(error))
            yield Sleep(RETRY_MS)

    def _register(self) -> Procedure:
        """Make the own registration unless this session has it."""
        while True:
            node: Node | None = yield Read(self._path)
            if node is not None and node.ephemeral_owner == self._session_id:
                self.is_taken = False
                return
            self.is_taken = node is not None and node.data != self._record
            if node is not None and self.is_taken:
                self._failed(f"another broker has the id {self.own.broker_id}: {node.data!r}")
                yield Sleep(RETRY_MS)
                continue
            try:
                if node is not None:
                    yield Delete(self._path, node.version)
                yield Create(self._path, self._record, is_ephemeral=True)
                return
            except RegistryError as error:
                if error.outcome not in (Outcome.NODE_EXISTS, Outcome.NO_NODE, Outcome.BAD_VERSION):
                    raise

    def _read(self) -> Procedure:
        self._changed = Latch()
        names: tuple[str, ...] = (yield ReadChildren(BROKER_IDS, watch=True)) or ()
        ids = sorted(int(name) for name in names if name.isdecimal())
        nodes: list[Node | None] = yield [Read(broker_path(broker_id)) for broker_id in ids]
        self.known = {}
        for broker_id, node in zip(ids, nodes, strict=True):
            try:
                if node is not None:
                    self.known[broker_id] = BrokerAddress(broker_id, *parse_broker(node.data))
            except ValueError as error:
                self._failed(str(error))
