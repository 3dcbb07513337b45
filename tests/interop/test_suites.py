"""The tests of other projects about groups, run against our coordinator: what does not pass is listed in suites.toml.

The suites are fetched when this runs (`tests/support/peer_suites.py`), and run two at a time, for they mostly wait.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from kcoord_wire.coordinator import Coordinator, GroupConfig
from kcoord_wire.coordinator.connection import PeerLimits
from tests.support.peer_suites import (
    FAILED,
    PASSED,
    SKIPPED,
    Listed,
    Outcomes,
    Suite,
    judge,
    prepare,
    read_suites,
    run_suite,
)
from tests.support.toxiproxy import proxies_without_toxics

SUITES = read_suites(Path(__file__).with_name("suites.toml"))
CONFIG = GroupConfig(initial_rebalance_delay_ms=200, min_session_timeout_ms=1000)
LIMITS = PeerLimits(max_frame_size=16 << 20)  # franz-go produces a record of 5 MiB
PARTITIONS = 4  # of topics that clients ask for; kafka-python's tests expect it


def outcomes_of(suite: Suite) -> tuple[Outcomes, str]:
    """Run a suite on a coordinator of its own."""
    folder = prepare(suite)
    partitions = PARTITIONS if suite.auto_create else None
    with (
        Coordinator(config=CONFIG, limits=LIMITS, auto_create_partitions=partitions) as coordinator,
        proxies_without_toxics() as toxiproxy,
    ):
        return run_suite(suite, folder, address=coordinator.address, toxiproxy=toxiproxy)


def test_the_suites_pass() -> None:
    """One test, so that no worker of pytest-xdist runs a suite that another one runs."""
    with ThreadPoolExecutor(2) as threads:
        runs = dict(zip(SUITES, threads.map(outcomes_of, SUITES.values()), strict=True))
    problems = [(judge(SUITES[name], outcomes), written) for name, (outcomes, written) in runs.items()]
    assert not any(found for found, _ in problems), "\n".join(
        line for found, written in problems if found for line in (*found, written[-20_000:])
    )
    print({name: list(outcomes.values()).count(PASSED) for name, (outcomes, _) in runs.items()})


def test_kafka_python_on_our_codec() -> None:
    """Its client with embedding/kafka_python.py: what passes with its own codec passes with ours."""
    suite = replace(
        SUITES["kafka-python"], name="kafka-python on our codec", plugin="tests.interop.embedding.kafka_python"
    )
    outcomes, written = outcomes_of(suite)
    problems = judge(suite, outcomes)
    assert not problems, "\n".join((*problems, written[-20_000:]))
    frames = re.search(r"frames of kcoord_wire \((\w+)\): {'written': (\d+), 'read': (\d+)}", written)
    assert frames, written[-2000:]
    assert frames[1] == "native"
    assert min(int(frames[2]), int(frames[3])) > 100
    print(list(outcomes.values()).count(PASSED), frames[0])


# ---- the judge


LINES = [Listed("TestDocker", FAILED, "needs docker"), Listed("Test848/.*", SKIPPED, "not served")]
LIST = replace(next(iter(SUITES.values())), name="peer", listed=LINES)
GOOD = {"TestJoin": PASSED, "TestDocker": FAILED, "Test848/range": SKIPPED}


@pytest.mark.parametrize(
    ("outcomes", "problem"),
    [
        (GOOD, ""),
        (GOOD | {"TestJoin": FAILED, "TestLeave": PASSED}, "peer: TestJoin fails, and is not listed"),
        (GOOD | {"TestLeave": SKIPPED}, "peer: TestLeave skips itself, and is not listed"),
        (GOOD | {"TestDocker": PASSED}, "peer: TestDocker passes, and the list is stale: it fails"),
        (GOOD | {"Test848/range": FAILED}, "peer: Test848/range fails, and the list is stale: it skips itself"),
        ({"TestJoin": PASSED, "TestDocker": FAILED}, "peer: Test848/.* is listed, and there is no such test"),
        ({"TestDocker": FAILED, "Test848/range": SKIPPED}, "peer: no test passes"),
    ],
)
def test_the_judge(outcomes: Outcomes, problem: str) -> None:
    assert judge(LIST, outcomes) == ([problem] if problem else [])
