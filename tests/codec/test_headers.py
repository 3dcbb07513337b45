"""Frames: which header stands before which message, for every api and version, and how broken frames are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import kcoord_wire as kw
from kcoord_wire.codec.registry import MessageCodec
from tests.support.each import each
from tests.support.strategies import filled

KAFKA = [c for c in kw.registry.values() if c.header == "kafka" and c.type in ("request", "response")]
CENTRAL = [c for c in kw.registry.values() if c.family == "central"]


def versions(codecs: list[MessageCodec], kind: str) -> list[tuple[MessageCodec, int]]:
    return [(codec, version) for codec in codecs if codec.type == kind for version in codec.valid_versions]


@each("codec, version", versions(KAFKA, "request"))
def test_requests_are_decoded_and_encoded(codec: MessageCodec, version: int) -> None:
    message = filled(codec, version)
    body = kw.encode_request(message, version, correlation_id=-7, client_id="cl")
    assert body[:10] == bytes.fromhex(f"{codec.api_key:04x}{version:04x}fffffff90002")
    assert body[10:12] == b"cl"
    # Header 2 has a tag section, header 1 has none (KIP-482).
    flexible = version in codec.flexible_versions
    assert body[12:] == (b"\0" if flexible else b"") + codec.encode(message, version)
    header, request = kw.decode_request(body, family=codec.family)
    assert (header.request_api_key, header.request_api_version) == (codec.api_key, version)
    assert (header.correlation_id, header.client_id) == (-7, "cl")
    assert request == message
    assert kw.peek_request(body) == header
    with pytest.raises(kw.DecodeError) as caught:
        kw.decode_request(body + b"?", family=codec.family)
    assert (caught.value.kind, caught.value.offset, caught.value.path) == ("trailing", len(body), codec.name)


@each("codec, version", versions(KAFKA, "response"))
def test_responses_are_decoded_and_encoded(codec: MessageCodec, version: int) -> None:
    message = filled(codec, version)
    body = kw.encode_response(message, version, correlation_id=99)
    # Every flexible response has header 1 but ApiVersions, which is read before versions are agreed on (KIP-511).
    tagged = version in codec.flexible_versions and codec.name != "ApiVersionsResponse"
    assert body == b"\0\0\0\x63" + (b"\0" if tagged else b"") + codec.encode(message, version)
    # An api key alone names a message of Kafka's own family.
    for api in [codec.cls, codec.api_key][: 1 + (codec.family == "kafka")]:
        header, response = kw.decode_response(body, api, version)
        assert (header.correlation_id, response) == (99, message)


def test_a_null_client_id_and_the_header_without_one() -> None:
    body = kw.encode_request(kw.HeartbeatRequest(), 0)
    assert kw.decode_request(body)[0].client_id is None
    # ControlledShutdown v0 alone has the header without a client id; the rest of its bytes are its body.
    assert kw.peek_request(bytes.fromhex("0007 0000 00000005 00000001")).correlation_id == 5


def test_the_header_of_a_response_is_there_without_its_version() -> None:
    body = kw.encode_response(kw.HeartbeatResponse(), 4, correlation_id=-7)
    assert kw.peek_response(body) == kw.ResponseHeader(correlation_id=-7)
    assert kw.peek_response(memoryview(body)[:4]).correlation_id == -7
    with pytest.raises(kw.DecodeError) as caught:
        kw.peek_response(body[:3])
    assert (caught.value.kind, caught.value.offset, caught.value.path) == (
        "truncated",
        0,
        "ResponseHeader.correlation_id",
    )


@pytest.mark.parametrize(
    ("body", "kind", "offset", "path"),
    [
        ("", "truncated", 0, "RequestHeader.request_api_key"),
        ("000c", "truncated", 2, "RequestHeader.request_api_version"),
        ("000c 0000 0000", "truncated", 4, "RequestHeader.correlation_id"),
        ("000c 0000 00000001 0005 61", "truncated", 8, "RequestHeader.client_id"),
        ("000c 0000 00000001 0001 ff", "utf8", 10, "RequestHeader.client_id"),
        ("0bad 0000 00000001 ffff", "api", 0, "RequestHeader.request_api_key"),
        ("000c 0063 00000001 ffff", "version", 2, "HeartbeatRequest"),
        ("000c 0004 00000001 ffff", "truncated", 10, "RequestHeader.unknown_tags"),
        ("000c 0000 00000001 ffff 0003 61", "truncated", 10, "HeartbeatRequest.group_id"),
    ],
)
def test_malformed_requests_are_refused(body: str, kind: str, offset: int, path: str) -> None:
    with pytest.raises(kw.DecodeError) as caught:
        kw.decode_request(bytes.fromhex(body))
    assert (caught.value.kind, caught.value.offset, caught.value.path) == (kind, offset, path)


def test_a_broker_that_does_not_know_the_version_of_api_versions() -> None:
    """KIP-511: the answer is in version 0, whatever was asked for; a body that is neither keeps its own error."""
    refusal = kw.ApiVersionsResponse(
        error_code=35, api_keys=[kw.ApiVersionsResponseApiVersion(api_key=18, min_version=0, max_version=2)]
    )
    body = kw.encode_response(refusal, 0, correlation_id=3)
    header, response = kw.decode_response(body, 18, 4)
    assert (header.correlation_id, response) == (3, refusal)
    with pytest.raises(kw.DecodeError) as caught:
        kw.decode_response(bytes.fromhex("00000003 0023 7f"), 18, 3)
    assert (caught.value.kind, caught.value.path) == ("truncated", "ApiVersionsResponse.api_keys")
    with pytest.raises(kw.DecodeError):
        kw.decode_response(bytes.fromhex("00000003 0000 00000000"), 18, 3)


FRAMED = """{{ "apiKey": {key}, "type": "{type}", "name": "{name}",
    "validVersions": "0-1", "flexibleVersions": "{flexible}", "family": "{family}", "header": "{header}",
    "fields": [ {{ "name": "A", "type": "int8", "versions": "0+" }} ] }}"""


def compiled(folder: Path, *schemas: dict[str, object]) -> kw.Registry:
    usual = {"key": 5, "type": "request", "flexible": "none", "family": "mine", "header": "kafka"}
    for schema in schemas:
        (folder / f"{schema['name']}.json").write_text(FRAMED.format(**usual | schema))
    return kw.compile_schemas(folder)


def test_the_header_is_what_the_schema_says(tmp_path: Path) -> None:
    own = compiled(
        tmp_path,
        {"name": "TypedRequest", "header": "typeId"},
        {"name": "BareRequest", "family": "bare", "header": "none"},
        {"name": "ControlledShutdownRequest", "key": 7, "family": "kafka"},
        {"name": "OtherRequest", "key": 7, "family": "other"},
        {"name": "OtherResponse", "key": 18, "family": "other", "type": "response", "flexible": "0+"},
    )
    framed = {
        ("TypedRequest", 0): "0005 01",
        ("BareRequest", 0): "01",
        ("ControlledShutdownRequest", 0): "0007 0000 00000000 01",  # the one header without a client id
        ("ControlledShutdownRequest", 1): "0007 0001 00000000 ffff 01",
        ("OtherRequest", 0): "0007 0000 00000000 ffff 01",
    }
    for (name, version), expected in framed.items():
        message, family = own[name].cls(a=1), own[name].family
        body = kw.encode_request(message, version, registry=own)
        assert body == bytes.fromhex(expected)
        if name != "BareRequest":
            assert kw.decode_request(body, family=family, registry=own)[1] == message
    with pytest.raises(kw.DecodeError, match="no header that identifies them"):
        kw.decode_request(b"\1", family="bare", registry=own)
    # The exception of ApiVersions is that of Kafka's api key 18 alone.
    answer = own["OtherResponse"].cls(a=1)
    assert kw.encode_response(answer, 0, registry=own) == bytes.fromhex("00000000 00 01 00")


def test_two_requests_with_one_api_key_are_refused(tmp_path: Path) -> None:
    with pytest.raises(kw.SchemaError, match="5 is the api key of the request ARequest too, in the family mine"):
        compiled(tmp_path, {"name": "ARequest"}, {"name": "BRequest"})


def test_a_header_is_read_leniently() -> None:
    body = kw.encode_request(kw.HeartbeatRequest(member_id="m"), 0)
    assert kw.decode_request(body[:8] + b"\xff\xfe" + body[10:], strict=False)[0].client_id is None
    with pytest.raises(TypeError, match="HeartbeatRequest is not a response"):
        kw.decode_response(body, kw.HeartbeatRequest, 0)


def test_malformed_responses_are_refused() -> None:
    with pytest.raises(kw.DecodeError, match="no response of family kafka has api key 2989") as unknown:
        kw.decode_response(b"\0\0\0\1", 2989, 0)
    assert unknown.value.kind == "api"
    with pytest.raises(kw.DecodeError) as version:
        kw.decode_response(b"\0\0\0\1", 12, 77)
    assert version.value.kind == "version"
    with pytest.raises(kw.DecodeError) as short:
        kw.decode_response(b"\0\0\0", 12, 0)
    assert (short.value.kind, short.value.path) == ("truncated", "ResponseHeader.correlation_id")


def test_messages_without_a_header_cannot_be_framed() -> None:
    with pytest.raises(TypeError, match="HeartbeatResponse is not a request"):
        kw.encode_request(kw.HeartbeatResponse(), 0)
    with pytest.raises(TypeError, match="HeartbeatRequest is not a response"):
        kw.encode_response(kw.HeartbeatRequest(), 0)
    with pytest.raises(kw.EncodeError) as caught:
        kw.encode_request(kw.HeartbeatRequest(), 0, correlation_id=2**31)
    assert caught.value.path == "RequestHeader.correlation_id"


HEADERLESS = (
    "CentralFetchResponse",
    "CentralStatusResponse",
    "ClusterMetadataResponse",
    "RegisterConsumerResponse",
)


@pytest.mark.parametrize("codec", CENTRAL, ids=lambda codec: codec.name)
def test_the_drafts_frames(codec: MessageCodec) -> None:
    """A type id before requests and most responses: "the 0.8 consumer-coordinator draft", sections 7 and 11."""
    message = filled(codec, 0)
    has_type_id = codec.name not in HEADERLESS
    expected = (codec.api_key.to_bytes(2, "big") if has_type_id else b"") + codec.encode(message, 0)
    if codec.type == "request":
        body = kw.encode_request(message, 0)
        assert kw.decode_request(body, family="central") == (kw.TypeIdHeader(codec.api_key), message)
    else:
        body = kw.encode_response(message, 0)
        header = kw.TypeIdHeader(codec.api_key) if has_type_id else None
        assert kw.decode_response(body, codec.cls, 0) == (header, message)
    assert body == expected


def test_malformed_frames_of_the_draft_are_refused() -> None:
    for body, kind in ((b"\0", "truncated"), (b"\x7f\xff", "api")):
        with pytest.raises(kw.DecodeError) as caught:
            kw.decode_request(body, family="central")
        assert (caught.value.kind, caught.value.path) == (kind, "TypeIdHeader.request_type_id")
    with pytest.raises(kw.DecodeError, match="type id 1 is not that of PingResponse"):
        kw.decode_response(b"\0\1\0\0\0\0", kw.messages.central.PingResponse, 0)


@pytest.mark.parametrize("version", range(4))
def test_blobs_with_their_version_before_them(version: int) -> None:
    subscription = kw.ConsumerProtocolSubscription(topics=["a", "b"], user_data=b"u")
    blob = kw.encode_prefixed(subscription, version)
    assert blob[:2] == version.to_bytes(2, "big")
    assert kw.decode_prefixed(kw.ConsumerProtocolSubscription, blob) == (version, subscription)
    with pytest.raises(kw.DecodeError) as caught:
        kw.decode_prefixed(kw.ConsumerProtocolSubscription, blob + b"?")
    assert (caught.value.kind, caught.value.offset) == ("trailing", len(blob))


def test_a_blob_of_a_newer_version_is_read_as_our_newest() -> None:
    blob = b"\0\x09" + kw.encode_prefixed(kw.ConsumerProtocolSubscription(topics=["a"], rack_id="r"), 3)[2:] + b"more"
    version, subscription = kw.decode_prefixed(kw.ConsumerProtocolSubscription, blob)
    assert (version, subscription.topics, subscription.rack_id) == (9, ["a"], "r")


@pytest.mark.parametrize(("blob", "kind"), [(b"", "truncated"), (b"\0", "truncated"), (b"\xff\xff", "version")])
def test_blobs_without_a_version(blob: bytes, kind: str) -> None:
    with pytest.raises(kw.DecodeError) as caught:
        kw.decode_prefixed(kw.ConsumerProtocolAssignment, blob)
    assert (caught.value.kind, caught.value.offset) == (kind, 0)
