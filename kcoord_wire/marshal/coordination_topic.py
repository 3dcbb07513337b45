"""The coordination topic: created with settings that keep claims, or checked for settings that lose them.

Laws:

* `check_topic` raises an error for what breaks the protocol, and returns a warning for what weakens it; each says what
  to change. What a broker does not report is a warning, too: it was not checked.
* `create_topic` changes nothing of a topic that is there.

Sources: Marshal PROTOCOL.md, "Heartbeats" (stale after two intervals); the Go library needs the topic before it starts,
and records with null keys cannot be compacted (kafka `LogValidator.scala`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from kcoord_wire.clients.librdkafka import Cluster, error_text
from kcoord_wire.marshal.log import LogError

LEAST_INTERVALS: Final = 4
"""Heartbeat intervals that retention has to keep: two until a claim is stale, and two that a new reader of a trimmed
log must see before it knows the holders."""
COMFORTABLE_INTERVALS: Final = 10

HOW_TO_CREATE: Final = "create it first: kcoord marshal consume --create-topic, or create_topic"
"""What to do where it is missing."""

_PURPOSE: Final = "a coordination topic in Kafka"
_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.05
_KEPT_INTERVALS: Final = 60  # by a topic of ours
_LEAST_KEPT_MS: Final = 3_600_000
_SEGMENTS: Final = 4
_SAFE_REPLICAS: Final = 2  # that have an entry before it counts
_READABLE: Final = frozenset({"producer", "uncompressed", "gzip", "snappy"})  # by the Go library


class TopicState(NamedTuple):
    """What a cluster says of a topic.

    :ivar replication: replicas of the partition that has the fewest
    :ivar settings: name to value; None if the broker does not report them
    """

    topic: str
    partitions: int
    replication: int
    settings: Mapping[str, str] | None


class Problem(NamedTuple):
    """What is wrong with a topic, and what to change.

    :ivar is_fatal: claims are lost, or no entry can be appended
    """

    is_fatal: bool
    text: str


def create_topic(
    bootstrap: str,
    topic: str,
    partitions: int,
    *,
    heartbeat_interval_ms: int = 60_000,
    replication: int = -1,
    config: Mapping[str, str] | None = None,
) -> bool:
    """Create a coordination topic, and wait until a broker shows it; return False if there is one of this name, which
    stays as it is.

    :param replication: number of replicas; -1 for the broker's default
    :param config: settings of librdkafka
    :raises MissingLibraryError: the extra ``kafka`` is not installed
    :raises LogError: no broker answers, or one refuses
    """
    cluster = Cluster(bootstrap, config, LogError, _PURPOSE)
    kept_ms = max(_LEAST_KEPT_MS, _KEPT_INTERVALS * heartbeat_interval_ms)
    settings = {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "message.timestamp.type": "LogAppendTime",
        "retention.ms": str(kept_ms),
        "segment.ms": str(kept_ms // _SEGMENTS),  # retention removes whole segments
        "unclean.leader.election.enable": "false",
    }
    if replication > 1:
        settings["min.insync.replicas"] = str(min(_SAFE_REPLICAS, replication - 1))
    wanted = cluster.admin.NewTopic(topic, num_partitions=partitions, replication_factor=replication, config=settings)
    admin = cluster.make_admin()  # its end would end the request
    error = _failure(cluster, admin.create_topics([wanted], operation_timeout=_SECONDS)[topic])
    if error is None:
        _wait_for(cluster, admin, topic)
        return True
    if error.code() == cluster.kafka.KafkaError.TOPIC_ALREADY_EXISTS:
        return False
    raise LogError(f"{topic} was not created at {bootstrap}: {error_text(error)}")


def check_topic(
    bootstrap: str, topic: str, *, heartbeat_interval_ms: int = 60_000, config: Mapping[str, str] | None = None
) -> list[str]:
    """Check that a topic can coordinate; return the warnings.

    :raises MissingLibraryError: the extra ``kafka`` is not installed
    :raises LogError: no broker answers, the topic is not there, or its settings lose claims
    """
    cluster = Cluster(bootstrap, config, LogError, _PURPOSE)
    found = cluster.topic(topic, HOW_TO_CREATE)
    replication = min(len(partition.replicas) for partition in found.partitions.values())
    state = TopicState(topic, len(found.partitions), replication, _settings(cluster, topic))
    problems = list(problems_of(state, heartbeat_interval_ms))
    if fatal := [problem.text for problem in problems if problem.is_fatal]:
        raise LogError("; ".join(fatal))
    return [problem.text for problem in problems]


def problems_of(state: TopicState, heartbeat_interval_ms: int) -> Iterator[Problem]:
    """Yield what is wrong with a topic for this heartbeat interval."""
    if state.settings is None:
        names = "cleanup.policy, retention.ms, message.timestamp.type and min.insync.replicas"
        yield Problem(False, f"the broker does not report the settings of {state.topic}: not checked are {names}")
    else:
        yield from _problems_of_contents(state.topic, state.settings)
        yield from _problems_of_retention(state.topic, state.settings, heartbeat_interval_ms)
        yield from _problems_of_replication(state, state.settings)


def _problems_of_contents(topic: str, settings: Mapping[str, str]) -> Iterator[Problem]:
    if "compact" in settings.get("cleanup.policy", "delete"):
        yield Problem(
            True, f"{topic} is compacted, which refuses entries: they have no keys; set cleanup.policy=delete"
        )
    if settings.get("message.timestamp.type", "LogAppendTime") != "LogAppendTime":
        yield Problem(
            False,
            f"entries of {topic} have the times of their senders: claims hold as long as the members' clocks agree;"
            " set message.timestamp.type=LogAppendTime",
        )
    if (codec := settings.get("compression.type", "producer")) not in _READABLE:
        yield Problem(
            False, f"{topic} is stored with {codec}, which the Go library cannot read; set compression.type=producer"
        )


def _problems_of_retention(topic: str, settings: Mapping[str, str], interval_ms: int) -> Iterator[Problem]:
    kept_ms = int(settings.get("retention.ms", "-1"))
    if 0 <= kept_ms < COMFORTABLE_INTERVALS * interval_ms:
        is_fatal = kept_ms < LEAST_INTERVALS * interval_ms
        yield Problem(
            is_fatal,
            f"{topic} keeps entries for {kept_ms / 1000:g} s, {kept_ms / interval_ms:.1f} heartbeat intervals"
            f" ({LEAST_INTERVALS} are needed, {COMFORTABLE_INTERVALS} or more are wise); set retention.ms",
        )
    if (kept_bytes := int(settings.get("retention.bytes", "-1"))) >= 0:
        yield Problem(
            False,
            f"{topic} keeps {kept_bytes} bytes of a partition, however young they are: many members can push out live"
            " claims; set retention.bytes=-1",
        )


def _problems_of_replication(state: TopicState, settings: Mapping[str, str]) -> Iterator[Problem]:
    least = int(settings.get("min.insync.replicas", "1"))
    if least > state.replication:
        yield Problem(
            True,
            f"{state.topic} has {state.replication} replicas and needs {least} for an append (min.insync.replicas):"
            " no entry can be appended",
        )
    elif state.replication < _SAFE_REPLICAS:
        yield Problem(False, f"{state.topic} has one replica: with its broker claims and offsets are lost")
    elif least < _SAFE_REPLICAS:
        yield Problem(
            False,
            f"an entry of {state.topic} counts once one replica has it (min.insync.replicas=1): an election can lose"
            " claims; set 2",
        )
    if settings.get("unclean.leader.election.enable", "false") == "true":
        yield Problem(
            False,
            f"a replica of {state.topic} that is behind may become leader and lose claims; set"
            " unclean.leader.election.enable=false",
        )


def _settings(cluster: Cluster, topic: str) -> Mapping[str, str] | None:
    """Return a topic's settings; None if the broker does not report them."""
    admin = cluster.make_admin()
    resource = cluster.admin.ConfigResource(cluster.admin.ConfigResource.Type.TOPIC, topic)
    (future,) = admin.describe_configs([resource], request_timeout=_SECONDS).values()
    if (error := _failure(cluster, future)) is not None:
        logging.getLogger(__name__).info("settings of %s: %s", topic, error_text(error))
        return None
    return {name: entry.value for name, entry in future.result().items() if entry.value is not None}


def _wait_for(cluster: Cluster, admin: Any, topic: str) -> None:
    """Wait until a new topic is shown: the controller has it before the brokers."""
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end:
        try:
            if topic in admin.list_topics(timeout=_SECONDS).topics:
                return
        except cluster.kafka.KafkaException as error:
            raise LogError(f"{topic} was created at {cluster.bootstrap}, then: {error_text(error)}") from None
        time.sleep(_LOOK_SECONDS)
    raise LogError(f"{topic} was created, but no broker at {cluster.bootstrap} shows it within {_SECONDS:g} s")


def _failure(cluster: Cluster, future: Any) -> Any:
    """Return the error of an admin request, or None."""
    try:
        future.result(_SECONDS + 5)
    except cluster.kafka.KafkaException as error:
        return error.args[0]
    return None
