"""Templates of lines: fields, optional text and choices, and what hostile lines cost."""

from __future__ import annotations

import time

import pytest

from kcoord_wire.forensics.lines.shapes import BROKER_SHAPES, CLIENT_SHAPES, Shape


def shape(template: str) -> Shape:
    return Shape("kind", template, ("broker",))


def test_fields_end_where_the_text_behind_them_begins() -> None:
    found = shape("Stabilized group <group> generation <generation>").match("x Stabilized group a b generation 7")
    assert found is not None
    assert found.groupdict() == {"group": "a b", "generation": "7"}


@pytest.mark.parametrize(
    ("line", "members"),
    [("Stabilized g", None), ("Stabilized g with 3 members", "3"), ("Stabilized g with 3 members.", "3")],
)
def test_optional_text_may_be_missing(line: str, members: str | None) -> None:
    found = shape("Stabilized <group>[[ with <members> members]]").match(line)
    assert found is not None
    assert found["members"] == members
    assert found["group"] == "g"


def test_a_choice_takes_one_of_several() -> None:
    prepared = shape("Preparing to {rebalance|restabilize} group <group>")
    assert prepared.match("Preparing to restabilize group g")
    assert not prepared.match("Preparing to delete group g")


def test_the_last_of_several_beginnings_may_match() -> None:
    found = shape("Member <member> has failed").match("Member of staff. Member m-1 has failed")
    assert found is not None


def test_a_template_that_begins_with_a_field_is_refused() -> None:
    with pytest.raises(ValueError, match="begins with text"):
        shape("<group> is empty")


@pytest.mark.parametrize("line", ["Member " * 1200, "Member x in group " * 450, "[GroupId " + "] Member " * 900])
def test_hostile_lines_cost_little(line: str) -> None:
    began = time.process_time()
    for each in (*BROKER_SHAPES, *CLIENT_SHAPES):
        each.match(line)
    assert time.process_time() - began < 2
