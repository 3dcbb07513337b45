"""Produce requests beyond the limit of a frame: read on their way in, and kept without the batches that do not fit.

A client whose connection is closed for a batch that is too large sends it again for ever; one that is answered gives it
up, or splits it.

Laws:

* Of such a frame batches up to a limit are held, and 1 MiB besides, whatever its size; other bytes are counted and
  dropped as they come. A frame beyond `PeerLimits.max_skipped_frame_size`, or of another api, is not read.
* What is kept is a Produce with all partitions of the request. A batch that fits stays as it is, of another only the
  header: its partition is answered MESSAGE_TOO_LARGE (10) if it can never fit, else REQUEST_TIMED_OUT (7), the error
  with which all clients send it again, then without those that were taken.
* How the bytes are cut into chunks makes no difference.

Source: kafka `ProduceRequest.json`; kafka/clients `NetworkReceive.java` (socket.request.max.bytes).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final, NoReturn, TypeVar

from kcoord_wire.codec.framing import SIZE_BYTES, Framer
from kcoord_wire.coordinator.api_codec import REQUEST_HEAD
from kcoord_wire.coordinator.core.apis import TOPIC_UUIDS_FROM
from kcoord_wire.coordinator.partitions.batch_header import BATCH_HEADER_SIZE, left_out
from kcoord_wire.errors import DecodeError
from kcoord_wire.protocol.api_keys import ApiKey

_TRANSACTIONAL_FROM: Final = 3  # versions before have no transactional id, and are not served
_FLEXIBLE_FROM: Final = 9
_ACKS_AND_TIMEOUT: Final = 6  # bytes
_UUID: Final = 16
_LONGEST_VARINT: Final = 5  # bytes of an int32
_MORE: Final = 0x80  # of a varint's byte: another one follows
_MOST_BESIDES: Final = 1 << 20  # bytes of names, numbers and headers, each of which costs a hundred times as much

T = TypeVar("T")
_Reading = Generator[None, None, T]  # yields when more bytes are needed


class _OversizedError(Exception):
    """The next frame is beyond the limit of a framer, which still holds it."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class RequestFramer(Framer):
    """Cuts requests out of a connection; a Produce beyond the limit becomes one of what is kept of it.

    :param limit: bytes of a frame
    :param skipped: bytes of a frame of which only a part is kept; none if not greater than the limit
    :param batches: bytes of batches that are kept of such a frame
    """

    __slots__ = ("_batches", "_limit", "_oversized", "_skipped")

    def __init__(self, limit: int, skipped: int = 0, batches: int = 0) -> None:
        super().__init__(limit)
        self._limit = limit
        self._skipped = skipped
        self._batches = batches
        self._oversized: OversizedProduce | None = None

    @property
    def buffered(self) -> int:
        own = super().buffered
        return own if self._oversized is None else own + SIZE_BYTES + self._oversized.held

    def feed(self, chunk: bytes | bytearray | memoryview) -> Iterator[bytes]:
        """See `Framer.feed`.

        :raises DecodeError: also by the call, in a frame beyond the limit that is not a Produce which can be kept
        """
        if self._oversized is not None:
            rest = self._oversized.feed(bytes(chunk))
            self._stream_offset += len(chunk) - len(rest)
            chunk = rest
        return self._requests(super().feed(chunk))

    def _requests(self, bodies: Iterator[bytes]) -> Iterator[bytes]:
        while self._oversized is None or self._oversized.is_whole:
            if self._oversized is not None:
                body, self._oversized = bytes(self._oversized.body), None
                yield body
            try:
                yield from bodies
                return
            except _OversizedError as error:
                begun = self.rest[SIZE_BYTES:]
                self._oversized = OversizedProduce(error.size, self._batches)
                self._start += SIZE_BYTES + len(begun) - len(self._oversized.feed(begun))
                bodies = super().feed(b"")

    def _die(self, size: int) -> None:
        if self._limit < size <= self._skipped:
            raise _OversizedError(size)
        super()._die(size)


class OversizedProduce:
    """A Produce beyond the limit, while it is read.

    :param size: bytes of the frame
    :param limit: bytes of batches that may be kept
    :ivar body: what is kept
    """

    __slots__ = ("_batches", "_buffer", "_left", "_limit", "_reading", "_size", "body")

    def __init__(self, size: int, limit: int) -> None:
        self._size = self._left = size
        self._limit = limit
        self._batches = 0  # bytes of those that are kept
        self._buffer = bytearray()
        self.body = bytearray()
        self._reading = self._read()

    @property
    def held(self) -> int:
        """Bytes that are held."""
        return len(self._buffer) + len(self.body)

    @property
    def is_whole(self) -> bool:
        """Whether the frame has ended: `body` is a request."""
        return not self._left

    def feed(self, chunk: bytes) -> bytes:
        """Take bytes of the frame, and return those after its end.

        :raises DecodeError: the frame is not a Produce that can be kept
        """
        own, rest = chunk[: self._left], chunk[self._left :]
        self._left -= len(own)
        self._buffer += own
        next(self._reading, None)
        return rest

    # ---- reading

    def _read(self) -> _Reading[None]:
        head = yield from self._copy(REQUEST_HEAD.size)
        api_key, version, _, length = REQUEST_HEAD.unpack(head)
        if api_key != ApiKey.PRODUCE or version < _TRANSACTIONAL_FROM:
            self._refuse()
        is_flexible = version >= _FLEXIBLE_FROM
        yield from self._copy(max(length, 0))
        yield from self._tags(is_flexible)
        yield from self._string(is_flexible)
        yield from self._copy(_ACKS_AND_TIMEOUT)
        topics = yield from self._count(is_flexible)
        for _ in range(topics):
            if version >= TOPIC_UUIDS_FROM:
                yield from self._copy(_UUID)
            else:
                yield from self._string(is_flexible)
            partitions = yield from self._count(is_flexible)
            for _ in range(partitions):
                yield from self._partition(is_flexible)
            yield from self._tags(is_flexible)
        yield from self._tags(is_flexible)
        yield from self._drop(self._left + len(self._buffer))

    def _partition(self, is_flexible: bool) -> _Reading[None]:
        yield from self._copy(4)  # its number
        size = yield from self._length(4, is_flexible)
        if size <= self._limit - self._batches:
            self._put_length(size, is_flexible)
            self._batches += max(size, 0)
            self.body += yield from self._take(max(size, 0))
        else:
            header = yield from self._take(min(size, BATCH_HEADER_SIZE))
            header = left_out(header, fits_alone=size <= self._limit)
            self._put_length(len(header), is_flexible)
            self._put(header)
            yield from self._drop(size - len(header))
        yield from self._tags(is_flexible)

    def _take(self, count: int) -> _Reading[bytes]:
        while len(self._buffer) < count:
            if not self._left:
                raise DecodeError("truncated", self._size, "ProduceRequest", f"{count} bytes are needed")
            yield
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    def _drop(self, count: int) -> _Reading[None]:
        while count > len(self._buffer) and self._left:
            count -= len(self._buffer)
            self._buffer.clear()
            yield
        yield from self._take(count)

    def _copy(self, count: int) -> _Reading[bytes]:
        self._check(count)
        data = yield from self._take(count)
        self.body += data
        return data

    def _check(self, count: int) -> None:
        if len(self.body) - self._batches + count > _MOST_BESIDES:
            self._refuse()

    def _put(self, data: bytes) -> None:
        self._check(len(data))
        self.body += data

    def _varint(self) -> _Reading[int]:
        value = 0
        for place in range(_LONGEST_VARINT):
            (byte,) = yield from self._take(1)
            value |= (byte & 0x7F) << 7 * place
            if byte < _MORE:
                return value
        raise DecodeError("varint", self._size - self._left, "ProduceRequest", "more than 5 bytes")

    def _length(self, width: int, is_flexible: bool) -> _Reading[int]:
        """Return a length that is not copied: -1 for null."""
        if is_flexible:
            return (yield from self._varint()) - 1
        return int.from_bytes((yield from self._take(width)), "big", signed=True)

    def _put_length(self, length: int, is_flexible: bool, width: int = 4) -> None:
        self._put(_varint_bytes(length + 1) if is_flexible else length.to_bytes(width, "big", signed=True))

    def _string(self, is_flexible: bool) -> _Reading[None]:
        length = yield from self._length(2, is_flexible)
        self._put_length(length, is_flexible, 2)
        yield from self._copy(max(length, 0))

    def _count(self, is_flexible: bool) -> _Reading[int]:
        count = yield from self._length(4, is_flexible)
        self._put_length(count, is_flexible)
        return count

    def _tags(self, is_flexible: bool) -> _Reading[None]:
        if not is_flexible:
            return
        count = yield from self._varint()
        self._put(_varint_bytes(count))
        for _ in range(count):
            tag = yield from self._varint()
            size = yield from self._varint()
            self._put(_varint_bytes(tag) + _varint_bytes(size))
            yield from self._copy(size)

    def _refuse(self) -> NoReturn:
        raise DecodeError("frame", 0, "Frame.size", f"frame size {self._size} is above the limit")


def _varint_bytes(value: int) -> bytes:
    data = bytearray()
    while value >= _MORE:
        data.append(value & 0x7F | _MORE)
        value >>= 7
    return bytes((*data, value))
