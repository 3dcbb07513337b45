"""The OpenAPI description of the control port, made of the operations that the server routes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import kcoord_wire
from kcoord_wire.control.forms import json_schema
from kcoord_wire.control.operations import OPERATIONS, Item, Operation

FAILURES: Final = {
    400: "The request is wrong; the text says what",
    401: "The token is missing or wrong",
    403: "The request was not sent to an address of this server",
    404: "There is no such group, topic, fault or path",
    405: "The path has other methods; the header Allow names them",
    413: "The body is too large",
    500: "A fault of the server",
    503: "The coordinator does not run, or too many requests are in progress",
    504: "What was waited for has not come about; the text shows the group",
}
"""Status to its meaning, of every answer that is not a result. Each is an object with one member, ``error``."""

_KINDS: Final[dict[type, dict[str, Any]]] = {str: {"type": "string"}, int: {"type": "integer"}, object: {}}


def openapi(url: str) -> dict[str, Any]:
    """Return the description.

    :param url: where the server is
    """
    components: dict[str, Any] = {
        "Error": {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
    }
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation, components)
    stop = _shell("stop", "Stop the coordinator", {"204": {"description": "It stops"}})
    events = _shell("events", "What /groups and /rebalances have, now and when it changes, as server-sent events")
    events["responses"]["200"] = {"description": "A stream", "content": {"text/event-stream": {}}}
    paths |= {"/stop": {"post": stop}, "/events": {"get": events}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "A coordinator of consumer groups, under test", "version": kcoord_wire.__version__},
        "servers": [{"url": url}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _shell(name: str, summary: str, responses: Mapping[str, Any] | None = None) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    failures = {str(status): {"description": text, "content": error} for status, text in FAILURES.items()}
    return {"operationId": name, "summary": summary, "responses": {**(responses or {}), **failures}}


def _described(operation: Operation, components: dict[str, Any]) -> dict[str, Any]:
    if operation.result is None:
        responses: dict[str, Any] = {"204": {"description": "Done"}}
    else:
        schema = json_schema(operation.result, components)
        responses = {"200": {"description": "Done", "content": {"application/json": {"schema": schema}}}}
    described = _shell(operation.name, operation.summary, responses)
    parts = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    parameters = [{"name": name, "in": "path", "required": True, "schema": _KINDS[str]} for name in parts]
    parameters += [
        {"name": name, "in": "query", "required": item.required, "description": item.about, "schema": _KINDS[item.kind]}
        for name, item in (operation.query or {}).items()
    ]
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        described["requestBody"] = _body(operation.body)
    return described


def _body(members: Mapping[str, Item]) -> dict[str, Any]:
    required = [name for name, item in members.items() if item.required]
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: {**_KINDS[item.kind], "description": item.about} for name, item in members.items()},
        "additionalProperties": False,
    }
    if required:
        schema["required"] = required
    return {"required": bool(required), "content": {"application/json": {"schema": schema}}}
