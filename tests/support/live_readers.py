"""Sources that come in pieces, each read by another process: for the readers that say what is final."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from kcoord_wire.forensics.final_rebalances import Explained
from kcoord_wire.forensics.model import GroupHistory

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


class Reader(Protocol):
    """`LiveLog`, `LiveFrames`."""

    @property
    def state(self) -> bytes: ...

    def read(self, rows: Any, /) -> None: ...

    def events(self) -> list[Explained]: ...


class Kind(Protocol):
    """The class of a reader."""

    def __call__(self, window_ns: int, /) -> Reader: ...

    def restored(self, state: bytes, window_ns: int, /) -> Reader: ...


def follow(
    kind: Kind, parts: Iterable[Rows], window_ns: int, is_killed: Callable[[], bool] = lambda: False
) -> list[Explained]:
    """Read the parts, each in another process.

    :param is_killed: asked when a part was read: whether the process ends before its rows and its state are kept
    """
    found: list[Explained] = []
    state: bytes | None = None
    for part in parts:
        while True:
            reader = kind(window_ns) if state is None else kind.restored(state, window_ns)
            reader.read(part)
            if not is_killed():
                break
        found += reader.events()
        state = reader.state
    return found


def pieces(rows: Rows, chosen: random.Random, most: int) -> Iterator[Rows]:
    """Cut rows into pieces of 1 to `most`."""
    start = 0
    while start < rows.num_rows:
        count = chosen.randint(1, most)
        yield rows.slice(start, count)
        start += count


def of_histories(histories: Iterable[GroupHistory]) -> list[Explained]:
    """What the whole source shows, in the order of `in_order`."""
    return in_order(
        [
            Explained(row, [each for each in history.findings if row.number in each.rebalances])
            for history in histories
            for row in history.rebalances
        ]
    )


def plain_rows(histories: Iterable[GroupHistory]) -> list[dict[str, Any]]:
    """The same as rows of `explain_rebalances`."""
    return [
        {**asdict(each.rebalance), "findings": [asdict(finding) for finding in each.findings]}
        for each in of_histories(histories)
    ]


def in_order(found: Iterable[Explained]) -> list[Explained]:
    return sorted(found, key=lambda each: (each.rebalance.group_id, each.rebalance.number))
