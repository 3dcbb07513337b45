"""`kcoord schemas`."""

from __future__ import annotations

import json

import kcoord_wire as kw
from tests.support.each import each


def test_schemas_lists_every_message(kcoord) -> None:
    status, out, _ = kcoord("schemas", "--format", "json")
    assert status == 0
    assert {json.loads(line)["name"] for line in out.splitlines()} == set(kw.registry)
    status, out, _ = kcoord("schemas")
    assert status == 0
    assert all(name in out for name in kw.registry)


@each("name", sorted(kw.registry))
def test_schemas_shows_every_field(kcoord, name: str) -> None:
    codec = kw.registry[name]
    status, out, _ = kcoord("schemas", f"{codec.family}/{name}", "--format", "json")
    shown = [message for message in map(json.loads, out.splitlines()) if message["name"] == name]
    assert status == 0
    assert [field["field"] for field in shown[0]["fields"] if "." not in field["field"]] == list(
        codec.cls.__match_args__ or [f for f in codec.cls.__dataclass_fields__ if f != "unknown_tags"]
    )
    assert kcoord("schemas", f"{codec.family}/{name}")[0] == 0
