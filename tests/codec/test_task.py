"""What the column decoders are handed: the header's columns, and whether tags stand between header and message."""

from __future__ import annotations

import pyarrow as pa
import pytest

import kcoord_wire as kw
from kcoord_wire.codec.columns.shape import HEADS, Task

KAFKA = [codec for codec in kw.registry.values() if codec.header == "kafka" and codec.type in ("request", "response")]


def task(walk: str) -> Task:
    return Task([], [], {}, walk, pa.schema([]), True, kw.registry, False)


def test_the_tags_before_a_message_follow_the_header_version() -> None:
    for codec in KAFKA:
        made = task(codec.type)
        assert made.header is not None
        for version in codec.valid_versions:
            flexible = codec.header_version(version) == {"request": 2, "response": 1}[codec.type]
            assert made.has_tags_before(codec, version) == flexible, (codec.name, version)


@pytest.mark.parametrize("walk", HEADS)
def test_header_columns_are_fields_of_the_header(walk: str) -> None:
    made = task(walk)
    names = [child.name for child in made.head.children]
    assert names == [shape.name for shape in HEADS[walk].values()]
    if made.header is not None:
        assert set(names) <= {step.attr for step in made.header.plan(made.header.valid_versions[-1]).steps}
    else:
        assert not made.has_tags_before(kw.registry["JoinGroupRequest"], 7)
