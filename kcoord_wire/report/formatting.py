"""Format durations, times, names and partitions for people, the same in the page and in the terminal.

Laws:

* Strings of peers pass through `shown` or `name_of`: no control character, no override of the writing direction, and a
  bounded length.
* A duration has two or three significant digits; a time is UTC.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from kcoord_wire.codec.fields import number_runs, printable
from kcoord_wire.forensics.model import Evidence

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def shown(text: str | None, limit: int = 120) -> str:
    """A string of a peer: printable, at most `limit` characters; empty for None."""
    if not text:
        return ""
    safe = printable(text[: limit + 1])
    return safe if len(safe) <= limit else f"{safe[: limit - 1]}…"


def name_of(client_id: str | None, member_id: str | None = None, instance_id: str | None = None) -> str:
    """The name of a member for people: its instance id, else its client id, else its member id."""
    return shown(instance_id or client_id or member_id or "a member without a name", 60)


def name_if_known(client_id: str | None, member_id: str | None = None, instance_id: str | None = None) -> str:
    """The name of a member as in `name_of`; empty if nothing of it is known."""
    return name_of(client_id, member_id, instance_id) if client_id or member_id or instance_id else ""


def place_text(fact: Evidence) -> str:
    """Where a fact is: ``packet 1234`` of a capture, ``byte 1234`` of a recording; else ``#17``, its seq."""
    if fact.position is None:
        return f"#{fact.seq}"
    return f"{'byte' if '.kcrec' in fact.source else 'packet'} {fact.position}"


def duration(ms: float) -> str:
    """``340 ms``, ``8.1 s``, ``42 s``, ``12 min 5 s``, ``3 h 4 min``, ``2 d 3 h``; a non-finite one is ``?``."""
    if not math.isfinite(ms):
        return "?"
    if ms < 0:
        return f"-{duration(-ms)}"
    if ms < 999.5:
        return f"{ms:.2g} ms" if ms < 10 else f"{ms:.0f} ms"
    if ms < 119_500:
        return f"{ms / 1000:.1f} s" if ms < 29_950 else f"{ms / 1000:.0f} s"
    seconds = round(ms / 1000)
    for big, small, size, unit in ((86_400, 3600, "d", "h"), (3600, 60, "h", "min"), (60, 1, "min", "s")):
        if seconds >= big:
            rest = seconds % big // small
            return f"{seconds // big:,} {size}" + (f" {rest} {unit}" if rest else "")
    raise AssertionError("two minutes and more end above")


def partition_runs(places: Iterable[tuple[str, int]]) -> str:
    """``orders 0-3, 7; payments 1``."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(places):
        topics.setdefault(topic, []).append(partition)
    parts = []
    for topic, numbers in topics.items():
        parts.append(f"{shown(topic, 60)} {number_runs(numbers)}")
    return shown("; ".join(parts), 300)


def ago(ns: int, since_ns: int) -> str:
    """A time relative to the first moment of its group: ``+0:42.310``, ``+3:04:05.000``."""
    ms = (ns - since_ns) // 1_000_000
    minutes, rest = divmod(abs(ms), 60_000)
    hours, minutes = divmod(minutes, 60)
    clock = f"{hours}:{minutes:02}" if hours else f"{minutes}"
    return f"{'-' if ms < 0 else '+'}{clock}:{rest // 1000:02}.{rest % 1000:03}"


def iso(ns: int) -> str | None:
    """The time in ISO 8601 with nanoseconds; None after the year 9999."""
    try:
        moment = EPOCH + timedelta(seconds=ns // 1_000_000_000)
    except OverflowError:
        return None
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ns % 1_000_000_000:09}Z".rjust(30, "0")


def utc(ns: int, digits: int = 0) -> str:
    """The time for people: ``2026-11-21 15:02:05 UTC``.

    :param digits: of the second, behind the point
    """
    text = iso(ns)
    if text is None:
        return "beyond the year 9999"
    return f"{text[:10]} {text[11 : 20 + digits if digits else 19]} UTC"


def period(first_ns: int, last_ns: int) -> str:
    """A span of time for people: ``2026-11-21 15:02:05 to 15:05:25 UTC``."""
    first, last = utc(first_ns), utc(last_ns)
    if first[:10] == last[:10]:
        last = last[11:]
    return f"{first.removesuffix(' UTC')} to {last}"


def file_name(source: str) -> str:
    """The last two parts of a path: ``__consumer_offsets-12/00000000000000000000.log``."""
    return shown("/".join(source.replace("\\", "/").split("/")[-2:]), 80)
