"""``bytes="view"``: which input a message may keep parts of, for both codecs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kcoord_wire.codec.backend import Buffer

VIEWED: Final = 1024  # bytes from which a field may be a memoryview: one costs about as much as a copy of so many


def wants_parts(option: object) -> bool:
    """Whether ``bytes=`` asks for memoryviews.

    :raises ValueError: it is neither ``"copy"`` nor ``"view"``
    """
    if option not in ("copy", "view"):
        raise ValueError(f'bytes is "copy" or "view", not {option!r}')
    return option == "view"


def parts_of(data: Buffer) -> memoryview:
    """The memoryview whose parts a message may keep: of `data` itself where that is, or shows, `bytes`; else of a copy.

    What is not `bytes` may change after the read, and a part of a bytearray would keep that from changing its size.

    :raises TypeError: `data` is not a bytes-like object, or not contiguous
    """
    whole = memoryview(data).cast("B")
    return whole if type(whole.obj) is bytes else memoryview(bytes(whole))
