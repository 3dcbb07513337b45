"""Bodies of requests, checked before anything is done."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from kcoord_wire.control.operations import OPERATIONS, checked_body
from kcoord_wire.kernel.settings import SettingsError

BY_NAME = {operation.name: operation for operation in OPERATIONS}


@pytest.mark.parametrize(
    ("name", "body", "text"),
    [
        ("createTopic", [], "body: must be a JSON object"),
        ("createTopic", {"name": "orders"}, "body.partitions: is missing: how many"),
        ("createTopic", {"name": "orders", "partitions": "3"}, "body.partitions: must be a whole number"),
        ("createTopic", {"name": "orders", "partitions": True}, "body.partitions: must be a whole number"),
        ("createTopic", {"name": 3, "partitions": 3}, "body.name: must be text"),
        ("createTopic", {"name": "orders", "partition": 3}, r"body.partition: unknown; did you mean partitions\?"),
        ("clearFaults", {"all": 1}, "body.all: unknown; it is empty"),
        ("groups", {"x" * 5000: 1}, "body.xxx"),
    ],
)
def test_wrong_bodies_are_refused(name: str, body: Any, text: str) -> None:
    with pytest.raises(SettingsError, match=text) as error:
        checked_body(BY_NAME[name], body)
    assert len(str(error.value)) < 300


def test_a_body_becomes_arguments() -> None:
    assert checked_body(BY_NAME["waitUntilStable"], {"members": 2}) == {"members": 2}
    assert checked_body(BY_NAME["groups"], {}) == {}


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_every_argument_is_one_of_the_function(operation: Any) -> None:
    taken = inspect.signature(operation.run).parameters
    given = {*re.findall(r"\{(\w+)\}", operation.path), *(operation.query or {}), *(operation.body or {})}
    if all(each.kind is not inspect.Parameter.VAR_KEYWORD for each in taken.values()):
        assert given == set(list(taken)[1:])
    assert all(
        each.required
        for name, each in (operation.body or {}).items()
        if name in taken and taken[name].default is inspect.Parameter.empty
    )
