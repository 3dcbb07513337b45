"""ShareFetch and ShareAcknowledge, with scripted time and logs in memory."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.apis import Refused, item_class
from kcoord_wire.coordinator.core.config import Endpoint, GroupConfig
from kcoord_wire.coordinator.core.events import (
    Append,
    ConnectionLost,
    Load,
    LogRecord,
    RecordsChanged,
    Reply,
    Request,
    Resign,
    TopicsDeleted,
)
from kcoord_wire.coordinator.share import share_machine, shared
from kcoord_wire.coordinator.share.share_machine import Read, Reset, ShareMachine, ShareSettings
from kcoord_wire.coordinator.share.share_partition import (
    ACCEPT,
    REJECT,
    RELEASE,
    RENEW,
    ShareLimits,
    Span,
    State,
    StateRange,
)
from kcoord_wire.coordinator.share.state_requests import merged
from kcoord_wire.kernel.machines import Tick
from kcoord_wire.protocol.error_codes import ErrorCode

TOPIC = uuid.UUID(int=7)
LOCK_MS = 1_000
SIZE = 10  # bytes of a batch


@dataclass
class Log:
    """A partition with batches of ten records."""

    batches: int = 0
    start_offset: int = 0
    leader_epoch: int = 4
    aborted: Sequence[Span] = ()
    stable: int | None = None

    def end(self, committed: bool) -> int:
        return self.batches * 10 if self.stable is None or not committed else self.stable

    def read(self, offset: int, most: int, first_whole: bool, committed: bool) -> Read:
        first = offset // 10
        count = max(min(most // SIZE, self.end(committed) // 10 - first), 0)
        if first_whole and not count and self.end(committed) > offset:
            count = 1
        spans = [Span(at * 10, at * 10 + 9) for at in range(first, first + count)]
        ends = [SIZE * (at + 1) for at in range(count)]
        return Read(bytes(SIZE * count), spans, ends, self.aborted if committed else ())

    def first_since(self, timestamp: int) -> int:
        return max(timestamp, 0)


@dataclass
class Logs:
    """The partitions of one topic; the last one has another leader."""

    partitions: list[Log] = field(default_factory=lambda: [Log(3), Log()])
    exists: bool = True

    def find(self, topic_id: uuid.UUID, index: int, broker: int) -> Log:
        if topic_id != TOPIC or not self.exists:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_ID)
        if index == 9:
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if index >= len(self.partitions):
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return self.partitions[index]

    def has(self, topic_id: uuid.UUID, index: int) -> bool:
        return self.exists and topic_id == TOPIC and 0 <= index < len(self.partitions)

    def leader(self, topic_id: uuid.UUID, index: int) -> tuple[Endpoint, int] | None:
        return Endpoint(5, "other", 9092), 6


class Broker:
    """A machine with its clock, tokens and log."""

    def __init__(self, **settings: Any) -> None:
        self.logs = Logs()
        self.settings = ShareSettings(ShareLimits(lock_ms=LOCK_MS), **{"reset": Reset.EARLIEST, **settings})
        self.now = 1_000_000
        self.token = 0
        self.log: dict[Any, LogRecord] = {}
        self.replies: dict[int, Any] = {}
        self.restart()

    def restart(self) -> None:
        """Begin anew on what the log has."""
        config = GroupConfig(share_max_sessions=2)
        self.machine = ShareMachine(self.logs, lambda group_id: self.settings, config)
        self.give(Load(list(self.log.values())))

    def give(self, event: Any) -> None:
        appended = self.machine.appended
        for effect in self.machine.handle(event, self.now):
            if isinstance(effect, Append):
                appended += 1
                for record in effect.records:
                    self.log[repr(record.key)] = record
            elif isinstance(effect, Reply):
                assert effect.after <= self.machine.appended
                self.replies[effect.token] = effect.message

    def send(self, message: Any, version: int = 2, connection: int = 1) -> int:
        self.token += 1
        self.give(Request(self.token, message, version, connection=connection))
        return self.token

    def ask(self, message: Any, **how: Any) -> Any:
        return self.replies[self.send(message, **how)]

    def pass_time(self, ms: int) -> None:
        self.now += ms
        self.give(Tick())

    def fetch(self, epoch: int, *partitions: int, **options: Any) -> Any:
        how = {key: options.pop(key) for key in ("connection", "version") if key in options}
        return self.ask(fetch_request(epoch, *partitions, **options), **how)

    def acknowledge(self, epoch: int, first: int, last: int, *types: int, **options: Any) -> Any:
        return self.ask(acknowledge_request(epoch, first, last, *types, **options))


def fetch_request(epoch: int, *partitions: int, acks: Sequence[Any] = (), **options: Any) -> m.ShareFetchRequest:
    batches = [
        m.ShareFetchRequestAcknowledgementBatch(first_offset=a, last_offset=b, acknowledge_types=c) for a, b, c in acks
    ]
    parts = [
        m.ShareFetchRequestFetchPartition(partition_index=each, acknowledgement_batches=batches) for each in partitions
    ]
    topics = [m.ShareFetchRequestFetchTopic(topic_id=options.pop("topic_id", TOPIC), partitions=parts)] if parts else []
    asked = {
        "group_id": "g",
        "member_id": "m1",
        "max_bytes": 1_000,
        "min_bytes": 1,
        "max_records": 500,
        "batch_size": 500,
    }
    return m.ShareFetchRequest(**asked | options, share_session_epoch=epoch, topics=topics)


def acknowledge_request(epoch: int, first: int, last: int, *types: int, **options: Any) -> m.ShareAcknowledgeRequest:
    batch = m.ShareAcknowledgeRequestAcknowledgementBatch(
        first_offset=first, last_offset=last, acknowledge_types=list(types)
    )
    part = m.ShareAcknowledgeRequestAcknowledgePartition(
        partition_index=options.pop("partition", 0), acknowledgement_batches=[batch]
    )
    topic = m.ShareAcknowledgeRequestAcknowledgeTopic(topic_id=TOPIC, partitions=[part])
    asked = {"group_id": "g", "member_id": "m1"} | options
    return m.ShareAcknowledgeRequest(**asked, share_session_epoch=epoch, topics=[topic])


def acquired(response: Any) -> list[tuple[int, int, int]]:
    """Return what a response says was acquired in the first partition that it names."""
    assert response.error_code == 0
    parts = response.responses[0].partitions if response.responses else []
    return [
        (each.first_offset, each.last_offset, each.delivery_count) for part in parts for each in part.acquired_records
    ]


def outcome(response: Any) -> int:
    code: int = response.responses[0].partitions[0].error_code
    return code


def test_what_was_acknowledged_survives_a_restart() -> None:
    broker = Broker()
    response = broker.fetch(0, 0)
    assert acquired(response) == [(0, 29, 1)]
    assert response.acquisition_lock_timeout_ms == LOCK_MS
    assert outcome(broker.acknowledge(1, 0, 19, ACCEPT)) == 0
    assert outcome(broker.acknowledge(2, 25, 25, RELEASE)) == 0
    broker.restart()
    assert broker.fetch(3).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert acquired(broker.fetch(0, 0)) == [(20, 24, 1), (25, 25, 2), (26, 29, 1)]


def test_only_the_batches_with_acquired_records_are_sent() -> None:
    broker = Broker()
    broker.fetch(0, 0)
    broker.acknowledge(1, 12, 13, RELEASE)
    response = broker.fetch(2)
    assert acquired(response) == [(12, 13, 2)]
    assert len(response.responses[0].partitions[0].records) == SIZE


def test_a_fetch_waits_for_records_and_for_its_time() -> None:
    broker = Broker()
    broker.fetch(0, 1, max_wait_ms=0)
    waiting = broker.send(fetch_request(1, max_wait_ms=500))
    assert broker.machine.waits
    broker.give(RecordsChanged())
    assert waiting not in broker.replies
    broker.logs.partitions[1].batches = 1
    broker.give(RecordsChanged())
    assert acquired(broker.replies[waiting]) == [(0, 9, 1)]
    waiting = broker.send(fetch_request(2, max_wait_ms=500))
    assert broker.machine.deadline == broker.now + 500
    broker.pass_time(500)
    assert broker.replies[waiting].responses == []
    assert not broker.machine.waits


@pytest.mark.parametrize("free", ["lock", "close", "release", "disconnect"])
def test_what_one_member_frees_another_gets(free: str) -> None:
    broker = Broker()
    broker.fetch(0, 0)
    waiting = broker.send(fetch_request(0, 0, member_id="m2", max_wait_ms=5_000), connection=2)
    assert waiting not in broker.replies
    if free == "lock":
        broker.pass_time(LOCK_MS)
    elif free == "close":
        broker.fetch(-1, member_id="m1")
    elif free == "release":
        broker.acknowledge(1, 0, 29, RELEASE)
    else:
        broker.give(ConnectionLost(1))
    assert acquired(broker.replies[waiting]) == [(0, 29, 2)]


def test_a_fetch_waits_while_too_much_is_in_flight() -> None:
    broker = Broker()
    broker.settings = ShareSettings(ShareLimits(record_locks=20, lock_ms=LOCK_MS), reset=Reset.EARLIEST)
    assert acquired(broker.fetch(0, 0)) == [(0, 19, 1)]
    waiting = broker.send(fetch_request(0, 0, member_id="m2", max_wait_ms=500), connection=2)
    broker.give(RecordsChanged())
    assert waiting not in broker.replies
    broker.acknowledge(1, 0, 9, ACCEPT)
    assert acquired(broker.replies[waiting]) == [(20, 29, 1)]


def test_a_fetch_of_a_session_that_is_over_acquires_nothing() -> None:
    broker = Broker()
    waiting = broker.send(fetch_request(0, 1, max_wait_ms=5_000), connection=1)
    again = broker.send(fetch_request(0, 1, max_wait_ms=5_000), connection=2)  # its client has connected again
    assert broker.replies[waiting].error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    broker.give(ConnectionLost(1))
    broker.logs.partitions[1].batches = 1
    broker.give(RecordsChanged())
    assert acquired(broker.replies[again]) == [(0, 9, 1)]


def test_what_members_cost_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()
    assert broker.fetch(0, 0, share_acquire_mode=7).error_code == ErrorCode.INVALID_REQUEST
    monkeypatch.setattr(share_machine, "MOST_PARTITIONS", 2)
    assert broker.fetch(0, 0, 1, 5).error_code == ErrorCode.INVALID_REQUEST
    broker.fetch(0, 0)
    assert broker.fetch(1, 1, 5).error_code == ErrorCode.INVALID_REQUEST
    assert broker.fetch(2).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    monkeypatch.setattr(shared, "MOST_SHARED", 1)
    response = broker.fetch(0, 1, max_wait_ms=0)
    assert outcome(response) == ErrorCode.POLICY_VIOLATION


def test_sessions() -> None:
    broker = Broker()
    assert broker.fetch(1, 0).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert broker.acknowledge(0, 0, 0, ACCEPT).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert broker.acknowledge(1, 0, 0, ACCEPT).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert broker.fetch(0, 0, acks=[(0, 0, [ACCEPT])]).error_code == ErrorCode.INVALID_REQUEST
    broker.fetch(0, 0)
    assert broker.fetch(2).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert broker.acknowledge(2, 0, 0, ACCEPT).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert outcome(broker.acknowledge(1, 0, 0, ACCEPT)) == 0
    broker.fetch(0, 0, member_id="m2")
    refused = broker.send(fetch_request(0, 0, member_id="m3", max_wait_ms=100))
    assert refused not in broker.replies  # so that it does not ask again at once
    broker.pass_time(100)
    assert broker.replies[refused].error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert outcome(broker.acknowledge(-1, 1, 1, ACCEPT)) == 0
    assert broker.fetch(0, 0, member_id="m3").error_code == 0


@pytest.mark.parametrize("names", [{"group_id": None}, {"member_id": ""}, {"member_id": None}, {"member_id": "m" * 37}])
def test_requests_without_names_are_refused(names: dict[str, Any]) -> None:
    assert Broker().fetch(0, 0, **names).error_code == ErrorCode.INVALID_REQUEST
    assert Broker().acknowledge(1, 0, 0, ACCEPT, **names).error_code == ErrorCode.INVALID_REQUEST


def test_errors_of_partitions() -> None:
    broker = Broker()
    response = broker.fetch(0, 0, 5, 9)
    parts = {part.partition_index: part for part in response.responses[0].partitions}
    assert [parts[each].error_code for each in (0, 5, 9)] == [
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ]
    assert (parts[9].current_leader.leader_id, parts[9].current_leader.leader_epoch) == (5, 6)
    assert [node.node_id for node in response.node_endpoints] == [5]
    forgotten = m.ShareFetchRequestForgottenTopic(topic_id=TOPIC, partitions=[5, 9])
    assert broker.fetch(1, forgotten_topics_data=[forgotten]).responses == []
    assert outcome(broker.acknowledge(2, 0, 0, ACCEPT, partition=1)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert outcome(broker.acknowledge(3, 0, 0, ACCEPT, partition=9)) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    piggy = broker.fetch(4, 0, acks=[(50, 51, [ACCEPT])]).responses[0].partitions[0]
    assert (piggy.error_code, piggy.acknowledge_error_code) == (0, ErrorCode.INVALID_REQUEST)


def test_locks_are_renewed() -> None:
    broker = Broker()
    broker.fetch(0, 0)
    assert outcome(broker.acknowledge(1, 0, 9, RENEW)) == ErrorCode.INVALID_REQUEST  # it must say so at the top
    broker.pass_time(600)
    nothing = {"max_bytes": 0, "min_bytes": 0, "max_records": 0}
    acks = [(0, 9, [RENEW])]
    assert broker.fetch(2, 0, acks=acks, is_renew_ack=True).error_code == ErrorCode.INVALID_REQUEST
    part = broker.fetch(2, 0, acks=acks, is_renew_ack=True, **nothing).responses[0].partitions[0]
    assert (part.acknowledge_error_code, part.acquired_records) == (0, [])
    broker.pass_time(400)
    assert acquired(broker.fetch(0, 0, member_id="m2")) == [(10, 29, 2)]
    broker.settings = ShareSettings(broker.settings.limits, may_renew=False)
    assert outcome(broker.acknowledge(3, 0, 9, RENEW, is_renew_ack=True)) == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("settings", "first"),
    [
        ({"reset": Reset.EARLIEST}, 10),
        ({"reset": Reset.LATEST}, 30),
        ({"reset": Reset.BY_DURATION, "reset_ms": 999_980}, 20),
    ],
)
def test_where_a_group_begins(settings: dict[str, Any], first: int) -> None:
    broker = Broker(**settings)
    broker.logs.partitions[0].start_offset = 10
    broker.fetch(0, 0)
    (known,) = broker.machine.partitions.values()
    assert known.records.start_offset == first
    assert known.start_offset == -1  # until it is in the log
    broker.acknowledge(1, first, first, ACCEPT)
    assert known.start_offset == (-1 if first == 30 else first + 1)


def test_aborted_records_are_left_out() -> None:
    broker = Broker(is_committed=True)
    broker.logs.partitions[0] = Log(4, aborted=[Span(10, 19)], stable=30)
    assert acquired(broker.fetch(0, 0)) == [(0, 9, 1), (20, 29, 1)]
    broker.acknowledge(1, 0, 9, ACCEPT)
    (known,) = broker.machine.partitions.values()
    assert known.start_offset == 20


def test_a_deleted_topic_is_forgotten() -> None:
    broker = Broker()
    broker.fetch(0, 0)
    broker.acknowledge(1, 0, 9, ACCEPT)
    waiting = broker.send(fetch_request(2, max_wait_ms=500))
    broker.logs.exists = False
    broker.give(TopicsDeleted(frozenset({"t"})))
    assert outcome(broker.replies[waiting]) == ErrorCode.UNKNOWN_TOPIC_ID
    assert not broker.machine.partitions
    assert [record.value for record in broker.log.values()] == [None]


def test_without_its_log_nothing_is_served() -> None:
    broker = Broker()
    broker.fetch(0, 1, max_wait_ms=0)
    waiting = broker.send(fetch_request(1, max_wait_ms=500))
    broker.give(Resign())
    assert broker.replies[waiting].error_code == ErrorCode.NOT_COORDINATOR
    assert broker.fetch(0, 0).error_code == ErrorCode.NOT_COORDINATOR
    broker.give(Load([]))
    assert broker.fetch(0, 0).error_code == 0


def test_brokers_set_and_read_states() -> None:
    broker = Broker()

    def state(name: str, version: int = 0, **fields: Any) -> Any:
        request = getattr(m, f"{name}Request")
        topic = item_class(request, "topics")
        part = item_class(topic, "partitions")(partition=0, **fields)
        answer = broker.ask(request(group_id="g", topics=[topic(topic_id=TOPIC, partitions=[part])]), version=version)
        return answer.results[0].partitions[0]

    assert state("ReadShareGroupState").error_code == ErrorCode.INVALID_REQUEST
    assert state("ReadShareGroupStateSummary").start_offset == -1
    assert state("InitializeShareGroupState", state_epoch=3, start_offset=-1).error_code == 0
    assert state("InitializeShareGroupState", state_epoch=2, start_offset=5).error_code == ErrorCode.FENCED_STATE_EPOCH
    assert state("InitializeShareGroupState", state_epoch=3, start_offset=10).error_code == 0
    assert acquired(broker.fetch(0, 0)) == [(10, 29, 1)]
    broker.acknowledge(1, 20, 21, REJECT)
    read = state("ReadShareGroupState", leader_epoch=4)
    assert (read.state_epoch, read.start_offset) == (3, 10)
    assert [(each.first_offset, each.last_offset, each.delivery_state) for each in read.state_batches] == [(20, 21, 4)]
    summary = state("ReadShareGroupStateSummary", version=1, leader_epoch=4)
    assert (summary.start_offset, summary.leader_epoch, summary.delivery_complete_count) == (10, 4, 2)
    assert state("ReadShareGroupState", leader_epoch=3).error_code == ErrorCode.FENCED_LEADER_EPOCH
    batch = m.WriteShareGroupStateRequestStateBatch(first_offset=10, last_offset=19, delivery_state=2, delivery_count=1)
    written = {"state_epoch": 3, "leader_epoch": 4, "start_offset": -1, "state_batches": [batch]}
    far = replace(batch, first_offset=10**12, last_offset=10**12)
    assert state("WriteShareGroupState", **written | {"state_batches": [far]}).error_code == ErrorCode.INVALID_REQUEST
    assert state("WriteShareGroupState", **written).error_code == 0
    broker.restart()
    assert acquired(broker.fetch(0, 0)) == [(22, 29, 1)]
    assert state("DeleteShareGroupState").error_code == 0
    assert acquired(broker.fetch(0, 0)) == [(0, 29, 1)]


def test_the_later_delivery_counts_where_ranges_overlap() -> None:
    old = [StateRange(0, 9, State.ACKNOWLEDGED, 1), StateRange(20, 29, State.AVAILABLE, 3)]
    changes = [StateRange(5, 24, State.ARCHIVED, 2), StateRange(29, 30, State.ARCHIVED, 3)]
    assert merged(old, changes) == [
        StateRange(0, 4, State.ACKNOWLEDGED, 1),
        StateRange(5, 19, State.ARCHIVED, 2),
        StateRange(20, 28, State.AVAILABLE, 3),
        StateRange(29, 30, State.ARCHIVED, 3),
    ]
