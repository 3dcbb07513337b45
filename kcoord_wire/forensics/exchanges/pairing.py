"""Which response answers which request, for a batch of frames of many connections at once.

Laws:

* A broker answers the requests of a connection in the order they came (Kafka protocol guide, "Network"): a response
  answers the oldest request that waits with its correlation id, and those before it will not be answered any more.
* How the frames were cut into batches makes no difference: what waits goes before the next batch, as if it came then.
* At most `MAX_WAITING` requests of a connection wait, with `MAX_WAITING_BYTES` together; the oldest are given up.
* When a connection is opened or closed, what waited on it is given up.

Nearly every connection is a plain conversation: the first response answers the first request, and so on. Those are
matched all together by array operations; only the others are walked through frame by frame.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

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

    :ivar requests: that nothing will be known of any more; `responses` theirs, -1 where there is none
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
    :param is_token: told a row and whether a token may come here; whether it is one. Keeps account of the handshakes
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
    """Where a connection is opened first and closed last, it stays plain."""
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
    """Connections that are walked through frame by frame."""

    def __init__(self, kinds: Any, correlation: Any, sizes: Any, is_token: Callable[[int, bool], bool]) -> None:
        self._kinds, self._correlation, self._sizes, self._is_token = kinds, correlation, sizes, is_token
        self.requests: list[int] = []
        self.responses: list[int] = []
        self.waiting: list[int] = []
        self.stray: list[int] = []
        self.tokens: list[int] = []

    def connection(self, rows: list[int]) -> None:
        """Take in all rows of one connection, in order."""
        waiting: deque[int] = deque()
        ids: Counter[int] = Counter()
        held = 0

        def take() -> int:
            nonlocal held
            row = waiting.popleft()
            ids[int(self._correlation[row])] -= 1
            held -= int(self._sizes[row])
            return row

        def give_up() -> None:
            self.requests.append(take())
            self.responses.append(-1)

        for row in rows:
            kind, id_ = self._kinds[row], int(self._correlation[row])
            if kind == REQUEST:
                if self._is_token(row, False):
                    self.tokens.append(row)
                    continue
                waiting.append(row)
                ids[id_] += 1
                held += int(self._sizes[row])
                while len(waiting) > MAX_WAITING or held > MAX_WAITING_BYTES:
                    give_up()
            elif kind == RESPONSE:
                if not ids[id_]:
                    (self.tokens if self._is_token(row, True) else self.stray).append(row)
                    continue
                while self._correlation[waiting[0]] != id_:
                    give_up()
                self.requests.append(take())
                self.responses.append(row)
            elif kind != DAMAGE:
                while waiting:
                    give_up()
        self.waiting.extend(waiting)
