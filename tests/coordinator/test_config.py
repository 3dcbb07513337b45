"""The coordinator's settings: Kafka's names and units, bounds, defaults."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord_wire.coordinator.core.config import GroupConfig, MigrationPolicy
from kcoord_wire.kernel.settings import MAX_INT32, SettingsError, help_lines


def test_settings_have_kafkas_names_and_units() -> None:
    config = GroupConfig.from_properties({"group.max.size": "3", "offsets.retention.minutes": 2})
    assert (config.max_size, config.offsets_retention_ms) == (3, 120_000)
    assert GroupConfig.from_properties({}) == GroupConfig()
    texts = {"group.consumer.assignors": "range, uniform", "group.consumer.migration.policy": "Upgrade"}
    config = GroupConfig.from_properties({**texts, "group.consumer.session.timeout.ms": "7000"})
    assert (config.consumer_assignors, config.consumer_session_timeout_ms) == (("range", "uniform"), 7_000)
    assert config.consumer_migration_policy is MigrationPolicy.UPGRADE


@pytest.mark.parametrize(
    ("policy", "upgrades", "downgrades"),
    [("bidirectional", True, True), ("upgrade", True, False), ("downgrade", False, True), ("disabled", False, False)],
)
def test_migration_policies(policy: Any, upgrades: bool, downgrades: bool) -> None:
    found = GroupConfig(consumer_migration_policy=policy).consumer_migration_policy
    assert (found.upgrades, found.downgrades) == (upgrades, downgrades)


@pytest.mark.parametrize(
    ("properties", "where", "what"),
    [
        ({"group.max.sizes": "1"}, "group.max.sizes", "unknown; did you mean group.max.size?"),
        ({"group.max.size": "many"}, "group.max.size", "must be a whole number, not 'many'"),
        ({"group.max.size": "0"}, "group.max.size", "must be 1 or more, not 0"),
        (
            {"group.consumer.assignors": "uniform,rnge"},
            "group.consumer.assignors",
            "'rnge' is not an assignor; did you mean range?",
        ),
        (
            {"group.consumer.migration.policy": "up"},
            "group.consumer.migration.policy",
            "'up' is not a policy; there are bidirectional, upgrade, downgrade, disabled",
        ),
        ({"group.consumer.max.size": "0"}, "group.consumer.max.size", "must be 1 or more, not 0"),
        ({"offsets.retention.ms": "-1"}, "offsets.retention.ms", "must be 0 or more, not -1"),
        ({"group.max.size": 1 << 31}, "group.max.size", "must be 2147483647 or less, not 2147483648"),
        (
            {"offsets.retention.minutes": 1 << 31},
            "offsets.retention.minutes",
            "must be 2147483647 or less, not 2147483648",
        ),
    ],
)
def test_wrong_properties_are_named(properties: dict[str, str], where: str, what: str) -> None:
    with pytest.raises(SettingsError) as caught:
        GroupConfig.from_properties(properties)
    assert (caught.value.where, caught.value.what) == (where, what)
    assert str(caught.value) == f"{where}: {what}"


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"max_size": 0}, ValueError),
        ({"max_size": True}, TypeError),
        ({"consumer_session_timeout_ms": 0}, ValueError),
        ({"consumer_assignors": ()}, ValueError),
        ({"consumer_assignors": ("sticky",)}, ValueError),
        ({"consumer_migration_policy": "sideways"}, ValueError),
        ({"initial_rebalance_delay_ms": -1}, ValueError),
        ({"consumer_heartbeat_interval_ms": MAX_INT32 + 1}, ValueError),
        ({"min_session_timeout_ms": 10, "max_session_timeout_ms": 9}, ValueError),
    ],
)
def test_wrong_settings_are_rejected(settings: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        GroupConfig(**settings)


def test_settings_by_kafkas_names() -> None:
    named = GroupConfig(max_size=7, offsets_retention_ms=120_000).properties()
    assert (named["group.max.size"], named["offsets.retention.minutes"]) == ("7", "2")
    assert "offsets.retention.minutes" not in GroupConfig(offsets_retention_ms=1).properties()
    config = GroupConfig(initial_rebalance_delay_ms=9, offsets_retention_check_interval_ms=MAX_INT32 + 1)
    assert GroupConfig.from_properties(config.properties()) == config


def test_the_help_of_settings_shows_the_defaults() -> None:
    shown = dict(line.split()[0].split("=") for line in help_lines(GroupConfig))
    assert len(shown) == len(help_lines(GroupConfig)) == 35
    assert GroupConfig.from_properties(shown) == GroupConfig()
