"""Whole frames: native, pure Python and construct read the same header and message, or find the same fault; what strict
mode read is written with its header and read back equal.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from fuzz.shapes import choose
from tests.support.frame_readers import (
    native_frames,
    outcome,
    pure_frames,
    request_by_construct,
    response_by_construct,
)


def check(data: bytes) -> None:
    """`data`: a frame body behind a message's selector, which names the family of a request, and all of a response."""
    codec, version, body = choose(data)
    is_response = codec.type == "response"
    for strict in (True, False):
        outcomes = []
        for frames in (native_frames(), pure_frames()):
            for buffer in (body, bytearray(body)):
                if is_response:
                    outcomes.append(outcome(frames.decode_response, buffer, codec.cls, version, strict=strict))
                else:
                    outcomes.append(outcome(frames.decode_request, buffer, family=codec.family, strict=strict))
        if is_response and codec.header == "kafka" and codec.name != "ApiVersionsResponse":
            outcomes.append(outcome(response_by_construct, body, codec, version, strict))
        elif not is_response and codec.family == "kafka":
            outcomes.append(outcome(request_by_construct, body, strict))
        first = outcomes[0]
        assert all(other == first or repr(other) == repr(first) for other in outcomes), outcomes
        if strict and first[0] == "value" and codec.name != "ApiVersionsResponse":
            read_back(first[1], version, codec.family)


def read_back(read: tuple[Any, Any], version: int, family: str) -> None:
    header, message = read
    for frames in (native_frames(), pure_frames()):
        if hasattr(header, "request_api_version"):
            again = frames.encode_request(message, header.request_api_version, header=header)
            decode = partial(frames.decode_request, family=family)
        elif type(message).__name__.endswith("Request"):
            again = frames.encode_request(message, 0, header=header)
            decode = partial(frames.decode_request, family=family)
        else:
            again = frames.encode_response(message, version, header=header)
            decode = partial(frames.decode_response, api=type(message), version=version)
        assert repr(decode(again)) == repr(read)
