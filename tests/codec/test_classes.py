"""Classes made at run time: fields, defaults and slots as the generated classes have them."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
import subprocess
import sys
from typing import Any, get_type_hints

import pytest

import kcoord_wire as kw
from kcoord_wire.codec import registry
from kcoord_wire.codec.registry import MessageCodec, make_classes
from kcoord_wire.schema.reader import read_message
from tests.support.each import each


@each("codec", kw.registry.values())
def test_classes_have_the_fields_of_the_generated_ones(codec: MessageCodec) -> None:
    made = make_classes(codec.schema)
    assert codec.name in made
    for name, cls in made.items():
        generated = codec.classes[name]
        assert cls.__slots__ == generated.__slots__  # type: ignore[attr-defined]
        assert repr(cls()) == repr(generated())
        assert words(cls.__doc__) == words(generated.__doc__)
        hints = [get_type_hints(each) for each in (cls, generated)]
        assert sources(hints[0]) == sources(hints[1])


def words(text: str | None) -> list[str]:
    return (text or "").split()


def sources(hints: dict[str, Any]) -> dict[str, str]:
    """The annotations as a source file would have them."""
    return {name: re.sub(r"\b(?:\w+\.)+|<class '|'>", "", str(hint)) for name, hint in hints.items()}


def test_fields_are_keyword_only_and_lists_are_not_shared() -> None:
    cls = make_classes(kw.registry["JoinGroupRequest"].schema)["JoinGroupRequest"]
    assert all(field.kw_only for field in dataclasses.fields(cls))
    assert cls().protocols is not cls().protocols  # type: ignore[attr-defined]


def test_one_text_and_name_is_one_class() -> None:
    schema = kw.registry["JoinGroupRequest"].schema
    made = make_classes(schema)
    assert make_classes(read_message(schema.source)) == made
    other = read_message(schema.source.replace("JoinGroupRequest", "OtherRequest"))
    assert make_classes(other)["OtherRequestProtocol"] is not made["JoinGroupRequestProtocol"]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_instances_are_pickled_with_their_schema(protocol: int) -> None:
    made = make_classes(kw.registry["JoinGroupRequest"].schema)
    message = made["JoinGroupRequest"](group_id="g", protocols=[made["JoinGroupRequestProtocol"](name="range")])
    data = pickle.dumps([message] * 100, protocol)
    assert pickle.loads(data) == [message] * 100
    assert type(pickle.loads(data)[0]) is type(message)
    assert len(data) < 100 * len(pickle.dumps(message, protocol)) / 10
    assert copy.deepcopy(message) == message


def test_a_copy_does_not_read_the_schema_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_classes(kw.registry["JoinGroupRequest"].schema)
    message = made["JoinGroupRequest"](protocols=[made["JoinGroupRequestProtocol"]() for _ in range(3)])
    data = pickle.dumps(message)
    monkeypatch.delattr(registry, "read_message")
    assert pickle.loads(data) == copy.deepcopy(message) == message


def test_making_a_class_may_make_another_one() -> None:
    schema = kw.registry["JoinGroupRequest"].schema
    renamed = read_message(schema.source.replace("JoinGroupRequest", "AnotherRequest"))
    made = []

    class Finalized:
        def __del__(self) -> None:
            made.append(make_classes(renamed))

    def collected(*_: object) -> str:
        held.clear()
        return ""

    held = [Finalized()]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(registry, "class_doc", collected)
        outer = make_classes(renamed)
    assert made == [outer]


def test_a_process_that_did_not_compile_the_schema_unpickles() -> None:
    source = """// A note.
    { "type": "data", "name": "Note", "validVersions": "0", "fields": [
        { "name": "Lines", "type": "[]Line", "versions": "0+", "fields": [
            { "name": "Text", "type": "string", "versions": "0+" } ] } ] }"""
    made = make_classes(read_message(source))
    data = pickle.dumps(made["Note"](lines=[made["NoteLine"](text="a")]))
    script = "import pickle, sys; print(pickle.load(sys.stdin.buffer))"
    done = subprocess.run([sys.executable, "-c", script], input=data, capture_output=True, check=True)
    assert done.stdout.decode().strip() == "Note(lines=[NoteLine(text='a')])"
