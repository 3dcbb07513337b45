"""However a stream is cut into chunks, the same frames come out of it, and the same error at the same byte."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kcoord_wire.codec.framing import Framer, frame
from kcoord_wire.errors import DecodeError

LIMIT = 64


def check(data: bytes) -> None:
    """`data`: a byte that sets how the stream is cut, then the stream."""
    seed, stream = (data[0] if data else 0), data[1:]
    whole = outcome([stream])
    for chunks in (cut(stream, seed), (stream[i : i + 1] for i in range(len(stream))), [b"", stream, b""]):
        assert outcome(chunks) == whole
    bodies, error, buffered = whole
    assert all(len(body) <= LIMIT for body in bodies)
    rebuilt = b"".join(map(frame, bodies))
    assert stream.startswith(rebuilt)
    if error is None:
        assert buffered == len(stream) - len(rebuilt)
        assert buffered < LIMIT + 4
    else:
        assert error == ("frame", len(rebuilt), "Frame.size")


def cut(stream: bytes, seed: int) -> Iterator[bytes]:
    position = 0
    while position < len(stream):
        seed = (seed * 75 + 74) % 65537
        size = seed % 11
        yield stream[position : position + size]
        position += size


def outcome(chunks: Iterable[bytes]) -> tuple[list[bytes], tuple[str, int, str] | None, int]:
    """The bodies; the error's kind, offset and path; the bytes left over."""
    framer = Framer(LIMIT)
    bodies: list[bytes] = []
    error = None
    for chunk in chunks:
        try:
            bodies.extend(framer.feed(chunk))
        except DecodeError as caught:
            place = caught.kind, caught.offset, caught.path
            assert error in (None, place), "a framer that has died says the same again"
            error = place
    return bodies, error, framer.buffered
