"""What a test asks of a running `Coordinator`: groups, records, waits for what happens, rebalances, faults, brokers.

Laws:

* Nothing polls: a wait looks when the coordinator has handled something, and at its beginning.
* A wait that times out says what the group looked like: state, members, whom its rebalance waits for, the last one.
  pytest's traceback of it ends at the caller (``__tracebackhide__``); that of another error keeps all frames.
* What a wait returns for is on disk, where there is one: a client that asks is answered the same.
* A wait blocks its thread, so it refuses to run in one whose event loop is running: clients of that loop would stand
  still. ``await asyncio.to_thread(coordinator.wait_until_stable, "billing")`` leaves the loop free.
* A method about brokers returns when what it asks for has happened: a group that has moved is served by its new
  coordinator, and a broker that was stopped refuses connections.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from operator import methodcaller
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from kcoord_wire.coordinator import overview, topic_records
from kcoord_wire.coordinator.core.brokers import NO_LEADER
from kcoord_wire.coordinator.core.events import Rebalance, RebalanceAccount
from kcoord_wire.coordinator.description import (
    GroupDescription,
    describe_group,
    describe_rebalance,
    describe_strikes,
    explain_group,
    shown,
)
from kcoord_wire.coordinator.fault_injection import Fault, Faults, Strike, Tally
from kcoord_wire.coordinator.overview import (
    MOST_FOLLOWED,
    Changes,
    PartitionDescription,
    TopicLag,
    TransactionDescription,
)
from kcoord_wire.coordinator.topic_records import Isolation, TopicReader, TopicRecord
from kcoord_wire.coordinator.topics.compaction import Compacted, Compacting
from kcoord_wire.coordinator.traffic import Traffic, write_recording
from kcoord_wire.coordinator.transactions.transaction import State as TransactionState
from kcoord_wire.kernel.settings import SettingsError, suggestion
from kcoord_wire.protocol.short_repr import short_repr

if TYPE_CHECKING:
    from os import PathLike

    from kcoord_wire.coordinator.host import Runtime
    from kcoord_wire.coordinator.server import Server


PATIENCE = 60.0
"""Seconds for which waits wait unless the caller says otherwise: more than a consumer's default session timeout."""

_MOST_GROUPS = 20  # named in an error
_HIDDEN = methodcaller("errisinstance", TimeoutError)  # pytest asks it with its `ExceptionInfo`

Poll = Callable[[], object]
T = TypeVar("T")


class Inspection:
    """The part of `Coordinator` that tests use. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._waits: set[Future[Any]] = set()  # of the thread of the loop

    def _call(self, what: Callable[[Server], T]) -> T:
        """Call `what` in the thread of the loop, which owns the server."""
        raise NotImplementedError

    def _run(self, what: Callable[[Server], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine of the server in its loop."""
        raise NotImplementedError

    # ---- topics and groups

    def topics(self) -> dict[str, int]:
        """Return each topic with its number of partitions."""
        return self._call(lambda server: {topic.name: len(topic.logs) for topic in server.host.topics.catalog})

    def topic_lags(self) -> list[TopicLag]:
        """Return all topics by name, the brokers' own too, with how far each group is behind."""
        return self._call(lambda server: overview.topic_lags(server.host))

    def partitions(self, topic: str) -> list[PartitionDescription]:
        """Return the partitions of a topic, with their ends and what groups have committed.

        :raises KeyError: there is no such topic
        """
        found = self._call(lambda server: overview.partitions_of(server.host, topic))
        if found is None:
            raise KeyError(f"no topic {topic!r}")
        return found

    def compact(self, topic: str, timeout: float = PATIENCE) -> list[Compacted]:
        """Compact a topic now, as the cleaner does some time: begin a new segment in each partition, since the last is
        never compacted, and drop from all before it what has a later record of its key. min.compaction.lag.ms and
        delete.retention.ms of the topic hold: with 86,400,000 ms, the default, tombstones stay for a day.

        :param timeout: seconds
        :returns: its partitions, with their bytes before and after
        :raises KeyError: there is no such topic
        :raises ValueError: its ``cleanup.policy`` does not include ``compact``
        :raises RuntimeError: the disk has failed
        :raises TimeoutError: it takes longer, and goes on
        """
        __tracebackhide__ = _HIDDEN

        def ask(server: Server) -> Compacting:
            asked = server.host.topics.compact(topic)
            server.scheduler.settle()
            return asked

        asked = self._call(ask)
        self._wait(lambda _: asked.is_ended or None, timeout, lambda _: f"{topic!r} is not compacted in {timeout:g} s")
        if asked.failure:
            raise RuntimeError(asked.failure)
        return asked.done

    def records(
        self, topic: str, partition: int | None = None, isolation: Isolation = "read_uncommitted"
    ) -> list[TopicRecord]:
        """Return the records of a topic, by partition and offset. No group and no offset is changed by that.

        :param partition: of this one alone
        :param isolation: ``read_committed`` leaves out those of open and aborted transactions
        :raises KeyError: there is no such topic or partition
        """
        reader = TopicReader(topic, partition, isolation)
        return list(reader.records(self._call(lambda server: reader.gather(server.host))))

    def produce(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None = None,
        partition: int = 0,
        headers: Mapping[str, bytes | str | None] = MappingProxyType({}),
        timestamp: int | None = None,
    ) -> int:
        """Append a record to a partition, and return its offset. Text is written as UTF-8.

        :param timestamp: ms since the epoch; now by default
        :raises KeyError: there is no such topic or partition
        :raises ValueError: the record is refused, as for its size
        """

        def append(server: Server) -> int:
            now = server.scheduler.now()
            offset = topic_records.produce(server.host, topic, partition, key, value, headers, timestamp, now)
            server.scheduler.settle()
            return offset

        return self._call(append)

    def transactions(self) -> list[TransactionDescription]:
        """Return the transactional ids that have changed last, at most 500, the newest first."""
        return self._call(lambda server: overview.transactions(server.host))

    def transaction(self, transactional_id: str) -> TransactionDescription:
        """Return a transactional id as it is now.

        :raises KeyError: no producer has used it
        """
        found = self._call(lambda server: overview.transaction(server.host, transactional_id))
        if found is None:
            raise KeyError(f"no transactional id {transactional_id!r}")
        return found

    def groups(self) -> list[GroupDescription]:
        """Return all groups as they are now, by id."""
        return self._call(_describe_all)

    def describe(self, group: str) -> GroupDescription:
        """Return a group as it is now.

        :raises KeyError: there is no such group
        """
        found = self._call(lambda server: _describe(server, group))
        if found is None:
            raise KeyError(f"no group {group!r}")
        return found

    def changes(self, since: Changes | None = None, most: int = MOST_FOLLOWED) -> Changes:
        """Return the groups that have changed since an earlier look, and the rebalances that have ended since.

        :param since: what that look has returned; None for all groups, and the rebalances that are remembered
        :param most: groups to look at, the first by their ids
        """
        return self._call(lambda server: overview.changes(server, since, most, _default_assignor(server)))

    def explain(self, group: str) -> str:
        """Return a group as lines for people: state, members, whom a rebalance waits for, and the last rebalance."""
        return self._call(lambda server: _explain(server, group))

    def report(self, since: int = 0) -> str:
        """Return all groups as lines for people, with their rebalances and what faults have done: for the report of a
        test that has failed.

        :param since: ms since the epoch; what ended before is left out
        """

        def report(server: Server) -> str:
            now = server.scheduler.now()
            lines = [f"group {shown(each.group_id)}: {explain_group(each, (), now)}" for each in _describe_all(server)]
            accounts = server.requests.rebalances.accounts
            ended = [account for account in accounts if (account.ended_at or 0) >= since]
            events = [(account.started_at, describe_rebalance(account)) for account in ended]
            events += describe_strikes(strike for strike in server.requests.strikes if strike.at >= since)
            lines += [f"{_clock_time(at)} {text}" for at, text in sorted(events)]
            idle = [tally for tally in _tallies(server) if not tally.hits]
            lines += [f"has struck nothing ({tally.matches} matches): {short_repr(tally.fault)}" for tally in idle]
            return "\n".join(lines) or "no groups, no rebalances"

        return self._call(report)

    @property
    def rebalances(self) -> list[RebalanceAccount]:
        """Accounts of the last rebalances that have ended, oldest first."""
        return self._call(lambda server: list(server.requests.rebalances.accounts))

    def keep_traffic(self) -> None:
        """Keep what clients that connect from now on say about groups, at most 64 MiB of it, for `write_recording`."""

        def keep(server: Server) -> None:
            server.requests.traffic = server.requests.traffic or Traffic()

        self._call(keep)

    def write_recording(self, folder: str | PathLike[str]) -> None:
        """Write what `keep_traffic` has kept as a recording, which `kcoord analyze` reads.

        :raises RuntimeError: nothing is kept, or the coordinator does not run
        :raises OSError: the folder cannot be written
        """
        traffic = self._call(lambda server: server.requests.traffic)
        if traffic is None:
            raise RuntimeError("the coordinator does not keep its traffic")
        write_recording(self._call(lambda _: traffic.events()), folder)

    def trigger_rebalance(self, group: str, reason: str = "a test wants it") -> None:
        """Let a group rebalance. Members learn of it by their next heartbeat, and join again; no member is removed.

        A group whose members are joining already is left to it.

        :param reason: for the account of the rebalance
        :raises KeyError: there is no such group
        :raises ValueError: it has no members
        """

        def trigger(server: Server) -> None:
            found = _describe(server, group)
            if found is None:
                raise KeyError(f"no group {group!r}")
            if not found.members:
                raise ValueError(f"group {group!r} has no members")
            server.host.groups.submit(Rebalance(group, reason), server.scheduler.now())
            server.scheduler.settle()

        self._call(trigger)

    # ---- brokers

    @property
    def brokers(self) -> list[str]:
        """What each broker does, in the order of `Coordinator.node_ids`: ``running``, ``paused`` or ``stopped``."""
        return self._call(lambda server: [str(state) for state in server.states])

    def coordinator_of(self, group: str) -> int:
        """Return the node id of the broker that coordinates a group; -1 if none runs."""
        endpoint = self._call(lambda server: server.brokers.coordinator_of(server.brokers.groups, group))
        return NO_LEADER if endpoint is None else endpoint.node_id

    def leader_of(self, topic: str, partition: int) -> int:
        """Return the node id of the broker that leads a partition; -1 if none runs.

        :raises KeyError: the topic or the partition does not exist
        """

        def look(server: Server) -> int:
            found = server.host.topics.catalog.named(topic)
            if found is None or not 0 <= partition < len(found.leaders.of):
                raise KeyError(f"{topic}-{partition}")
            return server.brokers.node_of(found.leaders.of[partition])

        return self._call(look)

    def move_coordinator(self, group: str, to: int) -> None:
        """Let a broker coordinate a group from now on, with all groups of the same partition of
        ``__consumer_offsets``. Members find it by themselves.

        :param to: its node id
        :raises ValueError: there is no such broker, or it does not run
        """
        self._run(lambda server: server.move_coordinator(group, to))

    def stop_broker(self, node: int) -> None:
        """Stop a broker: the others lead its partitions and coordinate its groups, its connections are closed, and
        later ones refused. One that is stopped stays so.

        :raises ValueError: there is no such broker
        """
        self._run(lambda server: server.stop_broker(node))

    def restart_broker(self, node: int) -> None:
        """Start a stopped broker again, at its port; one that runs is stopped before. It leads what it led.

        :raises ValueError: there is no such broker
        :raises OSError: another program has taken its port
        """
        self._run(lambda server: server.restart_broker(node))

    def pause_broker(self, node: int, failover_ms: int | None = None) -> None:
        """Pause a broker, like SIGSTOP: clients may connect, and nothing is read or answered. One that does not run
        stays as it is.

        :param failover_ms: what it leads moves to others after so long, as after Kafka's
            ``broker.session.timeout.ms``; None leaves it there
        :raises ValueError: there is no such broker
        """
        self._call(lambda server: server.pause_broker(node, failover_ms))

    def resume_broker(self, node: int) -> None:
        """Let a paused broker go on; it leads what it led. One that is not paused stays as it is.

        :raises ValueError: there is no such broker
        """
        self._run(lambda server: server.resume_broker(node))

    # ---- waits

    def wait_until_stable(
        self, group: str, members: int | None = None, timeout: float = PATIENCE, poll: Poll | None = None
    ) -> GroupDescription:
        """Wait until a group is settled: Stable, with every member's assignment fetched, and no second rebalance of a
        cooperative assignor to come (`GroupDescription.is_settled`).

        :param members: how many it must have then; None for any number but 0
        :param timeout: seconds
        :param poll: called in this thread again and again during the wait: consumers may need polling to live
        :returns: the group as it was then
        :raises TimeoutError: it has not come to that; the text shows the group
        """
        __tracebackhide__ = _HIDDEN
        wanted = "any" if members is None else members

        def is_stable(found: GroupDescription) -> bool:
            count = len(found.members)
            return found.is_settled and (count > 0 if members is None else count == members)

        return self._wait_for_group(group, is_stable, timeout, poll, f"stable with {wanted} members")

    def wait_for_commit(
        self, group: str, topic: str, partition: int, offset: int, timeout: float = PATIENCE, poll: Poll | None = None
    ) -> int:
        """Wait until a group has committed at least this offset of a partition.

        :param timeout: seconds
        :param poll: as for `wait_until_stable`
        :returns: the committed offset
        :raises TimeoutError: it has not; the text shows the group and what it has committed
        """
        __tracebackhide__ = _HIDDEN

        def is_committed(found: GroupDescription) -> bool:
            return found.offsets.get(topic, {}).get(partition, -1) >= offset

        what = f"at offset {offset} of {topic}-{partition}"
        return self._wait_for_group(group, is_committed, timeout, poll, what).offsets[topic][partition]

    def wait_for_records(
        self,
        topic: str,
        count: int = 1,
        partition: int | None = None,
        isolation: Isolation = "read_uncommitted",
        timeout: float = PATIENCE,
        poll: Poll | None = None,
    ) -> list[TopicRecord]:
        """Wait until a topic has so many records, those that it has already included.

        :param count: the least number
        :param partition: only those of this partition
        :param isolation: as for `records`
        :param timeout: seconds
        :param poll: as for `wait_until_stable`
        :returns: the records, by partition and offset
        :raises TimeoutError: it has fewer; the text says how many
        :raises KeyError: there is no such topic or partition
        """
        __tracebackhide__ = _HIDDEN
        reader = TopicReader(topic, partition, isolation)
        found: list[TopicRecord] = []

        def look(server: Server) -> list[TopicRecord] | None:
            found.extend(reader.records(reader.gather(server.host)))
            return found if len(found) >= count else None

        def failure(server: Server) -> str:
            return f"topic {topic!r} has {len(found)} records and not {count} after {timeout:g} s ({isolation})"

        return sorted(self._wait(look, timeout, failure, poll), key=lambda each: (each.partition, each.offset))

    def wait_for_transaction(
        self, transactional_id: str, state: str, timeout: float = PATIENCE, poll: Poll | None = None
    ) -> TransactionDescription:
        """Wait until a transactional id has a state, such as ``Ongoing``, ``CompleteCommit`` or ``CompleteAbort``.

        :param timeout: seconds
        :param poll: as for `wait_until_stable`
        :returns: the transactional id as it was then
        :raises SettingsError: there is no such state
        :raises TimeoutError: it has another; the text says which
        """
        __tracebackhide__ = _HIDDEN
        states = [each.value for each in TransactionState]
        if state not in states:
            raise SettingsError("state", f"{state!r} is unknown; {suggestion(state, states)}")

        def look(server: Server) -> TransactionDescription | None:
            found = overview.transaction(server.host, transactional_id)
            return None if found is None or found.state != state else found

        def failure(server: Server) -> str:
            found = overview.transaction(server.host, transactional_id)
            now = "no producer has used it" if found is None else f"it is {found.state}"
            return f"transactional id {transactional_id!r} is not {state} after {timeout:g} s: {now}"

        return self._wait(_on_disk(_transactions_log, look), timeout, failure, poll)

    def wait_until(
        self,
        group: str,
        condition: Callable[[GroupDescription], bool],
        timeout: float = PATIENCE,
        poll: Poll | None = None,
    ) -> GroupDescription:
        """Wait until a group exists and `condition` holds for it.

        :param condition: called in the coordinator's thread after each event, so it must be quick and must not call it
        :param timeout: seconds
        :param poll: as for `wait_until_stable`
        :returns: the group as it was then
        :raises TimeoutError: it does not hold; the text shows the group
        """
        __tracebackhide__ = _HIDDEN
        return self._wait_for_group(group, condition, timeout, poll, "as the condition wants it")

    def _wait_for_group(
        self,
        group: str,
        condition: Callable[[GroupDescription], bool],
        timeout: float,
        poll: Poll | None,
        what: str,
    ) -> GroupDescription:
        __tracebackhide__ = _HIDDEN

        def look(server: Server) -> GroupDescription | None:
            found = _describe(server, group)
            return None if found is None or not condition(found) else found

        def failure(server: Server) -> str:
            return f"group {group!r} is not {what} after {timeout:g} s: {_explain(server, group)}"

        return self._wait(_on_disk(_groups_log, look), timeout, failure, poll)

    def _wait(
        self,
        look: Callable[[Server], T | None],
        timeout: float,
        failure: Callable[[Server], str],
        poll: Poll | None = None,
    ) -> T:
        """Return what `look` returns, as soon as that is not None. It is called in the thread of the loop."""
        __tracebackhide__ = _HIDDEN
        _refuse_in_event_loop()
        until = time.monotonic() + timeout
        found: Future[T] = Future()

        def check(server: Server) -> None:
            if not found.done():
                try:
                    value = look(server)
                except Exception as error:  # of a caller's condition: its own to see
                    found.set_exception(error)
                else:
                    if value is not None:
                        found.set_result(value)

        with self._watching(check, found):
            while poll is not None and not found.done() and time.monotonic() < until:
                poll()
            try:
                return found.result(max(0.0, until - time.monotonic()))
            except TimeoutError:
                if found.done():  # just now, or the condition itself raised it
                    return found.result()
                raise TimeoutError(self._call(failure)) from None

    @contextmanager
    def _watching(self, check: Callable[[Server], None], found: Future[Any]) -> Iterator[None]:
        """Have the server call `check` now and when it has handled something."""
        watcher: Callable[[], None] | None = None

        def begin(server: Server) -> None:
            nonlocal watcher
            watcher = partial(check, server)
            server.scheduler.watchers.add(watcher)
            self._waits.add(found)
            watcher()

        def end(server: Server) -> None:
            if watcher is not None:
                server.scheduler.watchers.discard(watcher)
            self._waits.discard(found)

        self._call(begin)
        try:
            yield
        finally:
            with suppress(RuntimeError):  # it has been stopped
                self._call(end)

    @contextmanager
    def watching(self, look: Callable[[], None]) -> Iterator[None]:
        """Have `look` called whenever the coordinator has handled something, during the block. It is called in the
        coordinator's thread, so it must be quick and must not call it."""
        self._call(lambda server: server.scheduler.watchers.add(look))
        try:
            yield
        finally:
            with suppress(RuntimeError):  # it has been stopped
                self._call(lambda server: server.scheduler.watchers.discard(look))

    def _end_waits(self) -> None:
        """The coordinator stops: let no wait go on. Called in the thread of the loop."""
        for wait in self._waits:
            if not wait.done():
                wait.set_exception(RuntimeError("the coordinator was stopped"))
        self._waits.clear()

    # ---- faults

    def add_fault(self, *faults: Fault) -> None:
        """Add faults, which apply from now on."""

        def add(server: Server) -> None:
            if server.requests.faults is None:
                server.requests.faults = Faults(faults)
            else:
                server.requests.faults.add(*faults)

        self._call(add)

    def clear_faults(self) -> None:
        """Remove all faults. Requests and responses that are being delayed still arrive."""

        def clear(server: Server) -> None:
            server.requests.faults = None

        self._call(clear)

    def fault_tallies(self) -> list[Tally]:
        """Return what each fault has done so far, in the order in which they were added."""
        return self._call(_tallies)

    @property
    def strikes(self) -> list[Strike]:
        """The last 1,000 requests and responses that faults have struck, the oldest first; those of faults that have
        been removed, too."""
        return self._call(lambda server: list(server.requests.strikes))

    def remove_fault(self, number: int) -> None:
        """Remove the fault of this number (`Tally.number`).

        :raises KeyError: there is no such fault
        """

        def remove(server: Server) -> None:
            (server.requests.faults or Faults()).remove_number(number)

        self._call(remove)

    @contextmanager
    def faults(self, *faults: Fault) -> Iterator[InjectedFaults]:
        """Add faults, and remove them at the end of the block; others stay.

        ::

            with coordinator.faults(Fault("error", api="Heartbeat", error="COORDINATOR_NOT_AVAILABLE")) as injected:
                injected.wait(hits=3)
        """
        self.add_fault(*faults)
        try:
            yield InjectedFaults(self, faults)
        finally:
            with suppress(RuntimeError):  # it was stopped in the block
                self._call(lambda server: _remove_faults(server, faults))


class InjectedFaults:
    """The faults of a block of `Inspection.faults`."""

    def __init__(self, coordinator: Inspection, faults: tuple[Fault, ...]) -> None:
        self._coordinator = coordinator
        self._faults = faults

    @property
    def hits(self) -> int:
        """How many requests and responses they have struck so far."""
        return self._coordinator._call(self._hits)

    def wait(self, hits: int = 1, timeout: float = PATIENCE) -> int:
        """Wait until they have struck this often.

        :param timeout: seconds
        :returns: how often they have then
        :raises TimeoutError: they have not; the text says what they were for
        """
        __tracebackhide__ = _HIDDEN

        def look(server: Server) -> int | None:
            count = self._hits(server)
            return count if count >= hits else None

        def failure(server: Server) -> str:
            tallies = self._tallies(server)
            rows = "\n".join(f"{short_repr(t.fault)}: {t.matches} matches, {t.hits} hits" for t in tallies)
            times = "once" if hits == 1 else f"{hits} times"
            return f"the faults have not struck {times} within {timeout:g} s:\n{rows}"

        return self._coordinator._wait(look, timeout, failure)

    def _hits(self, server: Server) -> int:
        return sum(tally.hits for tally in self._tallies(server))

    def _tallies(self, server: Server) -> list[Tally]:
        return [tally for tally in _tallies(server) if any(tally.fault is fault for fault in self._faults)]


def _groups_log(server: Server) -> Runtime[Any]:
    return server.host.groups


def _transactions_log(server: Server) -> Runtime[Any]:
    return server.host.transactions


def _on_disk(log: Callable[[Server], Runtime[Any]], look: Callable[[Server], T | None]) -> Callable[[Server], T | None]:
    """Return what finds a thing as `look` does, once what a log had when it was found is on disk."""
    written = 0  # the append that must be

    def found_on_disk(server: Server) -> T | None:
        nonlocal written
        found, runtime = look(server), log(server)
        written = 0 if found is None else written or runtime.machine.appended
        return found if runtime.durable >= written else None

    return found_on_disk


def _tallies(server: Server) -> list[Tally]:
    return [] if server.requests.faults is None else server.requests.faults.tallies()


def _remove_faults(server: Server, faults: tuple[Fault, ...]) -> None:
    present = server.requests.faults
    if present is not None:
        for fault in faults:
            with suppress(ValueError):  # removed in the block
                present.remove(fault)


def _describe(server: Server, group_id: str) -> GroupDescription | None:
    group = server.host.groups.machine.groups.get(group_id)
    return None if group is None else describe_group(group, server.host.topics, _default_assignor(server))


def _describe_all(server: Server) -> list[GroupDescription]:
    groups = server.host.groups.machine.groups
    assignor = _default_assignor(server)
    return [describe_group(groups[group_id], server.host.topics, assignor) for group_id in sorted(groups)]


def _default_assignor(server: Server) -> str:
    return server.host.groups.machine.config.consumer_assignors[0]


def _explain(server: Server, group_id: str) -> str:
    found = _describe(server, group_id)
    if found is None:
        known = sorted(server.host.groups.machine.groups)
        names = ", ".join(map(repr, known[:_MOST_GROUPS])) + (" ..." if len(known) > _MOST_GROUPS else "")
        return f"there is no such group; there are {names or 'no groups'}"
    return explain_group(found, server.requests.rebalances.accounts, server.scheduler.now())


def _clock_time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]


def _refuse_in_event_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        "this wait would block the running event loop, and its clients: await asyncio.to_thread(wait, ...)"
    )
