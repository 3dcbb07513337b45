"""How programs use the codec, for type checkers: what they should conclude is asserted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type

import kcoord_wire as kw
from kcoord_wire.messages.request_header import RequestHeader
from kcoord_wire.messages.response_header import ResponseHeader
from kcoord_wire.protocol.error_codes import ErrorCode


def bodies(data: bytes) -> bytes:
    heartbeat = kw.decode(kw.HeartbeatRequest, data, version=3)
    assert_type(heartbeat, kw.HeartbeatRequest)
    codec = kw.registry.by_class(kw.HeartbeatRequest)
    assert_type(codec, kw.MessageCodec[kw.HeartbeatRequest])
    assert_type(codec.decode(data, 3), kw.HeartbeatRequest)
    assert_type(codec.decode_prefix(data, 3, offset=2), tuple[kw.HeartbeatRequest, int])
    assert_type(codec.cls(), kw.HeartbeatRequest)
    assert_type(kw.registry["HeartbeatRequest"].decode(data, 3), Any)
    version, subscription = kw.decode_prefixed(kw.ConsumerProtocolSubscription, data)
    assert_type(version, int)
    assert_type(subscription.topics, list[str])
    return codec.encode(heartbeat, 3) + kw.encode(heartbeat, version=4)


def members(body: bytes) -> list[str]:
    header, response = kw.decode_response(body, kw.JoinGroupResponse, 7)
    assert_type(header, ResponseHeader | Any)
    assert_type(response, kw.JoinGroupResponse)
    return [f"{member.member_id} {len(member.metadata)}" for member in response.members]


def group(body: bytes) -> str | None:
    header, request = kw.decode_request(body)
    assert_type(header, RequestHeader)
    match request:
        case kw.JoinGroupRequest(group_id=group_id, group_instance_id=instance):
            assert_type(group_id, str)
            assert_type(instance, str | None)
            return group_id
        case kw.HeartbeatRequest():
            return request.group_id
        case _:
            return header.client_id


def errors(response: kw.HeartbeatResponse) -> str:
    error = ErrorCode(response.error_code)
    assert_type(error, ErrorCode)
    assert_type(error.retriable, bool)
    assert_type(error.meaning, str)
    assert_type(error.value, int)
    names = [f"{each.value} {each.name}" for each in ErrorCode if each.retriable and each is not ErrorCode.NONE]
    return ", ".join([kw.error_codes.describe_error(response.error_code), *names])


@dataclass(slots=True, kw_only=True)
class Counted(kw.HeartbeatRequest):
    """A program's own subclass of a message."""

    count: int = 0


def checked(message: kw.JoinGroupRequest) -> list[str]:
    findings = kw.check(message, 7)
    assert_type(findings, tuple[kw.Finding, ...])
    assert_type(findings[0].error, ErrorCode | None)
    return [f"{finding.path} {finding.rule}" for finding in findings]


def own_classes(folder: str) -> bytes:
    own = kw.compile_schemas(folder)
    message = own["PingRequest"].cls()
    return kw.encode(Counted(group_id="g"), 4) + kw.encode_prefixed(message, 0, registry=own)


def refused(data: bytes) -> str:
    try:
        assert_type(kw.decode_response(data, 12, 4), tuple[ResponseHeader, Any])
    except kw.DecodeError as error:
        return f"{error.kind} at {error.offset} in {error.path}"
    return ""
