"""Polls of a real coordinator over sockets: what they show, what they ask, and what goes wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from kcoord_wire.coordinator.coordinator import Coordinator
from kcoord_wire.coordinator.fault_injection import Fault
from kcoord_wire.coordinator.security.authentication import Users
from kcoord_wire.watch.host import AdminPolls, Stopped, WatchError
from kcoord_wire.watch.seen import Missed, Poll
from tests.support.fixtures import StartCoordinator

ASKS = {
    "ApiVersions",
    "Metadata",
    "FindCoordinator",
    "ListGroups",
    "DescribeGroups",
    "ConsumerGroupDescribe",
    "OffsetFetch",
    "ListOffsets",
}


NOBODY = "127.0.0.1:1"  # the port of tcpmux, which nothing serves


@contextmanager
def consuming(coordinator: Coordinator, client_id: str = "c-1") -> Iterator[Consumer]:
    """A consumer of orders in group billing that has its partitions and has committed offset 2 of one."""
    consumer = Consumer({"bootstrap.servers": coordinator.address, "group.id": "billing", "client.id": client_id})
    consumer.subscribe(["orders"])
    try:
        end = time.monotonic() + 30
        while not consumer.assignment():
            consumer.poll(0.05)
            assert time.monotonic() < end
        consumer.commit(offsets=[TopicPartition("orders", 0, 2)], asynchronous=False)
        yield consumer
    finally:
        consumer.close()


def answered(polls: AdminPolls) -> Poll:
    found = polls.poll()
    assert isinstance(found, Poll), found
    return found


def requests_of(coordinator: Coordinator) -> set[str]:
    families = text_string_to_metric_families(coordinator.metrics())
    samples = [sample for family in families for sample in family.samples]
    return {sample.labels["api"] for sample in samples if sample.name == "kcoord_requests_total"}


def test_a_poll_shows_members_offsets_and_ends(coordinator: StartCoordinator) -> None:
    started = coordinator()
    producer = Producer({"bootstrap.servers": started.address})
    for _ in range(5):
        producer.produce("orders", value=b"v", partition=0)
    assert producer.flush(10) == 0
    with consuming(started):
        poll = answered(AdminPolls(started.address))
    group = poll.groups["billing"]
    (member,) = group.members.values()
    assert (group.state, group.protocol, group.assignor) == ("Stable", "classic", "range")
    assert group.coordinator == started.address
    assert (member.client_id, member.client_host, member.instance_id) == ("c-1", "127.0.0.1", None)
    assert member.assigned == {("orders", partition) for partition in range(12)}
    assert poll.committed == {"billing": {("orders", 0): 2}}
    assert poll.ends["orders", 0] == 5
    assert len(poll.ends) == 12


def test_it_only_asks(coordinator: StartCoordinator) -> None:
    started = coordinator()
    with consuming(started):
        pass
    before = requests_of(started)
    fresh = coordinator()
    polls = AdminPolls(fresh.address, offsets_every_s=0)
    for _ in range(3):
        answered(polls)
    assert requests_of(fresh) <= ASKS
    assert answered(polls).groups == {}, "and it is a member of nothing"
    assert "JoinGroup" in before, "the metric shows it where there is one"


def test_a_group_with_members_is_left_alone(coordinator: StartCoordinator) -> None:
    started = coordinator()
    with consuming(started):
        before = started.metrics().count("kcoord_rebalances_total{"), requests_of(started)
        polls = AdminPolls(started.address, offsets_every_s=0)
        seen = [answered(polls).groups["billing"] for _ in range(20)]
        after = started.metrics().count("kcoord_rebalances_total{"), requests_of(started)
    assert len({(group.state, *group.members) for group in seen}) == 1
    assert after[0] == before[0]
    assert after[1] - before[1] <= ASKS


def test_empty_groups_are_described_once(coordinator: StartCoordinator) -> None:
    started = coordinator()
    with consuming(started):
        pass
    polls = AdminPolls(started.address)
    first, second = answered(polls), answered(polls)
    assert first.groups["billing"].state == "Empty"
    assert second.groups == first.groups
    assert (first.committed, second.committed) == ({"billing": {("orders", 0): 2}}, {}), "offsets are read less often"


def test_only_the_groups_that_are_wanted(coordinator: StartCoordinator) -> None:
    started = coordinator()
    with consuming(started):
        assert set(answered(AdminPolls(started.address, groups=["billing", "audit"])).groups) == {"billing"}
        assert answered(AdminPolls(started.address, groups=["audit"])).groups == {}
        polls = AdminPolls(started.address, choose=lambda names: sorted(names)[:0])
        assert (answered(polls).groups, polls.left_out) == ({}, 1)


def test_a_group_that_is_loading(coordinator: StartCoordinator) -> None:
    started = coordinator()
    with consuming(started):
        started.add_fault(Fault("error", api="DescribeGroups", error="COORDINATOR_LOAD_IN_PROGRESS"))
        found = answered(AdminPolls(started.address, patience_s=1))
    assert [(name, why.kind) for name, why in found.unanswered.items()] == [("billing", "loading")]


def test_a_group_that_may_not_be_described(coordinator: StartCoordinator) -> None:
    started = coordinator()
    with consuming(started):
        started.add_fault(Fault("error", api="DescribeGroups", error="GROUP_AUTHORIZATION_FAILED"))
        found = answered(AdminPolls(started.address))
    assert found.unanswered["billing"].kind == "refused"
    assert "authorization failed" in found.unanswered["billing"].text.lower()


def test_no_broker_is_a_missed_poll() -> None:
    found = AdminPolls(NOBODY, patience_s=1).poll()
    assert isinstance(found, Missed)
    assert "refused" in found.text.lower()


def test_a_wrong_password_is_final(coordinator: StartCoordinator) -> None:
    started = coordinator(users=Users({"alice": "right"}))
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "alice"}
    assert answered(AdminPolls(started.address, login | {"sasl.password": "right"})).groups == {}
    with pytest.raises(WatchError, match=r"refuses the login.*check the security settings"):
        AdminPolls(started.address, login | {"sasl.password": "wrong"}).poll()


def test_settings_that_librdkafka_rejects() -> None:
    with pytest.raises(WatchError, match="rejects these settings"):
        AdminPolls("127.0.0.1:1", {"no.such.setting": "1"})


def test_stopping_interrupts_a_poll() -> None:
    polls = AdminPolls(NOBODY, patience_s=60)
    threading.Timer(0.3, polls.stop).start()
    began = time.monotonic()
    with pytest.raises(Stopped):
        polls.poll()
    assert time.monotonic() - began < 30
