"""The brokers of the cluster in ZooKeeper: the own registration, and the list of all.

Laws:

* While the session is connected, the own ephemeral registration is made again whenever it is missing: after a new
  session, and when another client has deleted it.
* A registration of a former session with the same address is our own, and is replaced (KAFKA-7165); with another
  address it belongs to a broker with the same id, which keeps it until it ends.
* `known` is what ZooKeeper had when it was last read; it is kept while there is no connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kcoord_wire.kernel.machines import BrokerAddress
from kcoord_wire.kernel.procedures import Gate, Opened, Procedure, Sleep
from kcoord_wire.zookeeper.layout import BROKER_IDS, ROOTS, broker_path, broker_record, parse_broker
from kcoord_wire.zookeeper.model import (
    Ask,
    Create,
    Delete,
    Fired,
    Node,
    Outcome,
    Read,
    ReadChildren,
    Replied,
    SessionChanged,
    SessionState,
)
from kcoord_wire.zookeeper.procedures import RETRY_MS, RegistryError, ZooKeeperProcedures, create_missing


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
        self.is_taken = False
        self._path = broker_path(own.broker_id)
        self._record = broker_record(own.host, own.port)
        self._session_id = 0
        self._now = 0
        self._changed = Gate()
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
                        yield Opened(self._changed)
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
        self._changed = Gate()
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
