"""Brokers of the rewrite as processes on a real ZooKeeper, while the group's coordinator is killed and paused."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kcoord_wire import messages as m
from kcoord_wire.central.rewrite.events import RewriteError
from kcoord_wire.zookeeper.ensemble import Ensemble
from tests.support.central_processes import BrokerProcess
from tests.support.rewrite_wire import RewriteWire
from tests.support.waiting import eventually
from tests.support.zookeeper import chroot_of_its_own

SESSION_MS = 4_000
OPTIONS = ("--design", "rewrite", "--shards", "2", "--topics", "orders:3", "--session-timeout-ms", str(SESSION_MS))
pytestmark = pytest.mark.slow


class Member:
    """A member of group ``g`` whose requests the test says."""

    def __init__(self, brokers: dict[int, BrokerProcess], stack: ExitStack) -> None:
        self.brokers = brokers
        self._stack = stack
        self.wire: RewriteWire
        self.coordinator = 0
        self.place = m.rewrite.RewriteJoinGroupResponse()

    def find(self, by: int) -> int:
        """Ask a broker for the coordinator; 0 if it does not know."""
        with RewriteWire(self.brokers[by].address) as wire:
            answer = wire.ask(m.FindCoordinatorRequest(key="g"))
        return 0 if answer.error_code else int(answer.node_id)

    def connect(self, to: int) -> None:
        self.coordinator, self.wire = to, self._stack.enter_context(RewriteWire(self.brokers[to].address))

    def join(self) -> None:
        self.place = self.wire.ask(
            m.rewrite.RewriteJoinGroupRequest(
                group_id="g",
                session_timeout_ms=30_000,
                topics=["orders"],
                consumer_id=self.place.consumer_id,
                strategy="range",
            )
        )
        assert self.place.error_code == 0

    def heartbeat_request(self) -> m.HeartbeatRequest:
        return m.HeartbeatRequest(
            group_id="g", generation_id=self.place.generation_id, member_id=self.place.consumer_id
        )

    def heartbeat(self) -> int:
        return int(self.wire.ask(self.heartbeat_request()).error_code)

    def commit_request(self, offset: int) -> m.OffsetCommitRequest:
        partition = m.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        return m.OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=self.place.generation_id,
            member_id=self.place.consumer_id,
            topics=[m.OffsetCommitRequestTopic(name="orders", partitions=[partition])],
        )

    def commit(self, offset: int) -> int:
        return int(self.wire.ask(self.commit_request(offset)).topics[0].partitions[0].error_code)

    def committed(self) -> int:
        wanted = m.OffsetFetchRequestTopic(name="orders", partition_indexes=[0])
        [topic] = self.wire.ask(m.OffsetFetchRequest(group_id="g", topics=[wanted])).topics
        return int(topic.partitions[0].committed_offset)

    def takeover(self, heir: int) -> None:
        """Wait until another broker coordinates, and go on there."""
        eventually(lambda: self.find(heir) == heir)
        self.connect(heir)


@pytest.fixture
def member(zookeeper: Ensemble) -> Iterator[Member]:
    """A member with a committed offset, and two brokers."""
    connect = zookeeper.connect + chroot_of_its_own()
    with ExitStack() as stack:
        brokers = {number: stack.enter_context(BrokerProcess(connect, number, *OPTIONS)) for number in (1, 2)}
        member = Member(brokers, stack)
        brokers[2].wait_for("coordination started")  # it has its part of the shards
        eventually(lambda: member.find(1) == member.find(2) != 0)
        member.connect(member.find(1))
        member.join()
        assert member.commit(41) == 0
        yield member


def test_a_killed_coordinator_is_replaced_with_its_groups(member: Member) -> None:
    heir = 3 - member.coordinator
    member.brokers[member.coordinator].kill()
    member.takeover(heir)
    assert (member.heartbeat(), member.committed()) == (0, 41)
    assert member.commit(42) == 0


def test_a_paused_coordinator_writes_nothing_when_it_resumes(member: Member) -> None:
    """While it is stopped it is sent a commit, which it reads after another broker has taken the group over."""
    old, heir, wire = member.brokers[member.coordinator], 3 - member.coordinator, member.wire
    old.send(signal.SIGSTOP)
    wire.send(member.commit_request(7), 1)
    member.takeover(heir)
    assert (member.heartbeat(), member.commit(42)) == (0, 0)
    old.send(signal.SIGCONT)
    assert wire.is_closed_by_peer(), "it resigns before it acts, and closes its members' connections"
    old.wait_for("broker resigned")
    assert member.committed() == 42
    eventually(lambda: member.find(3 - heir) != 0)
    member.connect(member.find(heir))
    assert member.heartbeat() in (0, RewriteError.NOT_COORDINATOR_FOR_GROUP)
    assert "Traceback" not in old.log + member.brokers[heir].log
