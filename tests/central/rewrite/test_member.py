"""The member of the rewrite. Tests are named after the document's scenarios and their points, on the member's side."""

from __future__ import annotations

import pytest

from kcoord_wire.central.rewrite.events import MemberSettings, Progress, RewriteError, StartFetching, StopFetching
from kcoord_wire.central.rewrite.member import MemberPhase
from kcoord_wire.kernel.machines import Close, Connect, Disconnected, Ended, Received, Send, Shutdown
from kcoord_wire.messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseTopic,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from kcoord_wire.messages.rewrite import RewriteJoinGroupRequest, RewriteJoinGroupResponse
from tests.support.rewrite_members import BOOTSTRAP, COORDINATOR, P0, P1, Driven

SESSION = 6_000
BEAT = 1_800  # 0.3 of it


def offsets_of(request: OffsetCommitRequest) -> dict[int, int]:
    [topic] = request.topics
    return {each.partition_index: each.committed_offset for each in topic.partitions}


# ---- start


def test_start_finds_the_coordinator_then_joins() -> None:
    driven = Driven()
    assert driven.effects == [Connect(1, BOOTSTRAP[0])]
    driven.finds()
    assert driven.sent() == RewriteJoinGroupRequest(
        group_id="g", session_timeout_ms=SESSION, topics=["orders"], consumer_id="", strategy="range"
    )
    driven.joined(1, 0, 1)
    request = driven.sent()
    assert isinstance(request, OffsetFetchRequest)
    assert [(topic.name, topic.partition_indexes) for topic in request.topics or []] == [("orders", [0, 1])]
    assert driven.offsets(p0=10, p1=-1) == [StartFetching(1, {P0: 10, P1: -1})]


def test_the_coordinator_has_a_connection_of_its_own() -> None:
    driven = Driven()
    driven.connects()
    node, host, port = COORDINATOR
    found = FindCoordinatorResponse(node_id=node, host=host, port=port)
    assert driven.answers(found) == [Close(1), Connect(2, COORDINATOR)]


def test_a_member_without_partitions_beats() -> None:
    driven = Driven()
    driven.finds()
    driven.joined(1)
    assert driven.is_fetching
    assert isinstance(driven.tick(BEAT)[0].message, HeartbeatRequest)


# ---- Co-ordinator failover or connection loss to the co-ordinator


def test_failover_1_startup_not_complete_to_metadata() -> None:
    driven = Driven()
    assert driven.finds(RewriteError.COORDINATOR_STARTUP_NOT_COMPLETE) == [Close(1)]
    assert driven.wait() == [Connect(2, BOOTSTRAP[1])]
    assert driven.now == driven.member.settings.retry_backoff_ms
    driven.finds()
    assert isinstance(driven.sent(), RewriteJoinGroupRequest)


def test_failover_1_startup_not_complete_in_a_heartbeat() -> None:
    driven = Driven().start()
    assert driven.beat(RewriteError.COORDINATOR_STARTUP_NOT_COMPLETE) == []
    driven.wait()
    assert driven.kinds() == ["HeartbeatRequest"]
    assert driven.now == BEAT + driven.member.settings.retry_backoff_ms
    assert driven.is_fetching


def test_failover_1_after_illegal_protocol_state_it_asks_again() -> None:
    driven = Driven()
    driven.finds()
    assert driven.joined(0, error=RewriteError.ILLEGAL_PROTOCOL_STATE) == [Close(2)]
    driven.wait()
    driven.finds(RewriteError.COORDINATOR_STARTUP_NOT_COMPLETE)
    driven.wait()
    driven.finds()
    assert isinstance(driven.sent(), RewriteJoinGroupRequest)


def test_failover_2_not_coordinator_in_a_heartbeat_backs_off() -> None:
    driven = Driven().start()
    before = driven.connection
    assert driven.beat(RewriteError.NOT_COORDINATOR_FOR_GROUP) == [Close(before)]
    assert driven.tick(driven.member.settings.retry_backoff_ms - 1) == []
    assert driven.tick(1) == [Connect(before + 1, BOOTSTRAP[1])]
    driven.connects()
    assert driven.sent() == FindCoordinatorRequest(key="g")


def test_failover_2_not_coordinator_in_a_commit_backs_off() -> None:
    driven = Driven().start()
    driven.happens(Progress({P0: 11}))
    while not isinstance(driven.sent(), OffsetCommitRequest):
        if isinstance(driven.sent(), HeartbeatRequest):
            driven.beat()
        else:
            driven.wait()
    assert driven.committed(RewriteError.NOT_COORDINATOR_FOR_GROUP) == [Close(driven.connection)]
    driven.wait()
    driven.finds()
    assert isinstance(driven.sent(), HeartbeatRequest)
    driven.beat()
    driven.wait()
    assert driven.is_fetching


def test_failover_3_fetching_goes_on() -> None:
    driven = Driven().start()
    seen = [type(each) for each in driven.disconnects()]
    for _ in range(20):  # no broker answers, for three sessions
        seen += [type(each) for each in driven.tick(1_000)]
    assert StopFetching not in seen
    assert driven.is_fetching
    driven.happens(Progress({P0: 500}))
    driven.tick(0)
    while not isinstance(driven.effects[0] if driven.effects else None, Connect):
        driven.wait()
    driven.finds()
    driven.beat()
    assert driven.kinds() == ["OffsetCommitRequest"]
    assert offsets_of(driven.sent()) == {0: 500}


# ---- Partition changes for subscribed topics


def test_partitions_3_after_a_lost_connection_a_heartbeat() -> None:
    driven = Driven().start()
    driven.beat()
    driven.disconnects()
    driven.wait()
    driven.finds()
    assert driven.sent() == HeartbeatRequest(group_id="g", generation_id=1, member_id="c-1")
    assert driven.now < 2 * BEAT, "it waited for the next heartbeat of the old connection"
    assert driven.beat() == []
    assert driven.is_fetching


def test_partitions_3_illegal_generation_stop_commit_join() -> None:
    driven = Driven().start(generation=4)
    driven.disconnects()
    driven.wait()
    driven.finds()
    assert driven.beat(RewriteError.ILLEGAL_GENERATION) == [StopFetching()]
    driven.stops(p0=15, p1=20)
    request = driven.sent()
    assert isinstance(request, OffsetCommitRequest)
    assert (request.generation_id_or_member_epoch, request.member_id) == (4, "c-1")
    assert offsets_of(request) == {0: 15}, "what has not moved is committed already"
    driven.committed()
    request = driven.sent()
    assert isinstance(request, RewriteJoinGroupRequest)
    assert request.consumer_id == "c-1"


def test_partitions_3_a_lost_join_is_sent_again() -> None:
    driven = Driven()
    driven.finds()
    driven.disconnects()
    driven.wait()
    driven.finds()
    assert isinstance(driven.sent(), RewriteJoinGroupRequest)


def test_partitions_5_generation_and_id_of_the_response_are_used() -> None:
    driven = Driven().start(generation=4)
    driven.beat(RewriteError.ILLEGAL_GENERATION)
    driven.stops(p0=10, p1=20)
    assert driven.kinds() == ["RewriteJoinGroupRequest"], "nothing was consumed: there is nothing to commit"
    driven.joined(5, 1)
    assert driven.member.generation == 5
    assert driven.offsets(p1=20) == [StartFetching(5, {P1: 20})]
    driven.wait()
    assert driven.sent() == HeartbeatRequest(group_id="g", generation_id=5, member_id="c-1")


# ---- Offset commits during rebalance


def test_offset_commits_1_nothing_fetched_from_commit_to_join() -> None:
    driven = Driven().start()
    driven.beat(RewriteError.ILLEGAL_GENERATION)
    assert driven.member.phase is MemberPhase.STOPPING
    assert driven.tick(SESSION) == [], "the commit waits for the fetchers"
    driven.effects = [StopFetching()]
    driven.stops(p0=11, p1=21)
    assert driven.kinds() == ["OffsetCommitRequest"]
    driven.committed()
    assert driven.kinds() == ["RewriteJoinGroupRequest"]


def test_offset_commits_1_a_refused_commit_leads_to_a_join() -> None:
    driven = Driven().start()
    driven.happens(Progress({P0: 12}))
    driven.beat()
    driven.beat()
    driven.wait()
    assert driven.kinds() == ["OffsetCommitRequest"]
    assert driven.committed(RewriteError.ILLEGAL_GENERATION) == [StopFetching()]


def test_offset_commits_1_a_lost_commit_is_sent_again() -> None:
    driven = Driven().start()
    driven.beat(RewriteError.ILLEGAL_GENERATION)
    driven.stops(p0=15, p1=20)
    driven.committed(RewriteError.NOT_COORDINATOR_FOR_GROUP)
    driven.wait()
    driven.finds()
    assert driven.kinds() == ["OffsetCommitRequest"]
    driven.committed(RewriteError.COORDINATOR_STARTUP_NOT_COMPLETE)
    driven.wait()
    assert offsets_of(driven.sent()) == {0: 15}


def test_offset_commits_3_it_joins_though_its_commit_is_refused() -> None:
    driven = Driven().start()
    driven.beat(RewriteError.ILLEGAL_GENERATION)
    driven.stops(p0=15, p1=20)
    driven.committed(RewriteError.ILLEGAL_GENERATION)
    assert driven.kinds() == ["RewriteJoinGroupRequest"]


def test_offset_commits_4_after_rebalance_failed_another_join() -> None:
    driven = Driven().start()
    driven.beat(RewriteError.ILLEGAL_GENERATION)
    driven.stops(p0=10, p1=20)
    driven.joined(0, error=RewriteError.REBALANCE_FAILED)
    assert driven.kinds() == ["RewriteJoinGroupRequest"]
    driven.joined(6, 0)
    assert driven.member.generation == 6


def test_offset_commits_4_marked_dead_it_joins_without_its_id() -> None:
    driven = Driven().start()
    driven.tick(3 * SESSION)
    assert driven.beat(RewriteError.UNKNOWN_CONSUMER_ID) == [StopFetching()]
    driven.stops(p0=99, p1=20)
    request = driven.sent()
    assert isinstance(request, RewriteJoinGroupRequest), "its commit would be refused"
    assert request.consumer_id == ""


def test_an_unknown_id_in_the_join_is_dropped() -> None:
    driven = Driven().start()
    driven.beat(RewriteError.ILLEGAL_GENERATION)
    driven.stops(p0=10, p1=20)
    driven.joined(0, error=RewriteError.UNKNOWN_CONSUMER_ID)
    assert driven.sent() == RewriteJoinGroupRequest(
        group_id="g", session_timeout_ms=SESSION, topics=["orders"], consumer_id="", strategy="range"
    )


# ---- Heartbeats during rebalance


def test_heartbeats_1_come_every_three_tenths_of_the_session() -> None:
    driven = Driven(session_timeout_ms=10_000).start()
    times = []
    for _ in range(5):
        driven.beat()
        times.append(driven.now)
    assert times == [3_000, 6_000, 9_000, 12_000, 15_000]


def test_heartbeats_1_none_between_join_and_its_response() -> None:
    driven = Driven().start()
    driven.beat(RewriteError.ILLEGAL_GENERATION)
    driven.stops(p0=15, p1=20)
    seen = driven.kinds()
    driven.committed()
    seen += driven.kinds()
    for _ in range(60):
        driven.tick(500)
        seen += driven.kinds()
    assert seen == ["OffsetCommitRequest", "RewriteJoinGroupRequest"]


def test_heartbeats_2_the_first_one_follows_the_response() -> None:
    driven = Driven()
    driven.finds()
    driven.tick(20_000)
    response = RewriteJoinGroupResponse(generation_id=1, consumer_id="c-1")
    assert driven.answers(response)[1:] == [
        Send(driven.connection, HeartbeatRequest(group_id="g", generation_id=1, member_id="c-1"))
    ]
    driven.beat()
    driven.wait()
    assert (driven.kinds(), driven.now) == (["HeartbeatRequest"], 20_000 + BEAT)


def test_heartbeats_3_the_next_one_has_the_new_generation() -> None:
    driven = Driven().start(generation=7)
    driven.wait()
    assert driven.sent().generation_id == 7
    driven.beat(RewriteError.ILLEGAL_GENERATION)
    driven.stops(p0=10, p1=20)
    driven.joined(8, 0)
    driven.offsets(p0=10)
    driven.wait()
    assert driven.sent().generation_id == 8


# ---- Wildcard subscription


def test_wildcard_asks_for_all_topics_and_filters() -> None:
    driven = Driven(whitelist="ord.*|pay", blacklist=".*-dead")
    driven.finds()
    assert driven.sent() == MetadataRequest(topics=[])
    driven.lists("pay", "orders", "payments", "orders-dead")
    assert driven.sent().topics == ["orders", "pay"]


def test_wildcard_leaves_out_topics_with_an_error() -> None:
    driven = Driven(whitelist=".*")
    driven.finds()
    gone = MetadataResponseTopic(name="gone", error_code=RewriteError.UNKNOWN_TOPIC_OR_PARTITION)
    driven.answers(MetadataResponse(topics=[gone, MetadataResponseTopic(name="orders")]))
    assert driven.sent().topics == ["orders"]


def test_wildcard_rejoins_when_the_list_has_changed() -> None:
    driven = Driven(whitelist="ord.*", refresh_ms=1_000)
    driven.finds()
    driven.lists("orders")
    driven.joined(1, 0)
    driven.offsets(p0=3)
    driven.wait()
    assert driven.sent() == MetadataRequest(topics=[])
    assert driven.lists("orders", "other") == [], "the topics that match are the same"
    driven.wait()
    if isinstance(driven.sent(), HeartbeatRequest):
        driven.beat()
        driven.wait()
    assert driven.lists("orders", "orders2") == [StopFetching()]
    driven.stops(p0=4)
    driven.committed()
    assert driven.sent().topics == ["orders", "orders2"]


def test_wildcard_that_matches_nothing_waits_for_topics() -> None:
    driven = Driven(blacklist=".*", refresh_ms=1_000)
    driven.finds()
    assert driven.lists("orders") == []
    driven.wait()
    assert (driven.sent(), driven.now) == (MetadataRequest(topics=[]), 1_000)


# ---- what the document does not mention


def test_a_broker_that_does_not_answer_is_left() -> None:
    driven = Driven(request_timeout_ms=500)
    driven.connects()
    assert driven.tick(499) == []
    assert driven.tick(1) == [Close(1)]
    assert driven.wait() == [Connect(2, BOOTSTRAP[1])]
    assert driven.tick(500) == [Close(2)], "nor one to which there is no connection"


def test_a_join_may_take_as_long_as_a_rebalance() -> None:
    driven = Driven(request_timeout_ms=500, join_timeout_ms=30_000)
    driven.finds()
    assert driven.tick(29_999) == []
    assert driven.tick(1) == [Close(driven.connection)]


def test_events_of_a_former_connection_are_dropped() -> None:
    driven = Driven().start()
    old = driven.connection
    driven.disconnects()
    driven.wait()
    assert driven.happens(Disconnected(old)) == []
    assert driven.happens(Received(old, HeartbeatResponse(error_code=RewriteError.ILLEGAL_GENERATION))) == []
    driven.finds()
    assert isinstance(driven.sent(), HeartbeatRequest)
    driven.beat()
    assert driven.happens(Disconnected(old)) == [], "no heartbeat before its time"


@pytest.mark.parametrize(
    "error",
    [
        RewriteError.INCONSISTENT_STRATEGY,
        RewriteError.UNKNOWN_STRATEGY,
        RewriteError.INVALID_SESSION_TIMEOUT,
        RewriteError.INVALID_REQUEST,
        -1,
    ],
)
def test_an_error_that_trying_again_does_not_cure_ends_it(error: int) -> None:
    driven = Driven()
    driven.finds()
    assert driven.joined(0, error=error) == [Close(driven.connection), Ended()]
    assert (driven.member.deadline, driven.tick(100_000)) == (None, [])


def test_shutdown_stops_commits_and_closes() -> None:
    driven = Driven().start()
    assert driven.happens(Shutdown()) == [StopFetching()]
    driven.stops(p0=30, p1=20)
    assert offsets_of(driven.sent()) == {0: 30}
    assert driven.committed() == [Close(driven.connection), Ended()]


def test_shutdown_without_coordinator_ends_within_a_session() -> None:
    driven = Driven().start()
    driven.disconnects()
    driven.happens(Shutdown())
    driven.stops(p0=30, p1=20)
    while not any(isinstance(each, Ended) for each in driven.effects):
        driven.wait()
    assert driven.now <= SESSION


def test_stops_with_session_stops_before_others_may_start() -> None:
    driven = Driven(stops_with_session=True)
    driven.finds()
    driven.joined(1, 0)
    driven.offsets(p0=5)
    assert driven.is_fetching
    driven.disconnects()
    while not driven.effects or driven.effects[0] != StopFetching():
        driven.wait()
    assert driven.now == SESSION, "counted from when the last accepted heartbeat was sent"
    driven.stops(p0=9)
    while not (driven.effects and isinstance(driven.effects[0], Connect)):
        driven.wait()
    driven.finds()
    assert driven.beat() == [StartFetching(1, {P0: 9})]


@pytest.mark.parametrize(
    "settings",
    [{"bootstrap": ()}, {"topics": ()}, {"topics": ("a",), "whitelist": "b"}],
    ids=["no broker", "nothing to consume", "topics and a pattern"],
)
def test_settings_that_make_no_sense(settings: dict[str, object]) -> None:
    wanted: dict[str, object] = {"group_id": "g", "bootstrap": (COORDINATOR,), "topics": ("orders",), **settings}
    with pytest.raises(ValueError, match="a member"):
        MemberSettings(**wanted)  # type: ignore[arg-type]  # of several types
