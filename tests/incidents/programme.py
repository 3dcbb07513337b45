"""The incidents that are made: halls, and in each the runs side by side."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.incidents import outages, scenes
from tests.incidents.hall import Hall, Plan, Play
from tests.support.clients.members import AIOKAFKA, CONFLUENT, KAFKA_PYTHON, Client

__all__ = ["clients", "halls"]

NEWER: Final = "4.1.0"


def plan(kind: str, play: Play, library: str, suffix: str = "", **options: Any) -> Plan:
    name = "-".join(filter(None, (kind.replace(" ", "-"), library, suffix)))
    return Plan(name, kind, play, library, options)


def through(library: str, session_ms: int, kind: str = "broker outage", suffix: str = "", **options: Any) -> Plan:
    more = suffix or f"{session_ms // 1000}s"
    return plan(kind, outages.lives_through, library, more, session_ms=session_ms, **options)


def halls() -> list[Hall]:
    """Fresh ones, for brokers are started only once in each."""
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
            "outage-kill",
            [through("confluent", 6_000), through("aiokafka", 60_000), through("kafka-python", 6_000)],
            fault=partial(outages.kill, down_seconds=5),
        ),
    ]


def clients(classes: Path) -> dict[str, Client]:
    """The client libraries; Java's program is compiled into the folder."""
    python = {client.name.removesuffix("-kafka"): client for client in (CONFLUENT, KAFKA_PYTHON, AIOKAFKA)}
    return python
