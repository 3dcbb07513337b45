"""The coordinator without its sockets: its machines with their logs, topics, and what follows from their events.

The server and the simulations run this, over `HostIO`: a crash, a reload, a compaction or a move in the one is the same
in the other.

Laws:

* It has no clock, thread or socket. What waits for the disk is given to `HostIO.run`, which says when it has ended;
  after that, and after any event from outside, `commit` is called until nothing more is written.
* An append reaches the store before any reply of the same call is sent, so that machine and store number appends alike.
* A reply is sent, and markers are written, no earlier than the append they name is on disk, and in the order of these
  appends. One write of a log runs at a time; everything appended meanwhile goes into the next: one fsync for many
  requests.
* After a failed write the state in memory is dropped: replies that are held are replaced by NOT_COORDINATOR (16), and
  groups are refused until the whole log has been read again; attempts become rarer, never fewer.
* An offset whose commit was acknowledged is found by the next coordinator: what has moved is read when everything
  appended before is on disk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.apis import refusal
from kcoord_wire.coordinator.core.brokers import Leaders
from kcoord_wire.coordinator.core.events import (
    Append,
    AppendMarker,
    CreateTopics,
    DeleteShareState,
    Effect,
    Event,
    InitializeShareState,
    Load,
    LoggedMachine,
    LogRecord,
    PendingRecord,
    Reassigned,
    RebalanceReport,
    RecordsChanged,
    Reply,
    Request,
    Resign,
    ShareStateDeleted,
    ShareStateEffect,
    ShareStateInitialized,
    TopicsDeleted,
    TopicsRefused,
    WriteMarkers,
)
from kcoord_wire.coordinator.core.machine import GroupMachine
from kcoord_wire.coordinator.log.batches import SHARES
from kcoord_wire.coordinator.log.store import Store, Sync
from kcoord_wire.coordinator.share.share_machine import ShareMachine
from kcoord_wire.coordinator.share.state_requests import delete_request, initialize_request
from kcoord_wire.coordinator.topics.internal import InternalTopic
from kcoord_wire.coordinator.topics.shared_logs import share_settings
from kcoord_wire.coordinator.topics.topics import Topics, VerifiedProduce
from kcoord_wire.coordinator.transaction_flow import TransactionFlow
from kcoord_wire.coordinator.transactions.machine import TransactionMachine
from kcoord_wire.kernel.disk import MemoryDisk
from kcoord_wire.kernel.machines import Tick
from kcoord_wire.protocol.error_codes import ErrorCode

RELOAD_MS: Final = (500, 30_000)  # first and longest pause before the log is read again after a failure

_APPENDS: Final = (Append, AppendMarker)  # a tuple is checked in a third of the time that a union takes
_WAITING: Final = (Reply, WriteMarkers, InitializeShareState, DeleteShareState)
_Waiting = Reply | WriteMarkers | ShareStateEffect
_WRITERS: Final = frozenset({m.ProduceRequest, m.WriteTxnMarkersRequest, m.DeleteRecordsRequest, m.CreateTopicsRequest})
_READERS: Final = frozenset({m.FetchRequest, m.ListOffsetsRequest, m.OffsetForLeaderEpochRequest})

M = TypeVar("M", bound=LoggedMachine)
T = TypeVar("T")


class HostIO(Protocol):
    """What a host needs of its surroundings: time, and threads for the disk.

    :ivar now: returns ms since the epoch; they never decrease
    """

    now: Callable[[], int]

    def run(
        self, what: str, work: Callable[[], T], done: Callable[[T], None], failed: Callable[[Exception], None]
    ) -> None:
        """Call `work`, which uses the disk, maybe in another thread, and one of the others when it has ended, at once
        or later; then what the host has appended is committed.

        :param what: ``write``, ``compact``, ``read``, ``load`` what has moved, or ``show`` to readers
        :param failed: called with an OSError or a CorruptLogError
        """

    def after(self, ms: int, step: Callable[[], None]) -> None:
        """Call `step` after so long."""

    def note(self, what: str, log: str, detail: object = None) -> None:
        """Take note that the log of this name ``serves``, ``compacts``, ``cannot write`` ..."""


def reload_pause(attempt: int) -> int:
    """Return the ms before the log is read again after a failure; attempts count from 0."""
    first, longest = RELOAD_MS
    return min(first << min(attempt, 16), longest)


class Runtime(Generic[M]):
    """A `GroupMachine` or a `TransactionMachine` with its log.

    :param send: called with the token of a request and the response to it, once for each request
    :param perform: called with each other effect
    :ivar machine: the machine
    :ivar store: the log
    :ivar durable: number of the last append on disk, as the machine counts
    """

    def __init__(
        self,
        machine: M,
        store: Store,
        send: Callable[[int, Any], None],
        perform: Callable[[Any], None] = lambda effect: None,
    ) -> None:
        self.machine = machine
        self.store = store
        self._send = send
        self._perform = perform
        self.durable = 0
        self._base = 0  # what the machine had appended when the store began to count
        self._held: defaultdict[int, list[_Waiting]] = defaultdict(list)  # by append

    @property
    def deadline(self) -> int | None:
        """When to submit a `Tick`, in ms; None if nothing is due."""
        return self.machine.deadline

    @property
    def held(self) -> int:
        """Number of replies that are held until an append is on disk."""
        return sum(map(len, self._held.values()))

    def recover(self, now: int) -> None:
        """Read the log, repair its end, and begin to serve.

        :raises CorruptLogError: the log is damaged in a way that a crash does not explain
        :raises OSError: the disk fails
        """
        self.load(self.store.recover(), now)

    def load(self, records: Sequence[LogRecord], now: int) -> None:
        """Begin to serve with what the store's `recover` has returned."""
        self._base = self.durable = self.machine.appended
        self.submit(Load(records, pending=self.store.pending), now)

    def submit(self, event: Event, now: int) -> None:
        """Give the machine an event, and carry out its effects."""
        effects = self.machine.handle(event, now)
        for effect in effects:
            if type(effect) is Append:
                self.store.append(effect.records, now, effect.producer)
            elif type(effect) is AppendMarker:
                self.store.append_marker(effect, now)
        for effect in effects:
            if type(effect) is Reply and effect.after <= self.durable:  # most of them
                self._send(effect.token, effect.message)
            elif isinstance(effect, _WAITING) and effect.after > self.durable:
                self._held[effect.after].append(effect)
            elif not isinstance(effect, _APPENDS):
                self._perform(effect)

    def begin_sync(self) -> Sync | None:
        """Return what has to be written next; None if nothing. Its `run` may be called in another thread."""
        return self.store.begin_sync()

    def end_sync(self, sync: Sync) -> None:
        """Note that the write has succeeded, and send the replies that were held for it."""
        self.store.end_sync(sync)
        self.durable = self._base + sync.last
        for after in sorted(append for append in self._held if append <= self.durable):
            for answer in self._held.pop(after):
                if type(answer) is Reply:
                    self._send(answer.token, answer.message)
                else:
                    self._perform(answer)

    def sync_failed(self, now: int) -> None:
        """Note that the write has failed, or that the coordinator stops: refuse what is held and parked. After
        `recover` it serves again."""
        held = [reply for _, replies in sorted(self._held.items()) for reply in replies]
        self._held.clear()
        for reply in held:
            if not isinstance(reply, Reply):
                continue  # it is done when the log has been read again
            assert reply.request is not None, "a reply that is held names its request"
            request = reply.request
            self._send(reply.token, refusal(request.message, request.version, ErrorCode.NOT_COORDINATOR))
        self.submit(Resign(), now)


class LogView:
    """An internal topic, filled from its log: that is read for the topic's first reader, and followed from then on.

    Without a reader it costs nothing. A record is shown when it is on disk, so a reader sees nothing that a crash takes
    back. After a compaction the log is read again, so that the view holds no more than the log has.

    :param execute: carries effects of the topics out
    :param submit: gives the topics a request that has waited
    """

    def __init__(
        self,
        store: Store,
        topics: Topics,
        internal: InternalTopic,
        io: HostIO,
        execute: Callable[[Iterable[Effect]], None],
        submit: Callable[[Request], None],
    ) -> None:
        self._store = store
        self._topics = topics
        self._internal = internal
        self._io = io
        self._execute = execute
        self._submit = submit
        self._is_shown = self._is_reading = False
        self._waiting: list[Request] = []
        self._missed: list[Sync] = []  # those that have ended while the log is read

    def holds(self, request: Request) -> bool:
        """Return whether a request has to wait for the log; then it is submitted when that has been read."""
        if self._is_shown or type(request.message) not in _READERS or not self._internal.is_read(request.message):
            return False
        self._waiting.append(request)
        self._read()
        return True

    def synced(self, sync: Sync) -> None:
        """Show what has been written."""
        if self._is_reading:
            self._missed.append(sync)
        if self._is_shown:
            self._execute(self._topics.show(self._internal, sync.batches))

    def compacted(self) -> None:
        """Read the log again, if it is shown: it has become smaller."""
        if self._is_shown:
            self._read()

    def _read(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            self._io.run("show", self._build, self._built, self._unreadable)

    def _build(self) -> tuple[Any, int]:
        return self._internal.build(self._store.batches())

    def _built(self, found: tuple[Any, int]) -> None:
        logs, end = found
        try:
            effects = self._topics.replace(self._internal, logs)
            for sync in self._missed:
                later = [
                    batch._replace(records=[each for each in batch.records if each.offset >= end])
                    for batch in sync.batches
                ]
                effects += self._topics.show(self._internal, [batch for batch in later if batch.records])
            self._is_shown = True
            self._execute(effects)
        finally:  # whatever fails, readers do not wait for ever
            self._go_on()

    def _unreadable(self, error: Exception) -> None:
        self._io.note("cannot show", self._internal.topic.name, error)
        self._go_on()  # the topic seems empty

    def _go_on(self) -> None:
        self._is_reading = False
        self._missed.clear()
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            self._submit(request)


class DurableLog:
    """The log of a `Runtime` at work: writes, compaction, and reading it again after the disk has failed, or when a
    part of it has got another coordinator.

    :param name: of the log
    :param partition_of: returns the partition of a group or transactional id
    :param view: shows what is on disk
    :param loading: called with the partitions that are being read from now on, because their coordinator has changed
    :param wrote: called when a write has ended, before its replies are sent
    :param pause: see `reload_pause`
    :ivar writing: the write that is under way
    :ivar is_compacting: whether a compaction is
    """

    def __init__(
        self,
        name: str,
        runtime: Runtime[Any],
        io: HostIO,
        partition_of: Callable[[str], int],
        *,
        view: LogView | None = None,
        loading: Callable[[frozenset[int]], None] = lambda partitions: None,
        wrote: Callable[[Sync], None] = lambda sync: None,
        pause: Callable[[int], int] = reload_pause,
    ) -> None:
        self.name = name
        self.runtime = runtime
        self.writing: Sync | None = None
        self.is_compacting = False
        self._io = io
        self._partition_of = partition_of
        self._view = view
        self._on_loading = loading
        self._wrote = wrote
        self._pause = pause
        self._store = runtime.store
        self._failures = 0  # each of which drops all groups
        self._to_load: frozenset[int] = frozenset()  # partitions that have another coordinator and are to be read
        self._load_after = 0  # the append that must be on disk before
        self._when_loaded: list[Callable[[], None]] = []
        self._is_loading = self._is_reloading = self._is_unreadable = self._is_stopping = False

    # ---- reading all of it

    def load(self, done: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        """Read the log, begin to serve, and call `done`."""
        self._io.run("read", self._store.recover, partial(self._recovered, done), failed)

    def _recovered(self, done: Callable[[], None], records: list[LogRecord]) -> None:
        if self._is_stopping:
            return
        if (lost := self._store.recovered.truncated) > 0:
            self._io.note("is cut", self.name, lost)
        self.runtime.load(records, self._io.now())
        self._set_loading(frozenset())
        self._io.note("serves", self.name)
        done()

    def load_or_retry(self, attempt: int = 0) -> None:
        """Read the log and begin to serve, however often the disk fails."""
        self._is_reloading = True
        if not self._is_stopping:
            self.load(partial(self._reloaded, attempt), partial(self._retry, attempt))

    def _reloaded(self, attempt: int) -> None:
        self._is_reloading = False
        if attempt:
            self._io.note("serves again", self.name)

    def _retry(self, attempt: int, error: Exception) -> None:
        self._io.note("cannot read", self.name, error)
        self._io.after(self._pause(attempt), partial(self.load_or_retry, attempt + 1))

    # ---- time and writing

    @property
    def deadline(self) -> int | None:
        """When `tick` is due, in ms; None if nothing is."""
        return self.runtime.deadline

    def tick(self) -> None:
        """Let the machine do what is due."""
        now = self._io.now()
        if (due := self.runtime.deadline) is not None and due <= now:
            self.runtime.submit(Tick(), now)

    def commit(self) -> bool:
        """Begin to write what was appended, unless a write is under way; return whether one has ended at once."""
        if self.writing is not None:
            return False
        sync = self.writing = self.runtime.begin_sync()
        if sync is None:
            return False
        self._io.run("write", sync.run, partial(self._written, sync), self._not_written)
        return self.writing is not sync

    def _written(self, sync: Sync, _: None) -> None:
        self.writing = None
        self._wrote(sync)
        self.runtime.end_sync(sync)
        if self._view is not None:
            self._view.synced(sync)
        if not self.is_compacting and self._store.compaction_due():
            self.is_compacting = True
            self._io.note("compacts", self.name)
            self._io.run("compact", self._store.compact, self._compacted, self._not_compacted)
        if self._is_unreadable:
            self._fail()
        else:
            self._load_moved()

    def _not_written(self, error: Exception) -> None:
        self.writing = None
        self._io.note("cannot write", self.name, error)
        self._fail()

    def _fail(self) -> None:
        """Refuse everything until the whole log has been read again. No write is under way."""
        self._failures += 1
        self._is_unreadable = False
        self.runtime.sync_failed(self._io.now())
        self._end_moves()
        if not self._is_reloading and not self._is_stopping:
            self._is_reloading = True
            self._io.after(self._pause(0), partial(self.load_or_retry, 1))

    def _compacted(self, _: None) -> None:
        self.is_compacting = False
        if self._view is not None:
            self._view.compacted()

    def _not_compacted(self, error: Exception) -> None:
        """The next write or the next start has to cope with what that leaves."""
        self.is_compacting = False
        self._io.note("cannot compact", self.name, error)

    # ---- partitions that get another coordinator

    def move(self, partitions: frozenset[int], then: Callable[[], None] = lambda: None) -> None:
        """Drop what belongs to some partitions of the internal topic, whose coordinator changes, and read it from the
        log again. Parked requests are answered NOT_COORDINATOR.

        :param then: called when the partitions are served again, or the log has failed
        """
        self._when_loaded.append(then)
        self.runtime.submit(Resign(partitions), self._io.now())
        self._load_after = self.runtime.machine.appended
        self._set_loading(self._to_load | partitions)
        self._load_moved()

    def _set_loading(self, partitions: frozenset[int]) -> None:
        self._to_load = partitions
        self._on_loading(partitions)

    def _load_moved(self) -> None:
        """Read what has moved, unless something that was appended before is not on disk yet."""
        partitions = self._to_load
        if self._is_reloading or self._is_stopping or not partitions:
            self._end_moves()  # all is read again, nothing is read any more, or nothing has moved
        elif not self._is_loading and self.runtime.durable >= self._load_after:
            self._is_loading = True
            read = partial(self._store.read, lambda key: self._partition_of(key) in partitions)
            loaded = partial(self._loaded, partitions, self._failures)
            self._io.run("load", read, loaded, partial(self._not_loaded, self._failures))

    def _loaded(
        self, partitions: frozenset[int], failures: int, found: tuple[list[LogRecord], list[PendingRecord]]
    ) -> None:
        self._is_loading = False
        if failures == self._failures and not self._is_stopping:
            self.runtime.submit(Load(found[0], partitions, found[1]), self._io.now())
            self._set_loading(self._to_load - partitions)
            self._io.note("serves", self.name)
        self._load_moved()

    def _not_loaded(self, failures: int, error: Exception) -> None:
        self._is_loading = False
        if failures == self._failures and not self._is_stopping:
            self._io.note("cannot load", self.name, error)
            self._is_unreadable = True
            if self.writing is None:
                self._fail()  # else when the write has ended

    def _end_moves(self) -> None:
        ended, self._when_loaded = self._when_loaded, []
        for then in ended:
            then()

    # ---- the end

    def stop(self) -> None:
        """Load nothing more; what was appended is still written."""
        self._is_stopping = True
        self._end_moves()


class Host:
    """The machines of a coordinator. Who has made a request is known to its token only.

    :param transactions: the log of transactional ids
    :param shares: the log of share groups; in memory if None
    :param send: called with the token of a request and the response to it; with one of `new_token`, it is to be given
        to `TransactionFlow.answered`
    :param new_token: returns a token that no request has
    :param report: called when a rebalance reaches a phase
    :param wrote: called when a write to a log has ended
    :ivar brokers: who leads and coordinates what
    :ivar groups: the group machine with its log
    :ivar transactions: the transaction machine with its log
    :ivar shares: the machine of share groups' records with its log
    :ivar flow: what transactions need of groups and topics
    :ivar topics: answers what is about neither
    :ivar logs: of groups, of transactions and of share groups
    :ivar coordinated: the classes of requests that are for a group's coordinator or a transactional id's
    """

    def __init__(
        self,
        machine: GroupMachine,
        store: Store,
        topics: Topics,
        io: HostIO,
        *,
        transactions: Store,
        shares: Store | None = None,
        send: Callable[[int, Any], None],
        new_token: Callable[[], int],
        report: Callable[[RebalanceReport], None],
        wrote: Callable[[Sync], None] = lambda sync: None,
        pause: Callable[[int], int] = reload_pause,
    ) -> None:
        self.brokers = brokers = machine.brokers
        self.topics = topics
        self._io = io
        self._send = send
        self._report = report
        self.groups = Runtime(machine, store, send, self._perform_of_groups)
        own = TransactionMachine(
            topics,
            brokers.groups.partition_of,
            topics.new_producer_id,
            machine.config,
            brokers.transactions.partition_of,
        )
        self.transactions = Runtime(own, transactions, send, self._write_markers)
        shared = ShareMachine(topics.shared_logs, partial(share_settings, topics.configuration), machine.config)
        shares = shares or Store(MemoryDisk(), SHARES)
        self.shares = Runtime(shared, shares, send)
        self.flow = TransactionFlow(
            transactions=self.transactions.submit,
            groups=self.groups.submit,
            topics=self.submit_to_topics,
            unverified=topics.unverified,
            offsets_partition=brokers.groups.partition_of,
            send=send,
            new_token=new_token,
        )
        of_shares = LogView(shares, topics, topics.shares, io, self.execute, self.submit_to_topics)
        of_transactions = LogView(transactions, topics, topics.transactions, io, self.execute, self._read_shares)
        of_groups = LogView(store, topics, topics.offsets, io, self.execute, self._read_transactions)
        self._views = (of_groups, of_transactions, of_shares)
        self.logs = (
            DurableLog(
                "groups",
                self.groups,
                io,
                brokers.groups.partition_of,
                view=of_groups,
                loading=brokers.set_loading,
                wrote=wrote,
                pause=pause,
            ),
            DurableLog(
                "transactions",
                self.transactions,
                io,
                brokers.transactions.partition_of,
                view=of_transactions,
                wrote=wrote,
                pause=pause,
            ),
            DurableLog(
                "shares", self.shares, io, brokers.shares.partition_of, view=of_shares, wrote=wrote, pause=pause
            ),
        )
        self._timed = (machine, topics, own, self.flow, shared)
        of_partitions = {m.WriteTxnMarkersRequest}  # if a client sends it
        self.coordinated = (machine.serves - of_partitions) | own.serves | {m.DescribeShareGroupOffsetsRequest}
        self._serve: dict[type, Callable[[Request, int], None]] = {  # all others are the topics'
            **dict.fromkeys(machine.serves - of_partitions, self.groups.submit),
            **dict.fromkeys(own.serves, self.transactions.submit),
            **dict.fromkeys(shared.serves, self.shares.submit),
            m.TxnOffsetCommitRequest: self.flow.commit_offsets,
            m.ProduceRequest: self._produce,
        }

    # ---- requests

    def submit(self, request: Request) -> None:
        """Give a request to the machine that serves its api."""
        self._serve.get(type(request.message), self._read_groups)(request, self._io.now())

    def _produce(self, request: Request, now: int) -> None:
        if request.message.transactional_id is not None:
            self.flow.produce(request, now)
        else:
            self._read_groups(request, now)

    def _read_groups(self, request: Request, now: int) -> None:
        """Give the topics a request, once the logs that it reads have been read."""
        if not self._views[0].holds(request):
            self._read_transactions(request, now)

    def _read_transactions(self, request: Request, now: int | None = None) -> None:
        """Give the topics a request that reads no groups' log that has to be read before."""
        if not self._views[1].holds(request):
            self._read_shares(request, now)

    def _read_shares(self, request: Request, now: int | None = None) -> None:
        """Likewise, none of transactions."""
        if not self._views[2].holds(request):
            self.submit_to_topics(request, now)

    def _perform_of_groups(self, effect: RebalanceReport | CreateTopics | ShareStateEffect) -> None:
        now = self._io.now()
        if isinstance(effect, RebalanceReport):
            self._report(effect)
        elif isinstance(effect, CreateTopics):
            if errors := self.topics.create_for(effect.topics):
                self.groups.submit(TopicsRefused(effect.group_id, errors), now)
        elif isinstance(effect, InitializeShareState):
            self.flow.ask(self.shares.submit, *initialize_request(effect), partial(self._initialized, effect), now)
        else:
            self.flow.ask(self.shares.submit, *delete_request(effect), partial(self._deleted, effect), now)

    def _initialized(
        self, effect: InitializeShareState, response: m.InitializeShareGroupStateResponse, now: int
    ) -> None:
        """Note that the states of share partitions are in their log, or cannot be."""
        partitions = {topic_id: frozenset(offsets) for topic_id, offsets in effect.partitions.items()}
        codes = [each.error_code for result in response.results for each in result.partitions]
        error = ErrorCode(next(filter(None, codes), ErrorCode.NONE))
        self.groups.submit(ShareStateInitialized(effect.group_id, partitions, error), now)

    def _deleted(self, effect: DeleteShareState, response: m.DeleteShareGroupStateResponse, now: int) -> None:
        """Note that they are gone, or cannot be deleted; a topic that is gone has left none."""
        codes = [each.error_code for result in response.results for each in result.partitions]
        found = (code for code in codes if code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        self.groups.submit(ShareStateDeleted(effect.group_id, ErrorCode(next(found, ErrorCode.NONE))), now)

    def _write_markers(self, effect: WriteMarkers) -> None:
        self.flow.write_markers(effect, self._io.now())

    def submit_to_topics(self, event: Event | VerifiedProduce, now: int | None = None) -> None:
        """Give the topics an event, and carry out its effects."""
        now = self._io.now() if now is None else now
        self.execute(self.topics.handle(event, now))
        if self.shares.machine.waits and (not isinstance(event, Request) or type(event.message) in _WRITERS):
            self.shares.submit(RecordsChanged(), now)

    def execute(self, effects: Iterable[Effect]) -> None:
        """Carry out effects of the topics."""
        now = self._io.now()
        for effect in effects:
            if isinstance(effect, Reply):
                self._send(effect.token, effect.message)
            elif isinstance(effect, Reassigned):
                self.elect(effect.leaders)
            elif isinstance(effect, TopicsDeleted):
                self.groups.submit(effect, now)
                self.shares.submit(effect, now)

    # ---- time

    @property
    def deadline(self) -> int | None:
        """When `tick` is due, in ms; None if nothing is."""
        first: int | None = None
        for machine in self._timed:
            due = machine.deadline
            if due is not None and (first is None or due < first):
                first = due
        return first

    def tick(self) -> None:
        """Let the machines do what is due."""
        groups, transactions, shares = self.logs
        groups.tick()
        if (due := self.topics.deadline) is not None and due <= self._io.now():
            self.submit_to_topics(Tick())
        transactions.tick()
        self.flow.tick(self._io.now())
        shares.tick()

    def commit(self) -> bool:
        """Begin to write what was appended; return whether a write has ended at once."""
        wrote = [log.commit() for log in self.logs]
        return any(wrote)

    # ---- elections

    def elect(self, changed: Iterable[Leaders], then: Callable[[], None] = lambda: None) -> None:
        """Elect the leaders of topics, and call `then` when the groups and transactions that have moved are loaded."""
        waiting = 1

        def loaded() -> None:
            nonlocal waiting
            waiting -= 1
            if not waiting:
                then()

        coordinating = (self.brokers.groups, self.brokers.transactions)
        for leaders in changed:
            moved = leaders.elect()
            self.topics.catalog.raise_epochs(leaders, moved)
            for of_log, log in zip(coordinating, self.logs[: len(coordinating)], strict=True):
                if moved and leaders is of_log:
                    waiting += 1
                    log.move(frozenset(moved), loaded)
        loaded()
