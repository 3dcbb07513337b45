"""OffsetCommit, OffsetFetch and OffsetDelete: members, simple groups, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import kcoord_wire as kw
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.interop.exchanges.script import script
from tests.interop.exchanges.stage import Answer, Connection, Stage, subscription

Names = Sequence[tuple[str, Sequence[int]]]


def committed(topic: str, *partitions: int) -> Names:
    """One topic's partitions, as `fetch` takes them."""
    return [(topic, partitions)]


def fetch(
    asker: Connection,
    version: int,
    names: Names | None,
    group: str | None = None,
    error: ErrorCode | None = None,
    **changes: Any,
) -> Answer:
    """OffsetFetch of one group, by default the script's; all topics where `names` is None."""
    group_id = asker.stage.group if group is None else group
    if version >= 8:
        topic = kw.OffsetFetchRequestTopics
        parts = None if names is None else [topic(name=n, partition_indexes=list(p)) for n, p in names]
        one = kw.OffsetFetchRequestGroup(group_id=group_id, topics=parts, **changes)
        return asker.call(kw.OffsetFetchRequest(groups=[one]), version, error)
    old = kw.OffsetFetchRequestTopic
    topics = None if names is None else [old(name=n, partition_indexes=list(p)) for n, p in names]
    return asker.call(kw.OffsetFetchRequest(group_id=group_id, topics=topics, **changes), version, error)


def commit(
    asker: Connection, version: int, *parts: tuple[str, int, int], error: ErrorCode | None = None, **changes: Any
) -> Answer:
    """OffsetCommit from outside the group of (topic, partition, offset), one topic entry each."""
    topics = [
        kw.OffsetCommitRequestTopic(
            name=topic, partitions=[kw.OffsetCommitRequestPartition(partition_index=p, committed_offset=offset)]
        )
        for topic, p, offset in parts
    ]
    fields = {"group_id": asker.stage.group, "topics": topics, **changes}
    return asker.call(kw.OffsetCommitRequest(**fields), version, error)


def delete(asker: Connection, *names: tuple[str, Sequence[int]], error: ErrorCode | None = None) -> Answer:
    """OffsetDelete of these partitions of the script's group."""
    topic, part = kw.OffsetDeleteRequestTopic, kw.OffsetDeleteRequestPartition
    topics = [topic(name=n, partitions=[part(partition_index=i) for i in p]) for n, p in names]
    return asker.call(kw.OffsetDeleteRequest(group_id=asker.stage.group, topics=topics), 0, error)


@script(versions=range(1, 10))
def simple_group(stage: Stage, version: int) -> None:
    """Commits from outside any membership make a group without protocol; they are read back and overwritten."""
    a = stage.connect("a")
    commit(a, version, ("orders", 0, 10), ("orders", 1, 20), ("payments", 0, 5))
    fetch(a, version, [("orders", [0, 1, 2]), ("payments", [0])])
    commit(a, version, ("orders", 0, 3))
    fetch(a, version, committed("orders", 0))
    a.describe()
    a.call(kw.ListGroupsRequest(), 5)


@script()
def offsets_of_zookeeper(stage: Stage) -> None:
    """v0 is of the time when offsets were kept elsewhere: nothing is committed or fetched by it."""
    a = stage.connect("a")
    old = ErrorCode.UNSUPPORTED_VERSION
    commit(a, 0, ("orders", 0, 10), ("nothing", 0, 1), ("payments", 0, 5), error=old)
    commit(a, 0, ("orders", 0, 10), group_id="", error=old)
    commit(a, 0)
    fetch(a, 0, [("orders", [0, 1])], error=old)
    fetch(a, 0, [("nothing", [0])], error=old)
    fetch(a, 0, [])
    a.call(kw.ListGroupsRequest(), 4)
    commit(a, 1, ("orders", 0, 10))
    fetch(a, 0, committed("orders", 0), error=old)


@script()
def simple_group_and_members(stage: Stage) -> None:
    """A simple group takes members as any empty group does, and keeps its offsets; then commits from outside fail."""
    admin = stage.connect("admin")
    commit(admin, 8, ("orders", 0, 10))
    a = stage.member("a")
    a.joins()
    commit(admin, 8, ("orders", 0, 11), error=ErrorCode.UNKNOWN_MEMBER_ID)
    a.syncs()
    commit(admin, 8, ("orders", 0, 12), error=ErrorCode.UNKNOWN_MEMBER_ID)
    fetch(admin, 5, committed("orders", 0))
    a.leaves()
    commit(admin, 8, ("orders", 0, 13))
    fetch(admin, 5, committed("orders", 0))


@script()
def commit_by_strangers(stage: Stage) -> None:
    """Member ids and generations that the coordinator does not know, in a missing, an empty and a stable group."""
    x = stage.connect("x")
    one = [("orders", 0, 1)]
    unknown: dict[str, Any] = {"member_id": "nobody", "generation_id_or_member_epoch": 1}
    for version in (1, 7, 8):
        commit(x, version, *one, error=ErrorCode.ILLEGAL_GENERATION, **unknown)
    commit(x, 9, *one, error=ErrorCode.GROUP_ID_NOT_FOUND, **unknown)
    a = stage.member("a")
    stage.stable(a)
    for version in (1, 8, 9):
        commit(x, version, *one, error=ErrorCode.UNKNOWN_MEMBER_ID, **unknown)
        commit(x, version, *one, error=ErrorCode.UNKNOWN_MEMBER_ID)
    commit(x, 7, *one, error=ErrorCode.UNKNOWN_MEMBER_ID, group_instance_id="nobody", **unknown)
    a.leaves()
    commit(x, 8, *one, error=ErrorCode.UNKNOWN_MEMBER_ID, **unknown)
    commit(x, 9, *one, error=ErrorCode.UNKNOWN_MEMBER_ID, **unknown)
    commit(x, 8, *one, error=ErrorCode.UNKNOWN_MEMBER_ID, generation_id_or_member_epoch=0)


@script()
def commit_in_another_generation(stage: Stage) -> None:
    """A member's commit with a generation lower, higher and negative."""
    a = stage.member("a")
    stage.stable(a)
    for version in (1, 6, 9):
        for generation in (0, 2, -1):
            a.commits(1, version, ErrorCode.ILLEGAL_GENERATION, generation_id_or_member_epoch=generation)
    fetch(a.connection, 9, committed("orders", 0))


@script()
def commit_during_a_rebalance(stage: Stage) -> None:
    """The old generation may commit until all have joined, and no member may until the leader has synced."""
    a, b = stage.member("a"), stage.member("b")
    stage.stable(a)
    joining = b.joining()
    a.commits(1, 6)
    a.commits(2, 9)
    a.commits(3, 9, ErrorCode.ILLEGAL_GENERATION, generation_id_or_member_epoch=a.generation + 1)
    a.joins()
    joining.answer()
    a.commits(4, 9, ErrorCode.REBALANCE_IN_PROGRESS)
    a.commits(4, 1, ErrorCode.REBALANCE_IN_PROGRESS)
    a.commits(5, 9, ErrorCode.ILLEGAL_GENERATION, generation_id_or_member_epoch=a.generation - 1)
    stage.share_out(a, b)
    b.commits(6, 9)
    fetch(a.connection, 9, committed("orders", 0))


@script(versions=(1, 3, 5, 7, 9))
def metadata_beside_offsets(stage: Stage, version: int) -> None:
    """Metadata: kept; null becomes empty; 4096 characters pass, one more is refused for its partition alone."""
    a = stage.connect("a")
    part = kw.OffsetCommitRequestPartition
    parts = [
        part(partition_index=0, committed_offset=1, committed_metadata="x" * 4096),
        part(partition_index=1, committed_offset=2, committed_metadata="x" * 4097),
        part(partition_index=2, committed_offset=3, committed_metadata=None),
    ]
    topics = [kw.OffsetCommitRequestTopic(name="orders", partitions=parts)]
    request = kw.OffsetCommitRequest(group_id=stage.group, topics=topics)
    a.call(request, version, ErrorCode.OFFSET_METADATA_TOO_LARGE)
    fetch(a, version, committed("orders", 0, 1, 2))


@script()
def metadata_counts_characters(stage: Stage) -> None:
    """The limit of the metadata is one of characters, not of bytes."""
    a = stage.connect("a")
    part = kw.OffsetCommitRequestPartition
    parts = [
        part(partition_index=0, committed_offset=1, committed_metadata="\u00e9" * 4096),
        part(partition_index=1, committed_offset=2, committed_metadata="\U0001f600" * 2048),
        part(partition_index=2, committed_offset=3, committed_metadata="\U0001f600" * 2049),
    ]
    topics = [kw.OffsetCommitRequestTopic(name="orders", partitions=parts)]
    a.call(kw.OffsetCommitRequest(group_id=stage.group, topics=topics), 8, ErrorCode.OFFSET_METADATA_TOO_LARGE)
    fetch(a, 8, committed("orders", 0, 1, 2))


@script(versions=(2, 3, 4))
def retention_time(stage: Stage, version: int) -> None:
    """A commit may bring its own retention time."""
    a = stage.connect("a")
    commit(a, version, ("orders", 0, 1), retention_time_ms=3_600_000)
    fetch(a, version, committed("orders", 0))


@script(versions=(6, 7, 8, 9))
def leader_epoch_beside_offsets(stage: Stage, version: int) -> None:
    """The leader epoch comes back from v5 on."""
    a = stage.connect("a")
    part = kw.OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_leader_epoch=3)
    topics = [kw.OffsetCommitRequestTopic(name="orders", partitions=[part])]
    a.call(kw.OffsetCommitRequest(group_id=stage.group, topics=topics), version)
    fetch(a, 4, committed("orders", 0))
    fetch(a, 5, committed("orders", 0))
    fetch(a, 9, committed("orders", 0))


@script(versions=(1, 6, 8, 9))
def commit_of_unknown_topics(stage: Stage, version: int) -> None:
    """Topics and partitions that are not there are refused one by one; the rest is committed."""
    a = stage.connect("a")
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    commit(a, version, ("nothing", 0, 1), ("orders", 0, 1), ("orders", 99, 1), ("nowhere", 7, 2), error=missing)
    commit(a, version, ("nothing", 0, 1), error=missing)
    fetch(a, version, [("nothing", [0]), ("orders", [0, 99]), ("nowhere", [7])])


@script()
def commit_odd_values(stage: Stage) -> None:
    """Negative partitions and offsets, the same partition twice, no topics at all."""
    a = stage.connect("a")
    commit(a, 8, ("orders", -1, 1), error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    commit(a, 8, ("orders", 0, 1), ("orders", 0, 2))
    commit(a, 8, ("orders", 1, -1))
    commit(a, 8, ("orders", 2, -7))
    fetch(a, 8, committed("orders", 0, 1, 2))
    commit(a, 8)
    a.describe()


@script()
def nothing_committed_makes_no_group(stage: Stage) -> None:
    """A commit of which nothing is taken, for whatever reason, leaves no group behind."""
    a = stage.connect("a")
    commit(a, 8)
    a.call(kw.ListGroupsRequest(), 4)
    commit(a, 8, ("nothing", 0, 1), error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    a.call(kw.ListGroupsRequest(), 4)
    part = kw.OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="x" * 5000)
    topics = [kw.OffsetCommitRequestTopic(name="orders", partitions=[part])]
    request = kw.OffsetCommitRequest(group_id=stage.group, topics=topics)
    a.call(request, 8, ErrorCode.OFFSET_METADATA_TOO_LARGE)
    a.call(kw.ListGroupsRequest(), 4)


@script()
def the_group_without_name(stage: Stage) -> None:
    """Offsets and descriptions know the empty group id; the rest of its life is refused elsewhere."""
    a = stage.connect("a")
    for version in (1, 5, 8, 9):
        commit(a, version, ("orders", 0, 1), group_id="")
    for version in (1, 5, 7, 8, 9):
        fetch(a, version, committed("orders", 0), "")
    a.describe("")
    member: dict[str, Any] = {"member_id": "m", "generation_id_or_member_epoch": 1}
    commit(a, 8, ("orders", 0, 1), group_id="", error=ErrorCode.UNKNOWN_MEMBER_ID, **member)
    a.call(kw.DeleteGroupsRequest(groups_names=[""]), 2)
    a.call(kw.DeleteGroupsRequest(groups_names=[""]), 2, ErrorCode.GROUP_ID_NOT_FOUND)


@script(versions=(1, 2, 3, 5, 6, 7, 8, 9))
def fetch_of_what_is_not_there(stage: Stage, version: int) -> None:
    """A missing group has no offsets and no error; so have unknown topics of a group that is there."""
    a = stage.connect("a")
    fetch(a, version, [("orders", [0, 1]), ("nothing", [5])], f"{stage.group}/missing")
    commit(a, 8, ("orders", 0, 1))
    fetch(a, version, [("orders", [1, 0]), ("nothing", [5, 4])])
    fetch(a, version, [])
    fetch(a, version, [("orders", []), ("payments", [0])])
    fetch(a, version, [("orders", [0, 0])])


@script(versions=(2, 4, 5, 6, 7, 8, 9))
def fetch_of_everything(stage: Stage, version: int) -> None:
    """Null topics mean all of them: those with a commit."""
    a = stage.connect("a")
    fetch(a, version, None, f"{stage.group}/missing")
    commit(a, 8, ("orders", 1, 1))
    fetch(a, version, None)


@script(versions=(8, 9))
def fetch_of_several_groups(stage: Stage, version: int) -> None:
    """One request for several groups: answered in their order, each by itself."""
    a = stage.connect("a")
    commit(a, 8, ("orders", 0, 1))
    commit(a, 8, ("payments", 1, 2), group_id=f"{stage.group}/other")
    topic, one = kw.OffsetFetchRequestTopics, kw.OffsetFetchRequestGroup
    groups = [
        one(group_id=f"{stage.group}/other", topics=None),
        one(group_id=f"{stage.group}/missing", topics=None),
        one(group_id=f"{stage.group}/missing", topics=[topic(name="orders", partition_indexes=[0])]),
        one(group_id=stage.group, topics=[topic(name="orders", partition_indexes=[2, 0])]),
    ]
    a.call(kw.OffsetFetchRequest(groups=groups), version)
    a.call(kw.OffsetFetchRequest(groups=groups, require_stable=True), version)
    a.send(kw.OffsetFetchRequest(groups=[]), version).answer_if_any()


@script(versions=(7, 8, 9))
def fetch_stable_offsets(stage: Stage, version: int) -> None:
    """Without transactions every offset is stable."""
    a = stage.connect("a")
    commit(a, 8, ("orders", 0, 1))
    topics = [kw.OffsetFetchRequestTopic(name="orders", partition_indexes=[0])]
    if version < 8:
        a.call(kw.OffsetFetchRequest(group_id=stage.group, topics=topics, require_stable=True), version)
        return
    parts = [kw.OffsetFetchRequestTopics(name="orders", partition_indexes=[0])]
    groups = [kw.OffsetFetchRequestGroup(group_id=stage.group, topics=parts)]
    a.call(kw.OffsetFetchRequest(groups=groups, require_stable=True), version)


@script()
def fetch_with_member_epoch(stage: Stage) -> None:
    """v9's member id and epoch are of the next protocol; a classic group does not look at them."""
    a, b = stage.member("a"), stage.connect("b")
    stage.stable(a)
    a.commits(4)
    fetch(b, 9, committed("orders", 0), member_id=a.id, member_epoch=a.generation)
    fetch(b, 9, committed("orders", 0), member_id="nobody", member_epoch=77)


@script()
def offset_delete(stage: Stage) -> None:
    """Offsets are deleted one by one; those that are not there do not matter, topics that are not there do."""
    a = stage.connect("a")
    delete(a, ("orders", [0]), error=ErrorCode.GROUP_ID_NOT_FOUND)
    commit(a, 8, ("orders", 0, 1), ("orders", 1, 2), ("payments", 0, 3))
    delete(a, ("orders", [0, 2]))
    fetch(a, 8, [("orders", [0, 1]), ("payments", [0])])
    delete(a, ("orders", [1, 99]), ("nothing", [0]), error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    delete(a)
    delete(a, ("payments", []))
    fetch(a, 8, [("orders", [0, 1]), ("payments", [0])])
    delete(a, ("payments", [0]))
    fetch(a, 8, None)
    a.describe()


@script()
def offset_delete_and_subscriptions(stage: Stage) -> None:
    """Consumers keep the offsets of the topics that they are subscribed to; others may go."""
    a, admin = stage.member("a"), stage.connect("admin")
    commit(admin, 8, ("orders", 0, 1), ("payments", 0, 2))
    a.joins()
    delete(admin, ("payments", [0]), ("orders", [0, 1]), error=ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
    a.syncs()
    commit_again: dict[str, Any] = {"member_id": a.id, "generation_id_or_member_epoch": a.generation}
    commit(admin, 8, ("payments", 0, 3), **commit_again)
    delete(admin, ("payments", [0]), ("orders", [0, 1]), error=ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
    fetch(admin, 8, None)
    b = stage.member("b", protocols=[("range", subscription("payments"))])
    b_joining = b.joining()
    commit(admin, 8, ("payments", 0, 3), **commit_again)
    delete(admin, ("payments", [0]), ("orders", [0]), error=ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
    a.leaves()
    b_joining.answer()
    b.leaves()
    delete(admin, ("orders", [0]))


@script()
def offset_delete_of_other_protocols(stage: Stage) -> None:
    """A group that is not of consumers is deleted from only while it has no members."""
    a, admin = stage.member("a", kind="connect", protocols=[("default", b"x")]), stage.connect("admin")
    commit(admin, 8, ("orders", 0, 1))
    a.joins()
    delete(admin, ("orders", [0]), error=ErrorCode.NON_EMPTY_GROUP)
    a.syncs(protocol_name="default")
    delete(admin, ("orders", [0]), error=ErrorCode.NON_EMPTY_GROUP)
    a.leaves()
    delete(admin, ("orders", [0]))


@script()
def offset_delete_beside_strange_subscriptions(stage: Stage) -> None:
    """Where a consumer's subscription cannot be read, its topics are unknown."""
    a, admin = stage.member("a", protocols=[("range", b"?")]), stage.connect("admin")
    commit(admin, 8, ("orders", 0, 1))
    a.joins()
    a.syncs()
    admin.call(_delete_orders(stage), 0, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)


def _delete_orders(stage: Stage) -> Any:
    part = kw.OffsetDeleteRequestPartition(partition_index=0)
    topic = kw.OffsetDeleteRequestTopic(name="orders", partitions=[part])
    return kw.OffsetDeleteRequest(group_id=stage.group, topics=[topic])
