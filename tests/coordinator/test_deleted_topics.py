"""Topics that are deleted while groups are read from the log: each deletion is applied once to each partition."""

from __future__ import annotations

from kcoord_wire.coordinator.core.offsets import DeletedTopics

A, B, AB = frozenset({"a"}), frozenset({"b"}), frozenset({"a", "b"})


def test_a_deletion_is_for_the_partitions_that_were_read() -> None:
    deleted = DeletedTopics()
    deleted.note(A, frozenset({1, 2}))
    assert deleted.take(frozenset({3})) == []
    assert deleted.take(frozenset({1, 3})) == [(A, frozenset({1}))]
    deleted.note(B, frozenset({2}))
    assert deleted.take(frozenset(range(5))) == [(AB, frozenset({2}))]
    assert deleted.take(frozenset(range(5))) == []


def test_a_deletion_while_nothing_is_read_is_not_kept() -> None:
    deleted = DeletedTopics()
    deleted.note(A, frozenset())
    assert deleted.take(frozenset(range(5))) == []


def test_many_deletions_of_one_time_are_one_entry() -> None:
    deleted = DeletedTopics()
    for number in range(100):
        deleted.note(frozenset({f"t{number}"}), frozenset({1}))
    ((names, read),) = deleted.take(frozenset({1}))
    assert (len(names), read) == (100, frozenset({1}))
