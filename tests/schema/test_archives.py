"""Schema files in archives: which are taken, the bounds of size and number, and whatever is not an archive."""

from __future__ import annotations

import io
import struct
import warnings
import zipfile
from contextlib import suppress

import pytest

from kcoord_wire.errors import SchemaError
from kcoord_wire.schema.files import MAX_ALL, MAX_DIRECTORY, MAX_FILE, MAX_FILES, schema_files


def archive(*files: tuple[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", compression) as target, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of two files of one name
        for name, content in files:
            target.writestr(name, content)
    return made.getvalue()


def test_the_files_of_a_jar_are_those_of_kafkas_folder() -> None:
    jar = archive(("common/message/B.json", b"b"), ("common/message/README.md", b""), ("A.json", b"a"))
    assert schema_files(jar, "x.jar") == [("common/message/B.json", b"b")]
    assert schema_files(archive(("b/B.json", b"b"), ("A.json", b"a")), "x") == [("A.json", b"a"), ("b/B.json", b"b")]


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions_are_refused(compression: int) -> None:
    with pytest.raises(SchemaError, match="stored or deflated") as caught:
        schema_files(archive(("A.json", b"a"), compression=compression), "x.zip")
    assert caught.value.file == "x.zip/A.json"


def too_many_bytes() -> bytes:
    return archive(("A.json", bytes(MAX_FILE + 1)))


def too_many_bytes_together() -> bytes:
    size = MAX_FILE
    return archive(*((f"{n}.json", bytes(size)) for n in range(MAX_ALL // size + 1)))


def too_many_files() -> bytes:
    return archive(*((f"{n}.json", b"") for n in range(MAX_FILES + 1)))


def a_directory_too_large() -> bytes:
    data = bytearray(archive(("A.json", b"{}")))
    struct.pack_into("<L", data, data.rindex(b"PK\5\6") + 12, MAX_DIRECTORY + 1)
    return bytes(data)


def a_directory_whose_size_counts_nothing() -> bytes:
    """Behind the directory is another end of it, for archives of 4 GB: zipfile reads as much as that says."""
    data = archive(("A.json", b"{}"))
    at = data.rindex(b"PK\5\6")
    size, start = struct.unpack_from("<LL", data, at + 12)
    large = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, size, start)
    return data[:at] + large + struct.pack("<4sLQL", b"PK\6\7", 0, at, 1) + data[at:]


def a_file_that_starts_nowhere() -> bytes:
    """At the byte 2^63 + 5, by the field of its directory entry for archives of 4 GB."""
    data = bytearray(archive(("A.json", b"{}")))
    entry, end = data.rindex(b"PK\1\2"), data.rindex(b"PK\5\6")
    extra = struct.pack("<HHQ", 1, 8, 2**63 + 5)
    struct.pack_into("<H", data, entry + 30, len(extra))
    struct.pack_into("<L", data, entry + 42, 0xFFFFFFFF)
    struct.pack_into("<L", data, end + 12, end - entry + len(extra))
    return bytes(data[:end] + extra + data[end:])


def a_size_that_is_not_true() -> bytes:
    """Stated to have two bytes; a megabyte and more when it is inflated."""
    data = bytearray(too_many_bytes())
    struct.pack_into("<L", data, data.rindex(b"PK\1\2") + 24, 2)
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (too_many_bytes(), "has at most"),
        (too_many_bytes_together(), "has at most"),
        (too_many_files(), "holds at most"),
        (a_directory_too_large(), "directory of an archive has at most"),
        (a_directory_whose_size_counts_nothing(), "no zip64 directory"),
        (a_file_that_starts_nowhere(), "a zip archive is expected"),
        (a_size_that_is_not_true(), "a zip archive is expected"),
        (archive(("A.json", b"a"), ("A.json", b"b")), "two files of one name"),
        (archive(("A\n.json", b"a")), "are printable"),
        (archive(("A.txt", b"a")), r"at least one \.json file"),
        (archive(), r"at least one \.json file"),
        (b"PK\3\4", "has no directory"),
    ],
)
def test_what_is_above_the_bounds_is_refused(data: bytes, rule: str) -> None:
    with pytest.raises(SchemaError, match=rule):
        schema_files(data, "x.zip")


def test_a_damaged_archive_is_read_or_refused() -> None:
    whole = archive(("A.json", b'{"name": "A"}' * 20), ("B.json", b"{}"))
    for size in range(len(whole)):
        with pytest.raises(SchemaError):
            schema_files(whole[:size], "x.zip")
    for at in range(len(whole)):
        for byte in (0, 1, 0x7F, 0xFF):
            with suppress(SchemaError):
                schema_files(whole[:at] + bytes([byte]) + whole[at + 1 :], "x.zip")
