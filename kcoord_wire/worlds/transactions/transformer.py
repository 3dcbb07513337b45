"""A consume-transform-produce application as a state machine: the client side of transactions.

It takes the next offsets of one source partition, writes a record for each to partitions of its outputs, commits the
offsets in the same transaction, and goes on; after each aborted transaction it begins again at what is committed.

Laws:

* It keeps to the protocol of its transaction version: with 1 it adds partitions and offsets before it writes, and
  raises its epoch after an abort (KIP-360); with 2 the writes add them, and each end gives it the next epoch (KIP-890).
* It asks for a commit only when all writes of the transaction are acknowledged, and until it is answered asks for
  nothing else.
* One that is fenced does nothing more.

Source: KIP-98, KIP-360, KIP-447, KIP-890; Kafka's `TransactionManager.java`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from kcoord_wire import messages as m
from kcoord_wire.consumer.member_events import Arrived
from kcoord_wire.coordinator.metrics import first_error
from kcoord_wire.kernel.machines import Tick
from kcoord_wire.kernel.procedures import Procedures, Sleep
from kcoord_wire.kernel.timers import Timer, Timers
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.records import Record, encode_batch

Partition = tuple[str, int]
"""Topic and number."""

Place = tuple[str, str, int]
"""Whom a request is for: ``transactions`` and a transactional id, ``groups`` and a group id, or a topic and its
partition; the first two with 0 for a number."""

Steps = Generator[Any, Any, Any]

BACKOFF_MS: Final = 20
_VERSIONS: Final = {  # by transaction version, the greatest of clients that have it
    1: {"init": 4, "add": 3, "produce": 11, "offsets": 3, "commit": 4, "end": 4, "fetch": 8},
    2: {"init": 5, "add": 3, "produce": 12, "offsets": 4, "commit": 5, "end": 5, "fetch": 9},
}
_MOVED: Final = frozenset((ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_LEADER_OR_FOLLOWER))
_RETRIABLE: Final = _MOVED | {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
}
_FENCED: Final = frozenset(
    (
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
    )
)
_NEW: Final = (-1, -1)


class Plan(NamedTuple):
    """What one transaction does.

    :ivar outputs: of each record the output partition, as an index
    :ivar tries: how often a write is sent before the transaction is given up
    :ivar aborts: whether it is given up at its end
    :ivar think_ms: what passes between the writes and the commit of the offsets
    """

    outputs: Sequence[int]
    tries: int
    aborts: bool
    think_ms: int


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How an application is set up.

    :ivar name: of the process, part of each record that it writes
    :ivar transactional_id: its id
    :ivar group: that commits the offsets
    :ivar source: the partition that it reads
    :ivar outputs: the partitions that it writes to
    :ivar version: the transaction version, 1 or 2
    :ivar timeout_ms: of its transactions
    :ivar request_timeout_ms: after which a request that is not answered is sent again
    """

    name: str
    transactional_id: str
    group: str
    source: Partition
    outputs: Sequence[Partition]
    version: int
    timeout_ms: int
    request_timeout_ms: int


@dataclass(eq=False)
class Attempt:
    """A transaction as its application knows it; the laws compare it with what readers see.

    :ivar name: a prefix of its records
    :ivar source: whose offsets it commits
    :ivar first: the first offset that it takes
    :ivar records: what it writes, with the partitions
    :ivar producer: id and epoch
    :ivar asked: whether it was to be committed; None before its end was asked for
    :ivar is_answered: whether that was acknowledged
    """

    name: str
    source: Partition
    first: int
    records: dict[bytes, Partition]
    producer: tuple[int, int]
    asked: bool | None = None
    is_answered: bool = False

    @property
    def end(self) -> int:
        """The offset that it commits."""
        return self.first + len(self.records)


# ---- events, besides `Tick` and `Arrived`


class Start(NamedTuple):
    """Begin."""


class Stop(NamedTuple):
    """End after the present transaction."""


class Lost(NamedTuple):
    """Requests will not be answered: their connection has ended."""

    tokens: Sequence[int]


# ---- effects


class Ask(NamedTuple):
    """Send a request."""

    token: int
    place: Place
    message: Any
    version: int


class GiveUp(NamedTuple):
    """Close the connection on which a request waits for its answer."""

    token: int


class Locate(NamedTuple):
    """Find out which broker a place is at."""

    place: Place


class Began(NamedTuple):
    """A transaction begins."""

    attempt: Attempt


class Over(NamedTuple):
    """It is fenced, or has stopped."""

    reason: str


@dataclass(frozen=True, slots=True)
class _Call:
    place: Place
    message: Any
    version: int


class _FencedError(Exception):
    """Another producer has the transactional id, or the transaction was aborted by the coordinator."""


class _AbortError(Exception):
    """The transaction cannot be committed."""


@dataclass(eq=False)
class Transformer:
    """The application.

    :param settings: how it is set up
    :param draw: returns what the next transaction does
    :ivar attempt: the present transaction; None before the first
    :ivar is_over: whether it has ended
    """

    settings: Settings
    draw: Callable[[], Plan]
    attempt: Attempt | None = None
    is_over: bool = False
    _producer: tuple[int, int] = _NEW
    _sequences: dict[Partition, int] = field(default_factory=dict)
    _effects: list[Any] = field(default_factory=list)
    _waiting: dict[int, Timer] = field(default_factory=dict)  # by token
    _serial: int = 0
    _stops: bool = False
    _now: int = 0

    def __post_init__(self) -> None:
        self._timers = Timers()
        self._procedures = Procedures(self._send, timers=self._timers)
        self._versions = _VERSIONS[self.settings.version]
        self._coordinator = ("transactions", self.settings.transactional_id, 0)
        self._group = ("groups", self.settings.group, 0)

    @property
    def deadline(self) -> int | None:
        """When the next `Tick` is due, in ms; None for never."""
        return self._timers.next

    def handle(self, event: Any, now: int) -> list[Any]:
        """Take in one event and return the effects."""
        self._now = now
        effects = self._effects = []
        if isinstance(event, Start):
            self._procedures.start(self._live(), now)
        elif isinstance(event, Stop):
            self._stops = True
        elif isinstance(event, Arrived):
            self._answer(event.request_id, event.message)
        elif isinstance(event, Lost):
            for token in event.tokens:
                self._answer(token, None)
        else:
            assert isinstance(event, Tick)
        self._procedures.advance(now)
        return effects

    # ---- requests

    def _send(self, token: int, call: _Call) -> None:
        self._effects.append(Ask(token, call.place, call.message, call.version))
        until = self._now + self.settings.request_timeout_ms
        self._waiting[token] = self._timers.start(until, partial(self._time_out, token))

    def _time_out(self, token: int) -> None:
        self._effects.append(GiveUp(token))
        self._answer(token, None)

    def _answer(self, token: int, message: Any) -> None:
        timer = self._waiting.pop(token, None)
        if timer is not None:
            timer.cancel()
            self._procedures.answered(token, message, self._now)

    def _ask(self, place: Place, message: Any, version: int, tries: int = 1 << 30) -> Steps:
        """Send a request until it has an answer that stands; return its error and the answer.

        :raises _AbortError: it had none after so many tries
        """
        for _ in range(tries):
            answer = yield _Call(place, message, version)
            if answer is not None:
                error = ErrorCode(first_error(answer))
                if error not in _RETRIABLE:
                    return error, answer
                if error in _MOVED:
                    self._effects.append(Locate(place))
            yield Sleep(BACKOFF_MS)
        raise _AbortError

    # ---- its life

    def _live(self) -> Steps:
        try:
            yield from self._initialise()
            while not self._stops:
                yield from self._transform((yield from self._position()))
            self._end("stopped")
        except _FencedError:
            self._end("fenced")

    def _end(self, reason: str) -> None:
        self.is_over = True
        self._effects.append(Over(reason))

    def _initialise(self) -> Steps:
        request = m.InitProducerIdRequest(
            transactional_id=self.settings.transactional_id,
            transaction_timeout_ms=self.settings.timeout_ms,
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
        )
        error, answer = yield from self._ask(self._coordinator, request, self._versions["init"])
        if error:
            raise _FencedError
        self._became(answer)

    def _became(self, answer: m.InitProducerIdResponse | m.EndTxnResponse) -> None:
        self._producer = answer.producer_id, answer.producer_epoch
        self._sequences.clear()

    def _position(self) -> Steps:
        """Return the next offset of the source, once no transaction holds it back."""
        topic, number = self.settings.source
        topics = [m.OffsetFetchRequestTopics(name=topic, partition_indexes=[number])]
        group = m.OffsetFetchRequestGroup(group_id=self.settings.group, topics=topics)
        request = m.OffsetFetchRequest(groups=[group], require_stable=True)
        error, answer = yield from self._ask(self._group, request, self._versions["fetch"])
        assert not error, error
        offset: int = answer.groups[0].topics[0].partitions[0].committed_offset
        return max(offset, 0)

    def _transform(self, position: int) -> Steps:
        """Commit transactions from an offset on, until one is aborted."""
        while not self._stops:
            plan = self.draw()
            attempt = self._begin(position, plan)
            try:
                yield from self._write(attempt, plan)
            except _AbortError:
                yield from self._finish(attempt, commit=False)
                if self.settings.version == 1:
                    yield from self._initialise()
                return
            yield from self._finish(attempt, commit=True)
            position = attempt.end

    def _begin(self, position: int, plan: Plan) -> Attempt:
        self._serial += 1
        name, outputs = f"{self.settings.name}#{self._serial}", self.settings.outputs
        records = {f"{name}@{position + at}".encode(): outputs[output] for at, output in enumerate(plan.outputs)}
        self.attempt = Attempt(name, self.settings.source, position, records, self._producer)
        self._effects.append(Began(self.attempt))
        return self.attempt

    # ---- a transaction

    def _write(self, attempt: Attempt, plan: Plan) -> Steps:
        partitions = sorted(set(attempt.records.values()))
        is_first = self.settings.version == 1
        if is_first:
            yield from self._add_partitions(partitions, plan.tries)
        yield from self._produce(attempt, partitions, plan.tries)
        if plan.think_ms:
            yield Sleep(plan.think_ms)
        if is_first:
            yield from self._add_offsets(plan.tries)
        yield from self._commit_offsets(attempt, plan.tries)
        if plan.aborts:
            raise _AbortError

    def _add_partitions(self, partitions: Sequence[Partition], tries: int) -> Steps:
        producer_id, epoch = self._producer
        topics: dict[str, list[int]] = {}
        for topic, number in partitions:
            topics.setdefault(topic, []).append(number)
        request = m.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.settings.transactional_id,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[
                m.AddPartitionsToTxnRequestAddPartitionsToTxnTopic(name=topic, partitions=numbers)
                for topic, numbers in topics.items()
            ],
        )
        error, _ = yield from self._ask(self._coordinator, request, self._versions["add"], tries)
        _check(error)

    def _produce(self, attempt: Attempt, partitions: Sequence[Partition], tries: int) -> Steps:
        """Write to all partitions at once, and again to those that did not take it."""
        left = {partition: self._batch(attempt, partition) for partition in partitions}
        for _ in range(tries):
            answers = yield [self._produce_call(partition, data) for partition, data in left.items()]
            for partition, answer in zip(list(left), answers, strict=True):
                error = ErrorCode.NOT_ENOUGH_REPLICAS if answer is None else ErrorCode(first_error(answer))
                if error in _MOVED:
                    self._effects.append(Locate(partition_place(partition)))
                if not error:
                    del left[partition]
                elif error not in _RETRIABLE:
                    raise _AbortError
            if not left:
                return
            yield Sleep(BACKOFF_MS)
        raise _AbortError

    def _batch(self, attempt: Attempt, partition: Partition) -> bytes:
        records = [Record(b"", value, timestamp=self._now) for value, at in attempt.records.items() if at == partition]
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = sequence + len(records)
        producer_id, epoch = self._producer
        return encode_batch(
            records, transactional=True, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
        )

    def _produce_call(self, partition: Partition, data: bytes) -> _Call:
        part = m.ProduceRequestPartitionProduceData(index=partition[1], records=data)
        request = m.ProduceRequest(
            transactional_id=self.settings.transactional_id,
            acks=-1,
            timeout_ms=self.settings.request_timeout_ms,
            topic_data=[m.ProduceRequestTopicProduceData(name=partition[0], partition_data=[part])],
        )
        return _Call(partition_place(partition), request, self._versions["produce"])

    def _add_offsets(self, tries: int) -> Steps:
        request = m.AddOffsetsToTxnRequest(
            transactional_id=self.settings.transactional_id,
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            group_id=self.settings.group,
        )
        error, _ = yield from self._ask(self._coordinator, request, self._versions["offsets"], tries)
        _check(error)

    def _commit_offsets(self, attempt: Attempt, tries: int) -> Steps:
        topic, number = self.settings.source
        part = m.TxnOffsetCommitRequestPartition(partition_index=number, committed_offset=attempt.end)
        request = m.TxnOffsetCommitRequest(
            transactional_id=self.settings.transactional_id,
            group_id=self.settings.group,
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            topics=[m.TxnOffsetCommitRequestTopic(name=topic, partitions=[part])],
        )
        error, _ = yield from self._ask(self._group, request, self._versions["commit"], tries)
        if error:
            raise _AbortError

    def _finish(self, attempt: Attempt, *, commit: bool) -> Steps:
        attempt.asked = commit
        request = m.EndTxnRequest(
            transactional_id=self.settings.transactional_id,
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            committed=commit,
        )
        error, answer = yield from self._ask(self._coordinator, request, self._versions["end"])
        began_nothing = error is ErrorCode.INVALID_TXN_STATE and not commit and self.settings.version == 1
        if error and not began_nothing:
            raise _FencedError
        attempt.is_answered = True
        if self.settings.version > 1:
            self._became(answer)


def partition_place(partition: Partition) -> Place:
    """Return the place of a partition."""
    return ("topics", *partition)


def _check(error: ErrorCode) -> None:
    if error in _FENCED:
        raise _FencedError
    if error:
        raise _AbortError
