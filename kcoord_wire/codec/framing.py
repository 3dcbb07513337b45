"""Frames of a Kafka connection: an int32 size, then that many bytes.

Laws:

* No I/O: `Framer.feed` takes bytes and returns frame bodies. How the bytes are cut into chunks makes no difference to
  the bodies.
* A size is checked (not negative, not above the limit) before any byte of its body is awaited, and nothing is allocated
  for it: memory grows with the bytes that have arrived. Once its iterator is used up, a framer holds less than a frame.
* Before that, of bodies that were taken, it holds less than 64 KiB, or less than what still waits to be taken.
* Time is linear in the bytes fed, whether they come one at a time or as a chunk of a hundred thousand frames.
* A stream with a bad size has no frames after it: the framer is dead and every further call raises.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from kcoord_wire.errors import DecodeError, EncodeError

SIZE_BYTES: Final = 4
DEFAULT_MAX_FRAME_SIZE: Final = 100 * 1024 * 1024
"""A Kafka broker's default limit (broker setting ``socket.request.max.bytes``)."""

_SIZE: Final = struct.Struct(">i")
_MOST_TAKEN: Final = 1 << 16  # bytes of bodies that were taken and whose place in the buffer is kept for now
_INT32_MAX: Final = 0x7FFFFFFF


class Framer:
    """Cuts one direction of a connection into frame bodies.

    :param max_frame_size: largest body accepted, in bytes, the size field not counted
    :raises ValueError: `max_frame_size` is not in 0..2**31-1
    """

    __slots__ = ("_buffer", "_failure", "_max_frame_size", "_start", "_stream_offset")

    def __init__(self, max_frame_size: int = DEFAULT_MAX_FRAME_SIZE) -> None:
        if not 0 <= max_frame_size <= _INT32_MAX:
            raise ValueError(f"max_frame_size must be in 0..{_INT32_MAX}, not {max_frame_size}")
        self._max_frame_size = max_frame_size
        self._buffer: bytes | bytearray = b""  # a chunk as it came, or what was put together of several
        self._start = 0  # first byte of the buffer that no frame was made of
        self._stream_offset = 0  # where in the stream the buffer begins
        self._failure: DecodeError | None = None

    @property
    def buffered(self) -> int:
        """Bytes held: fed, but not yet part of a body that was taken."""
        return len(self._buffer) - self._start

    @property
    def missing(self) -> int | None:
        """Bytes that the frame in progress still lacks; None where its size is not known yet.

        0 means that a whole frame waits to be taken.
        """
        if self.buffered < SIZE_BYTES:
            return None
        return max(0, SIZE_BYTES + self._size_at(self._start) - self.buffered)

    @property
    def rest(self) -> bytes:
        """A copy of the bytes held, the size of the frame in progress included."""
        return bytes(self._buffer[self._start :])

    def feed(self, chunk: bytes | bytearray | memoryview) -> Iterator[bytes]:
        """Add a chunk and return an iterator over the complete bodies.

        The call itself adds the chunk; a body leaves the framer when the iterator reaches it. Bodies that are not taken
        (the iterator was dropped) stay in the framer and come first in the next `feed`: none is lost or repeated.

        :raises DecodeError: kind ``frame``, by the call if the framer is dead, by the iterator at a size that is
            negative or above the limit, after all bodies before it. The offset counts from the first byte ever fed.
        :raises TypeError: `chunk` is not bytes
        """
        self._refuse_if_dead()
        self._drop_taken()
        if not self._buffer:
            self._buffer = chunk if type(chunk) is bytes else bytes(memoryview(chunk))
        else:
            if isinstance(self._buffer, bytes):
                self._buffer = bytearray(self._buffer)
            self._buffer += chunk
        return self._bodies()

    def close(self) -> None:
        """End the stream; no call may follow.

        :raises DecodeError: kind ``truncated`` if bytes are left that no body was made of; kind ``frame`` if the
            framer is dead already
        """
        self._refuse_if_dead()
        offset = self._stream_offset + self._start
        left = self.buffered
        missing = self.missing
        self._buffer = b""
        self._start = 0
        self._failure = DecodeError("frame", offset, "Frame", "the stream has been closed")
        if left:
            needs = "4 bytes of size" if missing is None else f"{missing} more"
            raise DecodeError("truncated", offset, "Frame", f"the stream ends {left} bytes into it, {needs} to come")

    def _bodies(self) -> Iterator[bytes]:
        while len(self._buffer) - self._start >= SIZE_BYTES:
            self._refuse_if_dead()
            size = self._size_at(self._start)
            if not 0 <= size <= self._max_frame_size:
                self._die(size)
            begin = self._start + SIZE_BYTES
            end = begin + size
            if end > len(self._buffer):
                break
            yield self._take(begin, end)
        self._drop_taken()

    def _take(self, begin: int, end: int) -> bytes:
        self._start = end
        buffer = self._buffer
        if isinstance(buffer, bytes):
            body = buffer[begin:end]
        else:
            with memoryview(buffer) as view, view[begin:end] as part:
                body = bytes(part)
        # A caller may keep the iterator for long at this body. No more bytes are moved than have been taken.
        if end >= _MOST_TAKEN and end >= len(buffer) - end:
            self._drop_taken()
        return body

    def _size_at(self, start: int) -> int:
        size: int = _SIZE.unpack_from(self._buffer, start)[0]
        return size

    def _drop_taken(self) -> None:
        # Not after every body: that would move the rest of a large chunk once per body.
        if self._start == len(self._buffer):
            self._buffer = b""
        elif isinstance(self._buffer, bytes):
            self._buffer = bytearray(memoryview(self._buffer)[self._start :])
        else:
            del self._buffer[: self._start]  # takes no time: a bytearray keeps where it starts
        self._stream_offset += self._start
        self._start = 0

    def _die(self, size: int) -> None:
        offset = self._stream_offset + self._start
        what = "negative" if size < 0 else f"above the limit of {self._max_frame_size}"
        failure = DecodeError("frame", offset, "Frame.size", f"frame size {size} is {what}")
        self._failure = DecodeError("frame", offset, "Frame.size", f"no frames can follow: {failure.detail}")
        self._buffer = b""
        self._start = 0
        raise failure

    def _refuse_if_dead(self) -> None:
        if self._failure is not None:
            again = self._failure
            raise DecodeError(again.kind, again.offset, again.path, again.detail)


def frame(body: bytes | bytearray | memoryview) -> bytes:
    """The body with its size in front, as it goes over the wire.

    :raises EncodeError: kind ``length`` if the size does not fit into an int32
    """
    size = memoryview(body).nbytes
    if size > _INT32_MAX:
        raise EncodeError("length", "Frame.size", f"{size} bytes do not fit into a frame")
    return b"".join((size.to_bytes(SIZE_BYTES, "big"), body))
