"""Leader epochs of a partition: where each ends, as Kafka's cache of them says."""

from __future__ import annotations

from kcoord_wire.coordinator.partitions.partition_log import LeaderEpochs


def epochs(*begun: tuple[int, int]) -> LeaderEpochs:
    made = LeaderEpochs(*begun[0])
    for epoch, offset in begun[1:]:
        made.begin(epoch, offset)
    return made


def test_an_epoch_ends_where_the_next_begins() -> None:
    known = epochs((0, 0), (2, 100), (5, 150))
    ends = [known.end_of(epoch, 160) for epoch in (0, 1, 2, 3, 4, 5, 6, -1)]
    assert ends == [(0, 100), (0, 100), (2, 150), (2, 150), (2, 150), (5, 160), None, None]


def test_an_epoch_without_records_leaves_no_entry() -> None:
    known = epochs((0, 0), (1, 0), (2, 7), (3, 7))
    assert known.latest == 3
    assert [known.end_of(epoch, 9) for epoch in (0, 1, 2, 3)] == [(0, 0), (1, 7), (1, 7), (3, 9)]


def test_the_epoch_of_a_record() -> None:
    known = epochs((1, 0), (4, 10))
    assert [known.at(offset) for offset in (0, 9, 10, 11)] == [1, 1, 4, 4]


def test_epochs_before_the_start_are_forgotten() -> None:
    known = epochs((0, 0), (1, 10), (2, 20))
    known.forget_before(15)
    assert [known.end_of(epoch, 30) for epoch in (0, 1, 2)] == [(0, 15), (1, 20), (2, 30)]
    known.forget_before(40)
    assert known.end_of(1, 40) == (1, 40)
    assert known.at(40) == 2
