"""The member machine: what it sends, and how it reacts to every response of the protocol."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from kcoord_wire import messages as m
from kcoord_wire.assignors import (
    ASSIGNORS,
    NO_RACKS,
    Assignment,
    Assignor,
    MemberAssignment,
    MemberSubscription,
    Partitions,
    Racks,
    RebalanceProtocol,
    TopicPartition,
    group_partitions,
)
from kcoord_wire.assignors.range import round_robin
from kcoord_wire.consumer.classic_member import MemberMachine
from kcoord_wire.consumer.member_events import (
    CLIENT_VERSIONS,
    Arrived,
    Assigned,
    Assigning,
    Commit,
    Committed,
    Distribute,
    Failed,
    Fetched,
    Leave,
    Left,
    Lost,
    MemberEffect,
    MemberEvent,
    MemberSettings,
    MemberState,
    NotCommitted,
    NotFetched,
    Polled,
    Rejoin,
    Released,
    Revoking,
    SendRequest,
    Stalled,
    Subscribe,
    TopicsKnown,
    Unreadable,
    Versions,
)
from kcoord_wire.consumer.requests import assign
from kcoord_wire.errors import DecodeError
from kcoord_wire.kernel.machines import Close, Disconnected, Tick
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.driven import Driven

TOPICS = {"orders": 4}
PARTITIONS = [TopicPartition("orders", index) for index in range(4)]


class JsonEmbedded:
    """An embedded protocol that a test can read."""

    def encode_subscription(self, subscription: MemberSubscription) -> bytes:
        one = subscription
        return json.dumps(
            [list(one.topics), one.owned, one.generation, one.rack, one.user_data.decode("latin-1")]
        ).encode()

    def decode_subscription(self, data: bytes, instance_id: str | None) -> MemberSubscription:
        topics, owned, generation, rack, user_data = json.loads(data)
        return MemberSubscription(topics, owned, generation, instance_id, rack, user_data.encode("latin-1"))

    def encode_assignment(self, assignment: MemberAssignment) -> bytes:
        partitions = {topic: list(numbers) for topic, numbers in assignment.partitions.items()}
        return json.dumps([partitions, assignment.user_data.decode("latin-1")]).encode()

    def decode_assignment(self, data: bytes) -> MemberAssignment:
        partitions, user_data = json.loads(data)
        return MemberAssignment(partitions, user_data.encode("latin-1"))


EMBEDDED = JsonEmbedded()


def assigning(partitions: Sequence[TopicPartition]) -> bytes:
    return EMBEDDED.encode_assignment(MemberAssignment(group_partitions(partitions)))


class Script(Driven):
    """A member and its clock; its requests are kept, and answered by the test."""

    def __init__(
        self, *assignors: str | Assignor, host_assigns: bool = False, stalled: bool = False, **settings: Any
    ) -> None:
        self.now = 1_000
        self.sent: list[SendRequest] = []
        self.effects: list[MemberEffect] = []
        options = {"group_id": "g", "client_id": "c", "session_timeout_ms": 10_000, **settings}
        self.machine = MemberMachine(
            MemberSettings(**options),
            [ASSIGNORS[each] if isinstance(each, str) else each for each in assignors or ("range",)],
            EMBEDDED,
            host_assigns=host_assigns,
        )
        if stalled:
            self.do(Stalled())
        self.do(TopicsKnown(TOPICS))
        self.do(Subscribe(("orders",)))

    def do(self, event: MemberEvent) -> list[MemberEffect]:
        self.effects = super().do(event)
        self.sent += [effect for effect in self.effects if isinstance(effect, SendRequest)]
        return self.effects

    def request(self, kind: type) -> Any:
        """Return the newest request, which must be of this type."""
        assert isinstance(self.sent[-1].message, kind), self.sent[-1]
        return self.sent[-1].message

    def answer(self, message: Any, to: SendRequest | None = None) -> list[MemberEffect]:
        return self.do(Arrived((to or self.sent[-1]).request_id, message))

    def find(self) -> None:
        self.request(m.FindCoordinatorRequest)
        coordinator = m.FindCoordinatorResponseCoordinator(key="g", node_id=1, host="h", port=1)
        self.answer(m.FindCoordinatorResponse(node_id=1, coordinators=[coordinator]))

    def join(self, generation_id: int = 1, *, leader: str = "x", protocol: str = "", **fields: Any) -> None:
        protocol = protocol or self.request(m.JoinGroupRequest).protocols[0].name
        answer = m.JoinGroupResponse(
            generation_id=generation_id, protocol_name=protocol, leader=leader, member_id="x", **fields
        )
        self.answer(answer)

    def sync(self, partitions: Sequence[TopicPartition] = tuple(PARTITIONS)) -> list[MemberEffect]:
        self.request(m.SyncGroupRequest)
        return self.answer(m.SyncGroupResponse(assignment=assigning(partitions)))

    def settle(self, generation_id: int = 1, partitions: Sequence[TopicPartition] = tuple(PARTITIONS)) -> None:
        """Join and become stable as a follower."""
        self.find()
        self.join(generation_id, leader="other")
        self.sync(partitions)
        self.fetched(dict.fromkeys(partitions, 7))

    def fetched(self, offsets: dict[TopicPartition, int], error: int = 0) -> list[MemberEffect]:
        self.request(m.OffsetFetchRequest)
        parts = [
            m.OffsetFetchResponsePartitions(partition_index=index, committed_offset=offset, error_code=error)
            for (_, index), offset in offsets.items()
        ]
        topic = m.OffsetFetchResponseTopics(name="orders", partitions=parts)
        return self.answer(m.OffsetFetchResponse(groups=[m.OffsetFetchResponseGroup(group_id="g", topics=[topic])]))

    def kinds(self) -> list[type]:
        return [type(send.message) for send in self.sent]


def _joined() -> Script:
    script = Script()
    script.settle()
    assert script.machine.state is MemberState.STABLE
    return script


# ---- the way in


def test_a_member_finds_joins_syncs_and_fetches() -> None:
    script = Script(group_instance_id=None)
    script.find()
    first = script.request(m.JoinGroupRequest)
    assert (first.member_id, first.protocol_type, [p.name for p in first.protocols]) == ("", "consumer", ["range"])
    script.answer(m.JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="x"))
    assert script.request(m.JoinGroupRequest).member_id == "x"
    blob = EMBEDDED.encode_subscription(MemberSubscription(["orders"]))
    script.join(leader="x", members=[m.JoinGroupResponseMember(member_id=name, metadata=blob) for name in "xy"])
    sync = script.request(m.SyncGroupRequest)
    assert {item.member_id: EMBEDDED.decode_assignment(item.assignment).partitions for item in sync.assignments} == {
        "x": {"orders": [0, 1]},
        "y": {"orders": [2, 3]},
    }
    assert (sync.protocol_type, sync.protocol_name) == ("consumer", "range")
    effects = script.sync(PARTITIONS[:2])
    assert effects[0] == Assigned(1, frozenset(PARTITIONS[:2]))
    assert script.machine.is_leader
    assert script.fetched(dict.fromkeys(PARTITIONS[:2], 5)) == [Fetched(dict.fromkeys(PARTITIONS[:2], 5))]
    script.wait(3_000)
    assert script.request(m.HeartbeatRequest).generation_id == 1


@pytest.mark.parametrize("client", CLIENT_VERSIONS)
def test_requests_have_the_versions_of_the_client(client: str) -> None:
    versions = CLIENT_VERSIONS[client]
    script = Script(versions=versions, group_instance_id="i")
    assert script.sent[-1].version == versions.find_coordinator
    script.find()
    join = script.request(m.JoinGroupRequest)
    assert join.group_instance_id == ("i" if versions.join >= 5 else None)
    script.join(leader="other")
    assert script.sent[-1].version == versions.sync
    script.sync()
    assert script.sent[-1].version == versions.fetch
    script.do(Commit({PARTITIONS[0]: 3}))
    assert script.sent[-1].version == versions.commit
    script.wait(3_000)
    assert script.sent[-1].version == versions.heartbeat


def test_nothing_is_sent_without_a_subscription() -> None:
    member = MemberMachine(MemberSettings(group_id="g"), [ASSIGNORS["range"]], EMBEDDED)
    assert member.handle(TopicsKnown(TOPICS), 0) == []
    assert member.deadline is None


# ---- answers to FindCoordinator, JoinGroup and SyncGroup


def test_the_search_for_a_coordinator_backs_off() -> None:
    script = Script()
    waits = []
    for _ in range(6):
        coordinator = m.FindCoordinatorResponseCoordinator(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        script.answer(m.FindCoordinatorResponse(coordinators=[coordinator]))
        assert script.machine.deadline is not None
        waits.append(script.machine.deadline - script.now)
        script.wait(waits[-1])
        script.request(m.FindCoordinatorRequest)
    assert waits == [100, 200, 400, 800, 1_000, 1_000]


FATAL = [
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    ErrorCode.INVALID_GROUP_ID,
    ErrorCode.INVALID_SESSION_TIMEOUT,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_MAX_SIZE_REACHED,
    ErrorCode.FENCED_INSTANCE_ID,
]


@pytest.mark.parametrize("error", FATAL)
def test_fatal_errors_of_join(error: ErrorCode) -> None:
    script = Script()
    script.find()
    assert script.answer(m.JoinGroupResponse(error_code=error)) == [Failed(error)]
    assert script.machine.state is MemberState.FAILED
    assert script.machine.deadline is None
    assert script.do(Tick()) == []


@pytest.mark.parametrize(
    ("error", "member_id", "finds"),
    [
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "x", False),
        (ErrorCode.REBALANCE_IN_PROGRESS, "x", False),
        (ErrorCode.UNKNOWN_MEMBER_ID, "", False),
        (ErrorCode.NOT_COORDINATOR, "x", True),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, "x", True),
    ],
)
def test_errors_of_join_after_which_it_joins_again(error: ErrorCode, member_id: str, finds: bool) -> None:
    script = Script()
    script.find()
    script.answer(m.JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="x"))
    effects = script.answer(m.JoinGroupResponse(error_code=error))
    assert (Close() in effects) is finds
    script.wait(100)
    if finds:
        script.find()
    assert script.request(m.JoinGroupRequest).member_id == member_id


@pytest.mark.parametrize(
    ("error", "member_id", "generation_id", "finds"),
    [
        (ErrorCode.REBALANCE_IN_PROGRESS, "x", 1, False),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "x", 1, False),
        (ErrorCode.ILLEGAL_GENERATION, "x", -1, False),
        (ErrorCode.UNKNOWN_MEMBER_ID, "", -1, False),
        (ErrorCode.NOT_COORDINATOR, "x", 1, True),
    ],
)
def test_errors_of_sync_after_which_it_joins_again(
    error: ErrorCode, member_id: str, generation_id: int, finds: bool
) -> None:
    script = Script()
    script.find()
    script.join()
    script.answer(m.SyncGroupResponse(error_code=error))
    assert script.machine.generation_id == generation_id
    script.wait(100)
    if finds:
        script.find()
    assert script.request(m.JoinGroupRequest).member_id == member_id


@pytest.mark.parametrize("error", [ErrorCode.FENCED_INSTANCE_ID, ErrorCode.INCONSISTENT_GROUP_PROTOCOL])
def test_fatal_errors_of_sync(error: ErrorCode) -> None:
    script = Script()
    script.find()
    script.join()
    assert script.answer(m.SyncGroupResponse(error_code=error)) == [Failed(error)]


def test_a_sync_response_of_a_past_generation_is_ignored() -> None:
    script = Script()
    script.find()
    script.join()
    sync = script.sent[-1]
    script.wait(3_000)
    script.request(m.HeartbeatRequest)
    script.answer(m.HeartbeatResponse(error_code=ErrorCode.ILLEGAL_GENERATION))
    script.request(m.JoinGroupRequest)
    assert script.answer(m.SyncGroupResponse(assignment=assigning(PARTITIONS)), to=sync) == []
    assert script.machine.owned == frozenset()


# ---- heartbeats


def test_an_eager_member_gives_up_all_before_it_joins() -> None:
    script = _joined()
    script.wait(3_000)
    effects = script.answer(m.HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    assert effects == [Revoking(1, frozenset(PARTITIONS))]
    script.wait(3_000)
    script.request(m.HeartbeatRequest)  # they go on while the application is at it
    script.do(Released(1, dict.fromkeys(PARTITIONS, 9)))
    assert script.kinds()[-2:] == [m.OffsetCommitRequest, m.JoinGroupRequest]
    assert script.machine.owned == frozenset()
    subscription = EMBEDDED.decode_subscription(script.request(m.JoinGroupRequest).protocols[0].metadata, None)
    assert subscription.owned == {}


def test_a_cooperative_member_keeps_its_own_and_joins_twice() -> None:
    script = Script("cooperative-sticky")
    script.settle()
    script.wait(3_000)
    script.answer(m.HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    subscription = EMBEDDED.decode_subscription(script.request(m.JoinGroupRequest).protocols[0].metadata, None)
    assert (subscription.owned, subscription.generation) == (group_partitions(PARTITIONS), 1)
    script.join(2, leader="other", protocol="cooperative-sticky")
    effects = script.sync(PARTITIONS[:3])
    assert effects[:2] == [Revoking(1, frozenset(PARTITIONS[3:])), Assigned(2, frozenset())]
    assert script.machine.owned == frozenset(PARTITIONS), "until the application has let go"
    script.do(Released(1, {}))
    assert script.machine.owned == frozenset(PARTITIONS[:3])
    subscription = EMBEDDED.decode_subscription(script.request(m.JoinGroupRequest).protocols[0].metadata, None)
    assert (subscription.owned, subscription.generation) == (group_partitions(PARTITIONS[:3]), 2)
    script.join(3, leader="other", protocol="cooperative-sticky")
    assert script.sync(PARTITIONS[:3]) == [Assigned(3, frozenset())]


def test_an_assignors_user_data_goes_both_ways() -> None:
    """`on_join` -> the leader's `assign` -> `assignment_user_data` -> `on_assignment`."""
    calls: list[tuple[Any, ...]] = []

    def on_join(topics: Sequence[str], assigned: Partitions, generation: int) -> bytes:
        calls.append((list(topics), dict(assigned), generation))
        return b"from-%d" % generation

    def assignment_user_data(_counts: Any, members: Any, _assignment: Any) -> dict[str, bytes]:
        return {member_id: b"to-" + member.user_data for member_id, member in members.items()}

    def on_assignment(partitions: Partitions, user_data: bytes, generation: int) -> None:
        calls.append((dict(partitions), user_data, generation))

    own = Assignor("own", RebalanceProtocol.EAGER, round_robin, on_join, on_assignment, assignment_user_data)
    script = Script(own)
    script.find()
    metadata = script.request(m.JoinGroupRequest).protocols[0].metadata
    script.join(leader="x", members=[m.JoinGroupResponseMember(member_id="x", metadata=metadata)])
    script.answer(m.SyncGroupResponse(assignment=script.request(m.SyncGroupRequest).assignments[0].assignment))
    script.fetched(dict.fromkeys(PARTITIONS, 5))
    script.do(Rejoin())
    script.do(Released(1, {}))
    assert calls == [
        (["orders"], {}, -1),
        ({"orders": [0, 1, 2, 3]}, b"to-from--1", 1),
        (["orders"], {"orders": [0, 1, 2, 3]}, 1),
    ]


def test_a_leader_passes_racks_to_its_assignor() -> None:
    seen: list[Any] = []

    def assign(counts: Any, members: Any, racks: Racks = NO_RACKS) -> Assignment:
        seen.append((racks, [member.rack for member in members.values()]))
        return round_robin(counts, members)

    script = Script(Assignor("own", RebalanceProtocol.EAGER, assign), rack="r1")
    script.find()
    script.do(TopicsKnown(TOPICS, {"orders": [["r1"]] * 4}))
    metadata = script.request(m.JoinGroupRequest).protocols[0].metadata
    script.join(leader="x", members=[m.JoinGroupResponseMember(member_id="x", metadata=metadata)])
    assert seen == [({"orders": [["r1"]] * 4}, ["r1"])]


@pytest.mark.parametrize(
    ("error", "member_id"), [(ErrorCode.ILLEGAL_GENERATION, "x"), (ErrorCode.UNKNOWN_MEMBER_ID, "")]
)
def test_a_removed_member_loses_its_partitions_at_once(error: ErrorCode, member_id: str) -> None:
    script = _joined()
    script.wait(3_000)
    effects = script.answer(m.HeartbeatResponse(error_code=error))
    assert effects[0] == Lost(frozenset(PARTITIONS))
    assert script.request(m.JoinGroupRequest).member_id == member_id


def test_partitions_lost_during_revocation_are_not_released() -> None:
    script = _joined()
    script.wait(3_000)
    script.answer(m.HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    script.wait(3_000)
    script.answer(m.HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
    assert script.machine.state is MemberState.JOINING
    assert script.do(Released(1, dict.fromkeys(PARTITIONS, 9))) == []


def test_a_fenced_member_fails() -> None:
    script = _joined()
    script.wait(3_000)
    effects = script.answer(m.HeartbeatResponse(error_code=ErrorCode.FENCED_INSTANCE_ID))
    assert effects == [Lost(frozenset(PARTITIONS)), Failed(ErrorCode.FENCED_INSTANCE_ID)]


def test_a_member_stays_when_its_coordinator_moves() -> None:
    script = _joined()
    script.wait(3_000)
    assert Close() in script.answer(m.HeartbeatResponse(error_code=ErrorCode.NOT_COORDINATOR))
    script.wait(100)
    script.find()
    script.wait(3_000)
    assert script.request(m.HeartbeatRequest).generation_id == 1
    assert script.machine.state is MemberState.STABLE


def test_a_lost_connection_is_replaced_without_a_rejoin() -> None:
    script = _joined()
    assert script.do(Disconnected()) == []
    script.wait(100)
    script.find()
    assert script.machine.state is MemberState.STABLE
    assert script.machine.owned == frozenset(PARTITIONS)


@pytest.mark.parametrize("sync", [False, True])
def test_a_connection_lost_while_joining_means_a_new_join(sync: bool) -> None:
    script = Script()
    script.find()
    if sync:
        script.join()
    script.do(Disconnected())
    script.wait(100)
    script.find()
    assert script.request(m.JoinGroupRequest).member_id == ("x" if sync else "")


def test_a_request_that_times_out_closes_the_connection() -> None:
    script = _joined()
    script.wait(3_000)
    script.request(m.HeartbeatRequest)
    effects = script.wait(10_000)  # the session: no heartbeat was answered for so long
    assert Close() in effects
    script.request(m.FindCoordinatorRequest)
    assert Close() in script.wait(30_000)


def test_a_sync_may_take_as_long_as_its_leader() -> None:
    """Brokers read nothing behind a parked SyncGroup, so a heartbeat there is answered late."""
    script = Script(rebalance_timeout_ms=60_000)
    script.find()
    script.join(leader="other")
    sync = script.sent[-1]
    assert Close() not in script.wait(64_999)
    script.request(m.HeartbeatRequest)
    beat = script.sent[-1]
    script.answer(m.SyncGroupResponse(assignment=assigning(PARTITIONS)), to=sync)
    assert Close() not in script.answer(m.HeartbeatResponse(), to=beat)
    assert script.machine.owned == frozenset(PARTITIONS)


def test_a_rebalance_that_takes_long_renews_the_session() -> None:
    """The coordinator counts a heartbeat that it answers with REBALANCE_IN_PROGRESS."""
    script = _joined()
    script.wait(3_000)
    for _ in range(10):
        script.answer(m.HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        assert Close() not in script.wait(3_000)
        assert script.machine.state is MemberState.REVOKING


def test_a_join_may_take_the_rebalance_timeout() -> None:
    script = Script(rebalance_timeout_ms=60_000)
    script.find()
    assert script.wait(64_999) == []
    assert Close() in script.wait(1)


# ---- offsets


def _answer_to_commit(*errors: int) -> m.OffsetCommitResponse:
    parts = [
        m.OffsetCommitResponsePartition(partition_index=index, error_code=error) for index, error in enumerate(errors)
    ]
    return m.OffsetCommitResponse(topics=[m.OffsetCommitResponseTopic(name="orders", partitions=parts)])


def test_a_commit_carries_the_members_generation() -> None:
    script = _joined()
    offsets = {PARTITIONS[0]: 3, PARTITIONS[1]: 4}
    script.do(Commit(offsets))
    request = script.request(m.OffsetCommitRequest)
    assert (request.member_id, request.generation_id_or_member_epoch) == ("x", 1)
    assert script.answer(_answer_to_commit(0, 0)) == [Committed(offsets)]


def test_a_commit_can_be_refused_in_part() -> None:
    script = _joined()
    script.do(Commit({PARTITIONS[0]: 3, PARTITIONS[1]: 4}))
    error = ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert script.answer(_answer_to_commit(0, error)) == [
        Committed({PARTITIONS[0]: 3}),
        NotCommitted({PARTITIONS[1]: 4}, error),
    ]


@pytest.mark.parametrize(
    ("error", "then"),
    [
        (ErrorCode.REBALANCE_IN_PROGRESS, MemberState.REVOKING),
        (ErrorCode.ILLEGAL_GENERATION, MemberState.JOINING),
        (ErrorCode.UNKNOWN_MEMBER_ID, MemberState.JOINING),
        (ErrorCode.FENCED_INSTANCE_ID, MemberState.FAILED),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, MemberState.STABLE),
        (ErrorCode.NOT_COORDINATOR, MemberState.STABLE),
        (ErrorCode.REQUEST_TIMED_OUT, MemberState.STABLE),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, MemberState.STABLE),
    ],
)
def test_a_refused_commit_makes_the_member_react(error: ErrorCode, then: MemberState) -> None:
    script = _joined()
    offsets = {PARTITIONS[0]: 3}
    script.do(Commit(offsets))
    assert NotCommitted(offsets, error) in script.answer(_answer_to_commit(error))
    assert script.machine.state is then


@pytest.mark.parametrize("error", [ErrorCode.NOT_COORDINATOR, ErrorCode.REQUEST_TIMED_OUT])
def test_a_refused_commit_starts_a_search(error: ErrorCode) -> None:
    script = _joined()
    script.do(Commit({PARTITIONS[0]: 3}))
    assert Close() in script.answer(_answer_to_commit(error))
    script.wait(100)
    script.request(m.FindCoordinatorRequest)


def test_a_commit_outside_a_generation_is_not_sent() -> None:
    script = Script()
    script.find()
    assert script.do(Commit({PARTITIONS[0]: 1})) == [NotCommitted({PARTITIONS[0]: 1}, ErrorCode.REBALANCE_IN_PROGRESS)]
    script = _joined()
    script.do(Disconnected())
    assert script.do(Commit({PARTITIONS[0]: 1})) == [
        NotCommitted({PARTITIONS[0]: 1}, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    ]


def test_a_commit_on_a_lost_connection_has_no_known_outcome() -> None:
    script = _joined()
    script.do(Commit({PARTITIONS[0]: 1}))
    assert script.do(Disconnected()) == [NotCommitted({PARTITIONS[0]: 1}, ErrorCode.NETWORK_EXCEPTION)]


@pytest.mark.parametrize("error", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.UNSTABLE_OFFSET_COMMIT])
def test_offsets_are_fetched_again_after_transient_errors(error: ErrorCode) -> None:
    script = Script()
    script.find()
    script.join()
    script.sync(PARTITIONS[:1])
    assert script.fetched({PARTITIONS[0]: -1}, error) == []
    script.wait(100)
    assert script.fetched({PARTITIONS[0]: 5}) == [Fetched({PARTITIONS[0]: 5})]


@pytest.mark.parametrize("version", [1, 7, 8, 9])
def test_offsets_are_read_in_every_version(version: int) -> None:
    script = Script(versions=Versions(fetch=version))
    script.find()
    script.join()
    script.sync(PARTITIONS[:1])
    request = script.request(m.OffsetFetchRequest)
    assert request.require_stable is (version >= 7)
    if version >= 8:
        assert script.fetched({PARTITIONS[0]: 5}) == [Fetched({PARTITIONS[0]: 5})]
    else:
        part = m.OffsetFetchResponsePartition(partition_index=0, committed_offset=5)
        topic = m.OffsetFetchResponseTopic(name="orders", partitions=[part])
        assert script.answer(m.OffsetFetchResponse(topics=[topic])) == [Fetched({PARTITIONS[0]: 5})]


def test_a_fetch_without_permission_fails_the_member() -> None:
    script = Script()
    script.find()
    script.join()
    script.sync(PARTITIONS[:1])
    denied = m.OffsetFetchResponseGroup(group_id="g", error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    assert Failed(ErrorCode.GROUP_AUTHORIZATION_FAILED) in script.answer(m.OffsetFetchResponse(groups=[denied]))


@pytest.mark.parametrize(
    "error",
    [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_SERVER_ERROR],
)
def test_an_offset_that_is_refused_is_asked_for_by_the_next_poll(error: ErrorCode) -> None:
    script = Script()
    script.find()
    script.join(leader="other")
    script.sync(PARTITIONS[:2])
    one, other = (
        m.OffsetFetchResponsePartitions(partition_index=index, committed_offset=5 - 6 * bool(code), error_code=code)
        for index, code in ((0, error), (1, 0))
    )
    topic = m.OffsetFetchResponseTopics(name="orders", partitions=[one, other])
    group = m.OffsetFetchResponseGroup(group_id="g", topics=[topic])
    assert script.answer(m.OffsetFetchResponse(groups=[group])) == [
        Fetched({PARTITIONS[1]: 5}),
        NotFetched({PARTITIONS[0]: error}),
    ]
    script.wait(2_000)
    assert script.kinds().count(m.OffsetFetchRequest) == 1
    assert script.machine.state is MemberState.STABLE
    script.do(Polled())
    assert script.fetched({PARTITIONS[0]: 7}) == [Fetched({PARTITIONS[0]: 7})]


# ---- the leader, static members, and the way out


def _leads(script: Script, **fields: Any) -> None:
    blob = EMBEDDED.encode_subscription(MemberSubscription(["orders"]))
    script.find()
    script.join(leader="x", members=[m.JoinGroupResponseMember(member_id="x", metadata=blob)], **fields)


def test_the_leader_joins_again_when_the_topics_change() -> None:
    script = Script()
    _leads(script)
    script.sync()
    script.fetched(dict.fromkeys(PARTITIONS, 0))
    assert script.do(TopicsKnown({**TOPICS, "others": 3})) == [], "no subscription to that topic"
    assert script.do(TopicsKnown({"orders": 5})) == [Revoking(1, frozenset(PARTITIONS))]


def test_a_follower_does_not_watch_topics() -> None:
    assert _joined().do(TopicsKnown({"orders": 5})) == []


def test_a_returning_static_leader_assigns_nothing() -> None:
    script = Script(group_instance_id="i")
    _leads(script, skip_assignment=True)
    assert script.request(m.SyncGroupRequest).assignments == []
    script.sync()
    assert script.machine.is_leader
    script.fetched(dict.fromkeys(PARTITIONS, 0))
    assert script.do(TopicsKnown({"orders": 5})) == [Revoking(1, frozenset(PARTITIONS))], "but it watches the topics"


def test_a_new_subscription_means_a_new_join() -> None:
    script = _joined()
    assert script.do(Subscribe(("orders",))) == []
    assert script.do(Subscribe(("orders", "more"))) == [Revoking(1, frozenset(PARTITIONS))]
    script = Script("cooperative-sticky")
    script.settle()
    assert script.do(Subscribe(("more",))) == [Revoking(1, frozenset(PARTITIONS))], "it may not keep those"


def test_the_sticky_assignor_gets_the_last_assignment() -> None:
    class Recording(JsonEmbedded):
        user_data = b""

        def encode_subscription(self, subscription: MemberSubscription) -> bytes:
            self.user_data = subscription.user_data or self.user_data
            return super().encode_subscription(subscription)

    embedded = Recording()
    script = Script("sticky")
    script.machine._embedded = embedded
    script.settle()
    script.wait(3_000)
    script.answer(m.HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    script.do(Released(1, {}))
    assert b"orders" in embedded.user_data


@pytest.mark.parametrize(("version", "batch"), [(5, True), (3, True), (1, False)])
def test_leaving(version: int, batch: bool) -> None:
    script = Script(versions=Versions(leave=version))
    script.settle()
    effects = script.do(Leave("enough"))
    assert effects[-1] == Left()
    request = script.request(m.LeaveGroupRequest)
    assert [member.member_id for member in request.members] == (["x"] if batch else [])
    assert request.member_id == ("" if batch else "x")
    assert [member.reason for member in request.members if version >= 5] == (["enough"] if version >= 5 else [])
    assert script.do(Tick()) == []
    assert script.machine.deadline is None


def test_a_static_member_leaves_without_a_request() -> None:
    script = Script(group_instance_id="i")
    script.settle()
    assert script.do(Leave()) == [Left()]


# ---- a host that assigns, an application that stalls, answers that are wrong


def _asked_to_assign() -> tuple[Script, Assigning]:
    script = Script(host_assigns=True)
    _leads(script)
    [task] = script.effects
    assert isinstance(task, Assigning)
    return script, task


def test_a_host_that_assigns_is_given_the_task() -> None:
    script, task = _asked_to_assign()
    assert (task.generation_id, task.assignor, task.partitions) == (1, ASSIGNORS["range"], TOPICS)
    assert [subscription.topics for subscription in task.subscriptions.values()] == [["orders"]]
    script.wait(3_000)
    assert script.request(m.HeartbeatRequest).generation_id == 1, "heartbeats go on while it assigns"
    script.do(Distribute(1, {"orders": 6}, assign(task)))
    [only] = script.request(m.SyncGroupRequest).assignments
    assert EMBEDDED.decode_assignment(only.assignment).partitions == {"orders": [0, 1, 2, 3]}
    assert script.do(Distribute(1, TOPICS, assign(task))) == [], "once"
    script.sync()
    assert Revoking(1, frozenset(PARTITIONS)) in script.effects, "it was assigned with counts that are not these"


def test_an_assignment_of_a_past_generation_is_dropped() -> None:
    script, task = _asked_to_assign()
    script.wait(3_000)
    script.answer(m.HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
    script.request(m.JoinGroupRequest)
    assert script.do(Distribute(1, TOPICS, assign(task))) == []


def test_a_connection_lost_while_assigning_means_a_new_join() -> None:
    script, task = _asked_to_assign()
    script.do(Disconnected())
    assert script.do(Distribute(1, TOPICS, assign(task))) == []
    script.wait(100)
    script.find()
    assert script.request(m.JoinGroupRequest).member_id == "x"


def test_a_leader_without_an_assignment_leaves_until_polled() -> None:
    script, _ = _asked_to_assign()
    script.do(Distribute(1, TOPICS, None))
    assert script.request(m.LeaveGroupRequest).members[0].reason == "the leader has no assignment to send"
    script.answer(m.LeaveGroupResponse())
    assert script.wait(600_000) == []
    script.do(Polled())
    assert script.request(m.JoinGroupRequest).member_id == ""


def test_nothing_is_joined_before_the_application_polls() -> None:
    script = Script(stalled=True)
    script.find()
    assert script.wait(600_000) == []
    script.do(Polled())
    script.request(m.JoinGroupRequest)


@pytest.mark.parametrize("joining", [False, True])
def test_a_member_that_is_not_polled_leaves(joining: bool) -> None:
    script = Script(rebalance_timeout_ms=20_000, session_timeout_ms=60_000)
    if joining:  # it stalls while JoinGroup is in flight
        script.find()
        script.do(Stalled())
        script.wait(21_000)
        script.join(leader="other")
    else:
        script.settle()
        script.do(Stalled())
        script.wait(19_999)
        assert m.LeaveGroupRequest not in script.kinds()
    script.wait(1)
    assert script.request(m.LeaveGroupRequest).members[0].reason == "consumer poll timeout has expired."
    assert (script.machine.member_id, script.machine.owned) == ("", frozenset())
    script.do(Polled())
    assert script.request(m.JoinGroupRequest).member_id == ""


def test_an_application_may_stall_while_it_revokes() -> None:
    script = Script(rebalance_timeout_ms=20_000, session_timeout_ms=60_000)
    script.settle()
    script.wait(3_000)
    script.answer(m.HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    script.do(Stalled())
    assert Lost(frozenset(PARTITIONS)) in script.wait(20_000)


def test_a_subscription_may_match_no_topic() -> None:
    script = Script()
    script.do(Subscribe(()))
    script.find()
    assert EMBEDDED.decode_subscription(script.request(m.JoinGroupRequest).protocols[0].metadata, None).topics == []


class Garbled(JsonEmbedded):
    def decode_subscription(self, data: bytes, instance_id: str | None) -> MemberSubscription:
        raise DecodeError("truncated", 0, "ConsumerProtocolSubscription", "2 bytes of version are needed")

    def decode_assignment(self, data: bytes) -> MemberAssignment:
        raise DecodeError("truncated", 0, "ConsumerProtocolAssignment", "2 bytes of version are needed")


@pytest.mark.parametrize("leads", [True, False])
def test_bytes_of_others_that_cannot_be_read_are_reported(leads: bool) -> None:
    script = Script()
    script.machine._embedded = Garbled()
    if leads:
        _leads(script)
    else:
        script.find()
        script.join(leader="other")
        script.sync()
    unreadable = script.effects[0]
    assert isinstance(unreadable, Unreadable)
    assert (unreadable.protocol, "2 bytes of version" in unreadable.detail) == ("range", True)
    assert script.request(m.LeaveGroupRequest)
    assert script.machine.state is MemberState.UNJOINED


def test_a_protocol_that_was_not_offered_fails_the_member() -> None:
    script = Script()
    script.find()
    script.join(protocol="unheard-of")
    assert script.effects == [Failed(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)]


def test_an_unknown_error_fails_the_member() -> None:
    script = Script()
    script.find()
    assert script.answer(m.JoinGroupResponse(error_code=999)) == [Failed(ErrorCode.UNKNOWN_SERVER_ERROR)]


def test_an_empty_answer_to_find_coordinator_means_another_try() -> None:
    script = Script()
    assert script.answer(m.FindCoordinatorResponse(coordinators=[])) == []
    script.wait(100)
    script.find()


def test_offsets_that_an_answer_leaves_out_are_asked_for_again() -> None:
    script = Script()
    script.find()
    script.join(leader="other")
    script.sync(PARTITIONS[:2])
    assert script.fetched({PARTITIONS[0]: 5}) == [Fetched({PARTITIONS[0]: 5})]
    assert script.answer(m.OffsetFetchResponse(groups=[])) == []
    script.wait(100)
    assert script.fetched({PARTITIONS[1]: 6}) == [Fetched({PARTITIONS[1]: 6})]


def test_a_commit_that_the_answer_leaves_out_is_refused() -> None:
    script = _joined()
    script.do(Commit({PARTITIONS[0]: 3, PARTITIONS[1]: 4}, 17))
    assert script.answer(_answer_to_commit(0)) == [
        Committed({PARTITIONS[0]: 3}, 17),
        NotCommitted({PARTITIONS[1]: 4}, ErrorCode.UNKNOWN_SERVER_ERROR, 17),
    ]
