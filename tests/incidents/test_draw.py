"""A seed draws the same incidents each time; the judge of truth says from the brokers' logs what they were."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.incidents.damage import Damage, packets, time_ns
from tests.incidents.draw import LOTS, draw, is_aside
from tests.incidents.hall import Hall
from tests.incidents.judge import RULES
from tests.incidents.labels import DATA, Act, Run, read_incidents
from tests.incidents.truth import judge_truth

COUNT, SEED = 80, 25
HOST = "127.0.0.1"
CONFIRMED = ("killed-confluent", "frozen-confluent", "frozen-shortly-aiokafka", "fenced-confluent", "healthy-confluent")


def described(halls: Sequence[Hall]) -> list[str]:
    """All that is drawn; functions without their addresses."""
    return [
        f"{hall.name} {hall.kafka} {hall.nodes} {hall.point} {hall.damage} "
        + " ".join(
            f"{plan.name} {plan.kind} {plan.play.__name__} {plan.library} {plan.options} {plan.names} {plan.rate} "
            f"{plan.reads} {plan.ending}"
            for plan in hall.plans
        )
        for hall in halls
    ]


def test_the_same_seed_draws_the_same_incidents() -> None:
    assert described(draw(COUNT, SEED)) == described(draw(COUNT, SEED))
    assert described(draw(COUNT, SEED)) != described(draw(COUNT, SEED + 1))


def test_each_kind_is_drawn_and_a_third_is_kept_aside() -> None:
    halls = draw(COUNT, SEED)
    plans = [plan for hall in halls for plan in hall.plans]
    assert len(plans) >= COUNT
    assert {plan.kind for plan in plans} == {lot.kind for lot in LOTS}
    assert {lot.kind for lot in LOTS} <= RULES.keys()
    assert len({plan.name for plan in plans}) == len(plans)
    aside = sum(is_aside(hall.name, SEED) for hall in halls)
    assert aside in (len(halls) // 3, len(halls) // 3 + 1)


def test_no_group_is_named_after_its_kind() -> None:
    words = {word for lot in LOTS for word in lot.kind.split()}
    assert not [
        plan.name for hall in draw(COUNT, SEED) for plan in hall.plans if plan.name.strip("0123456789") in words
    ]


# ---- the judge of truth, on what the brokers of the stored incidents wrote


def stored(group: str) -> tuple[Run, list[str]]:
    for incident in read_incidents(DATA, ["clients-1"]):
        log = gzip.decompress(incident.log_in(DATA).read_bytes()).decode().splitlines()
        return next(run for run in incident.runs if run.group == group), log
    raise AssertionError


def kinds(runs: Sequence[Run], log: Sequence[str], end_ns: int | None = None) -> list[str]:
    """Of the runs that are kept; each that is not has a reason."""
    kept, left_out = judge_truth(runs, log, end_ns)
    assert len(kept) + len(left_out) == len(runs)
    return [run.kind for run in kept]


@pytest.mark.parametrize("group", CONFIRMED)
def test_what_was_done_is_confirmed(group: str) -> None:
    run, log = stored(group)
    kind = run.kind
    assert kinds([run], log) == [kind]


@pytest.mark.parametrize(
    ("group", "drawn", "was"),
    [
        ("frozen-confluent", "frozen shortly", "frozen"),
        ("frozen-shortly-aiokafka", "frozen", "frozen shortly"),
        ("frozen-shortly-aiokafka", "lossy network", "lossy shortly"),
        ("frozen-confluent", "lossy network", "lossy network"),
    ],
)
def test_a_silence_is_what_came_of_it(group: str, drawn: str, was: str) -> None:
    run, log = stored(group)
    assert kinds([replace(run, kind=drawn)], log) == [was]


def test_a_storm_takes_each_of_its_victims() -> None:
    run, log = stored("killed-confluent")
    assert kinds([replace(run, kind="poll storm")], log) == ["poll storm"]
    assert kinds([replace(run, kind="poll storm", victims=[*run.victims, "third"])], log) == []


def test_a_member_that_was_not_removed_was_not_killed() -> None:
    run, log = stored("frozen-shortly-aiokafka")
    assert kinds([replace(run, kind="killed")], log) == []


def test_a_group_in_which_another_member_was_removed_is_left_out() -> None:
    run, log = stored("killed-confluent")
    assert kinds([replace(run, victims=["first"])], log) == []
    assert kinds([replace(run, kind="healthy", victims=[], acts=[])], log) == []


def test_a_run_whose_end_is_cut_off_is_left_out() -> None:
    run, log = stored("killed-confluent")
    act = run.acts[0]
    assert kinds([run], log, act.at_ns + 1) == []
    assert kinds([run], log, run.to_ns)
    assert kinds([replace(run, acts=[*run.acts, Act(run.to_ns, "more", "second")])], log, run.to_ns) == []


# ---- damage


def capture() -> bytes:
    return gzip.decompress((DATA / "cut.pcap.gz").read_bytes())


def test_damage_is_the_same_for_the_same_seed() -> None:
    data = capture()
    (one,), _ = Damage("lost", 3, 0.01).of(data, None)
    assert [one] == Damage("lost", 3, 0.01).of(data, None)[0]
    assert 0 < len(packets(data)) - len(packets(one)) < len(packets(data)) // 20


def test_a_rotated_capture_has_all_packets() -> None:
    data = capture()
    parts, _ = Damage("rotated", files=3).of(data, None)
    assert [packet for part in parts for packet in packets(part)] == packets(data)


def test_a_cut_capture_says_when_it_ends() -> None:
    data = capture()
    (part,), end_ns = Damage("cut", share=0.1).of(data, None)
    assert data.startswith(part)
    assert end_ns == time_ns(packets(part)[-1]) < time_ns(packets(data)[-1])


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_wrong_clock_is_that_of_one_host(overlaps: bool) -> None:
    data = capture()
    (others, own), _ = Damage("skewed", skew_ms=1_500, overlaps=overlaps).of(data, HOST)
    assert len(packets(others)) == (len(packets(data)) if overlaps else 0)
    assert [time_ns(packet) - time_ns(was) for packet, was in zip(packets(own), packets(data), strict=True)] == [
        1_500_000_000
    ] * len(packets(data))
