"""Whole frames: native, pure and construct agree on good and damaged ones; headers survive decoding and encoding."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kcoord_wire as kw
from kcoord_wire.codec.frames import Frames
from kcoord_wire.codec.registry import MessageCodec, registry
from kcoord_wire.errors import DecodeError
from tests.support.backends import BACKENDS
from tests.support.each import each
from tests.support.frame_readers import (
    native_frames,
    outcome,
    pure_frames,
    request_by_construct,
    response_by_construct,
)
from tests.support.strategies import filled, messages

FRAMED = [c for c in registry.values() if c.header == "kafka" and c.type in ("request", "response")]
KAFKA = [c for c in FRAMED if c.family == "kafka"]
PREFIXED = [c for c in registry.values() if c.schema.encoding == "binary" and c.type not in ("request", "response")]
TAGS = ((3, b"abc"), (70_000, b""))
EXAMPLES = 8  # of each message
SAMPLE = 6  # prefixes and changed bytes of each version; of its oldest and newest, the first bytes as well
FIRST = 64  # bytes, the header and what follows it; every place of a message is the matter of test_golden
REPLACEMENTS = (0x00, 0x01, 0x7F, 0x80, 0xFF)


@pytest.fixture(params=BACKENDS)
def frames(request: pytest.FixtureRequest) -> Any:
    return pure_frames() if request.param == "python" else native_frames()


def header_of(codec: MessageCodec, version: int) -> Any:
    """A header in which every field holds something."""
    tags = TAGS if version in codec.flexible_versions else ()
    if codec.type == "request":
        return kw.RequestHeader(
            request_api_key=codec.api_key, request_api_version=version, correlation_id=-7, client_id="cl",
            unknown_tags=tags,
        )  # fmt: skip
    return kw.ResponseHeader(correlation_id=99, unknown_tags=tags if codec.name != "ApiVersionsResponse" else ())


def encode(frames: Any, codec: MessageCodec, message: Any, version: int, **options: Any) -> bytes:
    call = frames.encode_request if codec.type == "request" else frames.encode_response
    body: bytes = call(message, version, **options)
    return body


def decode(frames: Any, codec: MessageCodec, body: Any, version: int, strict: bool = True) -> tuple[Any, ...]:
    if codec.type == "request":
        return outcome(frames.decode_request, body, family=codec.family, strict=strict)
    return outcome(frames.decode_response, body, codec.cls, version, strict=strict)


def read_alike(codec: MessageCodec, version: int, body: bytes, strict: bool, slow: bool = True) -> tuple[Any, ...]:
    """The outcome of decoding a frame, the same of all codecs; without construct, the slow one, where not `slow`."""
    outcomes = [decode(pure_frames(), codec, body, version, strict)]
    if "native" in BACKENDS:
        outcomes.append(decode(native_frames(), codec, body, version, strict))
        outcomes.append(decode(native_frames(), codec, bytearray(body), version, strict))
    if slow and codec.family == "kafka" and codec.type == "request":
        outcomes.append(outcome(request_by_construct, body, strict))
    elif slow and codec.family == "kafka" and codec.name != "ApiVersionsResponse":
        outcomes.append(outcome(response_by_construct, body, codec, version, strict))
    first = outcomes[0]
    assert all(other == first or repr(other) == repr(first) for other in outcomes), (codec.name, version, outcomes)
    return first


@each("codec", FRAMED)
def test_the_header_survives_decoding_and_encoding(frames: Any, codec: MessageCodec) -> None:
    for version in codec.valid_versions:
        header, message = header_of(codec, version), filled(codec, version)
        body = encode(frames, codec, message, version, header=header)
        assert decode(frames, codec, body, version) == ("value", (header, message))
        names = ["correlation_id", "client_id"] if codec.type == "request" else ["correlation_id"]
        plain = encode(frames, codec, message, version, **{name: getattr(header, name) for name in names})
        assert plain == encode(frames, codec, message, version, header=replace(header, unknown_tags=()))


@pytest.mark.parametrize("codec", KAFKA, ids=lambda codec: codec.name)
def test_drawn_frames_are_written_as_they_were(codec: MessageCodec) -> None:
    """decode, then encode with the header: the same bytes, header tags included."""
    tags = st.dictionaries(st.integers(0, 2**32 - 1), st.binary(max_size=3), max_size=2)
    versions = st.sampled_from(codec.valid_versions)

    @settings(max_examples=EXAMPLES)
    @given(versions.flatmap(lambda v: st.tuples(st.just(v), messages(codec, v))), tags, st.none() | st.text(max_size=3))
    def check(drawn: tuple[int, Any], tags: dict[int, bytes], client_id: str | None) -> None:
        version, message = drawn
        header = header_of(codec, version)
        if header.unknown_tags:
            header.unknown_tags = tuple(sorted(tags.items()))
        if codec.type == "request":
            header.client_id = client_id
        body = encode(pure_frames(), codec, message, version, header=header)
        kind, (read_header, read) = read_alike(codec, version, body, True)
        assert (kind, read_header) == ("value", header)
        for frames in [pure_frames(), native_frames()][: len(BACKENDS)]:
            assert encode(frames, codec, read, version, header=read_header) == body

    check()


@pytest.mark.parametrize("codec", KAFKA, ids=lambda codec: codec.name)
def test_cut_and_damaged_frames_are_refused_alike(codec: MessageCodec) -> None:
    rng = random.Random(codec.name)
    for version in codec.valid_versions:
        body = encode(pure_frames(), codec, filled(codec, version), version, header=header_of(codec, version))
        some = sorted(rng.sample(range(len(body)), min(SAMPLE, len(body))))
        whole = version in (codec.valid_versions[0], codec.valid_versions[-1])
        for size in [*range(min(FIRST, len(body))), *some] if whole else some:
            refused = read_alike(codec, version, body[:size], True, size == some[0])
            assert refused[:2] == ("DecodeError", "truncated"), size
        for at in [*range(min(12, len(body))), *some] if whole else some:
            changed = body[:at] + bytes([rng.choice(REPLACEMENTS)]) + body[at + 1 :]
            for strict in (True, False):
                read_alike(codec, version, changed, strict, at == some[-1])
        assert read_alike(codec, version, body + b"?", True)[:3] == ("DecodeError", "trailing", len(body))
        assert read_alike(codec, version, body + b"?", False)[0] == "value"


def heartbeat(**changes: Any) -> Any:
    fields = {"request_api_key": 12, "request_api_version": 4, "correlation_id": 5, "client_id": "c"}
    return kw.RequestHeader(**fields | changes)


@pytest.mark.parametrize(
    ("header", "options", "complaint"),
    [
        (heartbeat(), {"correlation_id": 5}, "its own correlation id"),
        (heartbeat(), {"client_id": "c"}, "its own correlation id"),
        (heartbeat(), {"client_id": ""}, "its own correlation id"),
        (heartbeat(request_api_version=3), {}, "of api key 12 at version 3"),
        (heartbeat(request_api_key=11), {}, "of api key 11 at version 4"),
        (kw.ResponseHeader(), {}, "is not the header of HeartbeatRequest"),
        (kw.TypeIdHeader(12), {}, "is not the header of HeartbeatRequest"),
        (5, {}, "5 is not the header"),
    ],
)
def test_arguments_that_conflict_are_a_type_error(frames: Any, header: Any, options: Any, complaint: str) -> None:
    with pytest.raises(TypeError, match=complaint):
        frames.encode_request(kw.HeartbeatRequest(), 4, header=header, **options)


def test_a_response_header_that_conflicts_is_a_type_error(frames: Any) -> None:
    with pytest.raises(TypeError, match="its own correlation id"):
        frames.encode_response(kw.HeartbeatResponse(), 4, header=kw.ResponseHeader(), correlation_id=1)
    with pytest.raises(TypeError, match="is not the header of HeartbeatResponse"):
        frames.encode_response(kw.HeartbeatResponse(), 4, header=heartbeat())


def test_the_headers_of_the_draft(frames: Any) -> None:
    ping = registry["PingResponse"]
    body = frames.encode_response(ping.cls(), 0, header=kw.TypeIdHeader(ping.api_key))
    assert body == frames.encode_response(ping.cls(), 0)
    for wrong in (kw.TypeIdHeader(ping.api_key + 1), kw.ResponseHeader()):
        with pytest.raises(TypeError, match="is not the header of PingResponse"):
            frames.encode_response(ping.cls(), 0, header=wrong)
    bare = registry["CentralFetchResponse"]
    assert frames.encode_response(bare.cls(), 0, header=None) == bare.encode(bare.cls(), 0)
    with pytest.raises(TypeError, match="is not the header of CentralFetchResponse"):
        frames.encode_response(bare.cls(), 0, header=kw.TypeIdHeader(1))


def test_a_header_that_cannot_be_written(frames: Any) -> None:
    request = kw.HeartbeatRequest()
    assert outcome(frames.encode_request, request, 3, header=heartbeat(request_api_version=3, unknown_tags=TAGS)) == (
        "EncodeError", "tag", "RequestHeader.unknown_tags"
    )  # fmt: skip
    for changes, kind, path in (
        ({"correlation_id": 2**31}, "range", "correlation_id"),
        ({"client_id": 7}, "type", "client_id"),
        ({"client_id": "x" * 0x8000}, "length", "client_id"),
        ({"unknown_tags": ((2, b""), (1, b""))}, "tag", "unknown_tags"),
    ):
        expected = ("EncodeError", kind, f"RequestHeader.{path}")
        assert outcome(frames.encode_request, request, 4, header=heartbeat(**changes)) == expected
    # The message's own fault comes first.
    bad = kw.HeartbeatRequest(group_id=None)
    expected = ("EncodeError", "null", "HeartbeatRequest.group_id")
    assert outcome(frames.encode_request, bad, 4, correlation_id=2**31) == expected
    assert outcome(frames.encode_request, bad, 4, header=heartbeat(correlation_id=2**31)) == expected


def test_numbers_that_are_no_exact_ints(frames: Any) -> None:
    class Number(int): ...

    message = kw.HeartbeatRequest(group_id="g")
    body = frames.encode_request(message, 4, correlation_id=5, client_id="c")
    assert frames.encode_request(message, Number(4), correlation_id=Number(5), client_id="c") == body
    assert frames.encode_request(message, 4, header=heartbeat(correlation_id=Number(5))) == body
    assert frames.encode_request(message, 4, header=heartbeat(request_api_key=Number(12))) == body
    response = frames.encode_response(kw.HeartbeatResponse(), 4)
    assert frames.decode_response(response, Number(12), Number(4))[1] == kw.HeartbeatResponse()
    for version in (77, -1, None, "4"):
        assert outcome(frames.decode_response, response, 12, version)[:2] == ("DecodeError", "version")
        assert outcome(frames.encode_response, kw.HeartbeatResponse(), version)[:2] == ("EncodeError", "version")


def test_a_subclass_is_framed_as_what_it_inherits(frames: Any) -> None:
    class Mine(kw.HeartbeatRequest): ...

    class MyHeader(kw.RequestHeader): ...

    plain = frames.encode_request(kw.HeartbeatRequest(group_id="g"), 4, header=heartbeat(unknown_tags=TAGS))
    header = MyHeader(
        request_api_key=12, request_api_version=4, correlation_id=5, client_id="c", unknown_tags=TAGS
    )  # fmt: skip
    assert frames.encode_request(Mine(group_id="g"), 4, header=header) == plain


def test_an_error_of_the_callers_own_code_is_raised(frames: Any) -> None:
    class Broken:
        def __index__(self) -> int:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        frames.encode_request(kw.HeartbeatRequest(generation_id=Broken()), 4)
    with pytest.raises(ZeroDivisionError):
        frames.encode_response(kw.HeartbeatResponse(), 4, correlation_id=Broken())


def test_what_is_no_run_of_bytes_is_a_type_error(frames: Any) -> None:
    body = frames.encode_request(kw.HeartbeatRequest(group_id="g"), 4)
    for wrong in (None, "text", 5, memoryview(body * 2)[::2]):
        with pytest.raises(TypeError):
            frames.decode_request(wrong)
        with pytest.raises(TypeError):
            frames.decode_response(wrong, 12, 4)


@pytest.mark.parametrize("wide", ["B", "H", "I", "d"])
def test_views_of_wider_elements(frames: Any, wide: str) -> None:
    for member in range(8):
        body = frames.encode_request(kw.HeartbeatRequest(group_id="g", member_id="m" * member), 4)
        if len(body) % memoryview(bytes(8)).cast(wide).itemsize == 0:
            view = memoryview(body).cast(wide)
            assert frames.decode_request(view) == frames.decode_request(body)
            short = outcome(frames.decode_request, memoryview(body[:-8]).cast(wide))
            assert short == outcome(frames.decode_request, body[:-8])


def test_a_bytearray_can_be_resized_after_it_was_read(frames: Any) -> None:
    body = bytearray(frames.encode_request(kw.HeartbeatRequest(group_id="g"), 4))
    for size in (len(body), len(body) - 1, 3):  # good, and refused in the body and in the header
        del body[size:]
        outcome(frames.decode_request, body)
        body.extend(b"\0" * 1000)
        del body[-1000:]


SCHEMA = """{ "apiKey": %d, "type": "%s", "name": "%s", "family": "kafka", "validVersions": "0-3",
    "flexibleVersions": "2+", "fields": [ { "name": "A", "type": "int64", "versions": "0+" } ] }"""


def test_frames_of_a_compiled_registry(tmp_path: Path) -> None:
    for name, key, kind in (
        ("OwnRequest", 12, "request"),
        ("OwnResponse", 12, "response"),
        ("FarRequest", 32767, "request"),
    ):
        (tmp_path / f"{name}.json").write_text(SCHEMA % (key, kind, name))
    own = kw.compile_schemas(tmp_path)
    assert own.frames is own.frames
    for name in ("OwnRequest", "FarRequest"):
        message = own[name].cls(a=7)
        for version in range(4):
            body = kw.encode_request(message, version, correlation_id=1, client_id="c", registry=own)
            assert own.frames.encode_request(message, version, correlation_id=1, client_id="c") == body
            header, read = kw.decode_request(body, registry=own)
            assert read == message
            assert kw.encode_request(read, version, header=header, registry=own) == body
    response = own["OwnResponse"].cls(a=7)
    body = kw.encode_response(response, 3, correlation_id=1, registry=own)
    for api in (12, own["OwnResponse"].cls):
        assert kw.decode_response(body, api, 3, registry=own)[1] == response
    # The same key in the package's own registry is another message.
    with pytest.raises(DecodeError):
        kw.decode_response(body, 12, 3)
    with pytest.raises(TypeError, match="not a message class of this registry"):
        kw.encode_response(response, 3)


def test_a_form_is_not_kept_for_what_a_peer_makes_up() -> None:
    """Api keys and versions that are unknown are asked for each time: a peer could send 2^32 of them."""
    asked: list[tuple[Any, ...]] = []

    class Counted(Frames):
        def form(self, kind: str, api: Any, version: int, family: str = "kafka") -> Any:
            asked.append((kind, api, version))
            return super().form(kind, api, version, family)

    twin = Counted(registry, registry)
    if "native" not in BACKENDS:
        assert twin.form("request", 12, 99) is None
        return
    frames = import_module("kcoord_wire._native").Frames(twin)
    good = frames.encode_request(kw.HeartbeatRequest(), 4)
    asked.clear()
    for _ in range(2):
        for body in (good, b"\0\x0c\0\x63" + good[4:], b"\x7f\xff\0\0" + good[4:]):
            outcome(frames.decode_request, body)
    assert asked.count(("request", 12, 4)) == 1
    assert asked.count(("request", 12, 99)) == asked.count(("request", 32767, 0)) == 2


@pytest.mark.skipif("native" not in BACKENDS, reason="compares the native core with the pure codec")
@each("codec", PREFIXED)
def test_blobs_with_their_version_native_and_pure(codec: MessageCodec) -> None:
    rng = random.Random(codec.name)
    for version in (*codec.valid_versions, codec.valid_versions.stop, -1):
        known = min(max(version, codec.valid_versions.start), codec.valid_versions[-1])
        good = version.to_bytes(2, "big", signed=True) + codec.encode(filled(codec, known), known)
        damaged = [good[: rng.randrange(len(good))] for _ in range(SAMPLE)]
        for _ in range(SAMPLE):
            at = rng.randrange(len(good))
            damaged.append(good[:at] + bytes([rng.choice(REPLACEMENTS)]) + good[at + 1 :])
        for blob in (good, good + b"?", good[:1], b"", *damaged):
            for strict in (True, False):
                expected = outcome(pure_frames().decode_prefixed, codec.cls, blob, strict=strict)
                for data in (blob, bytearray(blob), memoryview(blob)):
                    read = outcome(native_frames().decode_prefixed, codec.cls, data, strict=strict)
                    assert read == expected or repr(read) == repr(expected), (version, blob, strict)
        if version >= 0:
            assert native_frames().decode_prefixed(codec.cls, good) == (version, codec.decode(good[2:], known))


def test_blobs_that_are_none_of_the_registry(frames: Any) -> None:
    blob = kw.encode_prefixed(kw.ConsumerProtocolAssignment(), 1)
    for cls in (int, kw.messages.JoinGroupResponseMember, "ConsumerProtocolAssignment", []):
        with pytest.raises(TypeError):
            frames.decode_prefixed(cls, blob)
    for data in (None, "text", memoryview(blob)[::2]):
        with pytest.raises(TypeError):
            frames.decode_prefixed(kw.ConsumerProtocolAssignment, data)


def test_blobs_of_another_registry_and_of_a_subclass(frames: Any) -> None:
    schema = {"type": "data", "name": "Pair", "validVersions": "0-1", "flexibleVersions": "none"}
    fields = [{"name": "Left", "type": "int32", "versions": "0+"}]
    compiled = kw.compile_schemas({"Pair.json": json.dumps({**schema, "fields": fields})})
    pair = compiled["Pair"].cls(left=5)
    blob = kw.encode_prefixed(pair, 1, registry=compiled)
    assert frames.decode_prefixed(compiled["Pair"].cls, blob, registry=compiled) == (1, pair)
    with pytest.raises(TypeError, match="registry"):
        frames.decode_prefixed(compiled["Pair"].cls, blob)

    class Mine(kw.ConsumerProtocolAssignment):
        pass

    mine = frames.decode_prefixed(Mine, kw.encode_prefixed(kw.ConsumerProtocolAssignment(user_data=b"u"), 1))[1]
    assert type(mine) is Mine
    assert mine.user_data == b"u"
