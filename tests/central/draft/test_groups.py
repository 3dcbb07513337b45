"""Which groups are interested in a topic, the checks of RegisterConsumer (section 7), and a group's nodes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kcoord_wire.central.draft.events import CentralError, CoordinatorSettings, Partition
from kcoord_wire.central.draft.groups import (
    Attempt,
    AttemptFailedError,
    Group,
    Groups,
    GroupStore,
    RegisteredConsumer,
    RegistrationError,
    check_registration,
    consumer_of,
)
from kcoord_wire.central.draft.subscription import format_topics, format_wildcard, parse_topic_count
from kcoord_wire.messages import central as m
from kcoord_wire.zookeeper.layout import CONSUMERS, GroupRecord
from kcoord_wire.zookeeper.memory import MemoryZooKeeper
from kcoord_wire.zookeeper.requests import Create, Outcome, Read, Write
from tests.support.draft_cluster import DraftCluster

TOPICS = ["a", "b", "ab", "c"]
COUNTS = [
    format_topics({"a": 1}),
    format_topics({"b": 1, "c": 2}),
    format_wildcard("a.*"),
    format_wildcard("a", 1, is_blacklist=True),
]


def make_member(group: Group, connection: int, text: str) -> RegisteredConsumer:
    count = parse_topic_count(text)
    return RegisteredConsumer(group, f"c{connection}", connection, count, True, "smallest", 6_000, is_fenced=False)


@pytest.mark.parametrize("seed", range(40))
def test_the_index_has_what_the_consumers_want(seed: int) -> None:
    """Consumers come and go, topics are added; the index is compared with the definition after each step."""
    chooser = random.Random(seed)
    groups, made = Groups(), [Group(name, GroupStore(name)) for name in "gh"]
    members: list[RegisteredConsumer] = []
    left = TOPICS.copy()
    for connection in range(60):
        if members and chooser.random() < 0.4:
            groups.remove_member(members.pop(chooser.randrange(len(members))))
        elif left and chooser.random() < 0.15:
            groups.topic_added(left.pop())
        else:
            members.append(make_member(chooser.choice(made), connection, chooser.choice(COUNTS)))
            groups.add_member(members[-1])
        for topic in TOPICS:
            wanted = {
                member.group.group_id
                for member in members
                if member.topic_count.streams_of(topic) and (topic not in left or not member.topic_count.is_wildcard)
            }
            assert {group.group_id for group in groups.interested_in(topic)} == wanted
        assert set(groups.wildcards) == {each.group.group_id for each in members if each.topic_count.is_wildcard}
        assert set(groups.by_connection) == {member.connection for member in members}


def test_an_attempt_ends_its_phase_with_the_last_answer() -> None:
    group = Group("g", GroupStore("g"))
    first, second = make_member(group, 1, COUNTS[0]), make_member(group, 2, COUNTS[0])
    attempt = Attempt(1)
    attempt.wait_for("stopping", [first, second])
    attempt.answered(first)
    assert not attempt.changed.is_open
    attempt.answered(second)
    assert attempt.changed.is_open
    attempt.check()


def test_an_attempt_that_failed_begins_no_phase() -> None:
    attempt = Attempt(1)
    attempt.fail("first")
    attempt.fail("second")
    attempt.wait_for("starting", [make_member(Group("g", GroupStore("g")), 1, COUNTS[0])])
    assert attempt.changed.is_open
    with pytest.raises(AttemptFailedError, match="first"):
        attempt.check()


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group": ""}, CentralError.INVALID_GROUP_ID),
        ({"group": "a/b"}, CentralError.INVALID_GROUP_ID),
        ({"group": "."}, CentralError.INVALID_GROUP_ID),
        ({"group": ".."}, CentralError.INVALID_GROUP_ID),
        ({"group": "a\0b"}, CentralError.INVALID_GROUP_ID),
        ({"group": "g\U0001f600"}, CentralError.INVALID_GROUP_ID),
        ({"group": "g\ufff0"}, CentralError.INVALID_GROUP_ID),
        ({"group": "x" * 256}, CentralError.INVALID_GROUP_ID),
        ({"group": "coordinator"}, CentralError.INVALID_GROUP_ID),
        ({"group": "coordinator_epoch"}, CentralError.INVALID_GROUP_ID),
        ({"session_timeout_ms": 999}, CentralError.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": -1}, CentralError.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 300_001}, CentralError.INVALID_SESSION_TIMEOUT),
        ({"topics": "orders"}, CentralError.INVALID_TOPIC_COUNT),
        ({"topics": "*1*("}, CentralError.INVALID_TOPIC_COUNT),
        ({"auto_offset_rest": "none"}, CentralError.INVALID_OFFSET_RESET),
    ],
)
def test_what_is_wrong_is_refused_with_its_code(fields: dict[str, Any], error: CentralError) -> None:
    cluster = DraftCluster()
    consumer = cluster.consumer("a", **fields)
    assert consumer.inbox == [m.RegisterConsumerResponse(error_code=error)]
    assert consumer.is_open
    (noted,) = cluster.brokers[1].noted("registration refused")
    assert (noted["error"], noted["consumer"]) == (error.name, "a")
    assert cluster.brokers[1].machine.status(str, cluster.now).groups == []


@pytest.mark.parametrize("consumer_id", ["", "a/b", "\0", "..", "x" * 256, "a\nb", "\x7f", "\ud800"])
def test_ids_of_consumers_are_names_of_nodes(consumer_id: str) -> None:
    request = m.RegisterConsumerRequest(group_id="g", consumer_id=consumer_id)
    with pytest.raises(RegistrationError) as refused:
        check_registration(request, {}, CoordinatorSettings())
    assert refused.value.error is CentralError.INVALID_CONSUMER_ID


def test_the_same_id_in_another_group_is_no_duplicate() -> None:
    cluster = DraftCluster()
    cluster.consumer("a")
    assert cluster.consumer("a", group="h").inbox[0] == m.RegisterConsumerResponse()
    assert cluster.consumer("a").inbox == [m.RegisterConsumerResponse(error_code=CentralError.DUPLICATE_CONSUMER_ID)]


def test_the_least_session_timeout_is_a_setting() -> None:
    cluster = DraftCluster(min_session_timeout_ms=5_000)
    refused = m.RegisterConsumerResponse(error_code=CentralError.INVALID_SESSION_TIMEOUT)
    assert cluster.consumer("a", session_timeout_ms=4_999).inbox == [refused]
    assert cluster.consumer("a", session_timeout_ms=5_000).inbox == [m.RegisterConsumerResponse()]


PARTITIONS = [Partition(topic, f"1-{number}") for topic in ("t", "u") for number in range(3)]


def loaded(zookeeper: MemoryZooKeeper) -> GroupStore:
    """Return the store after `load`."""
    store = GroupStore("g")
    procedure = store.load()

    def value(request: Any) -> Any:
        return zookeeper.node(request.path) if isinstance(request, Read) else zookeeper.names(request.path)

    wait: Any = next(procedure)
    try:
        while True:
            wait = procedure.send([value(each) for each in wait] if isinstance(wait, list) else value(wait))
    except StopIteration:
        return store


@pytest.fixture
def zookeeper() -> MemoryZooKeeper:
    zookeeper = MemoryZooKeeper()
    zookeeper.write(Create(CONSUMERS))
    return zookeeper


@pytest.mark.parametrize("seed", range(20))
def test_planned_writes_lead_to_what_was_wanted(zookeeper: MemoryZooKeeper, seed: int) -> None:
    chooser = random.Random(seed)
    store = loaded(zookeeper)
    for step in range(12):
        owners = {partition: f"c{chooser.randrange(3)}-0" for partition in PARTITIONS if chooser.random() < 0.6}
        offsets = {partition: chooser.randrange(9) for partition in PARTITIONS if chooser.random() < 0.5}
        known = {**store.offsets, **offsets}
        writes: list[Write] = store.plan_record(GroupRecord(step, is_starting=True)) if chooser.random() < 0.5 else []
        writes += store.plan_offsets(offsets)
        writes += store.plan_owners(owners, step)
        assert zookeeper.write(*writes).outcome is Outcome.OK
        found = loaded(zookeeper)
        assert (found.owners, found.offsets, found.record) == (owners, known, GroupRecord(step))
        assert (store.owners, store.offsets, store.record) == (owners, known, GroupRecord(step))
        if chooser.random() < 0.3:
            store = found


def test_what_is_there_is_not_written_again(zookeeper: MemoryZooKeeper) -> None:
    store = loaded(zookeeper)
    owners = dict.fromkeys(PARTITIONS, "a-0")
    zookeeper.write(*store.plan_owners(owners, 6_000), *store.plan_offsets({PARTITIONS[0]: 4}))
    assert store.plan_owners(owners, 6_000) == store.plan_offsets({PARTITIONS[0]: 4}) == []


def test_the_mark_ends_with_the_last_write(zookeeper: MemoryZooKeeper) -> None:
    store = loaded(zookeeper)
    zookeeper.write(*store.plan_record(GroupRecord(6_000, is_starting=True)))
    assert store.plan_owners({PARTITIONS[0]: "a-0"}, 6_000)[-1].path == "/consumers/g"


def test_a_group_that_does_not_exist_is_empty(zookeeper: MemoryZooKeeper) -> None:
    store = loaded(zookeeper)
    assert (store.is_loaded, store.owners, store.offsets, store.record) == (True, {}, {}, GroupRecord())
    store.forget()
    assert not store.is_loaded


def test_the_consumer_of_a_thread() -> None:
    assert [consumer_of(text) for text in ("a-0", "host-1-12", "nothing")] == ["a", "host-1", ""]
