"""Groups of virtual consumers, what can happen to them, and a record of their frames and of the coordinator's log.

Laws:

* The seed determines everything, as in `Cluster`.
* Frames are as a capture at the broker has them: see `worlds.group.wire.Tap`. Their `seq` follows their time.
* What happens is an act, a method of `Crowd`: it picks a process with the crowd's own random source, and does nothing
  if it does not apply.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pyarrow as pa

from kcoord_wire.consumer.member_events import MemberState
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.groups import State
from kcoord_wire.coordinator.fault_injection import Fault
from kcoord_wire.forensics.model import Frame, LogRow, arrow_schema
from kcoord_wire.messages import LeaveGroupRequest, LeaveGroupRequestMemberIdentity
from kcoord_wire.records import SegmentReader
from kcoord_wire.worlds.group.members import MemberProcess
from kcoord_wire.worlds.group.world import Cluster

MS = 1_000_000  # nanoseconds
METADATA = b"\x00\x03"  # the api key that a request begins with


class Recorder:
    """A `Tap` that keeps all frames.

    :param metadata: keep connections for Metadata too; a capture at one broker of many may have none of them
    """

    def __init__(self, *, metadata: bool = True) -> None:
        self._seen: list[tuple[int, str, str, bytes]] = []
        self._metadata = metadata

    def __call__(self, time_ms: int, connection: str, direction: str, frame: bytes, /) -> None:
        self._seen.append((time_ms, connection, direction, frame))

    def rows(self) -> list[tuple[int, str, str, bytes]]:
        """Time, connection, direction, frame; by time. A closed connection has nothing behind its end."""
        left_out: set[str] = set()
        if not self._metadata:
            left_out = {name for _, name, way, frame in self._seen if way == "request" and frame[:2] == METADATA}
        closed: set[str] = set()
        rows = []
        for row in sorted(self._seen, key=lambda row: row[0]):
            if row[1] not in closed and row[1] not in left_out:
                rows.append(row)
            if row[2] == "closed":
                closed.add(row[1])
        return rows

    def frames(self, source: str, batch_rows: int = 8_192) -> list[pa.RecordBatch]:
        """Return the same as batches of `Frame`."""
        schema = arrow_schema(Frame)
        rows = self.rows()
        batches = []
        for start in range(0, len(rows), batch_rows):
            part = rows[start : start + batch_rows]
            numbers = range(start, start + len(part))
            columns: dict[str, Any] = {
                "source": [source] * len(part),
                "seq": list(numbers),
                "position": list(numbers),
                "time_ns": [row[0] * MS for row in part],
                "connection": [row[1] for row in part],
                "direction": [row[2] for row in part],
                "frame": [row[3] for row in part],
            }
            batches.append(_batch(columns, schema))
        return batches


def log_rows(sim: Cluster) -> pa.Table:
    """The coordinator's log as it is on the disk, as a table of `LogRow`."""
    columns = ("source", "partition", "offset", "position", "time_ns", "key", "value", "is_append_time")
    rows: dict[str, list[Any]] = {name: [] for name in columns}
    for name in sorted(name for name in sim.disk.sizes() if name.endswith(".log")):
        with sim.disk.read(name) as source:
            for record in (record for batch in SegmentReader(source) for record in batch.records):
                values = (name, 0, record.offset, 0, record.timestamp * MS, record.key, record.value, False)
                for column, value in zip(rows, values, strict=True):
                    rows[column].append(value)
    return pa.Table.from_batches([_batch(rows, arrow_schema(LogRow))])


def _batch(columns: dict[str, list[Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Whole frames or records: what the schema has besides is about damage, and 0 or null."""
    count = len(next(iter(columns.values())))
    arrays = [
        pa.array(columns.get(field.name, [None if field.nullable else 0] * count), type=field.type) for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# ---- consumers


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How the consumers of a group are set up.

    :ivar clients: keys of `CLIENT_VERSIONS`, one after the other
    :ivar static: every so-manieth member is static; 0 for none
    :ivar client_id: that all of them have; None: each its own
    """

    size: int = 3
    assignors: tuple[str, ...] = ("range",)
    clients: tuple[str, ...] = ("java",)
    static: int = 0
    topics: tuple[str, ...] | None = None
    session_ms: int = 6_000
    rebalance_ms: int = 8_000
    heartbeat_ms: int = 1_000
    commit_ms: int | None = 5_000
    release_ms: int = 0
    poll_ms: int = 0
    client_id: str | None = None
    options: dict[str, Any] = field(default_factory=dict)


class Crowd:
    """The consumers of one group."""

    def __init__(self, sim: Cluster, shape: Shape, seed: int, group: str = "group") -> None:
        self.sim = sim
        self.shape = shape
        self.group = group
        self.random = Random(f"{seed}/{group}")
        self.patient = 60_000  # how long it is waited for the group to settle
        self._started = 0
        self._busy_until = 0

    # ---- who there is

    def working(self) -> list[MemberProcess]:
        """Its processes that take part, in the order of their names."""
        return [
            process
            for process in self.sim.processes.values()
            if process.options.group == self.group and process.is_working and not process.is_paused
        ]

    def settled(self) -> list[MemberProcess]:
        """Those of them that are in a generation."""
        return [process for process in self.working() if process.member.state is MemberState.STABLE]

    def victim(self, among: Iterable[MemberProcess] | None = None) -> MemberProcess | None:
        """A random process of the settled ones, or of those given."""
        processes = list(self.settled() if among is None else among)
        return self.random.choice(processes) if processes else None

    def leader(self) -> MemberProcess | None:
        """The leader's process."""
        return self.sim.leader(self.group)

    def start(self, **changes: Any) -> MemberProcess:
        """Start one more consumer."""
        shape = self.shape
        number = self._started
        self._started += 1
        client = shape.clients[number % len(shape.clients)]
        options: dict[str, Any] = {
            "group": self.group,
            "topics": shape.topics,
            "assignors": shape.assignors,
            "client": client,
            "instance_id": f"{self.group}-i{number}" if shape.static and number % shape.static == 0 else None,
            "session_timeout_ms": shape.session_ms,
            "rebalance_timeout_ms": shape.rebalance_ms,
            "heartbeat_interval_ms": shape.heartbeat_ms,
            "request_timeout_ms": 5_000,
            "commit_ms": shape.commit_ms,
            "release_ms": shape.release_ms,
            "poll_ms": shape.poll_ms,
            "client_id": shape.client_id,
        }
        return self.sim.member(f"{self.group}-m{number}", **{**options, **shape.options, **changes})

    def form(self, count: int | None = None, apart_ms: int = 0, **changes: Any) -> None:
        """Start its members and let them settle."""
        for _ in range(self.shape.size if count is None else count):
            self.start(**changes)
            if apart_ms:
                self.sim.run(self.random.randint(0, apart_ms))
        self.settle()

    def settle(self, rest_ms: int = 3_000) -> None:
        """Wait until all groups have settled, if they do, and a while longer."""
        self.sim.run(max(20, self._busy_until - self.sim.now))
        self.until(self.sim.is_settled, self.patient)
        self.sim.run(rest_ms)

    def _lasts(self, ms: int) -> int:
        """Return a duration, and let nothing count as settled before it is over."""
        self._busy_until = max(self._busy_until, self.sim.now + ms + 1_000)
        return ms

    def until(self, holds: Any, within_ms: int = 10_000) -> bool:
        """Wait for a condition; False if it never holds."""
        try:
            self.sim.run_until(holds, within_ms)
        except TimeoutError:
            return False
        return True

    def until_state(self, state: State, within_ms: int = 10_000) -> bool:
        """Wait until the group is in a state."""
        return self.until(lambda: self.sim.state(self.group) is state, within_ms)

    # ---- what can happen

    def join(self) -> None:
        """One more consumer."""
        self.start()

    def join_many(self, count: int = 3) -> None:
        """Several at once."""
        for _ in range(count):
            self.start()

    def leave(self) -> None:
        """A consumer is closed."""
        if process := self.victim():
            self.sim.leave(process.name, self.random.choice([None, "the consumer is being closed"]))

    def evict(self) -> None:
        """An operator removes a member."""
        process = self.victim()
        if process is None or not self.sim.is_up:
            return
        member = process.member
        static = member.settings.group_instance_id if member.settings.versions.join >= 5 else None
        who = LeaveGroupRequestMemberIdentity(
            member_id="" if static else member.member_id,
            group_instance_id=static,
            reason="member was removed by the operator",
        )
        self.sim.send(LeaveGroupRequest(group_id=self.group, members=[who]), 5, client_id="adminclient-1")

    def crash(self) -> None:
        """A process dies."""
        if process := self.victim():
            self.sim.crash(process.name)

    def crash_leader(self) -> None:
        """The leader's process dies."""
        if process := self.leader():
            self.sim.crash(process.name)

    def freeze(self) -> None:
        """A process is paused for longer than its session."""
        if process := self.victim():
            self.sim.pause(process.name, process.options.session_timeout_ms + self.random.randint(2_000, 6_000))

    def cut_off(self) -> None:
        """A process cannot reach the coordinator for longer than its session."""
        if process := self.victim():
            away_ms = process.options.session_timeout_ms + self.random.randint(2_000, 6_000)
            self.sim.partition(process.name, self._lasts(away_ms))

    def restart(self) -> None:
        """A process dies and is started again at once."""
        if process := self.victim():
            self.sim.restart(process.name)

    def bounce(self) -> None:
        """A consumer is closed and started again a little later."""
        if process := self.victim():
            self.sim.leave(process.name)
            self.sim.run(self.random.randint(500, 2_500))
            self.sim.restart(process.name)

    def stall(self) -> None:
        """An application does not poll for longer than it may."""
        if process := self.victim():
            away_ms = process.options.rebalance_timeout_ms + self.random.randint(1_500, 5_000)
            self.sim.stall(process.name, self._lasts(away_ms))

    def stall_for_good(self) -> None:
        """An application does not poll any more within the time that is looked at."""
        if process := self.victim():
            self.sim.stall(process.name, process.options.rebalance_timeout_ms + 500_000)
            self._lasts(process.options.rebalance_timeout_ms)

    def miss_the_join(self) -> None:
        """A process with a long session is paused while another joins; it comes back when the join is over."""
        process = self.start(session_timeout_ms=60_000)
        self.settle(2_000)
        longest = max(each.options.rebalance_timeout_ms for each in self.working())
        self.sim.pause(process.name, longest + self.random.randint(4_000, 8_000))
        self.start()
        self.sim.run(longest + 1_000)

    def revoke_slowly(self) -> None:
        """The application of a member takes longer to give its partitions up than the join may last."""
        process = self.start(session_timeout_ms=60_000, release_ms=self.shape.rebalance_ms * 2)
        self.settle(2_000)
        if process.member.owned:
            self.start()
            self.sim.run(self.shape.rebalance_ms + 1_000)

    def miss_the_sync(self) -> None:
        """A follower with a long session is paused between its join and its sync."""
        process = self.start(session_timeout_ms=60_000)
        self.settle(2_000)
        self.start()
        if self.until_state(State.COMPLETING, self.shape.rebalance_ms * 2):
            longest = max(each.options.rebalance_timeout_ms for each in self.working())
            self.sim.pause(process.name, longest + self.random.randint(2_000, 5_000))
            self.sim.run(longest + 1_000)

    def lead_slowly(self) -> None:
        """The leader computes for longer than the sync may last."""
        if process := self.leader():
            before = process.options.assign_ms
            process.options.assign_ms = self.shape.rebalance_ms + self.random.randint(2_000, 4_000)
            self.start()
            self.sim.run(self.shape.rebalance_ms * 2 + 1_000)
            process.options.assign_ms = before

    def add_partitions(self) -> None:
        """A topic grows."""
        wanted = sorted({topic for process in self.working() for topic in process.member.topics})
        if wanted:
            self.sim.add_partitions(self.random.choice(wanted), self.random.randint(1, 4))

    def subscribe(self) -> None:
        """A consumer wants other topics."""
        process = self.victim()
        if process is not None:
            have = set(process.member.topics)
            others = [topic for topic in sorted(self.sim.topics) if topic not in have]
            wanted = sorted(have | {self.random.choice(others)}) if others else sorted(have)[:-1]
            if wanted:
                self.sim.subscribe(process.name, wanted)

    def offer(self) -> None:
        """A consumer offers its assignors the other way round, or one less."""
        process = self.victim()
        if process is not None and len(process.options.assignors) > 1:
            self.sim.offer(process.name, tuple(reversed(process.options.assignors)))

    def ask(self) -> None:
        """The leader's user asks for a rebalance."""
        leader = self.leader()
        if leader is not None and leader in self.settled():
            self.sim.rejoin(leader.name)

    def lose_the_leaders_sync(self) -> None:
        """The leader's connection breaks when its SyncGroup is answered; it has to join again."""
        leader = self.leader()
        if leader is not None:
            client_id = leader.member.settings.client_id
            rule = Fault(api="SyncGroup", on="response", action="disconnect", count=1, client_id=client_id)
            self.sim.inject_fault(rule)
            self.start()

    def replace_static(self) -> None:
        """A static member comes back with other assignors, so that the group has to choose another."""
        statics = [
            each for each in self.settled() if each.options.instance_id and each.member.settings.versions.join >= 5
        ]
        process = self.victim(statics)
        if process is not None and len(process.options.assignors) > 1:
            self.sim.crash(process.name)
            self.sim.run(self.random.randint(10, 1_500))
            self.sim.restart(process.name, assignors=(process.options.assignors[-1],))

    def replace_static_in_between(self) -> None:
        """A static member restarts while the leader computes."""
        leader = self.leader()
        statics = [
            each
            for each in self.settled()
            if each is not leader and each.options.instance_id and each.member.settings.versions.join >= 5
        ]
        process = self.victim(statics)
        if process is None or leader is None:
            return
        before = leader.options.assign_ms
        leader.options.assign_ms = 3_000
        self.start()
        if self.until_state(State.COMPLETING):
            self.sim.run(200)
            self.sim.crash(process.name)
            self.sim.run(100)
            self.sim.restart(process.name)
        self.sim.run(3_000)
        leader.options.assign_ms = before

    def fail_over(self, phase: str | None = None) -> None:
        """The coordinator crashes, in some phase of a rebalance that a new member has begun."""
        phase = phase or self.random.choice(["joining", "syncing", "assigned", "stable", "writing"])
        if phase != "stable":
            self.start()
            self.until_state(State.PREPARING, 5_000)
        if phase == "joining":
            self.sim.run(self.random.randint(0, self.shape.heartbeat_ms))
        elif phase in ("syncing", "writing"):
            self.until_state(State.COMPLETING, 20_000)
        elif phase == "assigned":
            self.until_state(State.STABLE, 20_000)
        writes = self.random.randint(1, 3) if phase == "writing" else 0
        down_ms = self.random.choice([200, 1_000, 3_000])
        self.sim.crash_coordinator(down_ms, load_ms=self.random.choice([0, 100, 1_000]), writes=writes)
        self.sim.run(down_ms + 3_000)

    def fail_the_disk(self) -> None:
        """The coordinator's disk fails while a new member joins; it resigns, and loads the group later."""
        self.start()
        self.sim.fail_disk(self.random.choice([200, 2_000]), writes=self.random.randint(0, 2))
        self.sim.run(4_000)

    def shrink(self) -> None:
        """The coordinator comes back with a group.max.size below the size of the group."""
        size = len(self.settled())
        if size >= 2:
            config = replace(self.sim.config, max_size=size - self.random.randint(1, max(1, size // 2)))
            self.sim.crash_coordinator(500, load_ms=100, config=config)
            self.sim.run(3_000)

    # ---- the network

    def lose(self) -> None:
        """Messages vanish, or connections with them, for a while."""
        drop, reset = self.random.choice([(0.02, 0.0), (0.0, 0.03), (0.05, 0.02), (0.1, 0.05)])
        self.sim.lose(self._lasts(self.random.randint(1_000, 6_000)), drop=drop, reset=reset)

    def hiccup(self) -> None:
        """A process cannot reach the coordinator for less than its session."""
        if process := self.victim():
            away_ms = self.random.randint(500, process.options.session_timeout_ms // 2)
            self.sim.partition(process.name, self._lasts(away_ms))

    def inject_fault(self) -> None:
        """Some requests or responses are late, doubled, lost, or their connection breaks."""
        action = self.random.choice(["delay", "drop", "duplicate", "disconnect"])
        fault = Fault(
            action=action,
            api=self.random.choice(["JoinGroup", "SyncGroup", "Heartbeat", "OffsetCommit", "LeaveGroup"]),
            on=self.random.choice(["request", "response"]),
            group=self.group,
            count=self.random.randint(1, 3),
            delay_ms=self.random.choice([50, 700, 3_000]) if action == "delay" else 0,
        )
        self.sim.inject_fault(fault)


def quick(delay_ms: int = 0, **settings: int) -> GroupConfig:
    """The settings of a coordinator that a group forms quickly on."""
    return GroupConfig(initial_rebalance_delay_ms=delay_ms, new_member_join_timeout_ms=30_000, **settings)
