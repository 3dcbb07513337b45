"""Each group's history is the plain one, with the sightings that come to its bucket alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from kcoord_wire.forensics.analysis import by_group
from kcoord_wire.forensics.detectors import detect
from kcoord_wire.forensics.exchanges.clusters import rename_groups
from kcoord_wire.forensics.exchanges.matcher import Matcher, name_topics
from kcoord_wire.forensics.model import Exchange, Frame, GroupHistory, Sighting, SightingKind, arrow_schema, table_of
from kcoord_wire.forensics.sources.frames import read_frames
from kcoord_wire.forensics.wire.history import place_evidence, wire_history
from kcoord_wire.forensics.wire.traffic import read_sightings
from kcoord_wire.spark import group_histories, match_exchanges
from kcoord_wire.spark.histories import history_of_others
from kcoord_wire.spark.packing import BUCKETS, buckets_of, split
from kcoord_wire.spark.sightings import (
    KEYED,
    Interests,
    Overview,
    buckets_by_key,
    candidates,
    keyed,
    named_interests,
    overview_of,
    received,
    routed,
)

DATA = Path(__file__).parents[1] / "data"
CAPTURES = sorted((DATA / "captures").glob("*.pcap"))
RECORDINGS = sorted((DATA / "recordings").glob("*.kcrec"))
INCIDENTS = sorted((DATA / "incidents").glob("*.pcap.gz"))


def matched(paths: Iterable[Path]) -> tuple[pa.Table, pa.Table]:
    """Exchanges and sightings of files."""
    matcher = Matcher()
    found = [matcher.feed(batch) for path in paths for batch in read_frames(path)]
    found.append(matcher.finish())
    schemas = (arrow_schema(Exchange), arrow_schema(Sighting))
    exchanges, topics = (pa.Table.from_batches([each[side] for each in found], schemas[side]) for side in (0, 1))
    return exchanges, topics


def plain(exchanges: pa.Table, topics: pa.Table) -> list[GroupHistory]:
    return histories(rename_groups(name_topics(exchanges, topics), topics), topics)


def histories(exchanges: pa.Table, topics: pa.Table) -> list[GroupHistory]:
    sightings = read_sightings(topics)
    found = []
    for rows in by_group(exchanges, exchanges["group_id"]):
        history = wire_history(rows, sightings)
        history.findings = detect(history, rows, sightings.errors.rows)
        place_evidence(history, rows)
        found.append(history)
    return found


def overview_at(topics: pa.Table) -> Overview:
    """As Spark chooses among the candidates: the last of each kind, and for a topic id."""
    rows = pa.Table.from_batches([candidates(batch) for batch in topics.to_batches()], KEYED)
    last = {(row["key"], row["topic_id"] if row["key"] == "name" else None): row for row in rows.to_pylist()}
    for row in rows.to_pylist():
        key = (row["key"], row["topic_id"] if row["key"] == "name" else None)
        last[key] = max(row, last[key], key=lambda each: each["time_ns"])
    return overview_of(pa.Table.from_pylist(list(last.values()), KEYED))


def by_bucket(exchanges: pa.Table, topics: pa.Table, count: int = BUCKETS) -> tuple[list[GroupHistory], int]:
    """The histories with what comes to each of so many buckets, and how many sightings came to one at most."""
    overview, interests = overview_at(topics), Interests()
    [rows] = exchanges.combine_chunks().to_batches()
    buckets = buckets_of(rows.column("group_id"))
    interests.note(rows, buckets)
    pairs = [named_interests(batch, overview.by_id) for batch in interests.taken(at_least=1)]
    wanted = buckets_by_key(pairs, count)
    came: dict[int, list[pa.RecordBatch]] = defaultdict(list)
    for batch in topics.to_batches():
        for bucket, part in split(*routed(keyed(batch, overview.by_id), wanted)):
            came[bucket].append(part)
    found, most = [], 0
    for bucket, part in split(rows, buckets % count):
        of_bucket = pa.Table.from_batches([part])
        hosts = frozenset(of_bucket["client_host"].unique().to_pylist())
        seen = received(pa.Table.from_batches(came[bucket], KEYED), hosts, overview)
        most = max(most, len(seen))
        found += histories(rename_groups(name_topics(of_bucket, overview.names), seen), seen)
    return sorted(found, key=lambda history: history.group.group_id), most


@pytest.mark.parametrize("paths", [CAPTURES, RECORDINGS, INCIDENTS], ids=["captures", "recordings", "incidents"])
def test_what_comes_to_a_bucket_gives_the_plain_histories(paths: list[Path]) -> None:
    exchanges, topics = matched(paths)
    assert overview_at(topics).has_errors == bool(read_sightings(topics).errors.rows)
    for count in (BUCKETS, 4):
        found, most = by_bucket(exchanges, topics, count)
        assert found == plain(exchanges, topics)
        assert most <= len(topics)


@pytest.mark.parametrize("path", [*CAPTURES, *RECORDINGS, *INCIDENTS], ids=lambda path: path.name)
def test_so_does_each_file_alone(path: Path) -> None:
    exchanges, topics = matched([path])
    assert by_bucket(exchanges, topics)[0] == plain(exchanges, topics)


def sighting(kind: SightingKind, connection: str, **more: object) -> Sighting:
    return Sighting(5, "a", connection, None, kind, **more)  # type: ignore[arg-type]


def test_a_sighting_comes_once_to_each_bucket_that_wants_it() -> None:
    rows = [
        sighting(SightingKind.REFUSED, "[::1]:9-b:1#1"),
        sighting(SightingKind.TOPIC, "h:9-b:1#2", topic="t", partitions=3),
        sighting(SightingKind.FETCHED, "x:9-b:1#3", topic="id:07", partition=0, end_offset=4),
        sighting(SightingKind.CLUSTER, "x:9-b:1#4", text="c"),
        sighting(SightingKind.HOLE, "", since_ns=4),
        sighting(SightingKind.CLOSED, "y:9-b:1#5"),
    ]
    [batch] = table_of(Sighting, rows).to_batches()
    wanted = {
        "host h": [1, 2], "host ::1": [1], "topic t": [1, 3], "topic seven": [2], "broker b:1": [1, 4],
        "source a": [5], "*": [1, 2, 3, 4, 5],
    }  # fmt: skip
    buckets = {key: np.array(each, np.int64) for key, each in wanted.items()}
    came = dict(split(*routed(keyed(batch, {"id:07": "seven"}), buckets)))
    assert list(split(*routed(keyed(batch, {"id:07": "seven"}), {}))) == []
    empty = Overview(table_of(Sighting, []), [], has_errors=False)
    hosts: dict[int, set[str]] = {1: {"h", "::1"}, 2: {"h"}, 3: set(), 4: set(), 5: set()}
    found = {
        bucket: sorted(
            str(kind) for kind in received(pa.Table.from_batches([part]), hosts[bucket], empty)["kind"].to_pylist()
        )
        for bucket, part in came.items()
    }
    assert found == {
        1: ["hole", "refused", "topic"],
        2: ["fetched", "hole", "topic"],
        3: ["hole", "topic"],
        4: ["hole", "refused"],
        5: ["cluster", "hole"],
    }


def test_buckets_are_those_of_every_process() -> None:
    names = pa.array(["orders", "", "\u00e4", "orders"])
    assert buckets_of(names).tolist() == [buckets_of(names.slice(n, 1)).tolist()[0] for n in range(4)]
    assert buckets_of(pa.array(["123456789"])).tolist() == [0xCBF43926 % BUCKETS]  # the check value of CRC-32


def repeated(frames: pa.Table, times: int) -> pa.Table:
    """The frames of so many captures that are equal but for their names."""
    at = frames.schema.get_field_index("source")
    field = frames.schema.field(at)
    return pa.concat_tables(
        frames.set_column(at, field, pc.binary_join_element_wise(frames["source"], str(n), "-")) for n in range(times)
    )


def test_what_the_driver_receives_does_not_grow_with_the_traffic(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = pa.Table.from_batches(read_frames(CAPTURES[0]), arrow_schema(Frame))
    received_rows: list[int] = []
    kind = type(spark.range(1))
    to_arrow, collect = kind.toArrow, kind.collect
    monkeypatch.setattr(kind, "toArrow", lambda self: noted(to_arrow(self)))
    monkeypatch.setattr(kind, "collect", lambda self: noted(collect(self)))

    def noted(rows: pa.Table) -> pa.Table:
        received_rows.append(len(rows))
        return rows

    def driver_rows(times: int) -> tuple[list[int], int]:
        received_rows.clear()
        found = match_exchanges(spark.createDataFrame(repeated(frames, times)).repartition(2))
        group_histories(found).histories.write.format("noop").mode("overwrite").save()
        history_of_others(found, [])
        rows = list(received_rows)
        count = found.topics.count()
        found.unpersist()
        return rows, count

    once, sightings = driver_rows(1)
    often, more_sightings = driver_rows(6)
    assert more_sightings == 6 * sightings
    assert once == often
    assert sum(once) < sightings
