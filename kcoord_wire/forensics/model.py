"""The tables between the stages of the pipeline, each row type declared once.

    frames -> exchanges, topics  -> GroupHistory -> the tables of a report
    records (the offsets log)    -> GroupHistory -> the same tables

Laws:

* A table is a dataclass here; `arrow_schema` gives its Arrow schema, and Spark's follows from that.
* Times are nanoseconds since 1970 (int64, ``_ns``), durations milliseconds (``_ms``). An interval is from its first
  moment to before its last; None as the end means that the source ended first.
* A row names members as the coordinator does (member id) and as people do (client id, host, instance id).
* What the source cannot tell is None, never a guess; a guess is a `Rebalance.cause` with its confidence and evidence.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from kcoord_wire.extras import require

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "Cause",
    "CommitRow",
    "Departure",
    "Evidence",
    "Exchange",
    "Finding",
    "Frame",
    "Generation",
    "GroupHistory",
    "GroupSummary",
    "LeaderAssignment",
    "LogRow",
    "Loss",
    "MemberLife",
    "MemberSubscription",
    "Offered",
    "OffsetsCommitted",
    "Ownership",
    "Pause",
    "Rebalance",
    "RemovedMember",
    "StateInterval",
    "Subscription",
    "TopicPartitions",
    "TopicSighting",
    "arrow_schema",
    "table_of",
]


# ---- what comes in


@dataclass(slots=True)
class Frame:
    """A frame as a source gives it, undecoded.

    :ivar source: name of the file it is from
    :ivar seq: its number in the source, from 0, in the order in which frames were complete
    :ivar position: where in the source: byte of the file (recording), number of the frame (pcap)
    :ivar connection: ``client_ip:port-broker_ip:port#n``; unique within the source
    :ivar direction: ``request`` or ``response``; ``opened`` and ``closed`` have no frame; ``damage`` is what belongs to
        no frame, and has a connection only where the file was sound but the connection was not
    :ivar frame: header and message, without the four bytes of size; empty where `direction` is ``damage``
    :ivar error: why bytes at this place are no frame. A request or response with an error is cut: it lacks its end
    :ivar lost: how many bytes `error` is about, of the file or of the connection
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


@dataclass(slots=True)
class LogRow:
    """A record of ``__consumer_offsets``, undecoded.

    :ivar source: name of the segment, or ``topic-partition`` of a live one
    :ivar time_ns: the record's timestamp
    :ivar error: why bytes at this place are no record; `offset` is -1 then
    :ivar lost: how many bytes of the file `error` is about
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


@dataclass(slots=True)
class Loss:
    """What could not be read, and where."""

    source: str
    position: int
    what: str
    bytes: int
    count: int = 1


# ---- requests with their responses


@dataclass(slots=True)
class TopicPartitions:
    """Partitions of one topic."""

    topic: str
    partitions: list[int]


@dataclass(slots=True)
class Subscription:
    """A consumer's subscription (ConsumerProtocolSubscription). `metadata` is the blob it was read from.

    :ivar topics: None: the blob does not decode, or the protocol type is not ``consumer``
    """

    topics: list[str] | None
    owned: list[TopicPartitions] | None
    generation_id: int | None
    rack_id: str | None
    metadata: bytes


@dataclass(slots=True)
class Offered:
    """An assignor that a JoinGroup request offers, best first, with the subscription it goes with."""

    assignor: str
    subscription: Subscription


@dataclass(slots=True)
class MemberSubscription:
    """A member in the JoinGroup response of the leader."""

    member_id: str
    instance_id: str | None
    subscription: Subscription


@dataclass(slots=True)
class LeaderAssignment:
    """What the leader gives a member in its SyncGroup request; None: the blob does not decode."""

    member_id: str
    partitions: list[TopicPartitions] | None


@dataclass(slots=True)
class Departure:
    """A member of a LeaveGroup request, with its part of the response."""

    member_id: str
    instance_id: str | None
    reason: str | None
    error_code: int | None


@dataclass(slots=True)
class OffsetsCommitted:
    """The offset of one partition, as a group commits or fetches it. `error_code`: None where it was not answered."""

    topic: str
    partition: int
    offset: int
    error_code: int | None


@dataclass(slots=True)
class Exchange:
    """A request about one group and its response, flat; fields of other apis are None.

    Apis: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, OffsetCommit, OffsetFetch, FindCoordinator (a row a group),
    ConsumerGroupHeartbeat. A request that names several groups (OffsetFetch 8, FindCoordinator 4) is several rows.

    :ivar source: as of `Frame`, with `seq` of the request and `answer_seq` of the response
    :ivar client_host: the client's address, without port
    :ivar asked_ns: when the request was complete; `answered_ns` the response, None where there is none
    :ivar error_code: of the response; of OffsetCommit and OffsetFetch the first that is not 0; None without response
    :ivar member_id: as in the request; empty: the member has none yet
    :ivar generation_id: as in the request; the member epoch of ConsumerGroupHeartbeat
    :ivar reason: JoinGroup 8 and newer (KIP-800)
    :ivar offered: JoinGroup: the assignors with their subscriptions
    :ivar given_member_id: the member id in the response of JoinGroup or ConsumerGroupHeartbeat
    :ivar new_generation_id: in the response of JoinGroup; the member epoch in that of ConsumerGroupHeartbeat
    :ivar assignor: that JoinGroup's response has chosen; the server assignor that ConsumerGroupHeartbeat asks for
    :ivar members: JoinGroup's response to the leader: all members; empty for others
    :ivar assignments: SyncGroup's request of the leader: who gets what; empty for others
    :ivar assignment: what the response of SyncGroup or ConsumerGroupHeartbeat gives this member; None: nothing said
    :ivar topics: ConsumerGroupHeartbeat: the subscription; `owned` what the member says it has; None: unchanged
    :ivar coordinator: FindCoordinator's answer, ``host:port``
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
    members: list[MemberSubscription] | None = None
    assignments: list[LeaderAssignment] | None = None
    assignment: list[TopicPartitions] | None = None
    departures: list[Departure] | None = None
    offsets: list[OffsetsCommitted] | None = None
    topics: list[str] | None = None
    topic_regex: str | None = None
    owned: list[TopicPartitions] | None = None
    coordinator: str | None = None


@dataclass(slots=True)
class TopicSighting:
    """How many partitions a Metadata response gave a topic; a row where a connection saw it first or saw it changed.

    A row with an empty topic is a connection that was closed, of `client_id`.
    """

    time_ns: int
    source: str
    connection: str
    client_id: str | None
    topic: str
    topic_id: str | None
    partitions: int


# ---- what comes out


class Cause(enum.StrEnum):
    """Why a rebalance began. The first that fits, read from the top, where several do."""

    COORDINATOR_FAILOVER = "coordinator failover"  # the group was loaded anew; members found it again and rejoined
    POLL_TIMEOUT = "max.poll.interval.ms exceeded"  # the client itself left, because the application did not poll
    STATIC_REPLACED = "static member replaced"  # a new process with a known group.instance.id (KIP-345)
    REBALANCE_TIMEOUT = "rebalance timeout"  # who had missed the join of an earlier generation came back
    NEW_MEMBER = "new member"
    MEMBER_LEFT = "member left"
    SESSION_EXPIRED = "session timeout"
    SYNC_EXPIRED = "sync timeout"  # who had joined did not sync within the rebalance timeout (KAFKA-9752)
    COOPERATIVE_FOLLOW_UP = "second round of a cooperative rebalance"  # what was revoked is to be given out (KIP-429)
    TOPICS_CHANGED = "topic metadata changed"  # the leader saw topics or partitions come or go
    SUBSCRIPTION_CHANGED = "subscription changed"
    ASSIGNORS_CHANGED = "list of assignors changed"
    LEADER_REJOINED = "leader rejoined"
    GROUP_TOO_LARGE = "group larger than group.max.size"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Evidence:
    """A fact behind a claim.

    :ivar seq: of the frame in the source, or the offset of the record
    """

    time_ns: int
    source: str
    seq: int
    text: str


@dataclass(slots=True)
class RemovedMember:
    """A member that a rebalance has cost. `why`: as of `kcoord_wire.coordinator.Removal`."""

    member_id: str
    client_id: str | None
    client_host: str | None
    why: str


@dataclass(slots=True)
class Rebalance:
    """One rebalance: from what set it off to the members being at work again.

    :ivar number: from 1, within the group
    :ivar generation_id: that it led to; None where it was cut short before
    :ivar started_ns: when what set it off was seen, or the first sign of it
    :ivar joined_ns: when the joins were answered; `ended_ns` when the last member had its assignment
    :ivar outcome: ``stable``, ``empty``, ``interrupted`` (another began before the leader's SyncGroup), ``open``
    :ivar member_id: who set it off, with client id, host, instance id and, KIP-800, stated reason
    :ivar detail: the cause in a sentence
    :ivar confidence: 0 to 1; 1 is what the source says outright
    :ivar assignor: that was chosen
    :ivar cooperative: whether members keep what they own meanwhile (KIP-429); None where it cannot be told
    :ivar joining_ms: until the joins were answered; `syncing_ms` from there until all had their assignment
    :ivar last_member_id: who joined last, `late_ms` after the one before it
    :ivar moved: partitions whose owner changed; `moved_needlessly` of them from a member that stayed, although it did
        not have more than its share, or that came back to their former owner after a pause
    :ivar paused_ms: time in which partitions had no owner, summed over the partitions
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


@dataclass(slots=True)
class Generation:
    """A generation of a group (its epoch, KIP-848). `partitions`: how many were assigned."""

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
    """A group was in a state: Empty, PreparingRebalance (joining), CompletingRebalance (awaiting sync), Stable; for
    KIP-848 Empty, Assigning, Reconciling, Stable."""

    group_id: str
    state: str
    from_ns: int
    to_ns: int | None
    generation_id: int | None


@dataclass(slots=True)
class MemberLife:
    """A member id, from its first sign to its last.

    :ivar left_ns: when it left or was removed; `why_left` as of `RemovedMember.why`; None: it was there to the end
    :ivar why_left: ``left``, ``poll timeout``, ``session timeout``, ``rebalance timeout``, ``sync timeout``,
        ``replaced`` (static), ``group.max.size``, ``coordinator failover`` (an id that the lost coordinator had not
        written down); ``left or timed out`` where a log does not tell
    :ivar assignors: that it offers, best first
    :ivar protocol: ``classic`` or ``consumer`` (KIP-848)
    :ivar library: what the versions and blobs it sends tell of its client library; None: nothing certain
    """

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str | None
    client_host: str | None
    joined_ns: int
    left_ns: int | None
    why_left: str | None
    last_seen_ns: int
    first_generation_id: int | None
    last_generation_id: int | None
    session_timeout_ms: int | None
    rebalance_timeout_ms: int | None
    assignors: list[str]
    topics: list[str]
    protocol: str = "classic"
    library: str | None = None


@dataclass(slots=True)
class Ownership:
    """A member held a partition: from its SyncGroup response to the loss of it. Eager members give all up when they
    rejoin; cooperative ones what the next assignment takes from them."""

    group_id: str
    topic: str
    partition: int
    member_id: str
    client_id: str | None
    generation_id: int | None
    from_ns: int
    to_ns: int | None


@dataclass(slots=True)
class Pause:
    """A partition that had been held was held by nobody. `rebalance`: number of the rebalance it belongs to."""

    group_id: str
    topic: str
    partition: int
    from_ns: int
    to_ns: int | None
    former_member_id: str
    next_member_id: str | None
    rebalance: int | None


@dataclass(slots=True)
class CommitRow:
    """The commits of one partition in one minute (`minute_ns`: its start)."""

    group_id: str
    topic: str
    partition: int
    minute_ns: int
    commits: int
    errors: int
    first_offset: int
    last_offset: int
    member_id: str | None


@dataclass(slots=True)
class Finding:
    """What a detector has found.

    :ivar detector: its module's name
    :ivar severity: ``info``, ``warning`` or ``critical``
    :ivar subject: the member, client or partition it is about; None: the group
    :ivar text: a sentence for people; `advice` what to do about it
    :ivar value: what was measured; `threshold` from where on the detector speaks
    :ivar rebalances: numbers of those it is about
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


@dataclass(slots=True)
class GroupSummary:
    """One group in one row. `origin`: ``wire`` or ``log``; `blind` what this source cannot tell of it, in sentences."""

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
    paused_ms: float
    blind: list[str]


@dataclass(slots=True)
class GroupHistory:
    """All that a source tells of one group; each list in order of time. The tables of a report, by attribute name."""

    group: GroupSummary
    rebalances: list[Rebalance] = field(default_factory=list)
    generations: list[Generation] = field(default_factory=list)
    states: list[StateInterval] = field(default_factory=list)
    members: list[MemberLife] = field(default_factory=list)
    ownership: list[Ownership] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)
    commits: list[CommitRow] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


# ---- Arrow


@cache
def arrow_schema(row: type) -> pa.Schema:
    """The Arrow schema of a row type: a field that may be None is nullable, a nested dataclass is a struct.

    :raises MissingLibraryError: the extra ``analyze`` is not installed
    """
    return _arrow().schema(_fields(row))


def table_of(row: type, rows: list[Any]) -> pa.Table:
    """An Arrow table of dataclass instances."""
    schema = arrow_schema(row)
    names = [field.name for field in dataclasses.fields(row)]
    columns = [
        _arrow().array([_plain(getattr(item, name)) for item in rows], type=schema.field(name).type) for name in names
    ]
    return _arrow().Table.from_arrays(columns, schema=schema)


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


_SIZES = {"generation_id": "int32", "new_generation_id": "int32", "partition": "int32", "partitions": "int32"}
_SIZES |= {"error_code": "int16", "api_version": "int16"}


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
