"""Which of two processes with one client id yields."""

from __future__ import annotations

from kcoord_wire.marshal.member import ClientIdReuse
from kcoord_wire.messages.marshal import Heartbeat, ReleasingPartition

INTERVAL = 10_000


def seen_by(instance_id: str) -> ClientIdReuse:
    return ClientIdReuse("g", "c", instance_id, INTERVAL)


def beat(
    reader: ClientIdReuse, sender: str, time_ms: int, *, is_after_start: bool = True, kind: type = Heartbeat
) -> None:
    message = kind(group_id="g", client_id="c", instance_id=sender)
    reader.see(message, time_ms, time_ms, is_after_start=is_after_start)


def test_the_one_heard_of_first_yields() -> None:
    older, newer = seen_by("a"), seen_by("b")
    for reader in (older, newer):
        beat(reader, "a", 1_000)
        beat(reader, "b", 2_000)
        beat(reader, "a", 2_500)
    assert older.rival(2_500) == "b"
    assert newer.rival(2_500) == ""


def test_the_later_one_yields_to_one_that_goes_on() -> None:
    newer = seen_by("b")
    beat(newer, "a", 1_000)
    beat(newer, "b", 2_000)
    beat(newer, "a", 2_000 + INTERVAL)
    assert newer.rival(2_000 + INTERVAL) == ""
    beat(newer, "a", 2_001 + INTERVAL)
    assert newer.rival(2_001 + INTERVAL) == "a"


def test_a_former_process_is_no_rival() -> None:
    reader = seen_by("b")
    beat(reader, "a", 1_000, is_after_start=False)
    beat(reader, "b", 2_000)
    assert reader.rival(2_000) == ""


def test_a_rival_that_was_silent_for_two_intervals_is_gone() -> None:
    reader = seen_by("a")
    beat(reader, "a", 1_000)
    beat(reader, "b", 2_000)
    assert reader.rival(2_000 + 2 * INTERVAL) == "b"
    assert reader.rival(2_001 + 2 * INTERVAL) == ""


def test_releases_of_the_one_that_yields_are_no_sign_of_life() -> None:
    reader = seen_by("b")
    beat(reader, "a", 1_000)
    beat(reader, "b", 2_000)
    beat(reader, "a", 3_000 + INTERVAL, kind=ReleasingPartition)
    assert reader.rival(3_000 + INTERVAL) == ""


def test_other_clients_and_groups_are_no_rivals() -> None:
    reader = seen_by("a")
    beat(reader, "a", 1_000)
    for group, client in (("g", "d"), ("h", "c")):
        reader.see(Heartbeat(group_id=group, client_id=client, instance_id="b"), 2_000, 2_000, is_after_start=True)
    assert reader.rival(2_000) == ""
