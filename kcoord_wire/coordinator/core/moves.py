"""The moves of a state machine, as a table: what is not in it cannot happen."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

S = TypeVar("S", bound=StrEnum)
M = TypeVar("M", bound=StrEnum)


class IllegalMoveError(RuntimeError):
    """A move that the table does not have: a bug of the coordinator, never a client's doing."""

    def __init__(self, what: str, state: StrEnum, move: StrEnum) -> None:
        super().__init__(f"{what} cannot {move} in state {state}")


def target_of(transitions: Mapping[tuple[S, M], S], state: S, move: M, what: str) -> S:
    """Return the state that a move leads to.

    :param transitions: every legal move, and where it leads
    :param what: whose move it is, for the error
    :raises IllegalMoveError: `transitions` has no such move
    """
    target = transitions.get((state, move))
    if target is None:
        raise IllegalMoveError(what, state, move)
    return target
