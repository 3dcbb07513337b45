"""What AdminClients ask of topics (CreateTopics, DeleteTopics, CreatePartitions) and of partitions (DeleteRecords,
DescribeProducers, ElectLeaders, AlterPartitionReassignments, DescribeLogDirs).

Laws:

* A request that may only validate changes nothing; any other changes all that it is answered NONE for, by one write to
  the disk: while many topics are made, other clients wait for one fsync.
* The partitions of all topics together are bounded where clients create them: more are refused with
  POLICY_VIOLATION (44), which says how many there may be.
* There are as many replicas as brokers at most: more are refused with INVALID_REPLICATION_FACTOR (38), as by Kafka. A
  topic has as many as its creator asks for, on the brokers that are named; each partition that is added has as many.

Source: kafka `ControllerApis.scala`, `ReplicationControlManager.java`, `Topic.java`, `KafkaApis.scala`,
`ReplicaManager.scala`; KIP-4, KIP-107, KIP-113, KIP-195, KIP-455, KIP-464, KIP-516, KIP-525, KIP-664, KIP-860.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Final

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.apis import CREATED_CONFIGS_FROM, Refused, paired_partitions, refusal, refused_in
from kcoord_wire.coordinator.core.brokers import EVERYWHERE, NO_LEADER, Leaders, Placement, is_topic_name
from kcoord_wire.coordinator.core.events import Request
from kcoord_wire.coordinator.partitions.partition_log import PartitionLog
from kcoord_wire.coordinator.topics.catalog import (
    COLLIDING,
    MOST_PARTITIONS,
    NO_ID,
    Catalog,
    Topic,
    TopicLimits,
    disk_work,
)
from kcoord_wire.coordinator.topics.configs import TOPIC_CONFIGS, check_configs
from kcoord_wire.coordinator.topics.configuration import Configuration
from kcoord_wire.coordinator.topics.metadata import ClusterMetadata
from kcoord_wire.protocol.error_codes import ErrorCode

_METADATA_TOPIC: Final = "__cluster_metadata"
_LONGEST_NAME: Final = 249
_DEFAULT: Final = -1  # partitions or replicas that the broker chooses
_LOG_DIR: Final = "/kcoord"  # whatever the disk is, a client cannot look at it
_PREFERRED: Final = 0
_ELECTIONS: Final = (_PREFERRED, 1)  # and unclean ones
_TO_THE_END: Final = -1  # the offset with which DeleteRecords asks for all records to go


class Administration:
    """Creates, grows and deletes topics, and answers what is asked of single partitions.

    :param catalog: the topics
    :param cluster: the brokers that they may be on
    :param configuration: describes the configs of a topic that is created
    :param limits: how many partitions there may be
    :param default_partitions: of a topic that is created without a number (``num.partitions``)
    """

    def __init__(
        self,
        catalog: Catalog,
        cluster: ClusterMetadata,
        configuration: Configuration,
        limits: TopicLimits,
        default_partitions: int,
    ) -> None:
        self._catalog = catalog
        self._cluster = cluster
        self._configuration = configuration
        self._limits = limits
        self._default_partitions = default_partitions

    # ---- CreateTopics

    def create_topics(self, request: Request) -> m.CreateTopicsResponse:
        """Answer CreateTopics, and create what may be created unless it may only validate."""
        asked: m.CreateTopicsRequest = request.message
        times = Counter(wanted.name for wanted in asked.topics)
        room = self._limits.max_partitions - self._catalog.partitions
        taken = {topic.name.translate(COLLIDING): topic.name for topic in self._catalog}
        # A name that is there twice is answered once.
        answers: dict[str, m.CreateTopicsResponseCreatableTopicResult] = {}
        described: dict[frozenset[tuple[str, str]], list[m.CreateTopicsResponseCreatableTopicConfigs]] = {}
        planned: list[Topic] = []
        for wanted in asked.topics:
            answer = m.CreateTopicsResponseCreatableTopicResult(name=wanted.name, error_message=None)
            answers[wanted.name] = answer
            with refused_in(answer):
                if times[wanted.name] > 1:
                    raise Refused(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
                partitions, replicas, placement = self._check_new(wanted, room, taken)
                configs = {config.name: config.value or "" for config in wanted.configs}
                if not asked.validate_only:
                    with disk_work():
                        planned.append(self._catalog.plan(wanted.name, partitions, configs, len(planned), placement))
                    answer.topic_id = planned[-1].id
                    taken[wanted.name.translate(COLLIDING)] = wanted.name
                room -= partitions
                if request.version >= CREATED_CONFIGS_FROM:
                    answer.num_partitions, answer.replication_factor = partitions, replicas
                    key = frozenset(configs.items())  # of many topics that are only validated, once
                    if key not in described:
                        described[key] = self._configuration.describe_created(configs)
                    answer.configs = described[key]
        try:
            with disk_work():
                self._catalog.add(planned)
        except Refused as refused:
            for topic in planned:
                answers[topic.name] = m.CreateTopicsResponseCreatableTopicResult(
                    name=topic.name, error_code=refused.error, error_message=refused.detail
                )
        return m.CreateTopicsResponse(topics=list(answers.values()))

    def _check_new(
        self, wanted: m.CreateTopicsRequestCreatableTopic, room: int, taken: dict[str, str]
    ) -> tuple[int, int, Placement]:
        """Return the partitions and replicas that a new topic has, and which brokers have them.

        :param room: for how many partitions there is room
        :param taken: the names that exist, by what distinguishes them
        :raises Refused: it cannot be created
        """
        _check_name(wanted.name)
        if self._catalog.named(wanted.name) is not None:
            raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{wanted.name}' already exists.")
        other = taken.get(wanted.name.translate(COLLIDING))
        if other is not None:
            detail = f"Topic '{wanted.name}' collides with existing topic: {other}"
            raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, detail)
        nulls = [config.name for config in wanted.configs if config.value is None]
        if nulls:
            detail = f"Null value not supported for topic configs: {','.join(nulls)}"
            raise Refused(ErrorCode.INVALID_CONFIG, detail)
        check_configs(TOPIC_CONFIGS, "topic", {config.name: config.value or "" for config in wanted.configs})
        partitions, replicas, placement = self._placement(wanted)
        if partitions > min(room, MOST_PARTITIONS):
            raise _too_many(partitions, min(room, MOST_PARTITIONS))
        return partitions, replicas, placement

    def _placement(self, wanted: m.CreateTopicsRequestCreatableTopic) -> tuple[int, int, Placement]:
        if wanted.assignments:
            for name, value in (
                ("replication factor", wanted.replication_factor),
                ("numPartitions", wanted.num_partitions),
            ):
                if value != _DEFAULT:
                    detail = f"A manual partition assignment was specified, but {name} was not set to -1."
                    raise Refused(ErrorCode.INVALID_REQUEST, detail)
            return self._assigned(wanted.assignments)
        if wanted.replication_factor < _DEFAULT or wanted.replication_factor == 0:
            detail = "Replication factor must be larger than 0, or -1 to use the default value."
            raise Refused(ErrorCode.INVALID_REPLICATION_FACTOR, detail)
        if wanted.num_partitions < _DEFAULT or wanted.num_partitions == 0:
            detail = "Number of partitions was set to an invalid non-positive value."
            raise Refused(ErrorCode.INVALID_PARTITIONS, detail)
        brokers = len(self._cluster.node_ids)
        placement = EVERYWHERE if wanted.replication_factor == _DEFAULT else Placement(wanted.replication_factor)
        replicas = placement.replicas or brokers
        if replicas > brokers:
            detail = (
                f"Unable to replicate the partition {replicas} time(s): The target replication factor of {replicas} "
                f"cannot be reached because only {brokers} broker(s) are registered."
            )
            raise Refused(ErrorCode.INVALID_REPLICATION_FACTOR, detail)
        partitions = self._default_partitions if wanted.num_partitions == _DEFAULT else wanted.num_partitions
        return partitions, replicas, placement

    def _assigned(
        self, assignments: Sequence[m.CreateTopicsRequestCreatableReplicaAssignment]
    ) -> tuple[int, int, Placement]:
        times = Counter(assignment.partition_index for assignment in assignments)
        replicas = len(assignments[0].broker_ids)
        for assignment in assignments:
            if times[assignment.partition_index] > 1:
                detail = f"Found multiple manual partition assignments for partition {assignment.partition_index}"
                raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, detail)
            self._check_replicas(assignment.broker_ids, replicas)
        if set(times) != set(range(len(times))):
            detail = "partitions should be a consecutive 0-based integer sequence"
            raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, detail)
        named = {each.partition_index: self._brokers(each.broker_ids) for each in assignments}
        return len(times), replicas, Placement(replicas, named)

    def _brokers(self, node_ids: Sequence[int]) -> list[int]:
        """Return the brokers with these ids, which exist."""
        return [self._cluster.brokers.with_node(node_id) for node_id in node_ids]

    def _check_replicas(self, broker_ids: Sequence[int], expected: int) -> None:
        """Check the brokers that a partition is assigned to; `expected` is how many those before it had."""
        wrong = self._wrong_replica(sorted(broker_ids))
        if not broker_ids:
            wrong = "The manual partition assignment includes an empty replica list."
        elif wrong is None and len(broker_ids) != expected:
            wrong = (
                f"The manual partition assignment includes a partition with {len(broker_ids)} replica(s), but this is "
                f"not consistent with previous partitions, which have {expected} replica(s)."
            )
        if wrong is not None:
            raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, wrong)

    def _wrong_replica(self, broker_ids: Sequence[int]) -> str | None:
        before = None
        for broker in broker_ids:
            if broker == before:
                return f"The manual partition assignment includes the broker {broker} more than once."
            if broker not in self._cluster.node_ids:
                return f"The manual partition assignment includes broker {broker}, but no such broker is registered."
            before = broker
        return None

    # ---- DeleteTopics

    def delete_topics(self, request: Request) -> m.DeleteTopicsResponse:
        """Return the answer to DeleteTopics: topics with error NONE are to be deleted."""
        asked: m.DeleteTopicsRequest = request.message
        wanted = [(topic.name, topic.topic_id) for topic in asked.topics]
        wanted += [(name, NO_ID) for name in asked.topic_names]
        times = Counter(wanted)
        gone: set[str] = set()
        response = m.DeleteTopicsResponse()
        for name, topic_id in times:
            answer = m.DeleteTopicsResponseDeletableTopicResult(name=name, topic_id=topic_id)
            response.responses.append(answer)
            with refused_in(answer):
                if times[name, topic_id] > 1:
                    which = "id" if name is None else "name"
                    raise Refused(ErrorCode.INVALID_REQUEST, f"Duplicate topic {which}.")
                answer.name, answer.topic_id = self._find(name, topic_id)
                if answer.name in gone:
                    detail = "The provided topic name maps to an ID that was already supplied."
                    raise Refused(ErrorCode.INVALID_REQUEST, detail)
                gone.add(answer.name)
        return response

    def _find(self, name: str | None, topic_id: uuid.UUID) -> tuple[str, uuid.UUID]:
        if name is None and topic_id == NO_ID:
            raise Refused(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
        if name is not None and topic_id != NO_ID:
            raise Refused(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
        topic = self._catalog.find(name or "", topic_id, name is None)
        if isinstance(topic, ErrorCode):
            raise Refused(topic)
        if topic.is_internal:
            raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is an internal topic.")
        return topic.name, topic.id

    # ---- CreatePartitions

    def create_partitions(self, request: Request) -> m.CreatePartitionsResponse:
        """Answer CreatePartitions, and add the partitions unless it may only validate."""
        asked: m.CreatePartitionsRequest = request.message
        times = Counter(wanted.name for wanted in asked.topics)
        room = self._limits.max_partitions - self._catalog.partitions
        answers: dict[str, m.CreatePartitionsResponseCreatePartitionsTopicResult] = {}
        planned: dict[str, list[PartitionLog]] = {}
        assigned: dict[str, list[list[int]]] = {}
        for wanted in {wanted.name: wanted for wanted in asked.topics}.values():
            answer = m.CreatePartitionsResponseCreatePartitionsTopicResult(name=wanted.name)
            answers[wanted.name] = answer
            with refused_in(answer):
                if times[wanted.name] > 1:
                    raise Refused(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
                more = self._check_growth(wanted, room)
                if not asked.validate_only:
                    with disk_work():
                        planned[wanted.name] = self._catalog.plan_growth(wanted.name, more)
                    assigned[wanted.name] = [self._brokers(each.broker_ids) for each in wanted.assignments or ()]
                room -= more
        try:
            with disk_work():
                self._catalog.grow(planned, assigned)
        except Refused as refused:
            for name in planned:
                answers[name].error_code, answers[name].error_message = refused.error, refused.detail
        return m.CreatePartitionsResponse(results=list(answers.values()))

    def _check_growth(self, wanted: m.CreatePartitionsRequestCreatePartitionsTopic, room: int) -> int:
        """Return how many partitions are to be added.

        :param room: for how many partitions there is room
        :raises Refused: they cannot be
        """
        topic = self._catalog.named(wanted.name)
        if topic is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if topic.is_internal:
            raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is an internal topic.")
        there = len(topic.logs)
        if wanted.count == there:
            raise Refused(ErrorCode.INVALID_PARTITIONS, f"Topic already has {there} partition(s).")
        if wanted.count < there:
            detail = (
                f"The topic {wanted.name} currently has {there} partition(s); {wanted.count} would not be an increase."
            )
            raise Refused(ErrorCode.INVALID_PARTITIONS, detail)
        more = wanted.count - there
        if wanted.assignments is not None:
            if len(wanted.assignments) != more:
                detail = (
                    f"Attempted to add {more} additional partition(s), but only {len(wanted.assignments)} assignment(s)"
                    " were specified."
                )
                raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, detail)
            replicas = len(topic.leaders.replicas(0))
            for assignment in wanted.assignments:
                self._check_replicas(assignment.broker_ids, replicas)
        room = min(room, MOST_PARTITIONS - there)
        if more > room:
            raise _too_many(more, room)
        return more

    # ---- partitions

    def _partition(self, request: Request, name: str, partition: int) -> PartitionLog:
        """Return a partition that the broker which was asked leads.

        :raises Refused: it does not exist, or is led by another
        """
        return self._catalog.log(self._catalog.find(name, NO_ID, False), partition, request.broker)

    # ---- DeleteRecords

    def delete_records(self, request: Request) -> m.DeleteRecordsResponse:
        """Answer DeleteRecords: drop the records before an offset."""
        asked: m.DeleteRecordsRequest = request.message
        response: m.DeleteRecordsResponse = refusal(asked, request.version, ErrorCode.NONE)
        for part, wanted, answer in paired_partitions(asked, response):
            with refused_in(answer):
                log = self._partition(request, part.name, wanted.partition_index)
                self._check_policy(part.name)
                log.truncate_before(log.end_offset if wanted.offset == _TO_THE_END else wanted.offset)
                answer.low_watermark = log.start_offset
        return response

    def _check_policy(self, name: str) -> None:
        topic = self._catalog.named(name)
        if topic is not None and "delete" not in self._configuration.value(topic, "cleanup.policy"):
            raise Refused(ErrorCode.POLICY_VIOLATION)

    # ---- DescribeProducers

    def describe_producers(self, request: Request) -> m.DescribeProducersResponse:
        """Answer DescribeProducers: the idempotent producers that partitions remember. A partition that is named twice
        is described once: otherwise a short request could ask for an answer larger than memory."""
        asked: m.DescribeProducersRequest = request.message
        response = m.DescribeProducersResponse()
        wanted: dict[str, dict[int, None]] = {}
        for part in asked.topics:
            wanted.setdefault(part.name, {}).update(dict.fromkeys(part.partition_indexes))
        for name, indexes in wanted.items():
            answers = []
            for index in indexes:
                answer = m.DescribeProducersResponsePartitionResponse(partition_index=index, error_message=None)
                answers.append(answer)
                with refused_in(answer):
                    log = self._partition(request, name, index)
                    answer.active_producers = [
                        m.DescribeProducersResponseProducerState(**producer._asdict()) for producer in log.producers()
                    ]
            response.topics.append(m.DescribeProducersResponseTopicResponse(name=name, partitions=answers))
        return response

    # ---- ElectLeaders

    def elect_leaders(self, request: Request) -> m.ElectLeadersResponse:
        """Answer ElectLeaders (KIP-183, KIP-460): there is nothing to elect, since a partition is led by the first of
        its replicas that runs at any time; what Kafka would have elected otherwise is refused with its reason."""
        asked: m.ElectLeadersRequest = request.message
        if asked.election_type not in _ELECTIONS:
            raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR)
        wanted: dict[str, dict[int, None]] = {}
        for part in asked.topic_partitions or ():
            wanted.setdefault(part.topic, {}).update(dict.fromkeys(part.partitions))
        if asked.topic_partitions is None:
            every = (*self._catalog, *self._catalog.internal())
            wanted = {topic.name: dict.fromkeys(range(len(topic.logs))) for topic in every}
        is_for_all = asked.topic_partitions is None  # then what needs no election is left out
        results = []
        for name, indexes in wanted.items():
            answers = [
                m.ElectLeadersResponsePartitionResult(
                    partition_id=index, error_code=refused.error, error_message=refused.detail
                )
                for index in indexes
                for refused in (self._not_elected(name, index, asked.election_type),)
                if not (is_for_all and refused.error == ErrorCode.ELECTION_NOT_NEEDED)
            ]
            results.append(m.ElectLeadersResponseReplicaElectionResult(topic=name, partition_result=answers))
        return m.ElectLeadersResponse(replica_election_results=results)

    def _not_elected(self, name: str, index: int, election: int) -> Refused:
        topic = self._catalog.named(name)
        if topic is None:
            return Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
        if not 0 <= index < len(topic.logs):
            return Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
        leader = topic.leaders.of[index]
        if leader == (topic.leaders.replicas(index)[0] if election == _PREFERRED else leader) != NO_LEADER:
            return Refused(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
        if election == _PREFERRED:
            return Refused(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)
        return Refused(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)

    # ---- AlterPartitionReassignments

    def reassign(self, request: Request) -> tuple[m.AlterPartitionReassignmentsResponse, list[Leaders]]:
        """Put partitions on the brokers that AlterPartitionReassignments names (KIP-455, KIP-860). Nothing is
        copied, so that no reassignment is in progress afterwards, which could be listed or cancelled.

        :returns: the answer, and the leaders of topics that are to be elected anew
        """
        asked: m.AlterPartitionReassignmentsRequest = request.message
        if not asked.topics:  # ``QuorumController`` answers with the defaults
            return m.AlterPartitionReassignmentsResponse(), []
        response: m.AlterPartitionReassignmentsResponse = refusal(asked, request.version, ErrorCode.NONE)
        response.error_message, response.allow_replication_factor_change = None, asked.allow_replication_factor_change
        wanted: dict[str, dict[int, list[int]]] = {}
        made: list[m.AlterPartitionReassignmentsResponseReassignablePartitionResponse] = []
        for topic, answers in zip(asked.topics, response.responses, strict=True):
            for part, answer in zip(topic.partitions, answers.partitions, strict=True):
                answer.error_message = None
                with refused_in(answer):
                    brokers = self._reassigned(topic.name, part, asked.allow_replication_factor_change)
                    wanted.setdefault(topic.name, {})[part.partition_index] = brokers
                    made.append(answer)
                if answer.error_code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS:
                    answer.error_message = None  # ``ApiError`` has no text where it is the error's own
        try:
            with disk_work():
                return response, self._catalog.reassign(wanted)
        except Refused as refused:
            for answer in made:
                answer.error_code, answer.error_message = refused.error, refused.detail
            return response, []

    def _reassigned(
        self, name: str, part: m.AlterPartitionReassignmentsRequestReassignablePartition, may_resize: bool
    ) -> list[int]:
        """Return the brokers that a partition is to be on.

        :raises Refused: it cannot be
        """
        topic = self._catalog.named(name)
        if topic is None:  # a text for each partition: a name that cannot be is not repeated in all of them
            detail = f"Unable to find a topic named {name[:_LONGEST_NAME]}."
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, detail)
        if not 0 <= part.partition_index < len(topic.logs):
            detail = f"Unable to find partition {name}:{part.partition_index}."
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, detail)
        if part.replicas is None:
            raise Refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
        self._check_replicas(part.replicas, len(part.replicas))
        before = len(topic.leaders.replicas(part.partition_index))
        if before != len(part.replicas) and not may_resize:
            detail = f"The replication factor is changed from {before} to {len(part.replicas)}"
            raise Refused(ErrorCode.INVALID_REPLICATION_FACTOR, detail)
        return self._brokers(part.replicas)

    # ---- DescribeLogDirs

    def describe_log_dirs(self, request: Request) -> m.DescribeLogDirsResponse:
        """Answer DescribeLogDirs: one directory, with the sizes of the partitions that the broker has."""
        asked: m.DescribeLogDirsRequest = request.message
        wanted = None if asked.topics is None else {part.topic: set(part.partitions) for part in asked.topics}
        topics = []
        for topic in self._catalog:
            numbers = range(len(topic.logs)) if wanted is None else wanted.get(topic.name, ())
            partitions = [
                m.DescribeLogDirsResponseDescribeLogDirsPartition(partition_index=index, partition_size=log.size)
                for index, log in enumerate(topic.logs)
                if index in numbers and request.broker in topic.leaders.replicas(index)
            ]
            if partitions:
                topics.append(m.DescribeLogDirsResponseDescribeLogDirsTopic(name=topic.name, partitions=partitions))
        return m.DescribeLogDirsResponse(
            results=[m.DescribeLogDirsResponseDescribeLogDirsResult(log_dir=_LOG_DIR, topics=topics)]
        )


def _too_many(wanted: int, room: int) -> Refused:
    return Refused(
        ErrorCode.POLICY_VIOLATION, f"{wanted:,} partitions are too many: there is room for {max(room, 0):,}."
    )


def _check_name(name: str) -> None:
    """Check a topic's name, with Kafka's texts.

    :raises Refused: it is not allowed
    """
    wrong = None
    if name == _METADATA_TOPIC:
        detail = f"Creation of internal topic {_METADATA_TOPIC} is prohibited."
        raise Refused(ErrorCode.INVALID_REQUEST, detail)
    if not name:
        wrong = "the empty string is not allowed"
    elif name in (".", ".."):
        wrong = f"'{name}' is not allowed"
    elif len(name) > _LONGEST_NAME:
        wrong = f"the length of '{name}' is longer than the max allowed length {_LONGEST_NAME}"
    elif not is_topic_name(name):
        wrong = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    if wrong is not None:
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {wrong}")
