"""Configs of topics, groups and the broker, described and altered by clients.

Laws:

* An altered config is kept and described from then on, after a restart on the same disk, too; nothing is altered by a
  request that is refused, or that may only validate. All that a request alters is written to the disk at once.
* What clients set for brokers and groups, which need not exist, is bounded in number and size (`ConfigQuota`; Kafka has
  no such bounds): more is refused with POLICY_VIOLATION (44).
* A topic's value is, in this order: its own, the broker's of that id, that of all brokers, the broker's at its start,
  Kafka's default. A group's likewise.
* What the broker was started with can be read and not altered, as all that Kafka calls read-only.

Source: kafka `ConfigHelper.scala`, `ConfigAdminManager.scala`, `ConfigurationControlManager.java`; KIP-133, KIP-226,
KIP-339, KIP-1142.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.apis import Refused, refused_in
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.events import Request
from kcoord_wire.coordinator.partitions.journal import Owner
from kcoord_wire.coordinator.partitions.partition_log import Rolling
from kcoord_wire.coordinator.partitions.record_rules import RecordRules
from kcoord_wire.coordinator.topics.catalog import Catalog, Topic, disk_work
from kcoord_wire.coordinator.topics.configs import (
    BROKER_CONFIGS,
    GROUP_CONFIGS,
    TEXTS,
    TOPIC_CONFIGS,
    Config,
    Kind,
    Resource,
    check_configs,
    read_value,
)
from kcoord_wire.coordinator.topics.metadata import ClusterMetadata
from kcoord_wire.protocol.error_codes import ErrorCode

MOST_OWNERS: Final = 10_000
"""Brokers and groups with configs of their own."""

MOST_CHARACTERS: Final = 4 << 20
"""Characters of their names and configs together."""


class ConfigQuota:
    """How much clients may still set for brokers and groups.

    :param configs: what they have set
    """

    def __init__(self, configs: Mapping[Owner, Mapping[str, str]]) -> None:
        self._sizes = {owner: _size(owner, own) for owner, own in configs.items()}
        self._total = sum(self._sizes.values())

    def reserve(self, owner: Owner, new: Mapping[str, str]) -> None:
        """Note what a broker or group is to have in place of what it had.

        :raises Refused: POLICY_VIOLATION, it is more than there is room for
        """
        before = self._sizes.get(owner, 0)
        after = _size(owner, new) if new else 0
        if after > before:
            if not before and len(self._sizes) >= MOST_OWNERS:
                detail = f"{MOST_OWNERS:,} brokers and groups have configs of their own; there is no room for more."
                raise Refused(ErrorCode.POLICY_VIOLATION, detail)
            if self._total + after - before > MOST_CHARACTERS:
                detail = f"The configs of brokers and groups may have {MOST_CHARACTERS:,} characters together."
                raise Refused(ErrorCode.POLICY_VIOLATION, detail)
        self._total += after - before
        self._sizes[owner] = after
        if not after:
            del self._sizes[owner]


def _size(owner: Owner, configs: Mapping[str, str]) -> int:
    return len(owner[1]) + sum(len(name) + len(value) for name, value in configs.items())


class Source(enum.IntEnum):
    """Where a value is from, with Kafka's number (``ConfigSource``)."""

    TOPIC = 1
    BROKER = 2
    ALL_BROKERS = 3
    START = 4
    DEFAULT = 5
    GROUP = 8


class _Op(enum.IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class _Value(NamedTuple):
    """A value that a config has, or would have without those before it."""

    name: str
    value: str
    source: Source


_TABLES: Final[Mapping[Resource, tuple[Mapping[str, Config], str, Source]]] = {
    Resource.TOPIC: (TOPIC_CONFIGS, "topic", Source.TOPIC),
    Resource.GROUP: (GROUP_CONFIGS, "group", Source.GROUP),
}
_DEFAULTS: Final = {
    **{name: config.default for name, config in BROKER_CONFIGS.items()},
    **GroupConfig().properties(),
    "auto.create.topics.enable": "true",
    "broker.id": "-1",
    "default.replication.factor": "1",
    "delete.topic.enable": "true",
    "num.partitions": "1",
}
"""Kafka's defaults of the configs of brokers: what a broker was started with is said of those that differ."""

_LONG: Final = frozenset({"offsets.retention.check.interval.ms"})
_BROKERS_NAMES: Final = {
    config.broker: name for table in (TOPIC_CONFIGS, GROUP_CONFIGS) for name, config in table.items() if config.broker
}
"""The name of a broker's config to that of the topic's or group's for which it is the default."""

_OF_ALL_BROKERS: Final = {"min.insync.replicas": "1"}
"""What all brokers of a new cluster have: eligible leader replicas are on, which needs the value (KIP-966)."""

_RULES: Final = (
    "cleanup.policy",
    "message.timestamp.type",
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
)
"""The configs of a topic that are its `RecordRules`."""

_ALL_BROKERS: Final = ""  # the name of the resource whose configs are those of all brokers


class Configuration:
    """The configs of everything that has some.

    :param catalog: the topics, which hold their own
    :param cluster: the brokers
    :param start: what the broker was started with, by Kafka's names
    """

    def __init__(self, catalog: Catalog, cluster: ClusterMetadata, start: Mapping[str, str]) -> None:
        self._catalog = catalog
        self._cluster = cluster
        self._start = {"node.id": "", "broker.id": "", **start}  # of each broker its own
        self._first_rules = [self._rule(name) for name in _RULES]

    # ---- values

    def value(self, topic: Topic, name: str) -> Any:
        """Return the value that a config of a topic has, in the type of its `Kind`."""
        config = TOPIC_CONFIGS[name]
        own = topic.configs.get(name)
        if own is None:
            own = next((each.value for each in self._inherited(config)), config.default)
        return read_value(config, own)

    def record_rules(self, topic: Topic) -> RecordRules:
        """Return what a topic demands of records."""
        inherited = [self._rule(name) for name in _RULES] if self._catalog.configs else self._first_rules
        return _record_rules(*map(topic.configs.get, _RULES, inherited))

    def _rule(self, name: str) -> str:
        config = TOPIC_CONFIGS[name]
        return next((each.value for each in self._inherited(config)), config.default)

    def rolling(self, topic: Topic) -> Rolling:
        """Return when a segment of a topic is full (`LogConfig.java`, maxSegmentMs)."""
        longest: int = self.value(topic, "segment.ms")
        if "compact" in self.value(topic, "cleanup.policy"):
            longest = min(longest, self.value(topic, "max.compaction.lag.ms"))
        return Rolling(self.value(topic, "segment.bytes"), longest)

    def group_value(self, group_id: str, name: str) -> Any:
        """Return the value that a config of a group has, in the type of its `Kind`."""
        config = GROUP_CONFIGS[name]
        own = self.of_group(group_id).get(name)
        if own is None:
            own = next((each.value for each in self._inherited(config)), config.default)
        return read_value(config, own)

    def of_group(self, group_id: str) -> Mapping[str, str]:
        """Return what clients have set for a group."""
        return self._catalog.configs.get((Resource.GROUP, group_id), {})

    def _inherited(self, config: Config) -> Iterator[_Value]:
        """Yield the values that a config has where the topic or group has none of its own."""
        if config.broker is not None:
            yield from self._of_broker(config.broker)
            yield _Value(config.broker, config.default, Source.DEFAULT)

    def _of_broker(self, name: str, node: str | None = None) -> Iterator[_Value]:
        """Yield the values that a config of a broker has; without a `node`, of the first."""
        node = str(self._cluster.node_ids[0]) if node is None else node
        for values, source in (
            (self._catalog.configs.get((Resource.BROKER, node), {}), Source.BROKER),
            (self._of_all_brokers(), Source.ALL_BROKERS),
            (self._start | {"node.id": node, "broker.id": node}, Source.START),
        ):
            if name in values and not (source is Source.START and values[name] == _DEFAULTS.get(name)):
                yield _Value(name, values[name], source)

    def _of_all_brokers(self) -> Mapping[str, str]:
        return _OF_ALL_BROKERS | self._catalog.configs.get((Resource.BROKER, _ALL_BROKERS), {})

    # ---- DescribeConfigs

    def describe(self, request: Request) -> m.DescribeConfigsResponse:
        """Answer DescribeConfigs. A resource that is named twice is described once, as it is asked for first: otherwise
        a short request could ask for an answer larger than memory."""
        asked: m.DescribeConfigsRequest = request.message
        answers: dict[tuple[int, str], m.DescribeConfigsResponseDescribeConfigsResult] = {}
        for wanted in asked.resources:
            key = wanted.resource_type, wanted.resource_name
            if key not in answers:
                answers[key] = self._describe(wanted, request)
        return m.DescribeConfigsResponse(results=list(answers.values()))

    def _describe(
        self, wanted: m.DescribeConfigsRequestDescribeConfigsResource, request: Request
    ) -> m.DescribeConfigsResponseDescribeConfigsResult:
        answer = m.DescribeConfigsResponseDescribeConfigsResult(
            error_message="", resource_type=wanted.resource_type, resource_name=wanted.resource_name
        )
        with refused_in(answer):
            found = self._find(wanted.resource_type, wanted.resource_name)
            keys = set(wanted.configuration_keys or found)
            of_broker = wanted.resource_type == Resource.BROKER
            answer.configs = [
                _described(name, *found[name], request, read_only=of_broker and name in self._start)
                for name in sorted(found)
                if name in keys
            ]
        return answer

    def describe_created(self, own: Mapping[str, str]) -> list[m.CreateTopicsResponseCreatableTopicConfigs]:
        """Return the configs that a topic with some of its own has, as CreateTopics answers them."""
        return [
            m.CreateTopicsResponseCreatableTopicConfigs(
                name=name, value=values[0].value, config_source=values[0].source
            )
            for name, (_, values) in sorted(self._values(Resource.TOPIC, own).items())
        ]

    def _find(self, kind: int, name: str) -> dict[str, tuple[Kind, list[_Value]]]:
        """Return what a resource has: name to type and values, that in force first.

        :raises Refused: there is no such resource
        """
        if kind == Resource.TOPIC:
            topic = self._catalog.named(name)
            if topic is None:
                raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return self._values(Resource.TOPIC, topic.configs)
        if kind == Resource.GROUP:
            if not name:
                raise Refused(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
            return self._values(Resource.GROUP, self.of_group(name))
        if kind == Resource.BROKER:
            return self._values_of_broker(name)
        raise _unsupported(kind)

    def _values(self, kind: Resource, own: Mapping[str, str]) -> dict[str, tuple[Kind, list[_Value]]]:
        table, _, source = _TABLES[kind]
        found = {}
        for name, config in table.items():
            values = [_Value(name, own[name], source)] if name in own else []
            values += self._inherited(config)
            if config.broker is None:
                values.append(_Value(name, config.default, Source.DEFAULT))
            found[name] = config.kind, values
        return found

    def _values_of_broker(self, name: str) -> dict[str, tuple[Kind, list[_Value]]]:
        if name == _ALL_BROKERS:
            altered = self._of_all_brokers()
            return {key: (_kind(key, text), [_Value(key, text, Source.ALL_BROKERS)]) for key, text in altered.items()}
        self._check_broker(name)
        own = self._catalog.configs.get((Resource.BROKER, name), {})
        found = {}
        for key in {*BROKER_CONFIGS, *self._start, *own, *self._of_all_brokers()}:
            values = list(self._of_broker(key, name))
            if key in _DEFAULTS:
                values.append(_Value(key, _DEFAULTS[key], Source.DEFAULT))
            if values:
                found[key] = _kind(key, values[0].value), values
        return found

    def _check_broker(self, name: str) -> None:
        if name not in {str(node) for node in self._cluster.node_ids}:
            expected = ", ".join(map(str, self._cluster.node_ids))
            detail = f"Unexpected broker id, expected {expected} or empty string, but received {name}"
            raise Refused(ErrorCode.INVALID_REQUEST, detail)

    # ---- AlterConfigs, IncrementalAlterConfigs

    def alter(self, request: Request) -> m.AlterConfigsResponse:
        """Answer AlterConfigs: what a resource had is replaced."""
        asked: m.AlterConfigsRequest = request.message
        outcomes = self._alter_all(asked, _replaced)
        return m.AlterConfigsResponse(
            responses=[m.AlterConfigsResponseAlterConfigsResourceResponse(**outcome) for outcome in outcomes]
        )

    def alter_incrementally(self, request: Request) -> m.IncrementalAlterConfigsResponse:
        """Answer IncrementalAlterConfigs: single configs are set, removed, or have parts of their lists changed."""
        asked: m.IncrementalAlterConfigsRequest = request.message
        return m.IncrementalAlterConfigsResponse(
            responses=[
                m.IncrementalAlterConfigsResponseAlterConfigsResourceResponse(**outcome)
                for outcome in self._alter_all(asked, _changed)
            ]
        )

    def _alter_all(self, asked: Any, change: _Change) -> list[dict[str, Any]]:
        """Alter what a request asks for, and return the fields of each part of the answer."""
        outcomes: list[dict[str, Any]] = []
        quota = ConfigQuota(self._catalog.configs)
        altered: dict[Owner, dict[str, str]] = {}
        times = Counter((wanted.resource_type, wanted.resource_name) for wanted in asked.resources)
        for wanted in asked.resources:
            outcome = {
                "error_code": ErrorCode.NONE,
                "error_message": None,
                "resource_type": wanted.resource_type,
                "resource_name": wanted.resource_name,
            }
            try:
                if times[wanted.resource_type, wanted.resource_name] > 1:
                    raise Refused(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
                owner = wanted.resource_type, wanted.resource_name
                new = self._altered(wanted, change)
                if wanted.resource_type != Resource.TOPIC:
                    quota.reserve(owner, new)
                altered[owner] = new
            except Refused as refused:
                outcome |= {"error_code": refused.error, "error_message": refused.detail}
            outcomes.append(outcome)
        if not asked.validate_only:
            try:
                self._keep(altered)
            except Refused as refused:
                for outcome in outcomes:
                    if (outcome["resource_type"], outcome["resource_name"]) in altered:
                        outcome |= {"error_code": refused.error, "error_message": refused.detail}
        return outcomes

    def _altered(self, wanted: Any, change: _Change) -> dict[str, str]:
        """Return the configs that a resource is to have.

        :raises Refused: it cannot have them
        """
        _check_keys(wanted.configs)
        kind, name = wanted.resource_type, wanted.resource_name
        if kind == Resource.BROKER:
            if name != _ALL_BROKERS:
                self._check_broker(name)
            read_only = sorted({each.name for each in wanted.configs} & self._start.keys())
            if read_only:
                detail = f"Cannot update these configs dynamically: {', '.join(read_only)}"
                raise Refused(ErrorCode.INVALID_REQUEST, detail)
            new = change(BROKER_CONFIGS, self._catalog.configs.get((Resource.BROKER, name), {}), wanted)
            known = {key: text for key, text in new.items() if key in BROKER_CONFIGS}
            check_configs(BROKER_CONFIGS, "broker", known)
        elif kind in _TABLES:
            table, what, _ = _TABLES[Resource(kind)]
            new = change(table, self._own(Resource(kind), name), wanted)
            check_configs(table, what, new)
            topic = self._catalog.named(name) if kind == Resource.TOPIC else None
            if topic is not None and topic.is_internal:
                raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"The configs of {name} are the brokers' own.")
            if kind == Resource.TOPIC and topic is None:
                raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        else:
            raise _unsupported(kind)
        return new

    def _own(self, kind: Resource, name: str) -> Mapping[str, str]:
        if kind is Resource.TOPIC:
            topic = self._catalog.named(name)
            return topic.configs if topic else {}
        return self._catalog.configs.get((kind, name), {})

    def _keep(self, altered: Mapping[Owner, dict[str, str]]) -> None:
        topics = {name: own for (kind, name), own in altered.items() if kind == Resource.TOPIC}
        others = {owner: own for owner, own in altered.items() if owner[0] != Resource.TOPIC}
        with disk_work():
            self._catalog.configure(topics, others)

    # ---- ListConfigResources

    def list_resources(self, request: Request) -> m.ListConfigResourcesResponse:
        """Answer ListConfigResources: what has, or may have, configs of its own."""
        asked: m.ListConfigResourcesRequest = request.message
        names = {
            Resource.TOPIC: [topic.name for topic in self._catalog],
            Resource.BROKER: [str(node) for node in self._cluster.node_ids],
            Resource.GROUP: [name for kind, name in self._catalog.configs if kind == Resource.GROUP],
        }
        kinds = asked.resource_types or ([*names] if request.version else [])  # v0 lists subscriptions to metrics only
        resources = [
            m.ListConfigResourcesResponseConfigResource(resource_name=name, resource_type=kind)
            for kind, there in names.items()
            for name in there
            if kind in kinds
        ]
        return m.ListConfigResourcesResponse(config_resources=resources)


@lru_cache(1024)
def _record_rules(policy: str, kind: str, before: str, after: str) -> RecordRules:
    return RecordRules("compact" in policy, kind == "LogAppendTime", int(before), int(after))


_Change = Callable[[Mapping[str, Config], Mapping[str, str], Any], dict[str, str]]


def _unsupported(kind: int) -> Refused:
    return Refused(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {kind}")


def _kind(name: str, text: str) -> Kind:
    """Return the type of a broker's config; of one that no topic or group has, by its value."""
    if name in BROKER_CONFIGS:
        return BROKER_CONFIGS[name].kind
    if name in _LONG:
        return Kind.LONG
    if text in ("true", "false"):
        return Kind.BOOLEAN
    return Kind.INT if text.isdecimal() else Kind.STRING


def _described(
    name: str, kind: Kind, values: Sequence[_Value], request: Request, *, read_only: bool
) -> m.DescribeConfigsResponseDescribeConfigsResourceResult:
    # Kafka does not list a default that is not a broker's config.
    synonyms = [each for each in values if each.source is not Source.DEFAULT or each.name in _DEFAULTS]
    if not request.message.include_synonyms:
        synonyms.clear()
    return m.DescribeConfigsResponseDescribeConfigsResourceResult(
        name=name,
        value=values[0].value,
        read_only=read_only,
        is_default=request.version == 0 and values[0].source is Source.DEFAULT,  # later versions have the source
        config_source=values[0].source,
        synonyms=[m.DescribeConfigsResponseDescribeConfigsSynonym(**value._asdict()) for value in synonyms],
        config_type=kind,
        documentation=TEXTS.get(_BROKERS_NAMES.get(name, name)) if request.message.include_documentation else None,
    )


def _check_keys(configs: Iterable[Any]) -> None:
    times = Counter(each.name for each in configs)
    if any(count > 1 for count in times.values()):
        raise Refused(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    nulls = [each.name for each in configs if each.value is None and getattr(each, "config_operation", 0) != _Op.DELETE]
    if nulls:
        raise Refused(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}")


def _replaced(table: Mapping[str, Config], own: Mapping[str, str], wanted: Any) -> dict[str, str]:
    """Return the configs of a resource that AlterConfigs wants."""
    return {each.name: each.value for each in wanted.configs}


def _changed(table: Mapping[str, Config], own: Mapping[str, str], wanted: Any) -> dict[str, str]:
    """Return the configs of a resource after the changes that IncrementalAlterConfigs wants."""
    new = dict(own)
    for each in wanted.configs:
        if each.config_operation not in list(_Op):
            raise Refused(ErrorCode.INVALID_REQUEST, f"Unknown operations type {each.config_operation}")
        if each.config_operation == _Op.DELETE:
            new.pop(each.name, None)
        elif each.config_operation == _Op.SET:
            new[each.name] = each.value
        else:
            new[each.name] = _changed_list(table, new, each)
    return new


def _changed_list(table: Mapping[str, Config], own: Mapping[str, str], each: Any) -> str:
    config = table.get(each.name)
    if config is None or config.kind is not Kind.LIST:
        verb = _Op(each.config_operation).name
        raise Refused(ErrorCode.INVALID_CONFIG, f"Can't {verb} to key {each.name} because its type is not LIST.")
    parts = [part for part in own.get(each.name, config.default).split(",") if part]
    for part in each.value.split(","):
        if each.config_operation == _Op.SUBTRACT:
            parts = [other for other in parts if other != part]
        elif part not in parts:
            parts.append(part)
    return ",".join(parts)
