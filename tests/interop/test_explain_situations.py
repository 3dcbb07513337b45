"""What goes wrong with real clients on a real Kafka broker, recorded on the way, and what the pipeline says of it.

Each situation is one group, played by programs of the client libraries, with the expected rebalances: the cause,
whose it was, and what that client states itself. They are played side by side; the last ones live through the loss of
their coordinator, which is killed and comes back.

Law: a step has to show at the broker before the next one is taken: so what happened is known without the analysis.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Event
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

import kcoord_wire as kw
from kcoord_wire.forensics.analysis import analyze
from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.model import GroupHistory, Rebalance
from kcoord_wire.recorder.proxy import Recorder
from tests.support.clients.heard import PATIENCE
from tests.support.clients.java import java_client
from tests.support.clients.life_cycle import Figures, at_once
from tests.support.clients.members import AIOKAFKA, CONFLUENT, KAFKA_PYTHON, KCOORD, Member
from tests.support.kafka_broker import KAFKA, KafkaBroker, create_topics
from tests.support.stage import LONG_MS, PARTITIONS, Stage
from tests.support.wire import Wire

NEWER_KAFKA = "4.1.0"
PROPERTIES = {
    "auto.create.topics.enable": "true",
    "num.partitions": str(PARTITIONS),
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "200",
    "group.max.size": "3",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.session.timeout.ms": "4000",
    "group.consumer.min.session.timeout.ms": "4000",
}


def _add_partitions(address: str, topic: str, count: int) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    for done in admin.create_partitions([NewPartitions(topic, count)]).values():
        done.result(PATIENCE)


# ---- what is expected


@dataclass(frozen=True)
class Expected:
    """A rebalance as it has to be reported. `reason`: a part of what the client states; None: it states nothing."""

    cause: Cause
    client: str | None
    why: str | None = None
    reason: str | None = None
    outcome: str = "stable"
    cooperative: bool | None = False


# ---- situations


def polls_too_late(stage: Stage, library: str) -> Figures:
    first = stage.joins(library, "first")
    stage.settles(first=4)
    own = {"max_poll_interval_ms": 4000} if library == "aiokafka" else {}  # apart from the time to join, there
    second = stage.joins(library, "second", session_ms=4000, poll_ms=4000, **own)
    stage.settles(first=2, second=2)
    with ThreadPoolExecutor(1) as thread:
        stalled = thread.submit(second.command, "stall", ms=8000)
        stage.settles(first=4)
        stalled.result()
    stage.settles(first=2, second=2)
    stage.part(second, first)
    return {}


def stands_still(stage: Stage, library: str) -> Figures:
    first = stage.joins(library, "first")
    stage.settles(first=4)
    second = stage.joins(library, "second", session_ms=3000)
    stage.settles(first=2, second=2)
    second.stop()
    stage.settles(first=4)
    second.go_on()
    stage.settles(first=2, second=2)
    stage.part(second, first)
    return {}


def static(stage: Stage, library: str) -> Figures:
    other = stage.joins(library, "other", "roundrobin,range", static=True, session_ms=LONG_MS)
    stage.settles(other=4)
    at = {"static": True, "session_ms": 10_000}
    one, two = (stage.program(library, "restarted", "roundrobin,range", **at) for _ in range(2))
    three, four = (stage.program(library, "restarted", "range", **at) for _ in range(2))
    one.join()
    stage.settles(other=2, restarted=2)
    one.kill()
    two.join()
    stage.waits(lambda: len(two.now_owned) == 2, "it has not its partitions again")
    two.leave()  # which a static member does without a LeaveGroup
    three.join()  # it offers no roundrobin any more: another assignor is chosen
    stage.waits(lambda: len(three.now_owned) == 2, "it has not its partitions again")
    stage.waits(lambda: len(other.owned) >= 4, "the other one has not joined again")
    three.kill()
    stage.settles(other=4)
    four.join()
    stage.settles(other=2, restarted=2)
    _remove(stage, "restarted")
    four.kill()
    stage.settles(other=4)
    _remove(stage, "other")
    stage.settles()
    return {}


def _remove(stage: Stage, instance_id: str) -> None:
    """As an operator does."""
    gone = kw.LeaveGroupRequestMemberIdentity(group_instance_id=instance_id, reason="the host is taken out of service")
    with Wire(stage.bootstrap, client_id="admin") as wire:
        answer = wire.call(kw.LeaveGroupRequest(group_id=stage.name, members=[gone]), 5)
    assert [member.error_code for member in answer.members] == [0], answer


def changes(stage: Stage, library: str) -> Figures:
    key = "topic_metadata_refresh_interval_ms" if library == "confluent" else "metadata_max_age_ms"
    first = stage.joins(library, "first", **{key: 1000})
    stage.settles(first=4)
    second = stage.joins(library, "second", **{key: 1000})
    stage.settles(first=2, second=2)
    second.command("subscribe", topics=[stage.topic, stage.more])
    stage.settles(first=2, second=6)
    _add_partitions(stage.broker, stage.topic, 6)
    stage.settles(first=3, second=7)
    if library in REASONS:
        stage.again(second, lambda: first.command("rebalance", reason="the leader wants it"))
        stage.again(first, lambda: second.command("rebalance", reason="the follower wants it"))
        stage.settles(first=3, second=7)
    stage.part(second, first)
    return {}


def unsubscribes(stage: Stage, library: str) -> Figures:
    """It leaves as one whose application does not poll does: without a word, and its connection stays."""
    first = stage.joins(library, "first")
    stage.settles(first=4)
    second = stage.joins(library, "second")
    stage.settles(first=2, second=2)
    second.command("subscribe", topics=[])
    stage.settles(first=4)
    second.command("subscribe", topics=[stage.topic])
    stage.settles(first=2, second=2)
    stage.part(second, first)
    return {}


def migrates(stage: Stage, library: str) -> Figures:
    """Range, then both, then cooperative-sticky; librdkafka with one of them alone cannot join in between."""
    both = "cooperative-sticky,range"
    one = stage.joins("java", "one", "range")
    stage.settles(one=4)
    _is_refused(stage, "cooperative-sticky")
    two = stage.joins("java", "two", both)
    stage.settles(one=2, two=2)
    one.leave()
    stage.settles(two=4)
    three = stage.joins("java", "three", "cooperative-sticky")
    stage.settles(two=2, three=2)
    _is_refused(stage, "range")
    two.leave()
    stage.settles(three=4)
    four = stage.joins("confluent", "four", "cooperative-sticky")
    stage.settles(three=2, four=2)
    stage.part(four, three)
    return {}


def _is_refused(stage: Stage, assignor: str) -> None:
    member = stage.joins("confluent", "outsider", assignor)
    stage.waits(lambda: bool(member.complaints), "it was not refused")
    member.kill()


def commits_late(stage: Stage, library: str) -> Figures:
    """A worker that goes on with a partition after its member has given it up."""
    first = stage.joins(library, "first", "cooperative-sticky")
    stage.settles(first=4)
    stage.waits(lambda: len(first.now_owned) == 4, "it does not know")
    first.command("commit", offsets=[[partition, 0] for partition in range(4)])
    second = stage.joins(library, "second", "cooperative-sticky")
    stage.settles(first=2, second=2)
    stage.waits(lambda: len(first.now_owned) == 2 == len(second.now_owned), "they do not know")
    time.sleep(0.3)
    lost = second.now_owned[0]
    first.command("commit", offsets=[[lost, 0]])
    stage.part(second, first)
    return {}


def overflows(stage: Stage, library: str) -> Figures:
    members = _three(stage, library)
    fourth = stage.joins(library, "fourth", "roundrobin")
    stage.waits(lambda: bool(fourth.complaints), "it was not refused")
    fourth.kill()
    stage.part(*members)
    return {}


def _three(stage: Stage, library: str, **options: int) -> list[Member]:
    names = ["first", "second", "third"]
    members = []
    for number, name in enumerate(names, 1):
        members.append(stage.joins(library, name, "roundrobin", **options))
        stage.waits(lambda number=number: stage.has(*names[:number]), f"{name} is not in")
    return members


MODERN = {"group_protocol": "consumer", "partition_assignment_strategy": None}
MODERN |= {"session_timeout_ms": None, "heartbeat_interval_ms": None}


def modern(stage: Stage, library: str) -> Figures:
    first = stage.joins(library, "first", **MODERN)
    stage.waits(lambda: first.now_owned == [0, 1, 2, 3], f"the first has {first.owned}, {first.complaints}")
    second = stage.joins(library, "second", **MODERN)
    stage.waits(lambda: len(first.now_owned) == 2 == len(second.now_owned), "they do not share")
    second.leave()
    stage.waits(lambda: first.now_owned == [0, 1, 2, 3], "the first has not all")
    third = stage.joins(library, "third", **MODERN)
    stage.waits(lambda: len(first.now_owned) == 2 == len(third.now_owned), "they do not share")
    third.kill()
    stage.waits(lambda: first.now_owned == [0, 1, 2, 3], "the first has not all")
    first.leave()
    return {}


# ---- situations that live through the loss of the coordinator


@dataclass
class Loss:
    """The coordinator is lost when all have come to that, and is back when `back` is set."""

    near: Barrier
    back: Event = field(default_factory=Event)

    def pass_by(self) -> None:
        self.near.wait(120)
        assert self.back.wait(120)


def loss_of_a_stable_group(stage: Stage, library: str, loss: Loss) -> Figures:
    first = stage.joins(library, "first", session_ms=LONG_MS)
    stage.settles(first=4)
    loss.pass_by()
    stage.settles(first=4)
    second = stage.joins(library, "second")
    stage.settles(first=2, second=2)
    stage.part(second, first)
    return {}


def loss_of_members(stage: Stage, library: str, loss: Loss) -> Figures:
    """One dies while there is no coordinator."""
    first = stage.joins(library, "first", session_ms=LONG_MS)
    stage.settles(first=4)
    second = stage.joins(library, "second", session_ms=5000)
    stage.settles(first=2, second=2)
    loss.near.wait(120)
    second.kill()
    assert loss.back.wait(120)
    stage.settles(first=4)
    stage.part(first)
    return {}


def loss_of_a_join(stage: Stage, library: str, loss: Loss) -> Figures:
    """It is lost while a join waits for a member that stands still."""
    first = stage.joins(library, "first", session_ms=LONG_MS)
    stage.settles(first=4)
    first.stop()
    second = stage.joins(library, "second", session_ms=LONG_MS)
    stage.waits(lambda: stage.described()[0] == "PreparingRebalance", "nobody joins")
    loss.pass_by()
    first.go_on()
    stage.settles(first=2, second=2)
    stage.part(second, first)
    return {}


def loss_with_a_smaller_limit(stage: Stage, library: str, loss: Loss) -> Figures:
    """It comes back with a group.max.size that the group exceeds: it refuses one, and waits for it all the same."""
    members = _three(stage, library, session_ms=LONG_MS, poll_ms=25_000)
    loss.pass_by()
    stage.waits(lambda: len(stage.described()[1]) == 2 and stage.described()[0] == "Stable", "it is not smaller")
    refused = next(member for member in members if member.name not in stage.described()[1])
    refused.kill()
    stage.part(*(member for member in members if member is not refused))
    return {}


# ---- all of them, with what is expected


ANY = "whatever it is"
"""Where it depends on who comes back first."""


REASONS: dict[str, dict[str, str]] = {
    "java": {},
    "kcoord": {
        "need to re-join with the given member-id": "a member id was given",
        "cached metadata has changed": "the topics have changed",
        "need to revoke partitions and re-join": "partitions were given up",
    },
}
"""The libraries that give reasons (KIP-800), and their words where they are not Java's."""


def stated(library: str, text: str) -> str | None:
    """The reason that a client gives, if its library gives any."""
    return REASONS[library].get(text, text) if library in REASONS else None


def comes(library: str, client: str, **more: Any) -> Expected:
    return Expected(
        Cause.NEW_MEMBER, client, reason=stated(library, "need to re-join with the given member-id"), **more
    )


def goes(library: str, client: str, **more: Any) -> Expected:
    return Expected(Cause.MEMBER_LEFT, client, "left", stated(library, "the consumer is being closed"), **more)


def ends(library: str, *clients: str, **more: Any) -> list[Expected]:
    last = goes(library, clients[-1], outcome="empty", cooperative=None)
    return [*(goes(library, client, **more) for client in clients[:-1]), last]


def late_poll(library: str) -> list[Expected]:
    why = Expected(Cause.POLL_TIMEOUT, "second", "poll timeout", stated(library, "consumer poll timeout has expired"))
    start = [comes(library, "first"), comes(library, "second"), why, comes(library, "second")]
    return [*start, *ends(library, "second", "first")]


def standstill(library: str) -> list[Expected]:
    expired = Expected(Cause.SESSION_EXPIRED, "second", "session timeout")
    start = [comes(library, "first"), comes(library, "second"), expired, comes(library, "second")]
    return [*start, *ends(library, "second", "first")]


def statics(library: str) -> list[Expected]:
    """A static member needs no second join for its id, so that Java's states no reason."""
    comes = partial(Expected, Cause.NEW_MEMBER, reason="subscription has changed" if library == "kcoord" else None)
    removed = partial(Expected, Cause.MEMBER_LEFT, why="left", reason="the host is taken out of service")
    return [
        comes("other"),
        comes("restarted"),
        replace(comes("restarted"), cause=Cause.STATIC_REPLACED),
        Expected(Cause.SESSION_EXPIRED, "restarted", "session timeout"),
        comes("restarted"),
        removed("restarted"),
        removed("other", outcome="empty", cooperative=None),
    ]


def changed(library: str) -> list[Expected]:
    found = [
        comes(library, "first"),
        comes(library, "second"),
        Expected(Cause.SUBSCRIPTION_CHANGED, "second", reason=stated(library, "subscription has changed")),
        Expected(Cause.TOPICS_CHANGED, "first", reason=stated(library, "cached metadata has changed")),
    ]
    if library in REASONS:
        found.append(Expected(Cause.LEADER_REJOINED, "first", reason="the leader wants it"))
        found.append(
            Expected(Cause.SUBSCRIPTION_CHANGED, "second", reason="the follower wants it")
        )  # its generation, at least
    return [*found, *ends(library, "second", "first")]


FOLLOWS = partial(Expected, Cause.COOPERATIVE_FOLLOW_UP, cooperative=True)
REVOKES = "need to revoke partitions and re-join"
MIGRATION = [
    comes("java", "one"),
    comes("java", "two"),
    goes("java", "one"),
    comes("java", "three"),
    goes("java", "two", cooperative=True),
    comes("confluent", "four", cooperative=True),
    FOLLOWS("three", reason=REVOKES),
    goes("confluent", "four", cooperative=True),
    goes("java", "three", outcome="empty", cooperative=None),
]


def late_commit(library: str) -> list[Expected]:
    start = [comes(library, name, cooperative=True) for name in ("first", "second")]
    return [
        *start,
        FOLLOWS("first", reason=stated(library, REVOKES)),
        *ends(library, "second", "first", cooperative=True),
    ]


THREE = [Expected(Cause.NEW_MEMBER, name) for name in ("first", "second", "third")]


RESUMED = [
    comes("confluent", "first"),
    comes("confluent", "second"),
    goes("confluent", "second"),
    comes("confluent", "second"),
]


def modern_life(library: str) -> list[Expected]:
    return [
        Expected(Cause.NEW_MEMBER, "first", cooperative=True),
        Expected(Cause.NEW_MEMBER, "second", cooperative=True),
        Expected(Cause.MEMBER_LEFT, "second", "left", cooperative=True),
        Expected(Cause.NEW_MEMBER, "third", cooperative=True),
        Expected(Cause.SESSION_EXPIRED, "third", "session timeout", cooperative=True),
        Expected(Cause.MEMBER_LEFT, "first", "left", outcome="empty", cooperative=True),
    ]


def survived(library: str) -> list[Expected]:
    return [comes(library, "first"), comes(library, "second"), *ends(library, "second", "first")]


LIBRARIES = ("java", "confluent", "kafka-python", "aiokafka", "kcoord")
EXACT = ("java", "confluent", "kcoord")
"""The libraries that do all of what the situations ask for."""
Situation = tuple[Callable[..., Figures], str, list[Expected]]
PLAYED: dict[str, Situation] = {
    **{f"poll-{library}": (polls_too_late, library, late_poll(library)) for library in LIBRARIES},
    **{f"stop-{library}": (stands_still, library, standstill(library)) for library in LIBRARIES},
    **{f"static-{library}": (static, library, statics(library)) for library in EXACT},
    **{f"changes-{library}": (changes, library, changed(library)) for library in EXACT},
    **{f"late-{library}": (commits_late, library, late_commit(library)) for library in EXACT},
    "unsubscribed": (unsubscribes, "confluent", [*RESUMED, *ends("confluent", "second", "first")]),
    "migration": (migrates, "java", MIGRATION),
    "full": (overflows, "confluent", [*THREE, *ends("confluent", "first", "second", "third")]),
    "modern-java": (modern, "java", modern_life("java")),
    "modern-confluent": (modern, "confluent", modern_life("confluent")),
}
NEWER = {"modern-confluent"}
"""Played on a newer broker: librdkafka speaks ConsumerGroupHeartbeat from version 1, which Kafka 3.9 does not have; it
sends nothing at all there, and says nothing."""
LOST: dict[str, Situation] = {
    **{f"lost-stable-{x}": (loss_of_a_stable_group, x, survived(x)) for x in EXACT},
    **{
        f"lost-join-{library}": (
            loss_of_a_join,
            library,
            [
                comes(library, "first"),
                comes(library, "second", outcome="interrupted", cooperative=None),
                Expected(
                    Cause.COORDINATOR_FAILOVER,
                    "second",
                    reason=stated(library, "need to re-join with the given member-id"),
                ),
                *ends(library, "second", "first"),
            ],
        )
        for library in EXACT
    },
    "lost-member": (
        loss_of_members,
        "confluent",
        [
            comes("confluent", "first"),
            comes("confluent", "second"),
            Expected(Cause.SESSION_EXPIRED, "second", "session timeout"),
            *ends("confluent", "first"),
        ],
    ),
    "lost-size": (
        loss_with_a_smaller_limit,
        "java",
        [
            *(comes("java", name) for name in ("first", "second", "third")),
            Expected(Cause.GROUP_TOO_LARGE, ANY, "group.max.size", ANY),
            *ends("java", ANY, ANY),
        ],
    ),
}


@dataclass(frozen=True)
class Explained:
    """Histories by group: of the recording, and of the broker's own log."""

    wire: dict[str, GroupHistory]
    log: dict[str, GroupHistory]
    losses: list[str]


def play(folder: Path, classes: Path, names: Sequence[str]) -> Explained:
    """Play situations by name, side by side: on one broker, on a newer one, and on one that is killed meanwhile."""
    clients = {
        "java": java_client(classes),
        "confluent": CONFLUENT,
        "kafka-python": KAFKA_PYTHON,
        "aiokafka": AIOKAFKA,
        "kcoord": KCOORD,
    }
    losing = [name for name in names if name in LOST]
    kept = [name for name in names if name in PLAYED and name not in NEWER]
    halls = {"kept": kept, "newer": [name for name in names if name in NEWER], "lost": losing}
    halls = {hall: playing for hall, playing in halls.items() if playing}
    loss = Loss(Barrier(len(losing) + 1))
    stages: dict[str, Stage] = {}

    def opened(hall: str) -> KafkaBroker:
        broker = KafkaBroker(folder / f"broker-{hall}", PROPERTIES, NEWER_KAFKA if hall == "newer" else KAFKA)
        stack.enter_context(broker)
        recorder = stack.enter_context(Recorder(upstream=broker.address, folder=folder / f"recording-{hall}"))
        create_topics(broker.address, [f"{kind}-{name}" for kind in ("orders", "bills") for name in halls[hall]])
        stages.update({name: Stage(name, broker.address, recorder.address, clients) for name in halls[hall]})
        return broker

    def whole(name: str, *about: Any) -> Figures:
        act, library, _ = {**PLAYED, **LOST}[name]
        with stages[name].played():
            try:
                act(stages[name], library, *about)
            except BaseException:
                loss.near.abort()  # no one waits for the member that does not come
                raise
        return {}

    def lose() -> Figures:
        with suppress(BrokenBarrierError):
            loss.near.wait(120)
            brokers["lost"].restart({"group.max.size": "2"})
        loss.back.set()
        return {}

    with ExitStack() as stack:
        with ThreadPoolExecutor(len(halls)) as threads:
            brokers = dict(zip(halls, threads.map(opened, halls), strict=True))
        playing = {name: partial(whole, name) for name in names if name in PLAYED}
        playing |= {name: partial(whole, name, loss) for name in losing}
        at_once({**playing, "the loss": lose})
    wire = analyze(sorted(folder.glob("recording-*")))
    log = analyze(sorted(folder.glob("broker-*/__consumer_offsets-0")))
    losses = [f"{loss.source} {loss.position}: {loss.what}" for loss in [*wire.losses, *log.losses]]
    return Explained(
        {history.group.group_id: history for history in wire.histories},
        {history.group.group_id: history for history in log.histories},
        losses,
    )


@pytest.fixture(scope="module")
def explained(tmp_path_factory: pytest.TempPathFactory) -> Explained:
    """In two waves: all at once are more processes than two processors start within a client's patience."""
    classes = tmp_path_factory.mktemp("classes")
    names = [*PLAYED, *LOST]
    ours = [name for name in names if name.endswith("-kcoord")]
    theirs = [name for name in names if name not in ours]
    first, second = (play(tmp_path_factory.mktemp("explained"), classes, wave) for wave in (theirs, ours))
    return Explained(first.wire | second.wire, first.log | second.log, first.losses + second.losses)


def test_nothing_was_lost(explained: Explained) -> None:
    assert explained.losses == []


def is_extra(rebalance: Rebalance, before: Rebalance | None, library: str) -> bool:
    """What clients may do of their own, as it happens: kafka-python's leader joins once more after it was assigned, at
    the latest when its metadata is there; a leader that learns of a topic by another's subscription sees its metadata
    change a moment later."""
    if library == "kafka-python" and rebalance.cause in (Cause.LEADER_REJOINED, Cause.TOPICS_CHANGED):
        return True
    learns = before is not None and before.cause in (Cause.TOPICS_CHANGED, Cause.SUBSCRIPTION_CHANGED)
    return learns and rebalance.cause == Cause.TOPICS_CHANGED


@pytest.mark.parametrize("name", [*PLAYED, *LOST])
def test_the_recording_shows_what_was_done(name: str, explained: Explained) -> None:
    _, library, expected = {**PLAYED, **LOST}[name]
    rebalances = explained.wire[name].rebalances
    spare = len(rebalances) - len(expected)
    found = []
    for before, r in zip([None, *rebalances], rebalances, strict=False):
        if spare and is_extra(r, before, library):
            spare -= 1
            continue
        reason = next((one.reason for one in expected if one.reason and one.reason in (r.reason or "")), r.reason)
        why = r.removed[0].why if r.removed else None
        found.append(Expected(Cause(r.cause), r.client_id, why, reason, r.outcome, r.cooperative))
    for index, (one, other) in enumerate(zip(found, expected, strict=False)):
        client, reason = (
            ANY if want == ANY else got for got, want in ((one.client, other.client), (one.reason, other.reason))
        )
        found[index] = replace(one, client=client, reason=reason)
    assert found == expected


def test_members_are_named_by_their_software(explained: Explained) -> None:
    for library, software in (("java", f"apache-kafka-java {KAFKA}"), ("kcoord", f"kcoord-wire {kw.__version__}")):
        for name in (f"poll-{library}", f"lost-stable-{library}"):
            assert {member.software for member in explained.wire[name].members} == {software}


@pytest.mark.parametrize("name", [*PLAYED, *LOST])
def test_the_log_shows_the_same_generations(name: str, explained: Explained) -> None:
    wire = {
        g.generation_id: g.members for g in explained.wire[name].generations if g.stable_ns is not None and g.members
    }
    log = {g.generation_id: g.members for g in explained.log[name].generations if g.members}
    assert log == wire


@pytest.mark.parametrize("name", [*PLAYED, *LOST])
def test_the_log_agrees_where_it_is_certain(name: str, explained: Explained) -> None:
    """It does not show that a coordinator was lost; how a member went is a guess of low confidence."""
    wire = {r.generation_id: r for r in explained.wire[name].rebalances if r.cause != Cause.COORDINATOR_FAILOVER}
    certain = [r for r in explained.log[name].rebalances if r.confidence >= 0.8 and r.generation_id in wire]
    assert certain
    for found in certain:
        seen = wire[found.generation_id]
        assert (found.cause, found.client_id, found.cooperative) == (seen.cause, seen.client_id, seen.cooperative)


def test_findings(explained: Explained) -> None:
    found = {
        (name, finding.detector, finding.subject)
        for name, history in explained.wire.items()
        for finding in history.findings
        if finding.severity == "critical" and name != "lost-size"  # its third member may give up before it is refused
    }
    assert found == {
        ("full", "refused", "fourth"),
        ("late-java", "commit_after_revoke", "first"),
        ("late-confluent", "commit_after_revoke", "first"),
        ("late-kcoord", "commit_after_revoke", "first"),
    }
