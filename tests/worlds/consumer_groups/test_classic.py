"""Classic members in the cluster of KIP-848: the laws see them as clients whose epoch is the generation."""

from __future__ import annotations

import uuid

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.consumer.kip848_member import Partition
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.worlds.consumer_groups.consumer_group_world import (
    ClassicClient,
    MemberOptions,
    classic_options,
    machine_of,
)
from kcoord_wire.worlds.group.wire import VirtualTopics

TOPICS = VirtualTopics({"orders": 3})


def test_timeouts_are_those_of_the_coordinator() -> None:
    config = GroupConfig(consumer_session_timeout_ms=7_000, consumer_heartbeat_interval_ms=700)
    options = classic_options(MemberOptions(assignors=("range",), instance_id="i"), "g", config)
    settings = machine_of(options, "m1").settings
    assert (settings.session_timeout_ms, settings.heartbeat_interval_ms) == (7_000, 700)
    assert (settings.group_id, settings.group_instance_id) == ("g", "i")


def test_a_client_has_the_epoch_and_partitions_of_its_member() -> None:
    member = machine_of(classic_options(MemberOptions(assignors=("range",)), "g", GroupConfig()), "m1")
    client = ClassicClient(member, TOPICS)
    assert (client.member_id, client.epoch, client.owned, client.is_at_rest) == ("", -1, frozenset(), False)
    member.member_id, member.generation_id, member.owned_generation = "id", 5, 4
    member.owned = frozenset({TopicPartition("orders", 2), TopicPartition("deleted", 0)})
    topic_id = TOPICS.id_of("orders")
    assert isinstance(topic_id, uuid.UUID)
    assert (client.member_id, client.epoch, client.owned) == ("id", 4, frozenset({Partition(topic_id, 2)}))
