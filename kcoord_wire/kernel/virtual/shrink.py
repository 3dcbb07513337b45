"""Delta debugging: reduce a list to a part of it that still fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

ItemT = TypeVar("ItemT")


def shrink(items: Sequence[ItemT], fails: Callable[[list[ItemT]], bool], tries: int) -> list[ItemT]:
    """Return a part of `items`, in order, that still fails; leaving out any one item of it would not, if tries suffice.

    Source: Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input" (ddmin), complements only: parts
    of half the length are left out first, single items last.

    :param fails: runs the candidate; called at most `tries` times
    """
    kept = list(items)
    size = max(len(kept) // 2, 1)
    while tries > 0:
        start = 0
        shrunk = False
        while start < len(kept) and tries > 0:
            candidate = kept[:start] + kept[start + size :]
            tries -= 1
            if fails(candidate):
                kept, shrunk = candidate, True
            else:
                start += size
        if size == 1 and not shrunk:
            break
        size = max(size // 2, 1)
    return kept
