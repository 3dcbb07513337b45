"""The tables between the stages of the pipeline, each row type declared once.

    frames -> exchanges, topics  -> GroupHistory -> the tables of a report
    records (the offsets log, or
        Marshal's topic)         -> GroupHistory -> the same tables
    lines of text (logs of brokers and clients) -> GroupHistory -> the same tables

Laws:

* A table is a dataclass here; `arrow_schema` derives its Arrow schema, and Spark's schema follows from that.
* A column ``_ns`` is a time in nanoseconds since 1970 UTC (int64); ``_ms`` is a duration in milliseconds. An interval
  includes its first moment and excludes its last; an end of None means that the source ended first.
* A row names a member as the coordinator does (member id) and as people do (client id, host, instance id).
* What the source does not show is None, never a guess; only `Rebalance.cause` may be inferred, and carries its
  confidence and evidence.

Columns with one meaning in every table:

================= ==========================================================================================
``source``        name of the file, or ``topic-partition`` of a live topic; for exchanges and sightings in a rotated
                  capture, its first file
``seq``           number of the frame in its source, ascending in the order in which frames were complete: it counts the
                  rows of a recording from 0; in a capture it is made of the number of the packet, and goes on in the
                  next file of a rotated one (`capture.frames.RawFrames.number`)
``position``      place in the source: byte of a recording or segment; in a capture the number of the packet, from 1 as
                  Wireshark counts (``frame.number``), as long as no damage of the file lies before it
``connection``    ``client_ip:port-broker_ip:port#n``, unique within the source; in a capture n is the number of the
                  connection's first packet, over all files of a rotated one
``group_id``      the consumer group
``member_id``     id assigned by the coordinator
``instance_id``   the client's group.instance.id (KIP-345); None for a dynamic member
``client_id``     the client's client.id
``client_host``   address of the client, without port
``generation_id`` generation of a classic group, epoch of a KIP-848 group,
``topic``         name of the topic, or ``id:`` and the topic id in hex where the source never names it
``partition``     number of the partition
``error_code``    Kafka's error code, see `kcoord_wire.ErrorCode`; 0 is success
================= ==========================================================================================
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kcoord_wire.extras import require

if TYPE_CHECKING:
    import pyarrow as pa

NS_PER_MS: Final = 1_000_000
_INT64: Final = 2**63 - 1

EPOCH_APIS: Final[Mapping[str, str]] = types.MappingProxyType(
    {"ConsumerGroupHeartbeat": "consumer", "ShareGroupHeartbeat": "share", "StreamsGroupHeartbeat": "streams"}
)
"""The heartbeats of groups whose coordinator assigns (KIP-848, KIP-932, KIP-1071), with the protocol types."""

BROKER_IN_NAME: Final = r"-(?P<broker>[^-]*)#\d+$"
"""The broker's address in the name of a connection."""


def client_host(connection: str) -> str:
    """Return the client's address, without its port, from the name of a connection, as `Frame.connection` has it."""
    return connection.partition("-")[0].rpartition(":")[0].strip("[]")


def broker_address(connection: str) -> str:
    """Return the broker's address, ``host:port``, in the name of a connection."""
    return connection.partition("-")[2].rpartition("#")[0]


# ---- what comes in


@dataclass(slots=True)
class Frame:
    """One undecoded frame, or an event of its connection.

    :ivar time_ns: when the frame was complete
    :ivar direction: ``request`` or ``response``; ``opened``, ``closed``, ``reset`` (broken off), ``refused`` (a
        connection that was never made) and ``resent`` (bytes that were sent again and again without an
        acknowledgement) carry no frame; ``damage`` is bytes outside any frame, with a connection only
        where the file was sound and the connection was not
    :ivar frame: header and message, without the four bytes of size; empty for ``damage``
    :ivar error: why the bytes here are not a frame. A request or response with an error lacks its end. ``refused``:
        why, as far as the source knows
    :ivar lost: bytes that `error` refers to, of the file or of the connection
    :ivar by: ``closed``, ``reset``: which side ended the connection, ``client`` or ``broker``; ``damage``: whose bytes
        are missing; None where that is not known
    :ivar since_ns: ``damage``: the bytes that are missing, or not understood, were sent between this time and
        `time_ns`, and frames about a group may be among them; None where they hide nothing of the kind (data of Fetch
        or Produce, bytes sent on a closed connection, a connection that is not Kafka's). ``resent``: when they were
        sent first
    :ivar capture: the first file of the rotated capture that `source` is a file of; None where it is none
    """

    source: str
    seq: int
    position: int
    time_ns: int
    connection: str
    direction: str
    frame: bytes
    error: str | None = None
    lost: int = 0
    by: str | None = None
    since_ns: int | None = None
    capture: str | None = None


@dataclass(slots=True)
class LogRow:
    """One undecoded record of ``__consumer_offsets``, or of Marshal's coordination topic.

    :ivar partition: of that topic; -1 where the segment's folder does not name it
    :ivar offset: of the record; -1 for damage
    :ivar position: byte at which its batch begins; the offset, for a live topic
    :ivar time_ns: timestamp of the record
    :ivar key: key of the record; None for a record without one
    :ivar value: value of the record; None deletes the key (a tombstone)
    :ivar error: why the bytes here are not a usable record
    :ivar lost: bytes of the file that `error` refers to
    :ivar is_append_time: the broker has set `time_ns` when it appended the record (``message.timestamp.type``)
    """

    source: str
    partition: int
    offset: int
    position: int
    time_ns: int
    key: bytes | None
    value: bytes | None
    error: str | None = None
    lost: int = 0
    is_append_time: bool = False


@dataclass(slots=True)
class LogLine:
    """A line of a broker's or a client's own log that says something of a group.

    A column is None where the line does not say it, nor, for the client and its group, the lines of that client before.

    :ivar position: byte at which the line begins in its source
    :ivar time_ns: as the line states it, else what wraps it (docker, kubectl, a log shipper), else the line before it
    :ivar is_zoned: the time has a zone; otherwise it was read in the zone that the reader was given
    :ivar program: ``broker``, ``java``, ``librdkafka``, ``kafkajs``, ``aiokafka``, ``kafka-python``, ``sarama``,
        ``franz-go``; empty for damage
    :ivar kind: what it says, a name in `kcoord_wire.forensics.lines.meanings`; empty for damage
    :ivar text: the line without time and wrapping
    :ivar coordinator: id of the broker that wrote it
    :ivar state: of the group, or of the member
    :ivar reason: as the line states it; members' ids where it lists some
    :ivar members: how many the group has
    :ivar assignor: that was chosen
    :ivar other_id: a second member id: of the leader, or of the member that is replaced
    :ivar timeout_ms: session timeout of the member, where the line states it
    :ivar took_ms: a duration that the line states; from one poll to the next where it states by how much that exceeded
        max.poll.interval.ms
    :ivar error: why the bytes here are no usable line
    :ivar lost: bytes that `error` refers to
    """

    source: str
    position: int
    time_ns: int
    is_zoned: bool
    program: str
    kind: str
    text: str
    group_id: str | None = None
    member_id: str | None = None
    instance_id: str | None = None
    client_id: str | None = None
    client_host: str | None = None
    generation_id: int | None = None
    coordinator: str | None = None
    state: str | None = None
    reason: str | None = None
    members: int | None = None
    assignor: str | None = None
    other_id: str | None = None
    timeout_ms: int | None = None
    took_ms: int | None = None
    error: str | None = None
    lost: int = 0


@dataclass(slots=True)
class Loss:
    """Something that could not be read.

    :ivar what: the reason, in a sentence
    :ivar bytes: size of what was lost
    :ivar count: losses that this row stands for
    """

    source: str
    position: int
    what: str
    bytes: int
    count: int = 1


# ---- requests with their responses


@dataclass(slots=True)
class TopicPartitions:
    """Partition numbers of one topic."""

    topic: str
    partitions: list[int]


@dataclass(slots=True)
class Subscription:
    """A consumer's subscription (ConsumerProtocolSubscription).

    :ivar topics: None where the blob does not decode, or the protocol type is not ``consumer``
    :ivar owned: partitions the member claims to own (version 1 and newer)
    :ivar generation_id: generation in which it owned them; -1 for none (version 2 and newer, and before that where the
        assignor is cooperative-sticky)
    :ivar rack_id: rack of the client (version 3 and newer)
    :ivar metadata: the blob itself
    """

    topics: list[str] | None
    owned: list[TopicPartitions] | None
    generation_id: int | None
    rack_id: str | None
    metadata: bytes


@dataclass(slots=True)
class Offered:
    """An assignor that a JoinGroup request offers, with the subscription sent for it; the preferred one comes first."""

    assignor: str
    subscription: Subscription


@dataclass(slots=True)
class JoinedMember:
    """A member in the JoinGroup response to the leader."""

    member_id: str
    instance_id: str | None
    subscription: Subscription


@dataclass(slots=True)
class LeaderAssignment:
    """What the leader assigns to a member in its SyncGroup request; None where the blob does not decode."""

    member_id: str
    partitions: list[TopicPartitions] | None


@dataclass(slots=True)
class Departure:
    """A member named in a LeaveGroup request, with its part of the response.

    :ivar reason: as the client stated it (KIP-800, version 5 and newer)
    :ivar error_code: None without a response
    """

    member_id: str
    instance_id: str | None
    reason: str | None
    error_code: int | None


@dataclass(slots=True)
class OffsetsCommitted:
    """The offset of one partition, committed or fetched. `error_code` is None without a response."""

    topic: str
    partition: int
    offset: int
    error_code: int | None


@dataclass(slots=True)
class Redelivered:
    """Records that a share group has delivered before, and delivers again.

    :ivar deliveries: how often each was delivered, this time included
    """

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    deliveries: int


@dataclass(slots=True)
class Exchange:
    """A request about one group with its response, flat; columns of other APIs are None.

    APIs: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, OffsetCommit, OffsetFetch, FindCoordinator (a row per group),
    those of `EPOCH_APIS`. A request that names several groups (OffsetFetch 8, FindCoordinator 4) becomes several rows.
    Of ShareFetch only those whose response delivers records again.
    Of the designs that stood on ZooKeeper, only what names a group: RegisterConsumer of the 0.8 draft and
    RewriteJoinGroup of the consumer rewrite, with the member and without the response.

    :ivar api: name of the API, ``JoinGroup``
    :ivar seq: of the request
    :ivar answer_seq: `seq` of the response; None without one
    :ivar asked_ns: when the request was complete
    :ivar answered_ns: when the response was complete; None without one
    :ivar error_code: of the response; for OffsetCommit and OffsetFetch the first that is not 0; None without a response
    :ivar member_id: in the request; empty while the member has none
    :ivar generation_id: in the request; the member epoch for `EPOCH_APIS`
    :ivar session_timeout_ms: JoinGroup: how long the member may stay silent
    :ivar rebalance_timeout_ms: JoinGroup, `EPOCH_APIS` but share: how long the member may take to rejoin or to revoke
    :ivar reason: JoinGroup 8 and newer (KIP-800): why the client joins
    :ivar protocol_type: JoinGroup, SyncGroup: ``consumer``, ``connect`` ...
    :ivar offered: JoinGroup: the assignors, the preferred one first
    :ivar given_member_id: member id in the response to JoinGroup or `EPOCH_APIS`
    :ivar new_generation_id: generation in the response to JoinGroup; member epoch in that to `EPOCH_APIS`
    :ivar assignor: chosen in the response to JoinGroup; the server assignor requested by ConsumerGroupHeartbeat
    :ivar leader_id: JoinGroup: member id of the leader
    :ivar skip_assignment: JoinGroup 9 and newer (KIP-814): the leader must not compute an assignment
    :ivar members: JoinGroup, to the leader: all members; empty for the others
    :ivar assignments: SyncGroup, from the leader: who gets what; empty for the others
    :ivar assignment: partitions in the response to SyncGroup or `EPOCH_APIS`; None where it has none.
        Of a streams group the active tasks: the subtopology as topic, and the partition
    :ivar departures: LeaveGroup: the members that leave
    :ivar offsets: OffsetCommit, OffsetFetch
    :ivar redelivered: ShareFetch
    :ivar topics: ConsumerGroupHeartbeat, ShareGroupHeartbeat: the subscription; None means unchanged, or a pattern
    :ivar topic_regex: ConsumerGroupHeartbeat: the subscribed pattern; None means unchanged, or topics
    :ivar owned: ConsumerGroupHeartbeat, StreamsGroupHeartbeat: what the member says it owns; None means unchanged
    :ivar coordinator: FindCoordinator: ``host:port``
    :ivar software: name and version that the connection's ApiVersions stated before (KIP-511), ``librdkafka 2.6.0``
    :ivar position: of the request in its source
    :ivar answer_position: of the response; None without one
    :ivar file: of a rotated capture, the one that `position` is in; None where that is `source`
    :ivar answer_file: the one that `answer_position` is in, likewise
    """

    group_id: str
    api: str
    api_version: int
    source: str
    seq: int
    answer_seq: int | None
    connection: str
    client_id: str | None
    client_host: str
    asked_ns: int
    answered_ns: int | None
    error_code: int | None = None
    member_id: str = ""
    instance_id: str | None = None
    generation_id: int | None = None
    session_timeout_ms: int | None = None
    rebalance_timeout_ms: int | None = None
    reason: str | None = None
    protocol_type: str | None = None
    offered: list[Offered] | None = None
    given_member_id: str | None = None
    new_generation_id: int | None = None
    assignor: str | None = None
    leader_id: str | None = None
    skip_assignment: bool | None = None
    members: list[JoinedMember] | None = None
    assignments: list[LeaderAssignment] | None = None
    assignment: list[TopicPartitions] | None = None
    departures: list[Departure] | None = None
    offsets: list[OffsetsCommitted] | None = None
    redelivered: list[Redelivered] | None = None
    topics: list[str] | None = None
    topic_regex: str | None = None
    owned: list[TopicPartitions] | None = None
    coordinator: str | None = None
    software: str | None = None
    position: int | None = None
    answer_position: int | None = None
    file: str | None = None
    answer_file: str | None = None


TLS: Final = "TLS"
"""`Sighting.api` of an ERROR that is about bytes of TLS where a frame was expected, or a TLS handshake that failed."""


class SightingKind(enum.StrEnum):
    """What a `Sighting` is about."""

    TOPIC = "topic"  # in a Metadata response: where a connection sees it first, and where it sees it changed
    CLUSTER = "cluster"  # the id of the cluster in a Metadata response, once per connection
    OPENED = "opened"  # a connection was first seen
    # It ended in order (FIN), whether or not RST follows. The time is that of the first FIN, so that frames which were
    # under way may come after it. The kernel closes, or resets, the connections of a process that is killed; a host
    # that disappears closes nothing.
    CLOSED = "closed"
    RESET = "reset"  # it was broken off (RST)
    # A client could not connect: nothing listens (RST, at once), or nothing answers (its SYN is repeated). Each attempt
    # is a connection of its own; the time is that of its first SYN.
    REFUSED = "refused"
    # Bytes were sent again and again without an acknowledgement, from `Sighting.since_ns` on; the time is that of the
    # acknowledgement in the end, or of the end of the connection or source. (A frozen process still acknowledges.)
    RESENT = "resent"
    HOLE = "hole"  # bytes of a connection, or with an empty name of any, are missing: see `Sighting.since_ns`
    # A request outside any group was answered with an error. ApiVersions: on a connection where nothing else was ever
    # answered; Metadata: one topic's; SaslHandshake, SaslAuthenticate. A response of any API that throttles its client
    # counts as THROTTLING_QUOTA_EXCEEDED (`Sighting.throttle_ms`). Bytes of TLS on a connection without it count as one
    # of the API ``TLS``, without an error code; so does a connection whose TLS handshake failed.
    ERROR = "error"
    # A partition in a Fetch, ListOffsets or Produce response, at most once a second per connection.
    FETCHED = "fetched"


@dataclass(slots=True)
class Sighting:
    """What frames show besides the exchanges of groups; columns of other kinds are None.

    :ivar kind: a value of `SightingKind`
    :ivar topic: TOPIC, FETCHED; ERROR of Metadata
    :ivar topic_id: TOPIC, FETCHED: in hex, 32 digits; None where the version has none (before KIP-516)
    :ivar partitions: TOPIC: how many the topic has; 0 where it does not exist
    :ivar partition: FETCHED
    :ivar end_offset: FETCHED: the high watermark, -1 where the response has none; of Produce the least that it can be
    :ivar start_offset: FETCHED: offset of the first record that is left
    :ivar fetch_offset: FETCHED: where the client reads, from its request; None where the request does not say
    :ivar size: FETCHED: bytes of records that the response announces, whether or not they came
    :ivar by: CLOSED, RESET: which side ended the connection, ``client`` or ``broker``; HOLE: whose bytes are missing;
        RESENT, ERROR of TLS: whose bytes
    :ivar api: ERROR, FETCHED: name of the API
    :ivar error_code: ERROR, FETCHED
    :ivar text: CLUSTER: the id; REFUSED: why, as far as the source knows; HOLE: what is missing, in words;
        RESENT: how often; ERROR of TLS: the alert by which the handshake failed, "" where none is in the clear,
        None for bytes of TLS where a frame was expected
    :ivar since_ns: HOLE: what is missing was sent between this time (the packet before) and `time_ns` (the one behind);
        equal to it where the source does not say when the damage ends. As in `Frame`, holes in which no frame about a
        group can be are left out
    :ivar throttle_ms: ERROR: for how long the broker throttles the client from then on (KIP-219)
    """

    time_ns: int
    source: str
    connection: str
    client_id: str | None
    kind: str
    topic: str | None = None
    topic_id: str | None = None
    partitions: int | None = None
    partition: int | None = None
    end_offset: int | None = None
    start_offset: int | None = None
    fetch_offset: int | None = None
    by: str | None = None
    api: str | None = None
    error_code: int | None = None
    text: str | None = None
    since_ns: int | None = None
    size: int | None = None
    throttle_ms: int | None = None

    @property
    def client(self) -> tuple[str, str]:
        """Client id and host; each is empty where it is not known."""
        return self.client_id or "", client_host(self.connection or "")


# ---- what comes out


@dataclass(slots=True)
class Evidence:
    """A fact behind a claim.

    :ivar seq: of the frame, or offset of the record; -1 for a fact that no single frame shows
    :ivar text: the fact in a sentence
    :ivar position: of the frame in its source: the packet's number as Wireshark counts, or the byte of a recording;
        None where no single frame shows the fact, and for records
    """

    time_ns: int
    source: str
    seq: int
    text: str
    position: int | None = None


@dataclass(slots=True)
class RemovedMember:
    """A member that the group lost in a rebalance. `why` is one of the values of `MemberLife.why_left`."""

    member_id: str
    client_id: str | None
    client_host: str | None
    why: str


@dataclass(slots=True)
class Awaited:
    """A member for which the join phase of a rebalance waited when all others had rejoined, or a reconciliation.

    :ivar from_ns: when the last of the others had rejoined; when it learnt that it had to give up partitions (KIP-848)
    :ivar ms: from then until it joined, had given them up or was removed, or until the source ended
    :ivar end: `MemberLife.end`, ``process died``, ``silent`` ...; of a member that lives ``late`` if it joined late,
        ``revoking`` if it had to give up partitions
    :ivar died_ns: `MemberLife.died_ns`
    """

    member_id: str
    client_id: str | None
    client_host: str | None
    from_ns: int
    ms: float
    end: str
    died_ns: int | None


@dataclass(slots=True)
class Rebalance:
    """One rebalance: from its trigger until the members are at work again.

    :ivar number: from 1, within the group
    :ivar generation_id: that it led to; None where it was cut short before
    :ivar started_ns: when the trigger was seen, or the first sign of it
    :ivar joined_ns: when the joins were answered (KIP-848: when the target assignment was ready)
    :ivar ended_ns: when the last member had its assignment
    :ivar outcome: ``stable``, ``empty``, ``interrupted`` (another began before the leader's SyncGroup), ``open`` (the
        source ended first), ``unseen`` (the last members that the source shows left, and others went on; or a log has
        no line about its end)
    :ivar cause: a value of `Cause`
    :ivar member_id: member that triggered it, with its client id, host and instance id; None where it is not known
    :ivar reason: as that member stated it (KIP-800)
    :ivar detail: the cause in a sentence
    :ivar confidence: 0 to 1; 1 means that the source shows it directly
    :ivar evidence: the facts behind the cause
    :ivar protocol_type: ``consumer``, ``connect`` ...
    :ivar assignor: that was chosen
    :ivar leader_id: member id of the leader; None for KIP-848
    :ivar cooperative: whether members keep what they own meanwhile (KIP-429); None where it is not known
    :ivar duration_ms: from `started_ns` to `ended_ns`
    :ivar joining_ms: from `started_ns` to `joined_ns`
    :ivar syncing_ms: from `joined_ns` to `ended_ns`, where all members got their assignment
    :ivar last_member_id: member that joined last (KIP-848: reached the epoch last), with its client id
        and host
    :ivar late_ms: how long after the second-to-last member it joined
    :ivar members_before: members of the group when it began
    :ivar members_after: members of the group when it ended
    :ivar moved: partitions whose owner changed
    :ivar moved_needlessly: of `moved`, those taken from a member that stayed and had no more than its share, or that
        came back to their former owner after a pause
    :ivar paused_ms: time in which partitions had no owner, summed over the partitions. On the wire a pause that has
        not ended counts until the last frame (wire/ownership.py); in the log only pauses that ended count, and only
        those of cooperative rebalances are known, else it is None (forensics/history.py). None too where members
        that the source does not show may have held them (wire/gaps.py), and for protocol types other than ``consumer``
    :ivar removed: members that the group lost
    :ivar waited_for: whom the join phase, or the reconciliation, waited for, the longest wait first; that of classic
        groups is on the wire only
    :ivar lag_grown: records by which the group fell behind, from its start until the next one: the greatest lag of all
        partitions together, above the greatest of the half minute before it; None where the source does not show it
    :ivar caught_up_ns: when the lag was first back at what it had been; None where it did not grow, or never was
    """

    group_id: str
    number: int
    generation_id: int | None
    started_ns: int
    joined_ns: int | None
    ended_ns: int | None
    outcome: str
    cause: str
    member_id: str | None
    client_id: str | None
    client_host: str | None
    instance_id: str | None
    reason: str | None
    detail: str
    confidence: float
    evidence: list[Evidence]
    protocol_type: str | None = None
    assignor: str | None = None
    leader_id: str | None = None
    cooperative: bool | None = None
    duration_ms: float | None = None
    joining_ms: float | None = None
    syncing_ms: float | None = None
    last_member_id: str | None = None
    last_client_id: str | None = None
    last_client_host: str | None = None
    late_ms: float | None = None
    members_before: int = 0
    members_after: int = 0
    moved: int = 0
    moved_needlessly: int = 0
    paused_ms: float | None = None
    removed: list[RemovedMember] = field(default_factory=list)
    waited_for: list[Awaited] = field(default_factory=list)
    lag_grown: int | None = None
    caught_up_ns: int | None = None


class Identity(NamedTuple):
    """The member that triggered a rebalance, or was last to join it, as the rows name it; None where not known."""

    member_id: str | None = None
    client_id: str | None = None
    client_host: str | None = None
    instance_id: str | None = None


def new_rebalance(
    *,
    group_id: str,
    number: int,
    generation_id: int | None,
    started_ns: int,
    joined_ns: int | None = None,
    ended_ns: int | None = None,
    outcome: str = "open",
    cause: str,
    confidence: float,
    detail: str,
    evidence: list[Evidence],
    trigger: Identity | None = None,
    reason: str | None = None,
    protocol_type: str | None = None,
    assignor: str | None = None,
    leader_id: str | None = None,
    cooperative: bool | None = None,
    members_before: int,
    members_after: int = 0,
    removed: list[RemovedMember] | None = None,
    is_start_known: bool = True,
) -> Rebalance:
    """Make a `Rebalance`; its durations follow from its times. `moved`, `late_ms` and `paused_ms` are set later.

    :param trigger: the member that triggered it
    :param is_start_known: False where `started_ns` is only the first sign of it: the durations from there are None then
    """
    rebalance = Rebalance(
        group_id=group_id,
        number=number,
        generation_id=generation_id,
        started_ns=started_ns,
        joined_ns=joined_ns,
        ended_ns=None,
        outcome=outcome,
        cause=cause,
        **(trigger or Identity())._asdict(),
        reason=reason,
        detail=detail,
        confidence=confidence,
        evidence=evidence,
        protocol_type=protocol_type,
        assignor=assignor,
        leader_id=leader_id,
        cooperative=cooperative,
        members_before=members_before,
        members_after=members_after,
        removed=[] if removed is None else removed,
    )
    if is_start_known and joined_ns is not None:
        rebalance.joining_ms = (joined_ns - started_ns) / NS_PER_MS
    if ended_ns is not None:
        end_rebalance(rebalance, ended_ns, outcome)
    if not is_start_known:
        rebalance.duration_ms = None
    return rebalance


def end_rebalance(rebalance: Rebalance, ended_ns: int, outcome: str) -> None:
    """Set when and how a rebalance ended, and the durations that follow from that."""
    rebalance.ended_ns, rebalance.outcome = ended_ns, outcome
    rebalance.duration_ms = (ended_ns - rebalance.started_ns) / NS_PER_MS
    if outcome == "stable" and rebalance.joined_ns is not None:
        rebalance.syncing_ms = (ended_ns - rebalance.joined_ns) / NS_PER_MS


@dataclass(slots=True)
class Generation:
    """A generation of a group (KIP-848: an epoch; Marshal: an interval in which the same clients hold something,
    Admin API: an assignment, both counted from the source's beginning).

    :ivar joined_ns: when the joins were answered
    :ivar stable_ns: when all members had their assignment; None where that never happened
    :ivar ended_ns: when the next generation began or the group became empty
    :ivar assignor: that was chosen
    :ivar leader_id: member id of the leader; None for KIP-848
    :ivar members: how many members it has
    :ivar partitions: how many were assigned
    """

    group_id: str
    generation_id: int
    joined_ns: int
    stable_ns: int | None
    ended_ns: int | None
    assignor: str | None
    leader_id: str | None
    members: int
    partitions: int


@dataclass(slots=True)
class StateInterval:
    """An interval in which the group was in one state.

    :ivar state: Empty, PreparingRebalance (joining), CompletingRebalance (awaiting the leader's SyncGroup), Stable; for
        KIP-848 Empty, Assigning, Reconciling, Stable; for Marshal Empty, Stable, Paused (ReleaseGroup)
    """

    group_id: str
    state: str
    from_ns: int
    to_ns: int | None
    generation_id: int | None


@dataclass(slots=True)
class MemberLife:
    """The life of one member id.

    The coordinator counts a member until `left_ns`; that its process worked no more since `died_ns` it learns late.

    :ivar joined_ns: when it joined, or was first seen
    :ivar left_ns: when it left or was removed; None where it was there to the end
    :ivar why_left: ``left``, ``poll timeout``, ``session timeout``, ``rebalance timeout``, ``sync timeout``,
        ``replaced`` (static), ``group.max.size``, ``coordinator failover`` (an id that the lost coordinator had not
        written to its log), ``outage`` (its session ended while no member was answered); ``left or timed out`` where a
        log does not show which; ``removal`` where a client's own log says no more than that
    :ivar last_seen_ns: last sign of it
    :ivar first_generation_id: first generation it was in
    :ivar last_generation_id: last generation it was in
    :ivar session_timeout_ms: how long it may stay silent
    :ivar rebalance_timeout_ms: how long it may take to rejoin, or to give up partitions
    :ivar assignors: that it offers, the preferred one first
    :ivar topics: that it subscribes to
    :ivar protocol: ``classic``, ``consumer`` (KIP-848) or ``marshal``
    :ivar library: client library, inferred from the versions and blobs it sends; None where they leave several
    :ivar software: its software and version as it states them (KIP-511), ``librdkafka 2.6.0``; None where it does not
    :ivar clock_ahead_ms: Marshal: how far the clock in its messages is ahead of the broker's, or, where the topic has
        no append times, of the group's median member; negative: behind, by so much at most
    :ivar died_ns: since when its process did nothing for the group, although the coordinator did not know: its
        connection ended, or its last sign of life; None where that did not happen, or is not known
    :ivar end: how it ended: ``left`` (LeaveGroup), ``process died`` (the client's side ended its connections without
        LeaveGroup, and no request had the member id again), ``process ended`` (the same of a client that sends no
        LeaveGroup when it is closed: a static member, Kafka Streams), ``gone`` (the same where bytes are missing, so
        that a LeaveGroup may be among them), ``silent`` (it sent nothing: a frozen process, or the network), ``cut
        off`` (what it and its broker sent was not acknowledged); None where it was there to the end, or is not known.
        Of the last two, one whose `last_seen_ns` is later than `died_ns` came back
    """

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str | None
    client_host: str | None
    joined_ns: int
    left_ns: int | None = None
    why_left: str | None = None
    last_seen_ns: int = 0
    first_generation_id: int | None = None
    last_generation_id: int | None = None
    session_timeout_ms: int | None = None
    rebalance_timeout_ms: int | None = None
    assignors: list[str] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)
    protocol: str = "classic"
    library: str | None = None
    software: str | None = None
    clock_ahead_ms: int | None = None
    died_ns: int | None = None
    end: str | None = None

    @property
    def over_ns(self) -> int:
        """When the member was removed, or was seen last."""
        return self.last_seen_ns if self.left_ns is None else self.left_ns

    def is_there(self, at_ns: int) -> bool:
        """Whether the coordinator counts the member at a time: from `joined_ns` on, and before `left_ns`."""
        return self.joined_ns <= at_ns and (self.left_ns is None or at_ns < self.left_ns)


@dataclass(slots=True)
class Ownership:
    """An interval in which a member held a partition.

    It begins with the member's SyncGroup response. Eager members give up everything when they rejoin, cooperative ones
    what the next assignment takes from them.

    :ivar generation_id: in which it got the partition
    :ivar dead_from_ns: from then on, its holder was dead (`MemberLife.died_ns`), and the partition paused; None: never
    """

    group_id: str
    topic: str
    partition: int
    member_id: str
    client_id: str | None
    generation_id: int | None
    from_ns: int
    to_ns: int | None
    dead_from_ns: int | None = None


@dataclass(slots=True)
class Pause:
    """An interval in which no member held a partition that had an owner before, or only a dead one.

    :ivar former_member_id: last owner
    :ivar next_member_id: next owner; None where there was none
    :ivar rebalance: number of the rebalance it belongs to
    :ivar dead_until_ns: until then the coordinator took the former owner, which was dead from the beginning of the
        pause, for its owner; None where it was not dead
    """

    group_id: str
    topic: str
    partition: int
    from_ns: int
    to_ns: int | None
    former_member_id: str
    next_member_id: str | None
    rebalance: int | None
    dead_until_ns: int | None = None


@dataclass(slots=True)
class ClaimRow:
    """An interval in which an instance held a partition by a claim in Marshal's coordination log.

    :ivar instance_id: the process; `client_id` is the same after its restart
    :ivar token: offset of the entry with which the claim began, which is a fencing token; -1 if that was trimmed
    :ivar to_ns: when it was given up or, for a stale one, two heartbeat intervals after its last heartbeat; None where
        it is live at the end of the log
    :ivar began: ``claimed``; ``restarted``: another instance of the same client took it over by a heartbeat; ``taken
        over``: another client did; ``resumed``: by a heartbeat without a live claim; the last two only the library's
        rules accept. ``before the log``: its first entry was trimmed
    :ivar ended: ``released``, ``handed over``, ``paused`` (released while ReleaseGroup held), ``stale``, ``taken
        over``, ``open``
    :ivar first_offset: of its first heartbeat or release, the next to consume; -1 where it had none
    :ivar last_offset: of its last
    :ivar heartbeats: how many were accepted
    :ivar longest_gap_ms: between two of them, or from its beginning to the first
    """

    group_id: str
    topic: str
    partition: int
    client_id: str
    instance_id: str
    token: int
    from_ns: int
    to_ns: int | None
    began: str
    ended: str
    first_offset: int = -1
    last_offset: int = -1
    heartbeats: int = 0
    longest_gap_ms: int = 0


class Clock(NamedTuple):
    """A source whose clock differs from that of another.

    :ivar ahead_ns: by how much it is ahead of `reference`; negative where it is behind
    :ivar shown_by: what shows it, in words
    :ivar is_exact: else it lies between bounds
    """

    source: str
    reference: str
    ahead_ns: int
    shown_by: str
    is_exact: bool


@dataclass(slots=True)
class Outage:
    """An interval in which members of the group could not reach a coordinator, or no broker did its work.

    :ivar kind: ``broker down`` (connections reset or refused), ``coordinator moved`` (NOT_COORDINATOR, and the group is
        found elsewhere), ``loading`` (COORDINATOR_LOAD_IN_PROGRESS), ``silence`` (requests of all members stay without
        an answer), ``log not written`` (COORDINATOR_NOT_AVAILABLE from a coordinator that stays), ``host blocked``
        (what one host sends, or is sent, is not acknowledged, while others are answered), ``connection forgotten`` (the
        same of one that had been idle, until the host made another)
    :ivar to_ns: when a member was answered again; None where the source ended first
    :ivar broker: ``host:port`` (of several the first) that could not be reached, or that refused
    :ivar members: member ids concerned
    :ivar rebalance: number of the first rebalance that followed from it; None where there was none
    """

    group_id: str
    kind: str
    from_ns: int
    to_ns: int | None
    broker: str | None
    members: list[str]
    text: str
    rebalance: int | None
    evidence: list[Evidence]


@dataclass(slots=True)
class Hole:
    """An interval in which the source lacks bytes of a connection of the group: frames may have been there.

    :ivar from_ns: of the packet before what is missing
    :ivar to_ns: of the packet behind it; it is part of the interval
    :ivar connection: empty where the source does not say whose bytes are missing
    :ivar by: whose bytes are missing, ``client`` or ``broker``; None where that is not known
    :ivar members: member ids that used the connection
    """

    group_id: str
    from_ns: int
    to_ns: int
    connection: str
    by: str | None
    members: list[str]
    text: str


@dataclass(slots=True)
class Lag:
    """How far a group was behind the end of a partition, at one moment.

    :ivar committed_offset: the last that the group had committed by then; None where the source does not show it
    :ivar fetch_offset: where its owner read; None where the source does not show it
    :ivar end_offset: the high watermark
    :ivar lag: records between the committed offset, else the fetch offset, and the end
    :ivar member_id: owner at that moment
    """

    group_id: str
    topic: str
    partition: int
    time_ns: int
    committed_offset: int | None
    fetch_offset: int | None
    end_offset: int
    lag: int | None
    member_id: str | None


class LagStatus(enum.StrEnum):
    """How a group does on one partition, by the rules of Burrow; see `wire.lag`."""

    OK = "OK"
    WARN = "WARN"  # it commits, and falls behind
    STALLED = "STALLED"  # it commits the same offset again and again, and has not read everything
    STOPPED = "STOPPED"  # it has stopped to commit, and has not read everything
    UNKNOWN = "UNKNOWN"  # the source shows no end, or too few commits


@dataclass(slots=True)
class PartitionState:
    """Where a group is on one partition when the source ends.

    :ivar status: a value of `LagStatus`
    :ivar since_ns: since when it has this status; None for OK and UNKNOWN
    :ivar time_ns: of the last row of `Lag`
    :ivar committed_offset: as in that row, like `fetch_offset`, `end_offset`, `lag` and `member_id`
    :ivar most_lag: the greatest in the source
    :ivar end_ns: when `end_offset` was seen: the end may have moved since
    :ivar read_ns: when the group was last seen to read it, by a Fetch of its owner or a commit; None: never
    """

    group_id: str
    topic: str
    partition: int
    status: str
    since_ns: int | None
    time_ns: int
    committed_offset: int | None
    fetch_offset: int | None
    end_offset: int
    lag: int | None
    most_lag: int | None
    member_id: str | None
    end_ns: int | None = None
    read_ns: int | None = None


class ResetKind(enum.StrEnum):
    """How the position of a group was changed, other than by reading on."""

    ADMIN = "admin"  # by a commit of a client that is no member: kafka-consumer-groups.sh --reset-offsets
    COMMIT = "commit"  # a member has committed less than was committed
    UNSEEN = "unseen"  # the coordinator has less than was committed, or nothing; what changed it is not in the source
    OUT_OF_RANGE = "out of range"  # OFFSET_OUT_OF_RANGE, after which the client reads elsewhere (auto.offset.reset)
    SEEK = "seek"  # the owner reads again what had been committed


@dataclass(slots=True)
class OffsetReset:
    """A position of a group that was changed other than by reading on.

    :ivar kind: a value of `ResetKind`
    :ivar from_offset: where it was
    :ivar to_offset: where it is from then on; None where nothing is committed any more
    :ivar client_id: of the client that did it, with its host and, if it is a member, its member id
    """

    group_id: str
    topic: str
    partition: int
    time_ns: int
    kind: str
    from_offset: int
    to_offset: int | None
    client_id: str | None
    client_host: str | None
    member_id: str | None


@dataclass(slots=True)
class Reread:
    """An offset whose records the owner of its partition was sent more than once, while it held the partition.

    :ivar offset: that it asked for
    :ivar from_ns: of the first response with records from there on
    :ivar to_ns: of the last one
    :ivar times: responses; at least, since one a second counts where the client asks for nothing else meanwhile
    :ivar size: bytes of records that a response announced, at most
    :ivar cut_off: of `times`, those after which the client ended its connection at once
    """

    group_id: str
    topic: str
    partition: int
    offset: int
    from_ns: int
    to_ns: int
    times: int
    size: int
    cut_off: int
    member_id: str
    client_id: str | None


@dataclass(slots=True)
class CommitRow:
    """The commits of one partition in one interval: a minute, or less where the source is short.

    :ivar from_ns: start of the interval, a multiple of its length
    :ivar commits: how many were accepted
    :ivar errors: how many were refused
    :ivar first_offset: first offset committed in it; -1 where all were refused
    :ivar last_offset: last offset committed in it; -1 where all were refused
    :ivar member_id: that committed; None where the source does not show it
    :ivar interval_s: length of the interval; the same for all rows of a group
    """

    group_id: str
    topic: str
    partition: int
    from_ns: int
    commits: int
    errors: int
    first_offset: int
    last_offset: int
    member_id: str | None
    interval_s: int = 60


SEVERITIES: Final = ("critical", "warning", "info")
"""Of findings, the worst first."""


@dataclass(slots=True)
class Finding:
    """What a detector has found.

    :ivar detector: name of the detector, see `kcoord_wire.forensics.detectors.DETECTORS`
    :ivar severity: ``info``, ``warning`` or ``critical``
    :ivar from_ns: first moment of what was found
    :ivar to_ns: last moment of it; None where it lasts to the end of the source
    :ivar subject: member, client or partition concerned; None for the group as a whole
    :ivar text: the finding in a sentence
    :ivar advice: what to do about it
    :ivar value: what was measured, in the unit of `threshold`
    :ivar threshold: value from which on the detector reports
    :ivar rebalances: numbers of the rebalances concerned
    :ivar evidence: the facts behind it
    :ivar known_bugs: bugs of the client's version that do this, ``KAFKA-14639``; see `kcoord_wire.clients.bugs`
    :ivar cost_ms: partition time that it explains: of partitions that had no owner, were not read, or fell behind. What
        a finding nearer to the cause explains, it does not; 0 where it cost none, or that is not known
    """

    group_id: str
    detector: str
    severity: str
    from_ns: int
    to_ns: int | None
    subject: str | None
    text: str
    advice: str
    value: float
    threshold: float
    rebalances: list[int]
    evidence: list[Evidence]
    known_bugs: list[str] = field(default_factory=list)
    cost_ms: float = 0.0

    def until_ns(self, last_ns: int) -> int:
        """When it ends; the end of the source, `last_ns`, where it goes on."""
        return last_ns if self.to_ns is None else self.to_ns


@dataclass(slots=True)
class GroupSummary:
    """One group in one row.

    :ivar origin: ``wire`` (frames), ``log`` (records of ``__consumer_offsets``), ``marshal`` (a coordination topic),
        ``admin`` (polls of the Admin API), ``text`` (lines of logs); ``clients``: no group at all, but what frames show
        of clients in none
    :ivar protocol_type: ``consumer``, ``connect`` ...; ``marshal document`` or ``marshal library``, by the rules that
        judged its log; None where it is not known
    :ivar first_ns: time of the first row about the group
    :ivar last_ns: time of the last row about the group
    :ivar members: member ids seen
    :ivar generations: rows of `Generation`
    :ivar rebalances: rows of `Rebalance`
    :ivar exchanges: rows of `Exchange`; 0 for a log
    :ivar commits: offsets committed, one per partition
    :ivar paused_ms: time in which partitions had no owner, summed over the partitions: on the wire those of the
        rebalances, in the log those of all pauses; None where it is not known, see `Rebalance.paused_ms`
    :ivar blind: what this source cannot show about the group, in sentences
    """

    group_id: str
    origin: str
    protocol_type: str | None
    first_ns: int
    last_ns: int
    members: int
    generations: int
    rebalances: int
    exchanges: int
    commits: int
    paused_ms: float | None
    blind: list[str]


@dataclass(slots=True)
class GroupHistory:
    """Everything a source shows of one group: the tables of a report by attribute name, each in order of time."""

    group: GroupSummary
    rebalances: list[Rebalance] = field(default_factory=list)
    generations: list[Generation] = field(default_factory=list)
    states: list[StateInterval] = field(default_factory=list)
    members: list[MemberLife] = field(default_factory=list)
    ownership: list[Ownership] = field(default_factory=list)
    claims: list[ClaimRow] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)
    commits: list[CommitRow] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    lag: list[Lag] = field(default_factory=list)
    partitions: list[PartitionState] = field(default_factory=list)
    resets: list[OffsetReset] = field(default_factory=list)
    rereads: list[Reread] = field(default_factory=list)
    holes: list[Hole] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


# ---- Arrow


def record_time_ns(timestamp_ms: int) -> int:
    """Return the timestamp of a record in nanoseconds; one that 64 bits cannot hold is cut to what they can."""
    return max(-_INT64, min(_INT64, timestamp_ms * NS_PER_MS))


@cache
def arrow_schema(row: type) -> pa.Schema:
    """Return the Arrow schema of a row type: a column that may be None is nullable, a nested dataclass is a struct.

    :raises MissingLibraryError: the extra ``analyze`` is not installed
    """
    return _arrow().schema(_fields(row))


def table_of(row: type, rows: list[Any]) -> pa.Table:
    """Return an Arrow table of dataclass instances.

    :raises MissingLibraryError: the extra ``analyze`` is not installed
    """
    arrow, schema = _arrow(), arrow_schema(row)
    columns = []
    for column in schema:
        values = map(attrgetter(column.name), rows)
        is_nested = arrow.types.is_nested(column.type)  # the enums here are strings, which Arrow takes as they are
        columns.append(arrow.array(list(map(_plain, values) if is_nested else values), type=column.type))
    return arrow.Table.from_arrays(columns, schema=schema)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    return str(value) if isinstance(value, enum.Enum) else value


def _arrow() -> Any:
    return require("pyarrow", "analyze", "the pipeline")


def _fields(row: type) -> list[pa.Field]:
    hints = typing.get_type_hints(row)
    return [_field(item.name, hints[item.name]) for item in dataclasses.fields(row)]


_SIZES: Final = {  # integer columns that are not int64
    **dict.fromkeys(("generation_id", "new_generation_id", "partition", "partitions"), "int32"),
    **dict.fromkeys(("error_code", "api_version"), "int16"),
}


def _field(name: str, hint: Any) -> pa.Field:
    pa = _arrow()
    nullable = False
    if typing.get_origin(hint) is types.UnionType:
        nullable = True
        (hint,) = (item for item in typing.get_args(hint) if item is not type(None))
    if typing.get_origin(hint) is list:
        (item,) = typing.get_args(hint)
        return pa.field(name, pa.list_(_field(name if item is int else "element", item)), nullable=nullable)
    if dataclasses.is_dataclass(hint):
        return pa.field(name, pa.struct(_fields(typing.cast(type, hint))), nullable=nullable)
    plain = {str: pa.string(), bytes: pa.binary(), float: pa.float64(), bool: pa.bool_()}
    kind = plain.get(hint) or pa.type_for_alias(_SIZES.get(name, "int64"))
    return pa.field(name, kind, nullable=nullable)
