"""Exchanges written by hand, and what a history makes of them: each rule of the replay in its smallest case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from kcoord_wire.forensics.model import (
    Cause,
    Departure,
    Exchange,
    GroupHistory,
    LeaderAssignment,
    MemberSubscription,
    Offered,
    OffsetsCommitted,
    Rebalance,
    Subscription,
    TopicPartitions,
    TopicSighting,
    table_of,
)
from kcoord_wire.forensics.wire.history import wire_history

MS = 1_000_000
START = 1_700_000_000_000 * MS
Given = Mapping[str, Sequence[int]]


def at(ms: float) -> int:
    """A moment of a script, as a history has it."""
    return START + int(ms * MS)


def parts(given: Given | None) -> list[TopicPartitions] | None:
    return None if given is None else [TopicPartitions(topic, list(numbers)) for topic, numbers in given.items()]


class Script:
    """Exchanges of the group ``billing``, one call each; times in ms. A client `c1` speaks for the member ``c1-id``."""

    def __init__(self) -> None:
        self.rows: list[Exchange] = []
        self.topics: list[TopicSighting] = []
        self.session_ms = 6_000
        self.rebalance_ms = 10_000
        self._seq = 0

    def add(self, api: str, client: str, asked: float, answered: float | None, **fields: Any) -> Exchange:
        """Any exchange."""
        self._seq += 2
        values: dict[str, Any] = {
            "group_id": "billing", "api": api, "api_version": 5, "source": "script", "seq": self._seq,
            "answer_seq": None if answered is None else self._seq + 1,
            "connection": fields.pop("connection", f"10.0.0.{client.lstrip('c')}:4000-10.0.9.9:9092#{client}"),
            "client_id": client, "client_host": f"10.0.0.{client.lstrip('c')}", "asked_ns": at(asked),
            "answered_ns": None if answered is None else at(answered),
            "error_code": None if answered is None else 0, "member_id": f"{client}-id",
        }  # fmt: skip
        row = Exchange(**{**values, **fields})
        self.rows.append(row)
        return row

    def subscription(self, topics: Sequence[str] | None, owned: Given | None = None, more: bytes = b"") -> Subscription:
        told = repr((topics, owned)).encode() + more
        return Subscription(None if topics is None else list(topics), parts(owned), None, None, told)

    def join(
        self,
        client: str,
        asked: float,
        answered: float | None,
        generation: int | None = None,
        *,
        leader: str = "c1",
        members: Sequence[str] = (),
        assignors: Sequence[str] = ("range",),
        topics: Sequence[str] | None = ("orders",),
        owned: Given | None = None,
        more: bytes = b"",
        **fields: Any,
    ) -> Exchange:
        """JoinGroup; `members`: clients that the leader is told of."""
        values: dict[str, Any] = {
            "session_timeout_ms": self.session_ms, "rebalance_timeout_ms": self.rebalance_ms,
            "protocol_type": "consumer",
            "offered": [Offered(assignor, self.subscription(topics, owned, more)) for assignor in assignors],
        }  # fmt: skip
        if generation is not None and answered is not None:
            values |= {
                "given_member_id": f"{client}-id", "new_generation_id": generation, "assignor": assignors[0],
                "leader_id": f"{leader}-id",
                "members": [MemberSubscription(f"{name}-id", None, self.subscription(topics)) for name in members],
            }  # fmt: skip
        return self.add("JoinGroup", client, asked, answered, **{**values, **fields})

    def sync(
        self,
        client: str,
        asked: float,
        answered: float | None,
        generation: int,
        given: Given | None = None,
        gives: Mapping[str, Given] | None = None,
        **fields: Any,
    ) -> Exchange:
        """SyncGroup; `given`: what it is answered, `gives`: what it assigns, by client."""
        assignments = [LeaderAssignment(f"{name}-id", parts(part)) for name, part in (gives or {}).items()]
        values = {"generation_id": generation, "assignments": assignments, "assignment": parts(given)}
        return self.add("SyncGroup", client, asked, answered, **{**values, **fields})

    def beat(self, client: str, ms: float, generation: int, error: int = 0, **fields: Any) -> Exchange:
        return self.add("Heartbeat", client, ms, ms, generation_id=generation, error_code=error, **fields)

    def beats(self, client: str, from_ms: int, to_ms: int, generation: int) -> None:
        for ms in range(from_ms, to_ms, 1_000):
            self.beat(client, ms, generation)

    def leave(self, client: str, asked: float, answered: float | None, reason: str | None = None, **more: Any) -> None:
        left = more.pop("left", client)
        error = None if answered is None else more.pop("error", 0)
        departures = [Departure(f"{left}-id", None, reason, error)]
        self.add("LeaveGroup", client, asked, answered, **{"member_id": "", "departures": departures, **more})

    def consumer(
        self, client: str, asked: float, epoch: int, told: int | None, given: Given | None = None, **more: Any
    ) -> None:
        """ConsumerGroupHeartbeat: from an epoch, with the epoch and the assignment in its answer."""
        owned = parts(more.pop("owned", None))
        values = {"generation_id": epoch, "new_generation_id": told, "assignment": parts(given), "owned": owned}
        self.add("ConsumerGroupHeartbeat", client, asked, asked + 1, **{**values, **more})

    def closed(self, client: str, ms: float, connection: str | None = None) -> None:
        name = connection or f"10.0.0.{client.lstrip('c')}:4000-10.0.9.9:9092#{client}"
        self.topics.append(TopicSighting(at(ms), "script", name, client, "", None, 0))

    def saw(self, client: str, ms: float, topic: str, partitions: int) -> None:
        name = f"10.0.0.{client.lstrip('c')}:4001-10.0.9.9:9092#m{client}"
        self.topics.append(TopicSighting(at(ms), "script", name, client, topic, None, partitions))

    def form(self, *clients: str, generation: int = 1, ms: int = 0, owners: Mapping[str, Given] | None = None) -> None:
        """A group of these clients, the first of which leads, that is stable 20 ms after `ms`."""
        owners = owners or {}
        for number, client in enumerate(clients):
            members = clients if client == clients[0] else ()
            self.join(client, ms + number, ms + 10, generation, leader=clients[0], members=members, member_id="")
        for number, client in enumerate(clients):
            gives = {name: owners.get(name, {}) for name in clients} if client == clients[0] else None
            self.sync(client, ms + 11 + number, ms + 20, generation, owners.get(client, {}), gives)

    def tables(self) -> tuple[pa.Table, pa.Table]:
        return table_of(Exchange, self.rows), table_of(TopicSighting, self.topics)

    def history(self) -> GroupHistory:
        return wire_history(*self.tables())

    def causes(self) -> list[Cause]:
        return [Cause(rebalance.cause) for rebalance in self.history().rebalances]

    def last(self) -> Rebalance:
        return self.history().rebalances[-1]


# ---- when a rebalance begins and ends


def test_an_empty_member_id_that_is_answered_79_begins_nothing() -> None:
    script = Script()
    script.join("c1", 0, 1, member_id="", error_code=79, given_member_id="c1-id")
    script.join("c1", 2, 3_002, 1, members=["c1"])
    script.sync("c1", 3_003, 3_004, 1, {"orders": [0]}, {"c1": {"orders": [0]}})
    (only,) = script.history().rebalances
    assert (only.started_ns, only.joined_ns, only.ended_ns) == (at(2), at(3_002), at(3_004))
    assert (only.joining_ms, only.syncing_ms, only.duration_ms) == (3_000.0, 2.0, 3_002.0)
    assert (only.outcome, only.generation_id, only.confidence) == ("stable", 1, 1.0)
    assert [life.member_id for life in script.history().members] == ["c1-id"]


def test_a_trigger_while_members_join_adds_to_the_rebalance_that_goes_on() -> None:
    script = Script()
    script.form("c1")
    script.join("c2", 5_000, 6_000, 2, member_id="")
    script.join("c3", 5_500, 6_000, 2, member_id="")
    script.join("c1", 5_900, 6_000, 2, members=["c1", "c2", "c3"])
    last = script.last()
    assert (last.number, last.generation_id, last.client_id, last.members_before, last.members_after) == (
        2,
        2,
        "c2",
        1,
        3,
    )
    assert "c3 (10.0.0.3) joined" in last.detail
    assert (last.last_client_id, last.late_ms) == ("c1", 400.0)
    assert last.outcome == "open"
    assert "ends in the middle" in " ".join(script.history().group.blind)


def test_a_trigger_before_the_leaders_sync_interrupts() -> None:
    script = Script()
    script.form("c1", "c2")
    script.leave("c2", 1_000, 1_001, "the consumer is being closed")
    script.join("c1", 1_500, 1_500, 2, members=["c1"])
    script.join("c3", 1_600, 2_000, 3, member_id="")
    script.sync("c1", 1_700, 1_700, 2, error_code=27)
    script.join("c1", 1_800, 2_000, 3, members=["c1", "c3"], more=b"!")
    history = script.history()
    assert [each.outcome for each in history.rebalances] == ["stable", "interrupted", "open"]
    assert [each.cause for each in history.rebalances] == [Cause.NEW_MEMBER, Cause.MEMBER_LEFT, Cause.NEW_MEMBER]
    assert history.rebalances[1].ended_ns == at(1_600)
    assert [each.why for each in history.rebalances[1].removed] == ["left"]


def test_a_join_that_is_answered_at_once_is_no_rebalance() -> None:
    script = Script()
    script.form("c1", "c2")
    script.join("c2", 5_000, 5_001, 1)  # unchanged: its answer got lost
    assert script.causes() == [Cause.NEW_MEMBER]


def test_a_static_member_that_comes_back_is_another_life_and_no_rebalance() -> None:
    script = Script()
    for client in ("c1", "c2"):
        script.join(
            client, 0, 10, 1, member_id="", instance_id=f"i-{client}", members=["c1", "c2"] if client == "c1" else ()
        )
    script.sync("c1", 11, 12, 1, {"orders": [0]}, {"c1": {"orders": [0]}, "c2": {"orders": [1]}})
    script.sync("c2", 12, 13, 1, {"orders": [1]}, instance_id="i-c2")
    script.join("c2", 3_000, 3_001, 1, member_id="", instance_id="i-c2", given_member_id="c2-new", connection="b")
    script.sync("c2", 3_002, 3_003, 1, {"orders": [1]}, member_id="c2-new", instance_id="i-c2", connection="b")
    history = script.history()
    assert len(history.rebalances) == 1
    assert [(life.member_id, life.why_left) for life in history.members] == [
        ("c1-id", None), ("c2-id", "replaced"), ("c2-new", None),
    ]  # fmt: skip
    assert [(row.member_id, row.from_ns, row.to_ns) for row in history.ownership if row.partition == 1] == [
        ("c2-id", at(13), at(3_000)), ("c2-new", at(3_003), None),
    ]  # fmt: skip


def test_the_last_member_leaves_an_empty_group() -> None:
    script = Script()
    script.form("c1", owners={"c1": {"orders": [0]}})
    script.leave("c1", 2_000, None)
    last = script.last()
    assert (last.outcome, last.generation_id, last.members_after, last.joined_ns) == ("empty", 2, 0, None)
    assert [state.state for state in script.history().states][-1] == "Empty"


def test_states_follow_each_other_without_a_gap() -> None:
    script = Script()
    script.form("c1", "c2")
    script.leave("c2", 1_000, 1_001)
    script.join("c1", 1_500, 1_500, 2, members=["c1"])
    script.sync("c1", 1_600, 1_601, 2, {}, {"c1": {}})
    states = script.history().states
    assert [state.state for state in states] == [
        "PreparingRebalance", "CompletingRebalance", "Stable", "PreparingRebalance", "CompletingRebalance", "Stable",
    ]  # fmt: skip
    assert all(before.to_ns == after.from_ns for before, after in pairwise(states))
    assert states[-1].to_ns is None
    assert [generation.generation_id for generation in script.history().generations] == [1, 2]
    assert script.history().generations[0].ended_ns == at(1_000)


def test_requests_behind_a_join_that_waits_are_looked_at_after_it() -> None:
    """A broker reads the next request of a connection when the one before is answered."""
    script = Script()
    script.form("c1", "c2")
    script.join("c1", 1_000, 3_000, 2, members=["c1", "c2"])
    script.leave("c1", 2_000, 3_000)
    script.join("c2", 2_999, 3_000, 2)
    script.join("c2", 3_500, 3_500, 3, leader="c2", members=["c2"])
    causes = script.history().rebalances
    assert [each.cause for each in causes] == [Cause.NEW_MEMBER, Cause.LEADER_REJOINED, Cause.MEMBER_LEFT]
    assert causes[1].outcome == "interrupted"


# ---- time that runs out


def test_a_session_runs_out_when_nobody_sees_it_but_the_coordinator() -> None:
    script = Script()
    script.form("c1", "c2")
    script.beats("c1", 1_000, 9_000, 1)
    script.beats("c2", 1_000, 3_000, 1)  # last at 2 s; 6 s later it is gone
    script.beat("c1", 9_000, 1, error=27)
    script.join("c1", 9_001, 9_001, 2, members=["c1"])
    last = script.last()
    assert (last.cause, last.client_id, last.started_ns) == (Cause.SESSION_EXPIRED, "c2", at(8_000))
    assert [(each.client_id, each.why) for each in last.removed] == [("c2", "session timeout")]
    assert last.evidence[0].time_ns == at(2_000)
    assert 0.8 <= last.confidence < 1
    assert [life.why_left for life in script.history().members] == [None, "session timeout"]


def test_who_is_answered_later_has_not_run_out_of_its_session() -> None:
    script = Script()
    script.form("c1", "c2")
    script.beats("c1", 1_000, 30_000, 1)
    script.beats("c2", 20_000, 30_000, 1)  # frames are missing, no more
    assert script.causes() == [Cause.NEW_MEMBER]


def test_who_waits_for_an_answer_is_alive() -> None:
    script = Script()
    script.form("c1", "c2")
    script.beats("c1", 1_000, 9_000, 1)
    script.join("c3", 2_000, 12_000, 2, member_id="")
    script.join("c2", 2_500, 12_000, 2)
    script.beat("c1", 9_000, 1, error=27)
    script.join("c1", 12_000, 12_000, 2, members=["c1", "c2", "c3"])
    last = script.last()
    assert (last.cause, last.removed, last.members_after) == (Cause.NEW_MEMBER, [], 3)


def test_who_does_not_join_in_time_is_removed_and_comes_back() -> None:
    script = Script()
    script.form("c1", "c2")
    script.join("c3", 1_000, 11_000, 2, member_id="")
    script.join("c1", 1_500, 11_000, 2, members=["c1", "c3"])
    for ms in range(2_000, 11_000, 1_000):
        script.beat("c2", ms, 1, error=27)
    script.sync("c1", 11_001, 11_002, 2, {}, {"c1": {}, "c3": {}})
    script.sync("c3", 11_001, 11_002, 2, {})
    script.beat("c2", 11_500, 1, error=25)
    script.join("c2", 11_600, 12_500, 3, member_id="", given_member_id="c2-again")
    script.join("c1", 12_400, 12_500, 3, members=["c1", "c3"])
    history = script.history()
    assert [(each.client_id, each.why) for each in history.rebalances[1].removed] == [("c2", "rebalance timeout")]
    assert history.rebalances[2].cause == Cause.REBALANCE_TIMEOUT
    assert "missed the join of generation 2" in history.rebalances[2].detail


def test_a_sync_that_does_not_come_in_time() -> None:
    script = Script()
    script.session_ms = 60_000
    script.form("c1", "c2")
    script.leave("c2", 500, 500)
    script.join("c1", 600, 700, 2, members=["c1", "c3"])
    script.join("c3", 650, 700, 2, member_id="")
    script.sync("c1", 701, 702, 2, {}, {"c1": {}, "c3": {}})  # c3 never sends its own
    script.beats("c1", 1_000, 10_000, 2)
    script.beat("c1", 11_000, 2, error=27)
    script.join("c1", 11_001, 11_001, 3, members=["c1"])
    last = script.last()
    assert (last.cause, last.client_id, last.started_ns) == (Cause.SYNC_EXPIRED, "c3", at(10_700))
    assert [each.why for each in last.removed] == ["sync timeout"]


# ---- the coordinator is lost


def test_a_coordinator_that_is_lost_while_members_join() -> None:
    script = Script()
    script.form("c1", "c2")
    script.join("c3", 1_000, None, member_id="c3-id")
    script.join("c1", 1_500, 2_000, error_code=16)
    script.join("c2", 1_600, 2_000, error_code=16)
    script.join("c1", 3_000, 3_500, 2, members=["c1", "c2"], more=b"2")
    script.join("c2", 3_400, 3_500, 2, more=b"2")
    script.sync("c1", 3_501, 3_502, 2, {}, {"c1": {}, "c2": {}})
    history = script.history()
    assert [each.outcome for each in history.rebalances] == ["stable", "interrupted", "stable"]
    last = history.rebalances[-1]
    assert (last.cause, last.started_ns) == (Cause.COORDINATOR_FAILOVER, at(3_000))
    assert any("16" in fact.text for fact in last.evidence)


def test_a_generation_that_comes_again_was_forgotten() -> None:
    script = Script()
    script.form("c1", "c2")
    script.join("c1", 1_000, 1_500, 2, members=["c1", "c2"])
    script.join("c2", 1_400, 1_500, 2)
    script.sync("c1", 1_501, None, 2, gives={"c1": {}, "c2": {}})
    for client in ("c1", "c2"):
        script.closed(client, 1_600)
    script.join("c1", 2_000, 2_500, 2, members=["c1", "c2"], connection="10.0.0.1:5-b#5")
    script.join("c2", 2_400, 2_500, 2, connection="10.0.0.2:6-b#6")
    history = script.history()
    assert [each.generation_id for each in history.rebalances] == [1, 2, 2]
    assert history.rebalances[2].cause == Cause.COORDINATOR_FAILOVER


# ---- captures that begin in the middle, or lack what matters


def test_a_source_that_begins_in_the_middle() -> None:
    script = Script()
    script.beats("c1", 0, 5_000, 7)
    script.beats("c2", 0, 5_000, 7)
    script.beat("c1", 5_000, 7, error=27)
    script.join("c1", 5_100, 5_500, 8, members=["c1", "c2"])
    script.join("c2", 5_400, 5_500, 8)
    script.sync("c1", 5_501, 5_502, 8, {}, {"c1": {}, "c2": {}})
    script.sync("c2", 5_501, 5_502, 8, {})
    history = script.history()
    (only,) = history.rebalances
    assert (only.cause, only.started_ns, only.generation_id) == (Cause.UNKNOWN, at(5_000), 8)
    assert only.confidence <= 0.2
    assert [life.first_generation_id for life in history.members] == [7, 7]
    assert "before the source began" in history.group.blind[0]
    assert history.states[0].state == "Stable"


def test_a_member_that_vanishes_without_a_known_timeout() -> None:
    script = Script()
    script.beats("c1", 0, 20_000, 7)
    script.beats("c2", 0, 5_000, 7)
    script.beat("c1", 20_000, 7, error=27)
    script.join("c1", 20_100, 20_100, 8, members=["c1"])
    last = script.last()
    assert (last.cause, last.client_id, last.confidence) == (Cause.SESSION_EXPIRED, "c2", 0.5)


def test_only_the_syncs_of_a_round_were_seen() -> None:
    script = Script()
    script.sync("c1", 10, 12, 5, {"orders": [0]}, {"c1": {"orders": [0]}, "c2": {"orders": [1]}})
    script.sync("c2", 11, 12, 5, {"orders": [1]})
    history = script.history()
    (only,) = history.rebalances
    assert (only.generation_id, only.joined_ns, only.outcome, only.cause) == (5, None, "stable", Cause.UNKNOWN)
    assert len(history.ownership) == 2
    assert any("joins of 1 generations are missing" in said for said in history.group.blind)


def test_nothing_at_all() -> None:
    history = Script().history()
    assert (history.group.group_id, history.rebalances, history.members) == ("", [], [])


def test_commits_are_counted_by_partition_and_minute() -> None:
    script = Script()
    for ms, offset, error in ((1_000, 5, 0), (2_000, 6, 0), (3_000, 7, 27), (61_000, 9, 0)):
        offsets = [OffsetsCommitted("orders", 0, offset, error)]
        script.add("OffsetCommit", "c1", ms, ms, generation_id=1, offsets=offsets, error_code=error)
    rows = script.history().commits
    minute = START // (60_000 * MS) * 60_000 * MS
    told = [(row.minute_ns - minute, row.commits, row.errors, row.first_offset, row.last_offset) for row in rows]
    first = {(row[0] // (60_000 * MS)): row[1:] for row in told}
    assert sum(row[1] for row in told) == 3
    assert sum(row[2] for row in told) == 1
    assert next(iter(first.values()))[2] == 5
    assert told[-1][4] == 9
    assert {row.member_id for row in rows} == {"c1-id"}


# ---- KIP-848


def modern() -> Script:
    script = Script()
    script.consumer("c1", 0, 0, 1, {"orders": [0, 1]}, topics=["orders"], owned={}, rebalance_timeout_ms=300_000)
    script.consumer("c1", 100, 1, 1, owned={"orders": [0, 1]})
    return script


def test_epochs_rise_with_members() -> None:
    script = modern()
    script.consumer("c2", 5_000, 0, 2, {}, topics=["orders"], owned={}, rebalance_timeout_ms=300_000)
    script.consumer("c1", 6_000, 1, 1, {"orders": [0]})
    script.consumer("c1", 6_100, 1, 2, {"orders": [0]}, owned={"orders": [0]})
    script.consumer("c2", 8_000, 2, 2, {"orders": [1]})
    script.consumer("c2", 8_050, 2, 2, owned={"orders": [1]})
    history = script.history()
    first, second = history.rebalances
    assert (first.cause, first.generation_id, first.outcome, first.cooperative) == (Cause.NEW_MEMBER, 1, "stable", True)
    assert (second.cause, second.client_id, second.started_ns) == (Cause.NEW_MEMBER, "c2", at(5_000))
    assert (second.outcome, second.members_before, second.members_after, second.moved) == ("stable", 1, 2, 1)
    assert second.ended_ns == at(8_050)
    moved = [(row.member_id, row.from_ns, row.to_ns) for row in history.ownership if row.partition == 1]
    assert moved == [("c1-id", at(1), at(6_100)), ("c2-id", at(8_001), None)]
    (pause,) = history.pauses
    assert (pause.from_ns, pause.to_ns, pause.rebalance) == (at(6_100), at(8_001), 2)
    assert {life.protocol for life in history.members} == {"consumer"}
    assert [state.state for state in history.states] == ["Assigning", "Reconciling", "Stable"] * 2
    assert history.group.protocol_type == "consumer"
    assert "KIP-848" in history.group.blind[0]


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        ({"generation_id": -1, "new_generation_id": -1}, Cause.MEMBER_LEFT),
        ({"generation_id": 2, "new_generation_id": 2, "topics": ["orders", "payments"]}, Cause.SUBSCRIPTION_CHANGED),
    ],
)
def test_what_raises_an_epoch(row: dict[str, Any], cause: Cause) -> None:
    script = modern()
    script.consumer("c2", 5_000, 0, 2, {}, topics=["orders"], owned={})
    script.consumer("c1", 6_000, 2, 2, owned={"orders": [0, 1]})
    script.add("ConsumerGroupHeartbeat", "c2", 10_000, 10_001, **row)
    script.consumer("c1", 11_000, 2, 3, {"orders": [0, 1]})
    last = script.last()
    assert (last.generation_id, last.cause, last.client_id, last.started_ns) == (3, cause, "c2", at(10_000))


def test_a_member_of_the_new_protocol_that_is_heard_of_no_more() -> None:
    script = modern()
    script.consumer("c2", 5_000, 0, 2, {}, topics=["orders"], owned={})
    for ms in range(6_000, 60_000, 5_000):
        script.consumer("c1", ms, 2, 2)
    script.consumer("c1", 61_000, 2, 3, {"orders": [0, 1]})
    last = script.last()
    assert (last.cause, last.client_id) == (Cause.SESSION_EXPIRED, "c2")
    assert last.confidence < 0.8


def test_a_group_of_the_new_protocol_whose_members_have_all_left() -> None:
    script = modern()
    script.consumer("c1", 9_000, -1, -1)
    history = script.history()
    assert [each.outcome for each in history.rebalances] == ["stable", "empty"]
    assert history.ownership[0].to_ns == at(9_000)
    assert history.states[-1].state == "Empty"


def test_the_same_process_back_after_its_leave_had_not_polled() -> None:
    script = modern()
    script.consumer("c2", 5_000, 0, 2, {}, topics=["orders"], owned={})
    script.consumer("c1", 6_000, 2, 2, owned={"orders": [0, 1]})
    script.consumer("c1", 300_000, -1, -1)
    script.consumer("c2", 301_000, 2, 3, {"orders": [0, 1]})
    script.consumer("c1", 310_000, 0, 4, {}, topics=["orders"], owned={})
    assert script.causes()[2:] == [Cause.POLL_TIMEOUT, Cause.NEW_MEMBER]


def test_a_source_that_begins_in_the_middle_of_epochs() -> None:
    script = Script()
    for ms in range(0, 20_000, 5_000):
        script.consumer("c1", ms, 7, 7)
        script.consumer("c2", ms + 10, 7, 7)
    script.consumer("c2", 21_000, -1, -1)
    script.consumer("c1", 22_000, 7, 8, {"orders": [0, 1]})
    history = script.history()
    (only,) = history.rebalances
    assert (only.generation_id, only.cause, only.client_id, only.members_before) == (8, Cause.MEMBER_LEFT, "c2", 2)
    assert [(life.member_id, life.first_generation_id) for life in history.members] == [("c1-id", 7), ("c2-id", 7)]
    assert (history.states[0].state, history.states[0].generation_id) == ("Stable", 7)
