"""Leadership of one among several brokers: election, lease, and writes that only the leader can make.

    leadership = Leadership(broker_id, COORDINATOR, COORDINATOR_EPOCH, emit, tokens, elected, resigned, failed)
    leadership.handle(event, now)                       # first, at every event of the machine
    yield leadership.guarded(SetData(path, data))       # in a procedure of the elected machine

The elected one has the ephemeral node `leader_path`, whose data is JSON ``{"broker": id, "epoch": n}``. The persistent
node `epoch_path` has the number of elections.

Laws:

* A leader's node and the epoch change in one `Multi` (KAFKA-6082), so every epoch has one leader, and the epoch never
  goes back. A node with our own broker id is replaced in the same way, whatever session made it: it is of a create that
  timed out but landed, or of a former session (KAFKA-7165). So each term of office has an epoch of its own.
* What `guarded` returns cannot succeed after another election: it checks the version of the epoch's node.
* The lease: a leader acts only until a third of the session timeout after it sent the last request that ZooKeeper
  accepted from it. `handle` checks that before anything else, so a process that was paused resigns before it acts. The
  renewal is a `Multi` of checks, which the leader of the ensemble has to commit, so that a server that was cut off from
  its ensemble cannot extend a lease by answers of its own.
* SUSPENDED ends the term at once: kazoo notices the end of a session only after it has reconnected.
* `elected` and `resigned` are called in turns.
* A candidate that is barred (`bar`) is not elected, and deletes the node of its own session: of two processes with one
  broker id, which would replace each other's nodes for ever, only the registered one stands.

Source: "the 0.8 consumer-coordinator draft", sections 5 and 10; Curator's Tech Notes 10 and 12; CURATOR-460.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kcoord_wire.kernel.procedures import Latch, Latched, Procedure, Sleep
from kcoord_wire.kernel.timers import earliest
from kcoord_wire.zookeeper.layout import parse_object
from kcoord_wire.zookeeper.requests import (
    RETRY_MS,
    Ask,
    Check,
    Create,
    Delete,
    Fired,
    Multi,
    Node,
    Outcome,
    Read,
    RegistryError,
    RegistryEvent,
    Replied,
    SessionChanged,
    SessionState,
    SetData,
    Write,
    ZooKeeperProcedures,
    create_missing,
)

LEASE_PARTS: Final = 3  # of the session timeout, and of the lease: a third until the next renewal
_LONGEST_EPOCH: Final = 9  # digits; an epoch is an int32 in messages
_LOST_RACE: Final = (Outcome.NODE_EXISTS, Outcome.NO_NODE, Outcome.BAD_VERSION)


@dataclass(frozen=True, slots=True)
class LeaderRecord:
    """The data of a leader's node."""

    broker_id: int
    epoch: int


def parse_leader(data: bytes) -> LeaderRecord:
    """Return the record in a leader's node.

    :raises ValueError: it is none
    """
    value = parse_object(data, "a leader's record")
    if not isinstance(value.get("broker"), int):
        raise ValueError(f"not a leader's record: {data!r}")
    epoch = value.get("epoch")
    return LeaderRecord(value["broker"], epoch if isinstance(epoch, int) else 0)


def is_fenced_off(error: RegistryError) -> bool:
    """Whether a guarded write failed because another leader has been elected."""
    return error.reply.failed == 0 and error.outcome in (Outcome.BAD_VERSION, Outcome.NO_NODE)


class Leadership:
    """One candidate.

    :param emit: adds an `Ask` to the effects of the machine
    :param tokens: for `ZooKeeperProcedures`
    :param elected: called with the epoch when the term begins
    :param resigned: called with a short reason when it has ended
    :param failed: called with a text when a request failed that should not
    :ivar epoch: of the own term; None for not elected
    :ivar leader: the other broker that leads; None if unknown, or if it is this one
    :ivar session_id: of the present session, or the last one; 0 before the first
    """

    def __init__(
        self,
        broker_id: int,
        leader_path: str,
        epoch_path: str,
        emit: Callable[[Ask], None],
        tokens: Iterator[int],
        elected: Callable[[int], None],
        resigned: Callable[[str], None],
        failed: Callable[[str], None],
    ) -> None:
        self.broker_id = broker_id
        self.leader_path = leader_path
        self.epoch_path = epoch_path
        self.epoch: int | None = None
        self.leader: LeaderRecord | None = None
        self.session_id = 0
        self.lease_until = 0
        self._epoch_version = 0
        self._lease_ms = 0
        self._now = 0
        self._is_connected = False
        self._is_barred = False
        self._leader_changed = Latch()
        self._procedures = ZooKeeperProcedures(emit, tokens)
        self._elected, self._resigned, self._failed = elected, resigned, failed

    @property
    def deadline(self) -> int | None:
        """When `handle` has something to do, in ms; None for never."""
        return earliest(self._procedures.deadline, None if self.epoch is None else self.lease_until)

    def guarded(self, *writes: Write) -> Multi:
        """Return the writes, which fail at index 0 of the `Multi` if another leader has been elected."""
        return Multi((Check(self.epoch_path, self._epoch_version), *writes))

    def handle(self, event: RegistryEvent | object, now: int) -> None:
        """Take in an event of the machine, of whatever class; to be called before the machine does anything else."""
        self._now = now
        if self.epoch is not None and now >= self.lease_until:
            self.resign("lease expired")
        if isinstance(event, Replied):
            self._procedures.replied(event, now)
        elif isinstance(event, SessionChanged):
            self._session_changed(event)
        elif isinstance(event, Fired) and event.path == self.leader_path:
            self._leader_changed.open()
        self._procedures.advance(now)

    def resign(self, reason: str) -> None:
        """End the term, and try to be elected again; not to be called by `elected`."""
        self._end_term(reason)
        self._procedures.cancel_all()
        self._start()

    def bar(self, reason: str) -> None:
        """Let the candidate stand, or not; not to be called by `elected`.

        :param reason: why it must not; empty if it may
        """
        self._is_barred = bool(reason)
        if reason and self.epoch is not None:
            self.resign(reason)

    # ---- the session

    def _session_changed(self, event: SessionChanged) -> None:
        self._is_connected = event.state is SessionState.CONNECTED
        is_same = event.session_id == self.session_id
        if self._is_connected and is_same and self.epoch is not None:
            return  # nothing has changed
        self._procedures.cancel_all()
        self.leader = None
        if not self._is_connected:
            self._end_term(f"session {event.state.value}")
            return
        if not is_same:
            self._end_term("new session")  # there may have been no SUSPENDED (CURATOR-220)
        self.session_id = event.session_id
        self._lease_ms = max(1, event.timeout_ms // LEASE_PARTS)
        self._start()

    def _start(self) -> None:
        if self._is_connected:
            self._procedures.start(self._campaign(), self._now)

    def _end_term(self, reason: str) -> None:
        if self.epoch is not None:
            self.epoch = None
            self._resigned(reason)

    # ---- the election

    def _campaign(self) -> Procedure:
        """Be elected, hold the lease, and again, as long as the session is connected."""
        while True:
            try:
                yield from create_missing(*dict.fromkeys((*ancestors(self.leader_path), *ancestors(self.epoch_path))))
                yield from create_missing(self.epoch_path, data=b"0")
                yield from self._elect()
                yield from self._renew()
            except (RegistryError, ValueError) as error:
                self._end_term(str(error))
                self._failed(str(error))
            yield Sleep(RETRY_MS)

    def _elect(self) -> Procedure:
        """Wait until no other leads, and be elected."""
        while self.epoch is None:
            self._leader_changed = changed = Latch()
            node: Node | None = yield Read(self.epoch_path)
            leader: Node | None = yield Read(self.leader_path, watch=True)
            self.leader = record = None if leader is None else parse_leader(leader.data)
            if node is None:
                return
            if record is not None and record.broker_id != self.broker_id:
                yield Latched(changed)
            elif self._is_barred:
                if leader is not None and leader.ephemeral_owner == self.session_id:
                    yield Delete(self.leader_path, leader.version)
                yield Sleep(RETRY_MS)
            else:
                yield from self._take_office(node, leader)

    def _take_office(self, node: Node, own: Node | None) -> Procedure:
        """Replace the leader's node, which is missing or our own, and count the epoch up."""
        epoch, asked_at = self._parse_epoch(node.data) + 1, self._now
        replaced = () if own is None else (Delete(self.leader_path, own.version),)
        record = json.dumps({"broker": self.broker_id, "epoch": epoch}).encode()
        create = Create(self.leader_path, record, is_ephemeral=True)
        try:
            yield Multi((*replaced, create, SetData(self.epoch_path, b"%d" % epoch, node.version)))
        except RegistryError as error:
            if error.outcome not in _LOST_RACE:
                raise
            return
        self._epoch_version = node.version + 1
        self.lease_until = asked_at + self._lease_ms
        if self._now < self.lease_until:
            self.epoch, self.leader = epoch, None
            self._elected(epoch)

    def _parse_epoch(self, data: bytes) -> int:
        if not data.isdigit() or len(data) > _LONGEST_EPOCH:
            raise ValueError(f"{self.epoch_path}: not a number of elections: {data[:200]!r}")
        return int(data)

    def _renew(self) -> Procedure:
        """Extend the lease until ZooKeeper refuses. Renewals do not wait for each other, so a slow answer costs only
        its own time."""
        while self.epoch is not None:
            yield Sleep(self._lease_ms // LEASE_PARTS)
            if self.epoch is not None:
                self._procedures.start(self._extend(self._now), self._now)

    def _extend(self, asked_at: int) -> Procedure:
        try:
            yield self.guarded(Check(self.leader_path, 0))
            self.lease_until = asked_at + self._lease_ms
        except RegistryError as error:
            self._end_term(str(error))


def spread(owners: Sequence[int | None], live: Collection[int]) -> list[int | None]:
    """Return which broker is to have each share of the work when these live.

    Who lives keeps its shares, unless it has two more than another.

    :param owners: of each share before
    """
    if not live:
        return [None] * len(owners)
    load = dict.fromkeys(sorted(live), 0)
    for owner in owners:
        if owner in load:
            load[owner] += 1
    after: list[int | None] = []
    for owner in owners:
        if owner not in load:
            owner = min(load, key=load.__getitem__)
            load[owner] += 1
        after.append(owner)
    for share, owner in enumerate(after):
        idlest = min(load, key=load.__getitem__)
        if owner is not None and load[owner] - load[idlest] > 1:
            load[owner] -= 1
            load[idlest] += 1
            after[share] = idlest
    return after


def ancestors(path: str) -> list[str]:
    """Return the nodes above a node, the topmost first."""
    names = path.split("/")[1:-1]
    return ["/" + "/".join(names[: count + 1]) for count in range(len(names))]
