"""Consumer groups of KIP-848: joining, reconciliation, leaving, what is refused, offsets, and what an operator sees."""

from __future__ import annotations

import kcoord_wire as kw
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.interop.exchanges.commits import commit, committed, delete, fetch
from tests.interop.exchanges.heartbeats import LEAVES, Heartbeater, heartbeaters, settle, shown
from tests.interop.exchanges.script import script
from tests.interop.exchanges.stage import Stage

INVALID, UNKNOWN = ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_MEMBER_ID
FENCED, STALE = ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.STALE_MEMBER_EPOCH


@script(settings="consumer", versions=(0, 1))
def consumer_alone(stage: Stage, version: int) -> None:
    """One member's whole life, and the group at each step of it."""
    admin = stage.connect("admin")
    shown(stage, version=version, error=ErrorCode.GROUP_ID_NOT_FOUND)
    a = Heartbeater(stage, "a", version=version)
    a.joins()
    shown(stage, version=version)
    admin.call(kw.ListGroupsRequest(), 5)
    a.beats()
    a.reports()
    a.beats()
    shown(stage, version=version)
    a.leaves()
    shown(stage, version=version)
    admin.call(kw.ListGroupsRequest(), 5)
    a.beats(UNKNOWN, member_epoch=1)
    a.joins()
    shown(stage, version=version)
    admin.call(kw.DeleteGroupsRequest(groups_names=[stage.group]), 2, ErrorCode.NON_EMPTY_GROUP)
    a.leaves()
    admin.call(kw.DeleteGroupsRequest(groups_names=[stage.group]), 2)
    shown(stage, version=version, error=ErrorCode.GROUP_ID_NOT_FOUND)


@script(settings="consumer")
def consumers_share_out(stage: Stage) -> None:
    """A partition moves when its owner has given it up, and each step needs a heartbeat of the one it concerns."""
    a, b, c = heartbeaters(stage, "a", "b", "c")
    a.joins()
    a.reports()
    b.joins()
    shown(stage)
    b.beats()
    a.beats()
    shown(stage)
    b.beats()
    a.beats()
    a.reports()
    shown(stage)
    b.beats()
    b.reports()
    shown(stage)
    c.joins()
    for member in (a, b, c, a, b, c):
        member.reports()
    shown(stage)
    b.leaves()
    shown(stage)
    for member in (a, c, a, c):
        member.reports()
    shown(stage)


@script(settings="consumer")
def consumer_owns_until_it_says_otherwise(stage: Stage) -> None:
    """A member that keeps what it is to give up keeps the partition, whatever its heartbeats say else."""
    a, b = heartbeaters(stage, "a", "b")
    a.joins()
    a.reports()
    b.joins()
    a.beats()
    a.beats(owned={"orders": [0, 1, 2]})
    b.beats()
    a.beats()
    shown(stage)
    gone = [partition for partition in range(3) if partition not in a.given["orders"]]
    a.beats(owned={"orders": gone})
    b.beats()
    a.reports()
    b.beats()
    shown(stage)


@script(settings="consumer")
def consumers_come_while_others_revoke(stage: Stage) -> None:
    """The target changes twice while a member is giving partitions up."""
    a, b, c = heartbeaters(stage, "a", "b", "c")
    a.joins()
    a.reports()
    b.joins()
    a.beats()
    c.joins()
    shown(stage)
    a.beats()
    a.reports()
    shown(stage)
    b.beats()
    c.beats()
    shown(stage)
    a.beats()
    b.reports()
    c.reports()
    shown(stage)


@script(settings="consumer")
def consumer_gets_back_what_it_gives_up(stage: Stage) -> None:
    """A partition that is being given up returns to its owner before that is done (KAFKA-16147)."""
    a, b, c = heartbeaters(stage, "a", "b", "c")
    a.joins()
    a.reports()
    b.joins()
    a.beats()
    b.leaves()
    a.beats()
    a.beats(owned={"orders": [0, 1, 2]})
    shown(stage)
    c.joins()
    c.beats()
    shown(stage)
    a.beats()
    a.reports()
    c.beats()
    shown(stage)


@script(settings="consumer")
def consumer_heartbeat_of_odd_fields(stage: Stage) -> None:
    """What a heartbeat must and must not have, before there is a group."""
    a = Heartbeater(stage, "a")
    a.joins(INVALID, group_id="")
    a.joins(INVALID, group_id="  ")
    a.joins(INVALID, member_id="")
    a.joins(INVALID, member_id=" ")
    a.joins(INVALID, instance_id="")
    a.joins(INVALID, rack_id="")
    a.joins(INVALID, rebalance_timeout_ms=-1)
    a.joins(INVALID, topic_partitions=None)
    a.joins(INVALID, owned={"orders": [0]}, topic_partitions=a._partitions({"orders": [0]}))
    a.joins(INVALID, subscribed_topic_names=None)
    a.joins(ErrorCode.UNSUPPORTED_ASSIGNOR, server_assignor="sticky")
    a.joins(ErrorCode.UNSUPPORTED_ASSIGNOR, server_assignor="")
    a.beats(INVALID, member_epoch=-2)
    a.beats(INVALID, member_epoch=-3)
    a.beats(ErrorCode.GROUP_ID_NOT_FOUND, member_epoch=1)
    a.beats(ErrorCode.GROUP_ID_NOT_FOUND, member_epoch=LEAVES)
    old = Heartbeater(stage, "old", version=0)
    old.beats(INVALID, member_epoch=1)
    shown(stage, error=ErrorCode.GROUP_ID_NOT_FOUND)


@script(settings="consumer")
def consumer_of_no_topics(stage: Stage) -> None:
    """An empty subscription is one; topics that do not exist are subscribed to in advance."""
    a = Heartbeater(stage, "a", topics=())
    a.joins()
    shown(stage)
    a.beats(subscribed_topic_names=["nothing", "orders"])
    shown(stage)
    a.reports()
    a.beats(subscribed_topic_names=["nothing"])
    a.reports()
    shown(stage)


@script(settings="consumer")
def consumer_epochs_must_fit(stage: Stage) -> None:
    """The present epoch is taken; the one before only from a member that has lost the answer; others are fenced."""
    a, b = heartbeaters(stage, "a", "b")
    settle(a, b)
    a.beats(FENCED, member_epoch=a.epoch + 1)
    a.beats(FENCED, member_epoch=1)
    a.beats(FENCED, member_epoch=1, owned={"orders": [0, 1, 2]})
    c = Heartbeater(stage, "c")
    c.joins()
    before = a.epoch
    a.beats()
    a.reports()
    assert a.epoch > before
    a.beats(FENCED, owned={"orders": [0, 1, 2]}, member_epoch=before)
    a.beats(owned=a.given, member_epoch=before)
    a.beats(FENCED, member_epoch=before)
    stranger = Heartbeater(stage, "stranger")
    stranger.beats(UNKNOWN, member_epoch=1)
    stranger.beats(UNKNOWN, member_epoch=LEAVES)
    shown(stage)


@script(settings="consumer")
def consumer_joins_again(stage: Stage) -> None:
    """Epoch 0 of a member that is there: it has lost the answer, or starts over."""
    a, b = heartbeaters(stage, "a", "b")
    a.joins()
    a.joins()
    settle(a, b)
    shown(stage)
    a.joins()
    a.reports()
    b.reports()
    shown(stage)
    a.joins(subscribed_topic_names=["payments"])
    a.reports()
    b.reports()
    b.reports()
    shown(stage)


@script(settings="consumer")
def consumer_repeats_itself(stage: Stage) -> None:
    """Fields that are given again without a change change nothing."""
    a, b = heartbeaters(stage, "a", "b")
    settle(a, b)
    a.beats(subscribed_topic_names=["orders"], rebalance_timeout_ms=300_000, server_assignor="uniform", owned=a.given)
    a.beats(rebalance_timeout_ms=60_000)
    a.beats(rack_id="rack-1")
    a.beats(subscribed_topic_names=["orders", "orders"])
    shown(stage)
    b.beats()


@script(settings="consumer")
def consumers_change_their_topics(stage: Stage) -> None:
    """A subscription that changes gives up partitions without waiting for the next assignment, and gets others."""
    a, b = heartbeaters(stage, "a", "b")
    settle(a, b)
    a.beats(subscribed_topic_names=["orders", "payments"])
    a.reports()
    shown(stage)
    b.reports()
    a.reports()
    b.reports()
    shown(stage)
    a.beats(subscribed_topic_names=["payments"])
    a.reports()
    b.reports()
    a.reports()
    b.reports()
    shown(stage)
    a.beats(subscribed_topic_names=[])
    a.reports()
    shown(stage)


@script(settings="consumer")
def consumers_choose_the_assignor(stage: Stage) -> None:
    """The majority's choice; the first of the coordinator's where there is none."""
    a, b, c = heartbeaters(stage, "a", "b", "c", topics=("orders", "payments"))
    a.assignor = b.assignor = "range"
    a.joins()
    a.reports()
    shown(stage)
    settle(a, b)
    shown(stage)
    c.assignor = "uniform"
    settle(a, b, c)
    shown(stage)
    c.beats(server_assignor="range")
    b.beats(server_assignor="uniform")
    c.beats(server_assignor="uniform")
    a.reports()
    a.beats(ErrorCode.UNSUPPORTED_ASSIGNOR, server_assignor="nonsense")
    shown(stage)


@script(settings="consumer")
def consumers_disagree_about_the_assignor(stage: Stage) -> None:
    """One member asks for each; the group goes on nevertheless."""
    a, b = Heartbeater(stage, "a", assignor="range"), Heartbeater(stage, "b", assignor="uniform")
    settle(a, b)
    shown(stage)


@script(settings="consumer")
def consumers_with_patterns(stage: Stage) -> None:
    """Topics by regular expression, alone and beside names; one that does not compile is refused."""
    a = Heartbeater(stage, "a", topics=None, regex="order[s-z]")
    a.joins()
    stage.eventually(a.beats, lambda answer: answer.assignment is not None)
    a.reports()
    shown(stage)
    b = Heartbeater(stage, "b", topics=("payments",), regex="order[s-z]")
    b.joins()
    for member in (a, b, a, b):
        member.reports()
    shown(stage)
    c = Heartbeater(stage, "c", topics=None, regex="(unclosed")
    c.joins(ErrorCode.INVALID_REGULAR_EXPRESSION)
    a.beats(ErrorCode.INVALID_REGULAR_EXPRESSION, subscribed_topic_regex="*")
    shown(stage)
    a.beats(subscribed_topic_regex="", subscribed_topic_names=["payments"])
    for member in (a, b, a, b):
        member.reports()
    shown(stage)


@script(settings="consumer")
def static_consumer_returns(stage: Stage) -> None:
    """It leaves for a while, and returns under another id to what it owned; nobody else notices."""
    a = Heartbeater(stage, "a", instance="i-a")
    b = Heartbeater(stage, "b", instance="i-b")
    settle(a, b)
    shown(stage)
    b.leaves(for_a_while=True)
    shown(stage)
    a.reports()
    again = Heartbeater(stage, "b2", instance="i-b")
    again.joins()
    again.reports()
    shown(stage)
    b.beats(ErrorCode.FENCED_INSTANCE_ID, member_epoch=2)
    b.epoch = 0
    a.reports()
    again.leaves()
    a.reports()
    a.reports()
    shown(stage)


@script(settings="consumer")
def static_consumers_must_release(stage: Stage) -> None:
    """An instance that is in use is not given to another, nor is one's own id good for another's instance."""
    a, b = Heartbeater(stage, "a", instance="i-a"), Heartbeater(stage, "b")
    settle(a, b)
    thief = Heartbeater(stage, "thief", instance="i-a")
    thief.joins(ErrorCode.UNRELEASED_INSTANCE_ID)
    thief.beats(ErrorCode.FENCED_INSTANCE_ID, member_epoch=a.epoch)
    thief.beats(ErrorCode.FENCED_INSTANCE_ID, member_epoch=-2)
    b.beats(UNKNOWN, instance_id="i-b")
    b.beats(ErrorCode.FENCED_INSTANCE_ID, instance_id="i-a")
    a.beats(instance_id=None)
    b.beats(INVALID, member_epoch=-2)
    shown(stage)


@script(settings="consumer")
def static_consumer_returns_otherwise(stage: Stage) -> None:
    """It returns with another subscription; then its place is given up for good."""
    a, b = Heartbeater(stage, "a", instance="i-a"), Heartbeater(stage, "b", instance="i-b")
    settle(a, b)
    a.leaves(for_a_while=True)
    again = Heartbeater(stage, "a2", instance="i-a", topics=("payments",))
    again.joins()
    for member in (b, again, b, again):
        member.reports()
    shown(stage)
    again.leaves(for_a_while=True)
    again.joins()
    again.reports()
    shown(stage)


@script(settings="consumer", versions=(9, 10))
def consumer_commits(stage: Stage, version: int) -> None:
    """In its epoch, in an older one, in one to come; of others' partitions, and of a stranger."""
    a, b = heartbeaters(stage, "a", "b")
    a.joins()
    a.commits(1, version)
    a.fetches(version)
    settle(a, b)
    a.commits(2, version)
    a.commits(3, version, STALE, generation_id_or_member_epoch=a.epoch + 1)
    a.commits(4, version, generation_id_or_member_epoch=a.epoch - 1)
    a.commits(5, version, STALE, generation_id_or_member_epoch=-1)
    a.commits(6, version, UNKNOWN, member_id="nobody")
    a.commits(7, version, UNKNOWN, member_id="", generation_id_or_member_epoch=-1)
    a.commits(8, version, group_instance_id="i-a")
    for partition in range(3):
        a.commits(9, version, partition=partition)
    a.fetches(version)
    a.fetches(version, STALE, member_epoch=a.epoch - 1)
    a.fetches(version, STALE, member_epoch=a.epoch + 1)
    a.fetches(version, UNKNOWN, member_id="nobody")
    a.fetches(version, member_id=None, member_epoch=-1)
    a.fetches(version, UNKNOWN, member_id="", member_epoch=-1)
    a.leaves()
    b.leaves()
    a.commits(10, version, UNKNOWN, generation_id_or_member_epoch=1)
    a.commits(11, version, member_id="", generation_id_or_member_epoch=-1)
    a.fetches(version, UNKNOWN, member_epoch=1)


@script(settings="consumer", versions=(9, 10))
def consumer_commits_late(stage: Stage, version: int) -> None:
    """A commit in the epoch before: of a partition held since then, of one that is given up, of one that is new."""
    a, b = heartbeaters(stage, "a", "b")
    a.joins()
    a.reports()
    first = a.epoch
    b.joins()
    a.beats()
    for partition in range(3):
        a.commits(1, version, partition=partition, generation_id_or_member_epoch=first)
    a.reports()
    assert a.epoch > first
    kept, gone = a.given["orders"][0], next(p for p in range(3) if p not in a.given["orders"])
    a.commits(2, version, partition=kept, generation_id_or_member_epoch=first)
    a.commits(3, version, STALE, partition=gone, generation_id_or_member_epoch=first)
    b.beats()
    b.reports()
    a.commits(4, version, partition=kept, generation_id_or_member_epoch=first)
    a.commits(5, version, STALE, partition=gone, generation_id_or_member_epoch=first)
    b.commits(6, version, partition=gone)
    a.fetches(version)


@script(settings="consumer", versions=range(2, 9))
def consumer_commits_of_old_versions(stage: Stage, version: int) -> None:
    """Before v9 no epoch is meant, and a member of this protocol is not known to be one."""
    a = Heartbeater(stage, "a")
    a.joins()
    a.commits(1, version, ErrorCode.UNSUPPORTED_VERSION)
    commit(a.connection, version, ("orders", 0, 1), error=UNKNOWN)
    fetch(a.connection, version, committed("orders", 0))


@script(settings="consumer")
def consumer_group_to_an_operator(stage: Stage) -> None:
    """Groups of both kinds in ListGroups with its filters, DescribeGroups, OffsetDelete and DeleteGroups."""
    admin, a = stage.connect("admin"), Heartbeater(stage, "a")
    a.joins()
    a.commits(1)
    commit(admin, 9, ("orders", 0, 1), group_id=f"{stage.group}/simple")
    admin.call(kw.ListGroupsRequest(), 5)
    for types in (["consumer"], ["Consumer"], ["classic"], ["consumer", "classic"], ["nonsense"]):
        admin.call(kw.ListGroupsRequest(types_filter=types), 5)
    for states in (["stable"], ["Stable", "Empty"], ["Reconciling"], ["Assigning"], ["nonsense"]):
        admin.call(kw.ListGroupsRequest(states_filter=states), 5)
    admin.call(kw.ListGroupsRequest(states_filter=["stable"], types_filter=["consumer"]), 5)
    admin.call(kw.ListGroupsRequest(), 4)
    for version in (0, 5, 6):
        error = ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else None
        admin.call(kw.DescribeGroupsRequest(groups=[stage.group]), version, error)
    several = [f"{stage.group}/simple", stage.group, f"{stage.group}/missing"]
    request = kw.ConsumerGroupDescribeRequest(group_ids=several, include_authorized_operations=True)
    admin.call(request, 1, ErrorCode.GROUP_ID_NOT_FOUND)
    shown(stage, "", error=ErrorCode.INVALID_GROUP_ID)
    admin.call(kw.ConsumerGroupDescribeRequest(group_ids=[]), 1)
    delete(admin, ("orders", [0]), ("payments", [0]), error=ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
    admin.call(kw.DeleteGroupsRequest(groups_names=[stage.group]), 2, ErrorCode.NON_EMPTY_GROUP)
    a.leaves()
    delete(admin, ("orders", [0]))
    fetch(admin, 9, committed("orders", 0))
    admin.call(kw.DeleteGroupsRequest(groups_names=[stage.group]), 2)
    admin.call(kw.ListGroupsRequest(), 5)


@script(settings="consumer-small")
def consumer_too_many(stage: Stage) -> None:
    """A third member of two is refused, those that are there are not."""
    a, b, c = heartbeaters(stage, "a", "b", "c")
    a.joins()
    b.joins()
    c.joins(ErrorCode.GROUP_MAX_SIZE_REACHED)
    b.leaves()
    c.joins()


@script(settings="consumer-small")
def consumer_that_is_silent(stage: Stage) -> None:
    """The coordinator removes it when its session is over, and what it held goes to the others."""
    a = Heartbeater(stage, "a")
    a.joins()
    a.reports()
    stage.eventually(lambda: shown(stage), lambda answer: not answer.groups[0].members)
    a.beats(UNKNOWN)
    a.joins()
    shown(stage)


@script(settings="consumer-small")
def consumer_that_does_not_revoke(stage: Stage) -> None:
    """The coordinator removes it when its rebalance timeout is over, although it beats."""
    a = Heartbeater(stage, "a", rebalance_ms=200)
    b = Heartbeater(stage, "b")
    a.joins()
    a.reports()
    b.joins()
    a.beats()
    with stage.off_the_record():
        stage.eventually(lambda: _anyhow(a), lambda answer: answer.error_code == UNKNOWN)
    b.beats()
    b.reports()
    shown(stage)


def _anyhow(member: Heartbeater) -> object:
    request = kw.ConsumerGroupHeartbeatRequest(
        group_id=member.stage.group, member_id=member.id, member_epoch=member.epoch
    )
    wire = member.connection.wire
    return wire.call(request, 1)
