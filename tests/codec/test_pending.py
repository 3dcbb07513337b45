"""Which response answers which request, by the rule."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kcoord_wire.codec.pending import PendingRequests


def test_a_response_answers_the_request_with_its_id() -> None:
    pending: PendingRequests[str] = PendingRequests()
    for correlation_id, request in enumerate("abc"):
        assert pending.add(correlation_id, request) == []
    assert pending.oldest(2) == "c"
    assert pending.answer(0) == ("a", [])
    assert pending.answer(2) == ("c", ["b"]), "the request before it stays unanswered"
    assert pending.answer(1) is None
    assert len(pending) == 0


def test_of_equal_ids_the_oldest_is_answered() -> None:
    pending: PendingRequests[str] = PendingRequests()
    for request in "abc":
        pending.add(7, request)
    assert pending.oldest(7) == "a"
    assert [pending.answer(7) for _ in range(4)] == [("a", []), ("b", []), ("c", []), None]


def test_the_oldest_are_given_up_when_there_are_too_many() -> None:
    pending: PendingRequests[str] = PendingRequests(max_requests=2, max_bytes=10)
    assert pending.add(1, "a", 4) == []
    assert pending.add(2, "b", 4) == []
    assert pending.add(3, "c", 1) == ["a"]
    assert pending.add(4, "d", 10) == ["b", "c"]
    assert pending.add(5, "e", 11) == ["d", "e"], "a request above the limit is never pending"
    assert (len(pending), pending.oldest(4)) == (0, None)


def test_clear_returns_all_oldest_first() -> None:
    pending: PendingRequests[str] = PendingRequests()
    for correlation_id, request in enumerate("abc"):
        pending.add(correlation_id, request)
    assert pending.clear() == ["a", "b", "c"]
    assert pending.clear() == []
    assert pending.answer(0) is None


def test_the_next_response_belongs_to_the_first() -> None:
    pending: PendingRequests[str] = PendingRequests()
    assert pending.first is None
    pending.add(5, "a")
    pending.add(4, "b")
    assert (pending.first, list(pending)) == (5, ["a", "b"])
    pending.answer(5)
    assert (pending.first, list(pending)) == (4, ["b"])


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3))), st.integers(1, 4))
def test_every_request_leaves_once_in_order(events: list[tuple[bool, int]], most: int) -> None:
    pending: PendingRequests[int] = PendingRequests(most)
    left: list[int] = []
    for at, (asked, correlation_id) in enumerate(events):
        of_id = [each for each in pending if events[each][1] == correlation_id]
        assert at % 3 or pending.oldest(correlation_id) == (of_id[0] if of_id else None)
        if asked:
            left += pending.add(correlation_id, at)
        elif answered := pending.answer(correlation_id):
            assert events[answered[0]] == (True, correlation_id)
            left += [*answered[1], answered[0]]
    assert left + pending.clear() == [at for at, (asked, _) in enumerate(events) if asked]
