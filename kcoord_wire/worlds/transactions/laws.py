"""The laws of transactions, checked after every step of the process. Of what coordinators do:

``transitions``        a transactional id changes its state by the moves of `TRANSITIONS` only
``decision stands``    an outcome that is on disk is that of the transaction for ever, whatever crashes
``log is complete``    what is read from the log is a state that was written, no earlier than the last that is on disk
``durable first``      an answer about a transactional id waits until what was written of it is on disk
``answered``           InitProducerId and EndTxn answer with the producer that the log has from then on
``on time``            no transaction is open for longer than its timeout
``no hanging``         a transaction that is open in a partition is one that the coordinator knows, with that partition
``described``          DescribeTransactions, ListTransactions and DescribeProducers agree with the log
``offsets together``   an offset counts once its transaction is to be committed and that is on disk, else never; none
                       goes back
``whole``              the records of a transaction count all or none; all if its commit was acknowledged, none if its
                       abort was, or if none of both was asked for
``exactly once``       each offset of a source was transformed once, in its order, up to the one that is committed
``ends``               when its producers are gone, every transaction has ended after its timeout
``never fails``        the coordinator raises no exception, except errors that the disk was made to raise

What is in a partition, by two accounts that must agree: the raw log, and a read_committed consumer:

``fenced``            no record is written in an epoch of a producer after a later one was acknowledged
``written once``      no record is in the log twice
``decided first``     a marker is written when its outcome is in the coordinator's log on disk, and none when that has
                      been carried out: it would end the next transaction
``stable offset``     the last stable offset is the first of an open transaction, or the end; it never decreases
``read committed``    a consumer gets the records of committed transactions, in their order, each once, and no others
``log stays``         records that were there are there after a restart
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final, NamedTuple

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core import apis, events
from kcoord_wire.coordinator.core.events import Reply, Request
from kcoord_wire.coordinator.host import Host
from kcoord_wire.coordinator.partitions.partition_log import PartitionLog
from kcoord_wire.coordinator.transactions.machine import TransactionMachine
from kcoord_wire.coordinator.transactions.transaction import (
    PREPARED,
    TRANSITIONS,
    State,
    Transaction,
    transaction_record,
)
from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.kernel.virtual.scripts import ViolationError
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.records import ControlType, RecordBatch, decode_control_record, read_records
from kcoord_wire.worlds.transactions.transformer import Attempt, Partition

FETCH_VERSION: Final = 12  # the last that names topics
_ALL: Final = 1 << 30

Outcome = tuple[int, int, bool]
"""Producer id, epoch of the marker, whether it commits."""


class _Written(NamedTuple):
    """A record in the log."""

    offset: int
    value: bytes


class PartitionReader:
    """Reads one partition as it grows.

    :param partition: topic and number
    :param fences: by producer id, the epoch below which nothing may be written any more
    :param is_decided: whether an outcome is on disk
    :ivar visible: the values that count, in the order of their offsets: what a consumer must get
    :ivar open: producer id to the offset of the first record of its open transaction
    """

    def __init__(self, partition: Partition, fences: Mapping[int, int], is_decided: Callable[[Outcome], bool]) -> None:
        self.partition = partition
        self.visible: list[_Written] = []
        self.open: dict[int, int] = {}
        self._fences = fences
        self._is_decided = is_decided
        self._pending: dict[int, list[_Written]] = {}  # by producer id
        self._seen: set[bytes] = set()
        self._end = self._stable = 0
        self._position = 0  # of the consumer
        self._consumed: list[_Written] = []

    def check(self, host: Host) -> None:
        """Read on.

        :raises ViolationError: with the name of the law
        """
        topic, number = self.partition
        found = host.topics.catalog.named(topic)
        assert found is not None
        log = found.logs[number]
        if log.end_offset < self._end:
            raise ViolationError("log stays", f"{log.name} ends at {log.end_offset}, and had {self._end}")
        if log.end_offset > self._end:
            for batch in read_records(log.read(self._end, _ALL, True, log.end_offset)):
                assert isinstance(batch, RecordBatch)
                self._take(batch)
            self._end = log.end_offset
        self._check_stable(log)
        if self._stable > self._position:
            self._consume(host, found.leaders.of[number])

    def _take(self, batch: RecordBatch) -> None:
        producer_id, epoch = batch.producer_id, batch.producer_epoch
        if batch.is_control:
            self._end_transaction(batch)
            return
        if epoch < self._fences.get(producer_id, 0):
            text = f"{self._name}: producer {producer_id} writes in epoch {epoch}, {self._fences[producer_id]} is known"
            raise ViolationError("fenced", text)
        written = [_Written(record.offset, record.value or b"") for record in batch.records]
        for record in written:
            if record.value in self._seen:
                raise ViolationError("written once", f"{self._name}: {record} is there before")
            self._seen.add(record.value)
        self.open.setdefault(producer_id, batch.base_offset)
        self._pending.setdefault(producer_id, []).extend(written)

    def _end_transaction(self, batch: RecordBatch) -> None:
        commits = decode_control_record(batch.records[0]).type == ControlType.COMMIT
        outcome = batch.producer_id, batch.producer_epoch, commits
        if not self._is_decided(outcome):
            raise ViolationError("decided first", f"{self._name}: the marker {outcome} has no outcome on disk")
        self.open.pop(batch.producer_id, None)
        records = self._pending.pop(batch.producer_id, [])
        if commits:
            self.visible = sorted(self.visible + records)

    @property
    def _name(self) -> str:
        return f"{self.partition[0]}-{self.partition[1]}"

    def _check_stable(self, log: PartitionLog) -> None:
        stable, expected = log.stable_offset, min(self.open.values(), default=self._end)
        if stable != expected or stable < self._stable:
            text = f"{log.name} is stable up to {stable}, expected {expected}, before it was {self._stable}"
            raise ViolationError("stable offset", text)
        self._stable = stable

    # ---- the consumer

    def _consume(self, host: Host, broker: int) -> None:
        """Fetch what has become stable."""
        got = self.read(host, broker, self._position)
        self._consumed += got
        expected = list(takewhile(lambda record: record.offset < self._stable, self.visible))
        if self._consumed != expected:
            text = f"{self._name}: {[r for r in self._consumed if r not in expected]} are read and do not count; "
            missing = [record for record in expected if record not in self._consumed]
            raise ViolationError("read committed", f"{text}{missing} are missing, or the order is another")
        self._position = self._stable

    def read(self, host: Host, broker: int, position: int, max_bytes: int = _ALL) -> list[_Written]:
        """Return what a read_committed consumer gets from an offset on.

        :param broker: the leader
        :param max_bytes: of one answer
        """
        got: list[_Written] = []
        while position < self._stable:
            answer = self._fetch(host, broker, position, max_bytes)
            batches = [batch for batch in read_records(answer.records or b"") if isinstance(batch, RecordBatch)]
            if answer.error_code or not batches:
                raise ViolationError("read committed", f"{self._name} at {position}: {ErrorCode(answer.error_code)}")
            got += _committed(batches, answer.aborted_transactions or [], position)
            position = batches[-1].last_offset + 1
        return got

    def _fetch(self, host: Host, broker: int, position: int, max_bytes: int) -> m.FetchResponsePartitionData:
        topic, number = self.partition
        wanted = m.FetchRequestFetchPartition(partition=number, fetch_offset=position, partition_max_bytes=max_bytes)
        fetch = m.FetchRequest(
            isolation_level=1, max_bytes=_ALL, topics=[m.FetchRequestFetchTopic(topic=topic, partitions=[wanted])]
        )
        request = Request(0, fetch, FETCH_VERSION, broker=broker)
        (reply,) = host.topics.handle(request, 0)
        assert isinstance(reply, Reply)
        (answer,) = reply.message.responses[0].partitions
        assert isinstance(answer, m.FetchResponsePartitionData)
        return answer


def _committed(
    batches: list[RecordBatch], aborted: list[m.FetchResponseAbortedTransaction], position: int
) -> list[_Written]:
    """Return the records that count, as Kafka's consumer finds them (`CompletedFetch.java`)."""
    waiting = sorted(aborted, key=lambda each: each.first_offset)
    inside: set[int] = set()
    got: list[_Written] = []
    for batch in batches:
        while waiting and waiting[0].first_offset <= batch.last_offset:
            inside.add(waiting.pop(0).producer_id)
        if batch.is_control:
            if decode_control_record(batch.records[0]).type == ControlType.ABORT:
                inside.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in inside):
            got += [_Written(each.offset, each.value or b"") for each in batch.records if each.offset >= position]
    return got


_MOVES: Final = frozenset((before, after) for (before, _), after in TRANSITIONS.items())
_OPEN: Final = PREPARED | {State.ONGOING}
_DESCRIBED_EVERY: Final = 32  # checks
_FIRST_OFFSET: Final = -1


class _Kept(NamedTuple):
    """A state that was appended.

    :ivar append: its number in its boot
    """

    append: int
    transactional_id: str
    value: m.TransactionLogValue


class Invariants:
    """Checks the laws of one process through all its boots, and of its clients.

    :param outputs: the partitions that are written to in transactions
    :param group: whose offsets are committed
    :ivar attempts: all transactions of applications, by name
    :ivar committed: the offset of each source
    """

    def __init__(self, clock: VirtualClock, outputs: Sequence[Partition], group: str) -> None:
        self.attempts: dict[str, Attempt] = {}
        self.committed: dict[Partition, int] = {}
        self._clock = clock
        self._group = group
        self._fences: dict[int, int] = {}
        self.readers = [PartitionReader(each, self._fences, self._is_decided) for each in outputs]
        self._host: Host | None = None
        self._is_loaded, self._loaded_at = False, 0
        self._loading: frozenset[int] = frozenset()  # partitions of ids that have moved
        self._durable: dict[str, m.TransactionLogValue] = {}
        self._latest: dict[str, m.TransactionLogValue] = {}
        self._appended: deque[_Kept] = deque()
        self._states: dict[str, State] = {}
        self._decided: dict[Outcome, bool] = {}  # on disk; whether its markers may still be written
        self._completed: list[Outcome] = []  # in the present step
        self._checks = 0
        self._seen_group: object = None

    # ---- what happens

    def began(self, host: Host) -> None:
        """A boot begins."""
        self._host = host
        self._is_loaded = False
        self._loading = frozenset()
        self._states = {}

    def ended(self) -> None:
        """The process has been killed."""
        if self._host is not None:
            self._advance(self._host)  # markers may have been written since the last check
        self._host = None
        self._is_loaded = False

    def attempt_began(self, attempt: Attempt) -> None:
        """An application begins a transaction."""
        self.attempts[attempt.name] = attempt

    def answered(self, message: Any) -> None:
        """An answer leaves the process."""
        if not isinstance(message, m.InitProducerIdResponse | m.EndTxnResponse) or message.error_code:
            return
        producer = message.producer_id, message.producer_epoch
        if message.producer_id >= 0:
            self._fences[producer[0]] = max(self._fences.get(producer[0], 0), producer[1])

    def handled(
        self, machine: TransactionMachine, event: events.Event, effects: Sequence[events.Effect], _now: int
    ) -> None:
        """The transaction coordinator has handled an event."""
        appends = [effect for effect in effects if isinstance(effect, events.Append)]
        for number, effect in enumerate(appends, start=machine.appended - len(appends) + 1):
            self._note(number, effect.records)
        if isinstance(event, events.Request):
            self._check_answer(event, effects)
        states = {name: transaction.state for name, transaction in machine.transactions.items()}
        if isinstance(event, events.Load):
            self._check_loaded(machine, event.partitions)
            self._loading = frozenset() if event.partitions is None else self._loading - event.partitions
            self._is_loaded, self._loaded_at = not self._loading, self._clock.time_ms
        elif isinstance(event, events.Resign):
            self._is_loaded = False
            self._loading = frozenset() if event.partitions is None else self._loading | event.partitions
        else:
            self._check_moves(states)
        self._states = states

    def _note(self, append: int, records: Iterable[events.LogRecord]) -> None:
        for key, value in records:
            name = key.transactional_id
            if value is None:
                raise ViolationError("log is complete", f"{name} is removed long before it expires")
            before = self._latest.get(name)
            if before is not None and _state(before) in PREPARED:
                self._completed.append(_outcome(before))
            self._appended.append(_Kept(append, name, value))
            self._latest[name] = value

    def _check_answer(self, request: events.Request, effects: Sequence[events.Effect]) -> None:
        message: Any = request.message
        for reply in (each for each in effects if isinstance(each, events.Reply) and each.token == request.token):
            answer: Any = reply.message
            for name in () if getattr(answer, "error_code", ErrorCode.NONE) in _OF_ANY_STATE else _ids(message):
                append = max((kept.append for kept in self._appended if kept.transactional_id == name), default=0)
                if reply.after < append:
                    text = f"{type(message).__name__} of {name} waits for append {reply.after}, not for {append}"
                    raise ViolationError("durable first", text)
            is_end = isinstance(answer, m.EndTxnResponse) and request.version >= apis.BUMPED_FROM
            if (is_end or isinstance(answer, m.InitProducerIdResponse)) and not answer.error_code:
                given = answer.producer_id, answer.producer_epoch
                expected = _next_producer(self._latest[message.transactional_id])
                if given != expected:
                    raise ViolationError("answered", f"{message} gets {given}, the log has {expected}")

    def _check_moves(self, states: Mapping[str, State]) -> None:
        for name, state in states.items():
            before = self._states.get(name, State.EMPTY)
            if state is not before and (before, state) not in _MOVES:
                raise ViolationError("transitions", f"{name} goes from {before} to {state}")

    # ---- the coordinator's log

    def _check_loaded(self, machine: TransactionMachine, partitions: frozenset[int] | None) -> None:
        """What was read is what had to be there, of all ids or of those that have moved."""
        assert self._host is not None, "a boot has begun"
        partition_of = self._host.brokers.transactions.partition_of

        def is_read(name: str) -> bool:
            return partitions is None or partition_of(name) in partitions

        loaded = {name: _value(each) for name, each in machine.transactions.items() if is_read(name)}
        for name in filter(is_read, self._durable.keys() | loaded.keys()):
            possible = [self._durable.get(name), *(kept.value for kept in self._appended if name == kept[1])]
            found = loaded.get(name)
            if found not in possible:
                raise ViolationError("log is complete", f"{name}: read {found}, expected one of {possible}")
        self._appended = deque(kept for kept in self._appended if not is_read(kept[1]))
        self._latest = {name: value for name, value in self._latest.items() if not is_read(name)} | loaded
        for name, value in loaded.items():
            self._to_disk(name, value)

    def _advance(self, host: Host) -> None:
        """Take note of what is on disk now."""
        while self._appended and self._appended[0].append <= host.transactions.durable:
            _, name, value = self._appended.popleft()
            self._to_disk(name, value)

    def _to_disk(self, name: str, value: m.TransactionLogValue) -> None:
        before = self._durable.get(name)
        self._durable[name] = value
        state = _state(value)
        if (
            before is not None
            and _state(before) in PREPARED
            and state not in (_state(before), _COMPLETE[_state(before)])
        ):
            raise ViolationError("decision stands", f"{name} was in {_state(before)}, and is in {state}")
        if state in PREPARED:
            self._decided[_outcome(value)] = True

    def _is_decided(self, outcome: Outcome) -> bool:
        return self._decided.get(outcome, False)

    # ---- the checks

    def check(self) -> None:
        """Check what does not depend on one event.

        :raises ViolationError: with the name of the law
        """
        host = self._host
        if host is None:
            return
        self._advance(host)
        for reader in self.readers:
            reader.check(host)
        for outcome in self._completed:  # its markers may have been written in this step, and none after it
            self._decided[outcome] = False
        self._completed.clear()
        self._check_offsets(host)
        if self._is_loaded:
            self._check_open(host.transactions.machine.transactions)
            self._checks += 1
            if self._checks % _DESCRIBED_EVERY == 0:
                self.check_descriptions(host)

    def _check_open(self, transactions: Mapping[str, Transaction]) -> None:
        now = self._clock.time_ms
        known: dict[int, Transaction] = {}
        for name, transaction in transactions.items():
            known[transaction.producer_id] = transaction
            until = max(transaction.started_at + transaction.timeout_ms, self._loaded_at)
            if transaction.state is State.ONGOING and now > until:
                raise ViolationError("on time", f"{name} is open since {transaction.started_at}, it is {now}")
        for reader in self.readers:
            for producer_id in reader.open:
                found = known.get(producer_id)
                if found is None or found.state not in _OPEN or reader.partition not in found.partitions:
                    text = f"{reader.partition} has an open one of {producer_id}, the coordinator has {found}"
                    raise ViolationError("no hanging", text)

    def _check_offsets(self, host: Host) -> None:
        group = host.groups.machine.groups.get(self._group)
        if group is not self._seen_group:  # it was read from the log, which may not have what was committed last
            self._seen_group = group
            self.committed = {}
        for topic, offsets in {} if group is None else group.offsets.items():
            for number, committed in offsets.items():
                source, offset = (topic, number), committed.offset
                before = self.committed.get(source, _FIRST_OFFSET)
                if offset != before:
                    self._check_offset(source, before, offset)
                    self.committed[source] = offset

    def _check_offset(self, source: Partition, before: int, offset: int) -> None:
        of = [each for each in self.attempts.values() if each.source == source and each.end == offset]
        if not any(each.asked and self._has_decided(each) for each in of):
            names = [(each.name, each.asked) for each in of]
            raise ViolationError("offsets together", f"{offset} of {source} counts, not committed: {names}")
        if offset < before:
            raise ViolationError("offsets together", f"{source} goes back from {before} to {offset}")

    def _has_decided(self, attempt: Attempt) -> bool:
        producer_id, epoch = attempt.producer
        return any((producer_id, each, True) in self._decided for each in (epoch, epoch + 1))

    # ---- what tools see

    def check_descriptions(self, host: Host) -> None:
        """Compare what tools see with the log."""
        machine, now = host.transactions.machine, self._clock.time_ms
        ask = m.DescribeTransactionsRequest(transactional_ids=sorted(self._latest))
        described = _answer(machine.handle(events.Request(0, ask, 0), now)).transaction_states
        seen = {each.transactional_id: _described(each) for each in described}
        expected = {name: _as_described(value) for name, value in self._latest.items()}
        if seen != expected:
            raise ViolationError("described", f"{seen} are described, the log has {expected}")
        for ask_list, unknown, is_wanted in _LISTS:
            listed = _answer(machine.handle(events.Request(0, ask_list, 2), now))
            shown = {
                (each.transactional_id, each.producer_id, each.transaction_state) for each in listed.transaction_states
            }
            of = {
                (name, value.producer_id, _state(value).value)
                for name, value in self._latest.items()
                if is_wanted(name, value, now)
            }
            if shown != of or listed.unknown_state_filters != unknown:
                raise ViolationError("described", f"{listed} is the list for {ask_list}, the log has {of}")
        self._check_producers(host)

    def _check_producers(self, host: Host) -> None:
        for reader in self.readers:
            topic = host.topics.catalog.named(reader.partition[0])
            assert topic is not None
            described = topic.logs[reader.partition[1]].producers()
            found = {each.producer_id: each.current_txn_start_offset for each in described}
            if {producer: offset for producer, offset in found.items() if offset >= 0} != reader.open:
                raise ViolationError("described", f"{reader.partition} has {reader.open} open, said are {found}")

    # ---- at the end

    def check_end(self) -> None:
        """Check what must hold when no producer is left and all transactions have ended."""
        host = self._host
        assert host is not None, "the process runs at the end"
        self.check_descriptions(host)
        visible: dict[str, dict[bytes, Partition]] = {}
        for reader in self.readers:
            for _, value in reader.visible:
                visible.setdefault(value.decode().partition("@")[0], {})[value] = reader.partition
        for name, attempt in self.attempts.items():
            self._check_whole(attempt, visible.get(name, {}))
        self._check_sources(visible)

    def _check_whole(self, attempt: Attempt, seen: Mapping[bytes, Partition]) -> None:
        may_count = attempt.asked is True
        must_count = may_count and attempt.is_answered
        if (seen and not may_count) or (must_count and not seen) or (seen and seen != attempt.records):
            text = f"{attempt}: {sorted(seen)} count"
            raise ViolationError("whole", text)

    def _check_sources(self, visible: Mapping[str, Mapping[bytes, Partition]]) -> None:
        taken: dict[Partition, list[int]] = {}
        for name, values in visible.items():
            offsets = [int(value.decode().partition("@")[2]) for value in values]
            taken.setdefault(self.attempts[name].source, []).extend(offsets)
        for source in taken.keys() | self.committed.keys():
            offsets, end = sorted(taken.get(source, [])), self.committed.get(source, 0)
            if offsets != list(range(end)):
                raise ViolationError("exactly once", f"{source} is committed up to {end}, and {offsets} count")


def _value(transaction: Transaction) -> m.TransactionLogValue:
    value = transaction_record(transaction).value
    assert isinstance(value, m.TransactionLogValue)
    return value


def _state(value: m.TransactionLogValue) -> State:
    return tuple(State)[value.transaction_status]


def _outcome(value: m.TransactionLogValue) -> Outcome:
    return value.producer_id, value.producer_epoch, _state(value) is State.PREPARE_COMMIT


def _partitions(value: m.TransactionLogValue) -> set[Partition]:
    return {(topic.topic, number) for topic in value.transaction_partitions or () for number in topic.partition_ids}


def _next_producer(value: m.TransactionLogValue) -> tuple[int, int]:
    if value.next_producer_id >= 0:
        return value.next_producer_id, 0
    return value.producer_id, value.producer_epoch


def _ids(message: Any) -> list[str]:
    """Return the transactional ids that a request names."""
    if isinstance(message, m.AddPartitionsToTxnRequest):
        return [message.v3_and_below_transactional_id, *(each.transactional_id for each in message.transactions)]
    name = getattr(message, "transactional_id", None)
    return [] if name is None else [name]


def _described(each: m.DescribeTransactionsResponseTransactionState) -> tuple[object, ...]:
    partitions = {(topic.topic, number) for topic in each.topics for number in topic.partitions}
    times = each.transaction_timeout_ms, each.transaction_start_time_ms
    return (each.error_code, each.transaction_state, each.producer_id, each.producer_epoch, *times, partitions)


def _as_described(value: m.TransactionLogValue) -> tuple[object, ...]:
    times = value.transaction_timeout_ms, value.transaction_start_timestamp_ms
    return (0, _state(value).value, value.producer_id, value.producer_epoch, *times, _partitions(value))


def _answer(effects: Sequence[events.Effect]) -> Any:
    (reply,) = effects
    assert isinstance(reply, events.Reply)
    return reply.message


_COMPLETE: Final = {State.PREPARE_COMMIT: State.COMPLETE_COMMIT, State.PREPARE_ABORT: State.COMPLETE_ABORT}
_OF_ANY_STATE: Final = (
    ErrorCode.INVALID_REQUEST,
    ErrorCode.INVALID_TRANSACTION_TIMEOUT,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)
"""Errors that say nothing of a transactional id."""
_LONG_MS: Final = 1_000
_LISTS: Final[Sequence[tuple[m.ListTransactionsRequest, Sequence[str], Callable[[str, Any, int], bool]]]] = (
    (m.ListTransactionsRequest(), [], lambda name, value, now: True),
    (
        m.ListTransactionsRequest(state_filters=["Ongoing", "Unheard"]),
        ["Unheard"],
        lambda name, value, now: _state(value) is State.ONGOING,
    ),
    (
        m.ListTransactionsRequest(duration_filter=_LONG_MS),
        [],
        lambda name, value, now: now - value.transaction_start_timestamp_ms > _LONG_MS,
    ),
    (m.ListTransactionsRequest(transactional_id_pattern="t[13]"), [], lambda name, value, now: name in ("t1", "t3")),
)
"""Requests of operators, the state filters that no state has, and which transactional ids they are for."""
