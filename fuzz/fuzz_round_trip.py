"""What strict reading accepts is written back byte for byte, but for tagged fields that were sent as the default."""

from __future__ import annotations

import kcoord_wire as kw
from fuzz.shapes import choose
from kcoord_wire.errors import DecodeError


def check(data: bytes) -> None:
    """`data`: a message behind its selector."""
    codec, version, body = choose(data)
    try:
        message = codec.decode(body, version)
    except DecodeError:
        return
    written = codec.encode(message, version)
    assert codec.decode(written, version) == message
    if codec.schema.encoding == "binary":
        # The one thing that may be lost: a default on the wire takes its tag and size with it.
        assert written == body or (len(written) < len(body) and version in codec.flexible_versions), written.hex()
    assert codec.encode(codec.decode(written, version), version) == written
    for json in (False, True):
        assert kw.from_dict(codec.cls, kw.to_dict(message, version, json=json)) == message
