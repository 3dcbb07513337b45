"""The coordinator's process with everything that transactions need: both coordinators, topics, and two disks.

What runs here is what the server runs, below its sockets: `Requests` with its `Host`, on `Store` and `PartitionLog`. It
has several brokers, whose coordinators and partitions move.

Laws (besides those of `worlds.host`):

* Of the logs of the coordinators, which are fsynced, a kill leaves on the disk what it must; of the records of topics,
  which are not, what the process has written, as the page cache does.
* No answer leaves a process that is being killed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

from kcoord_wire.assignors.embedded import subscribed_topics
from kcoord_wire.coordinator.api_codec import ApiCodec
from kcoord_wire.coordinator.connection import PeerLimits
from kcoord_wire.coordinator.consumer_groups.machine import CoordinatorMachine
from kcoord_wire.coordinator.core.brokers import Brokers, Leaders
from kcoord_wire.coordinator.core.config import Endpoint, GroupConfig
from kcoord_wire.coordinator.host import Host
from kcoord_wire.coordinator.log.batches import OFFSETS_FOLDER, TRANSACTIONS, TRANSACTIONS_FOLDER
from kcoord_wire.coordinator.log.store import Store
from kcoord_wire.coordinator.metrics import Metrics
from kcoord_wire.coordinator.requests import Requests
from kcoord_wire.coordinator.topics.topics import Topics
from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.kernel.virtual.disk import VirtualDisk
from kcoord_wire.protocol.key_partitions import partition_of
from kcoord_wire.worlds.host import CheckedMachine, VirtualHost
from kcoord_wire.worlds.transactions.laws import Invariants
from kcoord_wire.worlds.transactions.transformer import Place

logging.getLogger("kcoord_wire.coordinator").addHandler(logging.NullHandler())  # the faults are in the trace

CONFIG: Final = GroupConfig(offsets_topic_partitions=4)
_RESTART_MS: Final = 500  # after a start or a write that the disk has failed
_LOAD_MS: Final = (0, 3, 60, 400)  # from reading the groups of a partition that has moved to serving them


class Call:
    """A request at a broker, which takes it for a connection of the server.

    :param broker: at which it has arrived
    :param host: of the client
    :param then: called with the message, its version and the response's bytes without their size, when it is answered
    """

    session = exchange = finish = beat = None
    codec: ApiCodec
    correlation_id = 0
    in_hand: int | None = None
    client_id = ""

    def __init__(self, owner: VirtualBrokers, broker: int, host: str, then: Callable[[Any, int, bytes], None]) -> None:
        self.broker = broker
        self.client_host = f"/{host}"
        self._owner = owner
        self._then = then

    def answer(self, message: Any, copies: int = 1) -> None:
        """See `Connection` of the server."""
        if not self._owner.is_dying:
            self._owner.answered(message, self.correlation_id)
            self._then(message, self.codec.version, self.codec.frame(self.correlation_id, message)[4:])

    def close(self) -> None:
        """See `Connection` of the server."""


class VirtualBrokers(VirtualHost):
    """All brokers of one process, which can be killed, and whose disks can fail.

    :param topics: name to number of partitions
    :param count: of brokers
    :param sync_ms: least and most that a write of a coordinator's log takes
    :param store_options: of both `Store`
    :ivar logs: the disk of the coordinators' logs
    :ivar records: the disk of the topics
    :ivar requests: what serves them; None while the process is down
    :ivar on_kill: called when the process has been killed
    """

    def __init__(
        self,
        clock: VirtualClock,
        random: Random,
        invariants: Invariants,
        topics: Mapping[str, int],
        *,
        count: int,
        sync_ms: tuple[int, int],
        store_options: Mapping[str, int],
    ) -> None:
        self.logs = VirtualDisk(random)
        self.records = VirtualDisk(random)
        super().__init__(clock, random, sync_ms=sync_ms, disks=[self.logs, self.records])
        self.logs.repaired_after_ms = _RESTART_MS
        self.requests: Requests | None = None
        self.on_kill: list[Callable[[], None]] = []
        self._invariants = invariants
        self._topics = topics
        self._count = count
        self._store_options = dict(store_options)
        self._start(0)

    # ---- what is seen

    def disk(self, name: str) -> VirtualDisk:
        """Return the disk of this name: ``logs`` or ``records``."""
        return self.logs if name == "logs" else self.records

    def locate(self, place: Place) -> int | None:
        """Return the broker at which a place is; None while the process is down."""
        if self.requests is None:
            return None
        leaders, number = self._leaders(self.requests.host, place)
        return leaders.of[number]

    @staticmethod
    def _leaders(host: Host, place: Place) -> tuple[Leaders, int]:
        kind, name, number = place
        if kind == "topics":
            topic = host.topics.catalog.named(name)
            assert topic is not None, name
            return topic.leaders, number
        leaders = host.brokers.groups if kind == "groups" else host.brokers.transactions
        return leaders, partition_of(name, len(leaders.of))

    def note(self, what: str, log: str = "", detail: object = None) -> None:
        """Add a line to the trace."""
        self._clock.record("brokers", f"{what} {log}".rstrip(), detail)

    # ---- requests

    def receive(self, call: Any, frame: bytes) -> None:
        """Handle a request; nothing happens while the process is down."""
        if self.requests is not None:
            self._step(frame, self.requests.receive, call, frame, 0)

    def answered(self, message: Any, correlation_id: int) -> None:
        """A request is answered."""
        self._invariants.answered(message)

    def settle(self) -> None:
        """See `VirtualHost`; then the laws are checked."""
        super().settle()
        with self.records.undisturbed():
            self._invariants.check()

    # ---- starting, and being killed

    def _start(self, load_ms: int) -> None:
        try:
            requests = self._open()
        except OSError as error:
            self.note("cannot start", detail=error)
            self.records.restart()
            self._clock.after(_RESTART_MS, self._start_again, self.boot, load_ms)
            return
        self.requests = requests
        host = requests.host
        checked: Any = CheckedMachine(host.transactions.machine, self._invariants.handled)
        host.transactions.machine = checked
        self._invariants.began(host)
        self.note("start")
        self._serve(host, host.logs, load_ms)

    def _open(self) -> Requests:
        brokers = Brokers(
            [Endpoint(number, f"10.0.0.{number + 1}", 9_092) for number in range(self._count)],
            offsets_partitions=CONFIG.offsets_topic_partitions,
        )
        topics = Topics(brokers, self._topics, cluster_id="virtual")
        topics.open(self.records)
        offsets, transactions = self.logs.folder(OFFSETS_FOLDER), self.logs.folder(TRANSACTIONS_FOLDER)
        self.logs.sync_names()
        return Requests(
            CoordinatorMachine(brokers, topics, subscribed_topics, CONFIG),
            Store(offsets, **self._store_options),
            topics,
            Metrics(),
            self,
            transactions=Store(transactions, TRANSACTIONS, **self._store_options),
            limits=PeerLimits(),
            permissions=None,
            faults=None,
            pause=lambda attempt: self.logs.repaired_after_ms,
        )

    def kill(self, down_ms: int, load_ms: int, writes: int = 0, on: str = "logs") -> None:
        """Kill the process: at once, or during the n-th operation from now on one of its disks.

        :param down_ms: how long it stays down
        :param load_ms: how long its coordinators answer COORDINATOR_LOAD_IN_PROGRESS after that
        :param writes: which operation; 0 for at once
        :param on: the disk: ``logs`` or ``records``
        """
        if self.requests is None:
            return
        self._outage = (down_ms, load_ms)
        if writes:
            self.disk(on).power_left = writes - 1
        else:
            self._die()

    def _ended(self) -> None:
        self.note("are killed", detail=self._outage)
        self.logs.crash()
        self.records.restart()
        self.requests = None
        self._invariants.ended()
        for listener in self.on_kill:
            listener()

    # ---- moves

    def move(self, place: Place, to: int) -> None:
        """Let another broker lead a partition, or coordinate a transactional id."""
        if self.requests is not None:
            self._step("moves", self._move, self.requests.host, place, to % self._count)

    def _move(self, host: Host, place: Place, to: int) -> None:
        leaders, number = self._leaders(host, place)
        leaders.move(number, to)
        self.note("move", detail=(place, to))
        host.elect([leaders])

    def _load_ms(self) -> int:
        return self._random.choice(_LOAD_MS)
