"""Heartbeats and commits as columns."""

from __future__ import annotations

import pyarrow as pa

from kcoord_wire.forensics.model import Cause, Exchange, table_of
from kcoord_wire.forensics.wire.history import wire_history
from tests.support.exchange_script import MS, Script, at


def test_heartbeats_stay_columns() -> None:
    """Two hundred thousand heartbeats beside the four requests that become objects."""
    script = Script()
    script.form("c1", "c2", owners={"c1": {"orders": [0]}, "c2": {"orders": [1]}})
    few, topics = script.tables()
    count = 200_000
    beat = script.beat("c1", 1_000, 1)
    many = table_of(Exchange, [beat]).take(pa.array([0] * count, pa.int64()))
    times = pa.array([at(1_000 + number * 10) for number in range(count)], pa.int64())
    for name in ("asked_ns", "answered_ns"):
        many = many.set_column(many.column_names.index(name), many.schema.field(name), times)
    history = wire_history(pa.concat_tables([few, many]), topics)
    assert history.group.exchanges == count + 4
    assert history.members[0].last_seen_ns == at(1_000 + (count - 1) * 10)
    assert [each.cause for each in history.rebalances] == [Cause.NEW_MEMBER, Cause.SESSION_EXPIRED]


def test_silences_are_longer_than_the_session() -> None:
    script = Script()
    script.form("c1")
    script.beats("c1", 1_000, 4_000, 1)
    script.beats("c1", 20_000, 30_000, 1)
    beats = script.traffic().heartbeats
    alive = {"c1-id": [at(0)]}
    assert beats.silences(alive, {"c1-id": 6_000 * MS}, at(30_000)) == [("c1-id", at(3_000))]
    assert beats.silences(alive, {"c1-id": 60_000 * MS}, at(30_000)) == []


def test_answered_and_unanswered_ones_are_kept_apart() -> None:
    script = Script()
    script.beat("c1", 1_000, 1)
    script.add("Heartbeat", "c1", 2_000, None, generation_id=1)
    beats = script.traffic().heartbeats
    assert (beats.last("c1-id"), beats.answered.last("c1-id")) == (at(2_000), at(1_000))
    assert beats.unanswered.before("c1-id", at(3_000), at(1_000)) == at(2_000)
    assert beats.answered.after("c1-id", at(1_000)) is None
    moment = beats.answered.moment_before("c1-id", None)
    assert moment is not None
    assert (moment.time_ns, moment.source) == (at(1_000), "script")
    assert (beats.next_calm(at(0)), beats.is_calm(at(0), at(1_000)), beats.last_calm(at(0), at(2_000))) == (
        at(1_000), False, at(1_000),
    )  # fmt: skip


def test_the_first_sign_says_who_a_member_is() -> None:
    script = Script()
    script.beat("c2", 2_000, 7, instance_id="i")
    script.beat("c1", 1_000, 7)
    first = script.traffic().heartbeats.first
    assert list(first) == ["c1-id", "c2-id"]
    assert (first["c2-id"].generation, first["c2-id"].instance_id, first["c2-id"].host) == (7, "i", "10.0.0.2")
