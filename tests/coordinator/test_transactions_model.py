"""A transactional id: every move of the table and no other, and what becomes of its epochs."""

from __future__ import annotations

from itertools import count

import pytest

from kcoord_wire.coordinator.core.events import IllegalMoveError
from kcoord_wire.coordinator.transactions.model import TRANSITIONS, Move, State, Transaction
from kcoord_wire.protocol.error_codes import ErrorCode

LAST = 32_766  # the greatest epoch that a client is given


def transaction(epoch: int, state: State = State.EMPTY) -> Transaction:
    return Transaction("x", 1, 60_000, 0, producer_epoch=epoch, state=state)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("move", Move)
def test_a_move_is_in_the_table_or_refused(state: State, move: Move) -> None:
    subject = transaction(0, state)
    if (state, move) in TRANSITIONS:
        subject.move(move, 5)
        assert (subject.state, subject.updated_at) == (TRANSITIONS[state, move], 5)
    else:
        with pytest.raises(IllegalMoveError):
            subject.move(move, 5)


def test_after_the_outcome_only_completion_is_possible() -> None:
    for state in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
        assert [move for at, move in TRANSITIONS if at is state] == [Move.COMPLETE]


@pytest.mark.parametrize("expected", [None, (1, LAST)])
def test_after_the_last_epoch_comes_a_new_producer_id(expected: tuple[int, int] | None) -> None:
    subject = transaction(LAST)
    assert subject.initialise(expected, lambda: 2, 60_000, 5) == ErrorCode.NONE
    assert (subject.producer_id, subject.producer_epoch, subject.previous_producer_id) == (2, 0, 1)
    assert subject.accepts_producer((1, LAST)), "its answer may have been lost"
    assert not subject.accepts_producer((1, 3))


@pytest.mark.parametrize("commit", [True, False])
def test_the_end_of_the_last_epoch_rotates_the_producer_id(commit: bool) -> None:
    subject = transaction(LAST, State.ONGOING)
    subject.prepare(Move.COMMIT if commit else Move.ABORT, 2, lambda: 2, 5)
    assert (subject.producer_id, subject.producer_epoch) == (1, LAST + 1), "the marker is of the old id"
    assert subject.next_producer == (2, 0)
    subject.complete(6)
    assert (subject.producer_id, subject.producer_epoch) == (2, 0)
    assert subject.raised_epoch(1, LAST)
    assert not subject.raised_epoch(1, LAST - 1)


@pytest.mark.parametrize("expected", [None, (1, LAST)])
def test_the_fenced_last_epoch_is_never_given_out(expected: tuple[int, int] | None) -> None:
    subject = transaction(LAST, State.ONGOING)
    subject.fence(5)
    subject.complete(6)
    assert subject.producer_epoch == LAST + 1
    assert subject.initialise(expected, lambda: 2, 60_000, 7) == ErrorCode.NONE
    assert (subject.producer_id, subject.producer_epoch) == (2, 0)


def test_no_epoch_of_an_id_is_given_to_two_producers() -> None:
    subject = transaction(-1)
    ids = count(10)
    given = []
    for _ in range(70_000):
        assert subject.initialise(None, lambda: next(ids), 60_000, 5) == ErrorCode.NONE
        given.append((subject.producer_id, subject.producer_epoch))
    assert len(set(given)) == len(given)
    assert max(epoch for _, epoch in given) == LAST
