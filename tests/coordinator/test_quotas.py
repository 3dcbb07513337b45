"""Client quotas: what can be set and is described, which is in force, how long who exceeds it waits, who sees it."""

from __future__ import annotations

import json
import math
import time
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import Producer

from kcoord_wire import messages as m
from kcoord_wire.coordinator import Coordinator, GroupConfig
from kcoord_wire.coordinator.access import Access
from kcoord_wire.coordinator.core.brokers import Brokers
from kcoord_wire.coordinator.core.config import Endpoint
from kcoord_wire.coordinator.core.events import Request
from kcoord_wire.coordinator.partitions.partition_log import Storage
from kcoord_wire.coordinator.security.quotas import (
    FETCH,
    MOST_QUOTAS,
    PRODUCE,
    Entity,
    Metered,
    Rate,
    Throttling,
    alter_quotas,
    describe_quotas,
    quota_of,
)
from kcoord_wire.coordinator.topics.catalog import Catalog
from kcoord_wire.kernel.disk import Disk, MemoryDisk
from kcoord_wire.kernel.virtual.disk import VirtualDisk
from kcoord_wire.protocol.error_codes import ErrorCode as E
from tests.support.broker import batch, values
from tests.support.waiting import eventually
from tests.support.wire import Wire

REQUESTS, MUTATIONS, CONNECTIONS = "request_percentage", "controller_mutation_rate", "connection_creation_rate"
EXACT, DEFAULT, SPECIFIED = range(3)
ALICE: Entity = (("user", "alice"),)


def entry(entity: Entity, *ops: tuple[str, float | None]) -> m.AlterClientQuotasRequestEntryData:
    """Keys with their values; None removes one."""
    parts = [m.AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=name) for kind, name in entity]
    made = [m.AlterClientQuotasRequestOpData(key=key, value=value or 0.0, remove=value is None) for key, value in ops]
    return m.AlterClientQuotasRequestEntryData(entity=parts, ops=made)


def alter(*entries: m.AlterClientQuotasRequestEntryData, **more: Any) -> m.AlterClientQuotasRequest:
    return m.AlterClientQuotasRequest(entries=list(entries), **more)


# ---- what can be set


@pytest.mark.parametrize(
    ("entity", "ops", "text"),
    [
        ((), [(PRODUCE, 1.0)], "Invalid empty client quota entity"),
        ((("group", "a"),), [(PRODUCE, 1.0)], "Unhandled client quota entity type: group"),
        ((("user", ""),), [(PRODUCE, 1.0)], "Empty user not supported"),
        ((("user", "a"), ("ip", "::1")), [(PRODUCE, 1.0)], "Invalid quota entity combination, IP entity shouldnot"),
        ((("ip", "no ip!"),), [(CONNECTIONS, 1.0)], "no ip! is not a valid IP or resolvable host."),
        ((("ip", "10.0.0.1"),), [(PRODUCE, 1.0)], "Invalid configuration key producer_byte_rate"),
        (ALICE, [(CONNECTIONS, 1.0)], "Invalid configuration key connection_creation_rate"),
        (ALICE, [("nonsense", 1.0)], "Invalid configuration key nonsense"),
        (ALICE, [("nonsense", None)], "Invalid configuration key nonsense"),
        (ALICE, [(PRODUCE, 0.0)], "Quota producer_byte_rate must be greater than 0"),
        (ALICE, [(PRODUCE, -1.0)], "Quota producer_byte_rate must be greater than 0"),
        (ALICE, [(PRODUCE, 1.5)], "producer_byte_rate cannot be a fractional value."),
        (ALICE, [(PRODUCE, 1e30)], "Proposed value for producer_byte_rate is too large for a LONG."),
        (ALICE, [(PRODUCE, math.inf)], "Quota producer_byte_rate must be a finite number"),
        (ALICE, [(REQUESTS, math.nan)], "Quota request_percentage must be a finite number"),
        (
            (("ip", None),),
            [(CONNECTIONS, 1e10)],
            "Proposed value for connection_creation_rate is too large",
        ),
        (ALICE, [(PRODUCE, 1.0), (PRODUCE, 2.0)], "Ignoring duplicate entity ClientQuotaEntity(entries={user=alice})"),
        (
            (("user", None),),
            [(FETCH, 1.0), (FETCH, 1.0)],
            "Ignoring duplicate entity ClientQuotaEntity(entries={user=null})",
        ),
    ],
)
def test_what_cannot_be_set(entity: Entity, ops: list[tuple[str, float | None]], text: str) -> None:
    other = entry((("client-id", "c"),), (PRODUCE, 1.0))
    answer, changed = alter_quotas({}, alter(entry(entity, *ops), other))
    assert [each.error_code for each in answer.entries] == [E.INVALID_REQUEST, 0]
    assert (answer.entries[0].error_message or "").startswith(text)
    assert changed == {(("client-id", "c"),): {PRODUCE: 1.0}}


def test_what_can_be_set_and_removed() -> None:
    known = {ALICE: {PRODUCE: 1.0, REQUESTS: 0.5}}
    both: Entity = (("user", "bob"), ("client-id", "c"))
    request = alter(
        entry(ALICE, (PRODUCE, None), (FETCH, 2.0), (MUTATIONS, None)),
        entry(both, (MUTATIONS, 0.25)),
        entry((("ip", None),), (CONNECTIONS, 3.0)),
    )
    answer, changed = alter_quotas(known, request)
    assert {each.error_code for each in answer.entries} == {0}
    sorted_both: Entity = (("client-id", "c"), ("user", "bob"))
    assert changed == {
        ALICE: {REQUESTS: 0.5, FETCH: 2.0},
        sorted_both: {MUTATIONS: 0.25},
        (("ip", None),): {CONNECTIONS: 3.0},
    }
    request.validate_only = True
    assert alter_quotas(known, request) == (answer, {})


def test_an_entity_that_comes_twice_is_set_as_it_comes_first() -> None:
    answer, changed = alter_quotas({}, alter(entry(ALICE, (PRODUCE, 1.0)), entry(ALICE, (PRODUCE, 2.0))))
    assert [each.error_code for each in answer.entries] == [E.INVALID_REQUEST]
    assert changed == {ALICE: {PRODUCE: 1.0}}


def test_there_are_not_too_many() -> None:
    known: dict[Entity, dict[str, float]] = {(("user", str(number)),): {PRODUCE: 1.0} for number in range(MOST_QUOTAS)}
    answer, changed = alter_quotas(known, alter(entry((("user", "0"),), (PRODUCE, 2.0)), entry(ALICE, (PRODUCE, 2.0))))
    assert [each.error_code for each in answer.entries] == [0, E.POLICY_VIOLATION]
    assert changed == {(("user", "0"),): {PRODUCE: 2.0}}


# ---- what is described

KNOWN: dict[Entity, dict[str, float]] = {
    ALICE: {PRODUCE: 1.0},
    (("user", None),): {PRODUCE: 2.0},
    (("client-id", "c"), ("user", "alice")): {FETCH: 3.0},
    (("ip", "10.0.0.1"),): {CONNECTIONS: 4.0},
}


def component(kind: str, match_type: int, match: str | None = None) -> m.DescribeClientQuotasRequestComponentData:
    return m.DescribeClientQuotasRequestComponentData(entity_type=kind, match_type=match_type, match=match)


@pytest.mark.parametrize(
    ("components", "strict", "found"),
    [
        ([], False, [0, 1, 2, 3]),
        ([], True, []),
        ([component("user", EXACT, "alice")], False, [0, 2]),
        ([component("user", EXACT, "alice")], True, [0]),
        ([component("user", DEFAULT)], False, [1]),
        ([component("user", SPECIFIED)], False, [0, 1, 2]),
        ([component("user", SPECIFIED)], True, [0, 1]),
        ([component("client-id", EXACT, "c"), component("user", SPECIFIED)], True, [2]),
        ([component("ip", SPECIFIED)], False, [3]),
        ([component("client-id", EXACT, "other")], False, []),
    ],
)
def test_what_is_described(components: list[Any], strict: bool, found: list[int]) -> None:
    answer = describe_quotas(KNOWN, m.DescribeClientQuotasRequest(components=components, strict=strict))
    listed = [tuple((part.entity_type, part.entity_name) for part in each.entity) for each in answer.entries or ()]
    assert (answer.error_code, listed) == (0, [list(KNOWN)[number] for number in found])
    described = [{value.key: value.value for value in each.values} for each in answer.entries or ()]
    assert described == [list(KNOWN.values())[number] for number in found]


@pytest.mark.parametrize(
    ("components", "error", "text"),
    [
        ([component("", SPECIFIED)], E.INVALID_REQUEST, "Invalid empty entity type."),
        ([component("group", SPECIFIED)], E.UNSUPPORTED_VERSION, "Unsupported entity type group"),
        ([component("user", 9)], E.INVALID_REQUEST, "Unknown match type 9"),
        (
            [component("user", EXACT)],
            E.INVALID_REQUEST,
            "Request specified MATCH_TYPE_EXACT, but set match",
        ),
        (
            [component("user", DEFAULT, "x")],
            E.INVALID_REQUEST,
            "Request specified MATCH_TYPE_DEFAULT, but also",
        ),
        ([component("user", SPECIFIED)] * 2, E.INVALID_REQUEST, "Entity type user cannot appear more than once"),
        (
            [component("user", SPECIFIED), component("ip", SPECIFIED)],
            E.INVALID_REQUEST,
            "Invalid entity filter component",
        ),
    ],
)
def test_filters_that_cannot_be(components: list[Any], error: E, text: str) -> None:
    answer = describe_quotas(KNOWN, m.DescribeClientQuotasRequest(components=components))
    assert (answer.error_code, answer.entries) == (error, None)
    assert (answer.error_message or "").startswith(text)


# ---- what is in force


def test_the_most_specific_quota_is_in_force() -> None:
    order: list[tuple[Entity, tuple[str, str]]] = [
        ((("client-id", "c"), ("user", "u")), ("u", "c")),
        ((("client-id", None), ("user", "u")), ("u", "c")),
        ((("user", "u"),), ("u", "")),
        ((("client-id", "c"), ("user", None)), ("u", "c")),
        ((("client-id", None), ("user", None)), ("u", "c")),
        ((("user", None),), ("u", "")),
        ((("client-id", "c"),), ("", "c")),
        ((("client-id", None),), ("", "c")),
    ]
    known = {entity: {PRODUCE: float(number)} for number, (entity, _) in enumerate(order, 1)}
    for number, (entity, whose) in enumerate(order, 1):
        assert quota_of(known, PRODUCE, "u", "c") == (number, whose)
        assert quota_of(known, FETCH, "u", "c") is None
        del known[entity]
    assert quota_of(known, PRODUCE, "u", "c") is None


def test_how_long_who_exceeds_a_quota_waits() -> None:
    """A rate is over ten whole seconds at least, and what has begun of the eleventh."""
    rate = Rate()
    rate.record(8_000, 0)
    assert rate.excess_ms(1_000, 0) == 0
    rate.record(4_000, 500)
    assert rate.excess_ms(1_000, 500) == round(10_500 * (12_000 / 10_500 - 1))
    assert rate.excess_ms(1_000, 2_000) == 2_000
    rate.record(6_000, 10_000)
    assert rate.excess_ms(1_000, 10_000) == 8_000
    assert rate.excess_ms(1_000, 11_000) == 0  # what was counted at the beginning is forgotten
    rate.record(11_000, 11_000)
    assert rate.excess_ms(1_000, 11_000) == 7_000


def test_who_has_the_same_quota_shares_its_rate() -> None:
    throttling = Throttling({ALICE: {PRODUCE: 1_000.0, FETCH: 1_000.0}})
    first, second, elsewhere = Metered("alice", "a", 0), Metered("alice", "b", 0), Metered("alice", "a", 1)
    assert throttling.produced(first, 9_000, 0) == 0
    assert throttling.produced(elsewhere, 9_000, 0) == 0
    assert throttling.produced(Metered("bob", "a", 0), 90_000, 0) == 0
    assert throttling.produced(second, 2_000, 0) == 1_000
    assert throttling.fetched(second, 12_000, 0) == 2_000
    assert throttling.fetched(second, 9_000, 0) == 0  # what was not sent did not count
    assert (throttling.most_fetched(first), throttling.most_fetched(Metered("bob", "a", 0))) == (10_000, None)


# ---- keeping


def access(disk: Disk) -> Access:
    catalog = Catalog("c", Brokers([Endpoint(0, "h", 1)]))
    catalog.open(Storage(disk))
    made = Access(catalog, None)
    made.load()
    return made


def test_quotas_are_there_after_a_restart() -> None:
    disk = VirtualDisk(Random(1))
    first = access(disk)
    disk.fails_in = 0
    failed = first.answer(Request(1, alter(entry(ALICE, (PRODUCE, 1.0))), 1))
    assert ([each.error_code for each in failed.entries], first.quotas) == ([E.KAFKA_STORAGE_ERROR], {})
    first.answer(Request(1, alter(*[entry(entity, *own.items()) for entity, own in KNOWN.items()]), 1))
    for _ in range(2):
        again = access(disk)
        assert again.quotas == KNOWN
    again.answer(Request(1, alter(entry(ALICE, (PRODUCE, None))), 1))
    assert ALICE not in again.quotas
    assert access(disk).quotas == again.quotas
    assert access(MemoryDisk()).quotas == {}


# ---- with clients


def set_quota(address: str, key: str, value: float) -> None:
    with Wire(address) as wire:
        answer = wire.call(alter(entry((("client-id", "slow"),), (key, value))), 1)
        assert [each.error_code for each in answer.entries] == [0]


def test_librdkafka_is_throttled_and_says_so(tmp_path: Path) -> None:
    with Coordinator({"orders": 1}, data_dir=tmp_path) as coordinator:
        set_quota(coordinator.address, PRODUCE, 50_000.0)
        waits: list[int] = []

        def note(text: str) -> None:
            waits.extend(broker["throttle"]["max"] for broker in json.loads(text)["brokers"].values())

        settings = {"client.id": "slow", "statistics.interval.ms": 50, "stats_cb": note}
        producer = Producer({"bootstrap.servers": coordinator.address, **settings})
        for _ in range(11):
            producer.produce("orders", bytes(50_000))
            producer.flush(30)
        while not any(waits):
            producer.poll(0.1)
        assert 0 < max(waits) < 60_000


def test_a_throttled_connection_is_answered_later() -> None:
    with Coordinator({"orders": 1}) as coordinator, Wire(coordinator.address) as wire:
        set_quota(coordinator.address, PRODUCE, 10_000.0)
        wire.client_id = "slow"
        part = m.ProduceRequestPartitionProduceData(index=0, records=batch(bytes(101_000)))
        topics = [m.ProduceRequestTopicProduceData(name="orders", partition_data=[part])]
        answer = wire.call(m.ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=topics), 9)
        answered = time.monotonic()
        assert answer.responses[0].partition_responses[0].error_code == 0
        assert 0 < answer.throttle_time_ms < 5_000
        wire.call(m.ApiVersionsRequest(), 0)
        assert time.monotonic() - answered >= answer.throttle_time_ms / 1_000 - 0.1


def test_a_throttled_fetch_has_no_records_and_the_next_has_them() -> None:
    with Coordinator({"orders": 1}) as coordinator, Wire(coordinator.address) as wire:
        for _ in range(2):
            part = m.ProduceRequestPartitionProduceData(index=0, records=batch(bytes(50_500)))
            topics = [m.ProduceRequestTopicProduceData(name="orders", partition_data=[part])]
            wire.call(m.ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=topics), 9)
        set_quota(coordinator.address, FETCH, 10_000.0)
        wire.client_id = "slow"

        def fetch(offset: int) -> m.FetchResponse:
            one = m.FetchRequestFetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
            named = [m.FetchRequestFetchTopic(topic="orders", partitions=[one])]
            found: m.FetchResponse = wire.call(m.FetchRequest(max_wait_ms=0, min_bytes=1, topics=named), 11)
            return found

        first = fetch(0)
        assert [offset for offset, _ in values(first.responses[0].partitions[0].records)] == [0]  # max_bytes is less
        second = fetch(1)
        assert (second.responses, second.throttle_time_ms > 0) == ([], True)
        while (second := fetch(1)).throttle_time_ms:
            assert second.responses == []
        assert [offset for offset, _ in values(second.responses[0].partitions[0].records)] == [1]


def test_a_throttled_share_fetch_answers_acknowledgements_alone() -> None:
    config = GroupConfig(share_record_lock_duration_ms=100, share_delivery_count_limit=10_000)
    with Coordinator({"orders": 1}, config=config) as coordinator, Wire(coordinator.address) as wire:
        wire.client_id = "slow"
        topic_id = wire.call(m.MetadataRequest(topics=[m.MetadataRequestTopic(name="orders")]), 12).topics[0].topic_id
        epochs = count()

        def fetch(*accepted: int) -> tuple[int, m.ShareFetchResponsePartitionData | None]:
            acks = [
                m.ShareFetchRequestAcknowledgementBatch(first_offset=each, last_offset=each, acknowledge_types=[1])
                for each in accepted
            ]
            one = m.ShareFetchRequestFetchPartition(partition_index=0, acknowledgement_batches=acks)
            how = {"max_wait_ms": 50, "min_bytes": 1, "max_records": 9}
            request = m.ShareFetchRequest(group_id="g", member_id="a", share_session_epoch=next(epochs), **how)
            request.topics = [m.ShareFetchRequestFetchTopic(topic_id=topic_id, partitions=[one])]
            answer = wire.call(request, 1)
            assert answer.error_code == 0
            parts = [part for topic in answer.responses for part in topic.partitions]
            return answer.throttle_time_ms, parts[0] if parts else None

        fetch()  # where the group begins
        for _ in range(2):
            part = m.ProduceRequestPartitionProduceData(index=0, records=batch(bytes(50_500)))
            topics = [m.ProduceRequestTopicProduceData(name="orders", partition_data=[part])]
            wire.call(m.ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=topics), 9)
        set_quota(coordinator.address, FETCH, 10_000.0)
        throttle, first = fetch()
        assert first is not None
        assert [offset for offset, _ in values(first.records)] == [0]  # max_bytes is less
        assert throttle == 0
        throttle, second = fetch(0)
        assert second is not None
        assert throttle > 0
        assert (second.records, second.acquired_records, second.acknowledge_error_code) == (b"", [], 0)

        def delivered() -> list[tuple[int, int]]:
            _, part = fetch()
            return [] if part is None else [(each.first_offset, each.delivery_count) for each in part.acquired_records]

        ((offset, deliveries),) = eventually(delivered)
        assert offset == 1
        assert deliveries > 1  # the one that was withheld counts
