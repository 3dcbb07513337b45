"""Scripts of what clients say to a coordinator, played against Kafka and against ours."""

from __future__ import annotations

from tests.interop.exchanges import (  # noqa: F401 - imported for their scripts
    admin,
    applications,
    commits,
    consumer_groups,
    finding,
    joining,
    leaving,
    life_cycle,
    migration,
    refusals,
    share_groups,
    share_records,
    static,
    streams_groups,
    syncing,
    timing,
    topics,
    transactions,
)
from tests.interop.exchanges.script import KAFKA_ALONE, KAFKA_OF, SCRIPTS, SETTINGS, TOPICS, VERSION_OF, Script
from tests.interop.exchanges.stage import Exchange, Stage

__all__ = ["KAFKA_ALONE", "KAFKA_OF", "SCRIPTS", "SETTINGS", "TOPICS", "VERSION_OF", "Exchange", "Script", "Stage"]
