"""Generated source: the name of its module, and classes that are those made at run time from the same schema."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire.codec.registry import make_classes
from kcoord_wire.schema.emit_classes import emit_modules, module_name
from kcoord_wire.schema.files import load_messages
from kcoord_wire.schema.reader import MAX_STRUCT_DEPTH, read_message

PARITY = Path(__file__).resolve().parents[1] / "data" / "parity"


@pytest.mark.parametrize(
    ("message", "module"),
    [
        ("JoinGroupRequest", "join_group"),
        ("JoinGroupResponse", "join_group"),
        ("RequestHeader", "request_header"),
        ("GroupMetadataKey", "group_metadata_record"),
        ("GroupMetadataValue", "group_metadata_record"),
        ("PingRequest", "ping"),
        ("ProposalJoinGroupRequest", "proposal_join_group"),
    ],
)
def test_modules_are_named_after_the_api(message: str, module: str) -> None:
    assert module_name(kw.registry[message].schema) == module


def defaults(cls: type) -> dict[str, Any]:
    """Each field's default; of a struct or union, the name and the defaults of its class."""
    found = {name: getattr(cls(), name) for name in (field.name for field in dataclasses.fields(cls))}
    return {
        name: (type(value).__name__, defaults(type(value))) if dataclasses.is_dataclass(value) else value
        for name, value in found.items()
    }


def test_emitted_classes_equal_those_made_at_run_time() -> None:
    messages = load_messages(PARITY)
    files = emit_modules(messages, PARITY)
    for message in messages.values():
        source = files[f"{module_name(message)}.py"]
        namespace: dict[str, Any] = {"__name__": __name__}
        exec(compile(source, "<emitted>", "exec"), namespace)
        for name, cls in make_classes(message).items():
            assert defaults(namespace[name]) == defaults(cls), name
            assert namespace[name].__slots__ == cls.__slots__  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", ['"', '""""', "\\", '\\"""', "a\nb", "\r\t\0", "\ud800", "\u2028", "{x}", "'\"'"])
def test_texts_of_a_schema_stay_texts(text: str, tmp_path: Path) -> None:
    fields = [
        {"name": "A", "type": "string", "versions": "0+", "default": text, "about": text},
        {"name": "B", "type": "float64", "versions": "0+", "default": "-inf", "about": f"{text} {text}"},
    ]
    schema = {"type": "data", "name": "Note", "validVersions": "0", "about": text, "fields": fields}
    (tmp_path / "Note.json").write_text(json.dumps(schema))
    modules = emit_modules(load_messages(tmp_path), tmp_path)
    held: dict[str, Any] = {"__name__": __name__}
    exec(modules["note.py"].encode(), held)  # as it is written to its file
    assert (held["Note"]().a, held["Note"]().b) == (text, -math.inf)
    made = kw.compile_schemas(tmp_path)["Note"].cls
    assert (made.__doc__ or "").replace('"""', "'''").split() == (held["Note"].__doc__ or "").split()
    assert made().a == text


def test_lines_of_blanks_cost_what_they_are_long() -> None:
    schema = {"type": "data", "name": "Note", "validVersions": "0", "fields": []}
    about = "First.\n" + " \n" * 200_000 + "  * last."
    message = read_message(json.dumps(schema | {"commonStructs": [], "about": about}), "/Note.json")
    text = emit_modules({"Note": message}, Path("/"))["note.py"]  # a minute, where each line looks at all after it
    assert '    """First.\n    * last.\n' in text


def test_structs_that_double_their_paths_are_emitted_once() -> None:
    last = MAX_STRUCT_DEPTH - 1

    def two(type_: str) -> list[dict[str, str]]:
        return [{"name": name, "type": type_, "versions": "0"} for name in "AB"]

    types = [*(f"[]S{at + 1}" for at in range(last)), "int8"]
    structs = [{"name": f"S{at}", "versions": "0", "fields": two(type_)} for at, type_ in enumerate(types)]
    schema = {"type": "data", "name": "Note", "validVersions": "0", "commonStructs": structs, "fields": two("[]S0")}
    message = read_message(json.dumps(schema), "/Note.json")
    assert emit_modules({"Note": message}, Path("/"))["note.py"].count("\nclass ") == MAX_STRUCT_DEPTH + 1


def test_lines_fit_and_the_text_is_deterministic() -> None:
    messages = load_messages(PARITY)
    files = emit_modules(messages, PARITY)
    assert files == emit_modules(dict(reversed(messages.items())), PARITY)
    assert max(len(line) for name, text in files.items() if name != "_index.py" for line in text.split("\n")) <= 120
