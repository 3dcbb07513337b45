"""Members of streams groups: tasks, standbys, internal topics, what a restart brings back. What Kafka answers to the
same requests is compared in tests/interop (exchanges/streams_groups.py)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcoord_wire import messages as m
from kcoord_wire.assignors.streams import Task
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.description import describe_group
from kcoord_wire.coordinator.streams_groups.streams_group import NO_TASKS, HeldTasks, StreamsState
from kcoord_wire.coordinator.streams_groups.topology import Status
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.streams_script import NO_WAIT, StreamsScript, internal, subtopology

ALL = ["0_0", "0_1", "0_2", "1_0", "1_1", "1_2"]


def test_one_member_gets_every_task(script: StreamsScript) -> None:
    first = script.enter("a")
    assert script.statuses(first) == [Status.MISSING_INTERNAL_TOPICS]
    assert {name: topic.num_partitions for name, topic in script.created.items()} == {"g-words": 3, "g-counts": 3}
    assert script.group.state is StreamsState.NOT_READY
    script.follow()
    assert script.active("a") == ALL
    assert script.group.state is StreamsState.STABLE


def test_a_task_is_given_up_before_another_gets_it(script: StreamsScript) -> None:
    script.start("a")
    script.enter("b")
    assert script.active("b") == []
    held = script.group.members["a"]
    script.beat("a", held.epoch, owned=held.assigned)
    assert len(script.group.members["a"].revoking.active) == 3
    script.beat("a", held.epoch, owned=held.assigned)
    script.beat("b", script.group.members["b"].epoch)
    assert script.active("b") == [], "what is to be given up may still run"
    script.follow()
    assert len(script.active("a")) == len(script.active("b")) == 3
    assert sorted(script.active("a") + script.active("b")) == ALL


def test_standbys_are_in_other_processes() -> None:
    script = StreamsScript(GroupConfig(**NO_WAIT, streams_num_standby_replicas=1))
    script.start("a", "b")
    for one, other in ("ab", "ba"):
        own = [task for task in script.active(one) if task.startswith("1_")]
        assert set(own) <= set(script.standby(other))
        assert not set(script.active(one)) & set(script.standby(one))


def test_a_standby_becomes_active_when_its_owner_leaves() -> None:
    script = StreamsScript(GroupConfig(**NO_WAIT, streams_num_standby_replicas=1))
    script.start("a", "b")
    before = script.standby("b")
    script.beat("a", -1)
    script.follow()
    assert script.active("b") == ALL
    assert before
    assert script.standby("b") == []


def test_a_new_number_of_standbys_makes_an_assignment(script: StreamsScript) -> None:
    script.start("a", "b")
    assert script.standby("a") == []
    script.group_configs["g"] = {"streams.num.standby.replicas": "1"}
    script.follow()
    assert script.standby("a")
    assert script.standby("b")


def test_threads_of_a_process_have_no_task_twice() -> None:
    script = StreamsScript(GroupConfig(**NO_WAIT, streams_num_standby_replicas=1))
    script.start("a", "b", process_id="one")
    assert sorted(script.active("a") + script.active("b")) == ALL
    assert script.standby("a") == script.standby("b") == []


def test_the_first_assignment_waits_for_others() -> None:
    script = StreamsScript(GroupConfig(streams_initial_rebalance_delay_ms=3_000, streams_assignment_interval_ms=0))
    assert Status.ASSIGNMENT_DELAYED in script.statuses(script.enter("a"))
    script.enter("b")
    script.wait(2_999)
    assert script.active("a") == script.active("b") == []
    script.wait(1)
    script.follow()
    assert len(script.active("a")) == len(script.active("b")) == 3


def test_a_silent_member_is_removed(script: StreamsScript) -> None:
    script.start("a", "b")
    script.wait(40_000)
    script.beat("b", script.group.members["b"].epoch)
    script.wait(6_000)
    assert [*script.group.members] == ["b"]
    script.follow()
    assert script.active("b") == ALL


def test_who_gives_up_too_late_is_removed(script: StreamsScript) -> None:
    script.start("a", rebalance_timeout_ms=10_000)
    script.enter("b")
    script.beat("a", script.group.members["a"].epoch)
    script.wait(9_999)
    assert "a" in script.group.members
    script.wait(1)
    assert [*script.group.members] == ["b"]


def test_a_restart_brings_everything_back() -> None:
    script = StreamsScript(GroupConfig(**NO_WAIT, streams_num_standby_replicas=1))
    script.start("a", "b", user_endpoint=m.StreamsGroupHeartbeatRequestEndpoint(host="h", port=9))
    script.enter("c", instance_id="i", client_tags=[m.StreamsGroupHeartbeatRequestKeyValue(key="zone", value="z")])
    again = script.restarted()
    for name in ("epoch", "assignment_epoch", "target", "members", "configs", "metadata_hash", "validated_epoch"):
        assert getattr(again.group, name) == getattr(script.group, name), name
    assert again.group.topology is not None
    assert script.group.topology is not None
    assert again.group.topology.is_same(script.group.topology)
    before = again.group.epoch
    again.follow()
    assert again.group.epoch == before, "nothing has changed"
    assert sorted(task for name in "abc" for task in again.active(name)) == ALL


def test_a_deleted_group_leaves_nothing_in_the_log(script: StreamsScript) -> None:
    script.start("a")
    script.beat("a", -1)
    answer = script.ask(m.DeleteGroupsRequest(groups_names=["g"]))
    assert answer.results[0].error_code == ErrorCode.NONE
    assert script.restarted().machine.groups == {}


def test_more_partitions_make_more_tasks(script: StreamsScript) -> None:
    reads = [subtopology("0", "orders")]
    script.enter("a", reads)
    script.follow()
    assert script.active("a") == ["0_0", "0_1", "0_2"]
    script.topics.set("orders", 4)
    script.follow()
    assert script.active("a") == ["0_0", "0_1", "0_2", "0_3"]


def test_why_a_topic_cannot_be_created_is_a_status(script: StreamsScript) -> None:
    script.refused["g-words"] = "no room"
    assert "no room" not in script.enter("a").status[0].status_detail
    said = script.beat("a", script.group.members["a"].epoch).status[0].status_detail
    assert "Creation failed: g-words (no room)." in said
    del script.refused["g-words"]
    script.wait(10_001)
    script.beat("a", script.group.members["a"].epoch)
    script.follow()
    assert script.active("a") == ALL


def test_a_refused_heartbeat_leaves_no_trace(script: StreamsScript) -> None:
    wrong = [subtopology("0", "orders", repartition_source_topics=[internal("r")])]
    assert script.enter("a", wrong).error_code == ErrorCode.STREAMS_INVALID_TOPOLOGY
    assert script.machine.groups == {}
    assert script.records == []


def test_a_shutdown_is_told_to_all(script: StreamsScript) -> None:
    script.start("a", "b")
    script.beat("a", script.group.members["a"].epoch, shutdown_application=True)
    answer = script.beat("b", script.group.members["b"].epoch)
    assert script.statuses(answer) == [Status.SHUTDOWN_APPLICATION]


def test_members_are_told_which_tags_they_lack(script: StreamsScript) -> None:
    tag = m.StreamsGroupHeartbeatRequestKeyValue(key="zone", value="z")
    script.start("a", client_tags=[tag])
    script.group_configs["g"] = {"streams.rack.aware.assignment.tags": "zone,rack"}
    (status,) = script.beat("a", script.group.members["a"].epoch).status or ()
    assert status.status_code == Status.MISSING_CLIENT_TAGS
    assert "[rack]" in status.status_detail
    assert script.beat("a", script.group.members["a"].epoch, version=0).status == []


def test_addresses_come_with_the_partitions_behind_them(script: StreamsScript) -> None:
    script.start("a", user_endpoint=m.StreamsGroupHeartbeatRequestEndpoint(host="host", port=9))
    answer = script.beat("a", script.group.members["a"].epoch, endpoint_information_epoch=-1)
    (address,) = answer.partitions_by_user_endpoint
    assert (address.user_endpoint.host, address.user_endpoint.port) == ("host", 9)
    assert {each.topic: each.partitions for each in address.active_partitions} == {
        "orders": [0, 1, 2],
        "g-words": [0, 1, 2],
    }


def test_commits_are_checked_by_task(script: StreamsScript) -> None:
    script.start("a")
    epoch = script.group.members["a"].epoch
    script.start("b")
    moved = sorted(task for task in script.group.members["b"].assigned.active if task.subtopology == "0")
    orders = script.topics.id_of("orders")
    kept = next(task for task in script.group.members["a"].assigned.active if task.subtopology == "0")
    assert script.group.check_partition("a", epoch, orders, kept.partition) is ErrorCode.NONE
    assert script.group.check_partition("a", epoch, orders, moved[0].partition) is ErrorCode.STALE_MEMBER_EPOCH


def test_an_instance_comes_back_to_its_tasks(script: StreamsScript) -> None:
    script.start("a")
    script.start("b", instance_id="i")
    before = script.active("b")
    script.beat("b", -2, instance_id="i")
    script.enter("c", instance_id="i", process_id="process-b")
    script.beat("c", script.group.members["c"].epoch, owned=NO_TASKS, instance_id="i")
    assert script.active("c") == before
    assert "b" not in script.group.members


def test_a_description_shows_what_members_read(script: StreamsScript) -> None:
    script.start("a", "b")
    shown = describe_group(script.group, script.topics)
    assert (shown.protocol_type, shown.protocol, shown.state, shown.is_settled) == ("streams", "sticky", "Stable", True)
    assert sorted(shown.owners) == [(topic, n) for topic in ("g-words", "orders") for n in range(3)]
    assert all(len(owners) == 1 for owners in shown.owners.values())


@pytest.mark.parametrize("state", [127, 99])
def test_a_member_of_another_release_begins_anew(script: StreamsScript, state: int) -> None:
    script.start("a")
    for at, (key, value) in enumerate(script.records):
        if isinstance(value, m.StreamsGroupCurrentMemberAssignmentValue):
            script.log.append([script.records[at]._replace(key=key, value=replace(value, state=state))])
    again = script.restarted()
    member = again.group.members["a"]
    answer = again.beat("a", member.epoch, owned=HeldTasks({Task("0", 0): 1}))
    assert answer.error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert again.beat("a", member.epoch, owned=NO_TASKS).error_code == ErrorCode.NONE
