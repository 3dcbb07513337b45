"""Items that fall together in time: the busiest window, and runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

SECOND_NS: Final = 1_000_000_000
MINUTE_NS: Final = 60 * SECOND_NS

T = TypeVar("T")


def busiest(items: Iterable[T], time_ns: Callable[[T], int], window_ns: int) -> list[T]:
    """Return the most items that fall into one window; of equally many the first.

    :param items: in order of time
    """
    inside: deque[T] = deque()
    best: list[T] = []
    for item in items:
        inside.append(item)
        while time_ns(item) - time_ns(inside[0]) > window_ns:
            inside.popleft()
        if len(inside) > len(best):
            best = list(inside)
    return best


def runs(items: Iterable[T], belongs: Callable[[T], bool]) -> Iterator[list[T]]:
    """Yield the longest stretches of neighbours that all belong."""
    run: list[T] = []
    for item in items:
        if belongs(item):
            run.append(item)
        elif run:
            yield run
            run = []
    if run:
        yield run
