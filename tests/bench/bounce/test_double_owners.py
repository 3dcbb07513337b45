"""Two owners of a partition at a time are found in the accounts of the processes."""

from __future__ import annotations

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.worlds.consumer_groups.rolling_bounce import Work, WorkEvent
from tests.bench.bounce.real import double_owners

ONE = frozenset({TopicPartition("events", 0)})


def listener(name: str, begin: float, end: float, *, what: Work) -> list[WorkEvent]:
    """What an instance reports of a listener that takes or drops the partition."""
    return [
        WorkEvent(begin, name, Work.BLOCKS),
        WorkEvent(end if what is Work.TAKES else begin, name, what, ONE),
        WorkEvent(end, name, Work.RESUMES),
    ]


def in_order(*parts: list[WorkEvent]) -> list[WorkEvent]:
    return sorted((event for part in parts for event in part), key=lambda event: event.at)


def test_taking_before_the_other_listener_returns_is_found() -> None:
    taken, dropped = listener("a", 0, 5, what=Work.TAKES), listener("a", 10, 20, what=Work.DROPS)
    [double] = double_owners(in_order(taken, dropped, listener("b", 19, 30, what=Work.TAKES)))
    assert "19 ms: b and a" in double
    assert not double_owners(in_order(taken, dropped, listener("b", 21, 30, what=Work.TAKES)))


def test_an_instance_that_starts_anew_owns_nothing() -> None:
    taken = listener("a", 0, 5, what=Work.TAKES)
    crashed = [WorkEvent(10, "a", Work.STOPS), WorkEvent(15, "a", Work.STARTS)]
    assert double_owners(in_order(taken, crashed[:1], listener("b", 14, 16, what=Work.TAKES)))
    assert not double_owners(in_order(taken, crashed, listener("b", 16, 17, what=Work.TAKES)))
