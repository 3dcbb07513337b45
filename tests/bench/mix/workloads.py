"""What a process decodes that is not one message again and again.

Laws:

* A stream is made from a number alone, so that every process has the same one.
* Messages of a stream differ in their ids, as those of a server's clients do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import Any, Final

import kcoord_wire as kw

from ..frames import commit_request, fetch_response, sync_response
from ..rows import (
    ROWS,
    heartbeat,
    join_request,
    join_response,
    member_id,
    metadata_response,
    offset_fetch_response,
    sync_request,
)

Body = tuple[type, bytes, int]
"""What `kw.decode` takes."""

KEPT: Final = 50  # messages that a server has in hand
DRAWN: Final = 400  # messages of a stream
OFTEN: Final = 30  # times that a small row comes in a pass, for each large one
SMALL: Final = 1000  # bytes: up to here a row is small
ARENA: Final = 1024 * 1024  # bytes: CPython maps and unmaps them at once
ARENAS: Final = 8  # of other objects
LIFE: Final = 3000, 1000  # messages of a long history, and how many of them are kept at a time
SURVIVORS: Final = 50  # of which one survives


def size(random: Random, most: int) -> int:
    """One to `most`; each order of magnitude as often as the others."""
    return round(most ** random.random())


# How often, the version, and a message of a size that is drawn.
KINDS: list[tuple[int, int, Callable[[Random], Any]]] = [
    (40, 4, lambda random: heartbeat()),
    (10, 7, lambda random: join_request()),
    (8, 7, lambda random: join_response(size(random, 1000))),
    (8, 5, lambda random: sync_request(size(random, 1000))),
    (8, 5, lambda random: sync_response()),
    (10, 8, lambda random: commit_request(size(random, 10), size(random, 30))),
    (8, 7, lambda random: offset_fetch_response(size(random, 30), size(random, 30))),
    (5, 9, lambda random: metadata_response(3 + size(random, 50), size(random, 50), size(random, 30))),
    (3, 12, lambda random: fetch_response(size(random, 10), size(random, 10), size(random, 10_000))),
]


def body(message: Any, version: int) -> Body:
    return type(message), kw.encode(message, version), version


def turns(quick: bool) -> list[Body]:
    """The rows of the codec's benchmark in turn, but for the two of 5,000 members; the small ones thirty times each."""
    bodies = [body(row.message(quick), row.version) for row in ROWS if not row.key.endswith("-5000")]
    return list(chain.from_iterable([each] * (OFTEN if len(each[1]) < SMALL else 1) for each in bodies))


def drawn(quick: bool = False) -> list[Body]:
    """Messages of all kinds, sizes and ids."""
    random = Random(0)
    count = DRAWN // 10 if quick else DRAWN
    weights = [often for often, _, _ in KINDS]
    bodies = []
    for i, (_, version, make) in enumerate(random.choices(KINDS, weights, k=count)):
        message = make(random)
        if hasattr(message, "member_id"):
            message.member_id = member_id(i)
        if hasattr(message, "group_id"):
            message.group_id = f"billing-{random.randrange(10 ** random.randrange(1, 9))}"
        bodies.append(body(message, version))
    return bodies


def large(key: str, quick: bool) -> Body:
    """One message of a row, the Fetch response of 1 MB included."""
    if key == "fetch":
        return body(fetch_response(*((1, 2, 9) if quick else (20, 10, 5000))), 12)
    row = next(row for row in ROWS if row.key == key)
    return body(row.message(quick), row.version)


def keep(bodies: list[Body], kept: int = KEPT) -> Callable[[], None]:
    """A pass in which the last messages are kept, across passes too."""
    ring: list[Any] = [None] * kept
    at = 0

    def call() -> None:
        nonlocal at
        decode = kw.decode
        for cls, data, version in bodies:
            ring[at] = decode(cls, data, version)
            at = (at + 1) % kept

    return call


def keep_all(bodies: list[Body]) -> Callable[[], None]:
    """A pass whose messages are all kept, and dropped together at its end."""

    def call() -> None:
        decode = kw.decode
        kept = [decode(cls, data, version) for cls, data, version in bodies]
        kept.clear()

    return call


def drop(cls: type, data: bytes, version: int) -> Callable[[], None]:
    """One message, dropped at once."""

    def call() -> None:
        kw.decode(cls, data, version)

    return call


@dataclass(frozen=True)
class Workload:
    """A pass that is measured.

    :ivar key: of results, and of the question to a process
    :ivar title: in the report
    :ivar make: the pass, tiny or not
    """

    key: str
    title: str
    make: Callable[[bool], Callable[[], None]]


LARGE: Final = {
    "join-5000": "JoinGroupResponse, 5,000 members",
    "sync-5000": "SyncGroupRequest, 5,000 assignments",
    "metadata": "MetadataResponse, 3,000 partitions",
    "offset-fetch": "OffsetFetchResponse, 3,000 partitions",
    "fetch": "FetchResponse, 200 partitions of 5 KB",
}
WORKLOADS: Final = {
    work.key: work
    for work in [
        Workload("turns", "the codec's rows in turn, the last 50 kept", lambda quick: keep(turns(quick))),
        Workload("drawn", "400 messages of all sizes, the last 50 kept", lambda quick: keep(drawn(quick))),
        Workload("together", "the same 400, dropped together", lambda quick: keep_all(drawn(quick))),
        *(Workload(key, title, lambda quick, key=key: drop(*large(key, quick))) for key, title in LARGE.items()),
    ]
}


def live(number: int, quick: bool) -> list[Any]:
    """A long history: many messages of all sizes, kept, then dropped in another order than they came.

    :param number: of the process, so that each has another history
    :returns: what survives of it
    """
    random = Random(number)
    messages, most = (30, 10) if quick else LIFE
    bodies = [*drawn(quick), *(large(key, quick) for key in LARGE)]
    kept: list[Any] = []
    for cls, data, version in random.choices(bodies, k=messages):
        kept.append(kw.decode(cls, data, version))
        if len(kept) > most:
            kept[random.randrange(most)] = kept.pop()
    random.shuffle(kept)
    survivors = kept[::SURVIVORS]
    while kept:
        kept.pop()
    return survivors


def heap(number: int, of: int) -> list[bytes]:
    """Other objects of all sizes, without holes: a share of an arena more in each process, and of 2 MB beyond arenas.

    Where a message lies decides what it costs. In arenas of its own: they are mapped when it is made, and unmapped when
    it is dropped (JoinGroupResponse, 5,000 members: 252 page faults, or none). At the top of the C library's heap: that
    is given back when it is dropped (FetchResponse of 1 MB: 200, or none).

    :param number: of the process
    :param of: how many processes there are
    """
    share = round((ARENAS + number / of) * ARENA / 272)  # an object of them takes 272 bytes on average
    return [*(bytes(16 * (i % 30)) for i in range(share)), *(bytes(5000) for _ in range(400 * number // of))]
