"""Share groups (KIP-932): joining, sharing out, epochs, what is refused, other requests, and what an operator sees.

A partition is assigned only when its state is there, which Kafka's coordinators settle among themselves after the
heartbeat that asks for the topic; a script waits for that with heartbeats that are not recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import kcoord_wire as kw
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.interop.exchanges.heartbeats import JOINS, LEAVES, Heartbeater
from tests.interop.exchanges.script import script
from tests.interop.exchanges.stage import Answer, Connection, Stage

INVALID, UNKNOWN = ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_MEMBER_ID
_GROUP = 32  # as type of a resource with configs
FENCED, NOT_FOUND = ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND


@dataclass
class Sharer:
    """A member of the script's group, on its own connection.

    :ivar topics: its subscription
    :ivar id: chosen so that no two share a bucket of Java's hash table, where Kafka's order depends on its history
    """

    stage: Stage
    name: str
    topics: Sequence[str] = ("orders",)
    rack: str | None = None
    id: str = ""
    epoch: int = JOINS

    def __post_init__(self) -> None:
        self.id = self.id or f"id-{self.name}"
        self.connection: Connection = self.stage.connect(self.name)

    def joins(self, error: ErrorCode | None = None, **changes: Any) -> Answer:
        """The first heartbeat, with everything in it."""
        known = {"member_epoch": JOINS, "rack_id": self.rack, "subscribed_topic_names": list(self.topics)}
        return self.beats(error, **{**known, **changes})

    def beats(self, error: ErrorCode | None = None, **changes: Any) -> Answer:
        """A heartbeat in which nothing has changed but `changes`."""
        answer = self.connection.call(self._request(changes), 1, error)
        if answer.error_code == ErrorCode.NONE:
            self.epoch = answer.member_epoch
        return answer

    def gets_more(self, epoch: int) -> None:
        """Beat until it is in this epoch; nothing is recorded."""
        with self.stage.off_the_record():
            self.stage.eventually(self.beats, lambda answer: answer.member_epoch == epoch)

    def leaves(self, error: ErrorCode | None = None) -> Answer:
        answer = self.beats(error, member_epoch=LEAVES)
        self.epoch = JOINS
        return answer

    def _request(self, changes: dict[str, Any]) -> Any:
        known = {"group_id": self.stage.group, "member_id": self.id, "member_epoch": self.epoch}
        return kw.ShareGroupHeartbeatRequest(**{**known, **changes})


def sharers(stage: Stage, *names: str, **settings: Any) -> list[Sharer]:
    """Members of these names with the same settings, not yet joined."""
    return [Sharer(stage, name, **settings) for name in names]


def shown(stage: Stage, group: str | None = None, error: ErrorCode | None = None, **changes: Any) -> Answer:
    """ShareGroupDescribe of one group, by default the script's."""
    request = kw.ShareGroupDescribeRequest(group_ids=[stage.group if group is None else group], **changes)
    return stage.connect("admin").call(request, 1, error)


def settled(stage: Stage, *members: Sharer) -> None:
    """Each of them beats once, and the group is shown."""
    for member in members:
        member.beats()
    shown(stage)


@script(settings="share")
def share_alone(stage: Stage) -> None:
    """One member's whole life, and the group at each step of it."""
    admin = stage.connect("admin")
    shown(stage, error=NOT_FOUND)
    a = Sharer(stage, "a", rack="r1")
    a.joins()
    a.gets_more(3)
    shown(stage)
    shown(stage, include_authorized_operations=True)
    a.beats()
    a.beats(subscribed_topic_names=["orders"])
    a.joins()
    a.beats(rack_id="r2")
    shown(stage)
    admin.call(kw.ListGroupsRequest(), 5)
    admin.call(kw.ListGroupsRequest(types_filter=["SHARE"], states_filter=["stable"]), 5)
    admin.call(kw.ListGroupsRequest(types_filter=["consumer", "classic"]), 5)
    admin.call(kw.DeleteGroupsRequest(groups_names=[stage.group]), 2, ErrorCode.NON_EMPTY_GROUP)
    a.leaves()
    shown(stage)
    admin.call(kw.ListGroupsRequest(), 5)
    a.beats(UNKNOWN, member_epoch=1)
    a.leaves(UNKNOWN)
    a.joins()
    shown(stage)
    a.leaves()
    admin.call(kw.DeleteGroupsRequest(groups_names=[stage.group]), 2)
    shown(stage, error=NOT_FOUND)
    admin.call(kw.DeleteGroupsRequest(groups_names=[stage.group]), 2, NOT_FOUND)
    admin.call(kw.ListGroupsRequest(), 5)
    shown(stage, group="", error=ErrorCode.INVALID_GROUP_ID)


@script(settings="share")
def share_partitions_among_few_and_many(stage: Stage) -> None:
    """Members share three partitions out, until there are more members than partitions; then partitions are shared.

    Who has how many when one of several leaves depends on the id of the topic, in Kafka too: a member that already has
    the partition of which there is one too few does not get another.
    """
    a, b, c, d, e = sharers(stage, "a", "b", "c", "d", "e")
    a.joins()
    a.gets_more(3)
    shown(stage)
    b.joins()
    settled(stage, a, b)
    c.joins()
    settled(stage, a, b, c)
    d.joins()
    settled(stage, a, b, c, d)
    e.joins()
    settled(stage, a, b, c, d, e)
    for member in (b, e, a, d):
        member.leaves()
    settled(stage, c)
    b.joins()
    settled(stage, b, c)


@script(settings="share")
def share_topics_of_some(stage: Stage) -> None:
    """Members subscribe to different topics, change their mind, and name topics that do not exist."""
    a = Sharer(stage, "a")
    b = Sharer(stage, "b", topics=("orders", "payments"))
    c = Sharer(stage, "c", topics=("payments", "missing"))
    a.joins()
    a.gets_more(3)
    b.joins()
    b.gets_more(5)
    settled(stage, a, b)
    c.joins()
    settled(stage, a, b, c)
    a.beats(subscribed_topic_names=["payments", "orders"])
    settled(stage, a, b, c)
    b.beats(subscribed_topic_names=["missing"])
    settled(stage, a, b, c)
    a.beats(subscribed_topic_names=[])
    settled(stage, a, b, c)
    c.leaves()
    settled(stage, a, b)


@script(settings="share")
def share_heartbeat_of_odd_fields(stage: Stage) -> None:
    """What a heartbeat must and must not have, before there is a group."""
    a = Sharer(stage, "a")
    a.joins(INVALID, group_id="")
    a.joins(INVALID, group_id="  ")
    a.joins(INVALID, member_id="")
    a.joins(INVALID, member_id=" ")
    a.joins(INVALID, member_id="x" * 37)
    a.joins(INVALID, rack_id="")
    a.joins(INVALID, rack_id=" ")
    a.joins(INVALID, subscribed_topic_names=None)
    a.joins(INVALID, subscribed_topic_names=[])
    a.beats(INVALID, member_epoch=-2)
    a.beats(NOT_FOUND, member_epoch=1)
    a.leaves(NOT_FOUND)
    a.id = "x" * 36
    a.joins(subscribed_topic_names=["orders", "orders"])
    a.gets_more(3)
    shown(stage)


@script(settings="share")
def share_epochs(stage: Stage) -> None:
    """Which epochs a heartbeat may have: the member's, the one before, and 0."""
    a, b = sharers(stage, "a", "b")
    a.joins()
    a.gets_more(3)
    a.beats(member_epoch=2)
    a.beats(FENCED, member_epoch=1)
    a.beats(FENCED, member_epoch=4)
    b.joins()
    a.beats()
    a.beats(member_epoch=3)
    a.beats(FENCED, member_epoch=2)
    a.beats(member_epoch=0, subscribed_topic_names=["orders"])
    b.beats(UNKNOWN, member_id="z")
    b.beats(UNKNOWN, member_id="z", member_epoch=LEAVES)
    shown(stage)


@script(settings="share")
def share_group_and_other_requests(stage: Stage) -> None:
    """What is not for share groups is refused, and leaves them as they are."""
    a = Sharer(stage, "a")
    a.joins()
    a.gets_more(3)
    admin, b = stage.connect("admin"), stage.member("b")
    b.connection.call(b.join_request(), 9, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    b.id, b.generation = a.id, a.epoch
    b.joins(error=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    b.syncs(error=UNKNOWN)
    b.beats(error=UNKNOWN)
    b.leaves(error=UNKNOWN)
    for version in (2, 8, 9):
        b.commits(5, version, NOT_FOUND)
    admin.describe(version=5)
    admin.describe(version=6, error=NOT_FOUND)
    consumer = Heartbeater(stage, "c")
    consumer.joins(NOT_FOUND)
    consumer.beats(NOT_FOUND, member_epoch=1)
    admin.call(kw.ConsumerGroupDescribeRequest(group_ids=[stage.group]), 1, NOT_FOUND)
    _offsets(stage, admin)
    a.leaves()
    b.joins(error=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    b.connection.call(b.join_request(member_id=""), 9, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    consumer.joins(NOT_FOUND)
    _offsets(stage, admin)
    shown(stage)


def _offsets(stage: Stage, admin: Connection) -> None:
    topic = kw.OffsetFetchRequestTopics(name="orders", partition_indexes=[0])
    admin.call(
        kw.OffsetFetchRequest(groups=[kw.OffsetFetchRequestGroup(group_id=stage.group, topics=[topic])]), 9, None
    )
    everything = kw.OffsetFetchRequestGroup(group_id=stage.group, topics=None)
    admin.call(kw.OffsetFetchRequest(groups=[everything]), 9, None)
    partition = kw.OffsetDeleteRequestPartition(partition_index=0)
    deleted = kw.OffsetDeleteRequestTopic(name="orders", partitions=[partition])
    admin.call(kw.OffsetDeleteRequest(group_id=stage.group, topics=[deleted]), 0, NOT_FOUND)
    part = kw.OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    commit = kw.OffsetCommitRequest(
        group_id=stage.group, topics=[kw.OffsetCommitRequestTopic(name="orders", partitions=[part])]
    )
    admin.call(commit, 9, NOT_FOUND)


@script(settings="share")
def share_member_of_other_groups(stage: Stage) -> None:
    """A classic group and one of KIP-848 stay what they are."""
    classic, consumer = stage.member("c"), Heartbeater(stage, "k")
    stage.stable(classic)
    a = Sharer(stage, "a")
    a.joins(NOT_FOUND)
    a.beats(NOT_FOUND, member_epoch=1)
    a.leaves(NOT_FOUND)
    shown(stage, error=NOT_FOUND)
    classic.leaves()
    a.joins(NOT_FOUND)
    consumer.joins()
    a.joins(NOT_FOUND)
    shown(stage, error=NOT_FOUND)
    consumer.leaves()
    a.joins(NOT_FOUND)


@script(settings="share")
def share_topics_that_come_and_go(stage: Stage) -> None:
    """A topic is created, gets a partition, and is deleted, while a member subscribes to it."""
    admin, name = stage.connect("admin"), "share-later"
    a = Sharer(stage, "a", topics=(name,))
    a.joins()
    a.beats()
    shown(stage)
    created = kw.CreateTopicsRequestCreatableTopic(name=name, num_partitions=2, replication_factor=1)
    with stage.off_the_record():
        admin.call(kw.CreateTopicsRequest(topics=[created], timeout_ms=30_000), 7)
    a.gets_more(4)
    stage.forget_topic_ids()
    a.beats(subscribed_topic_names=[name])
    shown(stage)
    more = kw.CreatePartitionsRequestCreatePartitionsTopic(name=name, count=3, assignments=None)
    with stage.off_the_record():
        admin.call(kw.CreatePartitionsRequest(topics=[more], timeout_ms=30_000), 3)
    a.gets_more(6)
    a.beats(subscribed_topic_names=[name])
    shown(stage)
    gone = kw.DeleteTopicsRequestDeleteTopicState(name=name)
    with stage.off_the_record():
        admin.call(kw.DeleteTopicsRequest(topics=[gone], timeout_ms=30_000), 6)
    a.gets_more(7)
    a.beats(subscribed_topic_names=[name])
    shown(stage)


@script(settings="share")
def share_too_many(stage: Stage) -> None:
    """A sixth member of five is refused, those that are there are not."""
    a, b, c, d, e, f = sharers(stage, *"abcdef", topics=("missing",))
    for member in (a, b, c, d, e):
        member.joins()
    f.joins(ErrorCode.GROUP_MAX_SIZE_REACHED)
    f.beats(ErrorCode.GROUP_MAX_SIZE_REACHED, member_epoch=1)
    f.leaves(UNKNOWN)
    b.joins()
    b.leaves()
    f.joins()


@script(settings="share")
def share_settings_of_a_group(stage: Stage) -> None:
    """A group has its own interval and session, after which the coordinator removes a silent member."""
    admin, a = stage.connect("admin"), Sharer(stage, "a")
    a.joins()
    a.gets_more(3)
    for name, value in (
        ("share.heartbeat.interval.ms", "300"),
        ("share.session.timeout.ms", "1000"),
        ("share.assignment.interval.ms", "500"),
    ):
        config = kw.IncrementalAlterConfigsRequestAlterableConfig(name=name, config_operation=0, value=value)
        resource = kw.IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=_GROUP, resource_name=stage.group, configs=[config]
        )
        admin.call(kw.IncrementalAlterConfigsRequest(resources=[resource]), 1)
    stage.eventually(a.beats, lambda answer: answer.heartbeat_interval_ms == 300)
    stage.eventually(lambda: shown(stage), lambda answer: not answer.groups[0].members)
    a.beats(UNKNOWN)
    a.joins()
    shown(stage)
