"""Encoding into a bytearray that the caller keeps: which part of it is written, and when.

Laws:

* The buffer changes once, after the message was encoded without an error: what is refused leaves it as it was, and what
  a value's own code does to it meanwhile happens before.
* Bytes before the offset stay. The buffer grows where it must and never shrinks: bytes after the message stay, too.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import index


def encode_into(buffer: bytearray, offset: int, encode: Callable[[], bytes]) -> int:
    """Write what `encode` returns into `buffer` from `offset` on; return the offset of the byte after it.

    :raises TypeError: `buffer` is no bytearray
    :raises ValueError: `offset` is negative, or above the buffer's length
    :raises BufferError: the buffer has to grow, and a memoryview of it is held
    """
    offset = index(offset)
    check_place(buffer, offset)
    data = encode()
    check_place(buffer, offset)
    end = offset + len(data)
    # Not the methods that a subclass may override.
    bytearray.__setitem__(buffer, slice(offset, end), data)
    return end


def check_place(buffer: bytearray, offset: int) -> None:
    """Refuse what a message cannot be written into (TypeError), or where (ValueError)."""
    if not isinstance(buffer, bytearray):
        raise TypeError(f"a message is written into a bytearray, not into a {type(buffer).__name__}")
    if not 0 <= offset <= bytearray.__len__(buffer):
        raise ValueError(f"offset {offset} is outside of a buffer of {bytearray.__len__(buffer)} bytes")
