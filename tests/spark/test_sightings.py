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
    MANY,
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
from tests.support.exchange_script import Script, at, renamed

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
    last = {(row["key"], row["topic_id"] if row["key"] in MANY else None): row for row in rows.to_pylist()}
    for row in rows.to_pylist():
        key = (row["key"], row["topic_id"] if row["key"] in MANY else None)
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
        for bucket, part in split(*routed(keyed(batch, overview), wanted)):
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
    seven = [sighting(SightingKind.TOPIC, "", topic="seven", topic_id="07")]
    empty = Overview(table_of(Sighting, seven), [], has_errors=False)
    came = dict(split(*routed(keyed(batch, empty), buckets)))
    assert list(split(*routed(keyed(batch, empty), {}))) == []
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


def group_on_a_broker(number: int, *, is_cut: bool, fetches: bool = False) -> tuple[list[Exchange], list[Sighting]]:
    """A member that is cut off from its broker for 30 s, or one on another host that the same broker serves."""
    script = Script()
    script.form("c1", owners={"c1": {"orders": [0]}})
    script.beats("c1", 1_000, 20_000 if is_cut else 60_000, 1)
    if is_cut:
        sent = "1,448 bytes sent again 9 times in 30.0 s"
        script.closed("c1", 50_000, kind=SightingKind.RESENT, by="client", since_ns=at(20_000), text=sent)
        script.fetch("c1", 19_000, 0, 19_000, 19_010)
    else:
        for ms in range(1_000, 60_000, 2_000):
            script.closed("c1", ms, kind=SightingKind.OPENED, connection=f"10.0.0.1:{ms}-10.0.9.9:9092#o{ms}")
            if fetches:
                script.fetch("c1", ms, 0, ms, ms + 10)
    return [renamed(row, number) for row in script.rows], [renamed(row, number) for row in script.topics]


@pytest.mark.parametrize("fetches", [True, False])
def test_hosts_of_other_groups_show_that_a_broker_is_there(fetches: bool) -> None:
    parts = [group_on_a_broker(0, is_cut=True), group_on_a_broker(1, is_cut=False, fetches=fetches)]
    exchanges = table_of(Exchange, [row for rows, _ in parts for row in rows])
    topics = table_of(Sighting, [row for _, rows in parts for row in rows])
    expected = plain(exchanges, topics)
    assert [outage.kind for outage in expected[0].outages] == ["host blocked"]
    for count in (BUCKETS, 1):
        assert by_bucket(exchanges.combine_chunks(), topics, count)[0] == expected


def test_a_fetch_comes_once_however_many_keys_it_has() -> None:
    way = "h:9-b:1#1"
    rows = [
        sighting(SightingKind.RESENT, way, since_ns=3),
        sighting(SightingKind.FETCHED, way, topic="t", partition=0, end_offset=4),
        sighting(SightingKind.FETCHED, way, topic="u", partition=0, end_offset=4),
        sighting(SightingKind.FETCHED, "x:9-b:1#2", topic="t", partition=0, end_offset=4),
        sighting(SightingKind.FETCHED, "x:9-c:1#3", topic="u", partition=0, end_offset=4),
        sighting(SightingKind.OPENED, "x:9-b:1#4"),
    ]
    topics = table_of(Sighting, rows)
    overview = overview_at(topics)
    [batch] = topics.to_batches()
    for wanted, expected in (
        (("host h", "topic t", "broker b:1"), [0, 1, 2, 3, 5]),
        (("host x", "broker b:1"), [1, 2, 3, 5]),
        (("topic u",), [2, 4]),
    ):
        hosts = {key.removeprefix("host ") for key in wanted if key.startswith("host ")}
        [(_, part)] = split(*routed(keyed(batch, overview), {key: np.array([7], np.int64) for key in wanted}))
        found = received(pa.Table.from_batches([part]), hosts, Overview(overview.names, [], False, cut=overview.cut))
        assert sorted(found.to_pylist(), key=str) == sorted((topics.to_pylist()[n] for n in expected), key=str)


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
