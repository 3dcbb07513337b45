"""Words for people: names, counts and lists in sentences.

Law: a list is as long as its bound, however many names there are.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

_NS_PER_S: Final = 1_000_000_000


LIKE_TLS: Final = ", which looks like TLS"
"""The end of an error about bytes that were no frame."""

TLS_FAILED: Final = ", and its handshake failed"
"""What follows that of a connection that was left out; ``: `` and an alert may follow (`capture.tls`)."""


def counted(number: int, one: str, many: str | None = None) -> str:
    """``1 rebalance``, ``1,024 rebalances``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def noted(note: str, count: int) -> str:
    """Return a note with how often it applies: ``{}`` stands for the number, ``{s}`` for the s of a plural."""
    return note.replace("{}", f"{count:,}").replace("{s}", "" if count == 1 else "s")


def listed(names: Iterable[str], most: int = 8) -> str:
    """Return names in order, the first ones where there are more than `most`: ``a, b and 3 more``."""
    return first_of(sorted(names), most)


def first_of(names: Iterable[object], most: int = 3) -> str:
    """Return names in the order given, the first ones where there are more than `most`."""
    every = list(names)
    more = len(every) - most
    return ", ".join(map(str, every[:most])) + (f" and {more} more" if more > 0 else "")


def only(names: Iterable[str]) -> str | None:
    """Return the one name there is; None for several, and for none."""
    distinct = set(names)
    return distinct.pop() if len(distinct) == 1 else None


def clock(time_ns: int) -> str:
    """Return the time of day in UTC, to the second."""
    return datetime.fromtimestamp(time_ns // _NS_PER_S, UTC).strftime("%H:%M:%S")
