"""Messages to dicts and back: for every message, and for what is refused; test_golden has the golden file's values."""

from __future__ import annotations

import json

import pytest

import kcoord_wire as kw
from kcoord_wire.codec.registry import MessageCodec
from tests.support.each import each
from tests.support.strategies import filled

CODECS = list(kw.registry.values())


@each("codec", CODECS)
def test_a_dict_converts_back_to_the_message(codec: MessageCodec) -> None:
    for version in codec.valid_versions:
        message = filled(codec, version)
        plain = kw.to_dict(message)
        assert set(plain) - {"_unknownTags"} == {field.name for field in codec.schema.fields}
        assert kw.from_dict(codec.cls, plain) == message
        as_json = json.loads(json.dumps(kw.to_dict(message, version, json=True)))
        again = kw.from_dict(codec.cls, as_json)
        assert codec.encode(again, version) == codec.encode(message, version)


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({"Group": "x"}, "JoinGroupRequest"),
        ({"Protocols": "x"}, "JoinGroupRequest.protocols"),
        ({"Protocols": [{"Name": "range"}, 5]}, "JoinGroupRequest.protocols[1]"),
        ({"Protocols": [{"Metadata": "xyz"}]}, "JoinGroupRequest.protocols[0].metadata"),
        ({"_unknownTags": [[1, 7]]}, "JoinGroupRequest.unknown_tags"),
        ({"_unknownTags": 5}, "JoinGroupRequest.unknown_tags"),
        ({"_unknownTags": [5]}, "JoinGroupRequest.unknown_tags"),
    ],
)
def test_dicts_of_another_shape_are_refused(values: dict[str, object], path: str) -> None:
    with pytest.raises(kw.EncodeError) as caught:
        kw.from_dict(kw.JoinGroupRequest, values)
    assert (caught.value.kind, caught.value.path) == ("type", path)


def test_a_version_that_the_message_lacks_is_refused() -> None:
    with pytest.raises(kw.EncodeError) as caught:
        kw.to_dict(kw.HeartbeatRequest(), 99)
    assert caught.value.kind == "version"
