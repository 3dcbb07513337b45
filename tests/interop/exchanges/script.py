"""What a script is, and the list of all of them.

A script is a function that plays on a `Stage`; `@script` puts it on the list. The settings it needs of the coordinator
are one of `SETTINGS`; each of them is one broker of Kafka's and one coordinator of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tests.interop.exchanges.stage import Exchange, Stage

_CONSUMER: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "200",
    "group.consumer.assignment.interval.ms": "0",
}
_STREAMS: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.assignment.interval.ms": "0",
}
SETTINGS: Final = {
    "plain": {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "200"},
    "small": {
        "group.initial.rebalance.delay.ms": "500",
        "group.min.session.timeout.ms": "200",
        "group.max.size": "2",
    },
    "topics": {"group.initial.rebalance.delay.ms": "0"},
    "transactions": {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"},
    "applications": {"group.initial.rebalance.delay.ms": "0", "log.cleaner.backoff.ms": "100"},
    "consumer": _CONSUMER,
    "consumer-small": {
        **_CONSUMER,
        "group.consumer.session.timeout.ms": "1000",
        "group.consumer.heartbeat.interval.ms": "300",
        "group.consumer.max.size": "2",
    },
    "share": {
        "group.initial.rebalance.delay.ms": "0",
        "group.share.assignment.interval.ms": "0",
        "group.share.max.size": "5",
    },
    "streams": _STREAMS,
    "streams-small": {
        **_STREAMS,
        "group.streams.initial.rebalance.delay.ms": "4000",
        "group.streams.session.timeout.ms": "6000",
        "group.streams.heartbeat.interval.ms": "300",
        "group.streams.max.size": "2",
    },
}
KAFKA_ALONE: Final = {
    "group.consumer.assignor.offload.enable": "false",  # so that the heartbeat that needs an assignment gets it
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "200",
    "group.share.min.session.timeout.ms": "500",
    "group.share.min.heartbeat.interval.ms": "200",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.coordinator.rebalance.protocols": "classic,consumer,streams",
    "group.streams.assignor.offload.enable": "false",
    "group.streams.min.session.timeout.ms": "500",
    "group.streams.min.heartbeat.interval.ms": "200",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
}
"""What Kafka needs besides for the settings of `VERSION_OF`, and our coordinator has no word for."""

KAFKA_OF: Final = {
    "applications": {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "log.cleaner.enable": "true",
    }
}
"""Likewise, of some settings; there our coordinator has permissions with that super user."""

VERSION_OF: Final = dict.fromkeys(
    (
        *("applications", "consumer", "consumer-small", "share", "streams", "streams-small"),
        *("topics", "transactions"),
    ),
    "4.4.0",
)
"""The Kafka that the coordinator of these settings is compared with, where it is not `KAFKA`."""
TOPICS: Final = {"orders": 3, "payments": 3}


@dataclass(frozen=True)
class Script:
    """A named script; `version` is its parameter, for those that are played in several versions."""

    name: str
    settings: str
    play: Callable[..., None]
    version: int | None

    def run(self, address: str) -> list[Exchange]:
        """Play it against a coordinator and give the record."""
        stage = Stage(address, self.name)
        try:
            self.play(stage) if self.version is None else self.play(stage, self.version)
        finally:
            stage.close()
        return stage.record


SCRIPTS: Final[list[Script]] = []


def script(
    *, settings: str = "plain", versions: Sequence[int] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Put a function on the list; with `versions`, once for each, as its second argument."""

    def register(play: Callable[..., None]) -> Callable[..., None]:
        name = play.__name__
        for version in versions or (None,):
            SCRIPTS.append(Script(name if version is None else f"{name}_v{version}", settings, play, version))
        return play

    return register
