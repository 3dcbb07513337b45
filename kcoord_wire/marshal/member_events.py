"""Events and effects of Marshal's machines: the member (`member.py`) and the admin (`admin.py`).

A machine gets monotonic time: `now` in ms, from any origin. Its wall clock is that time plus what `WallClock` says;
only messages, and the rules of the library, look at it. Fences and deadlines count monotonic time.

`log.Appended` and `log.AppendFailed` are events, too. `Append`, `ReadToEnd` and `FindStart` are requests: a procedure
(`kernel.procedures`) yields them, the machine numbers them, and the answering event is the value of the ``yield``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kcoord_wire.marshal.world_state import Entry, Rules


class Delivery(enum.StrEnum):
    """What a member promises about a record. Source: Marshal PROTOCOL.md, "Consumption"."""

    AT_LEAST_ONCE = "at-least-once"
    AT_MOST_ONCE = "at-most-once"


class Reset(enum.StrEnum):
    """Where a group goes on in a partition that does not have its position."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Balance:
    """How members share partitions evenly: who has too many hands some over. Members that know nothing of it never do.

    :ivar hysteresis: a member gives to one with at least 2 and so many fewer, and from two to one that has none
    :ivar gives_per_round: how many it hands over at once, at most
    :ivar round_ms: from one round to the next
    :ivar handoff_ms: how long it may take from the announcement to the release; after that others may claim it, too
    """

    hysteresis: int = 1
    gives_per_round: int = 1
    round_ms: int = 10_000
    handoff_ms: int = 30_000


RANGE_SIZE: Final = 1_000
"""Offsets: enough that a claim and its heartbeats cost little of a record, and few are repeated by a takeover."""


@dataclass(frozen=True, slots=True)
class RangeClaims:
    """How a member claims ranges of offsets.

    :ivar size: offsets of a range, at most
    :ivar ahead: how many ranges of a partition are held at once: the one that is processed, and those claimed in
        advance; as many more, if others leave some behind below them
    """

    size: int = RANGE_SIZE
    ahead: int = 2


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """Of a member. Ids were checked (`values.check_id`).

    :ivar instance_id: of this process, eight random hex digits
    :ivar partitions: of the coordination topic
    :ivar reset: where to go on if the topic was created again, or ends before the position
    :ivar heartbeat_interval_ms: the same for all members of the topic; the Go library has 60,000
    :ivar fast_reclaim: take up claims of a former process of this client that are fresh
    :ivar max_claims: partitions of each topic at most; 0 for any number
    :ivar greedy: claim everything free in one pass instead of one partition
    :ivar pass_ms: from one look for free partitions to the next, at most; jittered
    :ivar cooldown_ms: how long a partition that this member has released is not claimed again by it; -1 for one
        heartbeat interval
    :ivar claim_timeout_ms: how long a claim may wait for its entry to be read back
    :ivar drain_ms: how long the application may take, once a tenure is to end, to process what it was given
    :ivar presence: send Presence, so that others see this member before it holds anything
    :ivar balance: hand over partitions to members with fewer; needs `presence`
    :ivar ranges: claim ranges of offsets and no partition (`range_claiming`); all members of the group alike
    :ivar skew_ms: from this difference of a sender's clock to the log's on, a member's clock is reported
    """

    group_id: str
    client_id: str
    instance_id: str
    topics: tuple[str, ...]
    partitions: int
    rules: Rules = Rules.DOCUMENT
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    reset: Reset = Reset.EARLIEST
    heartbeat_interval_ms: int = 60_000
    fast_reclaim: bool = True
    max_claims: int = 0
    greedy: bool = False
    pass_ms: int = 3_000
    cooldown_ms: int = -1
    claim_timeout_ms: int = 15_000
    drain_ms: int = 5_000
    presence: bool = False
    balance: Balance | None = None
    ranges: RangeClaims | None = None
    skew_ms: int = 5_000


class Tenure(NamedTuple):
    """One time of holding a partition, or a range of its offsets, from the entry that won it to the loss.

    :ivar token: offset of that entry in its coordination partition. It grows from holder to holder, so a sink that
        remembers the largest one can refuse writes of former holders
    """

    topic: str
    partition: int
    token: int


class LossReason(enum.StrEnum):
    """Why a tenure ended."""

    RELEASED = "released"  # the application wanted it, or the member ends
    KEPT = "kept"  # the member ends and keeps the claim for a restart
    HANDED_OVER = "handed over"
    EXPIRED = "expired"  # no heartbeat has landed for one interval: others may soon claim it
    TAKEN = "taken"  # the log has another holder
    CLIENT_ID_REUSED = "client id reused"  # another instance has this client id
    PAUSED = "paused"  # ReleaseGroup
    FETCH_FAILED = "fetch failed"
    TOPIC_REPLACED = "topic created again"  # its name is that of another topic now
    DONE = "done"  # the whole range was processed


# ---- events, beside machines.Tick, machines.Shutdown, log.Appended and log.AppendFailed


@dataclass(slots=True)
class WallClock:
    """The wall clock, ms since the Unix epoch, is so far ahead of `now`. The first event; again after it was set."""

    ahead_ms: int


@dataclass(slots=True)
class TopicPartitions:
    """What the topics are. After the start, and when it changes.

    :ivar counts: of partitions; 0 for a topic that does not exist
    :ivar ids: that the broker has given to the topics, as text; none where they are not known
    """

    counts: Mapping[str, int]
    ids: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Entries:
    """New entries of the log, those of each coordination partition in order."""

    entries: Sequence[Entry]


@dataclass(slots=True)
class CaughtUp:
    """The answer to `ReadToEnd`: everything below the end at the time of the request was in `Entries`.

    :ivar end: offset behind the last of them
    """

    request: int
    end: int


@dataclass(slots=True)
class StartFound:
    """The answer to `FindStart`.

    :ivar low: the first offset that is there
    :ivar end: the offset behind the last one
    :ivar committed: the group's offset in Kafka, if it was asked for; None for none
    :ivar topic_id: empty where the broker has none
    """

    request: int
    low: int
    end: int
    committed: int | None = None
    topic_id: str = ""


@dataclass(slots=True)
class StartFailed:
    """The other answer to `FindStart`."""

    request: int
    reason: str


@dataclass(slots=True)
class Fetched:
    """A batch has been fetched and waits for `Deliver` (at most once only).

    :ivar end: offset behind its last record
    """

    tenure: Tenure
    first: int
    end: int


@dataclass(slots=True)
class Delivered:
    """The application has got records, none of which was `Processed` yet (at least once only).

    :ivar offsets: of the records, in order
    :ivar end: offset from which the next fetch reads
    """

    tenure: Tenure
    offsets: Sequence[int]
    end: int


@dataclass(slots=True)
class Processed:
    """The application has processed records, in any order (at least once only).

    Hosts collect them, because a machine that handled one event for each record would be slower than the application.

    :ivar offsets: of the records, each of which was `Delivered`
    """

    tenure: Tenure
    offsets: Sequence[int]


@dataclass(slots=True)
class Abandoned:
    """The application processes nothing more of what it has of a tenure: a drain does not wait for it."""

    tenure: Tenure


@dataclass(slots=True)
class FetchFailed:
    """Fetching has failed for good: out of range, no such topic, not authorized."""

    tenure: Tenure
    reason: str


@dataclass(slots=True)
class Release:
    """The application lets go of a partition; `StopFetching` follows, then ReleasingPartition."""

    topic: str
    partition: int


@dataclass(slots=True)
class Suspend:
    """As `machines.Shutdown`, but the claims stay, with a last heartbeat, for a restart of this client within one
    heartbeat interval (the Go library's ``Terminate(false)``)."""


# ---- effects, beside machines.LogEvent and machines.Ended


@dataclass(slots=True)
class Append:
    """Append a message to a coordination partition; `Appended` or `AppendFailed` follows."""

    partition: int
    message: Any
    request: int = 0


@dataclass(slots=True)
class ReadToEnd:
    """Read a coordination partition up to its present end; `CaughtUp` follows."""

    partition: int
    request: int = 0


@dataclass(slots=True)
class FindStart:
    """Find what the partition has, to choose where to start (`inbox.choose_start`). `StartFound` or `StartFailed`
    follows.

    :ivar is_unknown: the log has no position, so the group's committed offset is needed, too
    """

    tenure: Tenure
    is_unknown: bool
    request: int = 0


@dataclass(slots=True)
class StartFetching:
    """The partition is held: its records from this offset on go to the application (at most once: after `Deliver`).

    :ivar end: behind the last offset of a range; None for a partition
    """

    tenure: Tenure
    offset: int
    end: int | None = None


@dataclass(slots=True)
class Deliver:
    """The batch up to `end` is committed: the application may process it (at most once only)."""

    tenure: Tenure
    end: int


@dataclass(slots=True)
class StopFetching:
    """The tenure is over, or will be: fetch nothing more and give nothing more to the application.

    With ``HANDED_OVER``, ``RELEASED``, ``KEPT`` and ``PAUSED`` records that the application has begun may still be
    `Processed` until `deadline`, in ms of `now`; what is processed later is not committed. With the other reasons it is
    too late. A second effect, with such a reason, may cut the time short.
    """

    tenure: Tenure
    why: LossReason
    deadline: int


@dataclass(slots=True)
class CommitOffset:
    """Commit the position for lag tools, as the group's offset in Kafka; best effort, no answer."""

    tenure: Tenure
    offset: int
