"""Known bugs: named only where shape and version agree.

Findings beside holes are weakened, or dropped.

All detectors together.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.detectors import DETECTORS, detect
from kcoord_wire.forensics.detectors.finding import NEAR_NS, DetectorResult, by_importance, share_costs, weigh
from kcoord_wire.forensics.model import Exchange, Finding, GroupHistory, Hole, table_of
from tests.support.detector_groups import SECOND, generation, group, life, of, rebalance


def loop(software: str | None, *, assignor: str = "cooperative-sticky", leader: str = "c1-id") -> GroupHistory:
    causes = [Cause.NEW_MEMBER, *[Cause.COOPERATIVE_FOLLOW_UP] * 5]
    return group(
        members=[life("c1", software=software), life("c2", software="librdkafka 2.6.1", topics=["refunds"])],
        rebalances=[
            rebalance(n, n, cause, assignor=assignor, leader_id=leader) for n, cause in enumerate(causes, start=1)
        ],
    )


def named(history: GroupHistory) -> Finding:
    (finding,) = of("cooperative_loop", history)
    return finding


@pytest.mark.parametrize(
    ("software", "bugs"),
    [
        ("librdkafka 1.6.1", ["librdkafka#3306"]),
        ("librdkafka 1.7.0", []),
        ("apache-kafka-java 3.5.1", ["KAFKA-15106"]),
        ("apache-kafka-java 3.6.0", []),
        ("kafka-python 3.0.0", []),
        (None, []),
    ],
)
def test_the_version_of_the_leader_decides(software: str | None, bugs: list[str]) -> None:
    finding = named(loop(software))
    assert finding.known_bugs == bugs
    assert ("known bug" in finding.text) is bool(bugs)
    if bugs:
        assert finding.advice.startswith(f"Update {software} (https://")


def test_another_member_or_assignor_is_not_blamed() -> None:
    assert named(loop("librdkafka 1.6.1", leader="c2-id")).known_bugs == []
    assert named(loop("librdkafka 1.6.1", assignor="mine")).known_bugs == []


def test_a_condition_of_the_bug_must_hold() -> None:
    history = loop("apache-kafka-java 3.5.1")
    for member in history.members:
        member.topics = ["orders"]
    assert named(history).known_bugs == [], "KAFKA-15106 needs unequal subscriptions"


def test_a_version_without_the_damage_names_nothing() -> None:
    quiet = group(members=[life("c1", software="librdkafka 1.6.1")], rebalances=[rebalance(1, 1)])
    assert of("cooperative_loop", quiet) == []


def left(detector: str, severity: str, hole_s: float) -> list[str]:
    """The severities that remain of a finding from 100 s to 110 s, with a hole at a time."""
    finding = Finding(
        "billing", detector, severity, 100 * SECOND, 110 * SECOND, None, "it is so", "do it", 1.0, 1.0, [], []
    )
    hole = Hole("billing", int(hole_s * SECOND), int(hole_s * SECOND), "", None, [], "")
    return weighed(finding, hole)


def weighed(finding: Finding, *holes: Hole, rests_on: frozenset[str] | None = None) -> list[str]:
    """The severities that these holes leave of a finding that rests on frames of some members; None: of any."""
    result = DetectorResult(finding.severity, finding.from_ns, "", "", 1, (), rests_on=rests_on)
    history = group(holes=list(holes), members=[life("c1"), life("c2", client_host="10.0.0.2")])
    return [each.severity for each in weigh([(finding, result)], history)]


@pytest.mark.parametrize(("severity", "weaker"), [("critical", ["warning"]), ("warning", ["info"]), ("info", [])])
def test_a_finding_beside_a_hole_is_weaker(severity: str, weaker: list[str]) -> None:
    assert left("stuck_preparing", severity, 105) == weaker
    assert left("stuck_preparing", severity, 100 - NEAR_NS / SECOND) == weaker


@pytest.mark.parametrize("hole_s", [80, 111])
def test_a_hole_elsewhere_changes_nothing(hole_s: float) -> None:
    assert left("stuck_preparing", "critical", hole_s) == ["critical"]


@pytest.mark.parametrize("detector", ["refused", "flapping_member", "slow_leader"])
def test_what_frames_show_stays(detector: str) -> None:
    assert left(detector, "critical", 105) == ["critical"]


def test_what_only_was_not_seen_is_dropped() -> None:
    assert left("frozen_member", "warning", 105) == []
    assert left("frozen_member", "critical", 105) == ["warning"]


def hole(connection: str, from_s: float, to_s: float, *members: str) -> Hole:
    return Hole("billing", int(from_s * SECOND), int(to_s * SECOND), connection, "client", list(members), "")


def test_only_what_is_missing_of_its_members_weakens_a_finding() -> None:
    seen = Finding("billing", "dead_member", "warning", 100 * SECOND, 110 * SECOND, None, "", "", 1.0, 1.0, [], [])
    other = hole("10.0.0.2:5-10.0.0.9:9092#2", 104, 105, "c2-id")
    own = hole("10.0.0.1:9-10.0.0.9:9092#3", 104, 105)
    assert weighed(seen, other, rests_on=frozenset({"c1-id"})) == ["warning"]
    assert weighed(seen, own, rests_on=frozenset()) == ["warning"], "other frames prove it"
    assert weighed(seen, own, rests_on=frozenset({"c1-id"})) == ["info"], "of its host"


def test_a_silence_is_doubtful_where_holes_take_up_half_of_it() -> None:
    for to_s, left in [(104.0, ["warning"]), (106.0, [])]:
        silent = Finding(
            "billing", "frozen_member", "warning", 100 * SECOND, 110 * SECOND, None, "", "", 1.0, 1.0, [], []
        )
        assert weighed(silent, hole("", 100, to_s, "c1-id"), rests_on=frozenset({"c1-id"})) == left


def test_detect_returns_the_worst_first() -> None:
    everything = group(
        rebalances=[rebalance(n, n * 3.0, Cause.POLL_TIMEOUT) for n in range(1, 60)],
        generations=[generation(5, 0, 10, members=0), generation(1, 10)],
        members=[life("old"), life("new", 20, protocol="consumer", assignors=[])],
    )
    found = detect(everything)
    assert [f.severity for f in found] == ["critical", "warning", "warning", "info"]
    assert found[0].detector == "storm"
    assert detect(group()) == []
    assert detect(everything, table_of(Exchange, [])) == found


def test_every_detector_has_a_rank_of_its_own() -> None:
    assert len({detector.rank for detector in DETECTORS.values()}) == len(DETECTORS)


def test_the_docs_have_a_row_for_each_detector() -> None:
    text = (Path(__file__).parents[3] / "docs" / "analyze.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", text, re.M)
    declared = sorted(DETECTORS.values(), key=lambda detector: detector.rank)
    assert rows == [(each.name, _words(each.find.__doc__)) for each in declared]


def _words(docstring: str | None) -> str:
    return (docstring or "").split("\n")[0].partition(": ")[2]


def test_what_explains_most_comes_first() -> None:
    rows = [
        rebalance(1, 100, Cause.SESSION_EXPIRED, "c2", paused_ms=20_000.0, members_before=2, members_after=1),
        rebalance(2, 200, Cause.MEMBER_LEFT, paused_ms=500.0),
    ]
    history = group(rebalances=rows)

    def found(detector: str, *numbers: int, cost_ms: float = 0.0) -> Finding:
        return Finding("g", detector, "warning", 0, None, None, detector, "", 1, 1, list(numbers), [], cost_ms=cost_ms)

    lag = found("growing_lag", cost_ms=90_000.0)
    all_of = [found("stuck_preparing", 1), found("dead_member", 1), found("slow_polls", 2), lag]
    shared = by_importance(share_costs(all_of, history))
    assert [(each.detector, each.cost_ms) for each in shared] == [
        ("growing_lag", 90_000.0), ("dead_member", 20_000.0),
        ("slow_polls", 500.0), ("stuck_preparing", 0.0),
    ]  # fmt: skip
