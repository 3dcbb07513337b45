"""The detectors of stuck rebalances on a group with the problem, and on groups that only look like it."""

from __future__ import annotations

from kcoord_wire.forensics.model import (
    Awaited,
    RemovedMember,
    StateInterval,
)
from tests.support.detector_groups import SECOND, group, life, of, rebalance


def state(name: str, from_s: float, to_s: float | None) -> StateInterval:
    end = None if to_s is None else int(to_s * SECOND)
    return StateInterval("billing", name, int(from_s * SECOND), end, 1)


def test_stuck_preparing_names_the_late_member() -> None:
    gone = RemovedMember("c2-id", "c2", "10.0.0.2", "rebalance timeout")
    stuck = group(
        states=[state("PreparingRebalance", 10, 310), state("Stable", 310, None)],
        rebalances=[rebalance(1, 10, removed=[gone])],
    )
    (found,) = of("stuck_preparing", stuck)
    assert (found.severity, found.subject, found.value) == ("critical", "c2", 300_000)
    late = rebalance(1, 10, last_client_id="c3", late_ms=35_000.0)
    slow = group(states=[state("PreparingRebalance", 10, 50)], rebalances=[late])
    assert [(f.severity, f.subject) for f in of("stuck_preparing", slow)] == [("warning", "c3")]
    quick = group(states=[state("PreparingRebalance", 10, 39), state("CompletingRebalance", 39, 100)])
    assert of("stuck_preparing", quick) == []


def test_a_long_wait_for_a_dead_member_says_so() -> None:
    wait = Awaited("c2-id", "c2", "10.0.0.2", 10 * SECOND, 43_000.0, "process died", 9 * SECOND)
    stuck = group(states=[state("PreparingRebalance", 10, None)], rebalances=[rebalance(1, 10, waited_for=[wait])])
    (found,) = of("stuck_preparing", stuck)
    assert (found.severity, found.subject) == ("warning", "c2"), "its session ends"
    assert "waiting for c2, dead or silent by then" in found.text
    assert "max.poll.interval.ms" not in found.advice


def test_stuck_completing_names_the_leader_and_the_assignor() -> None:
    lost = [rebalance(n, n * 60, outcome="interrupted", leader_id="c1-id", assignor="sticky") for n in (1, 2, 3)]
    stuck = group(
        states=[state("CompletingRebalance", n * 60 + 1, n * 60 + 50) for n in (1, 2, 3)],
        rebalances=lost,
        members=[life("c1")],
    )
    (found,) = of("stuck_completing", stuck)
    assert (found.severity, found.subject, found.rebalances) == ("critical", "c1", [1, 2, 3])
    assert "sticky" in found.text
    still = group(100, states=[state("CompletingRebalance", 10, None)], rebalances=[rebalance(1, 9)])
    assert of("stuck_completing", still)[0].severity == "critical"
    assert of("stuck_completing", group(states=[state("CompletingRebalance", 10, 19)])) == []
