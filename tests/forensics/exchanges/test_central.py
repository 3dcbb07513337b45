"""The 0.8 draft's frames as exchanges: the coordinator asks, the connection names the group."""

from __future__ import annotations

import random

import pytest

from kcoord_wire.forensics.exchanges.central import place_of, topics_of
from kcoord_wire.messages import central as m
from tests.support.central_script import CentralScript
from tests.support.conversations import heartbeat
from tests.support.wire_samples import Talk, batch, canonical, cut_anywhere, match_all


def two_consumers(*, fenced: bool = True) -> CentralScript:
    script = CentralScript(fenced=fenced)
    first, second = script.consumer("c-1"), script.consumer("c-02", topic_count="*1*ord.*")
    script.register(first)
    script.register(second)
    script.rebalance({"c-1": [("orders", "1-0"), ("orders", "2-0")], "c-02": [("orders", "1-1")]}, [first, second])
    script.ping(first)
    script.ping(second, answered=False, retries=1)
    return script


def test_requests_of_the_coordinator_become_exchanges() -> None:
    script = two_consumers()
    rows, _, matcher = match_all([batch(script.frames)])
    by_api = {api: [row for row in rows if row["api"] == api] for api in {row["api"] for row in rows}}
    assert {api: len(found) for api, found in by_api.items()} == {
        "RegisterConsumer": 2,
        "StopFetcher": 2,
        "StartFetcher": 2,
        "Ping": 2,
    }
    assert {row["group_id"] for row in rows} == {"g"}
    register = by_api["RegisterConsumer"]
    assert [(row["topics"], row["topic_regex"]) for row in register] == [(["orders"], None), (None, "*1*ord.*")]
    start = by_api["StartFetcher"][0]
    assert start["assignment"] == [{"topic": "orders/1", "partitions": [0]}, {"topic": "orders/2", "partitions": [0]}]
    assert (start["member_id"], start["epoch"], start["generation_id"], start["error_code"]) == ("c-1", 1, 1, 0)
    answered, silent = sorted(by_api["Ping"], key=lambda row: row["seq"])
    assert answered["offsets"][0] == {"topic": "orders/1", "partition": 0, "offset": 5, "error_code": 0}
    assert (silent["retries"], silent["answered_ns"], silent["error_code"]) == (1, None, None)
    assert matcher.losses == []


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
    assert len(whole) == 28


def test_without_its_registration_a_group_is_not_known() -> None:
    script = two_consumers()
    rows, _, matcher = match_all([batch([frame for frame in script.frames if frame.seq > 9])])
    assert rows == []
    assert len(matcher.losses) == 6  # the requests
    assert "its group is not known" in matcher.losses[0].what


def test_a_closed_connection_is_seen_and_gives_its_requests_up() -> None:
    script = CentralScript()
    consumer = script.consumer("c-1")
    script.register(consumer)
    script.ping(consumer, answered=False)
    script.close(consumer)
    rows, topics, _ = match_all([batch(script.frames)])
    assert [row["api"] for row in rows if row["answered_ns"] is None] == ["Ping"]
    assert [(row["kind"], row["connection"]) for row in topics][-1] == ("closed", consumer.connection)


def test_an_answer_with_anothers_id_is_a_loss() -> None:
    script = CentralScript()
    consumer = script.consumer("c-1")
    script.register(consumer)
    script.ping(consumer, answered=False)
    script._ask(consumer, m.PingResponse(consumer_id="someone else"))
    rows, _, matcher = match_all([batch(script.frames)])
    assert [loss.what for loss in matcher.losses] == ["its request was not seen"]
    assert rows[-1]["answered_ns"] is None


def test_random_frames_raise_nothing() -> None:
    rng = random.Random(5)
    for _ in range(100):
        script = two_consumers()
        for frame in rng.sample(script.frames, 6):
            frame.frame = rng.randbytes(rng.randint(0, 30)) if rng.random() < 0.5 else frame.frame[: rng.randint(0, 20)]
        match_all(cut_anywhere(script.frames, rng))


def test_partitions_are_named_after_the_old_layout() -> None:
    assert place_of("orders", "3-12") == ("orders/3", 12)
    assert place_of("orders", "7") == ("orders", 7)
    assert place_of("orders", "a-b") == ("orders/a-b", 0)
    assert place_of("orders", "1-99999999999") == ("orders/1-99999999999", 0)


def test_texts_that_are_not_json_objects_are_patterns() -> None:
    assert topics_of('{"b": 1, "a": 2}') == (["a", "b"], None)
    assert topics_of("!2!x.*") == (None, "!2!x.*")
    assert topics_of("[" * 100_000) == (None, "[" * 100_000)
    assert topics_of("7") == (None, "7")
