"""Frames of the designs that stood on ZooKeeper: they name their groups, which are listed and not explained."""

from __future__ import annotations

import random
from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire.forensics.analysis import analyze_frames
from kcoord_wire.forensics.model import Frame
from kcoord_wire.messages.rewrite.rewrite_join_group import RewriteJoinGroupRequest
from tests.support.central_script import CentralScript
from tests.support.conversations import heartbeat
from tests.support.wire_samples import Talk, batch, canonical, cut_anywhere, match_all

LIMIT = "which is not explained."


def two_consumers() -> CentralScript:
    script = CentralScript(fenced=True)
    first, second = script.consumer("c-1"), script.consumer("c-02", topic_count="*1*ord.*")
    script.register(first)
    script.register(second)
    script.rebalance({"c-1": [("orders", "1-0"), ("orders", "2-0")], "c-02": [("orders", "1-1")]}, [first, second])
    script.ping(first)
    script.ping(second, answered=False, retries=1)
    return script


def of_both_joins() -> list[Frame]:
    """A JoinGroup of the rewrite and one of Kafka, both version 0, of two groups on one connection, not answered."""
    old = RewriteJoinGroupRequest(group_id="old", session_timeout_ms=6000, strategy="range", consumer_id="c-1-id")
    old.topics = ["orders"]
    protocol = kw.JoinGroupRequestProtocol(name="range", metadata=b"")
    new = kw.JoinGroupRequest(group_id="new", session_timeout_ms=1, protocol_type="other", protocols=[protocol])
    beat = kw.HeartbeatRequest(group_id="old", generation_id=1, member_id="c-1-id")

    def frame(number: int, message: Any) -> Frame:
        body = kw.encode_request(message, 0, correlation_id=number, client_id="c-1")
        return Frame("made.pcap", number, number, number, "10.0.0.1:40000-10.9.9.1:9092#1", "request", body)

    return [frame(number, message) for number, message in enumerate((old, new, beat))]


def test_registrations_name_the_groups_of_the_draft() -> None:
    script = two_consumers()
    rows, _, matcher = match_all([batch(script.frames)])
    assert [(row["api"], row["group_id"], row["member_id"]) for row in rows] == [
        ("RegisterConsumer", "g", "c-1"),
        ("RegisterConsumer", "g", "c-02"),
    ]
    assert matcher.losses == []
    assert matcher.counts["frames"] == len(script.frames)
    analysis = script.analyze()
    assert analysis.losses == []
    [history] = analysis.histories
    assert history.group.blind == [f"The group uses the protocol of the 0.8 draft, {LIMIT}"]
    assert (history.group.group_id, history.rebalances, history.members) == ("g", [], [])


def test_joins_name_the_groups_of_the_rewrite() -> None:
    rows, _, matcher = match_all([batch(of_both_joins())])
    found = {(row["api"], row["group_id"], row["member_id"], row["client_id"]) for row in rows}
    assert found == {
        ("RewriteJoinGroup", "old", "c-1-id", "c-1"),
        ("JoinGroup", "new", "", "c-1"),
        ("Heartbeat", "old", "c-1-id", "c-1"),
    }
    assert matcher.losses == []
    new, old = analyze_frames([batch(of_both_joins())]).histories
    assert old.group.blind == [f"The group uses the protocol of the consumer rewrite, {LIMIT}"]
    assert LIMIT not in " ".join(new.group.blind)


@pytest.mark.parametrize("seed", range(5))
def test_the_cut_into_batches_makes_no_difference(seed: int) -> None:
    script = two_consumers()
    kafka = Talk(9)
    for number in range(20):
        heartbeat(kafka, number)
    for at, frame in enumerate(kafka.frames):
        frame.time_ns, frame.seq = script.frames[at % len(script.frames)].time_ns, 1000 + at
    frames = [*script.frames]
    rng = random.Random(seed)
    for frame in kafka.frames:  # in order, at random places
        place = rng.randint(0, len(frames))
        frames.insert(max([place, *(at + 1 for at, each in enumerate(frames) if each in kafka.frames)]), frame)
    whole, _, _ = match_all([batch(frames)])
    cut, _, _ = match_all(cut_anywhere(frames, rng))
    assert canonical(cut) == canonical(whole)
    assert len(whole) == 22


def test_a_group_without_its_registrations_is_not_listed() -> None:
    script = two_consumers()
    rows, _, matcher = match_all([batch([frame for frame in script.frames if frame.seq > 9])])
    assert rows == []
    assert matcher.losses == []


def test_a_closed_connection_is_seen() -> None:
    script = CentralScript()
    consumer = script.consumer("c-1")
    script.register(consumer)
    script.close(consumer)
    _, topics, _ = match_all([batch(script.frames)])
    assert [(row["kind"], row["connection"]) for row in topics][-1] == ("closed", consumer.connection)


def test_random_frames_raise_nothing() -> None:
    rng = random.Random(5)
    for _ in range(100):
        script = two_consumers()
        for frame in rng.sample(script.frames, 6):
            frame.frame = rng.randbytes(rng.randint(0, 30)) if rng.random() < 0.5 else frame.frame[: rng.randint(0, 20)]
        match_all(cut_anywhere(script.frames, rng))
