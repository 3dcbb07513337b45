"""Whatever the bytes, reading ends in a message or in a DecodeError that points into them; explain shows each byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kcoord_wire as kw
from fuzz.shapes import choose
from kcoord_wire.errors import DECODE_KINDS, DecodeError


def check(data: bytes) -> None:
    """`data`: a message behind its selector; also a whole frame body."""
    codec, version, body = choose(data)
    strictly = attempt(lambda: codec.decode(body, version), body)
    leniently = attempt(lambda: codec.decode(body, version, strict=False), body)
    if not isinstance(strictly, DecodeError):
        assert same(strictly, leniently), (strictly, leniently)
        if codec.schema.encoding == "binary" and body:
            assert same(codec.decode_prefix(b"\0" + body, version, offset=1), (strictly, len(body) + 1))
    position = 0
    for row in kw.explain(body, codec.cls, version).rows:
        if row.leaf:
            assert row.start == position, row
            position = row.end
    assert position == len(body), (position, len(body))
    attempt(lambda: kw.peek_request(data), data)
    for family in ("kafka", "central"):
        attempt(lambda family=family: kw.decode_request(data, family=family), data)
    if codec.type == "response":
        attempt(lambda: kw.decode_response(data, codec.cls, version), data)
    attempt(lambda: kw.decode_prefixed(codec.cls, data), data)


def attempt(call: Callable[[], Any], data: bytes) -> Any:
    """What a call returns, or the DecodeError that it raises, which has to be a good one."""
    try:
        return call()
    except DecodeError as caught:
        error = caught
    assert error.kind in DECODE_KINDS
    assert 0 <= error.offset <= len(data), error
    assert error.path
    assert str(error).startswith(error.path)
    return error


def same(a: object, b: object) -> bool:
    return a == b or repr(a) == repr(b)
