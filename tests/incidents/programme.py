"""The incidents that are made: halls, and in each the runs side by side."""

from __future__ import annotations

from collections.abc import Set
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.incidents import changes, lateness, networks, outages, refusals, scenes, streams
from tests.incidents.hall import Hall, Plan, Play
from tests.support.clients.java import java_client
from tests.support.clients.kafkajs import kafkajs_client
from tests.support.clients.members import AIOKAFKA, CONFLUENT, KAFKA_PYTHON, Client
from tests.support.go_programs import build_go_programs

NEWER: Final = "4.1.0"


def plan(kind: str, play: Play, library: str, suffix: str = "", **options: Any) -> Plan:
    name = "-".join(filter(None, (kind.replace(" ", "-"), library, suffix)))
    return Plan(name, kind, play, library, options)


def through(library: str, session_ms: int, kind: str = "broker outage", suffix: str = "", **options: Any) -> Plan:
    more = suffix or f"{session_ms // 1000}s"
    return plan(kind, outages.lives_through, library, more, session_ms=session_ms, **options)


MODERN: Final[dict[str, Any]] = {
    "group_protocol": "consumer",
    "partition_assignment_strategy": None,
    "session_timeout_ms": None,
    "heartbeat_interval_ms": None,
}
"""The consumer protocol (KIP-848); its session timeout is the broker's, 4 s."""
_PROGRAMS: Final = {"franz-go": "franz", "sarama": "sarama"}
GO: Final = frozenset(_PROGRAMS)
KAFKAJS: Final = {"assignor": "RoundRobinAssigner"}
ACLS: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
LIMIT: Final = 6
"""One more than a deploy has members: Kafka 4.1 refuses a static member that replaces itself in a full group."""
QUICK_ELECTION: Final = {"broker.session.timeout.ms": "6000", "broker.heartbeat.interval.ms": "1000"}


def halls() -> list[Hall]:
    """Fresh ones, for the brokers of each are started only once."""
    return [*_of_clients(), *_of_applications(), *_of_brokers()]


def _of_clients() -> list[Hall]:
    return [
        Hall(
            "clients-1",
            [
                plan("healthy", scenes.is_healthy, "confluent"),
                plan("killed", scenes.is_killed, "confluent"),
                plan("frozen", scenes.freezes, "confluent", session_ms=4_000, frozen_ms=8_000),
                plan("frozen shortly", scenes.freezes, "aiokafka", session_ms=10_000, frozen_ms=4_000),
                plan("crash loop", scenes.crashes_in_a_loop, "confluent"),
                plan("max poll", scenes.polls_late, "kafka-python"),
                plan("fenced", scenes.is_fenced, "confluent"),
            ],
        ),
        Hall(
            "clients-2",
            [
                plan("healthy", scenes.is_healthy, "aiokafka"),
                plan("healthy", scenes.is_healthy, "kafkajs", **KAFKAJS),
                plan("killed", scenes.is_killed, "kafkajs", session_ms=10_000, **KAFKAJS),
                plan("killed", scenes.is_killed, "java", session_ms=6_000),
                plan("frozen", scenes.freezes, "kafka-python", session_ms=4_000, frozen_ms=8_000),
                plan("frozen shortly", scenes.freezes, "java", session_ms=10_000, frozen_ms=3_000),
                plan("max poll", scenes.polls_late, "java"),
            ],
            NEWER,
        ),
        Hall(
            "clients-3",
            [
                plan("healthy", scenes.is_healthy, "confluent", "848", **MODERN),
                plan("killed", scenes.is_killed, "confluent", "848", session_ms=4_000, **MODERN),
                plan("frozen", scenes.freezes, "confluent", "848", session_ms=4_000, frozen_ms=8_000, **MODERN),
                plan("crash loop", scenes.crashes_in_a_loop, "aiokafka", lives_ms=3_500),
                plan("max poll", scenes.polls_late, "confluent"),
                plan("fenced", scenes.is_fenced, "kafka-python"),
                plan("fenced", scenes.is_fenced, "java"),
            ],
            NEWER,
        ),
        Hall(
            "cut",
            [
                plan("cut off", scenes.is_cut_off, "confluent"),
                plan("killed", scenes.is_killed, "aiokafka", session_ms=5_000),
                plan("frozen", scenes.freezes, "aiokafka", session_ms=4_000, frozen_ms=7_000),
                plan("crash loop", scenes.crashes_in_a_loop, "confluent", "64s", lives_ms=8_000),
                plan("crash loop", scenes.crashes_in_a_loop, "kafka-python", "10s", lives_ms=6_000, session_ms=10_000),
            ],
            hosted=True,
        ),
        Hall(
            "connect",
            [
                plan("healthy", scenes.loses_a_worker, "connect", dies=False),
                plan("killed", scenes.loses_a_worker, "connect", dies=True),
            ],
        ),
        Hall(
            "streams",
            [
                plan("streams killed", streams.loses_an_instance, "streams", session_ms=6_000),
                plan("streams restarted", streams.restarts_instances, "streams", session_ms=6_000, count=1),
            ],
        ),
        Hall(
            "networks",
            [
                plan(
                    "connection dropped",
                    networks.loses_its_connections,
                    "confluent",
                    session_ms=4_000,
                    timeout_ms=8_000,
                ),
                plan("lossy network", networks.loses_packets, "java", session_ms=3_000, share=0.6, lasts_ms=15_000),
            ],
            hosted=True,
        ),
        Hall(
            "recorded",
            [
                plan("healthy", scenes.is_healthy, "confluent", "recorded"),
                plan("killed", scenes.is_killed, "confluent", "recorded"),
                plan("frozen", scenes.freezes, "aiokafka", "recorded", session_ms=4_000, frozen_ms=8_000),
                plan("crash loop", scenes.crashes_in_a_loop, "kafka-python", "recorded", lives_ms=3_500),
            ],
            point="recorder",
        ),
    ]


def _of_applications() -> list[Hall]:
    return [
        Hall(
            "applications-1",
            [
                plan("deploy", scenes.deploys, "confluent", static=False),
                plan("subscription", scenes.subscribes_anew, "confluent"),
                plan("assignors", scenes.mixes_assignors, "kafka-python"),
                plan("offset reset", scenes.resets_offsets, "confluent"),
                plan("two applications", scenes.serves_two_applications, "confluent"),
                plan("deleted", scenes.is_deleted_and_formed_again, "confluent"),
                plan("stopped reading", scenes.stops_reading, "confluent", count=2),
            ],
        ),
        Hall(
            "applications-2",
            [
                plan("static deploy", scenes.deploys, "confluent", static=True),
                plan("too many", scenes.overflows, "confluent", limit=LIMIT),
                plan("slow leader", scenes.sleeps_in_the_assignor, "kafka-python"),
                plan("retention", scenes.retention_resets, "confluent"),
                plan("lag", scenes.lags, "confluent"),
                plan("versions", scenes.asks_for_the_impossible, "none"),
                plan("tls", scenes.speaks_tls, "confluent"),
            ],
            NEWER,
            properties={"group.max.size": str(LIMIT)},
        ),
        Hall(
            "applications-3",
            [
                plan("deploy", scenes.deploys, "aiokafka", static=False),
                plan("slow leader", scenes.sleeps_in_the_assignor, "aiokafka"),
                plan("offset reset", scenes.resets_offsets, "kafka-python", to=10),
                plan("two applications", scenes.serves_two_applications, "kafka-python"),
                plan("deleted", scenes.is_deleted_and_formed_again, "aiokafka"),
                plan("stopped reading", scenes.stops_reading, "kafka-python", "one", count=1),
                plan("stopped reading", scenes.stops_reading, "confluent", "one", count=1),
                plan("subscription", scenes.subscribes_anew, "java"),
            ],
            NEWER,
        ),
        Hall(
            "applications-4",
            [
                plan("protocol changed", changes.changes_protocol, "confluent", to=MODERN, count=2, stays_ms=1_000),
                plan("new topics", changes.gains_topics, "confluent", count=1, every_ms=2_000),
                plan("new topics", changes.gains_topics, "confluent", "by-broker", count=1, every_ms=2_000, **MODERN),
                plan("outside commit refused", changes.refuses_offsets, "confluent", times=2, to=0, waits_ms=1_000),
                plan(
                    "slow handler",
                    lateness.lets_the_group_wait,
                    "sarama",
                    linger_ms=9_000,
                    poll_ms=5_000,
                    session_ms=30_000,
                ),
                plan(
                    "blocked loop",
                    lateness.blocks_its_loop,
                    "kafkajs",
                    session_ms=6_000,
                    stall_ms=9_000,
                    blocks=True,
                    **KAFKAJS,
                ),
                plan("poll storm", lateness.polls_late_in_turn, "java", poll_ms=4_000, stall_ms=6_000),
            ],
            NEWER,
            properties={"group.consumer.migration.policy": "bidirectional"},
        ),
        Hall(
            "logins",
            [
                plan("password refused", refusals.has_a_wrong_password, "confluent", lasts_ms=4_000, is_replaced=True),
            ],
            secured="SASL_PLAINTEXT",
        ),
        Hall(
            "acl",
            [
                plan("group refused", scenes.is_refused, "confluent", of="group"),
                plan("group refused", scenes.is_refused, "java", of="group"),
                plan("topic refused", scenes.is_refused, "confluent", of="topic"),
                plan("topic refused", scenes.is_refused, "kafka-python", of="topic"),
            ],
            properties=ACLS,
        ),
    ]


def _of_brokers() -> list[Hall]:
    moved = partial(through, kind="coordinator moved")
    return [
        Hall(
            "outage-kill",
            [through("confluent", 6_000), through("aiokafka", 60_000), through("kafka-python", 6_000)],
            fault=partial(outages.is_out, how="kill", seconds=5),
        ),
        Hall(
            "outage-kill-newer",
            [
                through("java", 45_000, suffix="45s-newer"),
                through("confluent", 60_000, suffix="60s-newer"),
                through("kafkajs", 10_000, suffix="10s-newer", **KAFKAJS),
                through("confluent", 4_000, suffix="848", **MODERN),
            ],
            NEWER,
            fault=partial(outages.is_out, how="kill", seconds=2),
        ),
        Hall(
            "outage-freeze-short",
            [through(x, 10_000, suffix="freeze-short") for x in ("confluent", "aiokafka", "kafka-python", "java")],
            fault=partial(outages.is_out, how="freeze", seconds=4),
        ),
        Hall(
            "outage-freeze-long",
            [through(x, 6_000, suffix="freeze-long") for x in ("confluent", "aiokafka", "kafka-python")],
            NEWER,
            fault=partial(outages.is_out, how="freeze", seconds=12),
        ),
        Hall(
            "outage-restart",
            [
                through(x, ms, suffix="restart")
                for x, ms in (("confluent", 6_000), ("java", 45_000), ("aiokafka", 10_000))
            ],
            fault=partial(outages.is_out, how="stop", seconds=1),
        ),
        Hall(
            "outage-recorded",
            [through(x, 10_000, suffix="recorded") for x in ("confluent", "aiokafka")],
            fault=partial(outages.is_out, how="kill", seconds=3),
            point="recorder",
        ),
        Hall(
            "moves-shutdown",
            [moved(x, 20_000, suffix="shutdown") for x in ("confluent", "aiokafka", "java")],
            nodes=3,
            properties=QUICK_ELECTION,
            fault=partial(outages.shut_down_one, kills=False),
        ),
        Hall(
            "moves-kill",
            [moved(x, 20_000, suffix="kill") for x in ("confluent", "kafka-python")],
            NEWER,
            nodes=3,
            properties=QUICK_ELECTION,
            fault=partial(outages.shut_down_one, kills=True),
        ),
        Hall(
            "moves-reassign",
            [moved(x, 20_000, suffix="reassign") for x in ("confluent", "aiokafka", "kafka-python")],
            NEWER,
            nodes=2,
            fault=outages.reassign,
        ),
    ]


def clients(classes: Path, libraries: Set[str]) -> dict[str, Client]:
    """These client libraries; Java's program is compiled into the folder."""
    found = {"confluent": CONFLUENT, "kafka-python": KAFKA_PYTHON, "aiokafka": AIOKAFKA}
    if "java" in libraries:
        found["java"] = java_client(classes)
    if "kafkajs" in libraries:
        found["kafkajs"] = kafkajs_client()
    if libraries & GO:
        programs = build_go_programs()
        found |= {name: Client(name, (str(programs / program),)) for name, program in _PROGRAMS.items()}
    return found


def libraries_of(hall: Hall) -> set[str]:
    return {plan.library for plan in hall.plans}
