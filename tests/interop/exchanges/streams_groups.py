"""Streams groups (KIP-1071): joining, reconciliation, internal topics, leaving, what is refused, offsets, and what an
operator sees."""

from __future__ import annotations

import kcoord_wire as kw
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.interop.exchanges.heartbeats import Heartbeater
from tests.interop.exchanges.runners import Runner, counting, runners, shown, subtopology, topic_info
from tests.interop.exchanges.script import script
from tests.interop.exchanges.stage import Stage

INVALID, UNKNOWN = ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_MEMBER_ID
FENCED, STALE = ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.STALE_MEMBER_EPOCH
NOT_FOUND, WRONG = ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.STREAMS_INVALID_TOPOLOGY
FAILS = ErrorCode.UNKNOWN_SERVER_ERROR


def configure(stage: Stage, name: str, value: str) -> None:
    """Give the script's group a config."""
    config = kw.IncrementalAlterConfigsRequestAlterableConfig(name=name, config_operation=0, value=value)
    resource = kw.IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=32, resource_name=stage.group, configs=[config]
    )
    stage.connect("admin").call(kw.IncrementalAlterConfigsRequest(resources=[resource]), 1)


@script(settings="streams", versions=(0, 1))
def streams_alone(stage: Stage, version: int) -> None:
    """One member's whole life, and the group at each step of it."""
    admin = stage.connect("admin")
    shown(stage, version, NOT_FOUND)
    a = Runner(stage, "a", version=version)
    a.joins()
    shown(stage, version, include_authorized_operations=True)
    admin.call(kw.ListGroupsRequest(types_filter=["Streams"]), 5)
    a.beats()
    a.reports()
    a.beats(task_offsets=[kw.StreamsGroupHeartbeatRequestTaskOffset(subtopology_id="0", partition=1, offset=7)])
    shown(stage, version)
    a.leaves()
    shown(stage, version)
    admin.call(kw.ListGroupsRequest(states_filter=["Empty"]), 5)
    a.beats(UNKNOWN, member_epoch=1)
    a.joins()
    a.beats()
    shown(stage, version)
    admin.call(kw.DeleteGroupsRequest(groups_names=[stage.group]), 2, ErrorCode.NON_EMPTY_GROUP)
    a.leaves()
    admin.call(kw.DeleteGroupsRequest(groups_names=[stage.group]), 2)
    shown(stage, version, NOT_FOUND)


@script(settings="streams")
def streams_get_their_topics(stage: Stage) -> None:
    """The broker creates the internal topics, with the partitions of their sources and the configs of the topology."""
    admin = stage.connect("admin")
    a = Runner(stage, "a", counting(stage.group))
    a.joins()
    shown(stage)
    a.stage.eventually(a.reports, lambda answer: not answer.status)
    shown(stage, include_topology_description=True)
    names = [f"{stage.group}-{kind}" for kind in ("repartition", "changelog")]
    resources = [
        kw.DescribeConfigsRequestDescribeConfigsResource(
            resource_type=2, resource_name=name, configuration_keys=["cleanup.policy"]
        )
        for name in names
    ]
    admin.call(kw.DescribeConfigsRequest(resources=resources), 4)
    a.reports()
    b = Runner(stage, "b", counting(stage.group))
    b.joins()
    for member in (a, b, a, b, a, b):
        member.reports()
    shown(stage)


@script(settings="streams")
def streams_share_out(stage: Stage) -> None:
    """A task moves when its owner has given it up, and each step needs a heartbeat of the one it concerns."""
    a, b, c = runners(stage, "a", "b", "c")
    a.joins()
    a.beats()
    a.reports()
    b.joins()
    shown(stage)
    b.beats()
    a.beats()
    shown(stage)
    a.beats(
        active_tasks=[kw.StreamsGroupHeartbeatRequestTaskIds(subtopology_id="0", partitions=[0, 1, 2])],
        standby_tasks=[],
        warmup_tasks=[],
    )
    b.beats()
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
    for member in (a, c, a, c):
        member.reports()
    shown(stage)


@script(settings="streams")
def streams_have_standbys(stage: Stage) -> None:
    """Standbys come with the group's config; a member that leaves has its active tasks go where their standbys are."""
    a, b = runners(stage, "a", "b", subtopologies=counting(stage.group))
    a.starts()
    b.joins()
    for member in (a, b, a, b, a, b):
        member.reports()
    configure(stage, "streams.num.standby.replicas", "1")
    stage.eventually(a.reports, lambda answer: bool(a.given["standby"]))
    for member in (b, a, b, a, b):
        member.reports()
    shown(stage)
    a.leaves()
    for _ in range(3):
        b.reports()
    shown(stage)


@script(settings="streams", versions=(0, 1))
def streams_want_tags(stage: Stage, version: int) -> None:
    """A member learns which tags it lacks of those that the group's config names, from v1 on."""
    a = Runner(stage, "a", tags={"zone": "z1", "cluster": "c1"}, version=version)
    a.joins()
    a.reports()
    configure(stage, "streams.rack.aware.assignment.tags", "zone, rack,room")
    stage.eventually(a.reports, lambda answer: bool(answer.status) or a.epoch > 2)
    shown(stage, version)


@script(settings="streams")
def streams_threads_of_a_process(stage: Stage) -> None:
    """Members of one process get no task twice."""
    members = runners(stage, "a", "b", subtopologies=counting(stage.group), process="one")
    members[0].starts()
    members[1].joins()
    for _ in range(3):
        for member in members:
            member.reports()
    shown(stage)


@script(settings="streams")
def streams_static_members(stage: Stage) -> None:
    """An instance leaves for a while and comes back under another id, to the tasks it had."""
    a, b = (Runner(stage, name, instance=name) for name in "ab")
    a.joins()
    a.beats()
    b.joins()
    for member in (a, b, a, b):
        member.reports()
    again = Runner(stage, "c", instance="b")
    again.joins(ErrorCode.UNRELEASED_INSTANCE_ID)
    again.beats(ErrorCode.FENCED_INSTANCE_ID, member_epoch=b.epoch)
    again.leaves(ErrorCode.FENCED_INSTANCE_ID)
    again.beats(UNKNOWN, member_epoch=1, instance_id="d")
    b.leaves(for_a_while=True)
    shown(stage)
    a.reports()
    again.joins(process_id="b-process")
    again.reports()
    shown(stage)
    again.leaves(for_a_while=True)
    other = Runner(stage, "d", instance="b")
    other.joins()
    other.reports()
    shown(stage)
    other.leaves()
    a.reports()
    shown(stage)


@script(settings="streams")
def streams_say_what_is_invalid(stage: Stage) -> None:
    """Heartbeats that are refused whatever the group."""
    a = Runner(stage, "a")
    a.joins(INVALID, member_id="")
    a.joins(INVALID, group_id="")
    a.joins(INVALID, instance_id="")
    a.joins(INVALID, rack_id="")
    a.joins(INVALID, rebalance_timeout_ms=-1)
    a.joins(INVALID, topology=None)
    part = kw.StreamsGroupHeartbeatRequestTaskIds
    for kind in ("active", "standby", "warmup"):
        a.joins(INVALID, **{f"{kind}_tasks": [part(subtopology_id="0", partitions=[0])]})
    a.beats(INVALID, member_epoch=-3)
    a.leaves(INVALID, for_a_while=True)
    a.beats(NOT_FOUND, member_epoch=1)
    a.leaves(NOT_FOUND)
    a.joins()
    a.beats(INVALID, active_tasks=[])
    a.beats(INVALID, topology=a.topology)
    a.beats(FENCED, member_epoch=9)
    a.beats(UNKNOWN, member_id="nobody")
    a.leaves(UNKNOWN, member_id="nobody")
    a.reports(INVALID, active={"0": [3]})
    a.reports(INVALID, active={"0": [-1]})
    a.reports(INVALID, standby={"7": [0]})
    offset = kw.StreamsGroupHeartbeatRequestTaskOffset(subtopology_id="0", partition=1, offset=7)
    a.beats(INVALID, task_offsets=[offset, offset])
    shown(stage)


@script(settings="streams")
def streams_wrong_topologies(stage: Stage) -> None:
    """Topologies that are refused, of a group that none of them makes."""

    def tries(error: ErrorCode, *subtopologies: kw.StreamsGroupHeartbeatRequestSubtopology, epoch: int = 0) -> None:
        Runner(stage, "a", subtopologies, topology_epoch=epoch).joins(error)

    tries(WRONG, subtopology("0", "__consumer_offsets"))
    tries(WRONG, subtopology("0", "a/b"))
    tries(INVALID, subtopology("0", source_topic_regex=["o.*"]))
    tries(WRONG, subtopology("0", "orders", state_changelog_topics=[topic_info("c", 3)]))
    tries(WRONG, subtopology("0"))
    tries(WRONG, subtopology("0", "orders", repartition_source_topics=[topic_info("r")]))
    loop = [
        subtopology("0", repartition_source_topics=[topic_info("r1")], repartition_sink_topics=["r2"]),
        subtopology("1", repartition_source_topics=[topic_info("r2")], repartition_sink_topics=["r1"]),
    ]
    tries(WRONG, *loop)
    tries(FAILS, subtopology("0", "orders"), epoch=-1)
    tries(FAILS, subtopology("0", "orders"), subtopology("0", "payments"))
    group = kw.StreamsGroupHeartbeatRequestCopartitionGroup(source_topics=[4])
    tries(FAILS, subtopology("0", "orders", copartition_groups=[group]))
    shown(stage, error=NOT_FOUND)


@script(settings="streams")
def streams_topics_do_not_fit(stage: Stage) -> None:
    """What each member learns while topics are missing or have other partitions than they should."""
    missing = Runner(stage, "a", [subtopology("0", "orders", *(f"{stage.group}-{n}" for n in range(5)))])
    missing.joins()
    missing.beats()
    shown(stage)
    missing.leaves()
    stage.connect("admin").call(kw.DeleteGroupsRequest(groups_names=[stage.group]), 2)
    name = f"{stage.group}-repartition"
    both = kw.StreamsGroupHeartbeatRequestCopartitionGroup(source_topics=[0], repartition_source_topics=[0])
    fixed = subtopology("1", "orders", repartition_source_topics=[topic_info(name, 2)], copartition_groups=[both])
    wrong = Runner(stage, "b", [subtopology("0", "payments", repartition_sink_topics=[name]), fixed])
    wrong.joins()
    wrong.beats()
    shown(stage)
    wrong.leaves()


@script(settings="streams")
def streams_topology_epochs(stage: Stage) -> None:
    """Another topology is refused; a member with an older epoch learns that."""
    a, b, c = runners(stage, "a", "b", "c", topology_epoch=3)
    a.joins()
    a.beats()
    b.topology_epoch = 2
    b.joins()
    b.beats()
    c.topology_epoch = 4
    c.joins(INVALID)
    c.topology_epoch = 3
    c.subtopologies = [subtopology("0", "payments")]
    c.joins(INVALID)
    shown(stage)


@script(settings="streams")
def streams_addresses(stage: Stage) -> None:
    """Every member learns at which address the state of which partitions is."""
    a = Runner(stage, "a", endpoint=("host-a", 1))
    b = Runner(stage, "b", endpoint=("host-b", 2))
    a.joins()
    a.reports()
    a.reports()
    b.joins()
    for member in (a, b, a, b, a, b):
        member.reports()
    a.beats(endpoint_information_epoch=0)
    b.beats(user_endpoint=kw.StreamsGroupHeartbeatRequestEndpoint(host="host-c", port=65_535))
    a.beats()
    shown(stage)


@script(settings="streams")
def streams_shut_down(stage: Stage) -> None:
    """A member asks all to shut down, which each learns until the last has left."""
    a, b = runners(stage, "a", "b")
    a.joins()
    a.beats()
    b.joins()
    b.beats(shutdown_application=True)
    a.beats()
    a.leaves(shutdown_application=True)
    b.beats()
    b.leaves()
    a.joins()
    a.beats()
    a.leaves()


@script(settings="streams")
def streams_offsets(stage: Stage) -> None:
    """Offsets are committed and fetched with member epochs."""
    a, b = runners(stage, "a", "b")
    a.commits(1, generation_id_or_member_epoch=-1, member_id="")
    a.joins()
    a.beats()
    a.reports()
    a.commits(5)
    a.commits(6, version=8, error=ErrorCode.UNSUPPORTED_VERSION)
    a.commits(6, error=UNKNOWN, member_id="nobody")
    a.commits(6, error=STALE, generation_id_or_member_epoch=a.epoch + 1)
    a.commits(6, error=UNKNOWN, generation_id_or_member_epoch=-1, member_id="")
    a.commits(6, error=STALE, topic="payments", generation_id_or_member_epoch=a.epoch - 1)
    before = a.epoch
    b.joins()
    for member in (a, b, a, b):
        member.reports()
    kept = a.given["active"]["0"][0]
    a.commits(7, partition=kept, generation_id_or_member_epoch=before)
    a.commits(7, error=STALE, partition=kept, generation_id_or_member_epoch=0)
    a.commits(7, error=STALE, partition=b.given["active"]["0"][0], generation_id_or_member_epoch=before)
    a.fetches()
    a.fetches(error=STALE, member_epoch=a.epoch + 1)
    a.fetches(error=UNKNOWN, member_id="nobody")
    a.fetches(member_id=None, member_epoch=-1)
    a.leaves()
    b.leaves()
    a.commits(9, generation_id_or_member_epoch=-1, member_id="")
    a.fetches(member_id=None, member_epoch=-1)


@script(settings="streams")
def streams_beside_other_groups(stage: Stage) -> None:
    """One name, several protocols."""
    admin = stage.connect("admin")
    a = Runner(stage, "a")
    consumer = Heartbeater(stage, "consumer")
    classic = stage.connect("classic")
    consumer.joins()
    a.joins(NOT_FOUND)
    a.beats(NOT_FOUND, member_epoch=1)
    a.leaves(NOT_FOUND)
    shown(stage, error=NOT_FOUND)
    consumer.leaves()
    a.joins(NOT_FOUND)
    admin.call(kw.DeleteGroupsRequest(groups_names=[stage.group]), 2)
    a.joins()
    consumer.joins(NOT_FOUND)
    protocol = kw.JoinGroupRequestProtocol(name="range", metadata=b"")
    join = kw.JoinGroupRequest(
        group_id=stage.group, session_timeout_ms=10_000, protocol_type="consumer", protocols=[protocol]
    )
    classic.call(join, 9, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    admin.call(kw.DescribeGroupsRequest(groups=[stage.group]), 6, NOT_FOUND)
    admin.call(kw.ConsumerGroupDescribeRequest(group_ids=[stage.group]), 1, NOT_FOUND)
    admin.call(kw.HeartbeatRequest(group_id=stage.group, member_id="x"), 4, UNKNOWN)
    admin.call(
        kw.LeaveGroupRequest(group_id=stage.group, members=[kw.LeaveGroupRequestMemberIdentity(member_id="x")]),
        5,
        UNKNOWN,
    )
    a.leaves()
    consumer.joins(NOT_FOUND)
    shown(stage)
    classic.call(join, 9, ErrorCode.MEMBER_ID_REQUIRED)
    shown(stage, error=NOT_FOUND)
    a.joins()
    update = kw.StreamsGroupTopologyDescriptionUpdateRequest(group_id=stage.group, member_id="a-id")
    admin.call(update, 0, ErrorCode.UNSUPPORTED_VERSION)


@script(settings="streams-small")
def streams_wait_for_others(stage: Stage) -> None:
    """The first assignment waits, then the next one; a group has room for so many members; silent ones are removed."""
    a, b, c = runners(stage, "a", "b", "c")
    a.joins()
    a.beats()
    b.joins()
    c.joins(ErrorCode.GROUP_MAX_SIZE_REACHED)
    shown(stage)
    stage.eventually(a.reports, lambda answer: bool(a.given["active"]))
    stage.eventually(b.reports, lambda answer: bool(b.given["active"]))
    shown(stage)
    stage.eventually(lambda: shown(stage), lambda answer: not answer.groups[0].members)
    a.beats(UNKNOWN)
