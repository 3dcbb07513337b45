"""The fast path of the pairing of requests and responses gives what the rule gives, frame by frame."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from kcoord_wire.codec.pending import PendingRequests
from kcoord_wire.forensics.exchanges.pairing import CLOSED, DAMAGE, OPENED, REQUEST, RESPONSE, pair

CONNECTIONS = 3
FRAMES = st.lists(
    st.tuples(
        st.integers(0, CONNECTIONS - 1),
        st.sampled_from([REQUEST] * 5 + [RESPONSE] * 5 + [OPENED, CLOSED, DAMAGE]),
        st.integers(0, 2),
    )
)
Pairs = set[tuple[int, int]]


def by_rule(frames: list[tuple[int, int, int]]) -> tuple[Pairs, set[int], set[int]]:
    """Pairs of request and response, or of request and -1; pending requests; responses to no request."""
    pending: list[PendingRequests[int]] = [PendingRequests() for _ in range(CONNECTIONS)]
    pairs, stray = set(), set()
    for row, (connection, kind, correlation_id) in enumerate(frames):
        if kind == REQUEST:
            pending[connection].add(correlation_id, row)
        elif kind == RESPONSE:
            answered = pending[connection].answer(correlation_id)
            if answered is None:
                stray.add(row)
            else:
                pairs |= {(answered[0], row), *((request, -1) for request in answered[1])}
        elif kind in (OPENED, CLOSED):
            pairs |= {(request, -1) for request in pending[connection].clear()}
    return pairs, {row for each in pending for row in each.clear()}, stray


@given(FRAMES)
@example([(0, REQUEST, 0), (0, REQUEST, 1), (0, RESPONSE, 0), (0, RESPONSE, 1)])
@example([(0, REQUEST, 0), (0, RESPONSE, 0), (0, CLOSED, 0), (1, REQUEST, 0), (1, CLOSED, 0)])
def test_the_fast_path_follows_the_rule(frames: list[tuple[int, int, int]]) -> None:
    codes, kinds, correlation = (np.array([frame[at] for frame in frames], np.int64) for at in range(3))
    found = pair(
        codes,
        kinds.astype(np.int8),
        correlation.astype(np.int32),
        np.ones(len(frames), np.int64),
        CONNECTIONS,
        np.zeros(CONNECTIONS, np.bool_),
        lambda _row, _answers: False,
    )
    pairs, waiting, stray = by_rule(frames)
    assert set(zip(found.requests.tolist(), found.responses.tolist(), strict=True)) == pairs
    assert len(found.requests) == len(pairs)
    assert found.pending.tolist() == sorted(waiting)
    assert set(found.stray.tolist()) == stray
    assert found.tokens.tolist() == []
