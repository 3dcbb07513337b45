"""The virtual cluster as its user has it: repeatable by seed, clients of all versions, faults, requests, wrong use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kcoord_wire.consumer.member_events import (
    CLIENT_VERSIONS,
    MemberState,
)
from kcoord_wire.coordinator.core.events import Trigger
from kcoord_wire.coordinator.core.groups import State
from kcoord_wire.worlds.group.world import Cluster
from tests.support.clusters import QUICK, SHORT, digest

# ---- the seed decides


_DIGEST = """
import sys
from tests.support.clusters import digest
print(digest(int(sys.argv[1])))
"""


def test_a_seed_gives_the_same_trace_in_every_process() -> None:
    here = [digest(seed) for seed in range(3)]
    assert len(set(here)) == 3
    for seed, hash_seed in ((0, "1"), (1, "2"), (2, "3")):
        there = subprocess.run(
            [sys.executable, "-c", _DIGEST, str(seed)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert there.stdout.strip() == here[seed]


# ---- scale


def test_a_large_group_becomes_stable_and_rebalances() -> None:
    count = int(os.environ.get("KCOORD_WIRE_MEMBERS", "1000"))  # `make proof` has ten times as many
    with Cluster(1, topics={"orders": count}) as sim:
        for number in range(count):
            sim.member(f"m{number}", commit_ms=None)
        assert sim.run_until(sim.is_settled) < 10_000
        assert len(set(sim.owners().values())) == count
        sim.leave("m7")
        sim.run(1)
        sim.run_until(sim.is_settled)
        assert sim.rebalances[-1].trigger is Trigger.MEMBER_LEFT
        assert len(sim.rebalances[-1].joins) == count - 1


# ---- clients of all versions, and what a user does


@pytest.mark.parametrize("client", CLIENT_VERSIONS)
def test_every_client_joins_commits_and_leaves(client: str) -> None:
    with Cluster(2, topics={"orders": 6}, config=QUICK) as sim:
        sim.member("m1", client=client, instance_id="i1", **SHORT)
        sim.member("m2", client=client, **SHORT)
        sim.run_until(sim.is_settled)
        sim.run(20_000)
        assert [line for line in sim.trace if line.what == "committed"]
        sim.leave("m2")
        sim.run(10)
        sim.run_until(sim.is_settled)
        assert sim.rebalances[-1].trigger is Trigger.MEMBER_LEFT
        sim.restart("m1")
        sim.run(1)
        sim.run_until(sim.is_settled)
        sim.run(1_000)
        fetched = [line.detail.offsets for line in sim.trace if line.what == "fetched"][-1]
        assert len(fetched) == 6
        assert min(fetched.values()) > 0, "it resumes where it was"


def test_clients_of_all_versions_share_a_group() -> None:
    with Cluster(4, topics={"orders": 12}) as sim:
        for client in CLIENT_VERSIONS:
            sim.member(client, client=client)
        sim.run_until(sim.is_settled)
        assert sorted(sim.owners().values()) == sorted([*CLIENT_VERSIONS] * 2)


def test_a_static_member_that_returns_in_time_moves_nothing() -> None:
    with Cluster(5, topics={"orders": 4}, config=QUICK) as sim:
        sim.member("m1", instance_id="i1", **SHORT)
        sim.member("m2", instance_id="i2", **SHORT)
        sim.run_until(sim.is_settled)
        owners, ended = sim.owners(), len(sim.rebalances)
        sim.crash("m1")
        sim.run(3_000)
        sim.restart("m1")
        sim.run(10_000)
        assert sim.is_settled()
        assert sim.owners() == owners
        assert len(sim.rebalances) == ended
        sim.member("double", instance_id="i1", **SHORT)
        sim.run(10_000)
        assert sim.processes["m1"].member.state is MemberState.FAILED, "fenced by its replacement"


def test_new_partitions_are_found_by_the_leader(three: Cluster) -> None:
    three.add_partitions("orders", 3)
    three.run_until(three.is_settled)
    assert len(three.owners()) == 12


def test_another_subscription_moves_partitions(three: Cluster) -> None:
    three.add_partitions("payments", 2)
    three.subscribe("m1", ["payments"])
    three.run_until(three.is_settled)
    assert {name for partition, name in three.owners().items() if partition.topic == "payments"} == {"m1"}


def test_two_groups_do_not_touch_each_other() -> None:
    with Cluster(6, topics={"orders": 4}, config=QUICK) as sim:
        sim.member("a1", group="a")
        sim.member("b1", group="b")
        sim.run_until(sim.is_settled)
        assert {len(process.member.owned) for process in sim.processes.values()} == {4}
        assert sim.state("a") is sim.state("b") is State.STABLE


def test_run_until_times_out_when_nothing_happens() -> None:
    with Cluster() as sim, pytest.raises(TimeoutError, match="not within 1000 ms"):
        sim.run_until(lambda: False, 1_000)


def test_wrong_use_raises_at_once() -> None:
    with pytest.raises(ValueError, match="topic 'o' needs one partition or more, not 0"):
        Cluster(topics={"o": 0})
    with Cluster(topics={"o": 4}, members=["a"]) as sim:
        with pytest.raises(TypeError, match="topics must be a list of strings, not 'o'"):
            sim.member("b", topics="o")
        with pytest.raises(ValueError, match="no assignor is called 'rnage'; there are range"):
            sim.member("b", assignors=["rnage"])
        with pytest.raises(ValueError, match="no client is called 'perl'"):
            sim.member("b", client="perl")
        with pytest.raises(KeyError):
            sim.restart("b")
        with pytest.raises(ValueError, match="cannot pass by -1 ms"):
            sim.run(-1)
        assert list(sim.processes) == ["a"]
