"""What brokers ask a share coordinator: to begin, read, change and delete the states of share partitions (KIP-932).

Kafka's brokers keep what they know of records with these requests, and its group coordinator begins and resets states.
Here one machine does all of that, and answers any client, for any share partition.

Law: a state that is set or changed from outside takes the place of what members have acquired.

Source: KIP-932, KIP-1226; Kafka's `ShareCoordinatorService.java`, `ShareCoordinatorShard.java`,
`PersisterStateBatchCombiner.java`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.apis import Refused, refusal, refused_in
from kcoord_wire.coordinator.core.events import DeleteShareState, EffectCollector, InitializeShareState, Request
from kcoord_wire.coordinator.share.sessions import Partition
from kcoord_wire.coordinator.share.share_partition import SharePartition, StateRange
from kcoord_wire.coordinator.share.shared import NO_START, NUMBERS, STATES, Shared, check_room, drop
from kcoord_wire.protocol.error_codes import ErrorCode

MOST_OFFSETS: Final = 1_000_000
"""Offsets between the start offset and the last one of a change; Kafka has no bound."""

_FENCED_STATE: Final = "The coordinator rejected the request because the state epoch did not match."
_FENCED_LEADER: Final = "The leader epoch in the request is older than the epoch on the broker."
_UNINITIALIZED: Final = "{} operation on uninitialized share partition not allowed."
_NEGATIVE: Final = "The {} cannot be a negative number."


class PartitionNames(Protocol):
    """Which partitions exist."""

    def has(self, topic_id: uuid.UUID, index: int) -> bool:
        """Return whether a partition does."""


class StateRequests:
    """Answers these requests.

    :param partitions: all share partitions
    :param effects: of the machine
    :param names: the partitions of topics
    """

    def __init__(
        self, partitions: dict[tuple[str, Partition], Shared], effects: EffectCollector, names: PartitionNames
    ) -> None:
        self._partitions = partitions
        self._effects = effects
        self._names = names

    def initialize(self, request: Request, message: m.InitializeShareGroupStateRequest) -> None:
        """Answer InitializeShareGroupState."""

        def begin(shared: Shared | None, partition: Partition, wanted: Any, answer: Any) -> Shared:
            self._check(partition, wanted, "state_epoch")
            if shared is None:
                check_room(self._partitions)
                records = SharePartition(0)
                shared = Shared(message.group_id, partition, records, self._effects.now)
                self._partitions[message.group_id, partition] = shared
            elif wanted.state_epoch < shared.state_epoch:
                raise Refused(ErrorCode.FENCED_STATE_EPOCH, _FENCED_STATE)
            shared.state_epoch = wanted.state_epoch
            shared.begin(wanted.start_offset)
            shared.write(self._effects)
            return shared

        self._answer_each(request, message, begin)

    def read(self, request: Request, message: m.ReadShareGroupStateRequest) -> None:
        """Answer ReadShareGroupState."""

        def describe(shared: Shared | None, partition: Partition, wanted: Any, answer: Any) -> Shared:
            known = self._known(shared, partition, wanted, "Read")
            if wanted.leader_epoch > known.leader_epoch:
                known.leader_epoch = wanted.leader_epoch
                known.write(self._effects)
            answer.state_epoch = known.state_epoch
            answer.start_offset = known.start_offset
            answer.state_batches = [
                m.ReadShareGroupStateResponseStateBatch(
                    first_offset=each.first,
                    last_offset=each.last,
                    delivery_state=NUMBERS[each.state],
                    delivery_count=each.deliveries,
                )
                for each in known.records.snapshot()
            ]
            return known

        self._answer_each(request, message, describe)

    def read_summary(self, request: Request, message: m.ReadShareGroupStateSummaryRequest) -> None:
        """Answer ReadShareGroupStateSummary."""

        def describe(shared: Shared | None, partition: Partition, wanted: Any, answer: Any) -> Shared | None:
            self._check(partition, wanted, "leader_epoch")
            answer.start_offset = NO_START
            if shared is not None:
                answer.state_epoch, answer.leader_epoch = shared.state_epoch, shared.leader_epoch
                answer.start_offset, answer.delivery_complete_count = shared.start_offset, shared.done
            return shared

        self._answer_each(request, message, describe)

    def write(self, request: Request, message: m.WriteShareGroupStateRequest) -> None:
        """Answer WriteShareGroupState."""

        def change(shared: Shared | None, partition: Partition, wanted: Any, answer: Any) -> Shared:
            self._check(partition, wanted, "state_epoch", "leader_epoch")
            known = self._known(shared, partition, wanted, "Write")
            if wanted.state_epoch < known.state_epoch:
                raise Refused(ErrorCode.FENCED_STATE_EPOCH, _FENCED_STATE)
            changes = [
                StateRange(each.first_offset, each.last_offset, STATES[each.delivery_state], each.delivery_count)
                for each in wanted.state_batches
                if each.delivery_state in STATES and 0 <= each.first_offset <= each.last_offset
            ]
            start = known.start_offset if wanted.start_offset == NO_START else wanted.start_offset
            too_far = any(each.last - max(start, 0) > MOST_OFFSETS for each in changes)
            if len(changes) < len(wanted.state_batches) or too_far:
                raise Refused(ErrorCode.INVALID_REQUEST)
            known.leader_epoch = wanted.leader_epoch
            ranges = merged(known.records.snapshot(), changes)
            known.begin(start)
            known.records.restore(max(start, 0), ranges)
            known.write(self._effects)
            return known

        self._answer_each(request, message, change)

    def delete(self, request: Request, message: m.DeleteShareGroupStateRequest) -> None:
        """Answer DeleteShareGroupState."""

        def remove(shared: Shared | None, partition: Partition, wanted: Any, answer: Any) -> Shared | None:
            self._check(partition, wanted)
            if shared is not None:
                drop(self._partitions, self._effects, shared)
            return shared

        self._answer_each(request, message, remove)

    def _answer_each(
        self, request: Request, message: Any, answer_one: Callable[[Shared | None, Partition, Any, Any], Shared | None]
    ) -> None:
        """Answer a request with what `answer_one` says of each partition.

        :param answer_one: called with the share partition, if there is one, its name, the part of the request, and the
            part of the answer, which it fills; returns the share partition that the answer is about
        """
        response = refusal(message, request.version, ErrorCode.NONE)
        after = self._effects.deleted
        if not message.group_id:
            response.results = []
        for topic, result in zip(message.topics, response.results, strict=False):
            for wanted, answer in zip(topic.partitions, result.partitions, strict=True):
                partition = topic.topic_id, wanted.partition
                answer.error_message = None
                with refused_in(answer):
                    known = answer_one(self._partitions.get((message.group_id, partition)), partition, wanted, answer)
                    after = max(after, self._effects.written(known))
        self._effects.reply(request, response, after)

    def _check(self, partition: Partition, wanted: Any, *numbers: str) -> None:
        """Raise `Refused` if a part of a request cannot be answered, whatever is known."""
        for name in ("partition", *numbers):
            if getattr(wanted, name) < 0:
                what = "partition id" if name == "partition" else name.replace("_", " ")
                raise Refused(ErrorCode.INVALID_REQUEST, _NEGATIVE.format(what))
        if not self._names.has(*partition):
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _known(self, shared: Shared | None, partition: Partition, wanted: Any, what: str) -> Shared:
        if wanted.partition < 0 or wanted.leader_epoch < 0:
            self._check(partition, wanted, "leader_epoch")
        if shared is None:
            raise Refused(ErrorCode.INVALID_REQUEST, _UNINITIALIZED.format(what))
        if wanted.leader_epoch < shared.leader_epoch:
            raise Refused(ErrorCode.FENCED_LEADER_EPOCH, _FENCED_LEADER)
        self._check(partition, wanted)
        return shared


def initialize_request(effect: InitializeShareState) -> tuple[m.InitializeShareGroupStateRequest, int]:
    """Return the request that begins the states that a group needs, and its version."""
    topics = [
        m.InitializeShareGroupStateRequestInitializeStateData(
            topic_id=topic_id,
            partitions=[
                m.InitializeShareGroupStateRequestPartitionData(
                    partition=index, state_epoch=effect.epoch, start_offset=start
                )
                for index, start in sorted(offsets.items())
            ],
        )
        for topic_id, offsets in effect.partitions.items()
    ]
    return m.InitializeShareGroupStateRequest(group_id=effect.group_id, topics=topics), 0


def delete_request(effect: DeleteShareState) -> tuple[m.DeleteShareGroupStateRequest, int]:
    """Return the request that deletes the states of a group that is gone, and its version."""
    topics = [
        m.DeleteShareGroupStateRequestDeleteStateData(
            topic_id=topic_id,
            partitions=[m.DeleteShareGroupStateRequestPartitionData(partition=index) for index in sorted(indexes)],
        )
        for topic_id, indexes in effect.partitions.items()
    ]
    return m.DeleteShareGroupStateRequest(group_id=effect.group_id, topics=topics), 0


def merged(ranges: Iterable[StateRange], changes: Iterable[StateRange]) -> list[StateRange]:
    """Return ranges with changes to them: where they overlap the greater number of deliveries counts, then the greater
    number of the state.

    :param ranges: ascending, without overlap; so is the result
    """
    result = list(ranges)
    for change in changes:
        parts: list[StateRange] = []
        left = [change]
        for old in result:
            if old.last < change.first or change.last < old.first:
                parts.append(old)
            elif (old.deliveries, NUMBERS[old.state]) > (change.deliveries, NUMBERS[change.state]):
                parts.append(old)
                left = [part for each in left for part in _outside(each, old)]
            else:
                parts += _outside(old, change)
        result = sorted([*parts, *left])
    return result


def _outside(each: StateRange, other: StateRange) -> list[StateRange]:
    """Return what is left of a range outside another."""
    before = each._replace(last=min(each.last, other.first - 1))
    behind = each._replace(first=max(each.first, other.last + 1))
    return [part for part in (before, behind) if part.first <= part.last]
