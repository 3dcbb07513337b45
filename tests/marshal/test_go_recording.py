"""Members next to Go clients, whose recorded messages land in their log: claims exclude each other in both directions,
and positions pass on. The Go module proxy does not serve the library, so its recorded messages stand in for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kcoord_wire.codec.registry import decode_text
from kcoord_wire.marshal.member_events import Append, Balance, Delivery, Fetched, Release, StartFetching
from kcoord_wire.marshal.world_state import Rules
from kcoord_wire.messages.marshal import ClaimingPartition, Heartbeat, ReleasingPartition
from tests.support.marshal_script import MarshalScript

LIVE = Path(__file__).parent.parent / "data" / "golden" / "marshal" / "live_log.jsonl"
GO_READS = {"ClaimingPartition", "Heartbeat", "ReleasingPartition", "ClaimingMessages"}


def _recorded(topic: str) -> tuple[int, list[Any]]:
    """The coordination partition and the messages that Go clients have written about a topic, in order."""
    rows = [json.loads(line) for line in LIVE.read_text().splitlines()]
    of_topic = [row for row in rows if "marshal_partition" in row and f"/{topic}/" in row["value"]]
    return of_topic[0]["marshal_partition"], [decode_text(row["value"].encode()) for row in of_topic]


def _world(topic: str, **settings: Any) -> tuple[MarshalScript, int, list[Any]]:
    """A world without append times, as the Go library's brokers had, at the moment of the recording."""
    partition, messages = _recorded(topic)
    world = MarshalScript({topic: 1}, is_append_time=False, **({"group_id": "gr.live"} | settings))
    world.clock.time_ms = messages[0].time * 1_000
    return world, partition, messages


@pytest.mark.parametrize("rules", Rules)
@pytest.mark.parametrize(("topic", "position"), [("test2", 6), ("test1", 3)])
def test_go_claim_is_left_alone_and_its_release_is_taken_up(rules: Rules, topic: str, position: int) -> None:
    world, partition, (claim, heartbeat, release, *_) = _world(topic, rules=rules)
    world.land(partition, claim)
    world.land(partition, heartbeat)
    ours = world.start("a")
    world.run(8_000)
    assert ours.done(Append) == []
    release.time = world.now // 1_000
    world.land(partition, release)
    assert world.run_until(lambda: bool(ours.fetching), 2_000)
    assert [effect.offset for effect in ours.done(StartFetching)] == [position]


@pytest.mark.parametrize("rules", Rules)
def test_go_claim_of_what_we_hold_is_refused(rules: Rules) -> None:
    world, partition, messages = _world("test2", rules=rules)
    ours = world.start("a")
    world.run(2_000)
    (tenure,) = ours.fetching
    ours.work(9)
    foreign = messages[3]
    foreign.time = world.now // 1_000
    world.land(partition, foreign)  # the Go client that lost the race in the recording
    world.run(20_000)
    assert list(ours.fetching) == [tenure]
    ours.deliver(Release("test2", 0))
    world.run(100)
    released = world.entries(ReleasingPartition)[-1].message
    assert (released.current_offset, released.group_id) == (9, "gr.live")  # a Go client starts there


@pytest.mark.parametrize("delivery", Delivery)
def test_member_writes_only_what_go_reads_unless_asked(delivery: Delivery) -> None:
    kinds = {}
    for name, balance in (("plain", None), ("balance", Balance(round_ms=1_000))):
        world = MarshalScript({"t": 4}, greedy=True, delivery=delivery, presence=balance is not None, balance=balance)
        first = world.start("a")
        world.run(1_000)
        for tenure in list(first.fetching):
            if delivery is Delivery.AT_MOST_ONCE:
                first.deliver(Fetched(tenure, 0, 5))
        world.start("b")
        world.run(20_000)
        world.shut_down(first)
        world.run(1_000)
        kinds[name] = {type(entry.message).__name__ for entry in world.entries()}
    assert kinds["plain"] <= GO_READS
    assert kinds["balance"] - GO_READS == {"Presence", "HandingOver"}
    assert {ClaimingPartition.__name__, Heartbeat.__name__} <= kinds["plain"]
