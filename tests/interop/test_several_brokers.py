"""Unmodified clients on a coordinator of three brokers, which move, stop, pause and come back under them.

Each client consumes and commits in a group of its own, while what they talk to changes. No record may be missing or
come twice, and no acknowledged commit may be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from kcoord_wire.coordinator import Coordinator
from tests.support.clients.java import java_client
from tests.support.clients.life_cycle import CONFIG
from tests.support.clients.members import AIOKAFKA, CONFLUENT, Client, Member, Record

PARTITIONS = 6
SESSION_MS = 45_000  # longer than any step, so that no member is put out


class Party:
    """One client, its group, and what it should have seen."""

    def __init__(self, coordinator: Coordinator, client: Client, stack: ExitStack) -> None:
        self.coordinator = coordinator
        self.group = f"billing-{client.name.replace(' ', '-')}"
        self.topic = f"orders-{client.name.replace(' ', '-')}"
        coordinator.create_topic(self.topic, PARTITIONS)
        self.produced = 0
        self.member = stack.enter_context(
            Member(
                client,
                bootstrap=coordinator.address,
                topic=self.topic,
                group=self.group,
                client_id=client.name,
                assignor="range",
                instance_id=None,
                session_timeout_ms=SESSION_MS,
                heartbeat_interval_ms=500,
                rebalance_timeout_ms=SESSION_MS,
            )
        )

    def send_records(self) -> None:
        """Have three records of each partition produced; `finish` waits for it."""
        values = [self.produced + n for n in range(3 * PARTITIONS)]
        self.produced += len(values)
        self.member.send("produce", records=[[value % PARTITIONS, str(value)] for value in values])

    def finish(self) -> None:
        """Wait until the records are acknowledged and consumed; commit, and look for the commit."""
        produced = self.member.answer("produce")["records"]
        expected: list[Record] = [(partition, offset, value) for partition, offset, value in produced]
        self.member.expect_records(expected)
        assert self.member.commit() == dict.fromkeys(range(PARTITIONS), self.produced // PARTITIONS)
        for partition in range(PARTITIONS):
            self.coordinator.wait_for_commit(self.group, self.topic, partition, self.produced // PARTITIONS)


def round_of(parties: Sequence[Party], change: Callable[[], None] = lambda: None) -> None:
    """Let all clients produce, consume and commit, and change something in between."""
    for party in parties:
        party.send_records()
    change()
    for party in parties:
        party.finish()


def test_clients_find_what_has_moved(tmp_path: Path) -> None:
    with ExitStack() as stack:
        c = stack.enter_context(Coordinator(brokers=3, config=CONFIG))
        clients = (CONFLUENT, AIOKAFKA, java_client(tmp_path, "3.9.2"), java_client(tmp_path, "4.4.0"))
        parties = [Party(c, client, stack) for client in clients]
        for party in parties:
            party.member.join()
        for party in parties:
            party.member.wait(lambda p=party: p.member.now_owned == list(range(PARTITIONS)), "own its partitions")
        round_of(parties)

        def move_all() -> None:
            for party in parties:
                c.move_coordinator(party.group, (c.coordinator_of(party.group) + 1) % 3)

        round_of(parties, move_all)
        round_of(parties)
        for node in range(3):
            round_of(parties, lambda node=node: c.stop_broker(node))
            round_of(parties)
            round_of(parties, lambda node=node: c.restart_broker(node))
        for node in range(3):
            c.pause_broker(node)
            round_of(parties, lambda node=node: c.resume_broker(node))
        for party in parties:
            assert party.member.lives
            party.member.leave()
