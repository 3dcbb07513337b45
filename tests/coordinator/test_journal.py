"""The journal of topics: what a crash leaves of it, damage that no crash explains, and failing disks."""

from __future__ import annotations

import uuid
from random import Random
from typing import Any

import pytest

from kcoord_wire.coordinator.core.brokers import Placement
from kcoord_wire.coordinator.partitions.journal import Journal, KnownTopic, KnownTopics
from kcoord_wire.kernel.disk import SECTOR, MemoryDisk
from kcoord_wire.kernel.virtual.disk import VirtualDisk
from kcoord_wire.log.tail import CorruptLogError
from tests.support.logs import content, disk_of

NAME = "topics.journal"
ORDERS = KnownTopic(uuid.UUID(int=7), {"retention.ms": "5"}, [0, 3], Placement(2, {1: [0, 2]}))


def begun(disk: MemoryDisk | VirtualDisk) -> Journal:
    journal = Journal(disk)
    journal.begin(journal.load())
    return journal


def filled(disk: MemoryDisk | VirtualDisk) -> Journal:
    journal = begun(disk)
    journal.changed({"orders": ORDERS}, 1)
    journal.start_moved("orders-1", 12)
    journal.epoch_raised("orders", 0, 4)
    journal.changed({"gone": KnownTopic(uuid.UUID(int=8), {}, [0])}, 2)
    journal.start_moved("gone-0", 5)
    journal.deleted(["gone"])
    journal.producer_ids_reserved(3_000)
    return journal


EXPECTED = KnownTopics(
    {"orders": KnownTopic(uuid.UUID(int=7), {"retention.ms": "5"}, [4, 3], Placement(2, {1: [0, 2]}))},
    {"gone"},
    {"orders-1": 12},
    2,
    3_000,
)


def test_what_was_noted_is_known_again() -> None:
    disk = MemoryDisk()
    filled(disk)
    assert Journal(disk).load() == EXPECTED
    begun(disk)
    EXPECTED_AGAIN = KnownTopics(EXPECTED.topics, {"gone"} - EXPECTED.deleted, EXPECTED.starts, 2, 3_000)
    assert Journal(disk).load() == EXPECTED_AGAIN


@pytest.mark.parametrize("seed", range(30))
def test_topics_survive_a_power_failure(seed: int) -> None:
    disk = VirtualDisk(Random(seed))
    filled(disk)
    disk.crash()
    assert Journal(disk).load() == EXPECTED


@pytest.mark.parametrize("seed", range(20))
def test_a_gap_in_lines_without_fsync_is_from_a_crash(seed: int) -> None:
    disk = VirtualDisk(Random(seed))
    journal = filled(disk)
    for offset in range(13, 40):
        journal.start_moved("orders-1", offset)
    assert disk.sizes()[NAME] > 4 * SECTOR
    disk.crash()
    loaded = Journal(disk).load()
    assert loaded.topics == EXPECTED.topics
    assert loaded.starts["orders-1"] in range(12, 40)


def test_a_damaged_line_that_was_durable_is_an_error() -> None:
    disk = MemoryDisk()
    journal = filled(disk)
    durable = disk.sizes()[NAME]
    for offset in range(13, 16):
        journal.start_moved("orders-1", offset)
    whole = content(disk)[NAME]
    for at, is_error in ((durable - 9, True), (durable + 9, False)):
        bad = bytearray(whole)
        bad[at] ^= 1
        if is_error:
            with pytest.raises(CorruptLogError, match="the checksum is wrong"):
                Journal(disk_of({NAME: bytes(bad)})).load()
        else:
            assert Journal(disk_of({NAME: bytes(bad)})).load() == EXPECTED


def test_a_torn_last_line_is_left_out_other_damage_is_an_error() -> None:
    disk = MemoryDisk()
    journal = filled(disk)
    whole = content(disk)[NAME]
    journal.deleted(["orders"])
    longer = content(disk)[NAME]
    for size in range(len(whole), len(longer)):
        assert Journal(disk_of({NAME: longer[:size]})).load() == EXPECTED
    bad = bytearray(whole)
    bad[40] ^= 1
    with pytest.raises(CorruptLogError, match=r"topics\.journal at byte \d+: not a change: the checksum is wrong"):
        Journal(disk_of({NAME: bytes(bad)})).load()


@pytest.mark.parametrize("seed", range(40))
def test_many_changes_are_kept_all_or_none(seed: int) -> None:
    disk = MemoryDisk()
    begun(disk)
    before = content(disk)[NAME]
    journal = filled(disk)
    known = {f"t{number}": KnownTopic(uuid.UUID(int=100 + number), {}, [0]) for number in range(200)}
    journal.changed(known, 202, {(4, ""): {"log.retention.ms": "7"}})
    longer, whole = content(disk)[NAME], len(before)
    assert longer.count(b"\n") == before.count(b"\n") + 8
    assert len(longer) - whole > 10 * SECTOR
    torn = VirtualDisk(Random(seed))  # what a power failure makes of the last line: sectors that were never written
    file = torn.open(NAME)
    last = longer.rindex(b"\n", 0, -1) + 1
    file.append(longer[:last])
    file.sync()
    torn.sync_names()
    file.append(longer[last:])
    torn.crash()
    loaded = Journal(torn).load()
    assert loaded in (EXPECTED, Journal(disk).load())
    assert len(Journal(disk).load().topics) == 201


def test_configs_of_brokers_and_groups_are_kept() -> None:
    disk = MemoryDisk()
    journal = begun(disk)
    own = {"consumer.session.timeout.ms": "50000"}
    journal.changed({}, 0, {(4, ""): {"log.retention.ms": "7"}, (32, "billing"): own})
    journal.changed({}, 0, {(32, "billing"): {}})
    assert Journal(disk).load().configs == {(4, ""): {"log.retention.ms": "7"}, (32, "billing"): {}}
    begun(disk)
    assert Journal(disk).load().configs == {(4, ""): {"log.retention.ms": "7"}}


def test_a_line_of_another_program_is_an_error() -> None:
    disk = MemoryDisk()
    journal = begun(disk)
    journal._write({"change": "unheard of"}, sync=True)
    with pytest.raises(CorruptLogError, match="'unheard of' is not a change"):
        Journal(disk).load()


@pytest.mark.parametrize("placed", [{"replicas": 0}, {"assigned": [[0, -1]]}, {"assigned": [[0]]}, {"assigned": [[]]}])
def test_a_placement_that_cannot_be_is_an_error(placed: dict[str, Any]) -> None:
    disk = MemoryDisk()
    journal = begun(disk)
    topic = {"change": "topic", "name": "t", "id": str(uuid.UUID(int=7)), "configs": {}, "epochs": [0], "created": 1}
    journal._write({**topic, **placed}, sync=True)
    with pytest.raises(CorruptLogError, match="not a change"):
        Journal(disk).load()


@pytest.mark.parametrize("fails_in", range(3))
def test_a_change_that_cannot_be_written_is_not_made(fails_in: int) -> None:
    disk = VirtualDisk(Random(fails_in))
    journal = filled(disk)
    disk.fails_in = fails_in
    if fails_in < 2:  # the append, the fsync
        with pytest.raises(OSError, match="failed"):
            journal.deleted(["orders"])
        assert Journal(disk).load() == EXPECTED
    journal.deleted(["orders"])
    assert Journal(disk).load().topics == {}
