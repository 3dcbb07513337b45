"""Whether a frame starts at a place: the decision where a capture begins midway or has a hole.

A request is recognised by its header: a size within bounds, an api key that Kafka has assigned, a small version, a
client id that fits. While searching, its whole body must decode too. A response is recognised by the correlation id of
a pending request, and by decoding as the answer to that request.

No rule is stricter than a Kafka broker's own: a correlation id may be negative, and a client id is null or any bytes,
as long as the size field of a string allows (32,767). A frame that a broker would serve is never the reason that a
connection is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Final, NamedTuple

from kcoord_wire.capture.splitter import ASSESSED_BYTES, Assess, FrameSplitter, Likely, Plausibility
from kcoord_wire.codec.framing import SIZE_BYTES, frame
from kcoord_wire.codec.pending import PendingRequests
from kcoord_wire.codec.registry import decode_request, decode_response, registry
from kcoord_wire.errors import DecodeError
from kcoord_wire.protocol.api_keys import API_NAMES

# They consume one byte, so that they match at every place, and begin with a literal one, which `re` finds by memchr. A
# larger frame than SEARCH_WINDOW and a packet (0x11ffff bytes) brings no direction back into step. This, and that a
# response needs a pending correlation id, is what makes a lossy capture take little more time than a whole one
# (tests/bench/lossy.py).
_SIZE: Final = rb"\x00(?=[\x00-\x11].."
_APIS: Final = b"[" + b"".join(re.escape(bytes([key])) for key in API_NAMES) + b"]"
_OF_CENTRAL: Final = rb"\x00[\x01\x05-\x09]"  # its type ids
LIKELY_REQUEST: Final = re.compile(_SIZE + rb"(?:\x00" + _APIS + rb"\x00[\x00-\x1f]|" + _OF_CENTRAL + rb"))", re.DOTALL)
"""A possible size; a known api key and a possible version, or a type id of the 0.8 draft."""
LIKELY_RESPONSE: Final = re.compile(_SIZE + rb")", re.DOTALL)
"""A possible size."""
_MAX_PREFIXES: Final = 16

_SMALLEST_REQUEST: Final = 10  # api key, version, correlation id, length of the client id
_SMALLEST_RESPONSE: Final = 4
_LARGEST_VERSION: Final = 31  # the highest so far is 18


class RequestHead(NamedTuple):
    """The fields of a request that its response needs to be decoded.

    :ivar family: ``rewrite`` of the consumer rewrite's JoinGroup
    """

    api_key: int
    api_version: int
    client_id: str | None
    family: str = "kafka"


def is_known(api_key: int) -> bool:
    """Whether the registry can decode this api."""
    try:
        registry.request(api_key)
    except KeyError:
        return False
    return True


def assess_request_header(buffer: bytes | bytearray, start: int, max_frame_size: int) -> Plausibility:
    """Whether a request's size and header start at `start`; MORE if the buffer ends within them."""
    if len(buffer) - start < ASSESSED_BYTES:
        return Plausibility.MORE
    if buffer[start + 4] or buffer[start + 6]:  # api key and version are below 256
        return Plausibility.NO
    size = _int(buffer, start, 4)
    if not _SMALLEST_REQUEST <= size <= max_frame_size:
        return Plausibility.NO
    if buffer[start + 5] not in API_NAMES or buffer[start + 7] > _LARGEST_VERSION:
        return Plausibility.NO
    fits = -1 <= _int(buffer, start + 12, 2) <= size - _SMALLEST_REQUEST
    return Plausibility.YES if fits else Plausibility.NO


def has_header(body: bytes, max_frame_size: int) -> bool:
    """Whether a frame's body begins with a request header, rather than being a bare SASL token."""
    return assess_request_header(frame(body), 0, max_frame_size) is Plausibility.YES


def assess_request(buffer: bytes | bytearray, start: int, max_frame_size: int) -> Plausibility:
    """Whether a whole request starts at `start`, followed by nothing or by the start of another."""
    plausibility = assess_request_header(buffer, start, max_frame_size)
    if plausibility is not Plausibility.YES:
        return plausibility
    end = start + SIZE_BYTES + _int(buffer, start, 4)
    if end > len(buffer):
        return Plausibility.MORE
    if assess_request_header(buffer, end, max_frame_size) is Plausibility.NO:
        return Plausibility.NO
    if is_known(buffer[start + 5]) and not _decodes(partial(decode_request, bytes(buffer[start + SIZE_BYTES : end]))):
        return Plausibility.NO
    return Plausibility.YES


def _decodes(decode: Callable[..., object]) -> bool:
    """Whether a frame decodes to its last byte, whatever bytes its strings have."""
    for strict in (True, False):
        try:
            decode(strict=strict)
            return True
        except DecodeError as error:
            if error.kind != "utf8":
                return False
    return False


def assess_response(
    buffer: bytes | bytearray, start: int, max_frame_size: int, pending: PendingRequests[RequestHead]
) -> Plausibility:
    """Whether the whole response to a pending request starts at `start`, followed by nothing or by a likely size."""
    size, correlation_id = _int(buffer, start, 4), _int(buffer, start + 4, 4)
    asked = pending.oldest(correlation_id)
    if asked is None or not _SMALLEST_RESPONSE <= size <= max_frame_size:
        return Plausibility.NO
    end = start + SIZE_BYTES + size
    if end > len(buffer):
        return Plausibility.MORE
    if end + SIZE_BYTES <= len(buffer) and not _SMALLEST_RESPONSE <= _int(buffer, end, 4) <= max_frame_size:
        return Plausibility.NO
    body = bytes(buffer[start + SIZE_BYTES : end])
    if is_known(asked.api_key) and not _decodes(partial(decode_response, body, asked.api_key, asked.api_version)):
        return Plausibility.NO
    return Plausibility.YES


@lru_cache(maxsize=256)
def likely_response(prefixes: frozenset[int], may_be_central: bool) -> re.Pattern[bytes]:
    """What matches wherever a response may start: a possible size, and a pending correlation id.

    :param prefixes: the upper 24 bits of the pending correlation ids
    :param may_be_central: whether the 0.8 draft's frames count as well
    """
    if len(prefixes) > _MAX_PREFIXES:
        return LIKELY_RESPONSE
    heads = [re.escape((prefix & 0xFFFFFF).to_bytes(3, "big")) + b"." for prefix in sorted(prefixes)]
    heads += [_OF_CENTRAL] * may_be_central
    return re.compile(_SIZE + rb"(?:" + b"|".join(heads or [b"(?!)"]) + rb"))", re.DOTALL)


def request_splitter(
    max_frame_size: int, *, in_step: bool, assess: Assess | None = None, likely: Likely = lambda: LIKELY_REQUEST
) -> FrameSplitter:
    """A splitter for what a client sends. The parameters are those of `FrameSplitter`.

    :param assess: None recognises Kafka's requests
    """

    def assess_kafka(buffer: bytearray, start: int) -> Plausibility:
        return assess_request(buffer, start, max_frame_size)

    return FrameSplitter(max_frame_size, assess or assess_kafka, likely, in_step=in_step)


def _int(buffer: bytes | bytearray, start: int, size: int) -> int:
    return int.from_bytes(buffer[start : start + size], "big", signed=True)
