"""Apache Kafka 4.4 and our coordinator write the same records of groups of KIP-848, of share groups and of streams
groups, in the same order, and ours goes on with Kafka's log.

The logs are those that the scripts of `exchanges` left behind on either side. consumer_group_record_differences.toml
lists the groups whose records differ, with the reason; a line that no group needs fails as well.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import tomllib
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, groupby, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import kcoord_wire as kw
from kcoord_wire.coordinator import Coordinator, GroupConfig
from kcoord_wire.coordinator.consumer_groups.epochs import hash_topics
from kcoord_wire.coordinator.partitions.journal import Journal, KnownTopic, KnownTopics
from kcoord_wire.kernel.disk import FolderDisk
from kcoord_wire.records import OffsetsRecord, SegmentReader, read_offsets
from tests.interop.exchanges import SETTINGS, TOPICS
from tests.interop.exchanges.played import Played
from tests.support.wire import Wire

DIFFERENCES = Path(__file__).parent / "consumer_group_record_differences.toml"
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<=emberId\": \")[\w-]{22}(?=\")")  # or in base 64
EXPIRED = ("ConsumerGroupCurrentMemberAssignment removed", "(end)ConsumerGroupCurrentMemberAssignment removed")
_OF_TOPICS = {
    "TopicPartitions",
    "AssignedPartitions",
    "PartitionsPendingRevocation",
    "InitializingTopics",
    "InitializedTopics",
}
TIMES = {"commitTimestamp", "currentStateTimestamp", "AssignmentTimestamp", "Timestamp"}


class Topics:
    """Topics with the ids that one side has given them."""

    changes = 0

    def __init__(self, ids: Mapping[str, uuid.UUID]) -> None:
        self.ids = ids

    def id_of(self, name: str) -> uuid.UUID | None:
        return self.ids.get(name)

    def partitions(self, name: str) -> int | None:
        return TOPICS.get(name)

    def names(self) -> Iterable[str]:
        return TOPICS

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        return next((name for name, known in self.ids.items() if known == topic_id), None)


def kafkas_topics(data: Path) -> Topics:
    found = {}
    for name in TOPICS:
        text = (data / f"{name}-0" / "partition.metadata").read_text()
        topic_id = re.search(r"topic_id: (\S+)", text)
        assert topic_id is not None
        found[name] = uuid.UUID(bytes=base64.urlsafe_b64decode(topic_id[1] + "=="))
    return Topics(found)


def our_topics(data: Path) -> Topics:
    return Topics({name: topic.id for name, topic in Journal(FolderDisk(data)).load().topics.items() if name in TOPICS})


def records(paths: Sequence[Path]) -> Iterator[OffsetsRecord]:
    for path in paths:
        with path.open("rb") as file:
            for entry in read_offsets(SegmentReader(file)):
                assert isinstance(entry.content, OffsetsRecord)
                yield entry.content


def story(paths: Sequence[Path], topics: Topics) -> dict[str, list[str]]:
    """What was written of each group but its offsets, in order and without what differs from run to run.

    A hash is replaced by the topics that it is of, an id by its number in the group. Consecutive records of one kind
    are sorted: Kafka writes members in the order of a hash map.
    """
    subsets = (subset for size in range(len(TOPICS) + 1) for subset in combinations(sorted(TOPICS), size))
    hashes = {hash_topics(topics, subset): ", ".join(subset) or "no topics" for subset in subsets}
    names = {str(topic_id): name for name, topic_id in topics.ids.items()}
    written: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for record in records(paths):
        key = kw.to_dict(record.key)
        if "topic" in key:
            continue
        value = None if record.value is None else kw.to_dict(record.value, record.value_version)
        if value is not None:
            _without_what_differs_anyway(value, names)
            if "MetadataHash" in value:
                unknown = "with internal topics" if record.kind == "StreamsGroupMetadata" else value["MetadataHash"]
                value["MetadataHash"] = hashes.get(value["MetadataHash"], unknown)
        text = f"v{record.value_version} {json.dumps(key, default=str)} {json.dumps(value, default=str)}"
        kind = f"{record.kind}{' removed' if value is None else ''}"
        line = UUID.sub(lambda found: names.get(found[0], found[0]), text)
        written[str(key.get("group") or key["GroupId"])].append((kind, line))
    return {group: _numbered(lines) for group, lines in written.items()}


def _numbered(lines: list[tuple[str, str]]) -> list[str]:
    known: dict[str, str] = {}
    found = []
    for kind, run in groupby(lines, key=lambda line: line[0]):
        lines_of_run = [text for _, text in run]
        for text in sorted(lines_of_run, key=lambda text: UUID.sub(lambda match: known.get(match[0], "?"), text)):
            numbered = UUID.sub(lambda match: known.setdefault(match[0], f"<{len(known)}>"), text)
            found.append(f"{kind} {numbered}")
    return found


def _without_what_differs_anyway(value: dict[str, Any], names: Mapping[str, str]) -> None:
    """Times; how often topics had changed when a pattern was resolved; the order of members, as above; which partitions
    of a topic a member has, of which the number stays (which-partitions-move in consumer_group_differences.toml)."""
    for name in TIMES & value.keys():
        value[name] = "now" if value[name] else 0
    if "Topics" in value:
        del value["Version"]
    for name in _OF_TOPICS & value.keys():
        for part in value[name]:
            part["TopicId"] = names.get(str(part["TopicId"]), part["TopicId"])
            part["Partitions"] = len(part["Partitions"])
            part.get("AssignmentEpochs", []).sort()
        value[name].sort(key=repr)
    for member in value.get("members", ()):
        member["assignment"] = len(member["assignment"])
    if "members" in value:
        value["members"].sort(key=lambda member: UUID.sub("", json.dumps(member, default=str)))


@pytest.fixture(scope="module")
def differing(played: Played) -> dict[str, str]:
    """The groups whose records differ, with the first record that does."""
    found = {}
    for settings in "consumer", "consumer-small", "share", "streams", "streams-small":
        logs, folder = played.kafka_logs[settings], played.our_folders[settings]
        kafka = story(logs, kafkas_topics(logs[0].parent.parent))
        ours = story(sorted((folder / "__consumer_offsets-0").glob("*.log")), our_topics(folder))
        assert set(kafka) - {"know-topics"} == set(ours)
        for group in ours:
            pairs = zip_longest(kafka[group], ours[group], fillvalue="(end)")
            first = next((pair for pair in pairs if pair[0] != pair[1]), None)
            if first is not None and not _has_expired(*first):
                found[group] = "Kafka {}\nours  {}".format(*first)
    return found


def _has_expired(kafka: str, ours: str) -> bool:
    """Whether all that one side has written is followed by the removal of a member: how many sessions end before the
    sides are stopped depends on how long all scripts take."""
    return "(end)" in (kafka, ours) and (kafka + ours).startswith(EXPIRED)


def test_both_wrote_the_same(differing: dict[str, str]) -> None:
    lines = tomllib.loads(DIFFERENCES.read_text("utf-8"))["difference"]
    listed = [line["group"] for line in lines]
    rest = {group: text for group, text in differing.items() if not any(re.fullmatch(name, group) for name in listed)}
    assert not rest, "\n".join(f"{group}\n{text}" for group, text in rest.items())
    assert not [line["id"] for line in lines if not any(re.fullmatch(line["group"], group) for group in differing)]
    assert all(line["reason"] for line in lines)


# ---- our coordinator on Kafka's log


class Left(NamedTuple):
    """What a log says last of a group of KIP-848.

    :ivar epochs: group epoch, assignment epoch
    :ivar members: by id, those of the newer protocol; what they hold by topic
    """

    epochs: dict[str, int]
    members: dict[str, dict[uuid.UUID, list[int]]]
    states: dict[str, tuple[int, int]]
    subscribed: dict[str, Any]


def left_in(paths: Sequence[Path]) -> dict[str, Left]:
    groups: dict[str, Left] = {}
    for record in records(paths):
        key, value = record.key, record.value
        if isinstance(key, kw.ConsumerGroupMetadataKey) and value is None:
            groups.pop(key.group_id, None)
            continue
        name = getattr(key, "group_id", None)
        if name is None:
            continue
        left = groups.setdefault(name, Left({}, {}, {}, {}))
        member_id = getattr(key, "member_id", "")
        if isinstance(value, kw.ConsumerGroupMetadataValue):
            left.epochs["group"] = value.epoch
        elif isinstance(value, kw.ConsumerGroupTargetAssignmentMetadataValue):
            left.epochs["assignment"] = value.assignment_epoch
        elif isinstance(key, kw.ConsumerGroupMemberMetadataKey):
            left.subscribed[member_id] = value
        elif isinstance(value, kw.ConsumerGroupCurrentMemberAssignmentValue):
            held: dict[uuid.UUID, list[int]] = defaultdict(list)
            for part in (*value.assigned_partitions, *value.partitions_pending_revocation):
                held[part.topic_id] = sorted([*held[part.topic_id], *part.partitions])
            left.members[member_id] = dict(held)
            left.states[member_id] = (value.member_epoch, value.state)
        elif isinstance(key, kw.ConsumerGroupCurrentMemberAssignmentKey):
            left.members.pop(member_id, None)
            left.states.pop(member_id, None)
    return {name: left for name, left in groups.items() if left.members}


def take_over(played: Played, settings: str, folder: Path) -> Sequence[Path]:
    """Make a data folder of our coordinator of what Kafka has written; its segments."""
    logs = played.kafka_logs[settings]
    topics = kafkas_topics(logs[0].parent.parent)
    known = KnownTopics({name: KnownTopic(topics.ids[name], {}, [0] * count) for name, count in TOPICS.items()})
    journal = Journal(FolderDisk(folder))
    journal.begin(known)
    journal.close()
    (folder / "__consumer_offsets-0").mkdir()
    for path in logs:
        shutil.copy(path, folder / "__consumer_offsets-0")
    return logs


def test_we_go_on_with_kafkas_log(played: Played, tmp_path: Path) -> None:
    """The same groups, epochs and assignments; a member that is done gets its epoch again, and no new one begins."""
    logs = take_over(played, "consumer", tmp_path)
    expected = left_in(logs)
    assert len(expected) > 10
    config = GroupConfig.from_properties(SETTINGS["consumer"])
    with Coordinator(topics=TOPICS, config=config, data_dir=tmp_path) as coordinator, Wire(coordinator.address) as wire:
        asked = sorted(expected)
        for described in wire.call(kw.ConsumerGroupDescribeRequest(group_ids=asked), 1).groups:
            left = expected[described.group_id]
            assert (described.group_epoch, described.assignment_epoch) == tuple(left.epochs[key] for key in EPOCHS)
            held = {each.member_id: _held(each.assignment) for each in described.members}
            assert held == left.members, (described.group_id, held, left)
            assert {each.member_id: each.member_epoch for each in described.members} == {
                member_id: epoch for member_id, (epoch, _) in left.states.items()
            }
        settled = {name: left for name, left in expected.items() if _is_settled(left)}
        assert len(settled) > 5
        for name, left in settled.items():
            for member_id in left.members:
                beat = kw.ConsumerGroupHeartbeatRequest(
                    group_id=name, member_id=member_id, member_epoch=left.epochs["group"]
                )
                answer = wire.call(beat, 1)
                assert (answer.error_code, answer.member_epoch) == (0, left.epochs["group"]), (name, answer)
        for described in wire.call(kw.ConsumerGroupDescribeRequest(group_ids=sorted(settled)), 1).groups:
            assert described.group_epoch == settled[described.group_id].epochs["group"]


EPOCHS = ("group", "assignment")


def _held(assignment: kw.ConsumerGroupDescribeResponseAssignment) -> dict[uuid.UUID, list[int]]:
    return _by_id(assignment.topic_partitions)


def _by_id(parts: Iterable[Any]) -> dict[uuid.UUID, list[int]]:
    return {part.topic_id: sorted(part.partitions) for part in parts}


def _is_settled(left: Left) -> bool:
    return all(
        epoch == left.epochs["group"] == left.epochs["assignment"] and state == 0
        for epoch, state in left.states.values()
    ) and all(
        value is not None
        and value.classic_member_metadata is None
        and not value.subscribed_topic_regex
        and value.instance_id is None
        and value.server_assignor is None
        for value in left.subscribed.values()
    )


def test_we_go_on_with_kafkas_share_groups(played: Played, tmp_path: Path) -> None:
    """The same members, epochs and partitions; no epoch begins with the next heartbeats of a group that is complete."""
    epochs: dict[str, int] = {}
    members: dict[str, dict[str, Any]] = defaultdict(dict)
    for record in records(take_over(played, "share", tmp_path)):
        key, value = record.key, record.value
        if isinstance(key, kw.ShareGroupMetadataKey):
            epochs[key.group_id] = 0 if value is None else value.epoch
        elif isinstance(key, kw.ShareGroupCurrentMemberAssignmentKey):
            members[key.group_id].pop(key.member_id, None)
            if value is not None:
                members[key.group_id][key.member_id] = value.member_epoch, _by_id(value.assigned_partitions)
    config = GroupConfig.from_properties(SETTINGS["share"])
    settled = 0
    with Coordinator(topics=TOPICS, config=config, data_dir=tmp_path) as coordinator, Wire(coordinator.address) as wire:
        for group_id in (name for name, epoch in epochs.items() if epoch):
            (group,) = wire.call(kw.ShareGroupDescribeRequest(group_ids=[group_id]), 1).groups
            assert (group.error_code, group.group_epoch) == (0, epochs[group_id]), group_id
            described = {
                each.member_id: (each.member_epoch, _by_id(each.assignment.topic_partitions)) for each in group.members
            }
            is_known = group_id != "share_topics_that_come_and_go"  # whose topic is not here
            assert not is_known or described == members[group_id]
            if group.members and all(each.member_epoch == group.group_epoch for each in group.members):
                settled += 1
                for each in group.members:
                    beat = kw.ShareGroupHeartbeatRequest(
                        group_id=group_id, member_id=each.member_id, member_epoch=each.member_epoch
                    )
                    assert wire.call(beat, 1).member_epoch == each.member_epoch, group_id
    assert settled > 3
