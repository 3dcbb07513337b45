"""Errors in responses outside groups, as rows of `Sighting`: ApiVersions, SASL, and topics in Metadata.

Laws:

* Of a response of ApiVersions, SaslHandshake and SaslAuthenticate only the error code is read, at its fixed place; a
  response with header tags is passed over. Topics come from the Metadata responses that are decoded anyway.
* UNSUPPORTED_VERSION of ApiVersions is how a client and an older broker agree (KIP-511): it is an error only of a
  connection on which nothing else was ever answered, and becomes a row when that has ended, or the source has.
* A connection has one row for each topic and error, and `MAX_ERRORS` rows of refused ApiVersions at most.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kcoord_wire.forensics.exchanges.memory import MAX_NAMES, ConnectionMemory
from kcoord_wire.forensics.model import Sighting, SightingKind
from kcoord_wire.protocol.api_keys import API_NAMES, ApiKey
from kcoord_wire.protocol.error_codes import ErrorCode

MAX_ERRORS: Final = 100
"""Refused ApiVersions that are kept of one connection."""

TOPIC_ERRORS: Final = frozenset({ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION})
"""Errors of topics in Metadata that are no part of normal work."""

_PLAIN: Final = (ApiKey.API_VERSIONS << 16, ApiKey.SASL_HANDSHAKE << 16, ApiKey.SASL_AUTHENTICATE << 16)
_FLEXIBLE: Final = ApiKey.SASL_AUTHENTICATE << 16 | 2  # its response header has tags, and a byte for their number
_CORRELATION: Final = 4
_ERROR_CODE: Final = 2


def error_codes(words: NDArray[np.int64], heads: NDArray[np.uint8], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the error code of each response; 0 where the API has none at a fixed place, or the frame is too short.

    :param words: api key and version of the requests, 16 bits each
    :param heads: the first bytes of the responses
    :param lengths: of the responses
    """
    keys = words >> 16 << 16
    start = np.where(words >= _FLEXIBLE, _CORRELATION + 1, _CORRELATION)
    start[keys != ApiKey.SASL_AUTHENTICATE << 16] = _CORRELATION
    rows = np.arange(len(words))
    codes = heads[rows, start].astype(np.int64) << 8 | heads[rows, start + 1]
    known = np.isin(keys, _PLAIN) & (lengths >= start + _ERROR_CODE)
    known &= (start == _CORRELATION) | (heads[:, _CORRELATION] == 0)
    return np.where(known, codes.astype(np.uint16).view(np.uint16).astype(np.int16), 0).astype(np.int64)


def keep_error(memory: ConnectionMemory, place: Sighting, key: int, code: int) -> list[Sighting]:
    """Return the row for an error of ApiVersions or SASL, unless it has to wait for the end of the connection.

    :param place: time, source, connection and client of the response
    """
    row = Sighting(
        place.time_ns, place.source, place.connection, place.client_id, SightingKind.ERROR,
        api=API_NAMES[ApiKey(key)], error_code=code,
    )  # fmt: skip
    if key != ApiKey.API_VERSIONS or code != ErrorCode.UNSUPPORTED_VERSION:
        return [row]
    if not memory.is_answered and len(memory.unsupported) < MAX_ERRORS:
        memory.unsupported.append(row)
    return []


def leftover_errors(memory: ConnectionMemory) -> list[Sighting]:
    """Return the refused ApiVersions of a connection that has ended, if nothing else was answered on it."""
    return [] if memory.is_answered else memory.unsupported


def note_topic_error(memory: ConnectionMemory, place: Sighting, topic: str, code: int) -> list[Sighting]:
    """Return the row for the error of a topic in Metadata where the connection sees it first."""
    if (topic, code) in memory.topic_errors or len(memory.topic_errors) >= MAX_NAMES:
        return []
    memory.topic_errors.add((topic, code))
    return [
        Sighting(
            place.time_ns, place.source, place.connection, place.client_id, SightingKind.ERROR, topic=topic,
            api="Metadata", error_code=code,
        )
    ]  # fmt: skip
