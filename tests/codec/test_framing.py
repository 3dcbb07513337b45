"""Framing: chunking makes no difference, a bad size is refused at once, memory follows what arrives."""

from __future__ import annotations

import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoord_wire.codec.framing import DEFAULT_MAX_FRAME_SIZE, Framer, frame
from kcoord_wire.errors import DecodeError

BODIES = [b"", b"a", b"", b"\x00\x00\x00\x05", bytes(range(256)) * 5, b"last"]
STREAM = b"".join(map(frame, BODIES))


def cut(stream: bytes, sizes: list[int]) -> list[bytes]:
    """The stream in chunks of these sizes, over and over."""
    chunks = []
    position = index = 0
    while position < len(stream):
        step = sizes[index % len(sizes)]
        chunks.append(stream[position : position + step])
        position += step
        index += 1
    return chunks


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 100, len(STREAM)])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_chunk_size_makes_no_difference(size: int, kind: type) -> None:
    framer = Framer()
    assert [body for chunk in cut(STREAM, [size]) for body in framer.feed(kind(chunk))] == BODIES
    assert framer.buffered == 0
    framer.close()


@given(st.lists(st.binary(max_size=40), max_size=20), st.lists(st.integers(1, 60), min_size=1, max_size=10))
def test_any_chunking_gives_the_same_bodies(bodies: list[bytes], sizes: list[int]) -> None:
    framer = Framer(max_frame_size=40)
    found = []
    for chunk in cut(b"".join(map(frame, bodies)), sizes):
        found += framer.feed(chunk)
        assert framer.buffered < 40 + 4
    assert found == bodies
    framer.close()


def test_a_chunk_is_taken_in_even_if_its_iterator_is_dropped() -> None:
    framer = Framer()
    framer.feed(frame(b"one") + frame(b"two"))
    bodies = framer.feed(frame(b"three"))
    assert next(bodies) == b"one"
    assert list(framer.feed(b"")) == [b"two", b"three"]
    assert list(bodies) == []


def test_a_caller_may_reuse_its_buffer() -> None:
    framer = Framer()
    chunk = bytearray(frame(b"mine"))
    bodies = framer.feed(chunk)
    chunk[:] = bytes(len(chunk))
    assert list(bodies) == [b"mine"]


def test_the_limit_itself_is_accepted() -> None:
    assert list(Framer(max_frame_size=3).feed(frame(b"abc"))) == [b"abc"]


@pytest.mark.parametrize("size", [4, 0x7FFFFFFF, -1, -0x80000000])
@pytest.mark.parametrize("before", [[], [b"ab", b""]])
def test_a_bad_size_is_refused_after_the_bodies_before_it(size: int, before: list[bytes]) -> None:
    framer = Framer(max_frame_size=3)
    stream = b"".join(map(frame, before))
    bodies = framer.feed(stream + size.to_bytes(4, "big", signed=True) + b"never read")
    assert [next(bodies) for _ in before] == before
    with pytest.raises(DecodeError) as caught:
        next(bodies)
    assert (caught.value.kind, caught.value.offset, caught.value.path) == ("frame", len(stream), "Frame.size")
    assert framer.buffered == 0
    for call in (lambda: framer.feed(frame(b"x")), framer.close):
        with pytest.raises(DecodeError, match="no frames can follow"):
            call()


def test_the_offset_counts_from_the_start_of_the_stream() -> None:
    framer = Framer(max_frame_size=10)
    for byte in frame(b"first") + frame(b"second"):
        list(framer.feed(bytes([byte])))
    with pytest.raises(DecodeError) as caught:
        list(framer.feed(b"\xff\xff\xff\xff"))
    assert caught.value.offset == 9 + 10


@pytest.mark.parametrize("length", range(1, 9))
def test_close_in_the_middle_of_a_frame(length: int) -> None:
    framer = Framer()
    assert list(framer.feed(frame(b"whole") + frame(b"brok!")[:length])) == [b"whole"]
    assert framer.buffered == length
    assert framer.missing == (None if length < 4 else 9 - length)
    assert framer.rest == frame(b"brok!")[:length]
    with pytest.raises(DecodeError) as caught:
        framer.close()
    assert (caught.value.kind, caught.value.offset) == ("truncated", 9)
    with pytest.raises(DecodeError, match="closed"):
        framer.feed(b"")


def test_a_claimed_size_is_not_allocated() -> None:
    framer = Framer()
    tracemalloc.start()
    try:
        assert list(framer.feed(DEFAULT_MAX_FRAME_SIZE.to_bytes(4, "big") + bytes(1000))) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20_000


@pytest.mark.parametrize("size", [1 << 22, 1 << 20, 1 << 12], ids=["one chunk", "three chunks", "many chunks"])
def test_a_body_that_was_taken_is_not_held(size: int) -> None:
    """A server keeps the iterator at the request in hand: what is not `buffered` would be outside its bounds."""
    framer = Framer()
    chunks = [memoryview(chunk) for chunk in cut(frame(bytes(1 << 21)) + frame(b"next"), [size])]
    tracemalloc.start()
    try:
        *_, bodies = map(framer.feed, chunks)
        del chunks
        assert len(next(bodies)) == 1 << 21
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert framer.buffered == 8
    assert held < 1 << 17
    assert list(bodies) == [b"next"]


def seconds_for(chunks: list[bytes], frames: int) -> float:
    framer = Framer()
    started = time.process_time()
    assert sum(1 for chunk in chunks for _ in framer.feed(chunk)) == frames
    return time.process_time() - started


@pytest.mark.parametrize(
    ("chunks", "frames"),
    [
        pytest.param([frame(b"12345678") * 100_000], 100_000, id="small frames in one chunk"),
        pytest.param(cut(frame(bytes(200_000)), [1]), 1, id="a large frame byte by byte"),
    ],
)
def test_time_is_linear(chunks: list[bytes], frames: int) -> None:
    """Quadratic moves of these megabytes would take minutes; the bound leaves room for a slow machine."""
    assert seconds_for(chunks, frames) < 10


@pytest.mark.parametrize("limit", [-1, 0x80000000])
def test_a_limit_that_no_size_can_have_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match="max_frame_size"):
        Framer(max_frame_size=limit)


@pytest.mark.parametrize("chunk", [5, "text", None, [1, 2]])
def test_a_chunk_that_is_not_bytes_is_refused(chunk: object) -> None:
    framer = Framer()
    for _ in range(2):
        with pytest.raises(TypeError):
            framer.feed(chunk)  # type: ignore[arg-type]  # an int would be that many zeros to bytes()
    assert framer.rest == b""
