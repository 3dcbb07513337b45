"""All runs of a share partition with a few members and records: KIP-932, breadth first, to the end.

A member fetches, which acquires records for it, all that there are or one; accepts, releases, rejects or renews one of
them, or accepts all; and its session ends. Time passes in ticks, of which a lock has two. The broker starts again with
what the log has of the partition, and its members fetch anew. Everything may happen at any time and any number of
times: the states are finite in number, since deliveries are.

A ledger has of each record what its members were answered, and nothing of the partition. The laws:

``one holder``           a record is acquired by no member while another has it, whose lock has not run out
``done stays done``      what was accepted or rejected with success is not delivered again, after a restart neither
``deliveries``           a record is delivered with the number of times that it was, no more often than the limit; what
                         the end of the broker has taken back does not count
``holder acknowledges``  an acknowledgement is accepted of a record that the member has, and of no other
``log is complete``      what the log gives back is the partition, with no record acquired
``EveryRecordEnds``      when members accept what they get, every record is accepted, rejected or archived in the end

The partition is the server's (`SharePartition`), with its records in the log (`Shared`), which are written when the
server writes them: with each acknowledgement, and when records are given up.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from kcoord_wire.coordinator.core.apis import Refused
from kcoord_wire.coordinator.core.events import LogRecord
from kcoord_wire.coordinator.share.share_partition import (
    ACCEPT,
    REJECT,
    RELEASE,
    RENEW,
    Acknowledgement,
    AcquireMode,
    ShareLimits,
    SharePartition,
    Span,
    State,
)
from kcoord_wire.coordinator.share.shared import Shared
from kcoord_wire.kernel.virtual.scripts import ViolationError
from kcoord_wire.worlds.breadth_first import Found, Step, Table, explore

_TICK_MS: Final = 1_000
_LOCK_TICKS: Final = 2
_ROUNDS: Final = 20
_NOBODY: Final = -1
_PARTITION: Final = (uuid.UUID(int=1), 0)
_KINDS: Final = {"accepts": ACCEPT, "releases": RELEASE, "rejects": REJECT, "renews": RENEW}


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What is searched.

    :ivar members: how many there are
    :ivar batches: the batches of the log, with how many records each
    :ivar deliveries: how often a record is delivered at most
    :ivar depth: how many steps a run may have; None for as many as there are
    """

    members: int = 2
    batches: tuple[int, ...] = (2, 1)
    deliveries: int = 2
    depth: int | None = None


class Account(NamedTuple):
    """What is known of a record from the answers.

    :ivar is_done: it was accepted, rejected, or delivered as often as it may be
    :ivar deliveries: how often it was delivered
    :ivar holder: the member that has it; -1 for none
    :ivar ticks: until its lock runs out
    """

    is_done: bool = False
    deliveries: int = 0
    holder: int = _NOBODY
    ticks: int = 0

    def given_up(self, limit: int) -> Account:
        """Return it when its holder no longer has it, after a delivery that counts."""
        return Account(self.deliveries >= limit, self.deliveries)

    def taken_back(self) -> Account:
        """Return it when its holder no longer has it, and the delivery does not count."""
        return Account(deliveries=self.deliveries - 1)


class ShareState(NamedTuple):
    """A state of the whole: the partition with its log, by number, and the account of each record."""

    partition: int
    accounts: tuple[Account, ...]


class _Partition(NamedTuple):
    """A share partition between two events, with its last record in the log."""

    shared: Shared
    log: LogRecord | None
    now: int


class ShareWorld:
    """The states of a share partition, and what leads from one to the next; see `breadth_first.Searched`."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.machines = Table()
        self.trail: list[Step] = []
        self._limits = ShareLimits(record_locks=100, delivery_count=bounds.deliveries, lock_ms=_LOCK_TICKS * _TICK_MS)
        self._spans = [
            Span(sum(bounds.batches[:at]), sum(bounds.batches[: at + 1]) - 1) for at in range(len(bounds.batches))
        ]

    def start(self) -> ShareState:
        """Return the state before the first fetch."""
        shared = Shared("g", _PARTITION, SharePartition(0, self._limits), 0, is_started=True)
        return ShareState(self._keep(_Partition(shared, None, 0)), (Account(),) * sum(self.bounds.batches))

    def steps(self, state: ShareState) -> Iterator[Step]:
        """Return the steps that a state allows. Members acknowledge what they have, and what they have no longer."""
        for member in range(self.bounds.members):
            yield from (Step(what, member) for what in ("fetches", "fetches one", "accepts all", "session ends"))
            for offset in range(len(state.accounts)):
                yield from (Step(f"{kind} {offset}", member) for kind in _KINDS)
        yield Step("tick")
        yield Step("broker restarts")

    def after(self, state: ShareState, step: Step) -> ShareState:
        """Return the state after a step."""
        kind, _, offset = step.what.partition(" ")
        if kind in _KINDS and offset != "all":
            return self._acknowledge(state, step.member, [int(offset)], _KINDS[kind])
        return _TAKE[step.what](self, state, step.member)

    def delivered(self, state: ShareState, step: Step) -> ShareState:
        """Return the state: nothing follows from a step at once."""
        return state

    # ---- steps

    def _fetch(self, state: ShareState, member: int, most: int = 100) -> ShareState:
        before, shared = self._copied(state)
        records = shared.records
        offset = records.next_offset
        fetched = [span for span in self._spans if span.last >= offset]
        mode = AcquireMode.RECORD_LIMIT if most == 1 else AcquireMode.BATCH_OPTIMIZED
        acquired = records.acquire(
            _name(member), fetched, offset, max_records=most, batch_size=100, now=before.now, mode=mode
        )
        accounts = list(state.accounts)
        for each in acquired:
            for at in range(each.first, each.last + 1):
                accounts[at] = self._acquired(accounts[at], at, member, each.deliveries)
        return self._next(before, shared, accounts)

    def _acquired(self, account: Account, offset: int, member: int, deliveries: int) -> Account:
        if account.holder != _NOBODY:
            text = f"m{member + 1} gets {offset}, which m{account.holder + 1} has for {account.ticks} ticks"
            raise ViolationError("one holder", text)
        if deliveries != account.deliveries + 1 or deliveries > self.bounds.deliveries:
            raise ViolationError("deliveries", f"{offset} is delivered for the {deliveries}. time, {account}")
        if account.is_done:
            raise ViolationError("done stays done", f"m{member + 1} gets {offset}, {account}")
        return Account(False, deliveries, member, _LOCK_TICKS)

    def _fetch_one(self, state: ShareState, member: int) -> ShareState:
        return self._fetch(state, member, 1)

    def _accept_all(self, state: ShareState, member: int) -> ShareState:
        held = [offset for offset, account in enumerate(state.accounts) if account.holder == member]
        return self._acknowledge(state, member, held, ACCEPT) if held else state

    def _acknowledge(self, state: ShareState, member: int, offsets: list[int], kind: int) -> ShareState:
        before, shared = self._copied(state)
        asked = [Acknowledgement(offset, offset, (kind,)) for offset in offsets]
        try:
            is_changed = shared.records.acknowledge(_name(member), asked, before.now)
        except Refused:
            is_accepted = is_changed = False
        else:
            is_accepted = True
        # Of what is before the start nothing is said: it is done with, and the acknowledgement is taken for a late one.
        holders = [state.accounts[each].holder for each in offsets if each >= shared.records.start_offset or is_changed]
        is_holder = all(holder == member for holder in holders)
        if holders and is_accepted is not is_holder:
            text = (
                f"m{member + 1} acknowledges {offsets} by {kind}: {state.accounts} {'' if is_accepted else 'not '}taken"
            )
            raise ViolationError("holder acknowledges", text)
        if not is_accepted:
            return state
        accounts = list(state.accounts)
        for offset in offsets:
            accounts[offset] = (
                self._acknowledged(accounts[offset], kind) if accounts[offset].holder == member else accounts[offset]
            )
        return self._next(before, shared, accounts, is_written=is_changed)

    def _acknowledged(self, account: Account, kind: int) -> Account:
        if kind == RENEW:
            return account._replace(ticks=_LOCK_TICKS)
        return account.given_up(self.bounds.deliveries) if kind == RELEASE else Account(True, account.deliveries)

    def _end_session(self, state: ShareState, member: int) -> ShareState:
        before, shared = self._copied(state)
        is_changed = shared.records.release(_name(member))
        limit = self.bounds.deliveries
        accounts = [each.given_up(limit) if each.holder == member else each for each in state.accounts]
        return self._next(before, shared, accounts, is_written=is_changed)

    def _tick(self, state: ShareState, _member: int) -> ShareState:
        before, shared = self._copied(state)
        before = before._replace(now=before.now + _TICK_MS)
        is_changed = shared.records.expire(before.now)
        limit = self.bounds.deliveries
        passed = [each._replace(ticks=max(each.ticks - 1, 0)) for each in state.accounts]
        accounts = [each.given_up(limit) if each.holder != _NOBODY and not each.ticks else each for each in passed]
        return self._next(before, shared, accounts, is_written=is_changed)

    def _restart(self, state: ShareState, _member: int) -> ShareState:
        before: _Partition = self.machines.items[state.partition]
        accounts = [each.taken_back() if each.holder != _NOBODY else each for each in state.accounts]
        return self._next(before, self._loaded(before.log), accounts)

    def _loaded(self, log: LogRecord | None) -> Shared:
        """Return what the log has of the partition."""
        if log is None:
            return Shared("g", _PARTITION, SharePartition(0, self._limits), 0, is_started=True)
        assert log.value is not None, "no partition is deleted"
        shared = Shared.of(log.key, log.value)
        shared.records.limits = self._limits
        return shared

    # ---- the partition

    def _copied(self, state: ShareState) -> tuple[_Partition, Shared]:
        before: _Partition = self.machines.items[state.partition]
        return before, copy.deepcopy(before.shared, {id(self._limits): self._limits})

    def _next(
        self, before: _Partition, shared: Shared, accounts: list[Account], *, is_written: bool = False
    ) -> ShareState:
        log = shared.record(before.now) if is_written else before.log
        return ShareState(self._keep(_Partition(shared, log, before.now)), tuple(accounts))

    def _keep(self, partition: _Partition) -> int:
        records, now = partition.shared.records, partition.now
        logged = self._loaded(partition.log).records
        key = (
            *(records.start_offset, records.end_offset, records.state_key(now), logged.start_offset),
            tuple(logged.states()),
        )
        return self.machines.number(key, partition)

    # ---- laws of the whole

    def check(self, state: ShareState) -> None:
        """Check the partition against its log."""
        partition: _Partition = self.machines.items[state.partition]
        records = partition.shared.records
        logged = {each[0]: each for each in self._loaded(partition.log).records.states()}
        for offset, of, count, _ in records.states():
            expected = (offset, State.AVAILABLE, count - 1) if of is State.ACQUIRED else (offset, of, count)
            if logged.get(offset, (offset, State.AVAILABLE, 0, ""))[:3] != expected:
                raise ViolationError("log is complete", f"{expected} is {logged.get(offset)} in the log")

    def check_converges(self, state: ShareState) -> None:
        """Check that every record ends, if members accept what they get and locks run out."""
        for _ in range(_ROUNDS):
            if self._has_ended(state):
                return
            for member in range(self.bounds.members):
                for what in ("fetches", "accepts all"):
                    self.trail.append(Step(what, member))
                    state = self.after(state, self.trail[-1])
            self.trail.append(Step("tick"))
            state = self.after(state, self.trail[-1])
        raise ViolationError("EveryRecordEnds", f"not after {_ROUNDS} rounds without faults: {state.accounts}")

    def _has_ended(self, state: ShareState) -> bool:
        """Return whether all is done with, for the members and for the partition."""
        partition: _Partition = self.machines.items[state.partition]
        is_over = partition.shared.records.start_offset == len(state.accounts)
        return is_over and all(account.is_done for account in state.accounts)


def _name(member: int) -> str:
    return f"m{member + 1}"


_TAKE: Final[dict[str, Callable[[ShareWorld, ShareState, int], ShareState]]] = {
    "fetches": ShareWorld._fetch,
    "fetches one": ShareWorld._fetch_one,
    "accepts all": ShareWorld._accept_all,
    "session ends": ShareWorld._end_session,
    "tick": ShareWorld._tick,
    "broker restarts": ShareWorld._restart,
}


def search(bounds: Bounds, progress: Callable[[int, int], None] | None = None) -> Found:
    """Go through all states, and check the laws in each.

    :param progress: see `explore`
    """
    return explore(ShareWorld(bounds), bounds.depth, progress)
