"""Share groups of a running coordinator: what a restart finds, releases, permissions, and what operators see."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import kcoord_wire as kw
from kcoord_wire.coordinator import Coordinator, GroupConfig
from kcoord_wire.protocol.api_keys import ApiKey
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.group_client import VERSIONS
from tests.support.processes import Process
from tests.support.waiting import eventually
from tests.support.wire import Wire

CONFIG = GroupConfig(share_assignment_interval_ms=0)


def beat(wire: Wire, epoch: int, *topics: str, member: str = "a") -> kw.ShareGroupHeartbeatResponse:
    heartbeat = kw.ShareGroupHeartbeatRequest(
        group_id="g", member_id=member, member_epoch=epoch, subscribed_topic_names=list(topics) or None
    )
    answer: kw.ShareGroupHeartbeatResponse = wire.call(heartbeat, 1)
    return answer


def enter(wire: Wire) -> int:
    """Join, and beat until the partitions are assigned; the epoch."""
    epoch = beat(wire, 0, "orders").member_epoch
    return eventually(lambda: beat(wire, epoch), until=lambda answer: answer.member_epoch > epoch).member_epoch


def test_a_restart_finds_the_group(tmp_path: Path) -> None:
    with Coordinator(topics={"orders": 3}, config=CONFIG, data_dir=tmp_path) as before, Wire(before.address) as wire:
        epoch = enter(wire)
        described = before.describe("g")
    with Coordinator(config=CONFIG, data_dir=tmp_path) as after, Wire(after.address) as wire:
        assert beat(wire, epoch).member_epoch == epoch
        assert after.describe("g").members == described.members
        assert described.members[0].assignment == {"orders": (0, 1, 2)}
        assert beat(wire, -1).error_code == ErrorCode.NONE
        assert wire.call(kw.DeleteGroupsRequest(groups_names=["g"]), 2).results[0].error_code == ErrorCode.NONE
    with Coordinator(config=CONFIG, data_dir=tmp_path) as last:
        assert last.groups() == []


@pytest.mark.parametrize(("release", "level"), [("4.1", None), ("4.2", 1), ("4.4", 1)])
def test_releases_before_share_groups_have_none(release: str, level: int | None) -> None:
    with Coordinator(topics={"orders": 3}, as_version=release) as coordinator, Wire(coordinator.address) as wire:
        answer = wire.call(VERSIONS, 3)
        served = {each.api_key for each in answer.api_keys}
        features = {each.name: each.max_version_level for each in answer.finalized_features}
        assert features.get("share.version") == level
        assert ({ApiKey.SHARE_GROUP_HEARTBEAT, ApiKey.SHARE_GROUP_DESCRIBE} <= served) == (level is not None)
        if level is None:
            wire.send(kw.ShareGroupHeartbeatRequest(group_id="g", member_id="a"), 1)
            assert wire.is_closed_by_peer()
        else:
            assert beat(wire, 0, "orders").error_code == ErrorCode.NONE


def test_what_operators_of_a_share_group_see() -> None:
    with Coordinator(topics={"orders": 3}, config=CONFIG) as coordinator, Wire(coordinator.address) as wire:
        beat(wire, 0, "orders")
        coordinator.wait_until_stable("g", members=1, poll=lambda: beat(wire, 2))
        assert "assigned orders 0-2" in coordinator.explain("g")
        assert coordinator.describe("g").protocol_type == "share"
        assert 'kcoord_groups{state="Stable"} 1' in coordinator.metrics()
        (*_, last) = coordinator.rebalances
        assert (str(last.trigger), last.outcome) == ("share partitions initialized", "stable")


def test_no_acknowledged_epoch_is_lost_by_kills(tmp_path: Path) -> None:
    """Members beat on one coordinator after the other, each of which is killed; each knows them in their epochs."""
    command = [sys.executable, "-m", "kcoord_wire", "serve", "--topics", "orders:4", "--port", "0"]
    command += ["--data-dir", str(tmp_path), "--config", "group.share.assignment.interval.ms=0"]
    epochs: dict[str, int] = {}
    for member in ("a", "b"):
        with Process(command, ready=r"serves on (\S+?),? ") as server, Wire(server.ready[1]) as wire:
            known = wire.call(kw.ShareGroupDescribeRequest(group_ids=["g"]), 1).groups[0].members
            assert {each.member_id: each.member_epoch for each in known} == epochs
            epochs[member] = beat(wire, 0, "orders", member=member).member_epoch
            for _ in range(5):
                for name, epoch in epochs.items():
                    epochs[name] = beat(wire, epoch, member=name).member_epoch
                    assert epochs[name] >= epoch > 0
