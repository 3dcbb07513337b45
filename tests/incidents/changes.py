"""What is done to what a group is: its protocol, its topics, and its offsets by somebody who is no member."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

from tests.incidents.hall import Scene
from tests.incidents.scenes import administers, gather
from tests.support.clients.heard import PATIENCE
from tests.support.kafka_broker import create_topics
from tests.support.stage import PARTITIONS

_REGEX_SECONDS: Final = 12
"""Within which a broker looks again at which topics a pattern fits: at most every 10 s (KIP-848)."""

_REFRESH: Final = {"confluent": "topic_metadata_refresh_interval_ms", "java": "metadata_max_age_ms"}


def changes_protocol(
    scene: Scene, library: str, count: int, to: Mapping[str, Any], stays_ms: int, **options: Any
) -> None:
    """Members are restarted one by one with the other protocol of groups (KIP-848 or classic).

    :param count: of the members; some may stay as they are
    :param to: options that a restarted member has instead of those of its protocol
    """
    kept = {name: value for name, value in options.items() if value is not None and name != "group_protocol"}
    gather(scene, library, 10_000, **options)
    members = {member.name: member for member in scene.members}
    scene.run.victims = list(scene.names[:count])
    for name in scene.run.victims:
        with scene.doing(f"restart with group.protocol={to.get('group_protocol', 'classic')}", name):
            members[name].leave()
            members[name].kill()
            fresh = scene.joins(library, name, **kept, **to)
            scene.waits(lambda fresh=fresh: bool(fresh.now_owned), "it is not back")
        scene.waits(lambda: scene.has(*scene.names), "they are not together again")
        time.sleep(stays_ms / 1000)
    scene.goes_home()


def gains_topics(
    scene: Scene, library: str, count: int, every_ms: int, refresh_ms: int = 2_000, **options: Any
) -> None:
    """Topics are created that the pattern of the members fits.

    :param refresh_ms: after which a member of the classic protocol asks for all topics again
    """
    refresh = {_REFRESH[library]: refresh_ms}
    gather(scene, library, 10_000, topic=scene.pattern, **refresh, **options)
    for number in range(1, count + 1):
        name = f"{scene.topic}-{number}"
        scene.run.victims.append(name)
        with scene.doing("create a topic that the pattern fits", name):
            create_topics(scene.brokers[0].inside_address, [name])
            if scene.modern:
                time.sleep(_REGEX_SECONDS)
            else:
                wanted = PARTITIONS * (number + 1)
                scene.waits(lambda wanted=wanted: sum(scene.described()[1].values()) == wanted, "it is not shared")
        time.sleep(every_ms / 1000)
    scene.goes_home()


def refuses_offsets(scene: Scene, library: str, times: int, to: int, waits_ms: int, **options: Any) -> None:
    """An operator's tool sets the offsets of a group that has members, and is refused."""
    gather(scene, library, 10_000, **options)
    scene.run.victims = ["operator"]
    wanted = [TopicPartition(scene.topic, partition, to) for partition in range(PARTITIONS)]
    admin = administers(scene)
    for _ in range(times):
        scene.did(f"set the offsets to {to}", scene.name)
        (asked,) = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(scene.name, wanted)]).values()
        try:
            refused = any(each.error is not None for each in asked.result(PATIENCE).topic_partitions)
        except KafkaException:
            refused = True
        assert refused, "the offsets were set"
        time.sleep(waits_ms / 1000)
    scene.goes_home()
