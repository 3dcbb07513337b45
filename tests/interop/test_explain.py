"""Real clients on a real Kafka broker, recorded on the way: the pipeline says what was done to them, from either side.

One life for each library: one member joins; a second joins and leaves; a third joins and is killed; the first leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import pytest

from kcoord_wire.forensics.analysis import analyze
from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.model import GroupHistory
from kcoord_wire.recorder.proxy import Recorder
from tests.support.clients.java import java_client
from tests.support.clients.life_cycle import Figures, Place, at_once
from tests.support.clients.members import AIOKAFKA, CONFLUENT, KAFKA_PYTHON, Client
from tests.support.kafka_broker import KafkaBroker, create_topics

PROPERTIES = {
    "auto.create.topics.enable": "true",
    "num.partitions": "6",
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "300",
}
PLAYED: Mapping[str, tuple[str, str]] = {
    "java-range": ("java", "range"),
    "java-cooperative": ("java", "cooperative-sticky"),
    "confluent-range": ("confluent", "range"),
    "confluent-cooperative": ("confluent", "cooperative-sticky"),
    "kafka-python-range": ("kafka-python", "range"),
    "aiokafka-roundrobin": ("aiokafka", "roundrobin"),
}
LIFE = [
    (Cause.NEW_MEMBER, "first", None),
    (Cause.NEW_MEMBER, "second", None),
    (Cause.MEMBER_LEFT, "second", "left"),
    (Cause.NEW_MEMBER, "third", None),
    (Cause.SESSION_EXPIRED, "third", "session timeout"),
    (Cause.MEMBER_LEFT, "first", "left"),
]
OF_THEIR_OWN = {Cause.COOPERATIVE_FOLLOW_UP, Cause.LEADER_REJOINED, Cause.TOPICS_CHANGED}
"""What cooperative members add to that, libraries that join once more after they were assigned, and kafka-python's
leader, which joins again if its metadata of the topic arrives after its first assignment."""


@dataclass(frozen=True)
class Explained:
    """Histories by group: of the recording, and of the broker's own log."""

    wire: dict[str, GroupHistory]
    log: dict[str, GroupHistory]
    losses: list[str]


@pytest.fixture(scope="module")
def explained(tmp_path_factory: pytest.TempPathFactory) -> Explained:
    folder = tmp_path_factory.mktemp("explained")
    clients = {
        "java": java_client(tmp_path_factory.mktemp("classes")),
        "confluent": CONFLUENT,
        "kafka-python": KAFKA_PYTHON,
        "aiokafka": AIOKAFKA,
    }
    with KafkaBroker(folder / "explained-broker", PROPERTIES) as broker:
        create_topics(broker.address, [f"orders-{name}" for name in PLAYED])
        with Recorder(upstream=broker.address, folder=folder / "recording") as recorder:
            places = {name: Place(recorder.address, f"orders-{name}", name) for name in PLAYED}
            at_once({name: partial(live, places[name], clients[PLAYED[name][0]], PLAYED[name][1]) for name in PLAYED})
        wire = analyze([folder / "recording"])
    log = analyze([folder / "explained-broker" / "__consumer_offsets-0"])
    losses = [f"{loss.source} {loss.position}: {loss.what}" for loss in [*wire.losses, *log.losses]]
    return Explained(
        {history.group.group_id: history for history in wire.histories},
        {history.group.group_id: history for history in log.histories},
        losses,
    )


def live(place: Place, client: Client, assignor: str) -> Figures:
    with place.member(client, "first", assignor) as first:
        first.join()
        place.share_out([first])
        with place.member(client, "second", assignor) as second:
            second.join()
            place.share_out([first, second])
            second.leave()
            place.share_out([first])
        with place.member(client, "third", assignor) as third:
            third.join()
            place.share_out([first, third])
            place.kill(third, heir=first)
        first.leave()
    return {}


def test_nothing_was_lost(explained: Explained) -> None:
    assert explained.losses == []


@pytest.mark.parametrize("name", PLAYED)
def test_the_recording_shows_what_was_done(name: str, explained: Explained) -> None:
    history = explained.wire[name]
    begun = [r for r in history.rebalances if r.cause not in OF_THEIR_OWN]
    assert [(r.cause, r.client_id, r.removed[0].why if r.removed else None) for r in begun] == LIFE
    assert [r.outcome for r in begun] == ["stable"] * 5 + ["empty"]
    expired = begun[4]
    assert expired.client_host == "127.0.0.1"
    assert {r.cooperative for r in history.rebalances if r.outcome == "stable"} == {"cooperative" in name}
    held = [o for o in history.ownership if o.to_ns is None]
    assert held == [], "the last member has left"


@pytest.mark.parametrize("name", PLAYED)
def test_the_log_shows_the_same_generations(name: str, explained: Explained) -> None:
    wire = {
        g.generation_id: g.members for g in explained.wire[name].generations if g.stable_ns is not None and g.members
    }
    log = {g.generation_id: g.members for g in explained.log[name].generations if g.members}
    assert log == wire
