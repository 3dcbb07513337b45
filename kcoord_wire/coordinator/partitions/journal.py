"""Which topics exist, on the disk: a journal of changes, of which each start makes a new one.

Laws:

* A topic that was created, changed or deleted, and a config that was altered, is durable (fsync) before that is
  answered. Starts of logs and leader epochs are given to the disk without fsync, like the records.
* What a request changes is one line, with one write and one fsync: after a crash all of it is known, or nothing.
* A line is a change, or several, as JSON behind its CRC-32. A crash may tear the last write, and of lines that are not
  fsynced leave later ones without earlier ones: each says up to which byte the file was durable. What is not whole from
  there on is left out with all that follows. Any other damage is a `CorruptLogError`, and no file is touched.
* A line that is to be durable is written when all before it are: none is behind a gap.
* `Journal.begin` replaces the journal by one that has the present state alone, or leaves the old one.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from zlib import crc32

from kcoord_wire.coordinator.core.brokers import EVERYWHERE, Placement
from kcoord_wire.kernel.disk import Disk, DiskFile
from kcoord_wire.log.tail import CorruptLogError, Tail, write_file

_NAME: Final = "topics.journal"
_NEW: Final = "topics.journal.new"
_FORMAT: Final = 1
_CRC_DIGITS: Final = 8
_SYNCED: Final = "synced"  # of a line without fsync: bytes that were durable before it


Owner = tuple[int, str]
"""A broker or group that has configs: kind, as DescribeConfigs numbers it, and name."""


@dataclass(slots=True)
class KnownTopic:
    """A topic.

    :ivar id: its id
    :ivar configs: settings that differ from their defaults
    :ivar epochs: the leader epoch of each partition
    :ivar placement: which brokers have them
    """

    id: uuid.UUID
    configs: dict[str, str]
    epochs: list[int]
    placement: Placement = EVERYWHERE


class Compacted(NamedTuple):
    """How far a partition was compacted.

    :ivar gaps_before: offset before which records may have been left out
    :ivar clean_before: offset before which the last round has left each key once
    """

    gaps_before: int = 0
    clean_before: int = 0


@dataclass(slots=True)
class KnownTopics:
    """What the journal says.

    :ivar topics: by name
    :ivar deleted: names of topics whose files may be left
    :ivar starts: the start offset of partitions that had records deleted, by their names
    :ivar created: number of topics that were ever created
    :ivar producer_ids: ids of producers below this may have been given away
    :ivar configs: what was set for brokers and groups
    :ivar compacted: of partitions that were compacted, by their names
    :ivar kept: what clients have set about access, and the brokers that they have given to the partitions of internal
        topics: kind to key to value, as JSON has them
    """

    topics: dict[str, KnownTopic] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    starts: dict[str, int] = field(default_factory=dict)
    created: int = 0
    producer_ids: int = 0
    configs: dict[Owner, dict[str, str]] = field(default_factory=dict)
    compacted: dict[str, Compacted] = field(default_factory=dict)
    kept: dict[str, dict[str, Any]] = field(default_factory=dict)

    def apply(self, change: Mapping[str, Any]) -> None:
        """Make a change, or several. KeyError, TypeError or ValueError: it is none."""
        for each in change["changes"] if change["change"] == "together" else [change]:
            self._apply(each)

    def _apply(self, change: Mapping[str, Any]) -> None:
        match change["change"]:
            case "format":
                if change["number"] != _FORMAT:
                    raise ValueError(f"format {change['number']} where {_FORMAT} is known")
            case "topic":
                epochs, placement = list(change["epochs"]), _placement(change)
                known = KnownTopic(uuid.UUID(change["id"]), dict(change["configs"]), epochs, placement)
                self.topics[change["name"]] = known
                self.deleted.discard(change["name"])
                self.created = int(change["created"])
            case "deleted":
                topic = self.topics.pop(change["name"])
                self.deleted.add(change["name"])
                for number in range(len(topic.epochs)):
                    self.starts.pop(f"{change['name']}-{number}", None)
                    self.compacted.pop(f"{change['name']}-{number}", None)
            case "start" | "compacted" | "epoch":
                self._apply_to_partition(change)
            case "producer ids":
                self.producer_ids = int(change["below"])
                self.created = int(change.get("created", self.created))
            case "kept":
                self.keep(change["kind"], change["values"])
            case "configs":
                self.configs[int(change["kind"]), str(change["name"])] = dict(change["configs"])
            case other:
                raise ValueError(f"{other!r} is not a change")

    def keep(self, kind: str, values: Mapping[str, Any]) -> None:
        """Set what clients have set, of a kind; None removes a key."""
        kept = self.kept.setdefault(kind, {})
        for key, value in values.items():
            kept.pop(key, None)
            if value is not None:
                kept[key] = value

    def _apply_to_partition(self, change: Mapping[str, Any]) -> None:
        match change["change"]:
            case "start":
                self.starts[change["partition"]] = int(change["offset"])
            case "compacted":
                self.compacted[change["partition"]] = Compacted(int(change["gaps"]), int(change["clean"]))
            case "epoch":
                self.topics[change["name"]].epochs[change["index"]] = int(change["epoch"])


class Journal:
    """The journal in a folder. Its methods raise OSError: the disk fails, and the change is not made."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._file: DiskFile | None = None
        self._tail = Tail()
        self._synced = 0  # bytes that are durable

    def load(self) -> KnownTopics:
        """Read what is known.

        :raises CorruptLogError: it is damaged in a way that a crash does not explain
        """
        known = KnownTopics()
        if _NAME not in self._disk.sizes():
            return known
        with self._disk.read(_NAME) as source:
            data = source.read()
        position = 0
        lines = data.splitlines(keepends=True)
        for number, line in enumerate(lines):
            try:
                known.apply(_decode(line))
            except (ValueError, KeyError, TypeError, IndexError) as error:
                if _is_from_crash(lines[number:], position):
                    break
                raise CorruptLogError(_NAME, position, f"not a change: {error}") from None
            position += len(line)
        return known

    def begin(self, known: KnownTopics) -> None:
        """Replace the journal by one that says what is known."""
        changes: list[dict[str, Any]] = [{"change": "format", "number": _FORMAT}]
        changes.append({"change": "producer ids", "below": known.producer_ids, "created": known.created})
        changes += [_topic(name, topic, known.created) for name, topic in known.topics.items()]
        changes += [_configs(owner, configs) for owner, configs in known.configs.items() if configs]
        changes += [{"change": "start", "partition": name, "offset": offset} for name, offset in known.starts.items()]
        changes += [_compacted(name, how_far) for name, how_far in known.compacted.items()]
        changes += [_kept(kind, values) for kind, values in known.kept.items() if values]
        self._synced = write_file(self._disk, _NEW, [b"".join(map(_encode, changes))])
        self._tail = Tail(self._synced)
        self._disk.rename(_NEW, _NAME)
        self._disk.sync_names()
        self._file = self._disk.open(_NAME)

    def changed(
        self,
        topics: Mapping[str, KnownTopic],
        created: int,
        configs: Mapping[Owner, Mapping[str, str]] = MappingProxyType({}),
        kept: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    ) -> None:
        """Note that topics were created, or have other configs, brokers or more partitions; and what was set besides.

        :param created: number of topics that were ever created
        :param kept: kind to what `kept` notes of it
        """
        changes = [_topic(name, topic, created) for name, topic in topics.items()]
        changes += [_configs(owner, own) for owner, own in configs.items()]
        self._write_all(changes + [_kept(kind, values) for kind, values in kept.items() if values])

    def kept(self, kind: str, values: Mapping[str, Any]) -> None:
        """Note what clients have set, of a kind.

        :param values: key to value, None for what is removed
        """
        self._write(_kept(kind, values), sync=True)

    def deleted(self, names: Iterable[str]) -> None:
        """Note that topics were deleted."""
        self._write_all([{"change": "deleted", "name": name} for name in names])

    def start_moved(self, partition: str, offset: int) -> None:
        """Note that the log of a partition begins at `offset`."""
        self._write({"change": "start", "partition": partition, "offset": offset}, sync=False)

    def compacted(self, partition: str, how_far: Compacted, *, sync: bool) -> None:
        """Note how far a partition is compacted; with `sync` before records are left out."""
        self._write(_compacted(partition, how_far), sync=sync)

    def epoch_raised(self, topic: str, index: int, epoch: int) -> None:
        """Note the leader epoch of a partition."""
        self._write({"change": "epoch", "name": topic, "index": index, "epoch": epoch}, sync=False)

    def producer_ids_reserved(self, below: int) -> None:
        """Note that ids of producers below `below` may be given away."""
        self._write({"change": "producer ids", "below": below}, sync=True)

    def _write_all(self, changes: list[dict[str, Any]]) -> None:
        """Write changes that are made together."""
        if changes:
            self._write(changes[0] if len(changes) == 1 else {"change": "together", "changes": changes}, sync=True)

    def _write(self, change: Mapping[str, Any], *, sync: bool) -> None:
        assert self._file is not None, "the journal has begun"
        if not sync:
            self._tail.write(self._file, _encode({**change, _SYNCED: self._synced}), sync=False)
            return
        if self._synced < self._tail.size:
            self._file.sync()
        self._tail.write(self._file, _encode(change), sync=True)
        self._synced = self._tail.size

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _topic(name: str, topic: KnownTopic, created: int) -> dict[str, Any]:
    fields: dict[str, Any] = {"id": str(topic.id), "configs": topic.configs, "epochs": topic.epochs, "created": created}
    if topic.placement.replicas is not None:
        fields["replicas"] = topic.placement.replicas
    if topic.placement.assigned:
        fields["assigned"] = [[at, *brokers] for at, brokers in topic.placement.assigned.items()]
    return {"change": "topic", "name": name, **fields}


def _placement(change: Mapping[str, Any]) -> Placement:
    """Return where a topic is; a journal that was written before replicas were kept has nothing of it."""
    replicas = change.get("replicas")
    assigned = {int(at): [int(each) for each in brokers] for at, *brokers in change.get("assigned", ())}
    if (replicas is not None and int(replicas) < 1) or any(min(own, default=-1) < 0 for own in assigned.values()):
        raise ValueError("a partition without a broker")
    return Placement(None if replicas is None else int(replicas), assigned)


def _configs(owner: Owner, configs: Mapping[str, str]) -> dict[str, Any]:
    return {"change": "configs", "kind": owner[0], "name": owner[1], "configs": configs}


def _kept(kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {"change": "kept", "kind": kind, "values": values}


def _compacted(partition: str, how_far: Compacted) -> dict[str, Any]:
    offsets = {"gaps": how_far.gaps_before, "clean": how_far.clean_before}
    return {"change": "compacted", "partition": partition, **offsets}


def _encode(change: Mapping[str, Any]) -> bytes:
    text = json.dumps(change, separators=(",", ":")).encode()
    return b"%0*x %s\n" % (_CRC_DIGITS, crc32(text), text)


def _is_from_crash(lines: Sequence[bytes], position: int) -> bool:
    """Return whether a crash can have left these lines, the first of which is no change.

    :param position: of the first one in the file
    """
    if _is_whole(lines[0]):
        return False
    at = position
    for line in lines:
        if _is_whole(line) and _decode(line).get(_SYNCED, at) > position:
            return False
        at += len(line)
    return True


def _is_whole(line: bytes) -> bool:
    return line.endswith(b"\n") and line[:_CRC_DIGITS] == b"%0*x" % (_CRC_DIGITS, crc32(line[_CRC_DIGITS + 1 : -1]))


def _decode(line: bytes) -> dict[str, Any]:
    if not _is_whole(line):
        raise ValueError("the checksum is wrong")
    change: dict[str, Any] = json.loads(line[_CRC_DIGITS + 1 :])
    return change
