"""Classic members in the cluster of KIP-848: the laws see them as clients whose epoch is the generation."""

from __future__ import annotations

import uuid

from kcoord_wire.assignors import ASSIGNORS, TopicPartition
from kcoord_wire.assignors.embedded import ConsumerProtocol
from kcoord_wire.consumer.classic_member import MemberMachine
from kcoord_wire.consumer.kip848_member import Partition
from kcoord_wire.coordinator.core.config import GroupConfig, MigrationPolicy
from kcoord_wire.kernel.virtual.scripts import Do, Script, run_script
from kcoord_wire.worlds.consumer_groups.consumer_group_world import (
    ClassicClient,
    ClassicProcess,
    ConsumerGroupCluster,
)
from kcoord_wire.worlds.group.members import MemberOptions
from kcoord_wire.worlds.group.wire import VirtualTopics

TOPICS = VirtualTopics({"orders": 3})


def test_timeouts_are_those_of_the_coordinator() -> None:
    config = GroupConfig(consumer_session_timeout_ms=7_000, consumer_heartbeat_interval_ms=700)
    with ConsumerGroupCluster(topics={"orders": 3}, config=config) as sim:
        sim.member("m1", {"assignors": ("range",), "instance_id": "i"})
        process = sim.processes["m1"]
        assert isinstance(process, ClassicProcess)
        settings = process.member.settings
    assert (settings.session_timeout_ms, settings.heartbeat_interval_ms) == (7_000, 700)
    assert (settings.group_id, settings.group_instance_id) == ("group", "i")


def test_a_client_has_the_epoch_and_partitions_of_its_member() -> None:
    member = MemberMachine(MemberOptions().settings("m1"), [ASSIGNORS["range"]], ConsumerProtocol())
    client = ClassicClient(member, TOPICS)
    assert (client.member_id, client.epoch, client.owned, client.is_at_rest) == ("", -1, frozenset(), False)
    member.member_id, member.generation_id, member.owned_generation = "id", 5, 4
    member.owned = frozenset({TopicPartition("orders", 2), TopicPartition("deleted", 0)})
    topic_id = TOPICS.id_of("orders")
    assert isinstance(topic_id, uuid.UUID)
    assert (client.member_id, client.epoch, client.owned) == ("id", 4, frozenset({Partition(topic_id, 2)}))


def test_classic_members_alone_see_new_partitions_late() -> None:
    """None of them leads, and the policy keeps the group from becoming classic: it settles when another has come."""
    config = GroupConfig(consumer_migration_policy=MigrationPolicy.UPGRADE, consumer_session_timeout_ms=6_000)
    run_script(
        Script(
            ConsumerGroupCluster,
            41,
            {"topics": {"t1": 4}, "config": config},
            [
                Do(0, "member", "m1", {}),
                Do(5_000, "member", "m1", {"assignors": ("range",)}),
                Do(30_000, "add_partitions", "t1", 2),
            ],
        )
    )
