"""Each thing that goes wrong by the rules of the Go library, by the shortest script; by the document's nothing does."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from kcoord_wire.kernel.virtual.script import Do, SimulationFailure, run_script
from kcoord_wire.kernel.virtual.violation import ViolationError
from kcoord_wire.marshal.state import Rules
from kcoord_wire.worlds.marshal.anomalies import Anomalies, Anomaly
from kcoord_wire.worlds.marshal.script import MarshalScript


def say(at: int, kind: str, client: str, number: int = 0, ahead_ms: int = 0) -> Do:
    return Do(at=at, call="say", arguments=(kind, f"{client}1", client, "t1", 0, number, ahead_ms))


def script(*actions: Do) -> MarshalScript:
    return MarshalScript(seed=1, topics={"t1": 1}, rules=Rules.LIBRARY, interval_ms=60_000, actions=actions)


# A's claim is live when B asks, so a live reader refuses B. 131 s after A's heartbeat it is not live for the clock of a
# reader that replays the log, which takes B for the holder: a claim that no member has.
PHANTOM = script(
    say(0, "Heartbeat", "a", 5),
    say(61_000, "ClaimingPartition", "b"),
    Do(at=131_000, call="observe"),
)
# The same, and A has released at offset 9 meanwhile: for the late reader A does not hold the partition, so its release
# is from somebody else, and the position stays at 5.
LOST = script(
    say(0, "Heartbeat", "a", 5),
    say(50_000, "ClaimingPartition", "b"),
    say(60_000, "ReleasingPartition", "a", 9),
    Do(at=150_000, call="observe"),
)
# A reader whose clock is one second behind A's takes A's claim for none: its heartbeat is from the future.
SKEWED = script(
    Do(at=0, call="observe", arguments=(-20_000,)),
    say(5_000, "Heartbeat", "a", 5),
    say(15_000, "ClaimingPartition", "b"),
)
# B has claimed what A held once. A's heartbeat, sent two minutes ago, lands now, and is the last one.
OVERWRITTEN = script(
    say(121_000, "ClaimingPartition", "b"),
    say(122_000, "Heartbeat", "a", 6, -120_000),
)


@pytest.mark.parametrize(
    ("runs", "kind"),
    [
        (PHANTOM, Anomaly.PHANTOM),
        (LOST, Anomaly.LOST_OFFSET),
        (SKEWED, Anomaly.SKEWED),
        (OVERWRITTEN, Anomaly.OVERWRITTEN),
    ],
    ids=lambda each: each.value if isinstance(each, Anomaly) else "",
)
def test_the_shortest_scripts(runs: MarshalScript, kind: Anomaly) -> None:
    assert kind in run_script(runs).anomalies
    for number in range(len(runs.actions)):
        rest = [action for index, action in enumerate(runs.actions) if index != number]
        assert kind not in run_script(replace(runs, actions=rest)).anomalies, f"without action {number}"
    with pytest.raises(SimulationFailure) as caught:
        run_script(replace(runs, looks_for=kind))
    assert caught.value.law == kind.value
    assert run_script(replace(runs, rules=Rules.DOCUMENT)).anomalies == Counter()


def test_anomalies_are_counted_until_one_is_looked_for() -> None:
    anomalies = Anomalies(Anomaly.SKEWED)
    anomalies.add(Anomaly.PHANTOM, "one")
    anomalies.add(Anomaly.PHANTOM, "two")
    with pytest.raises(ViolationError, match="skewed clock: three"):
        anomalies.add(Anomaly.SKEWED, "three")
    assert anomalies.found == {Anomaly.PHANTOM: 2, Anomaly.SKEWED: 1}


# CreateTime: m2's clock is ahead. It reads m1's heartbeats as old as its clock makes them, claims, and the log agrees,
# because the claim has m2's time. m1 reads that late and goes on until its fence.
def create_time(seed: int, ahead_ms: int) -> MarshalScript:
    return MarshalScript(
        seed=seed,
        topics={"t1": 1},
        interval_ms=3_000,
        is_append_time=False,
        actions=[
            Do(at=0, call="member", arguments=("m1", 0)),
            Do(at=6_000, call="lag", arguments=("m1", 12_000)),
            Do(at=9_000, call="member", arguments=("m2", ahead_ms)),
        ],
    )


@pytest.mark.parametrize(("ahead_ms", "found"), [(2_000, 0), (6_000, 1)])
def test_create_time_allows_two_holders_if_clocks_differ(ahead_ms: int, found: int) -> None:
    assert run_script(create_time(0, ahead_ms)).anomalies[Anomaly.TWO_HOLDERS] == found


def test_create_time_with_equal_clocks_has_one_holder() -> None:
    for seed in range(8):
        assert run_script(create_time(seed, 0)).anomalies == Counter()
