"""An admin's machine on a virtual log, with members that obey ReleaseGroup or do not, and with failing appends."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import kcoord_wire as kw
from kcoord_wire.kernel.machines import Ended, LogEvent, Machine, Shutdown, Tick
from kcoord_wire.marshal.admin import CommitFailed, CommitPositions, Finished, PositionsCommitted, Progressed
from kcoord_wire.marshal.context import TopicPartition
from kcoord_wire.marshal.log import Appended, AppendFailed, RawEntry
from kcoord_wire.marshal.member_events import Append, CaughtUp, Entries, ReadToEnd, WallClock
from kcoord_wire.marshal.state import Claim, Entry, Place, Rules
from kcoord_wire.marshal.values import read_entry
from kcoord_wire.marshal.world_state import WorldState
from kcoord_wire.messages.marshal import ClaimingPartition, Heartbeat, ReleaseGroup, ReleasingPartition

WALL_MS = 1_795_000_000_000
STEP_MS = 10  # each way, between machine and log
LATE_MS = 3_000
DRAIN_MS = 300  # until a member has released what it holds

LANDS, LOST, UNANSWERED, LATE = "lands", "lost", "unanswered", "late"
"""What becomes of an append: it lands; it does not; it lands and the answer is lost; it lands after `LATE_MS`, and the
answer is lost."""


@dataclass(eq=False)
class Peer:
    """A member in one coordination partition's topic.

    :ivar positions: next offset of each partition that it holds
    :ivar obeys: releases everything when its group is paused
    :ivar ends_at: ms after which it does nothing any more
    """

    client_id: str
    positions: dict[int, int]
    obeys: bool = True
    ends_at: int = 1 << 60


@dataclass
class AdminBench:
    """Runs one machine in virtual time.

    :param fate: of each append of the machine, by its message and its number
    :ivar commits: what `CommitPositions` has asked for; `commit_fails` lets it fail
    :ivar dies_at: number of the append of the machine, counted from 1, before which its process ends; 0 for none
    """

    machine: Machine
    rules: Rules
    partitions: int = 1
    interval_ms: int = 2_000
    group_id: str = "g"
    topic: str = "t"
    fate: Callable[[Any, int], str] = lambda message, number: LANDS
    dies_at: int = 0
    commit_fails: str = ""
    now: int = 0
    entries: list[Entry] = field(default_factory=list)
    commits: list[dict[TopicPartition, int]] = field(default_factory=list)
    progress: list[Progressed] = field(default_factory=list)
    finished: Finished | None = None
    has_ended: bool = False
    is_dead: bool = False

    def __post_init__(self) -> None:
        self.world = WorldState(self.rules, self.interval_ms // 1_000, self.partitions)
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._serial = count()
        self._appends = 0
        self._ends = dict.fromkeys(range(self.partitions), 0)
        self._read = 0
        self.peers: list[Peer] = []

    # ---- the log

    def append(self, partition: int, message: Any) -> int:
        """Append a message now."""
        offset = self._ends[partition]
        self._ends[partition] += 1
        value = kw.encode(message, 0)
        entry = read_entry(RawEntry(partition, offset, WALL_MS + self.now, True, value))
        self.entries.append(entry)
        self.world.apply(entry, (WALL_MS + self.now) // 1_000)
        self._at(STEP_MS, self._deliver)
        return offset

    def later(self, ms: int, make: Callable[[], Any]) -> None:
        """Append a message of somebody to partition 0 later."""
        self._at(ms, lambda: (self.append(0, make()), None)[1])

    def claim(self, partition: int, topic: str = "t") -> Claim | None:
        """Return what the log says of a partition."""
        return self.world.claims.get(Place(self.group_id, topic, partition))

    def position(self, partition: int) -> int:
        """Return its position."""
        claim = self.claim(partition)
        return 0 if claim is None else claim.current_offset

    def holder(self, partition: int) -> str:
        """Return the client that holds a partition now; empty for none."""
        claim = self.claim(partition)
        at = WALL_MS + self.now
        is_live = claim is not None and self.world.is_claimed(claim, at // 1_000 if self.rules is Rules.LIBRARY else at)
        return claim.client_id if is_live and claim is not None else ""

    # ---- members

    def add(self, peer: Peer) -> Peer:
        """Let a member claim its partitions and send heartbeats."""
        self.peers.append(peer)
        for partition in peer.positions:
            self.append(0, self.message(peer, ClaimingPartition, partition))
        self._beat(peer)
        return peer

    def message(self, peer: Peer, kind: type, partition: int, **fields: Any) -> Any:
        """Return a message of a member, stamped now."""
        who = {"instance_id": f"i-{peer.client_id}", "client_id": peer.client_id, "group_id": self.group_id}
        return kind(time=(WALL_MS + self.now) // 1_000, **who, topic=self.topic, partition=partition, **fields)

    def _beat(self, peer: Peer) -> None:
        if self.now >= peer.ends_at:
            return
        for partition, offset in peer.positions.items():
            self.append(0, self.message(peer, Heartbeat, partition, current_offset=offset))
        self._at(self.interval_ms // 3, lambda: self._beat(peer))

    def _paused(self) -> None:
        for peer in self.peers:
            if peer.obeys and self.now < peer.ends_at:
                for partition, offset in peer.positions.items():
                    self.append(0, self.message(peer, ReleasingPartition, partition, current_offset=offset))
                peer.positions = {}

    # ---- time

    def run(self, limit_ms: int = 600_000) -> AdminBench:
        """Run until the machine has ended or is dead, at most so long."""
        limit = self.now + limit_ms
        self._give(WallClock(WALL_MS))
        while not (self.has_ended or self.is_dead):
            self._advance()
            assert self.now < limit, f"the machine has not ended; the last progress was {self.progress[-1:]}"
        return self

    def wait(self, ms: int) -> None:
        """Let time pass for the log and the members alone."""
        until = self.now + ms
        while self._due and self._due[0][0] <= until:
            self.now, _, action = heapq.heappop(self._due)
            action()
        self.now = until

    def shut_down_at(self, step: str) -> None:
        """Interrupt the machine when it first reports a step."""
        give = self._give

        def watched(event: Any) -> None:
            give(event)
            if any(each.step == step for each in self.progress) and not self.is_dead:
                self._give = give  # type: ignore[method-assign]  # once
                give(Shutdown())

        self._give = watched  # type: ignore[method-assign]  # a spy for one test

    def _at(self, ms: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + ms, next(self._serial), action))

    def _advance(self) -> None:
        deadline = self.machine.deadline
        if self._due and (deadline is None or self._due[0][0] <= deadline):
            self.now, _, action = heapq.heappop(self._due)
            action()
        else:
            assert deadline is not None, "the machine waits for nothing"
            self.now = max(self.now, deadline)
            self._give(Tick())

    # ---- the machine

    def _give(self, event: Any) -> None:
        if self.is_dead or self.has_ended:
            return
        for effect in self.machine.handle(event, self.now):
            self._execute(effect)

    def _deliver(self) -> None:
        fresh, self._read = self.entries[self._read :], len(self.entries)
        if fresh:
            self._give(Entries(fresh))

    def _execute(self, effect: Any) -> None:
        if isinstance(effect, Append):
            self._append(effect)
        elif isinstance(effect, ReadToEnd):
            self._at(2 * STEP_MS, lambda: (self._deliver(), self._give(CaughtUp(effect.request, 0)))[0])
        elif isinstance(effect, CommitPositions):
            self.commits.append(dict(effect.offsets))
            failed = CommitFailed(effect.request, self.commit_fails)
            answer = failed if self.commit_fails else PositionsCommitted(effect.request)
            self._at(STEP_MS, lambda: self._give(answer))
        elif isinstance(effect, Progressed):
            self.progress.append(effect)
        elif isinstance(effect, Finished):
            self.finished = effect
        elif isinstance(effect, Ended):
            self.has_ended = True
        else:
            assert isinstance(effect, LogEvent), effect

    def _append(self, effect: Append) -> None:
        self._appends += 1
        if self._appends == self.dies_at or self.is_dead:
            self.is_dead = True
            return
        fate = self.fate(effect.message, self._appends)
        if fate == LATE:
            self._at(LATE_MS, lambda: self._land(effect, answer=False))
        elif fate != LOST:
            self._at(STEP_MS, lambda: self._land(effect, answer=fate == LANDS))
        if fate != LANDS:
            failed = AppendFailed(effect.request, f"it {fate}", may_have_landed=fate != LOST)
            self._at(3 * STEP_MS, lambda: self._give(failed))

    def _land(self, effect: Append, *, answer: bool) -> None:
        offset = self.append(effect.partition, effect.message)
        if isinstance(effect.message, ReleaseGroup) and effect.message.msg_expire_time > effect.message.time:
            self._at(DRAIN_MS, self._paused)
        if answer:
            self._at(2 * STEP_MS, lambda: self._give(Appended(effect.request, offset)))
