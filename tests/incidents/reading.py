"""What is done to the reading of a group: records that cannot be processed or fetched, too many of them, a quota."""

from __future__ import annotations

import time
from typing import Any, Final

from confluent_kafka import Producer

import kcoord_wire as kw
from tests.incidents.feed import Feed
from tests.incidents.hall import Scene
from tests.incidents.scenes import LONG_SESSION_MS, gather
from tests.support.wire import Wire

_FIRST_RECORDS: Final = 1.5
"""Seconds after which records have come to all partitions."""


def is_poisoned(scene: Scene, library: str, lasts_ms: int, session_ms: int = 20_000, **options: Any) -> None:
    """One record cannot be processed: the member seeks back to it whenever it comes."""
    victim = gather(scene, library, session_ms, **options)
    time.sleep(_FIRST_RECORDS)
    partition = victim.now_owned[0]
    offset = scene.end_of(partition)
    scene.run.victims = [victim.name, f"{scene.topic}-{partition}", str(offset)]
    with scene.doing(f"fail at {scene.topic}-{partition} offset {offset}", victim.name):
        victim.command("poison", partition=partition, offset=offset)
        time.sleep(lasts_ms / 1000)
    assert scene.end_of(partition) > offset + 1, "no record came"
    scene.goes_home()


def cannot_take(scene: Scene, library: str, size: int, takes: int, lasts_ms: int, **options: Any) -> None:
    """A batch is larger than the answers that a member takes: it closes the connection, and fetches again."""
    *others, name = scene.names
    for other in others:
        scene.joins(library, other, session_ms=LONG_SESSION_MS, **options)
    if others:
        scene.gathers(*others)
    small = {"fetch_max_bytes": takes // 2, "message_max_bytes": takes // 2, "receive_message_max_bytes": takes}
    small["max_partition_fetch_bytes"] = takes // 2
    victim = scene.joins(library, name, session_ms=20_000, **small, **options)
    scene.gathers(*scene.names)
    scene.run.session_ms, scene.run.victims = 20_000, [name, f"{scene.topic}-{victim.now_owned[0]}"]
    scene.now_ready()
    with scene.doing(f"a batch of {size} bytes, of {takes} that it takes", name):
        producer = Producer({"bootstrap.servers": scene.brokers[0].inside_address})
        producer.produce(scene.topic, b"." * size, partition=victim.now_owned[0])
        producer.flush(10)
        time.sleep(lasts_ms / 1000)
    assert victim.complaints, "it took all"
    scene.goes_home()


def has_a_hot_partition(
    scene: Scene, library: str, rate: int, pace_ms: int, lasts_ms: int, session_ms: int = 20_000, **options: Any
) -> None:
    """One partition gets far more records than its owner can process; all others are read in time."""
    victim = gather(scene, library, session_ms, **options)
    partition = victim.now_owned[0]
    scene.run.victims = [victim.name, f"{scene.topic}-{partition}"]
    victim.command("pace", ms=pace_ms)
    address = scene.brokers[0].inside_address
    with (
        scene.doing(f"{rate} records a second, {pace_ms} ms for each", victim.name),
        Feed(address, scene.topic, rate, [partition]),
    ):
        time.sleep(lasts_ms / 1000)
        victim.command("pace", ms=0)
    assert scene.end_of(partition) > rate * lasts_ms / 2000, "too few records came"
    scene.goes_home()


def is_throttled(
    scene: Scene, library: str, bytes_a_second: int, rate: int, lasts_ms: int, session_ms: int = 20_000, **options: Any
) -> None:
    """A client's quota is lower than what it reads: the broker holds its answers back."""
    victim = gather(scene, library, session_ms, **options)
    scene.run.victims = [victim.name]
    address = scene.brokers[0].inside_address
    with Feed(address, scene.topic, rate, size=1_000):
        time.sleep(_FIRST_RECORDS)
        with scene.doing(f"quota of {bytes_a_second} bytes a second", victim.name):
            _limit(address, victim.name, bytes_a_second)
            time.sleep(lasts_ms / 1000)
    _limit(address, victim.name, None)
    scene.goes_home()


def _limit(address: str, client: str, bytes_a_second: int | None) -> None:
    """Set the quota of fetches of a client id, or take it away (KIP-546)."""
    op = kw.AlterClientQuotasRequestOpData(
        key="consumer_byte_rate", value=float(bytes_a_second or 0), remove=bytes_a_second is None
    )
    entity = kw.AlterClientQuotasRequestEntityData(entity_type="client-id", entity_name=client)
    entry = kw.AlterClientQuotasRequestEntryData(entity=[entity], ops=[op])
    with Wire(address) as wire:
        answer = wire.call(kw.AlterClientQuotasRequest(entries=[entry], validate_only=False), 0)
    assert [each.error_code for each in answer.entries] == [0], answer
