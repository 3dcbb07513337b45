"""Each thing that goes wrong by the rules of the Go library, by the shortest script; by the document's nothing does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from kcoord_wire.kernel.virtual.scripts import Do, Script, SimulationFailure, ViolationError, run_script
from kcoord_wire.marshal.world_state import Rules
from kcoord_wire.worlds.marshal.marshal_laws import Anomalies, Anomaly
from kcoord_wire.worlds.marshal.marshal_world import MarshalCluster, random_script


def say(at: int, kind: str, client: str, number: int = 0, ahead_ms: int = 0) -> Do:
    return Do(at, "say", kind, f"{client}1", client, "t1", 0, number, ahead_ms)


def script(*actions: Do) -> Script[MarshalCluster]:
    options = {"topics": {"t1": 1}, "rules": Rules.LIBRARY, "interval_ms": 60_000}
    return Script(MarshalCluster, 1, options, actions)


def anomalies(of: Script[MarshalCluster]) -> Mapping[Anomaly, int]:
    return {kind: count for kind, count in run_script(of).counts.items() if isinstance(kind, Anomaly)}


# A's claim is live when B asks, so a live reader refuses B. 131 s after A's heartbeat it is not live for the clock of a
# reader that replays the log, which takes B for the holder: a claim that no member has.
PHANTOM = script(
    say(0, "Heartbeat", "a", 5),
    say(61_000, "ClaimingPartition", "b"),
    Do(131_000, "observe"),
)
# The same, and A has released at offset 9 meanwhile: for the late reader A does not hold the partition, so its release
# is from somebody else, and the position stays at 5.
LOST = script(
    say(0, "Heartbeat", "a", 5),
    say(50_000, "ClaimingPartition", "b"),
    say(60_000, "ReleasingPartition", "a", 9),
    Do(150_000, "observe"),
)
# A reader whose clock is one second behind A's takes A's claim for none: its heartbeat is from the future.
SKEWED = script(
    Do(0, "observe", -20_000),
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
def test_the_shortest_scripts(runs: Script[MarshalCluster], kind: Anomaly) -> None:
    assert kind in anomalies(runs)
    for number in range(len(runs.actions)):
        rest = [action for index, action in enumerate(runs.actions) if index != number]
        assert kind not in anomalies(runs.with_actions(rest)), f"without action {number}"
    with pytest.raises(SimulationFailure) as caught:
        run_script(runs.with_options(looks_for=kind))
    assert caught.value.law == kind.value
    assert anomalies(runs.with_options(rules=Rules.DOCUMENT)) == {}


def test_anomalies_are_counted_until_one_is_looked_for() -> None:
    found = Anomalies(Anomaly.SKEWED)
    found.add(Anomaly.PHANTOM, "one")
    found.add(Anomaly.PHANTOM, "two")
    with pytest.raises(ViolationError, match="skewed clock: three"):
        found.add(Anomaly.SKEWED, "three")
    assert found.found == {Anomaly.PHANTOM: 2, Anomaly.SKEWED: 1}


# CreateTime: m2's clock is ahead. It reads m1's heartbeats as old as its clock makes them, claims, and the log agrees,
# because the claim has m2's time. m1 reads that late and goes on until its fence.
def create_time(seed: int, ahead_ms: int) -> Script[MarshalCluster]:
    actions = [Do(0, "member", "m1", 0), Do(6_000, "lag", "m1", 12_000), Do(8_500, "member", "m2", ahead_ms)]
    return Script(MarshalCluster, seed, {"topics": {"t1": 1}, "interval_ms": 3_000, "is_append_time": False}, actions)


@pytest.mark.parametrize(("ahead_ms", "found"), [(2_000, 0), (6_000, 1)])
def test_create_time_allows_two_holders_if_clocks_differ(ahead_ms: int, found: int) -> None:
    assert anomalies(create_time(0, ahead_ms)).get(Anomaly.TWO_HOLDERS, 0) == found


def test_create_time_with_equal_clocks_has_one_holder() -> None:
    for seed in range(8):
        assert anomalies(create_time(seed, 0)) == {}


def test_the_librarys_rules_show_each_anomaly() -> None:
    found: Counter[Anomaly] = Counter()
    for seed in range(12):
        found.update(anomalies(random_script(seed, rules=Rules.LIBRARY)))
    assert set(found) == set(Anomaly)


def test_clocks_differ_by_the_skew_with_create_time() -> None:
    for seed in range(20):
        drawn = random_script(seed, is_append_time=False, skew=1.5)
        ahead = {action.arguments[1] for action in drawn.actions if action.call == "member"}
        assert ahead <= {0, int(1.5 * drawn.options["interval_ms"])}
