"""JoinGroup of the consumer rewrite as exchanges, beside Kafka's JoinGroup 0."""

from __future__ import annotations

import random

import pytest

import kcoord_wire as kw
from tests.support.rewrite_script import RewriteScript, ScriptedMember
from tests.support.wire_samples import batch, canonical, cut_anywhere, match_all


def conversation() -> RewriteScript:
    script = RewriteScript()
    member = ScriptedMember("c-1")
    script.connect(member)
    script.park(member)
    script.assign([(member, {"orders": [1, 0], "payments": [2]})])
    script.beat(member)
    script.park(member)
    return script


def test_a_join_names_topics_and_its_answer_partitions() -> None:
    rows, _, matcher = match_all([batch(conversation().frames)])
    joined, pending = (row for row in rows if row["api"] == "JoinGroup")
    assert (joined["topics"], joined["assignor"], joined["session_timeout_ms"]) == (["orders"], "range", 6000)
    assert (joined["member_id"], joined["given_member_id"], joined["new_generation_id"]) == ("", "c-1-id", 1)
    assert joined["assignment"] == [
        {"topic": "orders", "partitions": [1, 0]},
        {"topic": "payments", "partitions": [2]},
    ]
    assert (joined["client_id"], joined["error_code"], joined["offered"]) == ("c-1", 0, None)
    assert (pending["member_id"], pending["answered_ns"], pending["error_code"]) == ("c-1-id", None, None)
    assert matcher.losses == []


def test_joins_of_both_protocols_are_each_read_as_its_own() -> None:
    script = conversation()
    member = ScriptedMember("old")
    script.connect(member)
    protocol = kw.JoinGroupRequestProtocol(name="range", metadata=b"")
    request = kw.JoinGroupRequest(group_id="g", session_timeout_ms=1, protocol_type="other", protocols=[protocol])
    script.ask(member, request, 0)
    rows, _, matcher = match_all([batch(script.frames)])
    assert [(row["topics"], row["offered"] is None) for row in rows if row["api"] == "JoinGroup"][-1] == (None, False)
    assert sum(row["api"] == "JoinGroup" for row in rows) == 3
    assert matcher.losses == []


def test_an_answer_that_does_not_decode_is_a_loss() -> None:
    script = conversation()
    answer = next(frame for frame in script.frames if b"c-1-id" in frame.frame)
    answer.frame = answer.frame[:-3]
    rows, _, matcher = match_all([batch(script.frames)])
    joined = next(row for row in rows if row["api"] == "JoinGroup")
    assert (joined["error_code"], joined["assignment"]) == (None, None)
    assert joined["answered_ns"] == answer.time_ns
    assert [loss.what.partition(":")[0] for loss in matcher.losses] == ["JoinGroup response does not decode"]


@pytest.mark.parametrize("seed", range(3))
def test_the_cut_into_batches_makes_no_difference(seed: int) -> None:
    frames = conversation().frames
    whole, _, _ = match_all([batch(frames)])
    cut, _, _ = match_all(cut_anywhere(frames, random.Random(seed)))
    assert canonical(cut) == canonical(whole)
