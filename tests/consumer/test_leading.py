"""What a leader sends, and what it refuses to send."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kcoord_wire.assignors import ASSIGNORS, Assignor, MemberSubscription, RebalanceProtocol
from kcoord_wire.consumer.errors import AssignmentError
from kcoord_wire.consumer.events import Assigning
from kcoord_wire.consumer.requests import assign, assign_checked

MEMBERS = {"x": MemberSubscription(["orders"]), "y": MemberSubscription(["orders"], owned={"orders": [0]})}


def task(of: Callable[..., Any], protocol: RebalanceProtocol = RebalanceProtocol.EAGER, **fields: Any) -> Assigning:
    return Assigning(1, Assignor("own", protocol, of, **fields), MEMBERS, {"orders": 2}, {})


def test_each_member_gets_partitions_and_user_data() -> None:
    given = task(ASSIGNORS["range"].assign, assignment_user_data=lambda *_: {"y": b"!"})
    for assigned in (assign(given), assign_checked(given)):
        assert {name: dict(each.partitions) for name, each in assigned.items()} == {
            "x": {"orders": range(1)},
            "y": {"orders": range(1, 2)},
        }
        assert [assigned[name].user_data for name in "xy"] == [b"", b"!"]


NONSENSE = {
    "nothing": lambda *_: None,
    "a member is missing": lambda *_: {"x": {}},
    "a member too many": lambda *_: {"x": {}, "y": {}, "z": {}},
    "two owners": lambda *_: {"x": {"orders": [0, 1]}, "y": {"orders": [1]}},
    "no such partition": lambda *_: {"x": {"orders": [0, 1, 2]}, "y": {}},
    "not subscribed": lambda *_: {"x": {"payments": [0]}, "y": {}},
    "an error": lambda *_: 1 // 0,
}


@pytest.mark.parametrize("of", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_not_sent(of: Callable[..., Any]) -> None:
    with pytest.raises(AssignmentError) as raised:
        assign_checked(task(of))
    assert raised.value.assignor == "own"


def test_the_error_of_an_assignor_is_the_cause() -> None:
    with pytest.raises(AssignmentError, match="ZeroDivisionError") as raised:
        assign_checked(task(NONSENSE["an error"]))
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_a_cooperative_assignor_may_not_move_at_once() -> None:
    def moves(*_: object) -> dict[str, Any]:
        return {"x": {"orders": [0]}, "y": {"orders": [1]}}

    assert assign_checked(task(moves))
    with pytest.raises(AssignmentError, match="not valid"):
        assign_checked(task(moves, RebalanceProtocol.COOPERATIVE))
