"""The log of our coordinator is one of Kafka's, and Kafka's is one of ours: by their readers, and by what comes back.

The logs are those that the scripts of `exchanges` left behind on either side.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

import kcoord_wire as kw
from kcoord_wire.coordinator import Coordinator, GroupConfig, TopicLimits
from kcoord_wire.coordinator.core.events import LogRecord
from kcoord_wire.coordinator.log.store import Store
from kcoord_wire.kernel.disk import FolderDisk
from kcoord_wire.records import OffsetsRecord, SegmentReader, read_offsets
from tests.interop.exchanges import SETTINGS, TOPICS, VERSION_OF
from tests.interop.exchanges.played import Played
from tests.support.kafka_broker import KafkaBroker, class_path, create_topics, run_java
from tests.support.wire import Wire

BATCH = re.compile(
    r"baseOffset: (?P<first>\d+) lastOffset: (?P<last>\d+) count: (?P<count>\d+) .* position: (?P<at>\d+) "
)
RECORD = re.compile(r"\| offset: (?P<offset>\d+) .* key: (?P<key>\{.*?\}) payload: (?P<value>\{.*\}|<DELETE>)")
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
OWN_COURSE = re.compile(r"heartbeats_keep_a_session|negative_rebalance_timeout_v\d+")
"""Groups that commit as often as time allows, and those of negative-rebalance-timeout in differences.toml."""

PRESENT_CLIENT = re.compile(r"static_.*|the_empty_instance")
"""Groups with a replaced member: client-of-a-replaced-member in differences.toml."""

Dumped = tuple[int, dict[str, Any], dict[str, Any] | None]
"""Offset, key and value of a record."""

settings_of_both = pytest.mark.parametrize("settings", [name for name in SETTINGS if name not in VERSION_OF])


def segments(folder: Path) -> list[Path]:
    return sorted((folder / "__consumer_offsets-0").glob("*.log"))


def dump(paths: Sequence[Path]) -> list[list[Dumped]]:
    """The records of each segment as Kafka's kafka-dump-log prints them, every batch of it found valid."""
    files = ",".join(map(str, paths))
    text = run_java(class_path(), "kafka.tools.DumpLogSegments", "--offsets-decoder", "--files", files)
    every: list[list[Dumped]] = []
    sizes = []
    for line in text.splitlines():
        if line.startswith("Dumping "):
            every.append([])
            sizes.append(0)
        elif found := RECORD.fullmatch(line):
            value = None if found["value"] == "<DELETE>" else json.loads(found["value"])
            every[-1].append((int(found["offset"]), json.loads(found["key"]), value))
        elif not line.startswith("Log starting offset: "):
            batch = BATCH.match(line)
            assert batch is not None, line
            assert line.endswith("isvalid: true"), line
            assert int(batch["at"]) == sizes[-1]
            sizes[-1] += int(line.split(" size: ")[1].split()[0])
    assert sizes == [path.stat().st_size for path in paths], "the tool has stopped before the end of a file"
    return every


def read(path: Path) -> Iterator[tuple[int, OffsetsRecord]]:
    """The records of a segment as our reader reads them, to the end of the file."""
    with path.open("rb") as file:
        reader = SegmentReader(file)
        for entry in read_offsets(reader):
            assert isinstance(entry.content, OffsetsRecord)
            yield entry.record.offset, entry.content
        assert reader.torn_tail is None


def equals_dumped(paths: Sequence[Path]) -> None:
    """Kafka's tool and our reader find the same in each segment; one start of the tool for all of them."""
    ours = [[as_dumped(*entry) for entry in read(path)] for path in paths]
    assert ours
    assert all(ours)
    assert dump(paths) == ours


def as_dumped(offset: int, record: OffsetsRecord) -> Dumped:
    """A record of our reader in the words of Kafka's tool."""
    key = {"type": str(record.record_type), "data": kw.to_dict(record.key)}
    if record.value is None:
        return offset, key, None
    data = kw.to_dict(record.value, record.value_version)
    for shown, member in zip(data.get("members", []), record.members, strict=False):
        for name in ("subscription", "assignment"):  # shown decoded where they can be
            nested = getattr(member, name)
            if nested is not None:
                shown[name] = _camel_case(kw.to_dict(nested))
    value = {"version": str(record.value_version), "data": data}
    return offset, key, json.loads(json.dumps(value, default=lambda data: base64.b64encode(data).decode()))


def _camel_case(value: Any) -> Any:
    """With the names of Kafka's JSON: capitalized in the schemas of requests, not in those of the log."""
    if isinstance(value, dict):
        return {name[0].lower() + name[1:]: _camel_case(inner) for name, inner in value.items()}
    return [_camel_case(inner) for inner in value] if isinstance(value, list) else value


@settings_of_both
def test_kafkas_tool_reads_our_log(settings: str, played: Played) -> None:
    equals_dumped(segments(played.our_folders[settings]))


@settings_of_both
def test_kafkas_tool_and_we_read_kafkas_log_alike(settings: str, played: Played) -> None:
    equals_dumped(played.kafka_logs[settings])


def test_kafkas_tool_reads_segments_and_what_compaction_leaves(played: Played, tmp_path: Path) -> None:
    """What all scripts wrote, in segments of a tenth of the size, with a compaction halfway and one at the end."""
    (source,) = segments(played.our_folders["plain"])
    records = [LogRecord(record.key, record.value) for _, record in read(source)]
    store = Store(FolderDisk(tmp_path / "__consumer_offsets-0"), segment_bytes=source.stat().st_size // 10)
    store.recover()
    for number, record in enumerate(records):
        store.append([record], now=number)
        sync = store.begin_sync()
        assert sync is not None
        sync.run()
        store.end_sync(sync)
        if number == len(records) // 2:
            store.compact()
            assert len(segments(tmp_path)) == 2
    assert len(segments(tmp_path)) > 4
    equals_dumped(segments(tmp_path))
    store.compact()
    store.close()
    left = [entry for entries in dump(segments(tmp_path)) for entry in entries]
    last = {json.dumps(key): value for _, key, value in (as_dumped(0, entry) for _, entry in read(source))}
    assert {json.dumps(key): value for _, key, value in left} == {k: v for k, v in last.items() if v is not None}


def story(paths: Sequence[Path]) -> tuple[dict[str, list[str]], Counter[tuple[str, int | None]]]:
    """What was written of each group, in order and without what differs from run to run; and the versions written."""
    groups: dict[str, list[str]] = defaultdict(list)
    ids: dict[str, dict[str, str]] = defaultdict(dict)
    versions: Counter[tuple[str, int | None]] = Counter()
    for path in paths:
        for _, record in read(path):
            versions[record.kind, record.value_version] += 1
            group = kw.to_dict(record.key)["group"]
            value = None if record.value is None else kw.to_dict(record.value, record.value_version)
            text = f"{record.kind} v{record.value_version} {kw.to_dict(record.key)} {_timeless(group, value)}"
            known = ids[group]
            groups[group].append(UUID.sub(lambda found: known.setdefault(found[0], f"<{len(known)}>"), text))  # noqa: B023
    return {group: _with_deletions_sorted(lines) for group, lines in groups.items()}, versions


def _timeless(group: str, value: dict[str, Any] | None) -> dict[str, Any] | None:
    if value is None:
        return None
    if value.get("expireTimestamp", -1) != -1:
        value["expireTimestamp"] -= value["commitTimestamp"]
    for name in {"commitTimestamp", "currentStateTimestamp"} & value.keys():
        assert value[name] > 0
        value[name] = "now"
    if "members" in value:
        value["members"].sort(key=lambda member: UUID.sub("", repr(member)))  # Kafka's order is that of a hash map
        for member in value["members"] if PRESENT_CLIENT.fullmatch(group) else []:
            del member["clientId"]
    return value


def _with_deletions_sorted(lines: list[str]) -> list[str]:
    """Kafka deletes a group's offsets in the order of a hash map, as one batch."""
    result: list[str] = []
    deletions: list[str] = []
    for line in lines:
        if line.startswith("OffsetCommit vNone"):
            deletions.append(line)
        else:
            result += [*sorted(deletions), line]
            deletions = []
    return result + sorted(deletions)


@settings_of_both
def test_both_wrote_the_same(settings: str, played: Played) -> None:
    """The same records in the same order for every group, in the same versions."""
    kafka, kafka_versions = story(played.kafka_logs[settings])
    ours, our_versions = story(segments(played.our_folders[settings]))
    assert set(kafka) == set(ours)
    for group in sorted(kafka):
        if OWN_COURSE.fullmatch(group):
            continue
        assert ours[group] == kafka[group]
    assert set(our_versions) == set(kafka_versions)


# ---- what comes back from a log


def remembered(address: str, groups: Sequence[str]) -> dict[str, Any]:
    """What a coordinator that has read a log says of these groups: the description and all offsets of each."""
    result = {}
    with Wire(address) as wire:
        for group in groups:
            (described,) = wire.call(kw.DescribeGroupsRequest(groups=[group]), 5).groups
            described.members.sort(key=lambda member: member.member_id)
            (fetched,) = wire.call(kw.OffsetFetchRequest(groups=[kw.OffsetFetchRequestGroup(group_id=group)]), 8).groups
            for topic in fetched.topics:
                topic.partitions.sort(key=lambda partition: partition.partition_index)
            fetched.topics.sort(key=lambda topic: topic.name)
            result[group] = described, fetched
    return result


def lasting_groups(paths: Sequence[Path]) -> list[str]:
    """The groups of a log of which more than deletions is left, which Kafka knows until it compacts, and whose members'
    sessions do not run out while a test looks."""
    groups: dict[str, bool] = {}
    alive: dict[str, set[bytes]] = defaultdict(set)
    for path in paths:
        for _, record in read(path):
            members = record.value.members if isinstance(record.value, kw.GroupMetadataValue) else []
            group = kw.to_dict(record.key)["group"]
            groups[group] = all(member.session_timeout > 60_000 for member in members)
            (alive[group].discard if record.is_tombstone else alive[group].add)(record.raw_key)
    return sorted(group for group, lasts in groups.items() if lasts and alive[group])


def ours_on(paths: Sequence[Path], folder: Path) -> Coordinator:
    """A coordinator of ours on a copy of these segments."""
    log = folder / "__consumer_offsets-0"
    log.mkdir(parents=True)
    for path in paths:
        shutil.copy(path, log)
    return Coordinator(topics=TOPICS, config=GroupConfig.from_properties(SETTINGS["plain"]), data_dir=folder)


def test_both_remember_the_same_of_either_log(played: Played, tmp_path: Path) -> None:
    """Kafka starts on our log and we on Kafka's; then each on its own."""
    properties = {"auto.create.topics.enable": "true", "num.partitions": "3", **SETTINGS["plain"]}
    broker = KafkaBroker(tmp_path / "kafka-restarted", properties)
    with broker:
        create_topics(broker.address, list(TOPICS))
    for name, log in ("kafka", played.kafka_logs["plain"]), ("ours", segments(played.our_folders["plain"])):
        partition = broker.folder / "__consumer_offsets-0"
        for path in partition.iterdir():
            if path.name != "partition.metadata":
                path.unlink()
        for path in log:
            shutil.copy(path, partition)
        (broker.folder / ".kafka_cleanshutdown").unlink()  # so that it reads the log and makes new indexes
        groups = lasting_groups(log)
        with broker:
            kafka = remembered(broker.address, groups)
        with ours_on(log, tmp_path / name) as coordinator:
            ours = remembered(coordinator.address, groups)
        assert len(groups) > 100
        for group in groups:
            assert ours[group] == kafka[group], f"{group} in the log of {name}"


DATA_BATCH = re.compile(
    r"baseOffset: (?P<first>\d+) lastOffset: (?P<last>\d+) count: (?P<count>\d+) .*"
    r"partitionLeaderEpoch: (?P<epoch>\d+) .* compresscodec: (?P<codec>\w+) .* isvalid: true"
)


def test_kafkas_tool_reads_the_records_of_topics(tmp_path: Path) -> None:
    """Of two runs of the coordinator: an idempotent producer, compression, segments, and leader epochs."""
    for run, codec in enumerate(("none", "zstd")):
        with Coordinator({"orders": 1}, data_dir=tmp_path, topic_limits=TopicLimits(retention_bytes=4 << 20)) as ours:
            settings = {"enable.idempotence": True, "compression.type": codec, "batch.size": 20_000, "linger.ms": 5}
            producer = Producer({"bootstrap.servers": ours.address, **settings})
            for number in range(300):
                producer.produce("orders", b"%d-%d " % (run, number) * 400, b"k", partition=0)
            assert producer.flush(60) == 0
    files = sorted((tmp_path / "orders-0").iterdir())
    assert len(files) > 1
    text = run_java(class_path(), "kafka.tools.DumpLogSegments", "--files", ",".join(map(str, files)))
    dumped = [part.splitlines() for part in text.split("Dumping ")[1:]]
    end = 0
    seen = set()
    for file, lines in zip(files, dumped, strict=True):
        for line in lines:
            if not line.startswith("baseOffset:"):
                continue
            batch = DATA_BATCH.match(line)
            assert batch is not None, line
            assert int(batch["first"]) == end
            end = int(batch["last"]) + 1
            seen.add((batch["epoch"], batch["codec"]))
        with file.open("rb") as source:
            reader = SegmentReader(source)
            assert [read.last_offset for read in reader][-1] == end - 1
            assert reader.torn_tail is None
    assert end == 600
    assert seen == {("0", "none"), ("1", "zstd")}
