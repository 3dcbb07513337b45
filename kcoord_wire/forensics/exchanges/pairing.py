"""Which response answers which request, for a batch of frames of many connections at once.

Laws:

* The rule is that of `kcoord_wire.capture.pending`; nothing here decides otherwise. Nearly every connection is a plain
  conversation, where the n-th response answers the n-th request. The fast path matches those all together by array
  operations. Any other connection goes through `PendingRequests` frame by frame.
* How the frames were cut into batches makes no difference: pending requests are put in front of the next batch, as if
  they came then.
* At most `MAX_WAITING` requests of a connection are pending, of `MAX_WAITING_BYTES` together; the oldest are given up.
* When a connection is opened or closed, its pending requests are given up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kcoord_wire.capture.pending import PendingRequests

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["CLOSED", "DAMAGE", "MAX_WAITING", "MAX_WAITING_BYTES", "OPENED", "REQUEST", "RESPONSE", "Matched", "match"]

REQUEST, RESPONSE, OPENED, CLOSED, DAMAGE = range(5)

MAX_WAITING: Final = 1024
"""Requests of one connection. They are matched anew with each batch: where responses were not captured, that costs."""

MAX_WAITING_BYTES: Final = 8 * 1024 * 1024
"""Bytes of the requests of one connection."""


@dataclass(slots=True)
class Matched:
    """Rows of the batch, by number.

    :ivar requests: answered or given up
    :ivar responses: the response to each of `requests`, -1 where there is none
    :ivar waiting: requests that may still be answered
    :ivar stray: responses without a request
    :ivar tokens: frames that are bare SASL tokens
    """

    requests: NDArray[np.int64]
    responses: NDArray[np.int64]
    waiting: NDArray[np.int64]
    stray: NDArray[np.int64]
    tokens: NDArray[np.int64]


def match(
    codes: NDArray[np.int64],
    kinds: NDArray[np.int8],
    correlation: NDArray[np.int32],
    sizes: NDArray[np.int64],
    connections: int,
    speaks_sasl: NDArray[np.bool_],
    is_token: Callable[[int, bool], bool],
) -> Matched:
    """Find the response to every request.

    :param codes: the connection of each row, below `connections`
    :param kinds: REQUEST, RESPONSE, OPENED, CLOSED or DAMAGE
    :param correlation: the correlation ids of requests and responses
    :param sizes: bytes that a row costs while it waits
    :param speaks_sasl: by connection: a SaslHandshake of version 0 was seen or is in this batch
    :param is_token: takes a row and whether it is a response to no request; returns whether the row is a SASL token.
        Called in order, so that it can keep account of the handshakes
    """
    requests, responses = np.flatnonzero(kinds == REQUEST), np.flatnonzero(kinds == RESPONSE)
    requests = requests[np.argsort(codes[requests], kind="stable")]
    responses = responses[np.argsort(codes[responses], kind="stable")]
    asked, answered = (
        np.bincount(codes[requests], minlength=connections),
        np.bincount(codes[responses], minlength=connections),
    )
    first = np.cumsum(asked) - asked
    rank = np.arange(len(responses)) - (np.cumsum(answered) - answered)[codes[responses]]
    plain = rank < asked[codes[responses]]
    partner = np.where(plain, first[codes[responses]] + rank, 0)
    if len(requests):
        partner = requests[partner]
        plain &= (correlation[partner] == correlation[responses]) & (partner < responses)

    odd = speaks_sasl | (asked > MAX_WAITING)
    odd |= np.bincount(codes[requests], weights=sizes[requests], minlength=connections) > MAX_WAITING_BYTES
    odd[codes[responses[~plain]]] = True
    closed = np.zeros(connections, np.bool_)
    _note_borders(codes, kinds, connections, odd, closed)

    of_plain = ~odd[codes[responses]]
    done, answers = partner[of_plain], responses[of_plain]
    left = np.ones(len(codes), np.bool_)
    left[done] = False
    rest = requests[left[requests] & ~odd[codes[requests]]]
    given_up = closed[codes[rest]]
    walked = _Walk(kinds, correlation, sizes, is_token)
    if odd.any():
        of_odd = np.flatnonzero(odd[codes])
        of_odd = of_odd[np.argsort(codes[of_odd], kind="stable")]
        for rows in np.split(of_odd, np.flatnonzero(np.diff(codes[of_odd])) + 1):
            walked.connection(rows.tolist())
    return Matched(
        np.concatenate([done, rest[given_up], _rows(walked.requests)]),
        np.concatenate([answers, np.full(int(given_up.sum()), -1), _rows(walked.responses)]),
        np.sort(np.concatenate([rest[~given_up], _rows(walked.waiting)])),
        _rows(walked.stray),
        _rows(walked.tokens),
    )


def _rows(found: list[int]) -> NDArray[np.int64]:
    return np.array(found, np.int64)


def _note_borders(
    codes: NDArray[np.int64],
    kinds: NDArray[np.int8],
    connections: int,
    odd: NDArray[np.bool_],
    closed: NDArray[np.bool_],
) -> None:
    """Mark connections in `odd` unless they are opened first and closed last; mark in `closed` those that close."""
    borders = np.flatnonzero((kinds == OPENED) | (kinds == CLOSED))
    if not len(borders):
        return
    of_frames = np.flatnonzero(kinds <= RESPONSE)
    first, last = np.full(connections, len(codes)), np.full(connections, -1)
    np.minimum.at(first, codes[of_frames], of_frames)
    np.maximum.at(last, codes[of_frames], of_frames)
    opens, of = kinds[borders] == OPENED, codes[borders]
    odd[of[opens & (borders > first[of])]] = True
    odd[of[~opens & (borders < last[of])]] = True
    closed[of[~opens]] = True


class _Walk:
    """Connections that are matched frame by frame."""

    def __init__(self, kinds: Any, correlation: Any, sizes: Any, is_token: Callable[[int, bool], bool]) -> None:
        self._kinds, self._correlation, self._sizes, self._is_token = kinds, correlation, sizes, is_token
        self.requests: list[int] = []
        self.responses: list[int] = []
        self.waiting: list[int] = []
        self.stray: list[int] = []
        self.tokens: list[int] = []

    def connection(self, rows: list[int]) -> None:
        """Take in all rows of one connection, in order."""
        pending: PendingRequests[int] = PendingRequests(MAX_WAITING, MAX_WAITING_BYTES)
        for row in rows:
            kind = self._kinds[row]
            if kind == REQUEST:
                self._request(pending, row)
            elif kind == RESPONSE:
                self._response(pending, row)
            elif kind != DAMAGE:
                self._give_up(pending.clear())
        self.waiting.extend(pending.clear())

    def _request(self, pending: PendingRequests[int], row: int) -> None:
        if self._is_token(row, False):
            self.tokens.append(row)
        else:
            self._give_up(pending.add(int(self._correlation[row]), row, int(self._sizes[row])))

    def _response(self, pending: PendingRequests[int], row: int) -> None:
        answered = pending.answer(int(self._correlation[row]))
        if answered is None:
            (self.tokens if self._is_token(row, True) else self.stray).append(row)
            return
        request, unanswered = answered
        self._give_up(unanswered)
        self.requests.append(request)
        self.responses.append(row)

    def _give_up(self, requests: list[int]) -> None:
        self.requests += requests
        self.responses += [-1] * len(requests)
