"""The coordinator's boots: crashes, cut-off writes, and a disk that fails."""

from __future__ import annotations

import pytest

from kcoord_wire import messages as m
from kcoord_wire.kernel.virtual.scripts import ViolationError
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.worlds.group.world import Cluster
from tests.support.clusters import SHORT


def coordinator_lines(sim: Cluster) -> list[str]:
    ours = {"starts", "serves", "crashes", "cannot read", "cannot write"}
    return [line.what for line in sim.trace if line.who == "coordinator" and line.what in ours]


def test_a_crash_takes_the_coordinator_down_for_a_while(three: Cluster) -> None:
    three.crash_coordinator(2_000, load_ms=300)
    assert not three.is_up
    assert three.state() is None
    three.run(1_999)
    assert not three.is_up
    three.run(1)
    assert three.is_up
    three.run(300)
    assert coordinator_lines(three) == ["starts", "serves", "crashes", "starts", "serves"]


def test_a_crash_can_wait_for_a_disk_operation(three: Cluster) -> None:
    three.crash_coordinator(writes=2)
    assert three.is_up
    three.run_until(lambda: not three.is_up)  # the members' commits write
    three.run(10_000)
    three.run_until(three.is_settled)


def test_a_failed_write_makes_it_read_its_log_again(three: Cluster) -> None:
    three.fail_disk(500)
    three.run(10_000)
    three.run_until(three.is_settled)
    assert coordinator_lines(three) == ["starts", "serves", "cannot write", "serves"]


@pytest.mark.parametrize("stops", [False, True])
def test_members_find_a_coordinator_that_moves(three: Cluster, stops: bool) -> None:
    owners, ended = three.owners(), len(three.rebalances)
    three.move_coordinator(load_ms=500, stops=stops)
    three.run_until(three.is_settled)
    three.run(20_000)
    assert three.is_settled()
    assert three.owners() == owners
    assert len(three.rebalances) == ended
    assert "moves" in [line.what for line in three.trace if line.who == "coordinator"]


@pytest.mark.parametrize("writes", [0, 1])
def test_a_coordinator_that_moves_survives_a_failing_disk(three: Cluster, writes: int) -> None:
    three.fail_disk(500, writes=writes)
    three.move_coordinator()
    three.run(30_000)
    three.run_until(three.is_settled)


def test_an_exception_of_the_coordinator_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    with Cluster() as sim:
        sim.member("m1", **SHORT)
        monkeypatch.setattr(sim._coordinator.machine, "groups", None)
        with pytest.raises(ViolationError) as caught:
            sim.run(1_000)
    assert caught.value.law == "never fails"


def test_a_users_request_is_refused_while_the_groups_are_read(three: Cluster) -> None:
    """As on the server: a load that is under way would not know what is written meanwhile."""
    three.move_coordinator(1_500)
    three.run(100)
    answer = three.ask(m.HeartbeatRequest(group_id="group", generation_id=99, member_id="unknown"), 4)
    assert answer.error_code == 0, "members are kept calm"
    partition = m.OffsetCommitRequestPartition(partition_index=0, committed_offset=5)
    topic = m.OffsetCommitRequestTopic(name=min(three.topics), partitions=[partition])
    answer = three.ask(m.OffsetCommitRequest(group_id="group", topics=[topic]), 9)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
