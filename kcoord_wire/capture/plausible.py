"""Does a frame start here? Asked where a capture begins midway or has a hole.

A request is told by its header: a size within bounds, an api key that Kafka has given out, a small version, a printable
client id; then by its body, which has to decode to its last byte. A response has nothing of the kind, so it is told by
the correlation id of a request that waits for it, and by decoding as the answer to that request.
"""

from __future__ import annotations

import re
from typing import Final

from kcoord_wire.api_keys import API_NAMES
from kcoord_wire.capture.answers import Waiting, is_known
from kcoord_wire.capture.splitter import JUDGED_BYTES, FrameSplitter, Verdict
from kcoord_wire.codec.framing import SIZE_BYTES
from kcoord_wire.codec.headers import decode_request, decode_response
from kcoord_wire.errors import DecodeError

__all__ = [
    "LIKELY_REQUEST",
    "LIKELY_RESPONSE",
    "judge_request",
    "judge_request_header",
    "judge_response",
    "request_splitter",
    "response_splitter",
]

# Lookaheads, so that they match at every place. With the first, 4 MiB of noise are searched in 0.08 s instead of 2.5 s
# (tests/capture/test_frames.py, test_an_endless_search_holds_a_window_at_most, twice over).
LIKELY_REQUEST: Final = re.compile(rb"(?=[\x00-\x7f]...\x00.\x00)", re.DOTALL)
"""A size that is not negative, an api key and a version below 256."""
LIKELY_RESPONSE: Final = re.compile(rb"(?=[\x00-\x7f])")
"""A size that is not negative."""

_SMALLEST_REQUEST: Final = 10  # api key, version, correlation id, length of the client id
_SMALLEST_RESPONSE: Final = 4
_LARGEST_VERSION: Final = 31  # the highest so far is 18
_LONGEST_CLIENT_ID: Final = 255


def judge_request_header(buffer: bytes | bytearray, start: int, max_frame_size: int) -> Verdict:
    """Whether a request's size and header start at `start`; MORE if the buffer ends within them."""
    if len(buffer) - start < JUDGED_BYTES:
        return Verdict.MORE
    if buffer[start + 4] or buffer[start + 6]:  # api key and version are below 256
        return Verdict.NO
    size = _int(buffer, start, 4)
    if not _SMALLEST_REQUEST <= size <= max_frame_size:
        return Verdict.NO
    if buffer[start + 5] not in API_NAMES or buffer[start + 7] > _LARGEST_VERSION or _int(buffer, start + 8, 4) < 0:
        return Verdict.NO
    length = _int(buffer, start + 12, 2)
    if not -1 <= length <= min(_LONGEST_CLIENT_ID, size - _SMALLEST_REQUEST):
        return Verdict.NO
    client_id = buffer[start + JUDGED_BYTES : start + JUDGED_BYTES + max(0, length)]
    if len(client_id) < length:
        return Verdict.MORE
    try:
        return Verdict.YES if client_id.decode().isprintable() else Verdict.NO
    except UnicodeDecodeError:
        return Verdict.NO


def judge_request(buffer: bytes | bytearray, start: int, max_frame_size: int) -> Verdict:
    """Whether a whole request starts at `start`, with nothing or the start of another behind it."""
    verdict = judge_request_header(buffer, start, max_frame_size)
    if verdict is not Verdict.YES:
        return verdict
    end = start + SIZE_BYTES + _int(buffer, start, 4)
    if end > len(buffer):
        return Verdict.MORE
    if judge_request_header(buffer, end, max_frame_size) is Verdict.NO:
        return Verdict.NO
    if is_known(buffer[start + 5]):
        try:
            decode_request(bytes(buffer[start + SIZE_BYTES : end]))
        except DecodeError:
            return Verdict.NO
    return Verdict.YES


def judge_response(buffer: bytes | bytearray, start: int, max_frame_size: int, waiting: Waiting) -> Verdict:
    """Whether the whole response to a request that waits starts at `start`, with nothing or a likely size behind it."""
    size, correlation_id = _int(buffer, start, 4), _int(buffer, start + 4, 4)
    if not _SMALLEST_RESPONSE <= size <= max_frame_size or correlation_id not in waiting:
        return Verdict.NO
    end = start + SIZE_BYTES + size
    if end > len(buffer):
        return Verdict.MORE
    if end + SIZE_BYTES <= len(buffer) and not _SMALLEST_RESPONSE <= _int(buffer, end, 4) <= max_frame_size:
        return Verdict.NO
    asked = waiting[correlation_id]
    if is_known(asked.api_key):
        try:
            decode_response(bytes(buffer[start + SIZE_BYTES : end]), asked.api_key, asked.api_version)
        except DecodeError:
            return Verdict.NO
    return Verdict.YES


def request_splitter(max_frame_size: int, *, in_step: bool) -> FrameSplitter:
    """Cuts what a client sends. The parameters are those of `FrameSplitter`."""
    return FrameSplitter(
        max_frame_size,
        lambda buffer, start: judge_request(buffer, start, max_frame_size),
        LIKELY_REQUEST,
        in_step=in_step,
    )


def response_splitter(max_frame_size: int, waiting: Waiting, *, in_step: bool) -> FrameSplitter:
    """Cuts what a broker sends to a client whose requests wait in `waiting`."""
    return FrameSplitter(
        max_frame_size,
        lambda buffer, start: judge_response(buffer, start, max_frame_size, waiting),
        LIKELY_RESPONSE,
        in_step=in_step,
    )


def _int(buffer: bytes | bytearray, start: int, size: int) -> int:
    return int.from_bytes(buffer[start : start + size], "big", signed=True)
