"""Bytes of a file by their place: what a window gives, what is read for it, and a file that becomes shorter."""

from __future__ import annotations

import io
import os
import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoord_wire.kernel.file_bytes import WINDOW, FileBytes, FileCutError, cut_off

WORD = struct.Struct(">I")
LIKELY = re.compile(rb"(?=ab.d)", re.DOTALL)


@given(st.binary(min_size=4, max_size=64), st.lists(st.integers(0, 63), max_size=20), st.data())
def test_any_place_gives_the_bytes_of_the_file(content: bytes, places: list[int], data: st.DataObject) -> None:
    found = FileBytes(io.BytesIO(content))
    for place in places:
        if data.draw(st.booleans()):
            found.advance(min(place, len(content)))
        size = data.draw(st.integers(0, 64))
        assert found.read(place, size) == content[place : place + size]
        if place + WORD.size <= len(content):
            assert found.unpack(WORD, place) == WORD.unpack_from(content, place)


class Counted(io.BytesIO):
    """Counts the bytes that are read."""

    total = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.total += len(data)
        return data


def test_a_walk_reads_each_byte_about_once() -> None:
    file = Counted(bytes(5 * WINDOW))
    data = FileBytes(file)
    for place in range(0, data.size, 1000):
        data.advance(place)
        data.read(place, min(1000, data.size - place))
        data.unpack(WORD, data.size - WORD.size)
    assert file.total < 1.1 * data.size


@pytest.mark.parametrize("at", [0, 1, 4093, 4094, 4095, 4096, 20_000, 2 * WINDOW])
def test_a_search_reads_little_more_than_it_passes(at: int) -> None:
    content = bytes(at) + b"abcd" + bytes(3 * WINDOW - at) + b"ab\nd"
    file = Counted(content)
    data = FileBytes(file)
    assert list(data.places(LIKELY, 0, len(content), 4)) == [at, len(content) - 4]
    assert list(data.places(LIKELY, at + 1, len(content) - 1, 4)) == []
    file.total = 0
    assert next(data.places(LIKELY, 0, len(content), 4)) == at
    assert file.total <= 2 * at + 8192


def test_a_file_that_is_cut_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * (2 * WINDOW))
    with path.open("rb", buffering=0) as file:
        data = FileBytes(file)
        data.advance(0)
        assert cut_off(file, data.size) is None
        os.truncate(path, 100)
        assert data.read(1000, 4) == b"xxxx", "the window holds it"
        for ask in (lambda: data.read(WINDOW - 1, 4), lambda: data.unpack(WORD, WINDOW), lambda: data.advance(WINDOW)):
            with pytest.raises(FileCutError, match=f"cut from {2 * WINDOW} to .* bytes while it was read"):
                ask()
        file.seek(WINDOW)
        assert "to 100 bytes" in str(cut_off(file, data.size))


def test_what_is_appended_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"first")
    with path.open("rb", buffering=0) as file:
        data = FileBytes(file)
        path.write_bytes(b"first, second")
        data.advance(0)
        assert data.read(0, 100) == b"first"
        file.seek(0, os.SEEK_END)
        assert cut_off(file, data.size) is None
