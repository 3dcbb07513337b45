"""Columns hold what the message codec gives, and the native decoder what the pure one does: every message and version.

The samples are cut everywhere and changed everywhere (in places, where they are long), strict and lenient, copied and
viewed; good and bad rows are mixed, in runs of one version and shuffled.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kcoord_wire as kw
from kcoord_wire.codec.columns.shape import shape_of
from kcoord_wire.codec.registry import MessageCodec, Registry, compile_schemas
from tests.support.apis import spoken
from tests.support.backends import BACKENDS
from tests.support.column_rows import (
    KAFKA,
    bodies,
    damaged,
    decoder,
    everything,
    expected,
    frames_of,
    rows_of,
)
from tests.support.strategies import messages

UNIONS = compile_schemas(Path(__file__).parent.parent / "data" / "parity")
MOST = 12  # places of a long sample that are damaged
MODES = [(True, False), (True, True), (False, False), (False, True)]  # strict, views


def has_columns(codec: MessageCodec) -> bool:
    try:
        shape_of(codec)
    except TypeError:
        return False
    return True


CODECS = [(codec, kw.registry) for codec in kw.registry.values() if has_columns(codec) and spoken(codec)]
CODECS += [(codec, everything()) for codec in everything().values()]


def alike(name: str, frames: pa.Array, options: dict[str, Any], **given: Any) -> pa.RecordBatch:
    """What the decoders give, the same of all of them."""
    first, *others = [decoder(backend, [name], **options).decode(frames, **given) for backend in BACKENDS]
    for other in others:
        other.validate(full=True)
        if not first.equals(other):
            for i, (a, b) in enumerate(zip(first.to_pylist(), other.to_pylist(), strict=True)):
                assert repr(a) == repr(b), f"row {i}: {frames[i].as_py().hex()}"  # NaN is not equal to itself
    return first


def test_all_but_texts_and_unions_have_columns() -> None:
    without = [codec for codec in kw.registry.values() if not has_columns(codec)]
    binary = [codec.name for codec in without if codec.schema.encoding == "binary"]
    assert [codec.name for codec in kw.registry.values() if holds_union(codec)] == binary
    assert not has_columns(UNIONS["Everything"])


def holds_union(codec: MessageCodec) -> bool:
    schema = codec.schema
    return any(field.variants for struct in (schema.root, *schema.structs.values()) for field in struct.fields)


@pytest.mark.parametrize(("codec", "registry"), CODECS, ids=lambda one: getattr(one, "name", ""))
def test_messages_have_the_same_columns_in_both_decoders(codec: MessageCodec, registry: Registry) -> None:
    rng = random.Random(codec.name)
    good = list(bodies(codec))
    rows = [(version, body) for version, body in good for _ in range(5)]  # runs that are walked side by side
    for version, body in good:
        rows += [(version, bad) for bad in damaged(body, rng, MOST)]
    rows += [(version, good[0][1]) for version in (-1, codec.valid_versions.stop, 2**40)]
    shuffled = rng.sample(rows, len(rows))
    for strict, views in MODES:
        for order in (rows, shuffled) if strict else (shuffled,):
            frames = pa.array([body for _, body in order], pa.binary())
            versions = pa.array([version for version, _ in order])
            options = {"form": "message", "strict": strict, "views": views, "registry": registry}
            batch = alike(codec.name, frames, options, versions=versions)
            if order is shuffled and not views:
                for row, (version, body) in zip(rows_of(batch, codec.name), order, strict=True):
                    law = expected(lambda v=version, b=body, s=strict: codec.decode(b, v, strict=s))
                    assert row == law or repr(row) == repr(law), (version, body.hex())


@pytest.mark.parametrize("form", ["request", "response"])
@pytest.mark.parametrize("strict", [True, False])
def test_mixed_frames_have_the_same_columns(form: str, strict: bool) -> None:
    """All apis in one batch, good and bad, each row as if it were alone."""
    rng = random.Random(form)
    rows = [row for name in KAFKA[form] for row in frames_of(form, name)]
    rows += [(key, version, bad) for key, version, body in rows for bad in damaged(body, rng, 3)]
    rows += [(999, 0, b"\x03\xe7\0\0\0\0\0\1\0\0"), (18, 99, b"\0\x12\0\x63\0\0\0\1\xff\xff")]
    rng.shuffle(rows)
    frames = pa.array([body for *_, body in rows], pa.large_binary())
    given = {}
    if form == "response":
        given = {"keys": pa.array([key for key, *_ in rows], pa.int16()), "versions": pa.array([v for _, v, _ in rows])}
    batches = [
        decoder(backend, KAFKA[form], form=form, strict=strict, views=views).decode(frames, **given)
        for backend in BACKENDS
        for views in (False, True)
    ]
    for batch in batches:
        batch.validate(full=True)
        assert batch.equals(batches[0]) or batch.to_pylist() == batches[0].to_pylist()
    names = {kw.registry[name].api_key: name for name in KAFKA[form]}
    for row, (key, version, body) in zip(batches[0].to_pylist(), rows, strict=True):
        call: Callable[[], Any]
        if form == "request":
            call = lambda body=body: kw.decode_request(body, strict=strict)[1]  # noqa: E731
            header = expected(lambda body=body: kw.peek_request(body, strict=strict))[0]
            key = -1 if header is None else header["request_api_key"]
            told_header = [header and header[name] for name in ("request_api_key", "request_api_version", "client_id")]
            assert [row["api_key"], row["api_version"], row["client_id"]] == told_header
            assert row["correlation_id"] == (header and header["correlation_id"])
        else:
            call = lambda key=key, version=version, body=body: kw.decode_response(  # noqa: E731
                body, key, version, strict=strict
            )[1]
            assert row["correlation_id"] == (int.from_bytes(body[:4], "big", signed=True) if len(body) >= 4 else None)
        struct, kind, offset = expected(call)
        if kind == "api":
            kind = offset = None
        assert (row["error"], row["error_offset"]) == (kind, offset)
        for known, name in names.items():
            assert repr(row[name]) == repr(struct if known == key else None)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("strict", [True, False])
def test_prefixed_messages(backend: str, strict: bool) -> None:
    rng = random.Random(0)
    names = ["ConsumerProtocolSubscription", "ConsumerProtocolAssignment", "GroupMetadataValue", "OffsetCommitValue"]
    for name in names:
        codec = kw.registry[name]
        rows = [version.to_bytes(2, "big") + body for version, body in bodies(codec)]
        rows += [bad for body in rows for bad in damaged(body, rng, MOST)]
        rows += [b"\0\x09" + row[2:] + b"more" for row in rows[:20]] + [b"", b"\0", b"\xff\xff", b"\x7f\xff"]
        rows = [row for row in rows for _ in range(4)]
        batch = decoder(backend, [name], form="prefixed", strict=strict).decode(pa.array(rows, pa.binary()))
        for row, body, version in zip(rows_of(batch, name), rows, batch.column("version").to_pylist(), strict=True):
            law = expected(lambda b=body, cls=codec.cls: kw.decode_prefixed(cls, b, strict=strict)[1])
            assert repr(row) == repr(law), body.hex()
            assert version == (int.from_bytes(body[:2], "big", signed=True) if len(body) > 1 else None)


KEYS = [name for name, codec in kw.registry.items() if codec.type == "coordinator-key"]
VALUES = [name for name, codec in kw.registry.items() if codec.type == "coordinator-value"]


def test_record_keys_and_values() -> None:
    """The key's int16 is its type, which chooses; the type of a value is given."""
    rng = random.Random(0)
    keys, types, values = [], [], []
    for name in KEYS:
        codec = kw.registry[name]
        assert codec.api_key is not None
        for _, body in bodies(codec):
            for bad in [body, *damaged(body, rng, MOST)]:
                keys.append(codec.api_key.to_bytes(2, "big") + bad)
    for name in VALUES:
        for version, body in bodies(kw.registry[name]):
            for bad in [body, *damaged(body, rng, MOST)]:
                types.append(kw.registry[name].api_key)
                values.append(version.to_bytes(2, "big") + bad)
    keys += [b"", b"\0", b"\x03\xe7abc"]
    types += [999, None]
    values += [b"", b"\0\0"]
    by_key = [decoder(backend, KEYS, form="prefixed").decode(pa.array(keys)) for backend in BACKENDS]
    given = pa.array(types, pa.int16())
    by_type = [decoder(backend, VALUES, form="prefixed").decode(pa.array(values), keys=given) for backend in BACKENDS]
    for batches in (by_key, by_type):
        for batch in batches:
            batch.validate(full=True)
            assert batch.equals(batches[0])
    for row, key in zip(by_key[0].to_pylist(), keys, strict=True):
        found = [name for name in KEYS if row[name] is not None]
        if row["error"] is None and row["version"] != 999:
            codec = kw.registry.record_key(int.from_bytes(key[:2], "big"))
            assert found == [codec.name]
            assert row[codec.name] == expected(lambda k=key, c=codec: c.decode(k[2:], 0))[0]
        else:
            assert found == []
    assert by_type[0].column("error").to_pylist()[-2:] == [None, None]


@pytest.mark.parametrize("name", ["JoinGroupRequest", "FetchResponse", "ConsumerGroupDescribeResponse", "Everything"])
def test_drawn_messages(name: str) -> None:
    registry = kw.registry if name in kw.registry else everything()
    codec = registry[name]

    @settings(max_examples=25)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(codec.valid_versions))
        drawn = data.draw(st.lists(messages(codec, version), min_size=1, max_size=6))
        frames = pa.array([codec.encode(message, version) for message in drawn], pa.binary())
        options = {"form": "message", "registry": registry, "views": data.draw(st.booleans())}
        batch = alike(name, frames, options, versions=version)
        law = [expected(lambda m=message: m) for message in drawn]
        assert repr(rows_of(batch, name)) == repr(law)

    check()
