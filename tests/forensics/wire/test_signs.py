"""Heartbeats and commits as columns.

The order of moments.

When members were answered, and what waited.
"""

from __future__ import annotations

import pyarrow as pa

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.model import Exchange, broker_address, table_of
from kcoord_wire.forensics.wire.history import wire_history
from kcoord_wire.forensics.wire.signs import BEGIN, END, UNKNOWN_SEQ, Moment, end_of
from tests.support.exchange_script import MS, Script, at, two_members


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
    assert beats.silences(alive, {"c1-id": 6_000 * MS}, lambda _: at(30_000)) == [("c1-id", at(3_000))]
    assert beats.silences(alive, {"c1-id": 60_000 * MS}, lambda _: at(30_000)) == []


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


def test_frames_with_one_time_stamp_keep_their_order() -> None:
    assert sorted([Moment(5, "b", 1), Moment(5, "a", 9), Moment(4, "z", 7)]) == [(4, "z", 7), (5, "a", 9), (5, "b", 1)]


def test_a_timer_ends_behind_every_frame_of_its_time() -> None:
    assert Moment(5, "zzz", UNKNOWN_SEQ) < end_of(5) < Moment(6, "", 0)
    assert BEGIN < end_of(5) < END


def test_refusals_are_no_answers() -> None:
    script = two_members()
    script.beat("c1", 1_000, 1)
    script.beat("c1", 2_000, 1, error=16)
    script.beat("c1", 3_000, 1, error=27, connection="10.0.0.1:4000-10.0.9.8:9092#2")
    service = script.traffic().service
    assert (service.last_answer(at(2_500)), service.next_answer(at(1_000))) == (at(1_000), at(3_000))
    assert (service.next_answer(at(3_000)), service.last_answer(at(-1))) == (None, None)
    assert (service.broker_before(at(2_500)), service.broker_after(at(2_500))) == ("10.0.9.9:9092", "10.0.9.8:9092")


def test_only_requests_that_are_answered_at_once_can_wait() -> None:
    script = two_members()
    script.add("Heartbeat", "c1", 1_000, 4_000, generation_id=1)
    script.add("OffsetCommit", "c2", 5_000, None)
    script.add("Heartbeat", "c2", 6_000, 6_100, generation_id=1)
    script.join("c1", 7_000, 17_000, 2)
    waits = script.traffic().service.waits
    assert [(wait.api, wait.asked_ns, wait.answered_ns) for wait in waits] == [
        ("Heartbeat", at(1_000), at(4_000)),
        ("OffsetCommit", at(5_000), None),
    ]


def test_a_broker_is_in_the_name_of_the_connection() -> None:
    assert broker_address("10.0.0.1:4000-10.0.9.9:9092#3") == "10.0.9.9:9092"
    assert broker_address("[::1]:4000-[fd00::9]:9092#0") == "[fd00::9]:9092"
