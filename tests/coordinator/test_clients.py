"""Unmodified client libraries, and our consumer, live a group's life on the coordinator and log no complaint.

The life itself is in clients/life_cycle.py; operators' tools have their own tests here. Each library alone, with each
of its assignors, is in tests/interop/test_python_clients.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from kcoord_wire.coordinator import Coordinator, Trigger
from tests.support.clients.life_cycle import CONFIG, Figures, Place, at_once, expect_shares, mixed
from tests.support.clients.members import AIOKAFKA, CONFLUENT, KAFKA_PYTHON, KCOORD, Client, Member
from tests.support.clients.served import Served
from tests.support.waiting import eventually

RANGE = "range"
COOPERATIVE = "cooperative-sticky"

LED_BY_EACH = (
    (CONFLUENT, KAFKA_PYTHON, AIOKAFKA),
    (KAFKA_PYTHON, AIOKAFKA, KCOORD),
    (AIOKAFKA, KCOORD, CONFLUENT),
    (KCOORD, CONFLUENT, KAFKA_PYTHON),
)


def named(clients: Sequence[Client]) -> str:
    return "-".join(client.name for client in clients)


TOGETHER = {named(clients): (clients, RANGE) for clients in LED_BY_EACH} | {
    "cooperative": ((KAFKA_PYTHON, CONFLUENT, KCOORD), COOPERATIVE),
    "cooperative-led": ((KCOORD, KAFKA_PYTHON, CONFLUENT), COOPERATIVE),
}


@pytest.fixture
def brisk(coordinator: Callable[..., Coordinator]) -> Coordinator:
    """A coordinator in this process."""
    return coordinator(topics={}, config=CONFIG)


def test_libraries_together(tmp_path: Path) -> None:
    with Served(dict.fromkeys(TOGETHER, 6), tmp_path) as served:
        places = {name: served.place(name) for name in TOGETHER}
        scripts: dict[str, Callable[[], Figures]] = {
            name: partial(mixed, places[name], clients, assignor) for name, (clients, assignor) in TOGETHER.items()
        }
        print(at_once(scripts))
    for clients in LED_BY_EACH:
        begun = served.triggers(places[named(clients)])
        assert [trigger for trigger in begun if trigger != Trigger.LEADER_REJOINED] == [
            *(Trigger.NEW_MEMBER, Trigger.NEW_MEMBER, Trigger.NEW_MEMBER, Trigger.MEMBER_LEFT, Trigger.SESSION_EXPIRED),
            *(Trigger.MEMBER_LEFT, Trigger.NEW_MEMBER, Trigger.MEMBER_LEFT),
        ]


def test_members_outlive_their_coordinator(tmp_path: Path) -> None:
    """The coordinator is killed and comes again with its log: the members stay what they are, and go on.

    The topics' records are lost with the coordinator, so this is about the group and its offsets alone.
    """
    allowed = {"": "nobody answers for a while, and they may complain of that"}
    clients = [replace(client, allowed=allowed) for client in (CONFLUENT, KAFKA_PYTHON, AIOKAFKA, KCOORD)]
    with ExitStack() as stack:
        before = stack.enter_context(Served({"orders": 12}, tmp_path))
        here = replace(before.place("orders"), session_timeout_ms=30_000)  # they look for it at growing intervals
        members = [stack.enter_context(here.member(client, client.name, RANGE)) for client in clients]
        for number, member in enumerate(members, 1):
            member.join()
            here.share_out(members[:number])
        expect_shares(members, here.produce(members[0], "one", 2))
        offsets = [member.commit() for member in members]
        owned = [list(member.owned) for member in members]

        before.kill()
        after = stack.enter_context(Served({"orders": 12}, tmp_path, int(before.address.rpartition(":")[2])))
        assert [member.commit() for member in members] == offsets
        assert [member.owned for member in members] == owned
        members.pop(1).leave()
        here.share_out(members)
        assert set(after.triggers(here)) == {Trigger.MEMBER_LEFT}


# ---- operators' tools


@pytest.fixture
def member(brisk: Coordinator) -> Iterator[Member]:
    """A member that owns everything, has seen two records of each partition, and has committed behind them."""
    here = Place.on(brisk, "watched")
    with here.member(CONFLUENT, "watched", RANGE, static=True) as member:
        member.join()
        here.share_out([member])
        member.expect_records(here.produce(member, "one", 2))
        member.commit()
        yield member


TOPIC, GROUP = "orders-watched", "billing-watched"


def test_tools_of_confluent_kafka(brisk: Coordinator, member: Member, caplog: pytest.LogCaptureFixture) -> None:
    complaints: list[str] = []
    options: dict[str, Any] = {
        "bootstrap.servers": brisk.address,
        "error_cb": lambda error: complaints.append(str(error)),
    }
    admin = AdminClient(options, logger=logging.getLogger("librdkafka"))
    whole = ConsumerGroupTopicPartitions(GROUP)

    def states() -> dict[str, ConsumerGroupState]:
        listed = admin.list_consumer_groups().result(30)
        assert not listed.errors
        return {group.group_id: group.state for group in listed.valid}

    def offsets() -> dict[int, int]:
        (told,) = (admin.list_consumer_group_offsets([whole])[GROUP].result(30).topic_partitions,)
        return {partition.partition: partition.offset for partition in told if partition.topic == TOPIC}

    assert states() == {GROUP: ConsumerGroupState.STABLE}
    assert not admin.list_consumer_groups(states={ConsumerGroupState.EMPTY}).result(30).valid
    described = admin.describe_consumer_groups([GROUP])[GROUP].result(30)
    assert (described.state, described.partition_assignor) == (ConsumerGroupState.STABLE, RANGE)
    (seen,) = described.members
    assert (seen.client_id, seen.group_instance_id, seen.host) == ("watched", "watched", "/127.0.0.1")
    assert sorted(p.partition for p in seen.assignment.topic_partitions) == list(range(6))
    assert offsets() == dict.fromkeys(range(6), 2)
    with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups([GROUP])[GROUP].result(30)

    member.kill()
    eventually(lambda: states() == {GROUP: ConsumerGroupState.EMPTY})
    moved = ConsumerGroupTopicPartitions(GROUP, [TopicPartition(TOPIC, 0, 1)])
    admin.alter_consumer_group_offsets([moved])[GROUP].result(30)
    assert offsets() == dict.fromkeys(range(6), 2) | {0: 1}
    admin.delete_consumer_groups([GROUP])[GROUP].result(30)
    assert not states()
    assert (complaints, caplog.messages) == ([], [])


# kafka-python reads its schemas by a function that Python calls deprecated.
@pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")
def test_tools_of_kafka_python(brisk: Coordinator, member: Member, caplog: pytest.LogCaptureFixture) -> None:
    from kafka import KafkaAdminClient, OffsetAndMetadata
    from kafka import TopicPartition as Partition
    from kafka.admin import MemberToRemove, OffsetSpec
    from kafka.errors import GroupSubscribedToTopicError, NoError

    partitions = [Partition(TOPIC, number) for number in range(6)]
    admin = KafkaAdminClient(bootstrap_servers=brisk.address)

    def states() -> dict[str, str]:
        return {group["group_id"]: group["group_state"] for group in admin.list_groups()}

    def offsets() -> dict[int, int]:
        return {partition.partition: told.offset for partition, told in admin.list_group_offsets(GROUP)[GROUP].items()}

    try:
        assert states() == {GROUP: "Stable"}
        assert [group["group_id"] for group in admin.list_groups(states_filter=["Stable"])] == [GROUP]
        assert not admin.list_groups(states_filter=["Empty"])
        described = admin.describe_groups([GROUP])[GROUP]
        assert (described["error"], described["group_state"], described["protocol_data"]) == (None, "Stable", RANGE)
        (seen,) = described["members"]
        assert (seen["client_id"], seen["group_instance_id"], seen["client_host"]) == (
            "watched",
            "watched",
            "/127.0.0.1",
        )
        assert offsets() == dict.fromkeys(range(6), 2)
        assert dict(admin.delete_groups([GROUP]))[GROUP] == "NonEmptyGroupError"
        assert set(admin.delete_group_offsets(GROUP, partitions).values()) == {GroupSubscribedToTopicError}

        member.kill()
        removed = admin.remove_group_members(GROUP, [MemberToRemove(group_instance_id="watched")])
        assert list(removed.values()) == [NoError]
        assert states() == {GROUP: "Empty"}
        assert set(admin.alter_group_offsets(GROUP, {partitions[0]: OffsetAndMetadata(1, "", -1)}).values()) == {
            NoError
        }
        assert offsets() == dict.fromkeys(range(6), 2) | {0: 1}
        admin.reset_group_offsets(GROUP, {partitions[1]: OffsetSpec.EARLIEST})
        assert offsets() == dict.fromkeys(range(6), 2) | {0: 1, 1: 0}
        assert set(admin.delete_group_offsets(GROUP, partitions[:3]).values()) == {NoError}
        assert offsets() == dict.fromkeys(range(3, 6), 2)
        assert dict(admin.delete_groups([GROUP]))[GROUP] == "OK"
        assert not states()
    finally:
        admin.close()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
