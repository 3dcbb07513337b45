"""The world state: next to the recorded one of the Go library, and by the numbered steps and laws of the document."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from random import Random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kcoord_wire.marshal.log import coordination_partition
from kcoord_wire.marshal.world_state import (
    FORGET_MS,
    MEMBER_INTERVALS,
    Certainty,
    Claim,
    Entry,
    Freshness,
    Outcome,
    Place,
    Rules,
    WorldState,
)
from kcoord_wire.messages import marshal as m
from tests.support.marshal_golden import check_world
from tests.support.marshal_world import (
    GROUP,
    TOPIC,
    World,
    beat,
    claim,
    free,
    hand_over,
    histories,
    identify,
    pause,
    presence,
    propose,
    random_log,
    say,
)

GOLDEN = Path(__file__).parent.parent / "data" / "golden" / "marshal"
MINUTE = 60_000


@pytest.mark.parametrize("name", ["world_state.jsonl.gz", "replay_divergence.jsonl"])
def test_each_step_has_the_state_of_the_go_library(name: str) -> None:
    right, wrong = check_world(GOLDEN / name)
    assert wrong == []
    assert right > 0


# ---- "Heartbeats"


@pytest.mark.parametrize(
    ("age_ms", "freshness"),
    [
        (0, Freshness.FRESH),
        (MINUTE - 1, Freshness.FRESH),
        (MINUTE, Freshness.UNKNOWN),
        (2 * MINUTE, Freshness.UNKNOWN),
        (2 * MINUTE + 1, Freshness.STALE),
    ],
)
def test_fresh_unknown_stale(age_ms: int, freshness: Freshness) -> None:
    world = World()
    world.tell(claim("a1"))
    assert world.state.freshness(world.claim(), world.now + age_ms) is freshness
    assert world.state.is_claimed(world.claim(), world.now + age_ms) is (freshness is not Freshness.STALE)


@pytest.mark.parametrize(("age", "claimed"), [(-1, False), (0, True), (119, True), (120, False)])
def test_the_library_takes_119_seconds_of_its_clock(age: int, claimed: bool) -> None:
    world = World(Rules.LIBRARY)
    world.tell(beat("a1", time=5_000))
    assert world.state.is_claimed(world.claim(), 5_000 + age) is claimed


def test_without_a_brokers_time_the_senders_counts() -> None:
    state = WorldState(Rules.DOCUMENT, partitions=1)
    state.apply(Entry(0, 0, 777, False, claim("a1", time=1_000)), 0)
    state.apply(Entry(0, 1, 10**15, False, "no message, so no sender's time"), 0)
    assert state.log_time_ms(0) == 1_000_000
    assert state.apply(Entry(0, 2, -1, False, claim("b1", time=1_120)), 0) is Outcome.CLAIM_REFUSED
    assert state.apply(Entry(0, 3, -1, False, claim("b1", time=1_121)), 0) is Outcome.CLAIMED


# ---- stories: messages of one place, each so many intervals after the one before, with its outcome


def has(**expected: Any) -> dict[str, Any]:
    """What the claim is at this point of a story; `holder` is the instance whose claim is live."""
    return expected


_HELD_BY_A = (claim("a1"), Outcome.CLAIMED)
STORIES: dict[str, list[Any]] = {
    "clocks of senders do not matter by the document": [
        (claim("a1", time=0), Outcome.CLAIMED),  # 0 is "never" for the library
        (claim("b1", time=10**9), Outcome.CLAIM_REFUSED, 0.5),
        (beat("a1", 3, time=7), Outcome.RENEWED, 0.5),
        (claim("b1", time=-(10**9)), Outcome.CLAIM_REFUSED, 2),
        has(holder="a1"),
    ],
    "the log's time never goes back": [
        _HELD_BY_A,
        (beat("a1"), Outcome.RENEWED, 1),
        (beat("a1"), Outcome.RENEWED, -1),  # a broker with a slower clock has become leader
        has(heartbeat_ms=1_000_000 + MINUTE),
        (claim("b1"), Outcome.CLAIMED, 3.001),
    ],
    "steps 5 and 6: a claim that is not stale stays": [
        _HELD_BY_A,
        (claim("b1"), Outcome.CLAIM_REFUSED, 2),
        (claim("a1"), Outcome.CLAIM_REPEATED),
        has(holder="a1"),
        (claim("b1"), Outcome.CLAIMED, 0.001),
        has(holder="b1"),
    ],
    "step 9: the earliest claim wins": [
        (claim("b1"), Outcome.CLAIMED),
        (claim("a1"), Outcome.CLAIM_REFUSED),
        (claim("c1"), Outcome.CLAIM_REFUSED),
        (claim("b1"), Outcome.CLAIM_REPEATED),
        has(holder="b1", token=0),
    ],
    "step 11: the winner's heartbeat renews and has the offset": [
        _HELD_BY_A,
        (beat("b1", 99), Outcome.HEARTBEAT_REFUSED),
        (beat("a1", 7), Outcome.RENEWED, 1.5),
        has(current_offset=7, token=0),
        (claim("b1"), Outcome.CLAIM_REFUSED, 2),
    ],
    "a repeated claim does not renew": [
        _HELD_BY_A,
        (claim("a1"), Outcome.CLAIM_REPEATED, 1.9),
        (claim("b1"), Outcome.CLAIMED, 0.2),
    ],
    "a claim keeps the offset, and tokens grow": [
        _HELD_BY_A,
        (beat("a1", 5), Outcome.RENEWED),
        (free("a1", 9), Outcome.RELEASED),
        (claim("b1"), Outcome.CLAIMED),
        has(current_offset=9, token=3),
    ],
    "a late heartbeat of a former holder is refused": [
        _HELD_BY_A,
        (beat("a1", 5), Outcome.HEARTBEAT_REFUSED, 2.1),  # stale: others may have begun to claim
        (claim("b1"), Outcome.CLAIMED),
        (beat("a1", 6), Outcome.HEARTBEAT_REFUSED),
        has(holder="b1", current_offset=0),
    ],
    "restart, step 3: only fresh heartbeats are taken up": [
        _HELD_BY_A,
        (beat("a2", 4), Outcome.TAKEN_OVER, 0.9),
        has(holder="a2", token=1, current_offset=4),
        (beat("a3", 5), Outcome.HEARTBEAT_REFUSED, 1),
        (beat("a2", 5), Outcome.RENEWED),
    ],
    "a replaced instance does not come back": [
        _HELD_BY_A,
        (beat("a2", 4), Outcome.TAKEN_OVER, 0.5),
        (beat("a1", 3), Outcome.HEARTBEAT_REFUSED),  # it was under way
        (free("a1", 3), Outcome.RELEASE_REFUSED),
        (propose("a1", 3), Outcome.PROPOSAL_REFUSED),
        has(holder="a2", current_offset=4),
        (free("a2", 5), Outcome.RELEASED),
        (claim("a1"), Outcome.CLAIMED),
        (beat("a1", 5), Outcome.RENEWED),
    ],
    "what was sent before the claim does not count": [
        (claim("a1", time=100), Outcome.CLAIMED),
        (beat("a1", 1, time=99), Outcome.HEARTBEAT_REFUSED),
        (free("a1", 1, time=99), Outcome.RELEASE_REFUSED),
        has(holder="a1"),
        (free("a1", 1, time=100), Outcome.RELEASED),
    ],
    "another copy of a released claim is refused": [
        (claim("a1", time=100), Outcome.CLAIMED),
        (free("a1", 1, time=100), Outcome.RELEASED),
        (claim("a1", time=100), Outcome.CLAIM_REFUSED),
        (claim("a1", time=101), Outcome.CLAIMED),
    ],
    "a position does not go back by late appends of the holder": [
        _HELD_BY_A,
        (beat("a1", 9), Outcome.RENEWED),
        (beat("a1", 4), Outcome.RENEWED),
        has(current_offset=9),
        (free("a1", 5), Outcome.RELEASED),
        has(current_offset=9),
    ],
    "a position goes back by who claims in a pause": [
        _HELD_BY_A,
        (beat("a1", 9), Outcome.RENEWED),
        (pause(1_000), Outcome.PAUSED),
        (free("a1", 7), Outcome.RELEASED),
        has(current_offset=9),  # its claim is older than the pause
        (claim("x1"), Outcome.CLAIMED),
        (beat("x1", 2), Outcome.RENEWED),
        has(current_offset=9),  # a heartbeat may have been overtaken
        (free("x1", 2), Outcome.RELEASED),
        has(current_offset=2),
    ],
    "a position does not go back by a restart in a pause": [
        _HELD_BY_A,
        (beat("a1", 9), Outcome.RENEWED),
        (pause(1_000), Outcome.PAUSED),
        (beat("a2", 4), Outcome.TAKEN_OVER),  # late, of another process of the client
        has(current_offset=9),
    ],
    "a position does not go back without a pause": [
        _HELD_BY_A,
        (free("a1", 9), Outcome.RELEASED),
        (claim("x1"), Outcome.CLAIMED),
        (free("x1", 2), Outcome.RELEASED),
        has(current_offset=9),
    ],
    "a position does not go back after a pause": [
        _HELD_BY_A,
        (free("a1", 9), Outcome.RELEASED),
        (pause(1_000), Outcome.PAUSED),
        (pause(0), Outcome.PAUSED),
        (claim("x1"), Outcome.CLAIMED),
        (free("x1", 2), Outcome.RELEASED),
        has(current_offset=9),
    ],
    # A member that reads a trimmed log knows no position, and releases what it has claimed when the pause was there.
    "no position is none to go back to, but an admin's": [
        _HELD_BY_A,
        (beat("a1", 9), Outcome.RENEWED),
        (pause(10_000), Outcome.PAUSED, 2),
        (claim("b1"), Outcome.CLAIMED, 0.1),
        (free("b1", 0), Outcome.RELEASED),
        has(current_offset=9),
        (claim("b1", time=1), Outcome.CLAIMED),
        (free("b1", 2, time=2), Outcome.RELEASED),
        has(current_offset=2),
    ],
    # A restart has read the position of a topic before the log had another one; its first heartbeat lands twice.
    "the copy of a restart's heartbeat has no position": [
        (claim("a1", time=1), Outcome.CLAIMED),
        (identify("a1", "first", time=1), Outcome.IDENTIFIED),
        (beat("a1", 21, time=1), Outcome.RENEWED),
        (identify("a1", "second", 0, time=2), Outcome.IDENTIFIED),
        (beat("a2", 21, time=2), Outcome.TAKEN_OVER),
        (beat("a2", 21, time=2), Outcome.RENEWED),
        has(current_offset=0, topic_id="second"),
        (beat("a2", 22, time=2), Outcome.RENEWED),
        has(current_offset=22),
    ],
    "only a live holder releases": [
        _HELD_BY_A,
        (free("b1", 8), Outcome.RELEASE_REFUSED),
        (free("a1", 8), Outcome.RELEASED, 2),
        has(holder=None, freshness=Freshness.FREE),
        (free("a1", 1), Outcome.RELEASE_REFUSED),  # a duplicate, or late
        (beat("a1", 1), Outcome.HEARTBEAT_REFUSED),  # was under way when it released
        has(current_offset=8),
        (claim("b1"), Outcome.CLAIMED),
    ],
    "a stale holder releases nothing": [
        _HELD_BY_A,
        (beat("a1", 5), Outcome.RENEWED),
        (free("a1", 8), Outcome.RELEASE_REFUSED, 2.1),
        has(current_offset=5),
    ],
    "at most once: steps 6 and 7 are seen in the state": [
        _HELD_BY_A,
        (propose("b1", 10), Outcome.PROPOSAL_REFUSED),
        (propose("a1", 20), Outcome.PROPOSED),
        has(proposed_offset=20),
        (claim("b1"), Outcome.CLAIMED, 2.1),
        has(proposed_offset=-1),
    ],
    "after two silent intervals another consumer takes over": [
        _HELD_BY_A,
        (beat("a1", 5), Outcome.RENEWED, 0.5),
        (claim("b1"), Outcome.CLAIMED, 2.001),
        has(current_offset=5),
    ],
}
TRIMMED: dict[str, list[Any]] = {
    "a claim seen from its heartbeat is inferred": [
        (beat("a1", 5), Outcome.TAKEN_OVER),
        has(holder="a1", token=-1, certainty=Certainty.INFERRED),
        (claim("b1"), Outcome.CLAIM_REFUSED, 1),
        (beat("a1", 6), Outcome.RENEWED),
    ],
    # a1 holds the partition when b1's claim, which a full reader refuses, is the first entry that is left.
    "a refused claim before the cut does not last": [
        (claim("b1"), Outcome.CLAIMED),
        (claim("c1"), Outcome.CLAIM_REFUSED, 1),  # a1 was silent for two intervals: c1 has won
        (beat("c1", 4), Outcome.TAKEN_OVER),
        has(holder="c1"),
        (beat("c1", 5), Outcome.RENEWED, 1.9),
        (beat("c1", 6), Outcome.RENEWED, 1.9),
    ],
    # Else what a1 sent before its release, and lands after it, hides the next claim from readers that began late.
    "a shown holder is not followed by its late heartbeat": [
        (beat("a1", 5), Outcome.TAKEN_OVER, 0.5),
        *[(beat("a1", 5), Outcome.RENEWED, 0.5)] * 4,
        has(certainty=Certainty.INFERRED),
        (beat("a1", 5), Outcome.RENEWED, 0.6),
        has(certainty=Certainty.SHOWN),
        (free("a1", 6), Outcome.RELEASED),
        (beat("a1", 5), Outcome.HEARTBEAT_REFUSED),
        (claim("b1"), Outcome.CLAIMED),
        (beat("a1", 5), Outcome.HEARTBEAT_REFUSED),  # and not while the next claim is live
        has(holder="b1"),
        (beat("c1", 5), Outcome.HEARTBEAT_REFUSED, 2.1),  # b1's claim was seen, and c1's would have been
    ],
    # a1's last heartbeat lands when its claim is stale: a reader that began late must not take it for the holder's.
    "a stale heartbeat shows no holder": [
        (beat("a1", 5), Outcome.TAKEN_OVER),
        (beat("a1", 6), Outcome.RENEWED, 1.7),
        (beat("a1", 7), Outcome.HEARTBEAT_REFUSED, 2.1),
        (claim("b1"), Outcome.CLAIMED),
        (beat("b1", 7), Outcome.RENEWED),
    ],
    # A claim that is refused breaks the silence, and a1's heartbeat and name have landed late.
    "what a stale holder sends is not that of a holder": [
        (beat("a1", 5), Outcome.TAKEN_OVER),
        (claim("b1"), Outcome.CLAIM_REFUSED, 1.5),
        (beat("a1", 6), Outcome.HEARTBEAT_REFUSED, 1.5),
        (identify("a1", "second"), Outcome.SKIPPED),
        has(current_offset=5, topic_id="", certainty=Certainty.INFERRED),
        (claim("b1"), Outcome.CLAIMED),
    ],
    "a restart of a stale holder holds nothing for certain": [
        (beat("a1", 5), Outcome.TAKEN_OVER),
        *[(beat("a1", 5), Outcome.RENEWED, 0.9)] * 3,
        has(certainty=Certainty.SHOWN),
        (beat("a2", 5), Outcome.TAKEN_OVER, 2.1),
        has(certainty=Certainty.INFERRED),
        (claim("b1"), Outcome.CLAIM_REFUSED),  # a reader of everything has refused a2's heartbeat, and b1 has won
        (beat("b1", 5), Outcome.TAKEN_OVER),
    ],
    # b1 has claimed a topic that was created again; a1 was its holder before, and its heartbeat has landed late.
    "a position is not that of a former topic": [
        (beat("a1", 90), Outcome.TAKEN_OVER),
        (free("a1", 90), Outcome.RELEASED),
        (claim("b1", time=1), Outcome.CLAIMED, 0.5),
        (identify("b1", "second", 0, time=2), Outcome.IDENTIFIED),
        (beat("a1", 90), Outcome.TAKEN_OVER),
        has(current_offset=0, topic_id="second"),
        (beat("b1", 3, time=3), Outcome.TAKEN_OVER),
        has(current_offset=3),
        (beat("a2", 90), Outcome.TAKEN_OVER),
        (identify("b1", "second", time=3), Outcome.SKIPPED),
        (beat("b2", 90, time=3), Outcome.TAKEN_OVER),  # nor has a restart named it
        (free("b2", 90, time=3), Outcome.RELEASED),
        has(current_offset=3),
        (claim("b1", time=4), Outcome.CLAIMED),
        (beat("b1", 4, time=4), Outcome.RENEWED),
        has(current_offset=4),
    ],
    # What b1 has sent before it knew of the new topic is the first entry that is left.
    "what is found before a topic's name is no position of it": [
        (beat("b1", 90, time=1), Outcome.TAKEN_OVER),
        (identify("b1", "second", time=3), Outcome.IDENTIFIED),
        has(current_offset=0),
        (beat("b1", 90, time=2), Outcome.RENEWED),
        has(current_offset=0),
        (beat("b1", 3, time=3), Outcome.RENEWED),
        has(current_offset=3),
    ],
    "a silent place is certain again": [
        (beat("a1", 5), Outcome.TAKEN_OVER),
        ("no message", Outcome.SKIPPED, 3.1),
        has(is_warm=True),
        (claim("b1"), Outcome.CLAIMED),
        has(certainty=Certainty.CERTAIN),
        (beat("a1", 5), Outcome.HEARTBEAT_REFUSED),
    ],
}
"""Of logs whose beginning was trimmed."""


@pytest.mark.parametrize(("name", "first_offset"), [*((n, 0) for n in STORIES), *((n, 100) for n in TRIMMED)])
def test_each_message_of_a_story_has_its_outcome(name: str, first_offset: int) -> None:
    world = World(first_offset=first_offset)
    for number, step in enumerate((STORIES | TRIMMED)[name]):
        if isinstance(step, dict):
            claim = world.claim()
            state = world.state
            found = {
                "holder": world.holder(),
                "freshness": state.freshness(claim, world.now),
                "is_warm": state.is_warm(0),
            }
            assert {key: found.get(key, getattr(claim, key, None)) for key in step} == step, number
        else:
            message, outcome, *after = step
            assert world.tell(message, *after) is outcome, (number, message)


def test_what_nobody_has_claimed_has_no_state() -> None:
    world = World()
    assert world.tell(beat("a1", 5)) is Outcome.HEARTBEAT_REFUSED
    assert world.tell(free("a1", 5)) is Outcome.RELEASE_REFUSED
    assert world.tell(propose("a1", 5)) is Outcome.PROPOSAL_REFUSED
    assert world.state.claims == {}


def test_the_library_takes_what_a_trimmed_log_shows_for_all() -> None:
    world = World(Rules.LIBRARY, first_offset=100)
    world.tell(claim("a1", time=1_000))
    assert (world.claim().certainty, world.claim().token) == (Certainty.CERTAIN, 100)


def test_position_goes_back_by_an_admin_whose_pause_was_trimmed() -> None:
    world = World(first_offset=100)
    for message in (beat("x1", 9), free("x1", 2)):
        message.client_id = "kcoord-admin-x1"
        world.tell(message)
    assert world.claim().current_offset == 2


# ---- pauses and handoffs


def test_a_pause_lasts_by_the_logs_time_and_per_partition() -> None:
    state = WorldState(Rules.DOCUMENT, partitions=2)
    admins = 5_000_000  # its clock is far ahead
    state.apply(Entry(1, 0, 1_000_000, True, pause(admins + 30, admins)), 0)
    assert state.is_paused(GROUP, 1, 1_029_999)
    assert not state.is_paused(GROUP, 1, 1_030_000)
    assert not state.is_paused(GROUP, 0, 1_000_000)
    assert not state.is_paused("other", 1, 1_000_000)
    assert state.apply(Entry(1, 1, 1_001_000, True, pause(0, admins)), 0) is Outcome.PAUSED
    assert not state.is_paused(GROUP, 1, 1_001_000)
    assert state.members == {}  # the admin is no member of a topic


def test_a_pause_of_the_library_ends_by_the_readers_clock() -> None:
    state = WorldState(Rules.LIBRARY)
    state.apply(Entry(3, 0, -1, False, pause(900)), 10)
    assert state.is_paused(GROUP, 0, 899)
    assert not state.is_paused(GROUP, 0, 900)


def test_a_released_partition_is_reserved_until_the_deadline() -> None:
    world = World()
    world.tell(claim("a1"))
    assert world.tell(hand_over("b1", "b1", 30)) is Outcome.SKIPPED
    assert world.tell(hand_over("a1", "b1", 90)) is Outcome.HANDING_OVER
    assert world.state.reserved_for(world.claim(), world.now) is None  # it still holds it
    world.tell(free("a1", 3), 0.5)
    assert world.state.reserved_for(world.claim(), world.now + MINUTE) == "b1"
    assert world.state.reserved_for(world.claim(), world.now + MINUTE + 1) is None
    assert world.tell(claim("c1")) is Outcome.CLAIMED  # the Go library does not know of it
    assert world.claim().handoff is None


def test_a_reservation_ends_two_intervals_after_the_release() -> None:
    world = World()
    world.tell(claim("a1"))
    world.tell(hand_over("a1", "b1", 2**60))
    world.tell(free("a1", 3))
    assert world.state.reserved_for(world.claim(), world.now + 2 * MINUTE) == "b1"
    assert world.state.reserved_for(world.claim(), world.now + 2 * MINUTE + 1) is None


def test_who_dies_while_handing_over_reserves_nothing() -> None:
    world = World()
    world.tell(claim("a1"))
    world.tell(hand_over("a1", "b1", 10_000))
    assert world.state.reserved_for(world.claim(), world.now + 3 * MINUTE) is None
    assert world.tell(free("a1", 3), 2.1) is Outcome.RELEASE_REFUSED
    assert world.tell(hand_over("a1", "b1", 10_000)) is Outcome.SKIPPED


# ---- the coordination partition


def test_an_entry_on_the_wrong_partition_counts_for_the_library() -> None:
    right = coordination_partition(TOPIC, 4)
    document, library = WorldState(Rules.DOCUMENT, partitions=4), WorldState(Rules.LIBRARY, partitions=4)
    wrong = Entry((right + 1) % 4, 0, 1_000, True, claim("a1", time=1))
    assert document.apply(wrong, 1) is Outcome.SKIPPED
    assert document.claims == {} == document.members
    assert library.apply(wrong, 1) is Outcome.CLAIMED
    assert document.apply(wrong._replace(partition=right), 1) is Outcome.CLAIMED


def test_an_empty_topic_has_one_partition_too() -> None:
    state = WorldState(Rules.DOCUMENT, partitions=4)
    nameless = say(m.ClaimingPartition, "a1", topic="")
    outcomes = [state.apply(Entry(partition, 0, 1_000, True, nameless), 0) for partition in range(4)]
    assert sorted(outcomes) == [Outcome.CLAIMED] + [Outcome.SKIPPED] * 3


# ---- members, and what is forgotten


def test_members_are_known_before_they_hold_anything() -> None:
    world = World()
    assert world.tell(presence("a1")) is Outcome.PRESENT
    world.tell(beat("b1"))
    members = world.state.members[GROUP, TOPIC]
    assert {name: member.max_claims for name, member in members.items()} == {"a1": 3, "b1": None}


def test_silent_members_are_forgotten() -> None:
    world = World()
    for number in range(1_000):
        world.tell(presence(f"a{number}"))
    world.tell(presence("b1"), MEMBER_INTERVALS)
    world.tell(presence("b1"), MEMBER_INTERVALS)
    assert list(world.state.members[GROUP, TOPIC]) == ["b1"]
    world.tell("no message", 3 * MEMBER_INTERVALS)
    assert world.state.members == {}


def test_places_without_a_holder_are_forgotten_after_a_week() -> None:
    world = World()
    world.tell(claim("a1", 0))
    world.tell(claim("a1", 1))
    world.tell(pause(100))
    world.tell(beat("b1", 0, 1), FORGET_MS / MINUTE / 2)  # refused, but about this place
    world.tell("no message", FORGET_MS / MINUTE - 1)
    assert list(world.state.claims) == [Place(GROUP, TOPIC, 1)]
    assert world.state.pauses == {}
    world.tell(pause(2 * FORGET_MS // 1_000))
    world.tell("no message", FORGET_MS / MINUTE)
    assert len(world.state.pauses) == 1, "it goes on"


def test_in_a_warm_partition_an_unseen_place_is_free() -> None:
    world = World(first_offset=100)
    world.tell("no message")
    assert not world.state.is_warm(0)
    assert world.state.is_warm(0, world.now + 3 * MINUTE + 1)  # what a reader that has waited so long may ask
    world.tell("no message", 3.1)
    assert world.tell(beat("a1", 5)) is Outcome.HEARTBEAT_REFUSED
    world.tell(claim("a1"))
    assert world.claim().certainty is Certainty.CERTAIN


# ---- laws


def shown(state: WorldState) -> Any:
    """Everything that a reader can see of a state."""
    return state.claims, state.pauses, state.members


@given(histories(), st.lists(st.integers(-(10**6), 10**9), min_size=1))
def test_any_readers_clock_gives_the_same_state(log: list[Entry], clocks: list[int]) -> None:
    one, other = (WorldState(Rules.DOCUMENT, partitions=1) for _ in range(2))
    for index, entry in enumerate(log):
        assert one.apply(entry, 0) is other.apply(entry, clocks[index % len(clocks)])
        assert shown(one) == shown(other)


def on_topic(entry: Entry, topic: str, partition: int) -> Entry:
    """The same entry about another topic."""
    message = entry.message
    if not isinstance(message, (str, m.ReleaseGroup)):
        message = dataclasses.replace(message, topic=topic)
    return entry._replace(partition=partition, message=message)


@given(histories(), histories(), st.lists(st.booleans()))
def test_any_interleaving_of_partitions_gives_the_same_state(
    one: list[Entry], two: list[Entry], turns: list[bool]
) -> None:
    """Every third entry of each log lies on the wrong partition."""
    topics = ["orders", TOPIC]
    assert [coordination_partition(topic, 2) for topic in topics] == [0, 1]
    logs = [
        [on_topic(entry, topics[side ^ (entry.offset % 3 == 2)], side) for entry in log]
        for side, log in enumerate((one, two))
    ]
    ordered, mixed = (WorldState(Rules.DOCUMENT, partitions=2) for _ in range(2))
    for entry in logs[0] + logs[1]:
        ordered.apply(entry, 0)
    places = [0, 0]
    for side in [*turns, *[False] * len(one), *[True] * len(two)]:
        if places[side] < len(logs[side]):
            mixed.apply(logs[side][places[side]], 0)
            places[side] += 1
    assert shown(ordered) == shown(mixed)


@given(histories())
def test_a_live_holder_is_replaced_only_by_its_own_client(log: list[Entry]) -> None:
    state = WorldState(Rules.DOCUMENT, partitions=1)
    tokens: dict[Place, int] = {}
    for entry in log:
        before = {place: dataclasses.replace(held) for place, held in state.claims.items()}
        state.apply(entry, 0)
        for place, held in state.claims.items():
            former = before.get(place, Claim(place))
            is_live = state.is_claimed(former, state.log_time_ms(0)) and state.is_claimed(held, state.log_time_ms(0))
            if is_live and former.instance_id != held.instance_id:
                assert former.client_id == held.client_id
            if held.token != former.token:
                assert held.token == entry.offset > tokens.get(place, -1)
                tokens[place] = held.token


def certain(held: Claim) -> Claim:
    """What is promised of a certain claim."""
    return dataclasses.replace(held, current_offset=0)


def test_what_is_certain_in_a_trimmed_log_is_so_in_the_whole() -> None:
    random, found = Random(1), 0
    for _ in range(400):
        log = random_log(random, MINUTE)
        for cut in range(1, len(log)):
            found += compare_certain(log, cut)
    assert found > 1_000


def compare_certain(log: list[Entry], cut: int) -> int:
    """Compare a reader of everything with one that begins at the cut; return how often a claim was certain."""
    whole, trimmed = (WorldState(Rules.DOCUMENT, partitions=1) for _ in range(2))
    place, found = Place(GROUP, TOPIC, 0), 0
    for entry in log[:cut]:
        whole.apply(entry, 0)
    for entry in log[cut:]:
        outcomes = whole.apply(entry, 0), trimmed.apply(entry, 0)
        held = trimmed.claims.get(place)
        if held is None:
            is_free = place not in whole.claims or not whole.is_claimed(whole.claims[place], whole.log_time_ms(0))
            assert is_free or not trimmed.is_warm(0)
        elif held.certainty is Certainty.CERTAIN:
            assert certain(held) == certain(whole.claims[place])
            assert outcomes[0] is outcomes[1]
            found += 1
    return found


def test_what_is_inferred_is_right_if_members_obey() -> None:
    """What is refused to who holds nothing was never sent: members read the log before they send."""
    random, found = Random(2), 0
    for _ in range(400):
        reader = WorldState(Rules.DOCUMENT, partitions=1)
        log = [
            entry._replace(message="not sent") if reader.apply(entry, 0) in REFUSED else entry
            for entry in random_log(random, 0)
        ]
        for cut in range(1, len(log)):
            found += compare_inferred(log, cut)
    assert found > 1_000


REFUSED = (Outcome.HEARTBEAT_REFUSED, Outcome.RELEASE_REFUSED)


def compare_inferred(log: list[Entry], cut: int) -> int:
    """Compare a reader of everything with one that begins at the cut; return how often a claim was inferred."""
    whole, trimmed = (WorldState(Rules.DOCUMENT, partitions=1) for _ in range(2))
    place, found = Place(GROUP, TOPIC, 0), 0
    for entry in log[:cut]:
        whole.apply(entry, 0)
    for entry in log[cut:]:
        whole.apply(entry, 0)
        trimmed.apply(entry, 0)
        held = trimmed.claims.get(place)
        if held is not None and held.certainty in (Certainty.INFERRED, Certainty.SHOWN):
            full = whole.claims[place]
            assert held.token in (full.token, -1)
            assert (held.instance_id, held.heartbeat_ms) == (full.instance_id, full.heartbeat_ms)
            found += 1
    return found
