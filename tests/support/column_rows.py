"""What the tests of the column decoder share: decoders of either kind, frames for them, and the rows that must come.

The rows come from the message codec, by another way than the pure decoder takes: they are the law, not a copy of it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock
from uuid import UUID

import pyarrow as pa

import kcoord_wire as kw
from kcoord_wire.codec.columns import ColumnDecoder
from kcoord_wire.codec.registry import MessageCodec, Registry, compile_schemas
from kcoord_wire.errors import DecodeError
from tests.support.apis import spoken
from tests.support.codecs import REPLACEMENTS
from tests.support.golden import DATA, vectors
from tests.support.strategies import filled

# In the place of the union, which has no columns: what else a default can be.
OTHERS = """
    { "name": "Yes", "type": "bool", "versions": "1+", "ignorable": true, "default": "true", "about": "True by default." },
    { "name": "Motto", "type": "string", "versions": "1+", "ignorable": true, "default": "longer than a view", "about": "A long default." },
    { "name": "Half", "type": "float64", "versions": "1+", "ignorable": true, "default": "0.5", "about": "A float." },
    { "name": "Sure", "type": "bool", "versions": "2+", "taggedVersions": "2+", "tag": 5, "default": "true", "about": "Tagged." },
    { "name": "Mottos", "type": "[]Motto", "versions": "0+", "about": "Elements with defaults.", "fields": [
      { "name": "Number", "type": "int8", "versions": "0+", "about": "A number." },
      { "name": "Words", "type": "string", "versions": "1+", "ignorable": true, "default": "longer than a view", "about": "A text." },
      { "name": "Key", "type": "uuid", "versions": "1+", "ignorable": true, "about": "A uuid." },
      { "name": "Tagged", "type": "[]string", "versions": "2+", "taggedVersions": "2+", "tag": 0, "about": "Tagged." }
    ]},
"""  # noqa: E501
KAFKA = {
    form: [
        name
        for name, codec in kw.registry.items()
        if codec.type == form and codec.family == "kafka" and codec.header == "kafka" and spoken(codec)
    ]
    for form in ("request", "response")
}


def decoder(backend: str, messages: Sequence[str], **options: Any) -> ColumnDecoder:
    """A decoder of that backend: ``python`` or ``native``."""
    with mock.patch.dict(os.environ, KCOORD_WIRE_BACKEND=backend):
        made = ColumnDecoder(messages, **options)
    assert (
        type(made._decoder).__module__
        == {
            "python": "kcoord_wire.codec.columns.pure",
            "native": "kcoord_wire._columns",
        }[backend]
    )
    return made


@cache
def everything() -> Registry:
    """The schemas made for comparing codecs, without their union."""
    with TemporaryDirectory() as folder:
        for path in (DATA / "parity").glob("*.json"):
            text = path.read_text("utf-8")
            start, end = text.find('    { "name": "Either"'), text.find('    { "name": "Gone"')
            Path(folder, path.name).write_text(text[:start] + OTHERS + text[end:] if start > 0 else text, "utf-8")
        return compile_schemas(folder)


def bodies(codec: MessageCodec) -> Iterator[tuple[int, bytes]]:
    """Messages of every version: full ones, empty ones, and another implementation's."""
    for version in codec.valid_versions:
        yield version, codec.encode(filled(codec, version), version)
        yield version, codec.encode(codec.cls(), version)
    if kw.registry.get(codec.name) is codec:
        yield from ((vector.version, vector.data) for vector in vectors().get(codec.name, ())[:40])


def frames_of(form: str, name: str) -> Iterator[tuple[int, int, bytes]]:
    """Frame bodies of a request or response, with api key and version."""
    codec = kw.registry[name]
    for version in codec.valid_versions:
        for message in (filled(codec, version), codec.cls()):
            if form == "request":
                client = None if version == 0 else "clié-1"
                body = kw.encode_request(message, version, correlation_id=version + 7, client_id=client)
            else:
                body = kw.encode_response(message, version, correlation_id=version + 7)
            assert codec.api_key is not None
            yield codec.api_key, version, body


def damaged(body: bytes, rng: random.Random, most: int) -> Iterator[bytes]:
    """The body cut short, with a byte changed, and with bytes behind it: all of them, or `most` of each."""
    places = range(len(body)) if len(body) <= most else sorted(rng.sample(range(len(body)), most))
    for at in places:
        yield body[:at]
        yield body[:at] + bytes([rng.choice([*REPLACEMENTS, body[at] ^ 1, rng.randrange(256)])]) + body[at + 1 :]
    yield body + b"\x00\xff\x80"


def plain(value: Any) -> Any:
    """A message as Arrow gives it back."""
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value) if f.name != "unknown_tags"}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.bytes if isinstance(value, UUID) else value


def expected(call: Any) -> tuple[Any, str | None, int | None]:
    """What `call` gives, as a struct, a kind of error and an offset."""
    try:
        return plain(call()), None, None
    except DecodeError as error:
        return None, error.kind, error.offset


def rows_of(batch: pa.RecordBatch, name: str) -> list[tuple[Any, str | None, int | None]]:
    """The rows of one message's column with their errors."""
    columns = (batch.column(one).to_pylist() for one in (name, "error", "error_offset"))
    return list(zip(*columns, strict=True))
