"""Which response answers which request, for a batch of frames of many connections at once.

Nearly every connection is a plain conversation: its n-th response answers its n-th request. Those are paired all
together by array operations, the fast path of the rule in `kcoord_wire.codec.pending`; only the others are walked
frame by frame, with `PendingRequests` itself.

Laws:

* The cut of the frames into batches makes no difference: pending requests precede the next batch, as if they came then.
* At most `MAX_PENDING` requests of a connection are pending, of `MAX_PENDING_BYTES` together; the oldest are given up.
* When a connection is opened or closed, its pending requests are given up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kcoord_wire.codec.pending import PendingRequests

if TYPE_CHECKING:
    from numpy.typing import NDArray

REQUEST, RESPONSE, OPENED, CLOSED, DAMAGE = range(5)

MAX_PENDING: Final = 1024
"""Requests of one connection. Each batch pairs them again, which costs time where responses were not captured."""

MAX_PENDING_BYTES: Final = 8 * 1024 * 1024
"""Bytes of the requests of one connection."""


@dataclass(slots=True)
class Pairs:
    """Rows of the batch, by number.

    :ivar requests: those that are done: answered, or given up
    :ivar responses: the response to each of `requests`; -1 where there is none
    :ivar pending: requests that may still be answered
    :ivar stray: responses without a request
    :ivar tokens: frames that are bare SASL tokens
    """

    requests: NDArray[np.int64]
    responses: NDArray[np.int64]
    pending: NDArray[np.int64]
    stray: NDArray[np.int64]
    tokens: NDArray[np.int64]


def pair(
    codes: NDArray[np.int64],
    kinds: NDArray[np.int8],
    correlation: NDArray[np.int32],
    sizes: NDArray[np.int64],
    connections: int,
    speaks_sasl: NDArray[np.bool_],
    is_token: Callable[[int, bool], bool],
) -> Pairs:
    """Find the response to every request.

    :param codes: the connection of each row, below `connections`
    :param kinds: REQUEST, RESPONSE, OPENED, CLOSED or DAMAGE
    :param correlation: the correlation ids of requests and responses
    :param sizes: bytes that a row costs while it is pending
    :param connections: how many there are
    :param speaks_sasl: by connection: a SaslHandshake of version 0 was seen or is in this batch
    :param is_token: called with a row that may be a bare SASL token and whether it is a response that fits no request;
        returns whether it is a token, and keeps track of the handshakes
    """
    requests, responses = np.flatnonzero(kinds == REQUEST), np.flatnonzero(kinds == RESPONSE)
    requests = requests[np.argsort(codes[requests], kind="stable")]
    responses = responses[np.argsort(codes[responses], kind="stable")]
    asked, answered = (np.bincount(codes[rows], minlength=connections) for rows in (requests, responses))
    # The n-th response of a connection is tried with its n-th request; where that fails, the connection is odd.
    first = np.cumsum(asked) - asked
    rank = np.arange(len(responses)) - (np.cumsum(answered) - answered)[codes[responses]]
    plain = rank < asked[codes[responses]]
    partner = np.where(plain, first[codes[responses]] + rank, 0)
    if len(requests):
        partner = requests[partner]
        plain &= (correlation[partner] == correlation[responses]) & (partner < responses)

    odd = speaks_sasl | (asked > MAX_PENDING)
    odd |= np.bincount(codes[requests], weights=sizes[requests], minlength=connections) > MAX_PENDING_BYTES
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
    return Pairs(
        np.concatenate([done, rest[given_up], _rows(walked.requests)]),
        np.concatenate([answers, np.full(int(given_up.sum()), -1), _rows(walked.responses)]),
        np.sort(np.concatenate([rest[~given_up], _rows(walked.pending)])),
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
    """Mark as odd every connection that is not opened first and closed last, and note those that are closed."""
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
    """Walks odd connections frame by frame. The attributes are those of `Pairs`."""

    def __init__(
        self,
        kinds: NDArray[np.int8],
        correlation: NDArray[np.int32],
        sizes: NDArray[np.int64],
        is_token: Callable[[int, bool], bool],
    ) -> None:
        self._kinds, self._correlation, self._sizes, self._is_token = kinds, correlation, sizes, is_token
        self.requests: list[int] = []
        self.responses: list[int] = []
        self.pending: list[int] = []
        self.stray: list[int] = []
        self.tokens: list[int] = []

    def connection(self, rows: list[int]) -> None:
        """Pair all rows of one connection, given in order."""
        pending: PendingRequests[int] = PendingRequests(MAX_PENDING, MAX_PENDING_BYTES)
        for row in rows:
            kind = self._kinds[row]
            if kind == REQUEST:
                self._ask(pending, row)
            elif kind == RESPONSE:
                self._answer(pending, row)
            elif kind != DAMAGE:
                self._done(pending.clear())
        self.pending += pending.clear()

    def _ask(self, pending: PendingRequests[int], row: int) -> None:
        if self._is_token(row, False):
            self.tokens.append(row)
        else:
            self._done(pending.add(int(self._correlation[row]), row, int(self._sizes[row])))

    def _answer(self, pending: PendingRequests[int], row: int) -> None:
        found = pending.answer(int(self._correlation[row]))
        if found is None:
            (self.tokens if self._is_token(row, True) else self.stray).append(row)
        else:
            self._done(found[1])
            self._done([found[0]], row)

    def _done(self, requests: list[int], response: int = -1) -> None:
        self.requests += requests
        self.responses += [response] * len(requests)
