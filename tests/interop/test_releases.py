"""`as_version` beside real brokers of that release: the same versions of every api that the coordinator has."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcoord_wire.coordinator.core.apis import SERVED
from kcoord_wire.coordinator.topics.releases import served_by
from kcoord_wire.protocol.api_keys import ApiKey
from tests.support.group_client import VERSIONS
from tests.support.kafka_broker import KAFKA, KafkaBroker
from tests.support.wire import Wire

PREVIEWS = {ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE}
"""Of KIP-848, which a broker of 3.9 has when it is told to, as this one is."""


@pytest.mark.parametrize("version", [KAFKA, "4.4.0"])
def test_a_broker_of_the_release_advertises_the_same(version: str, tmp_path: Path) -> None:
    with KafkaBroker(tmp_path / f"release-{version}", version=version) as broker, Wire(broker.address) as wire:
        answer = wire.call(VERSIONS, 3)
    kafka = {each.api_key: range(each.min_version, each.max_version + 1) for each in answer.api_keys}
    both = {
        api: range(max(versions.start, kafka[api].start), min(versions.stop, kafka[api].stop))
        for api, versions in SERVED.items()
        if api in kafka and (version != KAFKA or api not in PREVIEWS)
    }
    assert served_by(version) == both
