"""AlterShareGroupOffsets and DeleteShareGroupOffsets are answered when the state of share partitions is in its log."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kcoord_wire import messages as m
from kcoord_wire.coordinator import Coordinator
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.wire import Wire


@pytest.fixture
def wire() -> Iterator[Wire]:
    with Coordinator(topics={"orders": 2}) as coordinator, Wire(coordinator.address) as connection:
        yield connection


def alter(offsets: dict[int, int], topic: str = "orders", group: str = "g") -> m.AlterShareGroupOffsetsRequest:
    parts = [m.AlterShareGroupOffsetsRequestPartition(partition_index=p, start_offset=o) for p, o in offsets.items()]
    named = m.AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=parts)
    return m.AlterShareGroupOffsetsRequest(group_id=group, topics=[named])


def delete(*topics: str, group: str = "g") -> m.DeleteShareGroupOffsetsRequest:
    named = [m.DeleteShareGroupOffsetsRequestTopic(topic_name=topic) for topic in topics]
    return m.DeleteShareGroupOffsetsRequest(group_id=group, topics=named)


def described(wire: Wire, group: str = "g") -> dict[int, tuple[int, int]]:
    """Return start offset and lag of each partition of a group."""
    asked = m.DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)
    (found,) = wire.call(m.DescribeShareGroupOffsetsRequest(groups=[asked]), 1).groups
    return {part.partition_index: (part.start_offset, part.lag) for topic in found.topics for part in topic.partitions}


def heartbeat(epoch: int) -> m.ShareGroupHeartbeatRequest:
    return m.ShareGroupHeartbeatRequest(
        group_id="g", member_id="m", member_epoch=epoch, subscribed_topic_names=["orders"]
    )


def test_offsets_are_set_described_and_deleted(wire: Wire) -> None:
    answer = wire.call(alter({0: 0, 1: 5, 7: 0}), 0)
    codes = {part.partition_index: part.error_code for part in answer.responses[0].partitions}
    assert codes == {0: 0, 1: 0, 7: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert described(wire) == {0: (0, 0), 1: (5, -5)}
    wire.call(alter({1: 3}), 0)
    assert described(wire) == {0: (0, 0), 1: (3, -3)}
    assert described(wire, "other") == {}
    gone = wire.call(delete("orders", "nothing"), 0).responses
    assert [each.error_code for each in gone] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert described(wire) == {}
    assert wire.call(delete("orders"), 0).responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert wire.call(alter({0: 1}, "nothing"), 0).responses[0].partitions[0].error_code


def test_a_group_with_members_keeps_its_offsets(wire: Wire) -> None:
    wire.call(alter({0: 0}), 0)
    assert wire.call(heartbeat(0), 1).error_code == 0
    assert wire.call(alter({0: 5}), 0).error_code == ErrorCode.NON_EMPTY_GROUP
    assert wire.call(delete("orders"), 0).error_code == ErrorCode.NON_EMPTY_GROUP
    assert wire.call(heartbeat(-1), 1).error_code == 0
    assert wire.call(alter({0: 5}), 0).error_code == 0
    assert described(wire)[0][0] == 5
    assert wire.call(m.DeleteGroupsRequest(groups_names=["g"]), 2).results[0].error_code == 0
    assert described(wire) == {}


@pytest.mark.parametrize("request_", [alter({0: 0}, group=""), delete("orders", group="")])
def test_a_group_needs_a_name(wire: Wire, request_: object) -> None:
    assert wire.call(request_, 0).error_code == ErrorCode.INVALID_GROUP_ID


def test_nothing_is_deleted_of_a_group_that_does_not_exist(wire: Wire) -> None:
    assert wire.call(delete("orders"), 0).error_code == ErrorCode.GROUP_ID_NOT_FOUND
