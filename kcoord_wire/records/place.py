"""Where in a batch an error happened: inner readers know the field, outer ones the batch.

Laws:

* An inner reader counts offsets from the start of the bytes it was given; each outer reader adds what came before them.
* Bytes that exist only after decompression have no offset in the buffer handed in: theirs is that of the batch.
"""

from __future__ import annotations

from kcoord_wire.errors import DecodeError, EncodeError

__all__ = ["below", "encoding_below", "moved", "pinned"]


def below(parent: str, error: DecodeError) -> DecodeError:
    """`error`, its path continued upwards by `parent`."""
    return DecodeError(error.kind, error.offset, f"{parent}.{error.path}", error.detail)


def moved(error: DecodeError, start: int) -> DecodeError:
    """`error`, counted from a buffer in which its own begins at `start`."""
    return DecodeError(error.kind, start + error.offset, error.path, error.detail)


def pinned(error: DecodeError, offset: int) -> DecodeError:
    """`error`, which happened in decompressed bytes, at the `offset` of their batch."""
    return DecodeError(error.kind, offset, error.path, error.detail)


def encoding_below(parent: str, error: EncodeError) -> EncodeError:
    """`error`, its path continued upwards by `parent`."""
    return EncodeError(error.kind, f"{parent}.{error.path}", error.detail)
