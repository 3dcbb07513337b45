"""The admin: what pausing a group and setting its position share, and the pause itself. Pure.

Laws:

* ReleaseGroup has version 0, as the Go library's former admin wrote it; no reader looks at the version.
* A pause ends by itself, within `LONGEST_PAUSE_MS`.
* An admin's client id is its own, so that no member takes its claims for those of a former process (fast reclaim), or
  for a reuse of its id.

Source: Marshal PROTOCOL.md, ReleaseGroup; the Go library's admin, from August 2016 to May 2017.
"""

from __future__ import annotations

import enum
from abc import abstractmethod
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kcoord_wire.kernel.machines import Ended, Machine, Shutdown
from kcoord_wire.kernel.procedures import Procedure, Sleep
from kcoord_wire.marshal.context import Context, TopicPartition
from kcoord_wire.marshal.events import Append, CaughtUp, Entries, MemberSettings, WallClock
from kcoord_wire.marshal.log import Appended, AppendFailed
from kcoord_wire.marshal.state import ADMIN_PREFIX, Entry, Outcome, Rules
from kcoord_wire.messages.marshal import ReleaseGroup

LONGEST_PAUSE_MS: Final = 7 * 86_400_000
"""A pause ends by itself, also if its admin is gone; a longer one takes a second ReleaseGroup."""
ATTEMPTS: Final = 5
"""Of an append, or of a round of releases."""


class Step(enum.StrEnum):
    """What the admin does."""

    READ = "reading the log"
    PAUSE = "pausing the group"
    WAIT = "waiting until the partitions are unclaimed"
    CLAIM = "claiming"
    COMMIT = "committing to Kafka"
    RELEASE = "releasing"
    RESUME = "resuming the group"


class Result(enum.StrEnum):
    """What has become of a partition's position."""

    SET = "set"
    KEPT = "kept"
    UNKNOWN = "unknown"  # the release may be in the log, now or later: the old one or the new one


@dataclass(frozen=True, slots=True)
class AdminSettings:
    """Of an admin. The group id was checked (`values.check_id`).

    :ivar instance_id: eight random hex digits
    :ivar partitions: of the coordination topic
    :ivar pause_ms: how long the group is paused at most; 0 for `wait_ms` and four heartbeat intervals
    :ivar wait_ms: how long its partitions may take to be unclaimed; 0 for three heartbeat intervals: a dead member's
        claims are stale after two
    """

    group_id: str
    instance_id: str
    partitions: int
    rules: Rules = Rules.DOCUMENT
    heartbeat_interval_ms: int = 60_000
    pause_ms: int = 0
    wait_ms: int = 0

    @property
    def longest_wait_ms(self) -> int:
        """`wait_ms`, or its default."""
        return self.wait_ms or 3 * self.heartbeat_interval_ms

    @property
    def longest_pause_ms(self) -> int:
        """`pause_ms`, or its default."""
        return self.pause_ms or self.longest_wait_ms + 4 * self.heartbeat_interval_ms

    @property
    def grace_ms(self) -> int:
        """For how long after the pause members may still finish what they have begun."""
        return self.heartbeat_interval_ms

    @property
    def client_id(self) -> str:
        """Unique, so that no other client takes over the admin's claims by it."""
        return f"{ADMIN_PREFIX}{self.instance_id}"


# ---- an event, beside those of events.py


@dataclass(slots=True)
class PositionsCommitted:
    """The answer to `CommitPositions`."""

    request: int


@dataclass(slots=True)
class CommitFailed:
    """The other answer to `CommitPositions`; some of the offsets may be committed."""

    request: int
    reason: str


# ---- effects, beside those of events.py


@dataclass(slots=True)
class CommitPositions:
    """Commit offsets of the group in Kafka."""

    offsets: Mapping[TopicPartition, int]
    request: int = 0


@dataclass(frozen=True, slots=True)
class Progressed:
    """For the person who waits.

    :ivar done: of `of` partitions
    :ivar waiting_for: in words; empty if nothing is waited for
    """

    step: Step
    done: int
    of: int
    waiting_for: str = ""


@dataclass(frozen=True, slots=True)
class Moved:
    """What has become of one partition.

    :ivar old: position in the log before; 0 for unknown
    """

    place: TopicPartition
    old: int
    new: int
    result: Result


@dataclass(frozen=True, slots=True)
class Finished:
    """The last effect before `machines.Ended`.

    :ivar failure: why the new positions were not set, or not all of them; empty if they were
    :ivar paused_until: the resumption has failed, so the group is paused until then, ms since the Unix epoch; 0 if not
    """

    failure: str
    positions: Sequence[Moved]
    paused_until: int = 0


class FailedStep(Exception):
    """The positions cannot be set."""


class Admin(Machine):
    """What pausing and setting positions share.

    :ivar reads: the coordination partitions that it reads
    """

    reads: Collection[int] = ()

    def __init__(self, settings: AdminSettings) -> None:
        if not 0 < settings.longest_pause_ms <= LONGEST_PAUSE_MS:
            raise ValueError(f"a pause lasts between 1 ms and 7 days, not {settings.longest_pause_ms} ms")
        self.settings = settings
        self._context = Context(
            MemberSettings(
                group_id=settings.group_id,
                client_id=settings.client_id,
                instance_id=settings.instance_id,
                topics=(),
                partitions=settings.partitions,
                rules=settings.rules,
                heartbeat_interval_ms=settings.heartbeat_interval_ms,
            )
        )
        self._has_begun = False
        self._failure = ""

    @property
    def deadline(self) -> int | None:
        return self._context.procedures.deadline

    def handle(self, event: Any, now: int) -> Sequence[Any]:
        context = self._context
        context.now = now
        if isinstance(event, WallClock):
            context.ahead_ms = event.ahead_ms
            if not self._has_begun:
                self._has_begun = True
                context.procedures.start(self._run(), now)
        elif isinstance(event, Entries):
            for entry in event.entries:
                self._entry(entry)
        elif isinstance(event, Shutdown):
            self._shutdown()
        elif isinstance(event, Appended | AppendFailed | CaughtUp | PositionsCommitted | CommitFailed):
            context.procedures.answered(event.request, event, now)
        context.procedures.advance(now)
        effects, context.effects = context.effects, []
        return effects

    @abstractmethod
    def _run(self) -> Procedure:
        """Do what this admin is for."""

    def _entry(self, entry: Entry) -> Outcome:
        context = self._context
        outcome = context.state.apply(entry, context.wall_ms // 1_000)
        context.read_at[entry.partition] = context.now
        return outcome

    def _fail(self, reason: str) -> None:
        """Fail for the first reason."""
        self._failure = self._failure or reason

    def _shutdown(self) -> None:
        """The person who waits wants to end."""
        self._fail("it was interrupted")

    def _check(self) -> None:
        if self._failure:
            raise FailedStep(self._failure)

    def _release_group(self, partition: int, until_ms: int) -> Append:
        group = TopicPartition("", 0)
        return Append(partition, self._context.message(ReleaseGroup, group, msg_expire_time=until_ms // 1_000))

    def _append_all(self, make: Callable[[int], Append], partitions: Collection[int]) -> Generator[Any, Any, str]:
        """Append to each partition, and again where that fails; return why one has failed at last, or an empty str."""
        left, reason = list(partitions), ""
        for _ in range(ATTEMPTS):
            answers = yield [make(partition) for partition in left]
            failed = [index for index, answer in enumerate(answers) if isinstance(answer, AppendFailed)]
            if not failed:
                return ""
            reason = answers[failed[0]].reason
            left = [left[index] for index in failed]
            yield Sleep(self._context.retry_ms)
        return f"coordination partition {left[0]}: {reason}"


class GroupPauser(Admin):
    """Pauses a group until a time, or ends its pause: ReleaseGroup on coordination partitions.

    :param until_ms: by the wall clock, ms since the Unix epoch; 0 ends a pause
    :param partitions: coordination partitions to write to; all of them reach every member
    """

    def __init__(self, settings: AdminSettings, until_ms: int, partitions: Collection[int]) -> None:
        super().__init__(settings)
        self._until_ms = until_ms
        self._partitions = sorted(partitions)

    def _run(self) -> Procedure:
        until_ms, now_ms = self._until_ms, self._context.wall_ms
        if until_ms and not 0 < until_ms - now_ms <= LONGEST_PAUSE_MS:
            failure = "a pause ends in the future, within 7 days"
        else:
            at = until_ms or now_ms
            failure = yield from self._append_all(lambda each: self._release_group(each, at), self._partitions)
        self._context.emit(Finished(failure, (), 0 if failure else until_ms))
        self._context.emit(Ended())
