"""Generated files: which ones are stale, and that the command reports or writes them."""

from __future__ import annotations

import builtins
import dataclasses
import json
import keyword
import pickle
import re
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints
from uuid import UUID
from zipfile import ZipFile

import pytest

import kcoord_wire as kw
from kcoord_wire.codec.python import Program
from kcoord_wire.schema import generate
from kcoord_wire.schema.emit_classes import MARK
from kcoord_wire.schema.plan import attribute_name
from kcoord_wire.schema.reader import read_message

SCHEMA = {"type": "data", "name": "Note", "validVersions": "0", "flexibleVersions": "none", "fields": []}


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the generated files of one schema, which `main` uses instead of the package's."""
    schemas, target = tmp_path / "schemas", tmp_path / "messages"
    schemas.mkdir()
    target.mkdir()
    (schemas / "Note.json").write_text(json.dumps(SCHEMA))
    monkeypatch.setattr(generate, "schema_root", lambda: schemas)
    monkeypatch.setattr(generate, "MESSAGES", target)
    return target


def test_check_lists_stale_files_and_writes_nothing(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--check"]) == 1
    assert capsys.readouterr().out == "stale: __init__.py\nstale: _index.py\nstale: note.py\n"
    assert list(target.iterdir()) == []


def test_stale_files_are_written_and_others_removed(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (target / "gone.py").write_text(f'"""{MARK} from a file that is no more."""\n')
    assert generate.main([]) == 0
    assert "removed: gone.py\nwritten: note.py\n" in capsys.readouterr().out
    assert {path.name for path in target.iterdir()} == {"__init__.py", "_index.py", "note.py"}
    assert generate.main(["--check"]) == 0


def test_a_broken_schema_is_reported(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (target.parent / "schemas" / "Note.json").write_text("{}")
    assert generate.main([]) == 1
    assert "Note.json" in capsys.readouterr().err
    assert list(target.iterdir()) == []


# ---- a package of one's own


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A jar with one message and a file that is refused, from which `own_messages` was written beside it."""
    monkeypatch.syspath_prepend(tmp_path)
    jar = tmp_path / "clients.jar"
    cells = [{"name": "Id", "type": "uuid", "versions": "0+"}]
    rows = {"name": "Rows", "type": "[]Row", "versions": "0+", "fields": cells}
    with ZipFile(jar, "w") as archive:
        archive.writestr("common/message/Note.json", json.dumps(SCHEMA | {"fields": [rows]}))
        archive.writestr("common/message/Broken.json", "{}")
    assert generate.main([str(jar), str(tmp_path / "own_messages")]) == 1  # one file is refused
    return jar


def test_a_package_of_ones_own(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package = import_module("own_messages")
    message = package.Note(rows=[package.NoteRow(id=UUID(int=1))])
    codec = package.registry.by_class(package.Note)
    assert codec.decode(codec.encode(message, 0), 0) == message
    assert pickle.loads(pickle.dumps(message)) == message
    assert codec.encode(message, 0) == kw.compile_schemas(own)["Note"].encode(message_like(own), 0)
    assert generate.main(["--check", str(own), str(own.parent / "own_messages")]) == 1
    out, err = capsys.readouterr()
    assert "Broken.json" in err
    assert "stale" not in out


def message_like(jar: Path) -> Any:
    classes = kw.compile_schemas(jar)["Note"].classes
    return classes["Note"](rows=[classes["NoteRow"](id=UUID(int=1))])


def test_files_that_were_not_generated_are_kept(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package = own.parent / "own_messages"
    (package / "by_hand.py").write_text("")
    generate.main([str(own), str(package)])
    assert (package / "by_hand.py").exists()
    (package / "note.py").write_text("# mine\n")
    assert generate.main([str(own), str(package)]) == 1
    assert "note.py is not a generated file" in capsys.readouterr().err
    assert (package / "note.py").read_text() == "# mine\n"


def test_a_package_needs_schemas() -> None:
    with pytest.raises(SystemExit):
        generate.main(["alone"])


# ---- names

NAMES = [
    *keyword.kwlist, *keyword.softkwlist, *filter(str.islower, dir(builtins)), "field", "uuid", "dataclass", "self",
    "cls", "other", "short_repr", "MISSING", "data", "pos", "end", "m", "new", "add", "name", "mro", "count", "items",
    "annotations",
]  # fmt: skip
FIELD_NAMES = sorted({name for name in NAMES if re.fullmatch("[A-Za-z][A-Za-z0-9]*", name)})
KINDS = ["string", "bytes", "uuid", "float64", "bool", "int32", "[]string", "[]int32", "[]Inner", "Inner", "[]uuid"]
MODULES = ["Path", "INDEX", "PACKAGES", "Registry", "Packaged", "LazyNames", "Request", "Dataclass", "Uuid", "List"]


def fields_of_all_names() -> list[dict[str, Any]]:
    """Fields of each type with each of the names, of which a class can have one in each form of letters."""
    by_attribute = {attribute_name(name): name for name in FIELD_NAMES}
    defaults = {"float64": "inf", "int32": "7"}
    fields = []
    for number, name in enumerate(by_attribute.values()):
        kind = KINDS[number % len(KINDS)]
        field = {"name": name, "type": kind, "versions": "0+"}
        if kind in defaults and number % 2:
            field["default"] = defaults[kind]
        fields.append(field)
    return fields


@pytest.mark.parametrize("first", [False, True])
def test_names_of_a_schema_do_not_meet_those_of_the_module(
    first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = fields_of_all_names()
    if first:  # whatever stands before the fields that need it
        fields.reverse()
    plain = [field for field in fields if "Inner" not in field["type"] and field["name"] in ("list", "field", "uuid")]
    inner = {"name": "Inner", "versions": "0+", "fields": plain}
    schema = SCHEMA | {"flexibleVersions": "0+", "fields": fields, "commonStructs": [inner]}
    package = f"names_{first}".lower()
    monkeypatch.syspath_prepend(tmp_path)
    for name in MODULES:
        (tmp_path / f"{name}.json").write_text(json.dumps(schema | {"name": name}))
    sources = [str(tmp_path / f"{name}.json") for name in MODULES]
    assert generate.main([*sources, str(tmp_path / package)]) == 0
    own, compiled = import_module(package), kw.compile_schemas(*sources)
    for name in MODULES:
        cls = getattr(own, name)
        assert isinstance(own.registry, kw.Registry)
        assert own.registry.by_class(cls).cls is cls
        assert get_type_hints(cls).keys() == {each.name for each in dataclasses.fields(cls)}
        for codec in (own.registry[name], compiled[name]):
            message = codec.cls()
            assert codec.decode(codec.encode(message, 0), 0) == message
            for one in (Program(codec.plan(0), codec.classes), codec.program(0)):
                assert one.decode(one.encode(message)) == message
        assert codec.encode(message, 0) == own.registry[name].encode(cls(), 0)
        assert repr(message) == repr(cls()) == f"{name}()"
    text = (tmp_path / package / "list.py").read_text()
    assert "from builtins import list as _list" in text


def test_a_keyword_is_no_name_of_a_class() -> None:
    for name in ("None", "True", "False"):
        with pytest.raises(kw.SchemaError, match="is not a message name"):
            read_message(json.dumps(SCHEMA | {"name": name}))
    assert read_message(json.dumps(SCHEMA | {"name": "Nonesuch"})).name == "Nonesuch"
