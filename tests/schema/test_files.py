"""Folders of schema files: their order, reserved ids, and what is refused."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import pytest

from kcoord_wire.errors import SchemaError
from kcoord_wire.schema import files
from kcoord_wire.schema.files import MAX_ARCHIVE, MAX_FILE, collect_messages, load_messages, schema_root


def schema(name: str) -> str:
    return json.dumps({"type": "data", "name": name, "validVersions": "0", "flexibleVersions": "none", "fields": []})


def test_a_folder_is_read_in_the_order_of_its_paths(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "n.json").write_text(schema("N"))
    (tmp_path / "m.json").write_text(schema("M"))
    (tmp_path / "r.json").write_text('{"type": "request", "apiKey": 4, "name": "R", "validVersions": "none"}')
    assert list(load_messages(tmp_path)) == ["N", "M"]
    assert list(load_messages(tmp_path / "m.json")) == ["M"]


def test_two_files_that_define_one_message_are_refused(tmp_path: Path) -> None:
    for name in ("m.json", "z.json"):
        (tmp_path / name).write_text(schema("M"))
    with pytest.raises(SchemaError, match='"M" is defined by') as caught:
        load_messages(tmp_path)
    assert caught.value.file == str(tmp_path / "z.json")


def test_files_that_break_a_rule_are_collected_apart(tmp_path: Path) -> None:
    (tmp_path / "B.json").write_text("{}")
    (tmp_path / "M.json").write_text(schema("M"))
    messages, refused = collect_messages([tmp_path])
    assert (list(messages), list(refused)) == (["M"], ["B"])
    with pytest.raises(SchemaError) as caught:
        load_messages(tmp_path)
    assert caught.value.file == str(tmp_path / "B.json")
    (tmp_path / "M.json").unlink()
    with pytest.raises(SchemaError):
        collect_messages([tmp_path])


def test_a_mapping_is_read_like_a_folder(tmp_path: Path) -> None:
    texts = {"N.json": schema("N"), "M": schema("M").encode(), "broken/B.json": "{}"}
    messages, refused = collect_messages([texts])
    assert (list(messages), list(refused)) == (["N", "M"], ["B"])
    assert refused["B"].file == "broken/B.json"
    assert messages["N"].source == schema("N")
    (tmp_path / "z.json").write_text(schema("Z"))
    assert list(collect_messages([texts, tmp_path])[0]) == ["N", "M", "Z"]
    with pytest.raises(SchemaError, match='"M" is defined by M too'):
        collect_messages([texts, {"other.json": schema("M")}])
    for wrong in ({}, {"B.json": "{}"}, {"U.json": b"\xff"}, {"S.json": "\ud800"}):
        with pytest.raises(SchemaError):
            collect_messages([wrong])


def test_a_mapping_above_the_limits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    large = schema("M").ljust(MAX_FILE + 1)
    with pytest.raises(SchemaError, match="has at most") as caught:
        collect_messages([{"M.json": large}])
    assert caught.value.file == "M.json"
    monkeypatch.setattr(files, "MAX_FILES", 1)
    with pytest.raises(SchemaError, match="at most 1 schemas"):
        collect_messages([{"M.json": schema("M"), "N.json": schema("N")}])
    monkeypatch.setattr(files, "MAX_FILES", 2)
    monkeypatch.setattr(files, "MAX_ALL", len(schema("M")))
    with pytest.raises(SchemaError, match="all of a mapping"):
        collect_messages([{"M.json": schema("M"), "N.json": schema("N")}])


def test_an_archive_above_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.zip"
    with path.open("wb") as target:
        target.write(b"PK\3\4")
        target.truncate(MAX_ARCHIVE + 1)  # a hole: it takes no space on the disk
    with pytest.raises(SchemaError, match="has at most"):
        load_messages(path)


def a_fifo(path: Path) -> None:
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    with chdir(path.parent), socket.socket(socket.AF_UNIX) as made:  # whose address has at most 107 bytes
        made.bind(path.name)


@pytest.mark.parametrize(
    "make",
    [
        a_fifo,
        a_socket,
        Path.mkdir,
        lambda path: path.symlink_to("/nonexistent"),
        lambda path: path.symlink_to(path),
        lambda path: path.symlink_to("M.json/x"),
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.write_bytes(bytes(MAX_FILE + 1)),
    ],
    ids=["fifo", "socket", "folder", "dangling", "circle", "below-a-file", "device", "large"],
)
def test_what_is_no_schema_file_is_left_out_of_a_folder(tmp_path: Path, make: Callable[[Path], object]) -> None:
    (tmp_path / "M.json").write_text(schema("M"))
    make(tmp_path / "X.json")
    messages, refused = collect_messages([tmp_path])
    assert (list(messages), list(refused)) == (["M"], ["X"])
    assert refused["X"].file == str(tmp_path / "X.json")
    (tmp_path / "M.json").unlink()
    with pytest.raises(SchemaError):
        collect_messages([tmp_path])


def test_a_link_to_a_schema_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "M.txt").write_text(schema("M"))
    (tmp_path / "N.json").symlink_to(tmp_path / "M.txt")
    assert list(load_messages(tmp_path)) == ["M"]


def test_a_path_that_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    a_fifo(tmp_path / "X.json")
    for path in (tmp_path / "X.json", Path("/dev/zero")):
        with pytest.raises(SchemaError, match="is a regular file"):
            load_messages(path)


def test_the_bounds_of_a_folder_are_those_of_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ABC":
        (tmp_path / f"{name}.json").write_text(schema(name))
    monkeypatch.setattr(files, "MAX_FILES", 2)
    with pytest.raises(SchemaError, match="at most 2 schema files"):
        load_messages(tmp_path)
    monkeypatch.setattr(files, "MAX_FILES", 3)
    monkeypatch.setattr(files, "MAX_ALL", 200)
    with pytest.raises(SchemaError, match="at most 200 bytes together"):
        load_messages(tmp_path)


def test_a_folder_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"at least one \.json file"):
        load_messages(tmp_path)
    with pytest.raises(FileNotFoundError):
        load_messages(tmp_path / "none")


def test_the_package_has_its_schema_files() -> None:
    assert (schema_root() / "kafka" / "JoinGroupRequest.json").is_file()


def test_every_own_file_gives_its_flexible_versions() -> None:
    for file in schema_root().rglob("*.json"):
        assert '"flexibleVersions": ' in file.read_text(), file
