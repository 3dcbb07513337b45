"""The loop of a watch: the Admin API polled by librdkafka (extra ``kafka``), back-off, and a screen or lines.

Laws:

* The first poll has to be answered, else the watch ends with what to check. Later ones may fail: they are shown, and
  tried again after twice the interval, then twice as long each time, ten seconds at most.
* After `Watch.stop`, which a signal handler may call, the loop ends without waiting for the cluster.
* It asks and nothing else: ListGroups, DescribeGroups and ConsumerGroupDescribe, OffsetFetch, ListOffsets,
  DescribeCluster, with the FindCoordinator and Metadata they need. It sends no JoinGroup, Heartbeat, LeaveGroup or
  OffsetCommit, so no group has it as a member and none rebalances because of it.
* A poll ends in bounded time, also without any broker, and `stop` interrupts it.
* The cluster counts as silent only if no broker answers: one that was stopped leaves its own groups unanswered.
* A client of librdkafka (2.16) whose coordinator was away gets no answer from it any more, so a client that was not
  answered is replaced by a new one.
* A group that is listed as Empty, and was described so, is not described again; offsets are read every
  `offsets_every_s`.

Classic groups of another protocol type than ``consumer``, as those of Connect, are not shown by librdkafka.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, TimeoutError
from typing import Any, Final, Protocol, TextIO

from kcoord_wire.clients.librdkafka import Cluster, error_text
from kcoord_wire.watch.groups import Watched
from kcoord_wire.watch.polled_group import Change, lines_of
from kcoord_wire.watch.seen import Missed, Place, Poll, SeenGroup, SeenMember, Unanswered
from kcoord_wire.watch.view import screen

_LOOK_S: Final = 0.1  # between two looks at whether to stop
_GRACE_S: Final = 1.0  # beyond the timeout that librdkafka keeps by itself
_STATES: Final = {
    "PREPARING_REBALANCING": "PreparingRebalance",
    "COMPLETING_REBALANCING": "CompletingRebalance",
    "STABLE": "Stable",
    "DEAD": "Dead",
    "EMPTY": "Empty",
}
_REFUSED: Final = ("GROUP_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED", "TOPIC_AUTHORIZATION_FAILED")


class WatchError(OSError):
    """The cluster cannot be watched. The text says why, and what to check."""


class Stopped(Exception):
    """The poll was interrupted by `AdminPolls.stop`."""


class AdminPolls:
    """Polls one cluster.

    :param bootstrap: ``host:port``, several with commas
    :param config: settings of librdkafka, mainly for security
    :param groups: only these; None for all
    :param choose: which of the groups that are listed to ask about
    :param patience_s: seconds to wait for the answers to each kind of request
    :param offsets_every_s: seconds between two polls that read offsets, at least
    :raises MissingLibraryError: the extra ``kafka`` is not installed
    :raises WatchError: librdkafka rejects the settings
    """

    def __init__(
        self,
        bootstrap: str,
        config: Mapping[str, str] | None = None,
        *,
        groups: Collection[str] | None = None,
        choose: Callable[[Collection[str]], list[str]] = sorted,
        patience_s: float = 5.0,
        offsets_every_s: float = 5.0,
    ) -> None:
        self.bootstrap = bootstrap
        self.left_out = 0
        self._cluster = Cluster(bootstrap, config, WatchError, "watching a cluster", patience_s)
        self._cluster.result = self._result
        self._kafka = self._cluster.kafka
        self._admin = self._cluster.make_admin()
        self._groups = groups
        self._choose = choose
        self._patience_s = patience_s
        self._offsets_every_s = offsets_every_s
        self._offsets_due = 0.0
        self._known: set[str] = set()
        self._empty: dict[str, SeenGroup] = {}
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Interrupt the poll under way, and each later one; may be called by a signal handler."""
        self._stopping.set()

    def poll(self) -> Poll | Missed:
        """Ask once.

        :raises WatchError: the login is refused; no later attempt can succeed
        :raises Stopped: `stop` was called
        """
        if not self._is_refused():
            self._cluster.complaint = None
        listed = self._list()
        if isinstance(listed, Missed):
            return listed
        now = time.time_ns()
        chosen = self._choose(listed.keys())
        self.left_out = len(listed) - len(chosen)
        groups, unanswered = self._describe(chosen, listed)
        self._known = groups.keys() | unanswered.keys()
        down = [each for each in unanswered.values() if each.kind == "broker down"]
        if down and len(down) == len(chosen) and not self._is_any_answering():
            return self._missed(down[0].text)
        if down:
            self._admin = self._cluster.make_admin()
        committed, ends = self._offsets(groups)
        return Poll(now, groups, unanswered, committed, ends)

    # ---- groups

    def _list(self) -> dict[str, str] | Missed:
        """Return the groups with their states, as all brokers together list them."""
        future = self._admin.list_consumer_groups(request_timeout=self._patience_s)
        try:
            found = self._result(future)
        except self._kafka.KafkaException as error:
            return self._missed(error_text(error))
        listed = {each.group_id: _state_name(each.state) for each in found.valid}
        if found.errors and not listed and not self._is_any_answering():
            return self._missed(error_text(found.errors[0]))
        # A group of a broker that does not answer, or is about to load it, is not listed: ask before it counts as gone.
        listed |= dict.fromkeys(self._known - listed.keys(), "")
        wanted = listed.keys() if self._groups is None else listed.keys() & set(self._groups)
        return {group_id: listed[group_id] for group_id in wanted}

    def _is_any_answering(self) -> bool:
        """Whether any broker answers: one that was stopped may coordinate all groups that there are."""
        self._admin = self._cluster.make_admin()
        try:
            self._result(self._admin.describe_cluster(request_timeout=self._patience_s))
        except self._kafka.KafkaException:
            return False
        return True

    def _describe(
        self, chosen: list[str], listed: Mapping[str, str]
    ) -> tuple[dict[str, SeenGroup], dict[str, Unanswered]]:
        groups = {each: self._empty[each] for each in chosen if listed[each] == "Empty" and each in self._empty}
        asked = [each for each in chosen if each not in groups]
        unanswered = {}
        futures = self._admin.describe_consumer_groups(asked, request_timeout=self._patience_s) if asked else {}
        for group_id, future in futures.items():
            try:
                groups[group_id] = _seen(self._result(future))
            except self._kafka.KafkaException as error:
                if error.args[0].name() != "GROUP_ID_NOT_FOUND":  # by which newer brokers say Dead
                    unanswered[group_id] = _unanswered(error.args[0])
        self._empty = {each: group for each, group in groups.items() if group.state == "Empty"}
        existing = {each: group for each, group in groups.items() if group.state != "Dead"}
        return existing, unanswered

    # ---- offsets

    def _offsets(self, groups: Mapping[str, SeenGroup]) -> tuple[dict[str, dict[Place, int]], dict[Place, int]]:
        if time.monotonic() < self._offsets_due:
            return {}, {}
        self._offsets_due = time.monotonic() + self._offsets_every_s
        committed = self._cluster.committed(self._admin, groups)
        places = {place for offsets in committed.values() for place in offsets}
        places |= {place for group_id in committed for place in groups[group_id].owners()}
        return committed, self._cluster.ends(self._admin, places)

    # ---- waiting, and what goes wrong

    def _result(self, future: Future[Any]) -> Any:
        end = time.monotonic() + self._patience_s + _GRACE_S
        while True:
            try:
                return future.result(_LOOK_S)
            except TimeoutError:
                self._check(end)

    def _check(self, end: float) -> None:
        self._admin.poll(0)  # delivers complaints
        if self._stopping.is_set():
            raise Stopped
        if self._is_refused():
            raise self._cluster.unreachable(None)
        if time.monotonic() > end:
            raise self._kafka.KafkaException(self._kafka.KafkaError(self._kafka.KafkaError._TIMED_OUT))

    def _is_refused(self) -> bool:
        return self._cluster.complaint is not None and self._cluster.is_final(self._cluster.complaint)

    def _missed(self, text: str) -> Missed:
        self._admin.poll(0)
        if self._is_refused():
            raise self._cluster.unreachable(None)
        self._admin = self._cluster.make_admin()
        complaint = self._cluster.complaint
        return Missed(time.time_ns(), self.bootstrap, text if complaint is None else error_text(complaint))


def _state_name(state: Any) -> str:
    return _STATES.get(state.name, "Reconciling")


def _seen(found: Any) -> SeenGroup:
    is_new_protocol = found.type.name == "CONSUMER"
    members = [
        SeenMember(
            member_id=each.member_id,
            client_id=each.client_id or None,
            client_host=(each.host or "").removeprefix("/") or None,
            instance_id=each.group_instance_id or None,
            assigned=_places(each.assignment),
            target=_places(each.target_assignment) if is_new_protocol else None,
        )
        for each in found.members
    ]
    return SeenGroup(
        group_id=found.group_id,
        state=_state_name(found.state),
        protocol="consumer" if is_new_protocol else "classic",
        assignor=found.partition_assignor or None,
        coordinator=None if found.coordinator is None else f"{found.coordinator.host}:{found.coordinator.port}",
        members={each.member_id: each for each in members},
    )


def _places(assignment: Any) -> frozenset[Place]:
    return frozenset() if assignment is None else frozenset((p.topic, p.partition) for p in assignment.topic_partitions)


def _unanswered(error: Any) -> Unanswered:
    if error.name() == "COORDINATOR_LOAD_IN_PROGRESS":
        return Unanswered("loading", error_text(error))
    return Unanswered("refused" if error.name() in _REFUSED else "broker down", error_text(error))


_LONGEST_S: Final = 10.0
_EVENTS: Final = 100  # lines of changes that a screen can show
_HOME, _REST, _LINE = "\x1b[H", "\x1b[J", "\x1b[K\n"  # overwrites without clearing first, so that nothing flickers


class View(Protocol):
    """Where the results of each poll go."""

    def show(self, watched: Watched, changes: list[Change], now: int) -> None:
        """Show what a poll has brought."""


class LineView:
    """One line for each group that has changed."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def show(self, watched: Watched, changes: list[Change], now: int) -> None:
        _write(self._file, (f"{line}\n" for line in lines_of(changes)))


class JsonView:
    """One JSON object for each change.

    :param write: writes an object as a line
    """

    def __init__(self, write: Callable[[dict[str, object]], None], file: TextIO) -> None:
        self._write, self._file = write, file

    def show(self, watched: Watched, changes: list[Change], now: int) -> None:
        for change in changes:
            self._write(change.to_json())
        self._file.flush()


class ScreenView:
    """A terminal, redrawn after each poll.

    :param until_ms: the clients' rebalance timeout, if it is known
    """

    def __init__(self, file: TextIO, until_ms: float | None) -> None:
        self._file, self._until_ms = file, until_ms
        self._recent: deque[str] = deque(maxlen=_EVENTS)

    def show(self, watched: Watched, changes: list[Change], now: int) -> None:
        self._recent += lines_of(changes)
        size = shutil.get_terminal_size()
        lines = screen(
            watched.snapshot,
            list(self._recent),
            source=watched.source,
            now=now,
            height=size.lines - 1,
            width=size.columns,
            until_ms=self._until_ms,
        )
        _write(self._file, [_HOME, *(f"{line}{_LINE}" for line in lines), _REST])


def _write(file: TextIO, parts: Iterable[str]) -> None:
    file.write("".join(parts))
    file.flush()


class Watch:
    """Polls a cluster until it is stopped.

    :param polls: the cluster
    :param watched: takes in what they show
    :param interval_s: seconds from the beginning of a poll to that of the next
    """

    def __init__(self, polls: AdminPolls, watched: Watched, interval_s: float) -> None:
        self._polls, self._watched, self._interval_s = polls, watched, interval_s
        self._stopping = threading.Event()

    def stop(self) -> None:
        """End the loop."""
        self._stopping.set()
        self._polls.stop()

    def run(self, view: View, *, times: int | None = None) -> None:
        """Poll until `stop`.

        :param times: end after so many polls
        :raises WatchError: the first poll is not answered, or the login is refused
        """
        delay = self._interval_s
        count = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                found = self._polls.poll()
            except Stopped:
                return
            if isinstance(found, Missed):
                if self._watched.snapshot.answered_ns is None:
                    raise WatchError(_unreachable(found))
                changes = self._watched.miss(found)
                delay = max(self._interval_s, min(2 * delay, _LONGEST_S))
            else:
                changes = self._watched.update(found, left_out=self._polls.left_out)
                delay = self._interval_s
            view.show(self._watched, changes, time.time_ns())
            count += 1
            if count == times:
                return
            self._stopping.wait(max(began + delay - time.monotonic(), 0))


def _unreachable(missed: Missed) -> str:
    return f"no broker answers at {missed.broker}: {missed.text}; check address, port and security.protocol"
