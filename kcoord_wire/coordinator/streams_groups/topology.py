"""The topology of a streams application: which internal topics it needs, with how many partitions, and how many tasks.

Laws:

* The topics that exist decide: an internal topic that exists with another number of partitions than it should have is
  a problem of the group, never changed.
* A repartition topic has the partitions that the topology says, else the most that a source of a subtopology which
  writes it has; co-partitioned ones have as many as the sources beside them. A changelog has as many as its
  subtopology has tasks.
* What cannot be configured is a status of each heartbeat (`Problem`); what is a mistake of the topology itself is
  refused.

Source: KIP-1071; Kafka's `InternalTopicManager.java`, `RepartitionTopics.java`, `CopartitionedTopicsEnforcer.java`,
`ChangelogTopics.java`, `StreamsTopology.java` (4.4).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

from kcoord_wire import messages as m
from kcoord_wire.assignors.streams import hash_ordered
from kcoord_wire.coordinator.core.apis import Refused, filled
from kcoord_wire.protocol.error_codes import ErrorCode

MOST_TASKS: Final = 100_000
"""Tasks of one topology, each of which costs memory in every assignment; Kafka has no bound."""

_MOST_SHOWN: Final = 3  # names of topics in a status

Written = m.StreamsGroupTopologyValueSubtopology
"""A subtopology, as the log has it."""

PartitionsOf = Callable[[str], int | None]
"""Returns the number of partitions of a topic; None if it does not exist."""


class Status(enum.IntEnum):
    """What keeps a group or a member from running, with its code (``StreamsGroupHeartbeatResponse.Status``)."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5
    MISSING_CLIENT_TAGS = 6


class Problem(Exception):
    """The topics do not fit the topology.

    :ivar status: for each heartbeat of the group
    :ivar detail: as text
    """

    def __init__(self, status: Status, detail: str) -> None:
        super().__init__(status, detail)
        self.status = status
        self.detail = detail


class InternalTopic(NamedTuple):
    """A topic of the application's own.

    :ivar replication_factor: 0 for the broker's default
    :ivar configs: that the application wants
    """

    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]


class Configured(NamedTuple):
    """A subtopology that is configured: every topic has a number of partitions.

    :ivar tasks: how many it has
    :ivar sources: topics that it reads, and that are not its own
    :ivar sinks: repartition topics that it writes
    :ivar repartition: those that it reads
    :ivar changelogs: of its states
    """

    tasks: int
    sources: tuple[str, ...]
    sinks: tuple[str, ...]
    repartition: tuple[InternalTopic, ...]
    changelogs: tuple[InternalTopic, ...]


class ConfiguredTopology(NamedTuple):
    """A topology with the topics that exist.

    :ivar epoch: the topology's
    :ivar subtopologies: by id, ascending; None where the topics do not fit
    :ivar missing: internal topics that have to be created
    :ivar problem: why the group cannot run; None if it can
    """

    epoch: int
    subtopologies: Mapping[str, Configured] | None
    missing: Sequence[InternalTopic] = ()
    problem: Problem | None = None


class Topology:
    """What the members of a group run.

    :param value: as the log has it
    :ivar epoch: the topology's
    :ivar subtopologies: by id
    :ivar subtopology_of: topic that is read to the id of the subtopology that reads it
    :raises Refused: UNKNOWN_SERVER_ERROR as Kafka answers it: the epoch is negative, or an id is there twice
    """

    __slots__ = ("epoch", "subtopologies", "subtopology_of", "value")

    def __init__(self, value: m.StreamsGroupTopologyValue) -> None:
        if value.epoch < 0:
            raise _impossible("Topology epoch must be non-negative.")
        self.value = value
        self.epoch = value.epoch
        self.subtopologies = {each.subtopology_id: each for each in value.subtopologies}
        if len(self.subtopologies) < len(value.subtopologies):
            raise _impossible("A subtopology id is there twice.")
        self.subtopology_of = {topic: each.subtopology_id for each in value.subtopologies for topic in _inputs(each)}

    def is_same(self, other: Topology) -> bool:
        """Return whether another topology has the same epoch and subtopologies."""
        return self.epoch == other.epoch and self.subtopologies == other.subtopologies

    def inputs(self, subtopology_id: str) -> list[str]:
        """Return the topics that a subtopology reads, in the order in which Kafka names them."""
        subtopology = self.subtopologies.get(subtopology_id)
        return [] if subtopology is None else hash_ordered(sorted(set(_inputs(subtopology))))

    def required_topics(self) -> set[str]:
        """Return the topics that it reads and those of its states."""
        changelogs = (topic.name for each in self.subtopologies.values() for topic in each.state_changelog_topics)
        return {*self.subtopology_of, *changelogs}


def topology_from(asked: m.StreamsGroupHeartbeatRequestTopology) -> Topology:
    """Return the topology of a heartbeat. Errors as `Topology`."""
    return Topology(
        m.StreamsGroupTopologyValue(
            epoch=asked.epoch,
            subtopologies=[
                filled(
                    Written,
                    each,
                    state_changelog_topics=list(map(_topic_info, each.state_changelog_topics)),
                    repartition_source_topics=list(map(_topic_info, each.repartition_source_topics)),
                    copartition_groups=[
                        filled(m.StreamsGroupTopologyValueCopartitionGroup, group) for group in each.copartition_groups
                    ],
                )
                for each in asked.subtopologies
            ],
        )
    )


def _topic_info(topic: m.StreamsGroupHeartbeatRequestTopicInfo) -> m.StreamsGroupTopologyValueTopicInfo:
    configs = [m.StreamsGroupTopologyValueTopicConfig(key=each.key, value=each.value) for each in topic.topic_configs]
    return filled(m.StreamsGroupTopologyValueTopicInfo, topic, topic_configs=configs)


def _inputs(subtopology: Written) -> Iterable[str]:
    return chain(subtopology.source_topics, (topic.name for topic in subtopology.repartition_source_topics))


def _impossible(text: str) -> Refused:
    """Return the refusal of a topology that Kafka does not check, and on which it fails."""
    return Refused(ErrorCode.UNKNOWN_SERVER_ERROR, text)


def _invalid(text: str) -> Refused:
    return Refused(ErrorCode.STREAMS_INVALID_TOPOLOGY, text)


# ---- partitions of internal topics


def configure(topology: Topology, partitions_of: PartitionsOf) -> ConfiguredTopology:
    """Return the topology with the topics that exist.

    :raises Refused: STREAMS_INVALID_TOPOLOGY, it cannot be run whatever topics exist; UNKNOWN_SERVER_ERROR likewise,
        where Kafka does not check it
    """
    try:
        _check_sources(topology, partitions_of)
        counts = _Counts(topology, partitions_of)
        configured = {name: _configured(each, counts) for name, each in sorted(topology.subtopologies.items())}
        if sum(each.tasks for each in configured.values()) > MOST_TASKS:
            raise _invalid(f"The topology has more than {MOST_TASKS:,} tasks.")
        missing = _missing(configured, topology, partitions_of)
    except Problem as problem:
        return ConfiguredTopology(topology.epoch, None, problem=problem)
    if not missing:
        return ConfiguredTopology(topology.epoch, configured)
    text = f"Internal topics are missing: {_shown([topic.name for topic in missing])}"
    return ConfiguredTopology(topology.epoch, configured, missing, Problem(Status.MISSING_INTERNAL_TOPICS, text))


def _check_sources(topology: Topology, partitions_of: PartitionsOf) -> None:
    sources = {topic for each in topology.subtopologies.values() for topic in each.source_topics}
    if missing := sorted(topic for topic in sources if partitions_of(topic) is None):
        raise Problem(Status.MISSING_SOURCE_TOPICS, f"Source topics {_shown(missing)} are missing.")


def _shown(topics: Sequence[str]) -> str:
    more = f" and {len(topics) - _MOST_SHOWN} additional topics" if len(topics) > _MOST_SHOWN else ""
    return ", ".join(topics[:_MOST_SHOWN]) + more


class _Counts:
    """How many partitions each topic of a topology has or is to have.

    :ivar decided: of internal topics
    """

    def __init__(self, topology: Topology, partitions_of: PartitionsOf) -> None:
        self._partitions_of = partitions_of
        self._subtopologies = list(topology.subtopologies.values())
        self.decided: dict[str, int] = {}
        self._decide_repartition()
        self._decide_copartitioned()
        for each in self._subtopologies:
            most = self.most_input_partitions(each)
            self.decided |= {topic.name: most for topic in each.state_changelog_topics}

    def of(self, topic: str) -> int:
        """Return the partitions that a topic has, or is to have if it does not exist."""
        count = self._find(topic)
        if count is None:
            raise _impossible(f"Number of partitions is not set for topic: {topic}")
        return count

    def most_input_partitions(self, subtopology: Written) -> int:
        """Return how many tasks a subtopology has."""
        most = max((self.of(topic) for topic in _inputs(subtopology)), default=None)
        if most is None:
            raise _invalid(f"No source topics found for subtopology {subtopology.subtopology_id}")
        return most

    def _find(self, topic: str) -> int | None:
        count = self._partitions_of(topic)
        return self.decided.get(topic) if count is None else count

    def _decide_repartition(self) -> None:
        read = [topic for each in self._subtopologies for topic in each.repartition_source_topics]
        counts = {topic.name: topic.partitions for topic in read if topic.partitions}
        waiting = True
        while waiting:
            waiting = progress = False
            for each in self._subtopologies:
                for sink in each.repartition_sink_topics:
                    if sink in counts:
                        continue
                    count = self._from_inputs(each, counts)
                    if count is None:
                        waiting = True
                    else:
                        counts[sink], progress = count, True
            if waiting and not progress:
                raise _invalid(
                    "Failed to compute number of partitions for all repartition topics. There may be loops in the "
                    "topology that cannot be resolved."
                )
        if any(topic.name not in counts for topic in read):
            raise _invalid(
                "Failed to compute number of partitions for all repartition topics, because a repartition source topic "
                "is never used as a sink topic."
            )
        self.decided |= counts

    def _from_inputs(self, subtopology: Written, counts: Mapping[str, int]) -> int | None:
        known = [counts[each.name] for each in subtopology.repartition_source_topics if each.name in counts]
        sources = (self._find(topic) for topic in subtopology.source_topics)
        return max([*known, *(count for count in sources if count is not None)], default=None)

    def _decide_copartitioned(self) -> None:
        read = [topic for each in self._subtopologies for topic in each.repartition_source_topics]
        fixed = {topic.name for topic in read if topic.partitions}
        flexible = {topic.name for topic in read if not topic.partitions}
        for each in self._subtopologies:
            for group in each.copartition_groups:
                names = set(_copartitioned(each, group))
                if names:
                    self.decided |= self._enforced(names, fixed, flexible)

    def _enforced(self, names: set[str], fixed: set[str], flexible: set[str]) -> dict[str, int]:
        """Return how many partitions the repartition topics among co-partitioned ones are to have."""
        repartition = {name: self.of(name) for name in names if name in fixed or name in flexible}
        others = {name: self.of(name) for name in names if name not in repartition}
        if others:
            _check_equal(others.values(), others)
            count = next(iter(others.values()))
        elif fixed:
            counts = [self.of(name) for name in fixed]
            _check_equal(counts, repartition)
            count = counts[0]
        else:
            count = max(repartition.values())
            if not count:
                raise _invalid(f"All topics in the copartition group had undefined partition number: {sorted(names)}")
        for name, own in repartition.items():
            if name in fixed and own != count:
                raise Problem(
                    Status.INCORRECTLY_PARTITIONED_TOPICS,
                    f"Number of partitions [{own}] of repartition topic [{name}] doesn't match number of partitions "
                    f"[{count}] of the source topic.",
                )
        return dict.fromkeys(repartition, count)


def _copartitioned(subtopology: Written, group: m.StreamsGroupTopologyValueCopartitionGroup) -> Iterable[str]:
    """Yield the names that a group of co-partitioned topics has by their positions."""
    repartition = [topic.name for topic in subtopology.repartition_source_topics]
    for names, positions in (
        (subtopology.source_topics, group.source_topics),
        (repartition, group.repartition_source_topics),
    ):
        for at in positions:
            if not 0 <= at < len(names):
                raise _impossible(f"Index {at} out of bounds for length {len(names)}")
            yield names[at]


def _check_equal(counts: Iterable[int], topics: Mapping[str, int]) -> None:
    if len(set(counts)) > 1:
        shown = ", ".join(f"{name}={count}" for name, count in sorted(topics.items()))
        text = f"Following topics do not have the same number of partitions: [{{{shown}}}]"
        raise Problem(Status.INCORRECTLY_PARTITIONED_TOPICS, text)


def _configured(subtopology: Written, counts: _Counts) -> Configured:
    def internal(topics: Iterable[m.StreamsGroupTopologyValueTopicInfo]) -> tuple[InternalTopic, ...]:
        return tuple(_internal(topic, topic.partitions or counts.decided[topic.name]) for topic in topics)

    return Configured(
        counts.most_input_partitions(subtopology),
        tuple(dict.fromkeys(subtopology.source_topics)),
        tuple(dict.fromkeys(subtopology.repartition_sink_topics)),
        internal(subtopology.repartition_source_topics),
        internal(subtopology.state_changelog_topics),
    )


def _internal(topic: m.StreamsGroupTopologyValueTopicInfo, partitions: int) -> InternalTopic:
    if partitions < 1:
        raise _impossible("Number of partitions must be at least 1.")
    configs = {each.key: each.value for each in topic.topic_configs}
    return InternalTopic(topic.name, partitions, topic.replication_factor, configs)


def _missing(
    configured: Mapping[str, Configured], topology: Topology, partitions_of: PartitionsOf
) -> list[InternalTopic]:
    """Return the internal topics that do not exist, in the order in which Kafka names them.

    :raises Problem: one that exists has another number of partitions
    """
    expected = {topic.name: topic for each in configured.values() for topic in (*each.repartition, *each.changelogs)}
    for name in hash_ordered(sorted(topology.required_topics() & expected.keys())):
        there, wanted = partitions_of(name), expected[name].partitions
        if there is not None and there != wanted:
            raise Problem(
                Status.INCORRECTLY_PARTITIONED_TOPICS,
                f"Existing topic {name} has different number of partitions: expected {wanted}, found {there}",
            )
    return [expected[name] for name in hash_ordered(list(expected)) if partitions_of(name) is None]
