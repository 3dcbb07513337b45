"""One partition that a member holds: from the immediate heartbeat to the release or the loss. Pure.

Laws:

* The fence: `Holding.fence` is one heartbeat interval after the last heartbeat that landed was sent, by the monotonic
  clock. Then the tenure is over, and nothing more is sent for it. Others may claim after two intervals.
* Heartbeats are sent every 0.25 to 0.73 intervals, again soon if an append fails, and do not wait for each other.
* A release is sent after `StopFetching` and after the application is done with what it was given, or its time is over.
* At least once: `AckTracker.position` is the next offset to consume; every record below it was processed, in any order.
  It never goes back. Offsets may have gaps, as compaction and control records leave them: only what was delivered has
  to be processed. What is held is one offset for each record that was delivered and not yet processed.
* At most once: the position is the end of the last batch that was read back as committed (`AtMostOnce`, the nine steps
  of the document).
* A position is of one topic. Where the broker has topic ids, the holder writes the id of its topic to the log
  (IdentifyingTopic, with `Rules.DOCUMENT`), and a tenure that finds another id there, or an end before the position,
  starts where `MemberSettings.reset` says, with a warning. It fetches nothing before the log has the new position as
  its own. While a topic is held that gets another id, its tenures end (`LossReason.TOPIC_REPLACED`).

Laws of at most once, with `Rules.DOCUMENT`:

* A batch is delivered only after a heartbeat with its end was read back from the log as the holder's. So the next
  holder of the partition starts at or above that end, and no record is delivered twice: also where appends fail, land
  late or land twice, and whichever member stops at whichever step. Two things have to hold: a tenure starts at the
  log's position as it was read after the entry that won it, and retention keeps the last position (else the group's
  committed offset stands in for it, which is best effort).
* An append that did not land, or is not known to have, is repeated while the claim is held: nothing of the batch was
  delivered, and to commit the same end twice changes nothing.
* A partition of the same topic that ends before the position has lost records that were delivered: the tenure starts at
  its end, whatever `MemberSettings.reset` says. Of a topic that was created again, a holder may have delivered records
  before it has heard of the other id; they are delivered again.
* A claim that is lost before the batch was read back as committed drops the batch. If the heartbeat has landed, its
  records are never processed; if not, the next holder fetches them.

With `Rules.LIBRARY` no member can promise this. A heartbeat of any member, however late, overwrites holder and
position: one of a former holder takes the position back behind delivered records, or makes two members pass the check
of step 6. And two readers with different clocks may disagree on who holds the claim. The Go library itself decodes
ClaimingMessages and does nothing.

Sources: Marshal PROTOCOL.md, "Heartbeats", "At Least Once (ALO)", "At Most Once (AMO)"; the Go library's cadence of 15
to 44 s of 60, and its commits over the contiguous processed prefix only.
"""

from __future__ import annotations

import enum
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from kcoord_wire.kernel.procedures import Latch, Latched, Procedure, Sleep, Until
from kcoord_wire.marshal.context import Context, TopicPartition
from kcoord_wire.marshal.inbox import Start, choose_start
from kcoord_wire.marshal.log import Appended, AppendFailed
from kcoord_wire.marshal.member_events import (
    Abandoned,
    Append,
    CommitOffset,
    Deliver,
    Delivered,
    Delivery,
    Fetched,
    FetchFailed,
    FindStart,
    LossReason,
    Processed,
    ReadToEnd,
    Reset,
    StartFailed,
    StartFetching,
    StopFetching,
    Tenure,
)
from kcoord_wire.marshal.world_state import Claim, Rules
from kcoord_wire.messages.marshal import ClaimingMessages, Heartbeat, IdentifyingTopic, ReleasingPartition

RETRY_MS: Final = 250
"""How long the procedure waits before it repeats an append."""


class AtMostOnce:
    """The batches of one tenure, one after the other.

    :param position: of the log after the entry that won the tenure: no record from there on was delivered
    :param start: runs a procedure of the machine
    """

    def __init__(self, held: Holding, position: int, start: Callable[[Procedure], Any]) -> None:
        self._held = held
        self._position = position
        self._start = start
        self._batches: deque[Fetched] = deque()

    def fetched(self, batch: Fetched) -> None:
        """Step 2, 3: a batch was fetched, and waits until those before it are done."""
        self._batches.append(batch)
        if len(self._batches) == 1:
            self._start(self._commit_all())

    def _commit_all(self) -> Procedure:
        while self._batches and (yield from self._commit(self._batches[0])):
            self._batches.popleft()

    def _commit(self, batch: Fetched) -> Generator[Any, Any, bool]:
        """Commit a batch and let it be delivered; return False if the tenure is over."""
        held = self._held
        if batch.first < self._position:
            held.give_up(f"the batch starts at offset {batch.first}, and {self._position} is committed")
            return False
        while held.claim() is not None:  # step 1
            if (yield from self._propose(batch.end)):  # steps 4 to 7
                yield from held.heartbeat(batch.end)  # step 8
                yield ReadToEnd(held.coordination_partition)
                if (claim := held.claim()) is None:
                    return False
                if claim.current_offset >= batch.end:
                    self._position = batch.end
                    held.deliver(batch.end)  # step 9
                    return True
            yield Sleep(RETRY_MS)
        return False

    def _propose(self, end: int) -> Generator[Any, Any, bool]:
        """Steps 4 to 7: return whether the claim is held, and the claim of the messages is in the log."""
        held = self._held
        yield Append(held.coordination_partition, held.message(ClaimingMessages, proposed_current_offset=end))  # 4
        yield ReadToEnd(held.coordination_partition)  # step 5
        claim = held.claim()  # step 6
        return claim is not None and claim.proposed_offset == end  # step 7


class PrefixError(ValueError):
    """Records were delivered or processed that this tenure cannot have; nothing has changed."""


class AckTracker:
    """The records of one tenure that are with the application.

    :param start: offset at which the tenure has begun to fetch
    """

    __slots__ = ("_end", "_start", "_unprocessed")

    def __init__(self, start: int) -> None:
        self._start = self._end = start
        self._unprocessed: OrderedDict[int, None] = OrderedDict()  # its first key costs O(1), also behind removed ones

    @property
    def position(self) -> int:
        """The next offset to consume."""
        return next(iter(self._unprocessed), self._end)

    @property
    def in_flight(self) -> int:
        """How many records were delivered and not yet processed."""
        return len(self._unprocessed)

    def delivered(self, offsets: Sequence[int], end: int) -> None:
        """Note that the application got records, before it can process one of them.

        :param offsets: of the records, in order; none where a batch held only control records
        :param end: the offset from which the next fetch reads, above all of them
        :raises PrefixError: an offset is not above those before it, or below the start
        """
        last = self._end - 1
        for offset in offsets:
            if offset <= last:
                raise PrefixError(f"a record at offset {offset} was delivered where {last + 1} or above comes next")
            last = offset
        if end <= last:
            raise PrefixError(f"the next fetch reads from offset {end}, not from {last + 1} or above")
        self._unprocessed.update(dict.fromkeys(offsets))
        self._end = end

    def processed(self, offset: int) -> None:
        """Note that the application has processed a record.

        :raises PrefixError: it was processed before, or was not delivered in this tenure
        """
        if offset not in self._unprocessed:
            raise PrefixError(f"the record at offset {offset} {self._why_not(offset)}")
        del self._unprocessed[offset]

    def _why_not(self, offset: int) -> str:
        if offset < self._start:
            return f"was not delivered: the tenure has started at offset {self._start}"
        if offset >= self._end:
            return f"was not delivered: the next one is at offset {self._end} or above"
        return "was processed before, or there is none"


_IDENTIFY_EACH: Final = 8
"""Heartbeats from one IdentifyingTopic to the next: less than six intervals, so that a log which keeps ten, as
`kafka_log.check_topic` wants, has one of each holder whose claim has become stale."""
_SOONEST: Final = 0.25  # of a heartbeat interval, from one heartbeat to the next
_LATEST: Final = 0.73
_SECOND_MS: Final = 1_000  # the unit of times in messages
_UNFIT: Final = (LossReason.FETCH_FAILED, LossReason.TOPIC_REPLACED)
"""The position may be none that the partition has."""
_DRAINED: Final = (LossReason.RELEASED, LossReason.KEPT, LossReason.HANDED_OVER, LossReason.PAUSED)
_RENEWED: Final = (LossReason.KEPT, LossReason.DONE)
"""Ends with a last heartbeat, and not with a release."""


class Phase(enum.Enum):
    """Where a tenure is."""

    STARTING = "finding the start"
    HELD = "held"
    DRAINING = "draining"
    LEAVING = "releasing"
    OVER = "over"


class Holding:
    """A tenure of this member.

    :param offset: next to consume, by the log; 0 for unknown
    :param claimed_at: stamp of the message that won it
    :param sent_at: when that was sent, ms
    :param over: called once, with the reason, when the tenure is over
    :ivar fence: ms; from then on the tenure is over, whatever the log says
    :ivar end_offset: behind the last offset of a range; None for a partition
    """

    renews: ClassVar[type] = Heartbeat
    releases: ClassVar[type] = ReleasingPartition
    end_offset: int | None = None

    def __init__(
        self,
        context: Context,
        tenure: Tenure,
        offset: int,
        claimed_at: int,
        sent_at: int,
        over: Callable[[Holding, LossReason], None],
    ) -> None:
        self.tenure = tenure
        self.place = TopicPartition(tenure.topic, tenure.partition)
        self.coordination_partition = context.coordinating(tenure.topic)
        self.claimed_at = claimed_at
        self.phase = Phase.STARTING
        self.fence = sent_at + context.interval_ms
        self.prefix: AckTracker | None = None
        self._context = context
        self._offset = offset
        self._over = over
        self._why = LossReason.RELEASED
        self._drain_ms = 0
        self._is_failing = False
        self._topic_id = ""
        self._is_restarting = False
        self._identify_in = 0  # heartbeats
        self._batches: AtMostOnce | None = None
        self._leave, self._drained, self._failed = Latch(), Latch(), Latch()
        self._fence = context.fences.start(self.fence, partial(self.end, LossReason.EXPIRED))
        self._beats: list[Procedure] = []
        self._life: Procedure | None = None

    @property
    def position(self) -> int:
        """The next offset to consume."""
        return self._offset if self.prefix is None else self.prefix.position

    def is_open(self, now: int) -> bool:
        """Return whether the application may work on records."""
        return now < self.fence and self.phase in (Phase.HELD, Phase.DRAINING)

    def begin(self) -> None:
        """Send the first heartbeat, and start to consume."""
        self._beat(self._heartbeats())
        self._life = self._context.procedures.start(self._live(), self._context.now)

    def release(self, why: LossReason, drain_ms: int = -1) -> None:
        """End the tenure in order: stop, drain, release.

        :param drain_ms: how long the application may take; -1 for the setting
        """
        if not self._leave.is_open:
            self._why = why
            self._drain_ms = self._context.settings.drain_ms if drain_ms < 0 else drain_ms
            self._leave.open()

    def end(self, why: LossReason) -> None:
        """End the tenure at once; nothing more is sent for it. Not to be called by a procedure of this tenure."""
        if self._life is not None:
            self._context.procedures.cancel(self._life)
        if self.phase is Phase.HELD or (self.phase is Phase.DRAINING and self._why in _DRAINED):
            self._stop(why, self._context.now)
        self._finish(why)

    def claim(self) -> Claim | None:
        """Return the claim as the log was read so far; None once nothing more may be delivered."""
        return self._claim_in_log() if self.phase is Phase.HELD and self._context.now < self.fence else None

    def check(self) -> None:
        """Compare with the log, after it has new entries about the partition."""
        if self._claim_in_log() is None and self.phase is not Phase.LEAVING:
            self.end(LossReason.TAKEN)

    def _claim_in_log(self) -> Claim | None:
        claim = self._context.claim(self.place)
        is_own = claim is not None and claim.instance_id == self._context.settings.instance_id
        is_same = is_own and claim is not None and claim.token == self.tenure.token and claim.last_heartbeat
        return claim if is_same else None

    # ---- what the application does

    def fetched(self, event: Fetched) -> None:
        """At most once: a batch waits for its commit."""
        if self.phase is Phase.HELD and self._batches is not None:
            self._batches.fetched(event)

    def deliver(self, end: int) -> None:
        """At most once: the batch up to `end` is committed."""
        assert self.prefix is not None
        self.prefix.delivered((), end)
        self._context.emit(Deliver(self.tenure, end))
        self._commit(end)

    def give_up(self, reason: str) -> None:
        """At most once: the batches that were fetched can never be delivered."""
        self._note(logging.ERROR, "batch is not deliverable", reason=reason)
        self.release(LossReason.FETCH_FAILED)

    def delivered(self, event: Delivered) -> None:
        """The application has got records."""
        self._track(lambda prefix: prefix.delivered(event.offsets, event.end))

    def processed(self, event: Processed) -> None:
        """The application has processed records."""
        for offset in event.offsets:
            self._track(partial(AckTracker.processed, offset=offset))
        if self.phase is Phase.DRAINING and self.prefix is not None and not self.prefix.in_flight:
            self._drained.open()

    def abandoned(self, _event: Abandoned) -> None:
        """The application processes nothing more of what it has."""
        self._drained.open()

    def fetch_failed(self, event: FetchFailed) -> None:
        """The records cannot be fetched."""
        self._note(logging.ERROR, "fetch failed", reason=event.reason)
        self.release(LossReason.FETCH_FAILED)

    def topic_is(self, topic_id: str) -> None:
        """The topic has this id now; empty if that is not known."""
        if topic_id and self._topic_id and topic_id != self._topic_id and not self._leave.is_open:
            self._note(logging.WARNING, "topic created again", id=topic_id, was=self._topic_id)
            self.release(LossReason.TOPIC_REPLACED)

    # ---- from the first heartbeat to the release

    def _live(self) -> Procedure:
        start = yield from self._find_start(self._offset)
        if start is None:
            self.release(LossReason.FETCH_FAILED)
        else:
            committed = start.offset if start.is_reset else max(self._offset, start.offset)
            self._batches = AtMostOnce(self, committed, self._beat)
            self._offset = start.offset
            yield from self._agree(start)
        if not self._leave.is_open:
            yield from self._consume()
        yield from self._say_goodbye()

    @property
    def _is_by_document(self) -> bool:
        return self._context.settings.rules is Rules.DOCUMENT

    def _find_start(self, position: int) -> Generator[Any, Any, Start | None]:
        """Return where to start; None if that cannot be found out."""
        found = yield FindStart(self.tenure, position <= 0)
        if isinstance(found, StartFailed):
            self._note(logging.ERROR, "no start", reason=found.reason)
            return None
        claim, settings = self._context.claim(self.place), self._context.settings
        former = self._topic_id or (claim.topic_id if claim is not None else "")
        is_known = bool(former and found.topic_id)
        is_replaced = is_known and former != found.topic_id
        is_truncated = is_known and not is_replaced and settings.delivery is Delivery.AT_MOST_ONCE
        reset = Reset.LATEST if is_truncated else settings.reset
        start = choose_start(position, found.committed, found.low, found.end, reset, is_replaced=is_replaced)
        if start.note:
            self._note(logging.WARNING, "start moved", reason=start.note, start=start.offset)
        self._topic_id = found.topic_id
        return start._replace(is_reset=start.is_reset and not is_truncated)

    def _agree(self, start: Start) -> Procedure:
        """Read back from the log, before anything is fetched, which topic its position is of, and a position that was
        reset.

        A heartbeat with the former position that lands later must not count: so the message that resets it is stamped
        later than each that was sent, and none is sent meanwhile.
        """
        if not self._is_by_document:
            return
        self._is_restarting = start.is_reset
        while not (self._leave.is_open or self._has_agreed(start)):
            while start.is_reset and not self._context.can_claim_now(self.place):
                yield Sleep(_SECOND_MS - self._context.wall_ms % _SECOND_MS)
            message = self._identity(start.offset if start.is_reset else -1)
            yield Append(self.coordination_partition, message)
            yield ReadToEnd(self.coordination_partition)
            claim = self._claim_in_log()
            if claim is not None and start.is_reset and claim.claimed_at == message.time:
                self.claimed_at = message.time
                self._context.emit(CommitOffset(self.tenure, start.offset))
                break
            if not self._has_agreed(start):
                yield Sleep(RETRY_MS)
        self._is_restarting = False

    def _has_agreed(self, start: Start) -> bool:
        claim = self._claim_in_log()
        return not start.is_reset and (not self._topic_id or (claim is not None and claim.topic_id == self._topic_id))

    def _identity(self, offset: int = -1) -> IdentifyingTopic:
        message: IdentifyingTopic = self.message(IdentifyingTopic, current_offset=offset, topic_id=self._topic_id)
        return message

    def _consume(self) -> Procedure:
        """ "Consumption", until the tenure is to end."""
        self.prefix = AckTracker(self._offset)
        self.phase = Phase.HELD
        self._context.emit(StartFetching(self.tenure, self._offset, self.end_offset))
        self._beat(self._identify())
        yield Latched(self._leave)
        drain_ms = self._drain_ms if self._why in _DRAINED else 0
        self.phase = Phase.DRAINING
        self._stop(self._why, self._context.now + drain_ms)
        if self.prefix.in_flight and drain_ms:
            yield Latched(self._drained, within_ms=drain_ms)
        if self._why in _UNFIT:
            # A position that the partition does not have would fail for the next holder, too.
            start = yield from self._find_start(self.position)
            if start is not None:
                self.prefix = AckTracker(start.offset)

    def _say_goodbye(self) -> Procedure:
        """Release the claim in the log, or prolong it if it is kept, until that has landed or the fence is there."""
        self._stop_heartbeats()
        self.phase = Phase.LEAVING
        kind = self.renews if self._why in _RENEWED else self.releases
        while isinstance((yield self._append(kind, self.position)), AppendFailed):
            yield Sleep(self._context.retry_ms)
        yield from self._said_goodbye()
        self._finish(self._why)

    def _said_goodbye(self) -> Procedure:
        """The last message has landed. It is read back, else an entry of another before it would make the claim look
        like one that nothing works on, and a second release would have the position of before."""
        self._commit(self.position)
        yield ReadToEnd(self.coordination_partition)

    def _stop(self, why: LossReason, deadline: int) -> None:
        self._context.emit(StopFetching(self.tenure, why, deadline))

    def _finish(self, why: LossReason) -> None:
        self._stop_heartbeats()
        self._fence.cancel()
        self.phase = Phase.OVER
        self._note(logging.INFO, "tenure ended", why=why.value, position=self.position)
        self._over(self, why)

    # ---- heartbeats

    def _heartbeats(self) -> Procedure:
        soonest, latest = (int(self._context.interval_ms * part) for part in (_SOONEST, _LATEST))
        while True:
            if self._is_restarting:
                yield Until(lambda: not self._is_restarting)
            self._failed = Latch()
            self._beat(self._heartbeat())
            has_failed = yield Latched(self._failed, within_ms=self._context.jitter(soonest, latest))
            if has_failed:
                yield Sleep(self._context.retry_ms)

    def _heartbeat(self) -> Procedure:
        position, is_start_known = self.position, self.prefix is not None
        if isinstance((yield from self.heartbeat(position)), AppendFailed):
            self._failed.open()
        elif is_start_known:  # else it is the log's position, which may be 0 for unknown
            self._commit(position)
            self._identify_in -= 1
            if self._identify_in <= 0:
                self._beat(self._identify())

    def _identify(self) -> Procedure:
        """Say which topic the position is of."""
        if self._topic_id and self._is_by_document:
            self._identify_in = _IDENTIFY_EACH
            if isinstance((yield Append(self.coordination_partition, self._identity())), AppendFailed):
                self._identify_in = 0

    def heartbeat(self, offset: int) -> Generator[Any, Any, Appended | AppendFailed]:
        """Append a heartbeat that commits an offset; the fence moves once it has landed."""
        sent_at = self._context.now
        answer: Appended | AppendFailed = yield self._append(self.renews, offset)
        if isinstance(answer, AppendFailed):
            if not self._is_failing:
                self._note(logging.WARNING, "heartbeat failed", reason=answer.reason)
            self._is_failing = True
        else:
            self._is_failing = False
            self.fence = max(self.fence, sent_at + self._context.interval_ms)
            self._fence = self._context.fences.move(self._fence, self.fence)
        return answer

    def _beat(self, procedure: Procedure) -> None:
        procedures = self._context.procedures
        started = procedures.start(procedure, self._context.now)
        self._beats = [each for each in (*self._beats, started) if procedures.is_running(each)]

    def _stop_heartbeats(self) -> None:
        for each in self._beats:
            self._context.procedures.cancel(each)
        self._beats = []

    # ---- small parts

    def message(self, kind: type, **fields: Any) -> Any:
        """Return a message about the partition, of this tenure."""
        return self._context.message(kind, self.place, not_before=self.claimed_at, **fields)

    def _append(self, kind: type, offset: int) -> Append:
        return Append(self.coordination_partition, self.message(kind, current_offset=offset))

    def _commit(self, position: int) -> None:
        if self.prefix is not None:  # before that the start is not known
            self._context.emit(CommitOffset(self.tenure, position))

    def _track(self, change: Callable[[AckTracker], None]) -> None:
        if self.prefix is None or self.phase not in (Phase.HELD, Phase.DRAINING):
            return
        try:
            change(self.prefix)
        except PrefixError as error:
            self._note(logging.ERROR, "records not tracked", reason=str(error))
        if self.phase is Phase.HELD and self.position == self.end_offset:
            self.release(LossReason.DONE)

    def _note(self, level: int, what: str, **facts: object) -> None:
        self._context.note(level, what, **self.tenure._asdict(), **facts)
