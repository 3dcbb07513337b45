"""The description is valid OpenAPI by a validator that others wrote, and has everything that is served."""

from __future__ import annotations

import re

from openapi_spec_validator import OpenAPIV31SpecValidator, validate

from kcoord_wire.control.operations import OPERATIONS, openapi


def test_the_description_is_valid() -> None:
    validate(openapi("http://127.0.0.1:9180"), cls=OpenAPIV31SpecValidator)


def test_every_operation_is_described() -> None:
    description = openapi("http://127.0.0.1:9180")
    for operation in OPERATIONS:
        described = description["paths"][operation.path][operation.method.lower()]
        assert described["operationId"] == operation.name
        assert described["summary"]
        named = {parameter["name"] for parameter in described.get("parameters", [])}
        assert named == {*re.findall(r"\{(\w+)\}", operation.path), *(operation.query or {})}
        assert ("requestBody" in described) == (operation.body is not None)
    assert {"/stop", "/events"} <= set(description["paths"])
