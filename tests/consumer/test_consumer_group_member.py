"""The member of KIP-848: what it sends, owns and gives up in each situation."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from kcoord_wire import messages as m
from kcoord_wire.consumer.kip848_member import (
    Assigned,
    Commit,
    Committed,
    ConsumerGroupMember,
    Failed,
    Leave,
    Left,
    Lost,
    MemberSettings,
    NotCommitted,
    Partition,
    Released,
    Revoking,
    State,
    Subscribe,
)
from kcoord_wire.consumer.member_events import Arrived, SendRequest
from kcoord_wire.kernel.machines import Disconnected, Tick
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.consumers import heartbeat_answer

TOPIC = uuid.UUID(int=7)


def parts(*numbers: int) -> frozenset[Partition]:
    return frozenset(Partition(TOPIC, number) for number in numbers)


class Host:
    """A member with the last request that it has sent."""

    def __init__(self, **settings: Any) -> None:
        known = {"group_id": "g", "client_id": "c", "member_id": "m", "retry_ms": 100, "request_timeout_ms": 1_000}
        self.member = ConsumerGroupMember(MemberSettings(**{**known, **settings}))
        self.now = 1_000
        self.sent: Any = None
        self.request_id = 0

    def handle(self, event: Any) -> list[Any]:
        effects = []
        for effect in self.member.handle(event, self.now):
            if isinstance(effect, SendRequest):
                self.sent, self.request_id = effect.message, effect.request_id
            else:
                effects.append(effect)
        return effects

    def subscribed(self) -> list[Any]:
        return self.handle(Subscribe(["orders"]))

    def answer(self, epoch: int, *given: int, error: int = 0, silent: bool = False) -> list[Any]:
        response = heartbeat_answer(TOPIC, epoch, given, error, silent=silent)
        self.sent = None
        return self.handle(Arrived(self.request_id, response))

    def wait(self, ms: int) -> list[Any]:
        self.now += ms
        self.sent = None
        return self.handle(Tick())


def joined(*given: int, **settings: Any) -> Host:
    host = Host(**settings)
    host.subscribed()
    host.answer(3, *given)
    host.answer(3, silent=True)
    assert host.member.is_at_rest
    return host


def test_the_first_heartbeat_says_everything() -> None:
    host = Host(instance_id="i", assignor="range")
    host.subscribed()
    assert host.sent == m.ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        instance_id="i",
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["orders"],
        server_assignor="range",
        topic_partitions=[],
    )


def test_it_owns_and_reports_what_it_is_given() -> None:
    host = Host()
    host.subscribed()
    assert host.answer(3, 0, 1) == [Assigned(parts(0, 1))]
    assert host.member.owned == parts(0, 1)
    assert [(part.topic_id, part.partitions) for part in host.sent.topic_partitions] == [(TOPIC, [0, 1])]
    assert host.sent.member_epoch == 3
    host.answer(3, silent=True)
    assert host.member.is_at_rest


def test_a_heartbeat_says_what_has_changed_alone() -> None:
    host = joined(0)
    host.wait(499)
    assert host.sent is None
    host.wait(1)
    assert host.sent == m.ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=3)
    host.answer(3, silent=True)
    host.handle(Subscribe(["payments"], "o.*"))
    assert (host.sent.subscribed_topic_names, host.sent.subscribed_topic_regex) == (["payments"], "o.*")
    assert host.sent.rebalance_timeout_ms == -1


def test_it_owns_until_the_application_has_given_up() -> None:
    host = joined(0, 1)
    host.wait(500)
    (revoking,) = host.answer(3, 0)
    assert revoking == Revoking(1, parts(1))
    assert host.member.owned == parts(0, 1)
    host.wait(500)
    assert host.sent.topic_partitions is None, "it beats meanwhile, and nothing has changed"
    host.answer(3, silent=True)
    host.handle(Released(1))
    assert host.member.owned == parts(0)
    assert host.sent.topic_partitions[0].partitions == [0]


def test_a_target_that_changes_meanwhile_counts_afterwards() -> None:
    host = joined(0, 1)
    host.wait(500)
    host.answer(3, 0)
    host.wait(500)
    assert host.answer(3, 0, 1, 2) == []
    assert host.handle(Released(1)) == [Assigned(parts(1, 2))]
    assert host.member.owned == parts(0, 1, 2)


@pytest.mark.parametrize(
    "error", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND]
)
def test_a_fenced_member_loses_all_and_joins_again(error: ErrorCode) -> None:
    host = joined(0)
    host.wait(500)
    assert host.answer(0, error=error) == [Lost(parts(0))]
    assert host.member.state is State.JOINING
    host.wait(100)
    assert (host.sent.member_epoch, host.sent.subscribed_topic_names) == (0, ["orders"])


def test_what_was_being_given_up_when_all_was_lost_is_forgotten() -> None:
    host = joined(0, 1)
    host.wait(500)
    host.answer(3, 0)
    host.wait(500)
    host.answer(0, error=ErrorCode.FENCED_MEMBER_EPOCH)
    assert host.handle(Released(1)) == []
    host.wait(100)
    assert host.answer(5, 1) == [Assigned(parts(1))]


def test_a_fenced_instance_is_the_end() -> None:
    host = joined(0, instance_id="i")
    host.wait(500)
    assert host.answer(0, error=ErrorCode.FENCED_INSTANCE_ID) == [
        Lost(parts(0)),
        Failed(ErrorCode.FENCED_INSTANCE_ID),
    ]
    assert host.member.deadline is None


@pytest.mark.parametrize("loss", ["timeout", "disconnect", "error"])
def test_after_a_loss_the_heartbeat_is_complete(loss: str) -> None:
    host = joined(0)
    host.wait(500)
    if loss == "timeout":
        host.wait(1_000)
    elif loss == "disconnect":
        host.handle(Disconnected())
    else:
        host.answer(0, error=ErrorCode.NOT_COORDINATOR)
    host.wait(100)
    assert host.sent.member_epoch == 3
    assert host.sent.topic_partitions[0].partitions == [0]
    assert host.sent.subscribed_topic_names == ["orders"]
    assert host.member.owned == parts(0)


@pytest.mark.parametrize(("instance", "epoch"), [(None, -1), ("i", -2)])
def test_it_leaves_without_partitions(instance: str | None, epoch: int) -> None:
    host = joined(0, instance_id=instance)
    assert host.handle(Leave(for_a_while=True)) == [Lost(parts(0))]
    assert host.sent.member_epoch == epoch
    assert host.answer(epoch, silent=True) == [Left()]


def test_the_farewell_waits_for_the_heartbeat_in_flight() -> None:
    host = joined(0)
    host.wait(500)
    host.sent = None
    host.handle(Leave())
    assert host.sent is None
    assert host.answer(3, silent=True) == []
    assert host.sent.member_epoch == -1
    assert host.wait(1_000) == [Left()], "nobody answers"


def test_commits_carry_the_epoch() -> None:
    host = joined(0)
    host.handle(Commit({("orders", 0): 5, ("orders", 1): 6}))
    assert host.sent.generation_id_or_member_epoch == 3
    assert [part.committed_offset for part in host.sent.topics[0].partitions] == [5, 6]
    for error, effect in ((0, Committed()), (ErrorCode.STALE_MEMBER_EPOCH, NotCommitted(113))):
        part = m.OffsetCommitResponsePartition(partition_index=0, error_code=error)
        topic = m.OffsetCommitResponseTopic(name="orders", partitions=[part])
        assert host.handle(Arrived(host.request_id, m.OffsetCommitResponse(topics=[topic]))) == [effect]


def test_an_answer_that_was_not_waited_for_is_ignored() -> None:
    host = joined(0)
    host.request_id = 99
    assert host.answer(7, 1) == []
    assert host.member.epoch == 3
