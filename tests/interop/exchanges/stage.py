"""The stage on which one script is played: connections to a coordinator, members, and the record of what was said.

The same script runs against Kafka and against us; what it records is compared afterwards. So a record holds no id, port
or host that differs from run to run:

* A UUID in a text (member ids end in one) becomes ``<1>``, ``<2>`` ... in the order of appearance in this script; so
  does a member id that Kafka's coordinator chose for a consumer group, 22 characters of base64. The id of a topic
  becomes its name.
* Lists whose order Kafka leaves to a hash map are sorted, first by the text before the UUIDs.
* Of the partitions of a topic that a member of a share group has, the number is recorded: which ones these are follows
  from the topic's id.
* The id of a producer becomes a number of that kind as well, a time ``<time>``, and the records of a Fetch become
  their batches, field by field.
* The coordinator's own address becomes ``<host>``, ``<port>``, ``<node>``.
* Groups and transactional ids of other scripts are left out of ListGroups and ListTransactions.

A script says which error codes it expects; a response with any other one fails it on the spot, on either side.
"""

from __future__ import annotations

import re
import select
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final
from uuid import UUID

import kcoord_wire as kw
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.records import decode_control_record, read_records
from tests.support.waiting import eventually
from tests.support.wire import Wire, errors_in

CONSUMER: Final = "consumer"
_SILENCE: Final = 0.1
"""Seconds without an answer after which a request counts as parked."""

_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_CHOSEN_ID: Final = re.compile(r"(?<![\w-])[\w-]{22}(?![\w-])")
"""A member id that Kafka's coordinator chose for ConsumerGroupHeartbeat v0."""

_OWN_ADDRESS: Final = {"NodeId": "<node>", "Host": "<host>", "Port": "<port>"}
_NO_ADDRESS: Final = {-1, ""}
_OWN_NODE: Final = {
    **dict.fromkeys(("LeaderId", "BrokerId", "ControllerId", "NodeId"), "<node>"),
    **{key: ["<node>"] for key in ("ReplicaNodes", "IsrNodes")},
    "Host": "<host>",
    "Port": "<port>",
    "ClusterId": "<cluster>",
}
_OF_NODES: Final = ("DescribeCluster", "DescribeTopicPartitions", "Metadata")
_BUSY: Final = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
}
"""What is answered while a coordinator reads its log, markers are being written, or a topic is new."""
_TIMES: Final = ("TransactionStartTimeMs", "LastTimestamp", "LogAppendTimeMs")
_NO_ID: Final = f"<{UUID(int=0)}>"
_MAKES_IDS: Final = ("CreateTopics", "DeleteTopics", "DescribeTopicPartitions", "Metadata")
_SHARE_APIS: Final = ("ShareGroupHeartbeat", "ShareGroupDescribe")
_UNORDERED: Final = {
    "Members": ("JoinGroup", "DescribeGroups", "ConsumerGroupDescribe", "ShareGroupDescribe", "StreamsGroupDescribe"),
    "ClientTags": ("StreamsGroupDescribe",),
    "Groups": ("ListGroups",),
    "Configs": ("DescribeConfigs",),
    "Responses": ("DeleteTopics", "ShareFetch"),
    "TopicPartitions": ("ConsumerGroupHeartbeat", "ConsumerGroupDescribe", *_SHARE_APIS),
    "Partitions": ("ConsumerGroupHeartbeat", "ConsumerGroupDescribe", "DescribeTransactions", "ShareFetch"),
    "Topics": ("DescribeTransactions",),
    "SubscribedTopicNames": ("ConsumerGroupDescribe", "ShareGroupDescribe"),
    "TransactionStates": ("ListTransactions",),
    "UnknownStateFilters": ("ListTransactions",),
    "ActiveProducers": ("DescribeProducers",),
    "Resources": ("DescribeAcls",),
    "Acls": ("DescribeAcls",),
    "MatchingAcls": ("DeleteAcls",),
    "Results": ("CreatePartitions", "AlterUserScramCredentials", "DescribeUserScramCredentials"),
    "ReplicaElectionResults": ("ElectLeaders",),
    "PartitionResult": ("ElectLeaders",),
    "CredentialInfos": ("DescribeUserScramCredentials",),
    "Entries": ("AlterClientQuotas", "DescribeClientQuotas"),
    "Values": ("DescribeClientQuotas",),
    "Entity": ("AlterClientQuotas", "DescribeClientQuotas"),
}
"""Lists by name, with the apis in which Kafka leaves their order to a hash map."""


def subscription(*topics: str, user_data: bytes | None = None, version: int = 3) -> bytes:
    """A consumer's subscription, as JoinGroup carries it."""
    return kw.encode_prefixed(kw.ConsumerProtocolSubscription(topics=list(topics), user_data=user_data), version)


def assignment(version: int = 3, **partitions: Sequence[int]) -> bytes:
    """A consumer's assignment by topic, as SyncGroup carries it."""
    part = kw.ConsumerProtocolAssignmentTopicPartition
    topics = [part(topic=topic, partitions=list(numbers)) for topic, numbers in partitions.items()]
    return kw.encode_prefixed(kw.ConsumerProtocolAssignment(assigned_partitions=topics), version)


@dataclass(frozen=True)
class Exchange:
    """One request and what became of it.

    :ivar who: name of the connection
    :ivar fields: the response, flat, by path such as ``Groups[0].Members[1].MemberId``; ``outcome`` alone where there
        was none: ``silent`` or ``closed``
    """

    who: str
    api: str
    version: int
    fields: Mapping[str, Any]


@dataclass
class Stage:
    """One run of one script.

    :ivar group: id of the script's own group; further ones are ``group/name``
    """

    address: str
    group: str
    record: list[Exchange] = field(default_factory=list)
    _wires: list[Wire] = field(default_factory=list)
    _names: dict[str, str] = field(default_factory=dict)

    def connect(self, name: str, *, nameless: bool = False) -> Connection:
        """A connection whose client id is `name`, or null."""
        return Connection(self, name, None if nameless else name)

    def member(self, name: str, **settings: Any) -> Member:
        """A member to be of the script's group, on a new connection. Settings are those of `Member`."""
        return Member(self, name, **settings)

    def stable(self, *members: Member, version: int = 9) -> None:
        """Bring these members into the group, one after the other, the first one leading, each round to its end."""
        for count in range(1, len(members) + 1):
            self.rejoin(members[count - 1], *members[: count - 1], version=version)
            self.share_out(*members[:count])

    def rejoin(self, *members: Member, version: int = 9) -> None:
        """They join one after the other; the last one ends the round, and the others have their answers."""
        *waiting, last = members
        joining = [member.joining(version) for member in waiting]
        last.joins(version)
        for pending in joining:
            pending.answer()

    def share_out(self, *members: Member, version: int = 5) -> None:
        """All of them sync, the leader (the first) last: it assigns each its own partition."""
        leader, *others = members
        syncing = [m.syncing(version) for m in others]
        leader.syncs(version, {m.id: assignment(orders=[i]) for i, m in enumerate(members)})
        for pending in syncing:
            pending.answer()

    def eventually(self, ask: Callable[[], Answer], until: Callable[[Answer], bool], seconds: float = 20) -> Answer:
        """Ask again and again until the answer is as wanted; only the last one is recorded."""
        mark = len(self.record)

        def again() -> Answer:
            del self.record[mark:]
            return ask()

        return eventually(again, until=until, seconds=seconds, every=0.02)

    @contextmanager
    def off_the_record(self) -> Iterator[None]:
        """Nothing within is recorded: it happens as often as time allows."""
        mark = len(self.record)
        yield
        del self.record[mark:]

    def wait_for_state(self, state: str, group: str | None = None) -> Answer:
        """Until the group is in that state: its description then."""
        watcher = self.connect("watcher")
        request = kw.DescribeGroupsRequest(groups=[group or self.group])
        return self.eventually(lambda: watcher.call(request, 5), lambda a: a.groups[0].group_state == state)

    @cached_property
    def topic_ids(self) -> dict[str, UUID]:
        """The ids of the coordinator's topics, by name."""
        with Wire(self.address) as wire:
            topics = wire.call(kw.MetadataRequest(topics=None), 12).topics
        return {topic.name: topic.topic_id for topic in topics}

    def forget_topic_ids(self) -> None:
        """Read them again when they are wanted next: an answer to the creation of a topic may have come before
        Metadata had the topic."""
        self.__dict__.pop("topic_ids", None)

    def close(self) -> None:
        for wire in self._wires:
            wire.close()

    # ---- for connections

    def opened(self, wire: Wire) -> None:
        self._wires.append(wire)

    def add(self, who: str, api: str, version: int, response: Any) -> None:
        """Record an exchange; `response` is a message, or a word for the outcome where there is none."""
        if isinstance(response, str):
            fields: dict[str, Any] = {"outcome": response}
        else:
            fields = dict(self._flat("", self._plain(api, kw.to_dict(response, version))))
        self.record.append(Exchange(who, api, version, fields))

    def _plain(self, api: str, value: dict[str, Any]) -> dict[str, Any]:
        if api == "ListGroups":
            mine = [
                g for g in value["Groups"] if g["GroupId"] == self.group or g["GroupId"].startswith(f"{self.group}/")
            ]
            value["Groups"] = mine
        elif api == "ListTransactions":
            mine = [t for t in value["TransactionStates"] if t["TransactionalId"].startswith(f"{self.group}/")]
            value["TransactionStates"] = mine
        elif api in ("Fetch", "ShareFetch"):
            for topic in value["Responses"]:
                for partition in topic["Partitions"]:
                    partition["Records"] = _batches(partition["Records"] or b"")
        elif api == "ApiVersions":
            value |= {
                f"Api {key['ApiKey']}": f"{key['MinVersion']}-{key['MaxVersion']}" for key in value.pop("ApiKeys")
            }
        elif api == "FindCoordinator":
            for holder in [value, *value.get("Coordinators", [])]:
                holder |= {k: t for k, t in _OWN_ADDRESS.items() if k in holder and holder[k] not in _NO_ADDRESS}
        return self._sorted(api, value)

    def _sorted(self, api: str, value: Any) -> Any:
        """The value with topics by name instead of id, and with the lists sorted that have no order."""
        if isinstance(value, list):
            return [self._sorted(api, item) for item in value]
        if not isinstance(value, dict):
            return f"<{self._topic_names().get(value, value)}>" if isinstance(value, UUID) else value
        result = {name: self._sorted(api, inner) for name, inner in value.items()}
        if api in _SHARE_APIS and "Partitions" in result:
            result["Partitions"] = len(result["Partitions"])
        if api in _OF_NODES:
            result |= {key: text for key, text in _OWN_NODE.items() if key in result}
        if api in _MAKES_IDS and result.get("TopicId", _NO_ID) != _NO_ID:  # of a topic that the script has made
            result["TopicId"] = "<id>"
        for name, apis in _UNORDERED.items():
            if api in apis and result.get(name):
                result[name] = sorted(result[name], key=lambda item: _CHOSEN_ID.sub("", _UUID.sub("", repr(item))))
        return result

    def _topic_names(self) -> dict[UUID, str]:
        return {number: name for name, number in self.topic_ids.items()}

    def _flat(self, path: str, value: Any) -> Iterable[tuple[str, Any]]:
        if isinstance(value, dict):
            for name, inner in value.items():
                yield from self._flat(f"{path}.{name}" if path else name, inner)
        elif isinstance(value, list):
            yield f"{path}.length", len(value)
            for index, inner in enumerate(value):
                yield from self._flat(f"{path}[{index}]", inner)
        else:
            yield path, self._without_ids(path, value) if isinstance(value, str) else self._without_time(path, value)

    def _without_time(self, path: str, value: Any) -> Any:
        if path.endswith("ProducerId") and value >= 0:
            return self._name(f"producer {value}")
        return "<time>" if path.endswith(_TIMES) and value > 0 else value

    def _without_ids(self, path: str, text: str) -> str:
        if path.endswith(("MemberId", "Leader", "ErrorMessage")):
            text = _CHOSEN_ID.sub(self._symbol, text)
        return _UUID.sub(self._symbol, text)

    def _symbol(self, found: re.Match[str]) -> str:
        return self._name(found[0])

    def _name(self, value: str) -> str:
        return self._names.setdefault(value, f"<{len(self._names) + 1}>")


Answer = Any  # a response message


class Connection:
    """One connection of a script."""

    def __init__(self, stage: Stage, name: str, client_id: str | None) -> None:
        self.stage = stage
        self.name = name
        self.wire = Wire(stage.address, client_id=client_id)
        stage.opened(self.wire)

    def call(self, request: Any, version: int, error: ErrorCode | None = None) -> Answer:
        """Ask and give the answer; `error` is the one code besides NONE that must be in it, else there must be none."""
        return self.send(request, version).answer(error)

    def call_when_free(self, request: Any, version: int, error: ErrorCode | None = None) -> Answer:
        """`call`, and again while the coordinator is busy, which depends on time; the last answer alone is recorded."""
        answer = eventually(
            lambda: self.wire.call(request, version),
            until=lambda answer: not (_BUSY - {error}) & set(errors_in(answer)),
        )
        return self.judge(_api(request), version, answer, error)

    def judge(self, api: str, version: int, answer: Answer, error: ErrorCode | None) -> Answer:
        """Record an answer, and see that it has the error that it is to have, as in `call`."""
        self.stage.add(self.name, api, version, answer)
        expected = {ErrorCode.NONE} if error is None else {ErrorCode.NONE, error}
        found = set(errors_in(answer))
        assert found <= expected, f"{self.name}: {api} v{version}: {answer}"
        assert error is None or error in found, f"{self.name}: {api} v{version}: {answer}"
        return answer

    def send(self, request: Any, version: int) -> Pending:
        """Ask without waiting."""
        return Pending(self, _api(request), version, self.wire.send(request, version))

    def park(self, request: Any, version: int) -> Pending:
        """Ask, and see that the answer does not come yet."""
        pending = self.send(request, version)
        pending.stays_silent()
        return pending

    def is_closed_after(self, request: Any, version: int) -> None:
        """Ask, and be hung up on."""
        self.wire.send(request, version)
        assert self.wire.is_closed_by_peer()
        self.stage.add(self.name, _api(request), version, "closed")

    def send_raw(self, api_key: int, version: int, body: bytes, *, flexible: bool) -> None:
        """Send a request that the codec would not write: a header and some bytes."""
        client_id = self.name.encode()
        header = struct.pack(">hhih", api_key, version, 7, len(client_id)) + client_id + b"\0" * flexible
        self.wire.send_raw(kw.frame(header + body))

    def describe(self, group: str | None = None, version: int = 5, error: ErrorCode | None = None) -> Answer:
        """DescribeGroups of one group, by default the script's."""
        return self.call(
            kw.DescribeGroupsRequest(groups=[self.stage.group if group is None else group]), version, error
        )


class Pending:
    """A request whose answer has not been read."""

    def __init__(self, connection: Connection, api: str, version: int, correlation_id: int) -> None:
        self._connection = connection
        self._api = api
        self._version = version
        self._correlation_id = correlation_id
        self.learn: Callable[[Answer], None] = lambda answer: None

    def stays_silent(self, seconds: float = _SILENCE) -> None:
        """See that no answer comes within that time."""
        readable, _, _ = select.select([self._connection.wire._socket], [], [], seconds)
        assert not readable, f"{self._connection.name}: {self._api} v{self._version} was answered: {self.answer()}"

    def answer_if_any(self) -> None:
        """Record the answer, whatever it is, or that none has come where one was due."""
        readable, _, _ = select.select([self._connection.wire._socket], [], [], 3 * _SILENCE)
        self._record(self._connection.wire.receive(self._correlation_id) if readable else "silent")

    def answer(self, error: ErrorCode | None = None) -> Answer:
        """Wait for the answer; `error` as in `Connection.call`."""
        answer = self._connection.wire.receive(self._correlation_id)
        self._connection.judge(self._api, self._version, answer, error)
        self.learn(answer)
        return answer

    def _record(self, answer: Answer) -> None:
        self._connection.stage.add(self._connection.name, self._api, self._version, answer)


def _batches(data: bytes) -> list[dict[str, Any]]:
    """The batches in the records of a Fetch, as the fields of an exchange."""
    return [
        {
            "Offsets": [record.offset for record in batch.records],
            "Values": [None if batch.is_control else record.value for record in batch.records],
            "Marker": decode_control_record(batch.records[0]).type.name if batch.is_control else None,
            "IsTransactional": batch.is_transactional,
            "ProducerId": batch.producer_id,
            "ProducerEpoch": batch.producer_epoch,
            "BaseSequence": batch.base_sequence,
        }
        for batch in read_records(data)
    ]


def _api(request: Any) -> str:
    return type(request).__name__.removesuffix("Request")


@dataclass
class Member:
    """A member of the script's group, on its own connection, that remembers its id and generation.

    :ivar protocols: (name, metadata) in the order of preference
    """

    stage: Stage
    name: str
    instance: str | None = None
    session_ms: int = 300_000
    rebalance_ms: int = 300_000
    kind: str = CONSUMER
    protocols: Sequence[tuple[str, bytes]] = (("range", subscription("orders")),)
    id: str = ""
    generation: int = -1

    def __post_init__(self) -> None:
        self.connection = self.stage.connect(self.name)

    # ---- JoinGroup

    def join_request(self, **changes: Any) -> Any:
        """Its JoinGroup, with `changes` by field name."""
        protocols = [kw.JoinGroupRequestProtocol(name=name, metadata=data) for name, data in self.protocols]
        known = {
            "group_id": self.stage.group,
            "session_timeout_ms": self.session_ms,
            "rebalance_timeout_ms": self.rebalance_ms,
            "member_id": self.id,
            "group_instance_id": self.instance,
            "protocol_type": self.kind,
            "protocols": protocols,
        }
        return kw.JoinGroupRequest(**{**known, **changes})

    def is_introduced(self, version: int = 9) -> None:
        """Where the version wants it, ask for a member id (KIP-394)."""
        if version >= 4 and not self.id and self.instance is None:
            request = self.join_request()
            self.id = self.connection.call(request, version, ErrorCode.MEMBER_ID_REQUIRED).member_id

    def joining(self, version: int = 9, **changes: Any) -> Pending:
        """Ask for an id if need be, join, and see that the answer does not come yet."""
        pending = self.sends_join(version, **changes)
        pending.stays_silent()
        return pending

    def joins(self, version: int = 9, error: ErrorCode | None = None, **changes: Any) -> Answer:
        """Ask for an id if need be, join, and wait for the answer."""
        return self.sends_join(version, **changes).answer(error)

    def sends_join(self, version: int = 9, **changes: Any) -> Pending:
        """Ask for an id if need be, and join, whatever becomes of it."""
        self.is_introduced(version)
        pending = self.connection.send(_without_new_fields(self.join_request(**changes), version), version)
        pending.learn = self._joined
        return pending

    def _joined(self, answer: Answer) -> None:
        if answer.error_code == ErrorCode.NONE:
            self.id, self.generation = answer.member_id, answer.generation_id

    # ---- SyncGroup

    def sync_request(self, assignments: Mapping[str, bytes] | None = None, **changes: Any) -> Any:
        """Its SyncGroup, with `changes` by field name."""
        part = kw.SyncGroupRequestAssignment
        known = {
            "group_id": self.stage.group,
            "generation_id": self.generation,
            "member_id": self.id,
            "group_instance_id": self.instance,
            "protocol_type": self.kind,
            "protocol_name": self.protocols[0][0],
            "assignments": [part(member_id=m, assignment=data) for m, data in (assignments or {}).items()],
        }
        return kw.SyncGroupRequest(**{**known, **changes})

    def syncing(self, version: int = 5, **changes: Any) -> Pending:
        """Sync, and see that the answer does not come yet."""
        return self.connection.park(_without_new_fields(self.sync_request(**changes), version), version)

    def syncs(
        self,
        version: int = 5,
        assignments: Mapping[str, bytes] | None = None,
        error: ErrorCode | None = None,
        **changes: Any,
    ) -> Answer:
        """Sync and wait for the answer."""
        request = _without_new_fields(self.sync_request(assignments, **changes), version)
        return self.connection.call(request, version, error)

    # ---- the rest

    def beats(self, version: int = 4, error: ErrorCode | None = None, **changes: Any) -> Answer:
        """Heartbeat."""
        known = {
            "group_id": self.stage.group,
            "generation_id": self.generation,
            "member_id": self.id,
            "group_instance_id": self.instance,
        }
        request = kw.HeartbeatRequest(**{**known, **changes})
        return self.connection.call(_without_new_fields(request, version), version, error)

    def leaves(self, version: int = 5, error: ErrorCode | None = None, reason: str | None = None) -> Answer:
        """LeaveGroup of itself alone."""
        if version < 3:
            request = kw.LeaveGroupRequest(group_id=self.stage.group, member_id=self.id)
        else:
            identity = kw.LeaveGroupRequestMemberIdentity
            member = identity(member_id=self.id, group_instance_id=self.instance, reason=reason)
            request = kw.LeaveGroupRequest(group_id=self.stage.group, members=[member])
        return self.connection.call(request, version, error)

    def commits(
        self,
        offset: int,
        version: int = 9,
        error: ErrorCode | None = None,
        *,
        partition: int = 0,
        topic: str = "orders",
        **changes: Any,
    ) -> Answer:
        """OffsetCommit of one partition, in its generation."""
        part = kw.OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=""
        )
        known = {
            "group_id": self.stage.group,
            "generation_id_or_member_epoch": self.generation,
            "member_id": self.id,
            "group_instance_id": self.instance,
            "topics": [kw.OffsetCommitRequestTopic(name=topic, partitions=[part])],
        }
        request = kw.OffsetCommitRequest(**{**known, **changes})
        return self.connection.call(_without_new_fields(request, version), version, error)

    def disconnects(self) -> None:
        """Close the connection without a word."""
        self.connection.wire.close()


_OPTIONAL_SINCE: Final = {
    ("JoinGroup", "group_instance_id"): 5,
    ("SyncGroup", "group_instance_id"): 3,
    ("Heartbeat", "group_instance_id"): 3,
    ("OffsetCommit", "group_instance_id"): 7,
    ("OffsetCommit", "member_id"): 1,
    ("OffsetCommit", "generation_id_or_member_epoch"): 1,
}


def _without_new_fields(request: Any, version: int) -> Any:
    """The request without what that version cannot carry, as an older client would write it."""
    for (api, name), since in _OPTIONAL_SINCE.items():
        if api == _api(request) and version < since:
            setattr(request, name, type(request)().__getattribute__(name))
    return request
