"""Words for people: names, counts and lists in sentences.

Law: a list is as long as its bound, however many names there are.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import Final

_NS_PER_S: Final = 1_000_000_000
_LONG_QUIET_NS: Final = 30 * _NS_PER_S  # clients ask something every half minute at least, unless they are idle
_UNANSWERED: Final = re.compile(r"no answer to (\d{1,9}) SYNs")
_RESENT: Final = re.compile(r"[\d,]+ bytes sent again ([\d,]{1,12}) times[^,]*(?:, after ([\d,]{1,12}) s)?")


LIKE_TLS: Final = ", which looks like TLS"
"""The end of an error about bytes that were no frame."""

TLS_FAILED: Final = ", and its handshake failed"
"""What follows that of a connection that was left out; ``: `` and an alert may follow (`capture.tls`)."""


_LEAST_ALIKE: Final = 0.6  # of difflib's ratio: below, what is suggested has as much that differs as that is the same


def near_names(name: str, known: Collection[str], most: int = 1) -> list[str]:
    """Return what may have been meant by an unknown name, upper and lower case aside, the most alike first."""
    from difflib import get_close_matches  # for errors alone, and slow to import

    lower = {each.lower(): each for each in known}
    return [lower[each] for each in get_close_matches(name.lower(), lower, most, _LEAST_ALIKE)]


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


# ---- what a capture says of lost packets, and reads back from a recording


def unanswered_text(syns: int, ns: int) -> str:
    """Return that so many SYNs in a time had no answer."""
    return f"no answer to {syns} SYNs in {ns / _NS_PER_S:.1f} s"


def syns_in(text: str) -> int | None:
    """Return how many SYNs had no answer."""
    said = _UNANSWERED.match(text)
    return said and int(said[1])


def resent_text(size: int, times: int, quiet_ns: int) -> str:
    """Return that bytes were sent again, and how long it had been quiet before, if that was long."""
    idle = f", after {quiet_ns // _NS_PER_S:,} s without a packet" if quiet_ns >= _LONG_QUIET_NS else ""
    return f"{size:,} bytes sent again {times:,} times without an acknowledgement{idle}"


def resent_in(text: str) -> tuple[int, int] | None:
    """Return how often bytes were sent again, and for how many seconds, if many, it had been quiet before."""
    said = _RESENT.match(text)
    return said and (int(said[1].replace(",", "")), int((said[2] or "0").replace(",", "")))
