"""A coordination log for benchmarks: many members hold many partitions and send heartbeats, round after round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from kcoord_wire.marshal.log import RawEntry, coordination_partition

MEMBERS: Final = 1_000
TOPICS: Final = 100
TOPIC_PARTITIONS: Final = 100
PLACES: Final = TOPICS * TOPIC_PARTITIONS
COORDINATION_PARTITIONS: Final = 50
ROUND_S: Final = 30  # the Go library's heartbeats come after 15 to 44 s
T0: Final = 1_795_000_000


def chunks(messages: int, size: int = 5_000) -> Iterator[Sequence[RawEntry]]:
    """Yield so many entries: each place is claimed once, then beats once a round."""
    topics = [f"topic-{number:03}" for number in range(TOPICS)]
    homes = [coordination_partition(topic, COORDINATION_PARTITIONS) for topic in topics]
    offsets = [0] * COORDINATION_PARTITIONS
    made: list[RawEntry] = []
    for number in range(messages):
        turn, place = divmod(number, PLACES)
        topic, partition = divmod(place, TOPIC_PARTITIONS)
        member = place % MEMBERS
        time = T0 + turn * ROUND_S + place * ROUND_S // PLACES
        kind, tail = ("Heartbeat", f"/{turn * 1_000}") if turn else ("ClaimingPartition", "")
        who = f"{member * 4_294_967:08x}/client-{member:04}/team.consumer-group"
        value = f"{kind}/1/{time}/{who}/{topics[topic]}/{partition}{tail}".encode()
        home = homes[topic]
        made.append(RawEntry(home, offsets[home], time * 1_000 + 20, True, value))
        offsets[home] += 1
        if len(made) == size:
            yield made
            made = []
    if made:
        yield made
