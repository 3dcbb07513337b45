"""What foreign writers have put on a coordination topic, or could: none of it may count, and none may end a reader."""

from __future__ import annotations

from typing import Final

GARBAGE: Final[dict[str, tuple[bytes | None, str]]] = {
    "null": (None, "empty"),
    "empty": (b"", "empty"),
    "a word": (b"banana", "text"),
    "1 MB": (b"x" * 1_000_000, "length"),
    "1 MB of separators": (b"Heartbeat" + b"/" * 1_000_000, "length"),
    "64 kB of separators": (b"Heartbeat" + b"/" * 60_000, "text"),
    "60,000 digits": (b"Heartbeat/1/" + b"9" * 60_000 + b"/ii/cl/gr/t/1/2", "range"),
    "no type": (b"/1/2/ii/cl/gr/t/1/2", "text"),
    "another case": (b"heartbeat/1/2/ii/cl/gr/t/1/2", "text"),
    "an unknown type": (b"Claim/1/2/ii/cl/gr/t/1/2", "text"),
    "too few fields": (b"Heartbeat/1/2/ii/cl/gr/t/1", "text"),
    "too many fields": (b"ClaimingPartition/1/2/ii/cl/gr/t/1/2", "text"),
    "a separator in an id": (b"Heartbeat/1/2/ii/c/l/gr/t/1/2", "text"),
    "the form before versions": (b"Heartbeat/2/cl/gr/t/1/2", "text"),
    "a line end": (b"Heartbeat/1/2/ii/cl/gr/t/1/2\n", "text"),
    "a blank": (b"Heartbeat/1/ 2/ii/cl/gr/t/1/2", "text"),
    "an underscore": (b"Heartbeat/1/1_0/ii/cl/gr/t/1/2", "text"),
    "hexadecimal": (b"Heartbeat/1/0x2/ii/cl/gr/t/1/2", "text"),
    "a fraction": (b"Heartbeat/1/2.5/ii/cl/gr/t/1/2", "text"),
    "no number": (b"Heartbeat/1//ii/cl/gr/t/1/2", "text"),
    "digits of another script": ("Heartbeat/1/\u0662/ii/cl/gr/t/1/2".encode(), "text"),
    "beyond 64 bits": (b"Heartbeat/1/9223372036854775808/ii/cl/gr/t/1/2", "range"),
    "a partition below 0": (b"Heartbeat/1/2/ii/cl/gr/t/-1/2", "range"),
    "a huge partition": (b"Heartbeat/1/2/ii/cl/gr/t/2147483647/2", "range"),
    "an admin with a topic": (b"ReleaseGroup/0/2/ii/cl/gr/t/0/12", "range"),
    "not UTF-8": (b"Heartbeat/1/2/ii/cl/\xff\xfe/t/1/2", "utf8"),
    "a lone surrogate": (b"Heartbeat/1/2/ii/cl/\xed\xa0\x80/t/1/2", "utf8"),
}
"""Values with the kind of `world_state.Unreadable`."""
