"""Groups of one name in two clusters are two groups; in one cluster, or where nothing is known, they stay one."""

from __future__ import annotations

import pyarrow as pa

from kcoord_wire.forensics.exchanges.clusters import read_clusters, rename_groups
from kcoord_wire.forensics.model import Exchange, Sighting, SightingKind, table_of
from tests.support.detector_groups import exchange


def seen(source: str, broker: str, cluster_id: str) -> Sighting:
    return Sighting(0, source, f"10.0.0.1:7-{broker}#3", "c", SightingKind.CLUSTER, text=cluster_id)


def asked(source: str, broker: str, group_id: str = "billing") -> Exchange:
    return exchange("Heartbeat", 1, source=source, connection=f"10.0.0.1:8-{broker}#4", group_id=group_id)


def names(exchanges: list[Exchange], sightings: list[Sighting]) -> list[str]:
    table: pa.Table = rename_groups(table_of(Exchange, exchanges), table_of(Sighting, sightings))
    found: list[str] = table["group_id"].to_pylist()
    return found


def test_two_clusters_in_two_captures() -> None:
    sightings = [seen("a", "b:9092", "east"), seen("b", "b:9092", "west")]
    rows = [asked("a", "b:9092"), asked("b", "other:9092"), asked("a", "b:9092", "only-here")]
    assert names(rows, sightings) == ["billing @ east", "billing @ west", "only-here"]


def test_two_clusters_in_one_capture_by_their_brokers() -> None:
    sightings = [seen("a", "[::1]:9092", "east"), seen("a", "[::2]:9092", "west")]
    rows = [asked("a", "[::1]:9092"), asked("a", "[::2]:9092"), asked("a", "[::3]:9092")]
    assert names(rows, sightings) == ["billing @ east", "billing @ west", "billing"]


def test_one_cluster_is_one_group_in_all_captures() -> None:
    rows = [asked("a", "b:9092"), asked("b", "b:9092")]
    assert names(rows, [seen("a", "b:9092", "east"), seen("b", "c:9092", "east")]) == ["billing", "billing"]
    assert names(rows, []) == ["billing", "billing"]
    assert not read_clusters(table_of(Sighting, [])).are_several
