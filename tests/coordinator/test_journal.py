"""The journal of topics: what a crash leaves of it, damage that no crash explains, and failing disks."""

from __future__ import annotations

import uuid
from random import Random

import pytest

from kcoord_wire.coordinator.log.store import CorruptLogError
from kcoord_wire.coordinator.topics.journal import Journal, KnownTopic, KnownTopics
from kcoord_wire.disk import MemoryDisk
from kcoord_wire.simulation.disk import VirtualDisk
from tests.support.logs import content, disk_of

NAME = "topics.journal"
ORDERS = KnownTopic(uuid.UUID(int=7), {"retention.ms": "5"}, [0, 3])


def begun(disk: MemoryDisk | VirtualDisk) -> Journal:
    journal = Journal(disk)
    journal.begin(journal.load())
    return journal


def filled(disk: MemoryDisk | VirtualDisk) -> Journal:
    journal = begun(disk)
    journal.topic_changed("orders", ORDERS, 1)
    journal.start_moved("orders-1", 12)
    journal.epoch_raised("orders", 0, 4)
    journal.topic_changed("gone", KnownTopic(uuid.UUID(int=8), {}, [0]), 2)
    journal.start_moved("gone-0", 5)
    journal.topic_deleted("gone")
    journal.producer_ids_reserved(3_000)
    return journal


EXPECTED = KnownTopics(
    {"orders": KnownTopic(uuid.UUID(int=7), {"retention.ms": "5"}, [4, 3])}, {"gone"}, {"orders-1": 12}, 2, 3_000
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
    disk = MemoryDisk()
    filled(disk)
    disk.crash(Random(seed))
    assert Journal(disk).load() == EXPECTED


def test_a_torn_last_line_is_left_out_other_damage_is_an_error() -> None:
    disk = MemoryDisk()
    journal = filled(disk)
    whole = content(disk)[NAME]
    journal.topic_deleted("orders")
    longer = content(disk)[NAME]
    for size in range(len(whole), len(longer)):
        assert Journal(disk_of({NAME: longer[:size]})).load() == EXPECTED
    bad = bytearray(whole)
    bad[40] ^= 1
    with pytest.raises(CorruptLogError, match=r"topics\.journal at byte \d+: not a change: the checksum is wrong"):
        Journal(disk_of({NAME: bytes(bad)})).load()


def test_a_line_of_another_program_is_an_error() -> None:
    disk = MemoryDisk()
    journal = begun(disk)
    journal._write({"change": "unheard of"}, sync=True)
    with pytest.raises(CorruptLogError, match="'unheard of' is not a change"):
        Journal(disk).load()


@pytest.mark.parametrize("fails_in", range(3))
def test_a_change_that_cannot_be_written_is_not_made(fails_in: int) -> None:
    disk = VirtualDisk(Random(fails_in))
    journal = filled(disk)
    disk.fails_in = fails_in
    if fails_in < 2:  # the append, the fsync
        with pytest.raises(OSError, match="failed"):
            journal.topic_deleted("orders")
        assert Journal(disk).load() == EXPECTED
    journal.topic_deleted("orders")
    assert Journal(disk).load().topics == {}
