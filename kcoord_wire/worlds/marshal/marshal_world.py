"""The world of Marshal: a coordination log, members and readers of it; and random runs of them.

    with MarshalCluster(seed=7, topics={"orders": 6}, members=3) as sim:
        sim.run_until(sim.is_settled)
        sim.crash("m1")
        sim.run(60_000)
        print(sim.owners())

Laws: those of `marshal_laws`, checked at each entry and each record, besides those of every world.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Final

import kcoord_wire as kw
from kcoord_wire.kernel.machines import Shutdown
from kcoord_wire.kernel.virtual.scripts import (
    Do,
    Draw,
    Row,
    Script,
    ViolationError,
    between,
    choose,
    draw_actions,
    process_name,
    row,
    spread,
    with_odds,
)
from kcoord_wire.kernel.virtual.world import World
from kcoord_wire.marshal.admin import Admin, AdminSettings, GroupPauser, PositionSetter
from kcoord_wire.marshal.context import TopicPartition
from kcoord_wire.marshal.log import coordination_partition
from kcoord_wire.marshal.member_events import (
    Balance,
    Delivery,
    FetchFailed,
    MemberSettings,
    RangeClaims,
    Release,
    Suspend,
)
from kcoord_wire.marshal.ranges import RangePlace
from kcoord_wire.marshal.world_state import Entry, Place, Rules, WorldState
from kcoord_wire.messages import marshal as messages
from kcoord_wire.worlds.marshal.marshal_laws import Anomalies, Anomaly, Invariants, Observer, Truth
from kcoord_wire.worlds.marshal.processes import LAG_MS, AdminProcess, LocalClock, MemberProcess
from kcoord_wire.worlds.marshal.range_laws import RangeInvariants
from kcoord_wire.worlds.marshal.virtual_log import Trouble, VirtualLog, VirtualTopics

SETTLE: Final = 25
"""Heartbeat intervals within which each partition is held again after the last fault: an entry that lands late, two
until a claim is stale, one of cooldown, passes, and the pause of a group."""
_READ_MS: Final = 500  # until the last reader has read everything
GROUP: Final = "readers"
_RATE: Final = 5.0  # offsets a second of each partition
_KEPT: Final = 12  # heartbeat intervals that retention leaves in the log
_FASTEST_PPM: Final = 500
_METADATA_MS: Final = (0, 2_000)  # until a member sees that a topic has grown
_RANGE: Final = 12  # offsets of a range: some begin or end where there is no record
_PARTITIONS: Final = 3  # of the coordination topic
_TIMEOUT: Final = 0.5  # of an append, in heartbeat intervals
JUNK: Final[Sequence[bytes | None]] = (
    None,
    b"",
    b"Heartbeat/1/x/i/c/readers/t1/0/5",
    b"Heartbeat/1/1700000000/i/c/readers/t1/-1/5",
    b"Heartbeat/1/1700000000/i/c/readers/t1/99999999999/5",
    b"Heartbeat/1/1700000000/i/c/lient/readers/t1/0/5",
    b"ClaimingPartition/1/1700000000/i/c/readers/t1",
    b"Nonsense/1/1700000000/i/c/readers/t1/0",
    b"\xff\xfe" * 40,
    b"/" * 3_000,
    b"Heartbeat/1/9223372036854775808/i/c/readers/t1/0/5",
)
"""Values that are no messages."""


class MarshalCluster(World[MemberProcess]):
    """A cluster with one group.

    :param seed: decides everything that is random
    :param topics: name to number of partitions
    :param members: how many start at once: m1, m2 ..., each a client of its name
    :param interval_ms: the heartbeat interval
    :param brokers_ms: how far the clock of each broker is ahead; under the document by less than an interval from one
        to another
    :param is_append_time: LogAppendTime; False for CreateTime, by the members' clocks
    :param has_holes: whether some offsets of the topics have no record
    :param presence: whether members announce themselves
    :param balance: whether they hand over partitions, too
    :param ranges: whether they claim ranges, and no partitions; the laws are those of `range_laws` then
    :param looks_for: an anomaly that ends the run
    :ivar is_lenient: two holders are counted, and no broken law
    :ivar observers: that were started
    :ivar admins: likewise
    :ivar set_back_ms: by how much a clock was set back, at most: so long its member claims nothing that it has written
        about (`Context.can_claim_now`)
    :ivar truth: the reader that sees each entry when it lands
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        topics: Mapping[str, int],
        members: int = 0,
        rules: Rules = Rules.DOCUMENT,
        delivery: Delivery = Delivery.AT_LEAST_ONCE,
        interval_ms: int = 3_000,
        brokers_ms: Sequence[int] = (0,),
        is_append_time: bool = True,
        has_holes: bool = False,
        presence: bool = False,
        balance: bool = False,
        ranges: bool = False,
        looks_for: Anomaly | None = None,
    ) -> None:
        super().__init__(seed)
        self.rules = rules
        self.delivery = delivery
        self.interval_ms = interval_ms
        self.anomalies = Anomalies(looks_for)
        world = WorldState(rules, interval_ms // 1000, _PARTITIONS)
        self.truth = Truth(self._clock, world, self.anomalies)
        self.topics = VirtualTopics(self._clock, topics, _RATE, has_holes=has_holes)
        self.is_lenient = rules is Rules.LIBRARY or not is_append_time
        self.log = VirtualLog(
            self._clock,
            Random(f"{seed}/log"),
            _PARTITIONS,
            brokers_ms,
            int(interval_ms * _TIMEOUT),
            self._appended,
            is_append_time=is_append_time,
        )
        self.invariants: Invariants | RangeInvariants
        if ranges:
            self.invariants = RangeInvariants(self._clock, self.topics, self.truth, interval_ms)
        else:
            self.invariants = Invariants(
                self._clock, self.topics, delivery, interval_ms, self.anomalies, is_lenient=self.is_lenient
            )
        self.observers: list[Observer] = []
        self.admins: list[AdminProcess] = []
        self.set_back_ms = 0
        self._presence = presence
        self._balance = balance
        self._ranges = ranges
        self._wanted_ends: dict[tuple[str, int], int] = {}
        self._boots = 0
        self._clock.after(interval_ms, self._trim)
        for number in range(1, members + 1):
            self.member(f"m{number}")

    # ---- the log

    def _appended(self, entry: Entry) -> None:
        before, verdict = self.truth.apply(entry)
        self.invariants.appended(entry, before, verdict)

    def _trim(self) -> None:
        self.log.trim(self._clock.time_ms - _KEPT * self.interval_ms)
        self._clock.after(self.interval_ms, self._trim)

    def lead(self, partition: int, broker: int) -> None:
        """Make a broker the leader of a coordination partition."""
        self._clock.record("cluster", "leads", (partition, broker))
        self.log.lead(partition % _PARTITIONS, broker % len(self.log.clocks_ms))

    def trouble(self, ms: int, delay_ms: int) -> None:
        """Let appends take up to `delay_ms`, fail, land twice or later, for so long."""
        self._clock.record("cluster", "has trouble", (ms, delay_ms))
        self.log.trouble = Trouble(self._clock.time_ms + ms, delay_ms)

    def junk(self, partition: int, kind: int) -> None:
        """Append what is no message."""
        self.log.append("junk", partition % _PARTITIONS, JUNK[kind % len(JUNK)], self._clock.time_ms)

    def say(
        self,
        kind: str,
        instance_id: str,
        client_id: str,
        topic: str,
        partition: int,
        number: int = 0,
        ahead_ms: int = 0,
        is_misplaced: bool = False,
    ) -> None:
        """Append a message of any writer.

        :param kind: name of its class
        :param number: its offset; or how many seconds from now on its time or deadline is
        :param ahead_ms: of the writer's clock
        :param is_misplaced: on another coordination partition than its topic's
        """
        at = (coordination_partition(topic, _PARTITIONS) + is_misplaced) % _PARTITIONS
        time_ms = self._clock.time_ms + ahead_ms
        fields: dict[str, Any] = {
            "time": time_ms // 1000,
            "instance_id": instance_id,
            "client_id": client_id,
            "group_id": GROUP,
            "topic": topic,
            "partition": partition,
            "current_offset": number,
            "proposed_current_offset": number,
            "msg_expire_time": time_ms // 1000 + number,
            "deadline": time_ms // 1000 + number,
            "to_instance_id": instance_id,
            "topic_id": f"id-{number % 2}",
        }
        if kind == "ReleaseGroup":
            fields |= {"topic": "", "partition": 0}
        message = getattr(messages, kind)()
        for name in message.__slots__:
            setattr(message, name, fields.get(name, getattr(message, name)))
        self.log.append(instance_id, at, kw.encode(message, 0), time_ms)

    def observe(self, ahead_ms: int = 0, lag_ms: int = 0) -> None:
        """Start a reader that sends nothing: it reads from the first entry that is still there.

        :param ahead_ms: how far its clock is ahead
        :param lag_ms: the most that an entry takes to it
        """
        random = Random(f"{self.seed}/observer-{len(self.observers)}")
        lag = (LAG_MS[0], LAG_MS[1] + lag_ms)
        self.observers.append(
            Observer(self._clock, self.log, self.truth, random, lag, ahead_ms, late_ms=self.interval_ms)
        )

    def grow(self, topic: str, count: int) -> None:
        """Add partitions of a topic; members see that a little later."""
        self._clock.record("cluster", "adds partitions", (topic, count))
        self.topics.grow(topic, count)
        for process in self.processes.values():
            self._clock.after(process.random.randint(*_METADATA_MS), process.learn_topics)

    def recreate(self, topic: str) -> None:
        """Delete a topic and create it again; members see that a little later."""
        self._clock.record("cluster", "creates again", topic)
        self.topics.recreate(topic)
        for process in self.processes.values():
            self._clock.after(process.random.randint(*_METADATA_MS), process.learn_topics)

    # ---- members

    def member(self, name: str, ahead_ms: int = 0, client_id: str | None = None) -> None:
        """Start a member's process, after one of that name was killed.

        :param ahead_ms: how far its wall clock is ahead
        :param client_id: None for its name
        """
        self.crash(name)
        self._boots += 1
        random = Random(f"{self.seed}/{name}/{self._boots}")
        has_presence = self._presence or self._balance
        settings = MemberSettings(
            group_id=GROUP,
            client_id=client_id or name,
            instance_id=f"{random.getrandbits(32):08x}",
            topics=tuple(sorted(self.topics.counts)),
            partitions=_PARTITIONS,
            rules=self.rules,
            delivery=self.delivery,
            heartbeat_interval_ms=self.interval_ms,
            pass_ms=self.interval_ms // 4,
            claim_timeout_ms=self.interval_ms,
            greedy=random.random() < 0.5 and not self._ranges,
            presence=has_presence,
            balance=Balance(round_ms=self.interval_ms, handoff_ms=2 * self.interval_ms) if self._balance else None,
            ranges=RangeClaims(size=_RANGE, ahead=2) if self._ranges else None,
        )
        self._clock.record(name, "starts", (settings.client_id, settings.instance_id))
        self.invariants.is_member(settings.instance_id)
        local = LocalClock(random.randrange(1 << 30), random.randint(-_FASTEST_PPM, _FASTEST_PPM), ahead_ms)
        self.processes[name] = MemberProcess(self, name, settings, local, random)

    def shut_down(self, name: str) -> None:
        """Let a member's application end it."""
        if (process := self._working(name)) is not None:
            process.deliver(Shutdown())

    def suspend(self, name: str) -> None:
        """Let a member's application end it, and keep its claims for a restart."""
        if (process := self._working(name)) is not None:
            process.deliver(Suspend())

    def set_clock(self, name: str, ahead_ms: int) -> None:
        """Set a member's wall clock."""
        if (process := self._working(name)) is not None:
            self._clock.record(name, "sets its clock", ahead_ms)
            self.set_back_ms = max(self.set_back_ms, process.local.ahead_ms - ahead_ms)
            process.set_clock(ahead_ms)

    def lag(self, name: str, lag_ms: int) -> None:
        """Let entries reach a member up to so much later, until `heal`."""
        if (process := self._working(name)) is not None:
            process.reader.lag_ms = (LAG_MS[0], LAG_MS[1] + lag_ms)

    def release(self, name: str) -> None:
        """Let a member's application release one of its partitions."""
        process = self._working(name)
        if process is not None and process.fetching:
            tenure = next(iter(process.fetching))
            process.deliver(Release(tenure.topic, tenure.partition))

    def fail_fetch(self, name: str) -> None:
        """Let fetching one of a member's partitions fail for good."""
        process = self._working(name)
        if process is not None and process.fetching:
            process.deliver(FetchFailed(next(iter(process.fetching)), "out of range"))

    # ---- admins

    def pause_group(self, ms: int) -> None:
        """Pause the group, for so long by an admin's clock."""
        until_ms = self._clock.time_ms + ms
        self._admin(lambda settings: GroupPauser(settings, until_ms, range(_PARTITIONS)))

    def set_position(self, topic: str, partition: int, offset: int) -> None:
        """Set the group's position in a partition."""
        if partition < self.topics.counts.get(topic, 0):
            positions = {TopicPartition(topic, partition): offset}
            self._admin(lambda settings: PositionSetter(settings, positions))

    def _admin(self, make: Callable[[AdminSettings], Admin]) -> None:
        name = f"admin-{len(self.admins)}"
        random = Random(f"{self.seed}/{name}")
        settings = AdminSettings(
            GROUP, f"{random.getrandbits(32):08x}", _PARTITIONS, self.rules, heartbeat_interval_ms=self.interval_ms
        )
        self._clock.record(name, "starts", settings.instance_id)
        local = LocalClock(random.randrange(1 << 30), random.randint(-_FASTEST_PPM, _FASTEST_PPM), 0)
        self.admins.append(AdminProcess(self, name, make(settings), local, random))

    def crash_admin(self) -> None:
        """Kill the admin that was started last."""
        if self.admins and self.admins[-1].is_working:
            self._clock.record(self.admins[-1].name, "crashes")
            self.admins[-1].kill()

    # ---- where it stands

    def _end_faults(self) -> None:
        self.log.trouble = Trouble()
        self._wanted_ends = {place: self.topics.end(*place) for place in self.wanted()}
        for process in self.working():
            process.reader.lag_ms = LAG_MS
            process.reader.cut_until = 0

    def owners(self) -> dict[tuple[str, int], list[str]]:
        """Return which members fetch which partition."""
        found: dict[tuple[str, int], list[str]] = {}
        for process in self.processes.values():
            for topic, partition, _ in process.fetching:
                found.setdefault((topic, partition), []).append(process.name)
        return found

    def wanted(self) -> set[tuple[str, int]]:
        """Return the partitions that the members want; none without a member."""
        if not any(self.working()):
            return set()
        return {(topic, number) for topic, count in self.topics.counts.items() for number in range(count)}

    def is_settled(self) -> bool:
        """Return whether each wanted partition is fetched by one member; of ranges, whether each record that was there
        at the end of the faults was processed."""
        if isinstance(self.invariants, RangeInvariants):
            return not any(self.working()) or not self._behind()
        owners = self.owners()
        return owners.keys() == self.wanted() and all(len(names) == 1 for names in owners.values())

    def settle_within(self) -> int:
        """Return within which time the system settles after the last fault, in ms."""
        return SETTLE * self.interval_ms + self.set_back_ms

    def unsettled(self) -> object:
        """Return who fetches which partition; of ranges, which partitions have records that were not processed."""
        return self._behind() or self.owners()

    def _behind(self) -> list[tuple[str, int]]:
        if not isinstance(self.invariants, RangeInvariants):
            return []
        found = []
        for (topic, partition), end in self._wanted_ends.items():
            place = RangePlace(Place(GROUP, topic, partition), self.topics.ids[topic])
            if not self.invariants.has_processed(place, end):
                found.append((topic, partition))
        return found

    def _await_settled(self) -> int:
        try:
            return super()._await_settled()
        except ViolationError as violation:
            if not self.is_lenient or violation.law != self.settles:
                raise
            return self.settle_within()

    def _finish(self) -> None:
        """Let a last reader compute the state."""
        self.observe()
        self.run(_READ_MS)

    def counts(self) -> Mapping[str, int]:
        """Return how many tenures have begun, and each anomaly that was seen, under its own name."""
        return {"tenures": self.invariants.tenures, **dict[str, int](self.anomalies.found.items())}


# ---- random runs

_SAID: Final = (
    (30, "ClaimingPartition"),
    (35, "Heartbeat"),
    (15, "ReleasingPartition"),
    (5, "ClaimingMessages"),
    (5, "ReleaseGroup"),
    (5, "HandingOver"),
    (5, "IdentifyingTopic"),
)


class _Draw(Draw):
    """Draws of a script.

    :ivar skew_ms: the most that a member's clock is ahead of another's; None for any difference
    """

    def __init__(
        self, random: Random, names: Sequence[str], topics: Mapping[str, int], interval_ms: int, skew_ms: int | None
    ) -> None:
        super().__init__(random, names)
        self.topics = topics
        self.interval_ms = interval_ms
        self.skew_ms = skew_ms


def _ms(draw: _Draw) -> int:
    return int(draw.interval_ms * draw.random.choice([0.1, 0.5, 0.9, 1.1, 1.9, 2.1, 4]))


def _ms_or_none(draw: _Draw) -> int:
    return draw.random.choice([0, 0, _ms(draw)])


def _ahead_ms(draw: _Draw) -> int:
    if draw.skew_ms is not None:
        return draw.random.choice([0, draw.skew_ms])
    return int(draw.interval_ms * draw.random.choice([-20, -2, -0.6, 0, 0.6, 2, 20]))


def _topic(draw: _Draw) -> str:
    return draw.random.choice(sorted(draw.topics))


def _partition(draw: _Draw) -> tuple[str, int]:
    topic = _topic(draw)
    return topic, draw.random.randrange(draw.topics[topic])


def _message(draw: _Draw) -> tuple[Any, ...]:
    client = draw.random.choice(["a", "b", "c"])
    kind = choose(draw.random, _SAID)
    return kind, f"{client}{draw.random.randint(1, 2)}", client, *_partition(draw), draw.random.randint(0, 9)


_trouble: Final = (_ms, lambda draw: draw.random.choice([0, _ms(draw)]))
_junk: Final = (between(0, _PARTITIONS - 1), between(0, len(JUNK) - 1))
_lead: Final = (between(0, _PARTITIONS - 1), between(0, 1))
ROWS: Final = (
    row(14, "member", process_name, _ahead_ms),
    row(10, "crash", process_name),
    row(12, "pause", process_name, _ms),
    row(3, "shut_down", process_name),
    row(3, "suspend", process_name),
    row(8, "set_clock", process_name, _ahead_ms),
    row(5, "lag", process_name, _ms),
    row(14, "trouble", *_trouble),
    row(7, "lead", *_lead),
    row(6, "observe", _ahead_ms, _ms_or_none),
    row(4, "junk", *_junk),
    row(4, "release", process_name),
    row(2, "fail_fetch", process_name),
    row(2, "grow", _topic, between(1, 2)),
    row(0, "recreate", _topic),  # of a script that wants it: `with_odds`
    row(2, "member", process_name, _ahead_ms, process_name),  # with the client id of another
    row(1, "pause_group", _ms),
    row(2, "set_position", spread(_partition), between(0, 60)),
    row(1, "crash_admin"),
)
RANGE_ROWS: Final = with_odds(
    ROWS,
    member=16,
    crash=14,
    pause=12,
    shut_down=3,
    suspend=3,
    set_clock=8,
    lag=5,
    trouble=14,
    lead=6,
    observe=5,
    junk=2,
    release=3,
    fail_fetch=2,
    grow=2,
    recreate=3,
    pause_group=2,
)
"""The same for members that claim ranges."""
WRITERS: Final = (
    row(55, "say", spread(_message)),
    row(5, "say", spread(_message), 0, True),
    row(10, "trouble", *_trouble),
    row(10, "lead", *_lead),
    row(10, "observe", _ahead_ms, _ms_or_none),
    row(10, "junk", *_junk),
)
"""The same for a log without members: writers that keep to nothing."""
PAUSES: Final = with_odds(ROWS, pause=40, trouble=30, member=20, lead=10)
"""Members that stop where they may hold something, while the log is in trouble."""
RECREATES: Final = with_odds(ROWS, recreate=25, trouble=30, crash=15, member=30)
"""Topics that are deleted and created again under members that come and go."""
HANDOVERS: Final = with_odds(ROWS, member=35, suspend=15, release=10, shut_down=10, fail_fetch=5, pause=10, trouble=15)
"""Partitions that change hands in order, with what cuts that short."""
DOUBLES: Final = (
    row(40, "member", process_name, _ahead_ms, process_name),
    *with_odds(ROWS, member=15, crash=10, pause=15, lag=10, suspend=10),
)
"""Members that come with the client id of another that still works."""
CLOCKS: Final = with_odds(ROWS, set_clock=35, lag=15, observe=10, lead=15, pause=10, member=15)
"""Clocks of members and brokers that differ, and change."""
MIXES: Final = (ROWS, ROWS, ROWS, PAUSES, RECREATES, HANDOVERS, DOUBLES, CLOCKS)
"""Of which a seed takes one: each brings some faults so often that they meet."""


def random_script(
    seed: int,
    actions: int = 40,
    *,
    rules: Rules = Rules.DOCUMENT,
    delivery: Delivery | None = None,
    is_append_time: bool = True,
    skew: float = 0.0,
    rows: Sequence[Row] | None = None,
    ranges: bool = False,
) -> Script[MarshalCluster]:
    """Return a run of a group with up to five members; the seed decides what happens in it.

    :param delivery: None for one that the seed decides
    :param is_append_time: False: CreateTime, and `skew` is looked at
    :param skew: with CreateTime, the most that a member's clock is ahead of another's, in heartbeat intervals
    :param rows: like `ROWS`; None for one of `MIXES`, which the seed decides
    :param ranges: members claim ranges; their rows are `RANGE_ROWS`
    """
    rows = RANGE_ROWS if ranges else rows
    random = Random(f"{seed}/marshal")
    rows = Random(f"{seed}/mix").choice(MIXES) if rows is None else rows
    interval_ms = random.choice([1_000, 2_000, 3_000])
    topics = {f"t{number}": random.randint(1, 4) for number in range(1, random.randint(1, 2) + 1)}
    names = [f"m{number}" for number in range(1, random.randint(2, 5) + 1)]
    skew_ms = random.choice([0, 0, interval_ms // 3, 3 * interval_ms // 4]) if is_append_time else 0
    brokers_ms = [random.randint(0, skew_ms) for _ in range(2)]
    draw = _Draw(random, names, topics, interval_ms, None if is_append_time else int(skew * interval_ms))
    haste_ms = interval_ms * random.choice([0.05, 0.3, 1.5])  # so that in some runs actions meet
    first = [] if rows is WRITERS else [Do(0, "member", each, _ahead_ms(draw)) for each in names]
    observer = Do(0, "observe", _ahead_ms(draw), _ms_or_none(draw))
    drawn = [*first, observer, *draw_actions(draw, rows, actions, haste_ms)]
    options = {
        "topics": topics,
        "rules": rules,
        "delivery": delivery or random.choice(list(Delivery)),
        "interval_ms": interval_ms,
        "brokers_ms": brokers_ms,
        "is_append_time": is_append_time,
        "has_holes": random.random() < 0.3,
        "presence": random.random() < 0.5,
        "balance": random.random() < 0.4,
    }
    if ranges:
        options |= {"ranges": True, "delivery": Delivery.AT_LEAST_ONCE, "presence": False, "balance": False}
    return Script(MarshalCluster, seed, options, drawn)
