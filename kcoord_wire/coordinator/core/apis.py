"""What the coordinator knows of each api, in one row: `APIS`. From the rows follow the answers in which a request has
failed (`refusal`), and how a request is split of which only a part goes on to a machine (`BatchedApi.split`).

To serve another api, or a version: its schema has it, a row here, a handler in the machine that answers it. To change
who may ask: `needs` and `each` of the row. A version from which answers differ has a name at the top.

Laws:

* The shape of an error follows the request and its version: an api that answers by group, topic or partition has the
  error on each of them, and at the top where the version has a field for it.
* Ids by which a client matches the answer (member, group, topic, partition) are those of its request; every other field
  has the value that Kafka sets beside an error.
* The parts of an answer have the order of the request's, whether the machine or a refusal has answered them. A request
  of which no part is left is answered without the machine.

Source: the ``getErrorResponse`` methods in kafka/clients `org.apache.kafka.common.requests`; `KafkaApis.scala`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, is_dataclass, replace
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any, Final, TypeVar, get_args, get_type_hints

from kcoord_wire import messages as m
from kcoord_wire.protocol.api_keys import API_NAMES, ApiKey
from kcoord_wire.protocol.error_codes import ErrorCode

# ---- the versions from which on answers differ, each with the api and the proposal that brought it

# JoinGroup, SyncGroup, LeaveGroup
REBALANCE_TIMEOUT_FROM: Final = 1  # JoinGroup; before that the session timeout counts (KIP-62)
MEMBER_ID_REQUIRED_FROM: Final = 4  # JoinGroup (KIP-394)
NULLABLE_PROTOCOL_FROM: Final = 7  # JoinGroup: an error has null for a protocol, not "" (KIP-559)
SKIP_ASSIGNMENT_FROM: Final = 9  # JoinGroup (KIP-814)
PROTOCOL_NAMED_FROM: Final = 5  # SyncGroup (KIP-559)
BATCH_LEAVE_FROM: Final = 3  # LeaveGroup (KIP-345)

# OffsetCommit, OffsetFetch
GROUP_OFFSETS_FROM: Final = 1  # both; offsets of version 0 were in ZooKeeper
TIMESTAMP_VERSION: Final = 1  # OffsetCommit: the only one in which a client sets the time of a commit
GROUP_NOT_FOUND_FROM: Final = 9  # OffsetCommit (KIP-848)
FETCH_ERROR_FROM: Final = 2  # OffsetFetch: an error of the group is at the top, not on each partition
BATCH_FETCH_FROM: Final = 8  # OffsetFetch (KIP-709)
TOPIC_IDS_FROM: Final = 10  # both (KIP-848)

# FindCoordinator, DescribeGroups, ListGroups
BATCH_FIND_FROM: Final = 4  # FindCoordinator (KIP-699)
SHARE_GROUPS_FROM: Final = 6  # FindCoordinator (KIP-932)
NO_DESCRIPTION_FROM: Final = 6  # DescribeGroups: a group that does not exist is an error, not Dead (KIP-1043)
GROUP_STATE_FROM: Final = 4  # ListGroups (KIP-518)
GROUP_TYPE_FROM: Final = 5  # ListGroups (KIP-848)

# topics
SOFTWARE_NAMED_FROM: Final = 3  # ApiVersions (KIP-511)
FEATURES_FROM_0_FROM: Final = 4  # ApiVersions: lists features whose range begins at 0 (KAFKA-17011)
NULLABLE_TOPIC_NAME_FROM: Final = 12  # Metadata: topics may be asked for by id alone (KIP-516)
TOPIC_UUIDS_FROM: Final = 13  # Produce and Fetch (KIP-516)
ZSTD_FROM: Final = 7  # Produce (KIP-110)
PRODUCE_NAMES_LEADER_FROM: Final = 10  # Produce: the leader beside an error (KIP-951)
FETCH_NAMES_LEADER_FROM: Final = 16  # Fetch: likewise
CREATED_CONFIGS_FROM: Final = 5  # CreateTopics: the answer has the new topic's configs (KIP-525)
FETCH_SESSION_FROM: Final = 7  # Fetch: an error can be at the top (KIP-227)
LEADER_EPOCH_FROM: Final = 4  # ListOffsets (KIP-320)

# transactions
BATCH_ADD_FROM: Final = 4  # AddPartitionsToTxn: several transactions, sent by brokers (KIP-890)
TXN_TOPIC_IDS_FROM: Final = 6  # TxnOffsetCommit (KIP-1319)
BUMPED_FROM: Final = 5  # EndTxn: it raises the producer's epoch (KIP-890)
ADD_TO_TRANSACTION_FROM: Final = {m.ProduceRequest: 12, m.TxnOffsetCommitRequest: 5}
"""The versions from which a write adds its partition to the transaction (KIP-890)."""

ABORTABLE_FROM: Final = {m.ProduceRequest: 11, m.TxnOffsetCommitRequest: 4}
"""The versions that have TRANSACTION_ABORTABLE; before, it is INVALID_TXN_STATE (KIP-890)."""

PRODUCER_FENCED_FROM: Final = {
    m.InitProducerIdRequest: 4,
    m.AddPartitionsToTxnRequest: 2,
    m.AddOffsetsToTxnRequest: 2,
    m.EndTxnRequest: 2,
}
"""The versions that have PRODUCER_FENCED; before, it is INVALID_PRODUCER_EPOCH (KIP-588)."""


# ---- the parts of a row


class Kind(enum.StrEnum):
    """What a request is about, and a permission is for; by the name that rules of permissions have for it."""

    GROUP = "groups"
    TOPIC = "topics"
    TRANSACTION = "transactional_ids"
    CLUSTER = "cluster"
    RESOURCE = "resources"  # what has configs: a topic, a group, or else the cluster


class Operation(enum.IntEnum):
    """An operation, with Kafka's number (AclOperation), which is also its bit in "authorized operations"."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11


Finish = Callable[[Any | None], Any]
"""Makes the whole answer from the machine's, which is None where the machine was not asked."""

Split = tuple[Any | None, Finish | None]
"""What is left of a request, None for nothing; and what makes the whole answer, None where the machine's is that."""

ErrorOf = Callable[[Any], ErrorCode]
"""Returns why a part of a request is refused; NONE if it is not."""

_IDS: Final = (
    "key",
    "name",
    "topic",
    "topic_name",
    "topic_id",
    "partition",
    "partition_index",
    "partition_id",
    "index",
    "group_id",
    "producer_id",
)
_MATCHED: Final = frozenset(
    (*_IDS, "transactional_id", "resource_type", "resource_name")
)  # the ids of an answer's part


class BatchedApi:
    """A list in a request, to which the response has one with a part for each: how such a part tells of an error.

    :param asked: the class that has the list: a request, or a part of it
    :param answered: the class of the answer to that
    :param path: the lists, one within the other: ``topics.partition_indexes=partitions`` where the response's differs
    :param beside: fields beside the error code
    :ivar name: of the request's list
    :ivar answers: the name of the response's list
    :ivar refuse: makes the part of an answer that refuses a part of a request, of that, the version and the error
    """

    def __init__(self, asked: type, answered: type, path: str, beside: Mapping[str, Any]) -> None:
        first, _, rest = path.partition(".")
        self.name, _, name = first.partition("=")
        self.answers = name or self.name
        self._answered = answered
        item, part = item_class(asked, self.name), item_class(answered, self.answers)
        ids = [field for field in get_type_hints(part) if field in _MATCHED]
        known = get_type_hints(item)
        if is_dataclass(item):
            copied = {
                field: field if field in known else "partition" for field in ids if {field, "partition"} & {*known}
            }
        else:
            copied = {ids[0]: ""}
        lists = [BatchedApi(item, part, rest, beside)] if rest else []
        self.refuse = _maker(part, {} if rest else beside, copied, lists, has_code=not rest)

    def items(self, request: Any) -> list[Any]:
        """Return the request's list."""
        return getattr(request, self.name) or []

    def refuse_all(self, request: Any, version: int, error: int) -> list[Any]:
        """Return the parts of an answer in which everything is refused."""
        refuse = self.refuse
        return [refuse(item, version, error) for item in self.items(request)]

    def split(
        self,
        request: Any,
        version: int,
        error_of: ErrorOf,
        *,
        ask_always: bool = False,
        refuse: Callable[[Any, int, int], Any] | None = None,
    ) -> Split:
        """Split a request into the parts that are allowed, and the refusals of the others.

        :param ask_always: the machine is asked even if no part is left
        :param refuse: makes the refusal of a part where it is not `refuse`
        """
        items = self.items(request)
        errors = [error_of(item) for item in items]
        if not any(errors):
            return request, None
        make = refuse or self.refuse
        refused = [make(item, version, error) for item, error in zip(items, errors, strict=True) if error]
        left = [item for item, error in zip(items, errors, strict=True) if not error]
        if not left and not ask_always:
            return refuse_request(self._answered(**{self.answers: refused}))

        def finish(response: Any) -> Any:
            if getattr(response, "error_code", 0):
                return response
            parts = merged(errors, refused, getattr(response, self.answers)) if left else refused
            return replace(response, **{self.answers: parts})

        return replace(request, **{self.name: left}), finish


_Maker = Callable[[Any, int, int], Any]


def _maker(
    answered: type, beside: Mapping[str, Any], copied: Mapping[str, str], lists: Sequence[BatchedApi], *, has_code: bool
) -> _Maker:
    """Return what makes an answer of what was asked, the version and the error.

    :param copied: field of the answer to that of what was asked; empty where that is an id itself
    :param lists: in which the parts of the answer are
    """
    hints = get_type_hints(answered)
    code = _code_field(hints) if has_code else None
    known = {name: value for name, value in beside.items() if name in hints}
    computed = [(name, value) for name, value in known.items() if callable(value)]
    fixed = {name: known[name] for name in known.keys() - dict(computed)}
    sources = [(name, of) for name, of in copied.items() if name not in beside]

    def make(asked: Any, version: int, error: int) -> Any:
        values = fixed.copy()
        if code is not None:
            values[code] = error
        for name, of in sources:
            values[name] = getattr(asked, of) if of else asked
        for name, value in computed:
            values[name] = value(asked, version, error)
        for each in lists:
            values[each.answers] = values.get(each.answers, []) + each.refuse_all(asked, version, error)
        return answered(**values)

    if code is None or fixed or computed or lists or len(sources) > 1 or "" in dict(sources).values():
        return make
    return _short_maker(answered, code, sources)


def _short_maker(answered: type, code: str, sources: Sequence[tuple[str, str]]) -> _Maker:
    """Return what makes an answer of no more than an error code, and one id at most: most answers."""
    if not sources:
        return lambda asked, version, error: answered(**{code: error})
    ((name, of),) = sources
    return lambda asked, version, error: answered(**{name: getattr(asked, of), code: error})


def _code_field(names: Iterable[str]) -> str | None:
    codes = [name for name in names if name.endswith("error_code")]
    return "error_code" if "error_code" in codes else next(iter(codes), None)


def item_class(cls: type, name: str) -> Any:
    """Return the class of the items of a field that is a list."""
    hint = get_type_hints(cls)[name]
    while arguments := get_args(hint):
        hint = arguments[0]
    return hint


def refuse_request(response: Any) -> Split:
    """Answer a request without the machine."""
    return None, lambda _: response


def merged(errors: list[ErrorCode], refused: list[Any], answered: list[Any]) -> list[Any]:
    """Return the answers to the parts of a request in their order; surplus answers come last."""
    refusals, answers = iter(refused), iter(answered)
    ordered = [next(refusals if error else answers, None) for error in errors]
    return [part for part in ordered if part is not None] + list(answers)


def _meaning(item: Any, version: int, error: int) -> str:
    return ErrorCode(error).meaning


def _quota_entity(entry: Any, version: int, error: int) -> list[m.AlterClientQuotasResponseEntityData]:
    return [
        m.AlterClientQuotasResponseEntityData(entity_type=part.entity_type, entity_name=part.entity_name)
        for part in entry.entity
    ]


_TEXT: Final = {"error_message": _meaning}
_ALL: Final = range(1 << 15)
Need = tuple[Kind, Operation]


@dataclass(frozen=True)
class Api:
    """An api that is served.

    :ivar key: its key
    :ivar versions: that are answered
    :ivar parts: the lists of which each item is answered by itself, as `BatchedApi` has paths; without any an error
        stands at the top
    :ivar top: the versions in which an error stands at the top, although there are `parts`
    :ivar both: the versions in which an error stands at the top and on each part
    :ivar beside: fields beside an error code: a value, or a function of the part asked for, the version and the error
    :ivar group: the field that names one group
    :ivar transaction: the field that names a transactional id
    :ivar batch_from: the version from which on the items of the first of `parts` are, or name, groups or transactional
        ids, each of which another broker may coordinate; None if they never are
    :ivar listed: the list of the response from which items of others are left out, and the field that names an item
    :ivar coordinator: whose coordinator answers; None for any broker
    :ivar needs: what the whole request is authorised as; what comes first fails first
    :ivar each: likewise each item of `parts`, or of `listed`
    :ivar names: lists whose length is bounded, because the answer to a name is much larger
    :ivar has_blobs: whether requests have fields that may be large
    """

    key: ApiKey
    versions: range
    _: KW_ONLY
    parts: str = ""
    top: range = range(0)
    both: range = range(0)
    beside: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""
    transaction: str = ""
    batch_from: int | None = None
    listed: tuple[str, str] | None = None
    coordinator: Kind | None = None
    needs: tuple[Need, ...] = ()
    each: Need | None = None
    names: str = ""
    has_blobs: bool = False

    @cached_property
    def request(self) -> type:
        """The class of requests."""
        found: type = getattr(m, API_NAMES[self.key] + "Request")
        return found

    @cached_property
    def response(self) -> type:
        """The class of responses."""
        found: type = getattr(m, API_NAMES[self.key] + "Response")
        return found

    @cached_property
    def batches(self) -> list[BatchedApi]:
        """How the items of `parts` are answered."""
        return [BatchedApi(self.request, self.response, path, self.beside) for path in self.parts.split()]

    def batch_of(self, request: Any) -> BatchedApi:
        """Return that of the lists which a request uses."""
        return next((batch for batch in self.batches if batch.items(request)), self.batches[0])

    @cached_property
    def refuse(self) -> _Maker:
        """What makes the response in which everything has failed, of the request, the version and the error."""
        at_top = _maker(self.response, self.beside, {}, (), has_code=True)
        if not self.parts:
            return at_top
        first = None if self.batch_from is None else 1
        by_part = _maker(self.response, {}, {}, self.batches[first:], has_code=False)
        by_batch = _maker(self.response, {}, {}, self.batches[:first], has_code=False)
        by_all = _maker(self.response, self.beside, {}, self.batches[first:], has_code=True)

        def refuse(request: Any, version: int, error: int) -> Any:
            if version in self.top:
                return at_top(request, version, error)
            if version in self.both:
                return by_all(request, version, error)
            is_batch = self.batch_from is not None and version >= self.batch_from
            return (by_batch if is_batch else by_part)(request, version, error)

        return refuse

    def groups_of(self, request: Any) -> Iterator[str]:
        """Yield the groups that a request names. The keys of FindCoordinator count: they are groups nearly always."""
        if self.group:
            yield getattr(request, self.group)
        if self.batch_from is not None and self.coordinator is not Kind.TRANSACTION:
            yield from map(id_of, self.batches[0].items(request))

    def leave_out(self, is_hidden: Callable[[str], object]) -> Finish:
        """Return what removes the items of `listed` whose id is hidden from an answer."""
        assert self.listed is not None, "there is no list"
        name, key = self.listed

        def finish(response: Any) -> Any:
            return replace(
                response, **{name: [item for item in getattr(response, name) if not is_hidden(getattr(item, key))]}
            )

        return finish


def id_of(item: Any) -> str:
    """Return the group or transactional id that a part of a request is, or names."""
    return item if isinstance(item, str) else item.group_id


# ---- the rows

_READ_GROUP: Final = (Kind.GROUP, Operation.READ)
_DESCRIBE_GROUP: Final = (Kind.GROUP, Operation.DESCRIBE)
_READ_TOPIC: Final = (Kind.TOPIC, Operation.READ)
_DESCRIBE_TOPIC: Final = (Kind.TOPIC, Operation.DESCRIBE)
_DELETE_TOPIC: Final = (Kind.TOPIC, Operation.DELETE)
_WRITE_TRANSACTION: Final = (Kind.TRANSACTION, Operation.WRITE)
_DESCRIBE_TRANSACTION: Final = (Kind.TRANSACTION, Operation.DESCRIBE)
_DESCRIBE_CLUSTER: Final = (Kind.CLUSTER, Operation.DESCRIBE)
_ALTER_CLUSTER: Final = (Kind.CLUSTER, Operation.ALTER)
_OF_MEMBER: Final[dict[str, Any]] = {"group": "group_id", "coordinator": Kind.GROUP}
_OF_GROUPS: Final[dict[str, Any]] = {
    "parts": "group_ids=groups",
    "batch_from": 0,
    "coordinator": Kind.GROUP,
    "each": _DESCRIBE_GROUP,
    "names": "group_ids",
}
_OF_SHARE_STATE: Final[dict[str, Any]] = {
    "parts": "topics=results.partitions",
    "beside": _TEXT,
    "group": "group_id",
    "needs": (_ALTER_CLUSTER,),
    "names": "topics",
    "has_blobs": True,
}
_OF_PRODUCER: Final[dict[str, Any]] = {"transaction": "transactional_id", "coordinator": Kind.TRANSACTION}


_ROWS: Final = (
    Api(
        ApiKey.PRODUCE,
        range(3, 14),
        parts="topic_data=responses.partition_data=partition_responses",
        beside={"base_offset": -1},
        transaction="transactional_id",
        needs=(_WRITE_TRANSACTION,),
        each=(Kind.TOPIC, Operation.WRITE),
        has_blobs=True,
    ),
    Api(
        ApiKey.FETCH,
        range(4, 19),
        parts="topics=responses.partitions",
        top=_ALL[FETCH_SESSION_FROM:],
        beside={"high_watermark": -1, "records": b""},
        each=_READ_TOPIC,
    ),
    Api(ApiKey.LIST_OFFSETS, range(12), parts="topics.partitions", each=_DESCRIBE_TOPIC),
    Api(
        ApiKey.METADATA,
        range(14),
        parts="topics",
        both=_ALL,
        beside={"name": lambda topic, version, error: topic.name or ""},
        each=_DESCRIBE_TOPIC,
    ),
    Api(
        ApiKey.OFFSET_COMMIT, range(11), parts="topics.partitions", needs=(_READ_GROUP,), each=_READ_TOPIC, **_OF_MEMBER
    ),
    Api(
        ApiKey.OFFSET_FETCH,
        range(11),
        parts="groups topics.partition_indexes=partitions",
        top=range(FETCH_ERROR_FROM, BATCH_FETCH_FROM),
        beside={"committed_offset": -1},
        batch_from=BATCH_FETCH_FROM,
        needs=(_DESCRIBE_GROUP,),
        each=_DESCRIBE_TOPIC,
        names="groups",
        **_OF_MEMBER,
    ),
    Api(
        ApiKey.FIND_COORDINATOR,
        range(7),
        parts="coordinator_keys=coordinators",
        top=range(BATCH_FIND_FROM),
        beside={"node_id": -1, "port": -1, **_TEXT},
        group="key",
        batch_from=BATCH_FIND_FROM,
        names="coordinator_keys",
    ),
    Api(
        ApiKey.JOIN_GROUP,
        range(10),
        beside={
            "member_id": lambda request, version, error: request.member_id,
            "protocol_name": lambda request, version, error: None if version >= NULLABLE_PROTOCOL_FROM else "",
        },
        needs=(_READ_GROUP,),
        has_blobs=True,
        **_OF_MEMBER,
    ),
    Api(ApiKey.HEARTBEAT, range(5), needs=(_READ_GROUP,), **_OF_MEMBER),
    Api(ApiKey.LEAVE_GROUP, range(6), needs=(_READ_GROUP,), names="members", **_OF_MEMBER),
    Api(ApiKey.SYNC_GROUP, range(6), needs=(_READ_GROUP,), has_blobs=True, **_OF_MEMBER),
    Api(
        ApiKey.DESCRIBE_GROUPS,
        range(7),
        parts="groups",
        batch_from=0,
        coordinator=Kind.GROUP,
        each=_DESCRIBE_GROUP,
        names="groups",
    ),
    Api(ApiKey.LIST_GROUPS, range(6), listed=("groups", "group_id"), coordinator=Kind.GROUP, each=_DESCRIBE_GROUP),
    Api(ApiKey.SASL_HANDSHAKE, range(2)),
    Api(ApiKey.API_VERSIONS, range(6)),
    Api(
        ApiKey.CREATE_TOPICS,
        range(8),
        parts="topics",
        beside={"error_message": None},
        each=(Kind.TOPIC, Operation.CREATE),
        names="topics",
    ),
    Api(
        ApiKey.DELETE_TOPICS,
        range(7),
        parts="topics=responses topic_names=responses",
        each=_DELETE_TOPIC,
        names="topics topic_names",
    ),
    Api(
        ApiKey.DELETE_RECORDS,
        range(3),
        parts="topics.partitions",
        beside={"low_watermark": -1},
        each=_DELETE_TOPIC,
        names="topics",
    ),
    Api(
        ApiKey.INIT_PRODUCER_ID,
        range(6),  # v6 is in no release yet
        beside={"producer_id": -1, "producer_epoch": -1},
        **_OF_PRODUCER,
    ),
    Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, range(5), parts="topics.partitions", each=_DESCRIBE_TOPIC),
    Api(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        range(6),
        parts="v3_and_below_topics=results_by_topic_v3_and_below.partitions=results_by_partition",
        top=_ALL[BATCH_ADD_FROM:],
        transaction="v3_and_below_transactional_id",
        coordinator=Kind.TRANSACTION,
    ),
    Api(ApiKey.ADD_OFFSETS_TO_TXN, range(5), group="group_id", needs=(_READ_GROUP, _WRITE_TRANSACTION), **_OF_PRODUCER),
    Api(ApiKey.END_TXN, range(6), needs=(_WRITE_TRANSACTION,), **_OF_PRODUCER),
    Api(
        ApiKey.WRITE_TXN_MARKERS,
        range(1, 3),
        parts="markers.topics.partition_indexes=partitions",
        needs=(_ALTER_CLUSTER,),
    ),
    Api(
        ApiKey.TXN_OFFSET_COMMIT,
        range(7),
        parts="topics.partitions",
        transaction="transactional_id",
        needs=(_WRITE_TRANSACTION, _READ_GROUP),
        each=_READ_TOPIC,
        **_OF_MEMBER,
    ),
    Api(ApiKey.DESCRIBE_ACLS, range(4), beside=_TEXT, needs=(_DESCRIBE_CLUSTER,)),
    Api(
        ApiKey.CREATE_ACLS,
        range(4),
        parts="creations=results",
        beside=_TEXT,
        needs=(_ALTER_CLUSTER,),
        names="creations",
    ),
    Api(
        ApiKey.DELETE_ACLS,
        range(4),
        parts="filters=filter_results",
        beside=_TEXT,
        needs=(_ALTER_CLUSTER,),
        names="filters",
    ),
    Api(
        ApiKey.DESCRIBE_CONFIGS,
        range(5),
        parts="resources=results",
        beside=_TEXT,
        each=(Kind.RESOURCE, Operation.DESCRIBE_CONFIGS),
        names="resources",
    ),
    Api(
        ApiKey.ALTER_CONFIGS,
        range(3),
        parts="resources=responses",
        beside=_TEXT,
        each=(Kind.RESOURCE, Operation.ALTER_CONFIGS),
        names="resources",
    ),
    Api(ApiKey.DESCRIBE_LOG_DIRS, range(5), needs=(_DESCRIBE_CLUSTER,)),  # v5 is in no release yet
    Api(ApiKey.SASL_AUTHENTICATE, range(3), beside=_TEXT),
    Api(ApiKey.CREATE_PARTITIONS, range(4), parts="topics=results", each=(Kind.TOPIC, Operation.ALTER), names="topics"),
    Api(
        ApiKey.DELETE_GROUPS,
        range(4),
        parts="groups_names=results",
        batch_from=0,
        coordinator=Kind.GROUP,
        each=(Kind.GROUP, Operation.DELETE),
        names="groups_names",
    ),
    Api(
        ApiKey.ELECT_LEADERS,
        range(3),
        parts="topic_partitions=replica_election_results.partitions=partition_result",
        both=_ALL[1:],
        beside=_TEXT,
        needs=(_ALTER_CLUSTER,),
        names="topic_partitions",
    ),
    Api(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        range(2),
        parts="resources=responses",
        beside=_TEXT,
        each=(Kind.RESOURCE, Operation.ALTER_CONFIGS),
        names="resources",
    ),
    Api(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        range(2),
        parts="topics=responses.partitions",
        both=_ALL,
        beside=_TEXT,
        needs=(_ALTER_CLUSTER,),
        names="topics",
    ),
    Api(ApiKey.LIST_PARTITION_REASSIGNMENTS, range(1), beside=_TEXT, needs=(_DESCRIBE_CLUSTER,)),
    Api(
        ApiKey.OFFSET_DELETE,
        range(1),
        parts="topics.partitions",
        top=_ALL,
        needs=((Kind.GROUP, Operation.DELETE),),
        each=_READ_TOPIC,
        **_OF_MEMBER,
    ),
    Api(
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        range(2),
        beside={"entries": None, **_TEXT},
        needs=((Kind.CLUSTER, Operation.DESCRIBE_CONFIGS),),
        names="components",
    ),
    Api(
        ApiKey.ALTER_CLIENT_QUOTAS,
        range(2),
        parts="entries",
        beside={"entity": _quota_entity, **_TEXT},
        needs=((Kind.CLUSTER, Operation.ALTER_CONFIGS),),
        names="entries",
    ),
    Api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, range(1), beside=_TEXT, needs=(_DESCRIBE_CLUSTER,), names="users"),
    Api(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        range(1),
        parts="deletions=results upsertions=results",
        beside={"user": lambda part, version, error: part.name, **_TEXT},
        needs=(_ALTER_CLUSTER,),
        names="deletions upsertions",
    ),
    Api(ApiKey.DESCRIBE_CLUSTER, range(3), beside=_TEXT),
    Api(ApiKey.DESCRIBE_PRODUCERS, range(1), parts="topics.partition_indexes=partitions", each=_READ_TOPIC),
    Api(
        ApiKey.DESCRIBE_TRANSACTIONS,
        range(1),
        parts="transactional_ids=transaction_states",
        batch_from=0,
        coordinator=Kind.TRANSACTION,
        each=_DESCRIBE_TRANSACTION,
    ),
    Api(
        ApiKey.LIST_TRANSACTIONS,
        range(3),
        listed=("transaction_states", "transactional_id"),
        coordinator=Kind.TRANSACTION,
        each=_DESCRIBE_TRANSACTION,
    ),
    Api(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        range(2),
        beside=_TEXT,
        needs=(_READ_GROUP, _DESCRIBE_TOPIC),
        names="subscribed_topic_names",
        **_OF_MEMBER,
    ),
    Api(ApiKey.CONSUMER_GROUP_DESCRIBE, range(2), **_OF_GROUPS),
    Api(ApiKey.LIST_CONFIG_RESOURCES, range(2), needs=((Kind.CLUSTER, Operation.DESCRIBE_CONFIGS),)),
    Api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, range(1), parts="topics", each=_DESCRIBE_TOPIC, names="topics"),
    Api(
        ApiKey.SHARE_GROUP_HEARTBEAT,
        range(1, 2),
        beside=_TEXT,
        needs=(_READ_GROUP, _DESCRIBE_TOPIC),
        names="subscribed_topic_names",
        **_OF_MEMBER,
    ),
    Api(ApiKey.SHARE_GROUP_DESCRIBE, range(1, 2), **_OF_GROUPS),
    Api(
        ApiKey.SHARE_FETCH,
        range(1, 3),
        parts="topics=responses.partitions",
        top=_ALL,
        beside={"records": b""},
        group="group_id",
        needs=(_READ_GROUP,),
        each=_READ_TOPIC,
        has_blobs=True,
    ),
    Api(
        ApiKey.SHARE_ACKNOWLEDGE,
        range(1, 3),
        parts="topics=responses.partitions",
        top=_ALL,
        group="group_id",
        needs=(_READ_GROUP,),
        each=_READ_TOPIC,
        has_blobs=True,
    ),
    Api(ApiKey.INITIALIZE_SHARE_GROUP_STATE, range(1), **_OF_SHARE_STATE),
    Api(ApiKey.READ_SHARE_GROUP_STATE, range(1), **_OF_SHARE_STATE),
    Api(ApiKey.WRITE_SHARE_GROUP_STATE, range(2), **_OF_SHARE_STATE),
    Api(ApiKey.DELETE_SHARE_GROUP_STATE, range(1), **_OF_SHARE_STATE),
    Api(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, range(2), **_OF_SHARE_STATE),
    Api(ApiKey.STREAMS_GROUP_HEARTBEAT, range(2), beside=_TEXT, needs=(_READ_GROUP,), **_OF_MEMBER),
    Api(ApiKey.STREAMS_GROUP_DESCRIBE, range(2), **_OF_GROUPS),
    Api(
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        range(2),
        parts="groups",
        batch_from=0,
        beside=_TEXT,
        coordinator=Kind.GROUP,
        each=_DESCRIBE_GROUP,
        names="groups",
    ),
    Api(
        ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        range(1),
        parts="topics=responses.partitions",
        top=_ALL,
        beside=_TEXT,
        needs=(_READ_GROUP,),
        each=_READ_TOPIC,
        names="topics",
        **_OF_MEMBER,
    ),
    Api(
        ApiKey.DELETE_SHARE_GROUP_OFFSETS,
        range(1),
        parts="topics=responses",
        top=_ALL,
        beside=_TEXT,
        needs=((Kind.GROUP, Operation.DELETE),),
        each=_READ_TOPIC,
        names="topics",
        **_OF_MEMBER,
    ),
    Api(
        ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
        range(1),
        beside=_TEXT,
        needs=(_READ_GROUP,),
        **_OF_MEMBER,
    ),
)

APIS: Final[Mapping[int, Api]] = MappingProxyType({int(api.key): api for api in _ROWS})
"""Every api that is served, by its key."""

SERVED: Final[Mapping[int, range]] = MappingProxyType({api.key: api.versions for api in _ROWS})
"""Api key to the versions that are answered, including group apis and SASL.

These are advertised, except that Produce is advertised from 0 on, as by Kafka 4: older librdkafka does not work with a
broker otherwise (KAFKA-18659). A request of such a version closes the connection.
"""

_BY_REQUEST: Final = {f"{API_NAMES[api.key]}Request": api for api in _ROWS}


def api_of(request: Any) -> Api | None:
    """Return the row for a request; None if its class is not served."""
    api = _BY_REQUEST.get(type(request).__name__)
    return api if api is not None and api.request is type(request) else None


# ---- errors

_REFUSE: Final[dict[type, _Maker]] = {}  # of the apis that have been refused
_LONGEST_TEXT = 1_000  # characters of an error's text


def refusal(request: Any, version: int, error: ErrorCode) -> Any:
    """Return the response to `request` in which everything has failed with `error`.

    :param version: the request's
    :raises TypeError: requests of this class are not served
    """
    refuse = _REFUSE.get(type(request))
    if refuse is None:
        api = api_of(request)
        if api is None:
            raise TypeError(f"{type(request).__name__} is not served")
        refuse = _REFUSE[type(request)] = api.refuse
    return refuse(request, version, int(error))


_Message = TypeVar("_Message")


def filled(cls: Callable[..., _Message], source: Any, **others: Any) -> _Message:
    """Return a message of a class with what an object has by the names of its fields, and with other fields."""
    kind: Any = type(source)
    names: tuple[str, ...] = _common_fields(cls, kind)
    return cls(**{name: getattr(source, name) for name in names if name not in others}, **others)


@cache
def _common_fields(cls: Any, source: Any) -> tuple[str, ...]:
    known = {*get_type_hints(source), *dir(source)}
    return tuple(name for name in get_type_hints(cls) if name in known and name != "unknown_tags")


def paired_partitions(request: Any, response: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yield each partition of a request: its topic's part, its own, and its answer in what `refusal` has made."""
    for topic, answers in zip(request.topics, response.topics, strict=True):
        for wanted, answer in zip(topic.partitions, answers.partitions, strict=True):
            yield topic, wanted, answer


def topology_topics(topology: Any) -> list[str]:
    """Return all topics that a topology of a streams group names, in its order.

    :param topology: of StreamsGroupHeartbeat or StreamsGroupDescribe
    """
    names = (
        name
        for each in topology.subtopologies or ()
        for name in (
            *each.source_topics,
            *each.repartition_sink_topics,
            *(topic.name for topic in (*each.repartition_source_topics, *each.state_changelog_topics)),
        )
    )
    return list(dict.fromkeys(names))


class Refused(Exception):
    """A request, or a part of one, fails with its own error code.

    :ivar error: the code
    :ivar detail: what is wrong, for versions that have a text; bounded, since it may quote the request
    """

    def __init__(self, error: ErrorCode, detail: str = "") -> None:
        super().__init__(error, detail)
        self.error = error
        self.detail = bounded(detail or error.meaning)


@contextmanager
def refused_in(answer: Any) -> Iterator[None]:
    """Note in the part of an answer why it is refused, where a block raises `Refused`."""
    try:
        yield
    except Refused as refused:
        answer.error_code = refused.error
        if hasattr(answer, "error_message"):
            answer.error_message = refused.detail


def bounded(text: str) -> str:
    """Return an error's text, cut where it is too long: it quotes names that are as long as a text may be."""
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1]}…"
