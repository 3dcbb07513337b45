"""Apache Kafka 4.4 answers the scripts of consumer groups (KIP-848) and of migration as they expect."""

from __future__ import annotations

import pytest

from tests.interop.exchanges import SCRIPTS, VERSION_OF, Script
from tests.interop.exchanges.comparison import recorded
from tests.interop.exchanges.played import Played


@pytest.mark.parametrize("script", [s for s in SCRIPTS if s.settings in VERSION_OF], ids=lambda script: script.name)
def test_kafka_answers_as_expected(script: Script, played: Played) -> None:
    assert recorded("Kafka", played.kafka[script.name])
