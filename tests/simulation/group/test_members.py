"""Consumer processes: their options, leaders that compute slowly, applications that give up partitions slowly."""

from __future__ import annotations

import pytest

from kcoord_wire.simulation.group.cluster import Cluster
from kcoord_wire.simulation.group.members import MemberOptions
from tests.support.clusters import QUICK, SHORT


def test_options_are_checked_when_they_are_made() -> None:
    with pytest.raises(TypeError, match="topics must be a list of strings, not 'o'"):
        MemberOptions(topics="o")
    with pytest.raises(TypeError, match="assignors must be a list of strings, not 'range'"):
        MemberOptions(assignors="range")
    with pytest.raises(ValueError, match="no assignor is called 'rnage'; there are range, roundrobin"):
        MemberOptions(assignors=["rnage"])
    with pytest.raises(ValueError, match="no client is called 'perl'; there are java"):
        MemberOptions(client="perl")


def test_options_print_what_differs_from_the_defaults() -> None:
    assert repr(MemberOptions()) == "MemberOptions()"
    assert repr(MemberOptions(client="kafkajs", release_ms=5)) == "MemberOptions(client='kafkajs', release_ms=5)"


def test_the_client_id_is_the_name_unless_it_is_given() -> None:
    assert MemberOptions().settings("m1").client_id == "m1"
    assert MemberOptions(client_id="billing").settings("m1").client_id == "billing"


@pytest.mark.parametrize("blocks", [False, True])
def test_a_leader_that_computes_may_stop_its_heartbeats(blocks: bool) -> None:
    with Cluster(1, config=QUICK) as sim:
        sim.member("m1", assign_ms=4_000, assign_blocks=blocks, **SHORT)
        sim.run_until(sim.is_settled)
        lines = [line.what for line in sim.trace if line.who == "m1"]
        (assigns,) = (line.at for line in sim.trace if line.what == "assigns")
        (assigned,) = (line.at for line in sim.trace if line.what == "assigned")
    assert assigned >= assigns + 4_000
    assert ("pauses" in lines) is blocks


def test_partitions_are_released_one_after_the_other() -> None:
    with Cluster(1, topics={"orders": 4}, config=QUICK) as sim:
        sim.member("m1", release_ms=100, **SHORT)
        sim.run_until(sim.is_settled)
        sim.member("m2", **SHORT)
        sim.run_until(lambda: any(line.what == "revoking" for line in sim.trace))
        start = sim.now
        joins = sum(line.what == "joins" for line in sim.trace if line.who == "m1")
        took = sim.run_until(lambda: sum(line.what == "joins" for line in sim.trace if line.who == "m1") > joins)
    assert took == 4 * 100, f"from {start}"
