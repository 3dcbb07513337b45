"""Lenient reading (``strict=False``): what Kafka's generated readers accept, the same in every reader."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import kcoord_wire as kw
from kcoord_wire.codec.backend import ProgramClass
from kcoord_wire.codec.registry import registry
from kcoord_wire.errors import DecodeError
from kcoord_wire.schema.construct_model import construct_model, parse_with_construct
from kcoord_wire.schema.text import decode_like_java
from tests.support.backends import BACKENDS
from tests.support.column_rows import decoder

BYTES = (0x41, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC1, 0xC2, 0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF4, 0xF5, 0xFF)
MALFORMED = [bytes(raw) for n in (1, 2, 3) for raw in itertools.product(BYTES, repeat=n)]
MALFORMED += [bytes(random.Random(seed).choices(BYTES, k=40)) for seed in range(100)]
# A varint, and what a length becomes of it as a Java int: None is null, an error's kind what Kafka refuses.
LENGTHS: dict[bytes, str | None] = {
    b"\x80\x80\x80\x80\x08": "length",  # 2**31 - 1 after the subtraction: no string is as long
    b"\x81\x80\x80\x80\x08": None,  # -2**31
    b"\xff\xff\xff\xff\x0f": None,  # -2
    b"\xff\xff\xff\xff\x7f": None,  # the same: bits above the 32nd are dropped
    b"\x80\x80\x80\x80\x10": None,  # 0, so -1
}
SYNC_5 = b"\2g\0\0\0\1\2m%s\0\0\1\0"  # group_instance_id, nullable, is in place of %s


def read(program_class: ProgramClass, name: str, data: Any, version: int) -> Any:
    codec = registry[name]
    return program_class(codec.plan(version), codec.classes).decode(data, False)


def test_malformed_strings_read_as_java_reads_them(program_class: ProgramClass) -> None:
    codec = registry["HeartbeatRequest"]
    models = {version: construct_model(codec.schema, version) for version in (0, 4)}
    programs = {version: program_class(codec.plan(version), codec.classes) for version in (0, 4)}
    for raw in MALFORMED:
        text = decode_like_java(raw)
        plain = len(raw).to_bytes(2, "big") + raw + b"\0\0\0\1\0\1m"
        compact = bytes([len(raw) + 1]) + raw + b"\0\0\0\1\2m\0\0"
        for version, data in ((0, plain), (4, compact)):
            for given in (data, bytearray(data)):
                message = programs[version].decode(given, False)
                assert (message.group_id, message.member_id) == (text, "m"), raw.hex()
            assert models[version].parse(data, strict=False).group_id == text, raw.hex()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("views", [False, True])
def test_malformed_strings_in_columns(backend: str, views: bool) -> None:
    frames = [kw.encode_request(kw.HeartbeatRequest(group_id="ok", member_id="m" * 20), 4, client_id="c")]
    texts = ["ok"]
    for raw in MALFORMED:
        frames.append(frames[0].replace(b"\3ok", bytes([len(raw) + 1]) + raw))
        texts.append(decode_like_java(raw))
    for kind in (pa.binary(), pa.binary_view()):
        batch = decoder(backend, ["HeartbeatRequest"], strict=False, views=views).decode(pa.array(frames, kind))
        batch.validate(full=True)
        assert [row["group_id"] for row in batch["HeartbeatRequest"].to_pylist()] == texts
        assert {row["member_id"] for row in batch["HeartbeatRequest"].to_pylist()} == {"m" * 20}


@pytest.mark.parametrize("varint", LENGTHS)
def test_lengths_are_java_ints(program_class: ProgramClass, varint: bytes) -> None:
    body = SYNC_5 % varint
    model = registry["SyncGroupRequest"].schema

    def by_construct() -> Any:
        return parse_with_construct(model, 5, body, strict=False)

    readers: list[Callable[[], Any]] = [lambda: read(program_class, "SyncGroupRequest", body, 5), by_construct]
    for reader in readers:
        if LENGTHS[varint] is None:
            assert reader().group_instance_id is None
        else:
            with pytest.raises(DecodeError) as caught:
                reader()
            assert (caught.value.kind, caught.value.offset) == (LENGTHS[varint], 8)


def test_a_negative_length_is_refused_where_null_is(program_class: ProgramClass) -> None:
    data = b"\x81\x80\x80\x80\x08\0\0\0\1\2m\0\0"
    schema = registry["HeartbeatRequest"].schema
    with pytest.raises(DecodeError) as caught:
        read(program_class, "HeartbeatRequest", data, 4)
    with pytest.raises(DecodeError) as by_construct:
        parse_with_construct(schema, 4, data, strict=False)
    for raised in (caught.value, by_construct.value):
        assert (raised.kind, raised.offset) == ("length", 0)


def test_a_negative_number_of_tags_is_none(program_class: ProgramClass) -> None:
    for count in (b"\x80\x80\x80\x80\x08", b"\xff\xff\xff\xff\x0f"):
        data = b"\2g\0\0\0\1\2m\0" + count
        assert read(program_class, "HeartbeatRequest", data, 4).unknown_tags == ()
        parsed = parse_with_construct(registry["HeartbeatRequest"].schema, 4, data, strict=False)
        assert parsed.unknown_tags == ()
        for name, version in (("FetchRequest", 15), ("ApiVersionsResponse", 3)):  # with tags of their own
            whole = kw.encode(registry[name].cls(), version)
            assert whole.endswith(b"\0")
            message = read(program_class, name, whole[:-1] + count, version)
            assert message == registry[name].decode(whole, version)


@pytest.mark.parametrize("backend", BACKENDS)
def test_java_ints_in_columns(backend: str) -> None:
    decode = decoder(backend, ["SyncGroupRequest"], form="message", strict=False)
    frames = [SYNC_5 % varint for varint in LENGTHS] + [b""]
    frames[-1] = (SYNC_5 % b"\0")[:-1] + b"\xff\xff\xff\xff\x0f"
    batch = decode.decode(pa.array(frames, pa.binary()), versions=5)
    kinds = [*LENGTHS.values(), None]
    assert batch["error"].to_pylist() == kinds
    assert [row is None for row in batch["SyncGroupRequest"].to_pylist()] == [kind is not None for kind in kinds]


def test_a_latin_1_client_id_is_read() -> None:
    frame = kw.encode_request(kw.HeartbeatRequest(group_id="g"), 4, client_id="J?rg").replace(b"?", b"\xf6")
    assert kw.peek_request(frame, strict=False).client_id == "J\ufffdrg"
    assert kw.decode_request(frame, strict=False)[0].client_id == "J\ufffdrg"
    with pytest.raises(DecodeError, match="UTF-8"):
        kw.decode_request(frame)
