"""A coordinator that is killed while it is used comes back with all that it has acknowledged.

The load is a process (crash_load.py) that writes every answer to a journal; the server is ``kcoord serve`` and is
killed with SIGKILL at random moments: under load, in compactions, and while it starts. After each restart its answers
are compared with the journal. ``KCOORD_WIRE_KILLS`` is the number of kills, ``KCOORD_WIRE_SEED`` the seed.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

import kcoord_wire as kw
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.records import Record, encode_batch, read_records
from tests.support.crash_load import GROUPS, PARTITIONS, TOPIC
from tests.support.processes import Process
from tests.support.waiting import consumed
from tests.support.wire import Wire

ROOT = Path(__file__).parent.parent.parent
KILLS = int(os.environ.get("KCOORD_WIRE_KILLS", "8"))
SEED = os.environ.get("KCOORD_WIRE_SEED", "1")
PATIENCE = 120  # seconds for anything that has to happen
NOTHING = -1

Place = tuple[str, int]  # group and partition


class Expectation:
    """What a coordinator must know, according to the journal.

    :ivar known: the offset that was last acknowledged, with the id of its line
    :ivar open: the offsets sent after that, by their ids
    :ivar generation: the greatest in which a SyncGroup was answered
    :ivar least: the same, when the server was last started
    :ivar joined: the greatest with which a JoinGroup was answered
    :ivar members: members of that `generation` that stay
    """

    def __init__(self, journal: Path) -> None:
        self._file = journal.open("rb")
        self._part = b""
        self._sent: dict[int, tuple[list[Place], int]] = {}
        self.known: dict[Place, tuple[int, int]] = defaultdict(lambda: (0, NOTHING))
        self.open: dict[Place, dict[int, int]] = defaultdict(dict)
        self.generation: dict[str, int] = defaultdict(int)
        self.least: dict[str, int] = {}
        self.joined: dict[str, int] = defaultdict(int)
        self.members: dict[str, set[str]] = defaultdict(set)
        self.acknowledged = self.generations = self.survived = 0

    def close(self) -> None:
        self._file.close()

    def read(self) -> None:
        """Read what has been written since."""
        *lines, self._part = (self._part + self._file.read()).split(b"\n")
        for line in lines:
            match json.loads(line):
                case ["sent", number, group, partitions, offset]:
                    self._sent[number] = [(group, partition) for partition in partitions], offset
                    for place in self._sent[number][0]:
                        self.open[place][number] = offset
                case ["done", number]:
                    self._done(number)
                case ["refused", number]:
                    for place in self._sent.pop(number)[0]:
                        self.open[place].pop(number, None)
                case ["joined", group, generation]:
                    assert generation >= self.least.get(group, 0), f"{group} went back to generation {generation}"
                    self.joined[group] = max(generation, self.joined[group])
                case ["synced", group, generation, member]:
                    self._synced(group, generation, member)
                case other:
                    raise AssertionError(other)

    def _done(self, number: int) -> None:
        places, offset = self._sent.pop(number)
        self.acknowledged += 1
        for place in places:
            if number > self.known[place][0]:  # lines of two threads may change places
                self.known[place] = number, offset
                self.open[place] = {n: sent for n, sent in self.open[place].items() if n > number}

    def _synced(self, group: str, generation: int, member: str) -> None:
        assert generation >= self.least.get(group, 0), f"{group} went back to generation {generation}"
        if generation > self.generation[group]:
            self.generation[group] = generation
            self.members[group].clear()
            self.generations += 1
        if member and generation == self.generation[group]:
            self.members[group].add(member)

    def compare(self, address: str) -> None:
        """Compare everything with the coordinator at `address`, before the load uses it."""
        with Wire(address, timeout=PATIENCE) as wire:
            found: dict[Place, int] = {}
            for group in GROUPS:
                response = wire.call(kw.OffsetFetchRequest(group_id=group, topics=None), 7)
                assert response.error_code == 0
                for topic in response.topics:
                    for partition in topic.partitions:
                        assert (topic.name, partition.error_code) == (TOPIC, 0)
                        found[group, partition.partition_index] = partition.committed_offset
            self._compare_offsets(found)
            for group, members in self.members.items():
                for member in members:
                    beat = kw.HeartbeatRequest(group_id=group, generation_id=self.generation[group], member_id=member)
                    error = wire.call(beat, 4).error_code
                    allowed = {ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS}
                    if self.joined[group] > self.generation[group]:  # perhaps on disk, though not answered
                        allowed |= {ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID}
                    assert error in allowed, f"{member} of generation {self.generation[group]}: {error}"
        self.least = dict(self.generation)

    def _compare_offsets(self, found: dict[Place, int]) -> None:
        for place in [(group, partition) for group in GROUPS for partition in range(PARTITIONS)]:
            allowed = {self.known[place][1], *self.open[place].values()}
            assert found.get(place, NOTHING) in allowed, f"{place}: {found.get(place)}, not one of {allowed}"
        for number, (places, offset) in self._sent.items():
            if all(list(self.open[place]) == [number] for place in places):
                assert len({found.get(place) == offset for place in places}) == 1, f"{places}: a part of a commit"
                self.survived += found.get(places[0]) == offset
        for place in self.open:
            self.known[place] = max(self.open[place], default=0) or self.known[place][0], found.get(place, NOTHING)
        self.open.clear()
        self._sent.clear()


def running(*arguments: str, log: Path) -> Process:
    return Process([sys.executable, *arguments], log=log)


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[str]:
    """``kcoord serve`` on the data of a folder, by its address, until it is killed."""
    log = folder / "log"
    with running(*SERVE, "--data-dir", str(folder / "data"), *options, log=log) as server:
        serves = server.line()
        assert serves.startswith("kcoord serves on "), log.read_text()
        yield serves.split()[3].rstrip(",")


def compacts(data: Path) -> bool:
    return any(not name.endswith(".log") for name in os.listdir(data / "__consumer_offsets-0"))


SERVE = (
    *("-m", "kcoord_wire", "serve", "--topics", f"{TOPIC}:{PARTITIONS}", "--port", "0"),
    *("--config", "group.initial.rebalance.delay.ms=0", "--config", "group.min.session.timeout.ms=100"),
)


def produce(address: str, first: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True})
    errors: list[object] = []
    for number in range(first, first + count):
        producer.produce(TOPIC, b"%d" % number, partition=0, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(PATIENCE) == 0
    assert errors == [None] * count


def consume(address: str, group: str, count: int) -> list[int]:
    """Read so many records, commit after the last, and return their values."""
    settings = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": address, "session.timeout.ms": 60_000, **settings})
    consumer.subscribe([TOPIC])
    found = [int(message.value() or b"") for message in consumed(consumer, count, seconds=PATIENCE)]
    consumer.commit(asynchronous=False)
    consumer.close()
    return found


def test_records_go_on_where_the_committed_offset_is(tmp_path: Path) -> None:
    with serving(tmp_path) as address:
        produce(address, 0, 150)
        assert consume(address, "g", 100) == list(range(100))
        assert epoch_of(address) == 0
    with serving(tmp_path) as address:
        produce(address, 150, 150)
        assert consume(address, "g", 200) == list(range(100, 300))
        assert consume(address, "new", 300) == list(range(300))
        assert epoch_of(address) == 1


class Writer(threading.Thread):
    """Sends numbered records, one after the other, until its connection ends.

    :ivar sent: number of records so far
    :ivar acknowledged: offset to number
    """

    def __init__(self, address: str, sent: int) -> None:
        super().__init__()
        self._wire = Wire(address, timeout=PATIENCE)
        self.sent = sent
        self.acknowledged: dict[int, int] = {}

    def run(self) -> None:
        try:
            with self._wire as wire:
                while True:
                    data = encode_batch([Record(None, b"%d" % self.sent * 100)])
                    part = kw.ProduceRequestPartitionProduceData(index=0, records=data)
                    topic = kw.ProduceRequestTopicProduceData(name=TOPIC, partition_data=[part])
                    self.sent += 1
                    response = wire.call(kw.ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=[topic]), 9)
                    (answer,) = response.responses[0].partition_responses
                    assert answer.error_code == 0
                    self.acknowledged[answer.base_offset] = self.sent - 1
        except (OSError, EOFError):
            pass


def records_of(address: str) -> list[int]:
    """The numbers of the records in the topic's first partition, in their order."""
    found: list[int] = []
    with Wire(address, timeout=PATIENCE) as wire:
        while True:
            part = kw.FetchRequestFetchPartition(fetch_offset=len(found), partition_max_bytes=1 << 20)
            request = kw.FetchRequest(max_wait_ms=0, topics=[kw.FetchRequestFetchTopic(topic=TOPIC, partitions=[part])])
            data = wire.call(request, 11).responses[0].partitions[0].records
            if not data:
                return found
            for read in read_records(data):
                found += [int((record.value or b"")[: len(record.value or b"") // 100]) for record in read.records]


def test_no_acknowledged_record_is_lost_or_moved_by_kills(tmp_path: Path) -> None:
    choice = random.Random(SEED)
    known: list[int] = []
    acknowledged: dict[int, int] = {}
    sent = 0
    for kill in range(4):
        with serving(tmp_path, "--retention-bytes", "16M") as address:  # segments of 1 MiB
            known = records_of(address)
            assert {offset: known[offset] for offset in acknowledged} == acknowledged
            assert known == sorted(set(known)), "a record twice, or out of order"
            assert epoch_of(address) == kill
            writer = Writer(address, sent)
            writer.start()
            while len(writer.acknowledged) < 50 + choice.randrange(200) and writer.is_alive():
                time.sleep(0.001)
        writer.join(PATIENCE)
        sent = writer.sent
        acknowledged |= writer.acknowledged
    assert len(acknowledged) > 200


def epoch_of(address: str) -> int:
    """The leader epoch of the topic's first partition."""
    with Wire(address, timeout=PATIENCE) as wire:
        (topic,) = wire.call(kw.MetadataRequest(topics=[kw.MetadataRequestTopic(name=TOPIC)]), 9).topics
    return min(part.leader_epoch for part in topic.partitions if part.partition_index == 0)


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_by_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, journal, log = tmp_path / "data", tmp_path / "journal", tmp_path / "log"
    journal.touch()
    choice = random.Random(SEED)
    expected = Expectation(journal)
    began = time.monotonic()
    kills = early = interrupted = 0
    with running("-m", "tests.support.crash_load", str(journal), SEED, log=log) as load:
        while kills < KILLS:
            if choice.random() < 0.15:
                with running(*SERVE, "--data-dir", str(data), log=log):
                    time.sleep(choice.uniform(0, 0.8))
                kills += 1
                early += 1
            with serving(tmp_path) as address:
                expected.compare(address)
                load.tell(address)
                assert load.line() == "up", log.read_text()
                moment = time.monotonic() + choice.uniform(0, 0.4)
                hunts = choice.random() < 0.5  # for a compaction, which is rare and short
                while time.monotonic() < moment and not (hunts and compacts(data)):
                    time.sleep(0.002)
                time.sleep(choice.uniform(0, 0.02))
            kills += 1
            assert load.line() == "down", log.read_text()
            interrupted += compacts(data)
            expected.read()
        with serving(tmp_path) as address:
            expected.compare(address)
    expected.close()
    assert expected.acknowledged > 10 * KILLS
    assert expected.generations > KILLS
    with capsys.disabled():
        print(
            f"\n{kills} kills in {time.monotonic() - began:.0f} s, {early} of them while it started, "
            f"{interrupted} in a compaction; {expected.acknowledged} commits and {expected.generations} generations "
            f"acknowledged, {expected.survived} commits kept that were not"
        )
