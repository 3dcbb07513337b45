"""One script per client bug: a small group to which the bug does its damage, and the same group without the bug.

    played = play_bug("KAFKA-14639")
    print(played.damage)

Laws:

* Every row of `kcoord_wire.clients.bugs.CLIENT_BUGS` has a script.
* The damage of a script is the bug's: without the bug, the same script does none of that kind.
* Members state an affected version (KIP-511), and the first fixed one where they play without the bug.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.clients.bugs import CLIENT_BUGS
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.fault_injection import Fault
from kcoord_wire.kernel.virtual.scripts import Do, Script
from kcoord_wire.worlds.group.members import MemberOptions
from kcoord_wire.worlds.group.wire import Tap
from kcoord_wire.worlds.group.world import Cluster

_CONFIG: Final = GroupConfig(initial_rebalance_delay_ms=0)
_COOPERATIVE: Final = ("cooperative-sticky",)
_BEFORE_KIP_792: Final = (
    *("apache-kafka-java 2.", "apache-kafka-java 3.0", "apache-kafka-java 3.2", "apache-kafka-java 3.3"),
    *("librdkafka 1.", "librdkafka 2.1"),
)


@dataclass(frozen=True, slots=True)
class Damage:
    """The state of a group at the end of a script, and what has happened to it.

    :ivar two_owners: how often a partition was assigned to a member while another of its generation held it
    :ivar rebalances: how many have begun
    :ivar removed: members that a rebalance has removed without their wish
    :ivar unread: partitions that no member has fetched the committed offset of, so that it reads them
    :ivar clumped: topics of which one member has all partitions, though others subscribe to them
    :ivar is_settled: whether all members are in one generation and hold all partitions, each once
    """

    two_owners: int
    rebalances: int
    removed: int
    unread: int
    clumped: int
    is_settled: bool


@dataclass(frozen=True, kw_only=True)
class BugScript:
    """A group of clients with a bug.

    :ivar kind: the field of `Damage` in which the bug shows
    :ivar actions: what happens
    :ivar ends_ms: when it ends, in virtual ms
    :ivar topics: name to number of partitions
    """

    kind: str
    actions: Sequence[Do]
    ends_ms: int = 60_000
    topics: Mapping[str, int] = field(default_factory=lambda: {"orders": 6})

    def without(self, bug: str) -> BugScript:
        """Return the same script with members that do not have the bug."""
        fixed = CLIENT_BUGS[bug].fixed
        actions = [_without(each, bug, fixed[0]) if fixed else _without(each, bug, None) for each in self.actions]
        return replace(self, actions=actions)


def _without(action: Do, bug: str, fixed: str | None) -> Do:
    if action.call != "member" or bug not in action.arguments[1].bugs:
        return action
    name, options = action.arguments
    software = options.software
    if fixed is not None and software is not None:
        software = f"{software.partition(' ')[0]} {fixed}"
    left = tuple(name for name in options.bugs if name != bug)
    return Do(action.at, "member", name, replace(options, bugs=left, software=software))


def play_bug(bug: str, *, is_present: bool = True, seed: int = 0, tap: Tap | None = None) -> tuple[Cluster, Damage]:
    """Play the script of a bug.

    :param bug: a key of `CLIENT_BUGS`
    :param is_present: whether the members have the bug
    :param tap: gets the frames on the wire
    :returns: the cluster at the end, and the damage
    :raises KeyError: no such bug
    """
    script = BUG_SCRIPTS[bug] if is_present else BUG_SCRIPTS[bug].without(bug)
    with Cluster(seed, topics=script.topics, config=_CONFIG, tap=tap, may_break_one_owner=True) as sim:
        Script(Cluster, seed, actions=script.actions).play(sim)
        sim.run(script.ends_ms - sim.now)
        return sim, damage_of(sim)


def damage_of(sim: Cluster) -> Damage:
    """Return what has happened to a cluster of one group."""
    read = _read(sim)
    wanted = {topic for process in sim.processes.values() if process.is_working for topic in process.member.topics}
    partitions = [TopicPartition(topic, each) for topic in sorted(wanted) for each in range(sim.topics[topic])]
    left = {process.member.member_id for process in sim.processes.values() if not process.is_working}
    return Damage(
        two_owners=len(sim.invariants.broken),
        rebalances=len(sim.begun),
        removed=sum(gone.member_id not in left for account in sim.begun for gone in account.removed),
        unread=sum(not any(each in parts for parts in read.values()) for each in partitions),
        clumped=sum(_is_clumped(sim, topic) for topic in wanted),
        is_settled=sim.is_settled(),
    )


def _read(sim: Cluster) -> dict[str, set[TopicPartition]]:
    """Return what each working process owns and has fetched the offsets of since it was assigned."""
    fetched: dict[str, set[TopicPartition]] = {}
    for line in sim.trace:
        if line.what == "fetched":
            fetched.setdefault(line.who, set()).update(line.detail.offsets)
        elif line.what in ("revoking", "lost"):
            fetched.setdefault(line.who, set()).difference_update(line.detail.partitions)
    return {
        name: fetched.get(name, set()) & process.member.owned
        for name, process in sim.processes.items()
        if process.is_working
    }


def _is_clumped(sim: Cluster, topic: str) -> bool:
    members = [process.member for process in sim.processes.values() if process.is_working]
    subscribers = [member for member in members if topic in member.topics]
    held = [sum(each.topic == topic for each in member.owned) for member in subscribers]
    return len(held) > 1 and sim.topics[topic] > 1 and max(held) == sim.topics[topic]


# ---- the scripts


def _join(at: int, name: str, software: str | None, *bugs: str, **options: Any) -> Do:
    """A member with short timeouts. Its subscription has no generation before KIP-792 (Java 3.4, librdkafka 2.2)."""
    given: dict[str, Any] = {
        "assignors": _COOPERATIVE,
        "session_timeout_ms": 6_000,
        "rebalance_timeout_ms": 10_000,
        "heartbeat_interval_ms": 500,
        "request_timeout_ms": 5_000,
        "commit_ms": 1_000,
        "software": software,
        "bugs": bugs,
        "subscription_version": 1 if software is not None and software.startswith(_BEFORE_KIP_792) else 3,
    }
    return Do(at, "member", name, MemberOptions(**{**given, **options}))


def _loses_its_id(software: str, *bugs: str) -> list[Do]:
    """The JoinGroup of ``late`` arrives when it has been removed and others have its partitions."""
    return [
        _join(0, "leader", software, *bugs),
        _join(1_000, "late", software, *bugs),
        Do(10_000, "inject_fault", Fault("delay", api="JoinGroup", delay_ms=14_000, client_id="late", count=1)),
        _join(10_000, "third", software, *bugs),
    ]


def _is_late_for_sync(software: str, *bugs: str) -> list[Do]:
    """The SyncGroup of ``late`` arrives when the next rebalance has begun."""
    return [
        _join(0, "leader", software, *bugs),
        _join(1_000, "late", software, *bugs),
        Do(10_000, "inject_fault", Fault("delay", api="SyncGroup", delay_ms=2_000, client_id="late", count=1)),
        _join(10_000, "third", software, *bugs),
        _join(11_500, "fourth", software, *bugs),
    ]


def _three(software: str, *bugs: str, **options: Any) -> list[Do]:
    return [_join(5_000 * at, name, software, *bugs, **options) for at, name in enumerate(("first", "second", "third"))]


def _unequal(software: str | None, *bugs: str, **options: Any) -> list[Do]:
    """Members of two topics, of which the second has fewer partitions than members."""
    wanted = (("orders",), ("orders", "refunds"), ("refunds",), ("refunds",))
    return [
        _join(5_000 * at, f"member-{at}", software, *bugs, topics=topics, **options) for at, topics in enumerate(wanted)
    ]


_TWO_TOPICS: Final = {"orders": 6, "refunds": 2}

BUG_SCRIPTS: Final[Mapping[str, BugScript]] = MappingProxyType(
    {
        "KAFKA-12983": BugScript(
            kind="two_owners", actions=_loses_its_id("apache-kafka-java 2.8.0", "KAFKA-12983", "KAFKA-12984")
        ),
        "KAFKA-12984": BugScript(
            kind="two_owners", actions=_loses_its_id("apache-kafka-java 2.8.0", "KAFKA-12983", "KAFKA-12984")
        ),
        "KAFKA-13406": BugScript(kind="removed", actions=_is_late_for_sync("apache-kafka-java 3.0.0", "KAFKA-13406")),
        "KAFKA-14024": BugScript(
            kind="removed",
            actions=[
                _join(0, "first", "apache-kafka-java 3.2.0", "KAFKA-14024"),
                _join(10_000, "second", "apache-kafka-java 3.2.0", "KAFKA-14024"),
            ],
        ),
        "KAFKA-14639": BugScript(
            kind="two_owners", actions=_is_late_for_sync("apache-kafka-java 3.3.2", "KAFKA-14639")
        ),
        "KAFKA-15106": BugScript(
            kind="is_settled", actions=_unequal("apache-kafka-java 3.5.0", "KAFKA-15106"), topics=_TWO_TOPICS
        ),
        "KAFKA-15170": BugScript(kind="two_owners", actions=_three("apache-kafka-java 3.6.2", "KAFKA-15170", rack="a")),
        "KAFKA-16277": BugScript(
            kind="clumped",
            actions=[
                _join(0, "first", "apache-kafka-java 3.6.2", "KAFKA-16277"),
                _join(10_000, "second", "apache-kafka-java 3.6.2", "KAFKA-16277"),
            ],
            topics={"orders": 6, "refunds": 6},
        ),
        "librdkafka#3306": BugScript(
            kind="is_settled",
            actions=_three("librdkafka 1.6.1", "librdkafka#3306", client="librdkafka"),
        ),
        "librdkafka#3866": BugScript(
            kind="unread",
            actions=_three("librdkafka 1.5.3", "librdkafka#3866", client="librdkafka", assignors=("range",)),
        ),
        "librdkafka#3891": BugScript(
            kind="rebalances",
            actions=[
                *_three("librdkafka 1.8.2", "librdkafka#3891", client="librdkafka"),
                Do(30_000, "leave", "first"),
            ],
            topics={"orders": 3},
        ),
        "librdkafka#4252": BugScript(
            kind="two_owners",
            actions=_loses_its_id("librdkafka 2.1.1", "KAFKA-12983", "librdkafka#4252"),
        ),
        "librdkafka#4783": BugScript(
            kind="removed",
            actions=_unequal("librdkafka 2.6.0", "librdkafka#4783", client="librdkafka", session_timeout_ms=15_000),
            topics=_TWO_TOPICS,
            ends_ms=120_000,
        ),
        "franz-go#686": BugScript(
            kind="unread",
            actions=[
                _join(0, "eager", "kgo v1.16.1", "franz-go#686", assignors=("range",)),
                _join(
                    1_000,
                    "both",
                    "kgo v1.16.1",
                    "franz-go#686",
                    assignors=("cooperative-sticky", "range"),
                    commit_ms=None,
                ),
                Do(10_000, "leave", "eager"),
            ],
        ),
        "aiokafka#1176": BugScript(
            kind="removed",
            actions=_unequal(
                None, "aiokafka#1176", client="aiokafka", assignors=("sticky",), rebalance_timeout_ms=20_000
            ),
            topics=_TWO_TOPICS,
            ends_ms=120_000,
        ),
    }
)
"""The scripts, by the bug's name."""
