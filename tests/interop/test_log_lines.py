"""Logs that real brokers and clients write now: what their lines say is what was done."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcoord_wire.forensics import analyze
from kcoord_wire.forensics.causes import Cause
from tests.support.clients.members import CONFLUENT
from tests.support.kafka_broker import KAFKA, KafkaBroker, create_topics
from tests.support.stage import Stage


@pytest.mark.parametrize(("version", "protocols"), [(KAFKA, "classic"), ("4.1.0", "classic,consumer")])
def test_a_brokers_own_log_tells_what_was_done(version: str, protocols: str, tmp_path: Path) -> None:
    """The old coordinator of 3.9, and the new one of 4.1."""
    folder = tmp_path / f"lines-{version}"
    name = "logged"
    properties = {"num.partitions": "2", "group.coordinator.rebalance.protocols": protocols}
    with KafkaBroker(folder, properties, version) as broker:
        stage = Stage(name, broker.address, broker.address, {"confluent": CONFLUENT})
        create_topics(broker.address, [stage.topic])
        with stage.played():
            first = stage.joins("confluent", "first", session_ms=6_000)
            stage.waits(lambda: bool(first.now_owned), "assigned")
            second = stage.joins("confluent", "second", session_ms=6_000)
            stage.waits(lambda: bool(second.now_owned) and len(stage.described()[1]) > 1, "assigned to both")
            second.kill()
            stage.waits(lambda: stage.described() == ("Stable", {"first": 2}), "gave all to the one that is left")
            first.leave()
            stage.waits(lambda: stage.described()[0] == "Empty", "empty")
    [history] = analyze([broker.log], groups=[name]).histories
    assert [(row.cause, row.client_id) for row in history.rebalances] == [
        (Cause.NEW_MEMBER, "first"),
        (Cause.NEW_MEMBER, "second"),
        (Cause.SESSION_EXPIRED, "second"),
        (Cause.MEMBER_LEFT, "first"),
    ]
    assert [row.outcome for row in history.rebalances] == ["stable", "stable", "stable", "empty"]
    assert [row.members_after for row in history.rebalances[:3]] == [1, 2, 1]
