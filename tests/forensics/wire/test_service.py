"""When members were answered, and what waited."""

from __future__ import annotations

from kcoord_wire.forensics.wire.signs import broker_address
from tests.support.exchange_script import at, two_members


def test_refusals_are_no_answers() -> None:
    script = two_members()
    script.beat("c1", 1_000, 1)
    script.beat("c1", 2_000, 1, error=16)
    script.beat("c1", 3_000, 1, error=27, connection="10.0.0.1:4000-10.0.9.8:9092#2")
    service = script.traffic().service
    assert (service.last_answer(at(2_500)), service.next_answer(at(1_000))) == (at(1_000), at(3_000))
    assert (service.next_answer(at(3_000)), service.last_answer(at(-1))) == (None, None)
    assert (service.broker_before(at(2_500)), service.broker_after(at(2_500))) == ("10.0.9.9:9092", "10.0.9.8:9092")


def test_only_requests_that_are_answered_at_once_can_wait() -> None:
    script = two_members()
    script.add("Heartbeat", "c1", 1_000, 4_000, generation_id=1)
    script.add("OffsetCommit", "c2", 5_000, None)
    script.add("Heartbeat", "c2", 6_000, 6_100, generation_id=1)
    script.join("c1", 7_000, 17_000, 2)
    waits = script.traffic().service.waits
    assert [(wait.api, wait.asked_ns, wait.answered_ns) for wait in waits] == [
        ("Heartbeat", at(1_000), at(4_000)),
        ("OffsetCommit", at(5_000), None),
    ]


def test_a_broker_is_in_the_name_of_the_connection() -> None:
    assert broker_address("10.0.0.1:4000-10.0.9.9:9092#3") == "10.0.9.9:9092"
    assert broker_address("[::1]:4000-[fd00::9]:9092#0") == "[fd00::9]:9092"
