"""The load of the crash test: a process that uses a coordinator and writes every answer to a journal.

    python -m tests.support.crash_load JOURNAL SEED

Each line on stdin is the address of a coordinator, to be used until its connections break. ``up`` on stdout means that
it has acknowledged something, ``down`` that all connections have ended.

A line of the journal is a JSON array:

    ["sent", id, group, partitions, offset]   a commit of that offset, or with -1 a deletion, is about to be sent
    ["done", id]  ["refused", id]             its answer
    ["joined", group, generation]             JoinGroup was answered
    ["synced", group, generation, member]     SyncGroup was answered; no member if it comes and goes
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import threading
import time

import kcoord_wire as kw
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.wire import Wire

TOPIC = "orders"
PARTITIONS = 12
MANAGED = ("load-0", "load-1", "load-2")
SIMPLE = ("simple-0", "simple-1")
GROUPS = MANAGED + SIMPLE
RETRY_SECONDS = 0.01


class Journal:
    """Lines that have reached the operating system before the next step."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._ids = itertools.count(1)
        self.up = threading.Event()

    def write(self, *line: object) -> None:
        os.write(self._fd, json.dumps(line).encode() + b"\n")

    def sent(self, group: str, partitions: list[int], *, deletes: bool = False) -> int:
        """A new id, which is the offset to be committed."""
        number = next(self._ids)
        self.write("sent", number, group, partitions, -1 if deletes else number)
        return number

    def answered(self, number: int, error: int) -> None:
        self.write("refused" if error else "done", number)
        if not error:
            self.up.set()


class Worker:
    """Uses the coordinator over one connection, again after each crash."""

    def __init__(self, group: str, journal: Journal, seed: str) -> None:
        self.group = group
        self.journal = journal
        self.random = random.Random(seed)

    def use(self, address: str) -> None:
        try:
            with Wire(address, timeout=60) as wire:
                while True:
                    self.work(wire)
        except (OSError, EOFError):  # the end, or a connection that was never made
            pass

    def work(self, wire: Wire) -> None:
        raise NotImplementedError

    def commit(self, wire: Wire, partitions: list[int], member_id: str = "", generation: int = -1) -> int:
        """Commit an offset that was never committed before; return the error."""
        number = self.journal.sent(self.group, partitions)
        metadata = "x" * self.random.choice([0, 4_000, 4_000, 4_000])  # so that the log is compacted
        item = kw.OffsetCommitRequestPartition
        request = kw.OffsetCommitRequest(
            group_id=self.group,
            member_id=member_id,
            generation_id_or_member_epoch=generation,
            topics=[
                kw.OffsetCommitRequestTopic(
                    name=TOPIC,
                    partitions=[
                        item(partition_index=n, committed_offset=number, committed_metadata=metadata)
                        for n in partitions
                    ],
                )
            ],
        )
        response = wire.call(request, self.random.choice([5, 7, 8, 9]))
        (error,) = {partition.error_code for topic in response.topics for partition in topic.partitions}
        self.journal.answered(number, error)
        return int(error)


class Simple(Worker):
    """Commits and deletes offsets of a group without members, one at a time."""

    def work(self, wire: Wire) -> None:
        partition = self.random.randrange(PARTITIONS)
        if self.random.random() < 0.8:
            self.commit(wire, [partition])
            return
        number = self.journal.sent(self.group, [partition], deletes=True)
        response = wire.call(
            kw.OffsetDeleteRequest(
                group_id=self.group,
                topics=[
                    kw.OffsetDeleteRequestTopic(
                        name=TOPIC, partitions=[kw.OffsetDeleteRequestPartition(partition_index=partition)]
                    )
                ],
            ),
            0,
        )
        errors = [response.error_code, *(p.error_code for topic in response.topics for p in topic.partitions)]
        self.journal.answered(number, next(filter(None, errors), 0))


class Member(Worker):
    """Joins, commits for its partitions, and starts a rebalance now and then: a leader by joining again, a member that
    `comes_and_goes` by leaving."""

    def __init__(self, group: str, journal: Journal, seed: str, *, comes_and_goes: bool) -> None:
        super().__init__(group, journal, seed)
        self.comes_and_goes = comes_and_goes
        self.member_id = ""

    def work(self, wire: Wire) -> None:
        joined = self.join(wire)
        if joined.error_code:
            if joined.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
            elif joined.error_code != ErrorCode.MEMBER_ID_REQUIRED:
                time.sleep(RETRY_SECONDS)
            return
        generation = joined.generation_id
        self.journal.write("joined", self.group, generation)
        request = kw.SyncGroupRequest(group_id=self.group, generation_id=generation, member_id=self.member_id)
        if joined.leader == self.member_id:
            members = [member.member_id for member in joined.members]
            request.assignments = [
                kw.SyncGroupRequestAssignment(
                    member_id=member_id, assignment=bytes(range(number, PARTITIONS, len(members)))
                )
                for number, member_id in enumerate(members)
            ]
        synced = wire.call(request, self.random.choice([1, 3, 4]))
        if synced.error_code:
            return
        self.journal.write("synced", self.group, generation, "" if self.comes_and_goes else self.member_id)
        for _ in range(self.random.randrange(1, 5) if self.comes_and_goes else 12):
            partitions = list(synced.assignment)
            if partitions and self.random.random() < 0.7:
                error = self.commit(wire, partitions, self.member_id, generation)
            else:
                beat = kw.HeartbeatRequest(group_id=self.group, generation_id=generation, member_id=self.member_id)
                error = wire.call(beat, self.random.choice([0, 3, 4])).error_code
            if error:
                return
        if self.comes_and_goes:
            leave = kw.LeaveGroupRequest(group_id=self.group, member_id=self.member_id)
            self.member_id = ""
            wire.call(leave, 2)

    def join(self, wire: Wire) -> kw.JoinGroupResponse:
        request = kw.JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=300 if self.comes_and_goes else 20_000,
            rebalance_timeout_ms=5_000,
            member_id=self.member_id,
            protocol_type="load",
            protocols=[kw.JoinGroupRequestProtocol(name="any", metadata=b"m")],
        )
        joined = wire.call(request, self.random.choice([2, 5, 7]))
        assert isinstance(joined, kw.JoinGroupResponse)
        self.member_id = joined.member_id or self.member_id
        return joined


def main(path: str, seed: str) -> None:
    """Use one coordinator after another, until stdin ends."""
    journal = Journal(path)
    workers: list[Worker] = [Simple(group, journal, f"{seed} {group}") for group in SIMPLE]
    for group in MANAGED:
        for number in range(3):
            workers.append(Member(group, journal, f"{seed} {group} {number}", comes_and_goes=number == 2))
    for line in sys.stdin:
        journal.up.clear()
        threads = [threading.Thread(target=worker.use, args=[line.strip()]) for worker in workers]
        for thread in threads:
            thread.start()
        while not journal.up.wait(0.05) and any(thread.is_alive() for thread in threads):
            pass
        print("up", flush=True)
        for thread in threads:
            thread.join()
        print("down", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
