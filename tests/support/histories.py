"""Plausible histories of groups for the tests of the report: many members, many rebalances, hostile names.

Everything is derived from a seed and the same in every run.
"""

from __future__ import annotations

import random

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.model import (
    CommitRow,
    Evidence,
    Finding,
    Generation,
    GroupHistory,
    GroupSummary,
    Loss,
    MemberLife,
    Ownership,
    Pause,
    Rebalance,
    RemovedMember,
    StateInterval,
)

START = 1_763_737_200_000_000_000  # 2025-11-21 15:00:00 UTC
MS, SECOND, MINUTE = 1_000_000, 1_000_000_000, 60_000_000_000

HOSTILE = (
    '"><img src=x onerror=window.hacked=1>',
    "</script><script>window.hacked=2</script>",
    "<!--<script>",
    "'; window.hacked=3; //",
    "{{constructor.constructor('window.hacked=4')()}}",
    "\u2028\u2029\u202egnp.exe\x1b[31m\x07\x00\r\n",
    "javascript:window.hacked=5",
    "[red]markup[/red] \x9b2J",
    "x" * 5000,
)


def summary(group_id: str, last_ns: int, **known: object) -> GroupSummary:
    """The row of a group that begins at `START`."""
    return GroupSummary(
        **{
            "group_id": group_id, "origin": "wire", "protocol_type": "consumer", "first_ns": START,
            "last_ns": last_ns, "members": 0, "generations": 0, "rebalances": 0, "exchanges": 0, "commits": 0,
            "paused_ms": 0.0, "blind": [], **known,
        }  # type: ignore[arg-type]
    )  # fmt: skip


def empty(group_id: str = "idle") -> GroupHistory:
    """A group of which only the name is known."""
    return GroupHistory(summary(group_id, START))


def bare(group_id: str = "bare") -> GroupHistory:
    """One rebalance of which only the beginning is known."""
    row = Rebalance(
        group_id, 1, None, START + SECOND, None, None, "open", Cause.UNKNOWN, None, None, None, None, None, "", 0.0, []
    )
    return GroupHistory(summary(group_id, START + 5 * SECOND, rebalances=1), rebalances=[row])


class GroupBuilder:
    """Builds the history of a classic group of `members` clients, rebalance by rebalance."""

    def __init__(self, group_id: str, members: int, partitions: int, seed: int, names: tuple[str, ...] = ()) -> None:
        self.random = random.Random(seed)
        self.now = START
        self.history = GroupHistory(summary(group_id, START))
        self.group_id = group_id
        self.partitions = [("orders" if p % 3 else "payments", p) for p in range(partitions)]
        self.names = [names[m % len(names)] if names else f"{group_id}-{m}" for m in range(members)]
        self.hosts = [names[-1 - m % len(names)] if names else f"10.0.{m // 20}.{m % 20 + 3}" for m in range(members)]
        self.lives: dict[int, MemberLife] = {}
        self.held: dict[tuple[str, int], Ownership] = {}
        self.former: dict[tuple[str, int], str] = {}
        self.serial = 0

    def join(self, member: int) -> None:
        """A client joins with a new member id."""
        self.serial += 1
        life = MemberLife(
            self.group_id, f"{self.names[member]}-{self.serial:08x}", None, self.names[member], self.hosts[member],
            self.now, None, None, self.now, len(self.history.generations) + 1, None, 45_000, 300_000,
            ["cooperative-sticky", "range"], ["orders", "payments"], "classic", "librdkafka 2.6",
        )  # fmt: skip
        self.lives[member] = life
        self.history.members.append(life)

    def leave(self, member: int, why: str) -> MemberLife:
        """A client leaves, and its partitions lose their owner."""
        life = self.lives.pop(member)
        life.left_ns, life.why_left, life.last_seen_ns = self.now, why, self.now
        for place, row in list(self.held.items()):
            if row.member_id == life.member_id:
                self.release(place)
        return life

    def release(self, place: tuple[str, int]) -> None:
        """A partition loses its owner."""
        row = self.held.pop(place)
        row.to_ns = self.now
        self.former[place] = row.member_id

    def rebalance(self, cause: Cause, member: int, removed: list[RemovedMember], took_ms: float, late: int) -> None:
        """A rebalance, until the new assignment."""
        number = len(self.history.rebalances) + 1
        started, clients = self.now, sorted(self.lives)
        eager = self.random.random() < 0.3
        shares = {place: clients[at % len(clients)] for at, place in enumerate(self.partitions)} if clients else {}
        moving = [p for p in self.held if eager or self.held[p].member_id != self.lives[shares[p]].member_id]
        for place in moving:
            self.release(place)
        joined = started + round(took_ms * 0.9) * MS
        self.now = started + round(took_ms) * MS
        paused = 0.0
        for place, client in shares.items():
            if place in self.held:
                continue
            life = self.lives[client]
            row = Ownership(self.group_id, *place, life.member_id, life.client_id, number, self.now, None)
            self.held[place] = row
            self.history.ownership.append(row)
            if place in self.former:
                self.history.pauses.append(
                    Pause(self.group_id, *place, started, self.now, self.former[place], life.member_id, number)
                )
                paused += took_ms
        host, name = self.hosts[member], self.names[member]
        detail = f"{name} ({host}): {cause}"
        last = clients[late % len(clients)] if clients else None
        self.history.rebalances.append(
            Rebalance(
                self.group_id,
                number,
                number,
                started,
                joined,
                self.now,
                "stable" if clients else "empty",
                cause,
                f"{name}-{number}",
                name,
                host,
                None,
                "poll took too long" if cause is Cause.POLL_TIMEOUT else None,
                detail,
                self.random.choice([1.0, 1.0, 0.9, 0.7]),
                [
                    Evidence(started + at * MS, "node-1.pcap", 100 * number + at, text)
                    for at, text in enumerate(
                        (
                            f"JoinGroup of {name} with generation {number - 1}",
                            "error REBALANCE_IN_PROGRESS to 4 heartbeats",
                            f"SyncGroup of the leader, {len(shares)} partitions",
                        )
                    )
                ],
                "consumer",
                "range" if eager else "cooperative-sticky",
                f"{name}-1",
                not eager,
                took_ms,
                took_ms * 0.9,
                took_ms * 0.1,
                None if last is None else self.lives[last].member_id,
                None if last is None else self.names[last],
                None if last is None else self.hosts[last],
                None if last is None else took_ms * (0.8 if took_ms > 4000 else 0.1),
                len(clients),
                len(clients),
                len(moving),
                len(moving) // 3,
                paused,
                removed,
            )
        )
        self.history.generations.append(
            Generation(self.group_id, number, joined, self.now, None, "range", f"{name}-1", len(clients), len(shares))
        )
        self.history.states += [
            StateInterval(self.group_id, "PreparingRebalance", started, joined, number - 1),
            StateInterval(self.group_id, "CompletingRebalance", joined, self.now, number),
        ]

    def finish(self, blind: list[str]) -> GroupHistory:
        """The finished history, with its totals."""
        history, group = self.history, self.history.group
        group.last_ns = self.now
        for life in self.lives.values():
            life.last_seen_ns = self.now
        minutes = range(START // MINUTE, self.now // MINUTE + 1)
        for place, (topic, partition) in enumerate(self.partitions[:12]):
            for at, minute in enumerate(minutes):
                first = 1000 * at + place
                history.commits.append(
                    CommitRow(self.group_id, topic, partition, minute * MINUTE, 12, int(at % 7 == 3 and place == 1),
                              first, first + self.random.randrange(400, 1000), None)
                )  # fmt: skip
        group.members, group.generations = len(history.members), len(history.generations)
        group.rebalances, group.commits = len(history.rebalances), sum(row.commits for row in history.commits)
        group.exchanges = 40 * group.rebalances
        group.paused_ms = sum(((p.to_ns or self.now) - p.from_ns) / 1e6 for p in history.pauses)
        group.blind = blind
        return history


def typical(group_id: str = "billing", seed: int = 1, names: tuple[str, ...] = ()) -> GroupHistory:
    """Three clients, seven rebalances, one of them slow; the last member is lost and the last partitions unowned."""
    builder = GroupBuilder(group_id, 4, 12, seed, names)
    for member in range(3):
        builder.join(member)
        builder.rebalance(Cause.NEW_MEMBER, member, [], 900 + 2200 * (member == 1), 0)
        builder.now += 9 * SECOND
    life = builder.leave(1, "poll timeout")
    gone = RemovedMember(life.member_id, life.client_id, life.client_host, "poll timeout")
    builder.rebalance(Cause.POLL_TIMEOUT, 1, [gone], 1300, 2)
    builder.now += 31 * SECOND
    builder.join(1)
    builder.rebalance(Cause.NEW_MEMBER, 1, [], 8100, 2)
    builder.now += 60 * SECOND
    builder.rebalance(Cause.TOPICS_CHANGED, 0, [], 420, 1)
    builder.now += 45 * SECOND
    life = builder.leave(2, "session timeout")
    gone = RemovedMember(life.member_id, life.client_id, life.client_host, "session timeout")
    builder.rebalance(Cause.SESSION_EXPIRED, 2, [gone], 2100, 0)
    builder.now += 20 * SECOND
    history = builder.finish(["Heartbeats before the capture began are not in it."])
    last = history.rebalances[4]
    history.findings = [
        Finding(
            group_id, "slow_joiner", "warning", last.started_ns, last.ended_ns, builder.names[2],
            f"{builder.names[2]} joined 6.5 s after everybody else; all 12 partitions waited for it.",
            "Look at what its poll loop does between two polls; lower max.poll.records or move the work to a thread.",
            6500.0, 1000.0, [5], [Evidence(last.started_ns, "node-1.pcap", 512, "JoinGroup of the last member")],
        ),
        Finding(
            group_id, "poll_timeout", "critical", history.rebalances[3].started_ns, None, builder.names[1],
            f"{builder.names[1]} was put out because it did not poll within max.poll.interval.ms, and came back.",
            "Raise max.poll.interval.ms above the longest batch, or make batches smaller.", 1.0, 1.0, [4, 5], [],
        ),
        Finding(group_id, "uneven_assignment", "info", START, None, None, "One member holds 5 partitions, one 3.",
                "Use the same subscription everywhere.", 1.7, 1.5, [], []),
    ]  # fmt: skip
    return history


def storm(group_id: str = "clickstream", members: int = 200, rebalances: int = 1000, seed: int = 2) -> GroupHistory:
    """A group that rebalances all the time; more than a hundred thousand ownership intervals."""
    builder = GroupBuilder(group_id, members, 240, seed)
    for member in range(members - 5):
        builder.join(member)
    causes = [Cause.SESSION_EXPIRED, Cause.NEW_MEMBER, Cause.POLL_TIMEOUT, Cause.COOPERATIVE_FOLLOW_UP,
              Cause.MEMBER_LEFT, Cause.COORDINATOR_FAILOVER, Cause.LEADER_REJOINED]  # fmt: skip
    weights = [30, 34, 12, 14, 8, 1, 1]
    why = {Cause.SESSION_EXPIRED: "session timeout", Cause.POLL_TIMEOUT: "poll timeout", Cause.MEMBER_LEFT: "left"}
    for _ in range(rebalances):
        [cause] = builder.random.choices(causes, weights)
        away = sorted(set(range(members)) - set(builder.lives))
        if (cause in why and len(builder.lives) <= 3) or (cause is Cause.NEW_MEMBER and not away):
            cause = Cause.COOPERATIVE_FOLLOW_UP
        removed = []
        member = builder.random.choice(sorted(builder.lives))
        if cause in why:
            life = builder.leave(member, why[cause])
            removed = [RemovedMember(life.member_id, life.client_id, life.client_host, why[cause])]
        elif cause is Cause.NEW_MEMBER:
            member = builder.random.choice(away)
            builder.join(member)
        builder.rebalance(cause, member, removed, builder.random.lognormvariate(7, 1), builder.random.randrange(1000))
        builder.now += builder.random.randrange(200, 9000) * MS
    history = builder.finish([])
    history.findings = [
        Finding(group_id, "storm", "critical", START, None, None,
                f"{rebalances:,} rebalances, one every {(builder.now - START) / rebalances / 1e9:.1f} s: "
                "the group hardly comes to rest.",
                "Give the members group.instance.id and a session timeout longer than a restart.", 12.0, 3.0,
                list(range(1, rebalances + 1)), []),
    ]  # fmt: skip
    return history


def incident(group_id: str = "incident-84", members: int = 84) -> GroupHistory:
    """A group of 84 clients that rejoins repeatedly without an assignment."""
    builder = GroupBuilder(group_id, members, 200, 3)
    for member in range(members):
        builder.join(member)
    for at in range(40):
        builder.rebalance(Cause.REBALANCE_TIMEOUT, at % members, [], 14_000, at * 7)
        row = builder.history.rebalances[-1]
        row.outcome, row.ended_ns, row.duration_ms, row.syncing_ms = "interrupted", None, None, None
        builder.now += 1000 * MS
    row.outcome = "open"
    builder.history.ownership, builder.history.pauses = [], []
    return builder.finish(["Offsets commits are not in this source."])


def kip_848(group_id: str = "next-gen") -> GroupHistory:
    """A group of the consumer protocol (KIP-848), from the log, whose last rebalance is open when the source ends."""
    builder = GroupBuilder(group_id, 6, 18, 4)
    for member in range(6):
        builder.join(member)
        builder.rebalance(Cause.NEW_MEMBER, member, [], 300.5, 0)
        builder.now += 4 * SECOND
    history = builder.finish(["The log holds no heartbeats: who was late is not in it.", "Client ids end at 64 bytes."])
    history.group.origin = "log"
    for life in history.members:
        life.protocol, life.library, life.assignors = "consumer", None, ["uniform"]
    for row in history.rebalances:
        row.last_member_id = row.last_client_id = row.last_client_host = row.late_ms = row.joined_ns = None
        row.joining_ms = row.syncing_ms = row.cooperative = None
    history.states = [
        StateInterval(group_id, state, row.started_ns + at * MS, row.started_ns + (at + 100) * MS, row.generation_id)
        for row in history.rebalances
        for at, state in ((0, "Assigning"), (100, "Reconciling"))
    ]
    history.states[-1].to_ns = None
    history.pauses.append(Pause(group_id, "orders", 1, history.group.last_ns - SECOND, None, "gone", None, None))
    return history


def hostile(name: str) -> GroupHistory:
    """A history in which every string is `name`."""
    history = typical(name, 5, (name,))
    for row in history.rebalances:
        row.member_id = row.reason = row.detail = row.outcome = row.assignor = row.instance_id = row.leader_id = name
        row.protocol_type = row.last_member_id = name
        row.evidence = [Evidence(row.started_ns, name, 1, name)]
        row.removed = [RemovedMember(name, name, name, name)]
    history.rebalances[0].cause = name
    for life in history.members:
        life.member_id, life.why_left, life.library, life.topics, life.assignors = name, name, name, [name], [name]
        life.instance_id = name
    for held in history.ownership:
        held.topic = held.member_id = name
    for pause in history.pauses:
        pause.topic = pause.former_member_id = name
    for finding in history.findings:
        finding.detector = finding.subject = finding.text = finding.advice = name
    history.findings[0].severity = name
    for state in history.states:
        state.state = name
    history.group.blind, history.group.protocol_type, history.group.origin = [name], name, name
    return history


def losses(name: str = "node-1.pcap") -> list[Loss]:
    """Losses in three places."""
    return [
        Loss(name, 1024, "the connection lost bytes: 3 segments are not in the capture", 4344, 3),
        Loss(name, 90_112, f"a frame is not a request: {name}", 77),
        Loss("0000.log", 0, "the batch's CRC does not fit", 512),
    ]
