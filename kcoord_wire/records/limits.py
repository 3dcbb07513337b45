"""What a reader may spend, and what it insists on. One value, handed down from the entry points to every decoder."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["DEFAULT_MAX_DECOMPRESSED", "DEFAULT_MAX_DEPTH", "ReadLimits"]

DEFAULT_MAX_DECOMPRESSED = 64 * 1024 * 1024
DEFAULT_MAX_DEPTH = 1


class ReadLimits(NamedTuple):
    """The options of `read_records`.

    :ivar max_decompressed: bytes that one batch, or one outer message with all that is nested in it, may decompress to
    :ivar max_depth: how many wrappers may lie around a message of magic 0 or 1; Kafka writes one
    :ivar check_crc: compare checksums before anything else is read
    :ivar strict: refuse what Kafka's writers never write, even where Kafka's readers accept it
    """

    max_decompressed: int = DEFAULT_MAX_DECOMPRESSED
    max_depth: int = DEFAULT_MAX_DEPTH
    check_crc: bool = True
    strict: bool = True
