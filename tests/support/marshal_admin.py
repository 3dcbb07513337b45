"""An admin's machine on a scripted log, with members that obey ReleaseGroup or do not, and with failing appends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kcoord_wire.kernel.machines import Machine, Shutdown
from kcoord_wire.kernel.virtual.clock import EPOCH_MS as WALL_MS
from kcoord_wire.marshal.admin import CommitFailed, CommitPositions, Finished, PositionsCommitted, Progressed
from kcoord_wire.marshal.context import TopicPartition
from kcoord_wire.marshal.world_state import Claim, Entry, Place, Rules, WorldState
from kcoord_wire.messages.marshal import ClaimingPartition, Heartbeat, ReleaseGroup, ReleasingPartition
from tests.support.marshal_script import LATENCY_MS, LOST, Fate, ScriptedProcess, ScriptedWorld

DRAIN_MS = 300  # until a member has released what it holds
LANDS = Fate()
UNANSWERED = Fate((LATENCY_MS,), None)
LATE = Fate((3_000,), None)

__all__ = ["LANDS", "LATE", "LOST", "UNANSWERED", "WALL_MS", "AdminBench", "Peer"]


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
    :ivar shuts_down_at: the step at whose first report the machine is interrupted
    :ivar entries: of all partitions, as they landed
    """

    machine: Machine
    rules: Rules
    partitions: int = 1
    interval_ms: int = 2_000
    group_id: str = "g"
    topic: str = "t"
    fate: Callable[[Any, int], Fate] = lambda message, number: LANDS
    dies_at: int = 0
    commit_fails: str = ""
    shuts_down_at: str = ""
    entries: list[Entry] = field(default_factory=list)
    commits: list[dict[TopicPartition, int]] = field(default_factory=list)
    progress: list[Progressed] = field(default_factory=list)
    finished: Finished | None = None

    def __post_init__(self) -> None:
        self.script = ScriptedWorld(self.partitions, timeout_ms=6 * LATENCY_MS)
        self.script.log.fate = lambda name, message: self._fate(message)
        self.script.log.on_append = self._appended
        self.world = WorldState(self.rules, self.interval_ms // 1_000, self.partitions)
        self._appends = 0
        self._process: ScriptedProcess | None = None
        self.peers: list[Peer] = []

    # ---- the log

    @property
    def now(self) -> int:
        """Virtual ms since the start."""
        return self.script.clock.now

    def append(self, partition: int, message: Any) -> None:
        """Append a message now."""
        self.script.land(partition, message)

    def later(self, ms: int, make: Callable[[], Any]) -> None:
        """Append a message of somebody to partition 0 later."""
        self.script.clock.after(ms, lambda: self.append(0, make()))

    def _appended(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.world.apply(entry, self.script.now // 1_000)
        message = entry.message
        if isinstance(message, ReleaseGroup) and message.msg_expire_time > message.time:
            self.script.clock.after(DRAIN_MS, self._paused)

    def claim(self, partition: int, topic: str = "t") -> Claim | None:
        """Return what the log says of a partition."""
        return self.world.claims.get(Place(self.group_id, topic, partition))

    def position(self, partition: int) -> int:
        """Return its position."""
        claim = self.claim(partition)
        return 0 if claim is None else claim.current_offset

    def holder(self, partition: int) -> str:
        """Return the client that holds a partition now; empty for none."""
        claim, at = self.claim(partition), self.script.now
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
        return kind(time=self.script.now // 1_000, **who, topic=self.topic, partition=partition, **fields)

    def _beat(self, peer: Peer) -> None:
        if self.now < peer.ends_at:
            self._say(peer, Heartbeat)
            self.script.clock.after(self.interval_ms // 3, self._beat, peer)

    def _say(self, peer: Peer, kind: type) -> None:
        for partition, offset in peer.positions.items():
            self.append(0, self.message(peer, kind, partition, current_offset=offset))

    def _paused(self) -> None:
        for peer in self.peers:
            if peer.obeys and self.now < peer.ends_at:
                self._say(peer, ReleasingPartition)
                peer.positions = {}

    # ---- the machine

    @property
    def is_dead(self) -> bool:
        """Whether its process was killed."""
        return self._process is not None and not self._process.is_alive

    def run(self, limit_ms: int = 600_000) -> AdminBench:
        """Run until the machine has ended or is dead, at most so long."""
        process = ScriptedProcess(self.script, "admin", self.machine, self._execute, origin_ms=0)
        self._process = process
        has_ended = self.script.run_until(lambda: not process.is_working, limit_ms)
        assert has_ended, f"the machine has not ended; the last progress was {self.progress[-1:]}"
        return self

    def wait(self, ms: int) -> None:
        """Let time pass for the log and the members alone."""
        self.script.run(ms)

    def _fate(self, message: Any) -> Fate:
        self._appends += 1
        if self._appends == self.dies_at:
            assert self._process is not None
            self._process.kill()
        return LOST if self.is_dead else self.fate(message, self._appends)

    def _execute(self, process: ScriptedProcess, effect: Any) -> None:
        if isinstance(effect, CommitPositions):
            self.commits.append(dict(effect.offsets))
            failed = CommitFailed(effect.request, self.commit_fails)
            process.later(LATENCY_MS, failed if self.commit_fails else PositionsCommitted(effect.request))
        elif isinstance(effect, Progressed):
            self.progress.append(effect)
            if effect.step == self.shuts_down_at:
                self.shuts_down_at = ""
                process.later(0, Shutdown())
        else:
            assert isinstance(effect, Finished), effect
            self.finished = effect
