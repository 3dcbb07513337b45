"""Logs that Kafka 3.9, 4.0 and 4.1 wrote of real consumers, explained as tests/data/consumer_groups/README.md says."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.model import GroupHistory
from kcoord_wire.forensics.records.reader import log_histories
from kcoord_wire.forensics.sources.frames import read_log
from tests.support.offsets_log import CONSUMER_GROUPS

MS = 1_000_000
NEW, LEFT, EXPIRED = Cause.NEW_MEMBER, Cause.MEMBER_LEFT, Cause.SESSION_EXPIRED
TOPICS, SUBSCRIBED = Cause.TOPICS_CHANGED, Cause.SUBSCRIPTION_CHANGED

BILLING = [
    (NEW, "billing-1"),
    (NEW, "billing-2"),
    (NEW, "billing-3"),
    (LEFT, "billing-2"),
    (LEFT, "billing-3"),
    (SUBSCRIBED, "billing-1"),
    (LEFT, "billing-1"),
]
SHIPPING = [
    (NEW, "shipping-1"),
    (NEW, "shipping-2"),
    (Cause.COOPERATIVE_FOLLOW_UP, "shipping-1"),
    (LEFT, "shipping-2"),
]
AUDIT = [
    (NEW, "audit-1"),
    (NEW, "audit-2"),
    (LEFT, "audit-2"),
    (NEW, "audit-3"),
    (LEFT, "audit-3"),
    (SUBSCRIBED, "audit-1"),
    (TOPICS, None),
    (LEFT, "audit-1"),
]
EXPECTED: dict[tuple[str, str], list[tuple[Cause, str | None]]] = {
    ("3.9.2", "billing"): BILLING,
    ("3.9.2", "shipping"): SHIPPING,
    ("3.9.2", "ledger"): [(NEW, "ledger-1"), (NEW, "ledger-2")],
    ("3.9.2", "returns"): [(NEW, "returns-1"), (TOPICS, "returns-1")],
    ("3.9.2", "scratch"): [(NEW, "scratch-1"), (LEFT, "scratch-1")],
    ("4.0.0", "audit"): AUDIT,
    ("4.0.0", "vault"): [(NEW, "vault-1"), (NEW, "vault-2")],
    ("4.0.0", "moving"): [(NEW, "moving-1"), (NEW, "moving-2"), (LEFT, "moving-1")],
    ("4.0.0", "back"): [(NEW, "back-1"), (NEW, "back-2"), (LEFT, "back-2")],
    ("4.1.0", "audit"): AUDIT,
    ("4.1.0", "vault"): [(NEW, "vault-1"), (NEW, "vault-2")],
}


def records(version: str) -> pa.Table:
    (segment,) = (CONSUMER_GROUPS / f"kafka-{version}").glob("*/*.log")
    return pa.Table.from_batches(read_log(segment))


@cache
def histories(version: str) -> dict[str, GroupHistory]:
    return {history.group.group_id: history for history in log_histories(records(version))}


def happened(version: str, group: str) -> list[dict[str, Any]]:
    lines = (CONSUMER_GROUPS / f"kafka-{version}" / "happened.jsonl").read_text().splitlines()
    return [item for item in map(json.loads, lines) if item["group"] == group]


def owners(history: GroupHistory, at: int) -> dict[tuple[str, int], str | None]:
    return {
        (item.topic, item.partition): item.client_id
        for item in history.ownership
        if item.from_ns <= at and (item.to_ns is None or at < item.to_ns)
    }


def test_the_readme_names_every_group() -> None:
    readme = (CONSUMER_GROUPS / "README.md").read_text()
    for version, group in EXPECTED:
        assert f"| `{group}` |" in readme
        assert version in readme
    assert {(version, group) for version in ("3.9.2", "4.0.0", "4.1.0") for group in histories(version)} == {*EXPECTED}


@pytest.mark.parametrize(("version", "group"), EXPECTED)
def test_every_rebalance_has_its_cause(version: str, group: str) -> None:
    history = histories(version)[group]
    causes = [(rebalance.cause, rebalance.client_id) for rebalance in history.rebalances]
    assert causes == EXPECTED[version, group]
    assert [rebalance.number for rebalance in history.rebalances] == [*range(1, len(causes) + 1)]
    for rebalance in history.rebalances:
        assert 0 < rebalance.confidence <= 1
        assert rebalance.evidence
        assert rebalance.detail
        if rebalance.client_id is not None:
            assert rebalance.client_host == "127.0.0.1"


@pytest.mark.parametrize(("version", "group"), EXPECTED)
def test_causes_follow_the_script(version: str, group: str) -> None:
    """Each rebalance that a consumer set off comes after what was done to that consumer, and soon."""
    done = {NEW: {"starts"}, LEFT: {"leaves", "is killed"}, EXPIRED: {"is killed"}}
    for rebalance in histories(version)[group].rebalances:
        times = [
            item["time_ms"] * MS
            for item in happened(version, group)
            if item["client"] == rebalance.client_id and item["what"] in done.get(rebalance.cause, ())
        ]
        if times:
            assert any(0 < rebalance.started_ns - at < 12_000 * MS for at in times), rebalance


@pytest.mark.parametrize(("version", "group"), EXPECTED)
def test_owners_are_those_of_the_clients(version: str, group: str) -> None:
    """After every rebalance each partition has one owner, and those of the last are owners still."""
    history = histories(version)[group]
    for rebalance in history.rebalances:
        assert rebalance.outcome in ("stable", "empty")
        assert rebalance.ended_ns is not None
        held = owners(history, rebalance.ended_ns)
        if rebalance.outcome == "empty":
            assert held == {}
            continue
        (generation,) = [item for item in history.generations if item.generation_id == rebalance.generation_id]
        assert len(held) == generation.partitions
        assert len({*held.values()}) <= generation.members == rebalance.members_after
    for item in history.ownership:
        assert item.to_ns is None or item.from_ns < item.to_ns
    for pause in history.pauses:
        assert pause.to_ns is None or pause.from_ns < pause.to_ns
        assert (pause.topic, pause.partition) not in owners(history, pause.from_ns)
    for one, other in pairwise(history.states):
        assert one.to_ns == other.from_ns


def test_closed_and_killed_members_differ() -> None:
    """A member that commits on closing cannot have timed out; few commits of a killed one show neither."""
    for version, group, client in (("3.9.2", "billing", "billing-2"), ("4.0.0", "audit", "audit-2")):
        (closed,) = [life for life in histories(version)[group].members if life.client_id == client]
        assert closed.why_left == "left"
    for version, group, client in (("3.9.2", "billing", "billing-3"), ("4.1.0", "audit", "audit-3")):
        (killed,) = [life for life in histories(version)[group].members if life.client_id == client]
        assert killed.why_left == "left or timed out"
        (rebalance,) = [
            item for item in histories(version)[group].rebalances if item.removed and item.client_id == client
        ]
        assert rebalance.confidence == 0.5
        assert "the log does not show" in rebalance.detail


def test_two_rounds() -> None:
    second, third = histories("3.9.2")["shipping"].rebalances[1:3]
    assert second.cooperative
    assert (second.moved, third.moved, third.moved_needlessly) == (0, 2, 0)
    assert second.paused_ms is not None
    assert second.paused_ms > 0
    assert [pause.rebalance for pause in histories("3.9.2")["shipping"].pauses] == [2, 2]
    assert not any(rebalance.cooperative for rebalance in histories("3.9.2")["billing"].rebalances)


def test_static_members_come_back_without_a_rebalance() -> None:
    for version, group in (("3.9.2", "ledger"), ("4.0.0", "vault"), ("4.1.0", "vault")):
        history = histories(version)[group]
        first, second, back = history.members
        assert (second.why_left, back.instance_id) == ("replaced", second.instance_id)
        assert second.left_ns == back.joined_ns
        assert first.left_ns is back.left_ns is None
        assert history.group.rebalances == 2
    away = [pause for pause in histories("4.0.0")["vault"].pauses if pause.rebalance is None]
    assert len(away) == 2, "a member of the newer protocol says that it goes for a while"


def test_conversions_keep_members_and_what_they_hold() -> None:
    moving, back = (histories("4.0.0")[name] for name in ("moving", "back"))
    assert [life.protocol for life in moving.members] == ["classic", "consumer"]
    assert [(life.left_ns is None, life.why_left) for life in moving.members] == [(False, "left"), (True, None)]
    assert [(life.left_ns is None, life.why_left) for life in back.members] == [(True, None), (False, "left")]
    kept = [
        item for item in back.ownership if item.client_id == "back-1" and item.to_ns is None and item.generation_id == 1
    ]
    assert [item.partition for item in kept] == [0, 1], "held from the first generation to the end"


def test_durations_of_a_reconciliation() -> None:
    second = histories("4.0.0")["audit"].rebalances[1]
    assert second.duration_ms is not None
    assert second.joining_ms is not None
    assert second.syncing_ms is not None
    assert second.duration_ms == second.joining_ms + second.syncing_ms > 0
    assert (second.moved, second.last_client_id) == (2, "audit-1")
    assert second.paused_ms is not None
    assert 0 < second.paused_ms < 2 * 2 * second.duration_ms


def test_topics_have_names_where_records_have_ids() -> None:
    assert {item.topic for item in histories("4.1.0")["audit"].ownership} == {"orders", "audited"}


def test_commits() -> None:
    for version in ("3.9.2", "4.0.0", "4.1.0"):
        for history in histories(version).values():
            assert history.group.commits == sum(row.commits for row in history.commits) > 0
            for row in history.commits:
                assert row.first_offset <= row.last_offset
                assert history.group.first_ns - 60_000 * MS < row.from_ns <= history.group.last_ns
                assert row.from_ns % (60_000 * MS) == 0
    assert any("forgotten" in text for text in histories("3.9.2")["scratch"].group.blind)
