"""The scripts of `exchanges`, each played once on Kafka and on our coordinator."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kcoord_wire.coordinator import Coordinator, GroupConfig
from kcoord_wire.coordinator.security.permissions import ANONYMOUS, Permissions
from tests.interop.exchanges import KAFKA_ALONE, KAFKA_OF, SCRIPTS, SETTINGS, TOPICS, VERSION_OF, Exchange, Script
from tests.interop.exchanges.heartbeats import know_topics
from tests.support.kafka_broker import KAFKA, KafkaBroker, create_topics

Outcome = list[Exchange] | Exception
"""What one play of a script has recorded, or the error that ended it."""


@dataclass(frozen=True)
class Played:
    """What the scripts gave on both sides.

    :ivar kafka: outcomes by the script's name
    :ivar ours: the same
    :ivar kafka_logs: the segments of ``__consumer_offsets`` that Kafka wrote meanwhile, by settings
    :ivar our_folders: the data folder of our coordinator, by settings
    """

    kafka: dict[str, Outcome]
    ours: dict[str, Outcome]
    kafka_logs: dict[str, list[Path]]
    our_folders: dict[str, Path]


def play_scripts(wanted: set[Script], folder: Path) -> Played:
    """Play the scripts, some settings of both sides at once."""
    result = Played({}, {}, {}, {})
    with ThreadPoolExecutor(len(SETTINGS)) as pool:  # so that not all of the brokers run at a time
        runs = []
        for settings in SETTINGS:
            scripts = [s for s in SCRIPTS if s in wanted and s.settings == settings]
            if not scripts:
                continue
            runs.append(pool.submit(_play_on_kafka, settings, scripts, folder / f"kafka-{settings}", result))
            runs.append(pool.submit(_play_on_ours, settings, scripts, folder / f"ours-{settings}", result))
        for run in runs:
            run.result()
    return result


def _play_on_kafka(settings: str, scripts: Sequence[Script], folder: Path, result: Played) -> None:
    properties = {"auto.create.topics.enable": "true", "num.partitions": "3", **SETTINGS[settings]}
    if settings in VERSION_OF:
        properties |= KAFKA_ALONE | KAFKA_OF.get(settings, {})
    assert set(TOPICS.values()) == {3}
    with KafkaBroker(folder, properties, VERSION_OF.get(settings, KAFKA)) as broker:
        create_topics(broker.address, list(TOPICS))
        if settings in VERSION_OF:
            know_topics(broker.address)
        result.kafka.update((script.name, _play(script, broker.address)) for script in scripts)
    result.kafka_logs[settings] = broker.offsets_log


def _play_on_ours(settings: str, scripts: Sequence[Script], folder: Path, result: Played) -> None:
    config = GroupConfig.from_properties(SETTINGS[settings])
    permissions = Permissions(super_users=[ANONYMOUS]) if settings in KAFKA_OF else None
    with Coordinator(
        topics=TOPICS, config=config, data_dir=folder, auto_create_partitions=3, permissions=permissions
    ) as coordinator:
        result.ours.update((script.name, _play(script, coordinator.address)) for script in scripts)
    result.our_folders[settings] = folder


def _play(script: Script, address: str) -> Outcome:
    try:
        return script.run(address)
    except Exception as error:  # reported by the script's own test
        return error
