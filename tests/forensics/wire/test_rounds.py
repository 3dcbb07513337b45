"""What both designs with rounds share: requests that are answered together, durations in words."""

from __future__ import annotations

from kcoord_wire.forensics.model import NS_PER_MS
from kcoord_wire.forensics.wire.rounds import parked_together, seconds
from kcoord_wire.forensics.wire.traffic import read_sightings, read_traffic
from tests.support.central_script import CentralScript


def test_requests_answered_together_are_a_round() -> None:
    script = CentralScript()
    first, second, third = (script.consumer(name) for name in ("a", "bb", "ccc"))
    script.register(first)
    for consumer in (second, third):
        script.park(consumer)
    script.assign([(third, None), (second, None)])
    script.park(first)
    exchanges, topics = script.exchanges()
    rounds = parked_together(read_traffic(exchanges, read_sightings(topics)).requests)
    assert [[request.member_id for request in each] for each in rounds] == [["a"], ["bb", "ccc"], ["a"]]
    assert parked_together([]) == []


def test_a_request_just_before_the_answers_is_in_the_next_round() -> None:
    script = CentralScript()
    first, second = script.consumer("a"), script.consumer("bb")
    script.park(first)
    script.park(second)
    script.assign([(first, [])])
    script.park(first)
    script.assign([(second, []), (first, [])])
    exchanges, topics = script.exchanges()
    rounds = parked_together(read_traffic(exchanges, read_sightings(topics)).requests)
    assert [[request.member_id for request in each] for each in rounds] == [["a"], ["bb", "a"]]


def test_durations_are_written_in_the_unit_that_fits() -> None:
    assert seconds(40 * NS_PER_MS) == "40 ms"
    assert seconds(4_250 * NS_PER_MS) == "4.2 s"
