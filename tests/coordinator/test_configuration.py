"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources: values, sources, refusals."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.apis import Refused
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.topics.configs import TOPIC_CONFIGS, Resource
from kcoord_wire.coordinator.topics.configuration import MOST_CHARACTERS, MOST_OWNERS, ConfigQuota, Source
from kcoord_wire.kernel.disk import MemoryDisk
from kcoord_wire.kernel.virtual.disk import VirtualDisk
from kcoord_wire.log.tail import CorruptLogError
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.protocol.error_codes import ErrorCode as E
from tests.support.broker import Broker, versions

TOPIC, BROKER, GROUP = Resource.TOPIC, Resource.BROKER, Resource.GROUP
SET, DELETE, APPEND, SUBTRACT = range(4)


def describe(broker: Broker, kind: int, name: str, *keys: str, version: int = 4, **more: Any) -> Any:
    part = m.DescribeConfigsRequestDescribeConfigsResource
    resource = part(resource_type=kind, resource_name=name, configuration_keys=list(keys) or None)
    request = m.DescribeConfigsRequest(resources=[resource], **more)
    (answer,) = broker.ask(request, version, m.DescribeConfigsResponse).results
    assert (answer.resource_type, answer.resource_name) == (kind, name)
    return answer


def value(broker: Broker, kind: int, name: str, key: str) -> tuple[str | None, int] | None:
    """A config's value and source; None if the resource does not have it."""
    configs = {entry.name: entry for entry in describe(broker, kind, name).configs}
    return (configs[key].value, configs[key].config_source) if key in configs else None


def change(broker: Broker, kind: int, name: str, *changes: tuple[str, int, str | None], **more: Any) -> tuple[int, Any]:
    config = m.IncrementalAlterConfigsRequestAlterableConfig
    part = m.IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[config(name=key, config_operation=operation, value=text) for key, operation, text in changes],
    )
    request = m.IncrementalAlterConfigsRequest(resources=[part], validate_only=more.pop("validate_only", False))
    (answer,) = broker.ask(request, more.pop("version", 1), m.IncrementalAlterConfigsResponse).responses
    return answer.error_code, answer.error_message


def replace(broker: Broker, kind: int, name: str, configs: dict[str, str | None], version: int = 2) -> int:
    config = m.AlterConfigsRequestAlterableConfig
    part = m.AlterConfigsRequestAlterConfigsResource(
        resource_type=kind, resource_name=name, configs=[config(name=k, value=v) for k, v in configs.items()]
    )
    (answer,) = broker.ask(m.AlterConfigsRequest(resources=[part]), version, m.AlterConfigsResponse).responses
    return answer.error_code


# ---- described


@versions(32)
def test_a_topic_is_described(broker: Broker, version: int) -> None:
    broker.topics.create("new", 1, {"retention.ms": "5"})
    configs = {entry.name: entry for entry in describe(broker, TOPIC, "new", version=version).configs}
    assert set(configs) == set(TOPIC_CONFIGS)
    own, other = configs["retention.ms"], configs["max.message.bytes"]
    assert (own.value, other.value, own.read_only) == ("5", "1048588", False)
    if version == 0:
        assert (own.is_default, other.is_default) == (False, True)
    else:
        assert (own.config_source, other.config_source) == (Source.TOPIC, Source.DEFAULT)
    if version >= 3:
        assert (own.config_type, configs["cleanup.policy"].config_type) == (5, 7)


@versions(32, 3)
def test_each_config_says_what_it_is_for(broker: Broker, version: int) -> None:
    for kind, name in ((TOPIC, "orders"), (GROUP, "billing")):
        answer = describe(broker, kind, name, version=version, include_documentation=True)
        assert all(entry.documentation for entry in answer.configs)
        assert not any(entry.documentation for entry in describe(broker, kind, name, version=version).configs)


def test_a_default_has_its_source() -> None:
    """What the broker was started with is its source where it differs from Kafka's default."""
    broker = Broker(broker_configs=GroupConfig(consumer_session_timeout_ms=9_000).properties())
    assert value(broker, GROUP, "billing", "consumer.session.timeout.ms") == ("9000", Source.START)
    assert value(broker, GROUP, "billing", "consumer.heartbeat.interval.ms") == ("5000", Source.DEFAULT)
    assert value(broker, TOPIC, "orders", "min.insync.replicas") == ("1", Source.ALL_BROKERS)
    assert [entry.name for entry in describe(broker, GROUP, "billing").configs if entry.read_only] == []


def test_only_what_is_asked_for(broker: Broker) -> None:
    answer = describe(broker, TOPIC, "orders", "retention.ms", "nonsense")
    assert [entry.name for entry in answer.configs] == ["retention.ms"]


def test_a_resource_that_is_there_often_is_described_once(broker: Broker) -> None:
    """A request of 100 KB asks for 20,000 times 37 configs, of which three may have 32 KB."""
    part = m.DescribeConfigsRequestDescribeConfigsResource
    parts = [
        part(resource_type=TOPIC, resource_name="orders", configuration_keys=keys) for keys in (None, ["flush.ms"])
    ]
    response = broker.ask(m.DescribeConfigsRequest(resources=parts * 2), 4, m.DescribeConfigsResponse)
    assert [len(answer.configs) for answer in response.results] == [len(TOPIC_CONFIGS)]


def test_the_text_for_a_long_name_fits_into_the_answer(broker: Broker) -> None:
    error, text = change(broker, TOPIC, "orders", ("x" * 32_767, SET, "1"), version=0)
    assert (error, len(text)) == (E.INVALID_CONFIG, 1_000)


def test_synonyms_are_all_values_the_one_in_force_first(broker: Broker) -> None:
    change(broker, TOPIC, "orders", ("max.message.bytes", SET, "1"))
    change(broker, BROKER, "3", ("message.max.bytes", SET, "2"))
    change(broker, BROKER, "", ("message.max.bytes", SET, "3"))
    (config,) = describe(broker, TOPIC, "orders", "max.message.bytes", include_synonyms=True).configs
    assert [(each.name, each.value, each.source) for each in config.synonyms] == [
        ("max.message.bytes", "1", Source.TOPIC),
        ("message.max.bytes", "2", Source.BROKER),
        ("message.max.bytes", "3", Source.ALL_BROKERS),
        ("message.max.bytes", "1048588", Source.DEFAULT),
    ]


def test_a_broker_says_what_it_was_started_with() -> None:
    broker = Broker(auto_create_partitions=4, broker_configs={"group.max.size": "9"})
    assert value(broker, BROKER, "3", "num.partitions") == ("4", Source.START)
    assert value(broker, BROKER, "3", "auto.create.topics.enable") == ("true", Source.DEFAULT)
    assert value(Broker(), BROKER, "3", "auto.create.topics.enable") == ("false", Source.START)
    assert value(broker, BROKER, "3", "group.max.size") == ("9", Source.START)
    assert value(broker, BROKER, "3", "log.cleanup.policy") == ("delete", Source.DEFAULT)
    assert [entry.name for entry in describe(broker, BROKER, "").configs] == ["min.insync.replicas"]
    assert {entry.name: entry.read_only for entry in describe(broker, BROKER, "3").configs}["group.max.size"]


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (TOPIC, "nope", E.UNKNOWN_TOPIC_OR_PARTITION),
        (BROKER, "4", E.INVALID_REQUEST),
        (BROKER, "x", E.INVALID_REQUEST),
        (GROUP, "", E.INVALID_REQUEST),
        (16, "metrics", E.INVALID_REQUEST),
        (0, "", E.INVALID_REQUEST),
    ],
)
def test_what_has_no_configs(broker: Broker, kind: int, name: str, error: E) -> None:
    answer = describe(broker, kind, name)
    assert (answer.error_code, answer.configs) == (error, [])
    if kind != TOPIC:
        assert change(broker, kind, name)[0] == (error if (kind, name) != (GROUP, "") else 0)


# ---- altered


@versions(44)
def test_single_configs_change(broker: Broker, version: int) -> None:
    assert change(broker, TOPIC, "orders", ("retention.ms", SET, "7"), ("flush.ms", SET, "1")) == (0, None)
    assert change(broker, TOPIC, "orders", ("retention.ms", DELETE, None), version=version) == (0, None)
    assert value(broker, TOPIC, "orders", "retention.ms") == ("604800000", Source.DEFAULT)
    assert value(broker, TOPIC, "orders", "flush.ms") == ("1", Source.TOPIC)


def test_lists_grow_and_shrink(broker: Broker) -> None:
    assert change(broker, TOPIC, "orders", ("cleanup.policy", APPEND, "compact"))[0] == 0
    assert value(broker, TOPIC, "orders", "cleanup.policy") == ("delete,compact", Source.TOPIC)
    assert change(broker, TOPIC, "orders", ("cleanup.policy", SUBTRACT, "delete"))[0] == 0
    assert value(broker, TOPIC, "orders", "cleanup.policy") == ("compact", Source.TOPIC)


@versions(33)
def test_all_configs_are_replaced(broker: Broker, version: int) -> None:
    replace(broker, TOPIC, "orders", {"retention.ms": "7"})
    assert replace(broker, TOPIC, "orders", {"flush.ms": "1"}, version) == 0
    assert value(broker, TOPIC, "orders", "retention.ms") == ("604800000", Source.DEFAULT)
    assert value(broker, TOPIC, "orders", "flush.ms") == ("1", Source.TOPIC)
    assert replace(broker, TOPIC, "orders", {"flush.ms": None}) == E.INVALID_REQUEST


REFUSED = [
    (TOPIC, "orders", ("nonsense", SET, "1"), E.INVALID_CONFIG, "Unknown topic config name: nonsense"),
    (TOPIC, "orders", ("retention.ms", SET, "x"), E.INVALID_CONFIG, "Not a number"),
    (TOPIC, "orders", ("retention.ms", SET, None), E.INVALID_REQUEST, "Null value not supported for : retention.ms"),
    (TOPIC, "orders", ("retention.ms", APPEND, "1"), E.INVALID_CONFIG, "Can't APPEND to key retention.ms"),
    (TOPIC, "orders", ("retention.ms", 9, "1"), E.INVALID_REQUEST, "Unknown operations type 9"),
    (TOPIC, "nope", ("retention.ms", SET, "1"), E.UNKNOWN_TOPIC_OR_PARTITION, "The topic 'nope' does not exist."),
    (GROUP, "g", ("retention.ms", SET, "1"), E.INVALID_CONFIG, "Unknown group config name"),
    (BROKER, "3", ("num.partitions", SET, "1"), E.INVALID_REQUEST, "Cannot update these configs dynamically"),
    (BROKER, "3", ("message.max.bytes", SET, "x"), E.INVALID_CONFIG, "Not a number of type INT"),
    (BROKER, "4", ("message.max.bytes", SET, "1"), E.INVALID_REQUEST, "Unexpected broker id"),
]


@pytest.mark.parametrize(("kind", "name", "wanted", "error", "text"), REFUSED, ids=[row[4] for row in REFUSED])
def test_what_is_not_altered(broker: Broker, kind: int, name: str, wanted: Any, error: E, text: str) -> None:
    before = [describe(broker, *resource) for resource in ((TOPIC, "orders"), (BROKER, "3"), (GROUP, "g"))]
    found, message = change(broker, kind, name, wanted)
    assert (found, text in message) == (error, True), message
    assert before == [describe(broker, *resource) for resource in ((TOPIC, "orders"), (BROKER, "3"), (GROUP, "g"))]


def test_a_config_or_resource_twice_is_refused(broker: Broker) -> None:
    twice = ("flush.ms", SET, "1")
    assert change(broker, TOPIC, "orders", twice, twice) == (E.INVALID_REQUEST, "Error due to duplicate config keys")
    part = m.AlterConfigsRequestAlterConfigsResource(resource_type=TOPIC, resource_name="orders")
    answers = broker.ask(m.AlterConfigsRequest(resources=[part, part]), 2, m.AlterConfigsResponse).responses
    assert [answer.error_code for answer in answers] == [E.INVALID_REQUEST] * 2


def test_validating_alters_nothing(broker: Broker) -> None:
    assert change(broker, TOPIC, "orders", ("flush.ms", SET, "1"), validate_only=True) == (0, None)
    assert value(broker, TOPIC, "orders", "flush.ms") == ("9223372036854775807", Source.DEFAULT)


def test_groups_have_configs(broker: Broker) -> None:
    key = "consumer.session.timeout.ms"
    assert value(broker, GROUP, "g", key) == ("45000", Source.DEFAULT)
    assert change(broker, GROUP, "g", (key, SET, "50000")) == (0, None)
    assert value(broker, GROUP, "g", key) == ("50000", Source.GROUP)
    assert broker.topics.configuration.of_group("g") == {key: "50000"}
    assert broker.topics.configuration.of_group("other") == {}


def test_a_value_of_all_brokers_is_a_topics(broker: Broker) -> None:
    change(broker, BROKER, "", ("message.max.bytes", SET, "77"))
    topic = broker.topics.catalog.named("orders")
    assert topic is not None
    assert broker.topics.configuration.value(topic, "max.message.bytes") == 77
    change(broker, TOPIC, "orders", ("max.message.bytes", SET, "88"))
    assert broker.topics.configuration.value(topic, "max.message.bytes") == 88
    change(broker, BROKER, "", ("message.max.bytes", DELETE, None))
    change(broker, TOPIC, "orders", ("max.message.bytes", DELETE, None))
    assert broker.topics.configuration.value(topic, "max.message.bytes") == 1_048_588


# ---- listed


def listed(broker: Broker, *kinds: int, version: int = 1) -> list[tuple[int, str]]:
    request = m.ListConfigResourcesRequest(resource_types=list(kinds))
    response = broker.ask(request, version, m.ListConfigResourcesResponse)
    return [(each.resource_type, each.resource_name) for each in response.config_resources]


def test_what_has_configs_is_listed(broker: Broker) -> None:
    change(broker, GROUP, "g", ("consumer.session.timeout.ms", SET, "50000"))
    assert listed(broker) == [(TOPIC, "orders"), (BROKER, "3"), (GROUP, "g")]
    assert listed(broker, GROUP, 99) == [(GROUP, "g")]
    assert listed(broker, version=0) == []


# ---- kept


def test_what_was_set_is_there_after_a_restart() -> None:
    disk = MemoryDisk()
    broker = Broker(disk=disk)
    assert change(broker, BROKER, "", ("log.retention.ms", SET, "77"))[0] == E.NONE
    assert change(broker, BROKER, "3", ("message.max.bytes", SET, "2000000"), ("of.nobody", SET, "x"))[0] == E.NONE
    assert change(broker, GROUP, "billing", ("consumer.session.timeout.ms", SET, "50000"))[0] == E.NONE
    assert change(broker, GROUP, "gone", ("consumer.session.timeout.ms", SET, "50000"))[0] == E.NONE
    assert change(broker, GROUP, "gone", ("consumer.session.timeout.ms", DELETE, None))[0] == E.NONE
    again = Broker(disk=disk)
    assert value(again, BROKER, "", "log.retention.ms") == ("77", Source.ALL_BROKERS)
    assert value(again, TOPIC, "orders", "max.message.bytes") == ("2000000", Source.BROKER)
    assert value(again, BROKER, "3", "of.nobody") == ("x", Source.BROKER)
    assert again.topics.configuration.of_group("billing") == {"consumer.session.timeout.ms": "50000"}
    assert again.topics.configuration.of_group("gone") == {}


def test_what_cannot_be_written_is_not_set() -> None:
    disk = VirtualDisk(Random(1))
    broker = Broker(disk=disk)
    disk.fails_in = 1
    outcome = change(broker, GROUP, "billing", ("consumer.session.timeout.ms", SET, "50000"))
    assert outcome[0] == E.KAFKA_STORAGE_ERROR
    assert broker.topics.configuration.of_group("billing") == {}
    assert Broker(disk=disk).topics.configuration.of_group("billing") == {}


def test_a_forged_journal_cannot_set_what_a_client_cannot() -> None:
    disk = MemoryDisk()
    broker = Broker(disk=disk)
    broker.topics.catalog.configure({}, {(GROUP, "billing"): {"consumer.session.timeout.ms": "soon"}})
    with pytest.raises(CorruptLogError, match=r"topics\.journal at byte 0: Invalid value soon"):
        Broker(disk=disk)


# ---- How much clients may set for brokers and groups: the number and the size are bounded, and freed again

GROUP = 32
OWN = {"consumer.session.timeout.ms": "50000"}


def test_the_number_of_groups_with_configs_is_bounded() -> None:
    room = ConfigQuota({(GROUP, f"g{number}"): OWN for number in range(MOST_OWNERS - 1)})
    room.reserve((GROUP, "last"), OWN)
    with pytest.raises(Refused, match="no room for more") as refused:
        room.reserve((GROUP, "more"), OWN)
    assert refused.value.error == ErrorCode.POLICY_VIOLATION
    room.reserve((GROUP, "last"), {"consumer.session.timeout.ms": "60000", "consumer.heartbeat.interval.ms": "5000"})
    room.reserve((GROUP, "g0"), {})
    room.reserve((GROUP, "more"), OWN)


def test_the_size_of_configs_is_bounded() -> None:
    room = ConfigQuota({})
    room.reserve((4, ""), {"large": "x" * (MOST_CHARACTERS - 100)})
    with pytest.raises(Refused, match="characters together"):
        room.reserve((GROUP, "g"), {"large": "x" * 100})
    room.reserve((4, ""), {"large": "x"})
    room.reserve((GROUP, "g"), {"large": "x" * 100})


def test_nothing_to_remove_takes_no_room() -> None:
    room = ConfigQuota({})
    for number in range(MOST_OWNERS + 1):
        room.reserve((GROUP, f"g{number}"), {})
    room.reserve((GROUP, "g"), OWN)
