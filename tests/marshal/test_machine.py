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


def test_clocks_of_senders_do_not_matter_by_the_document() -> None:
    world = World()
    assert world.tell(claim("a1", time=0)) is Outcome.CLAIMED  # 0 is "never" for the library
    assert world.tell(claim("b1", time=10**9), 0.5) is Outcome.CLAIM_REFUSED
    assert world.tell(beat("a1", 3, time=7), 0.5) is Outcome.RENEWED
    assert world.tell(claim("b1", time=-(10**9)), 2) is Outcome.CLAIM_REFUSED
    assert world.holder() == "a1"


def test_without_a_brokers_time_the_senders_counts() -> None:
    state = WorldState(Rules.DOCUMENT, partitions=1)
    state.apply(Entry(0, 0, 777, False, claim("a1", time=1_000)), 0)
    state.apply(Entry(0, 1, 10**15, False, "no message, so no sender's time"), 0)
    assert state.log_time_ms(0) == 1_000_000
    assert state.apply(Entry(0, 2, -1, False, claim("b1", time=1_120)), 0) is Outcome.CLAIM_REFUSED
    assert state.apply(Entry(0, 3, -1, False, claim("b1", time=1_121)), 0) is Outcome.CLAIMED


def test_the_logs_time_never_goes_back() -> None:
    world = World()
    world.tell(claim("a1"))
    world.tell(beat("a1"), 1)
    world.tell(beat("a1"), -1)  # a broker with a slower clock has become leader
    assert world.claim().heartbeat_ms == 1_000_000 + MINUTE
    assert world.tell(claim("b1"), 3.001) is Outcome.CLAIMED


# ---- "Consuming a New Partition"


def test_steps_5_and_6_a_claim_that_is_not_stale_stays() -> None:
    world = World()
    world.tell(claim("a1"))
    assert world.tell(claim("b1"), 2) is Outcome.CLAIM_REFUSED
    assert world.tell(claim("a1")) is Outcome.CLAIM_REPEATED
    assert world.holder() == "a1"
    assert world.tell(claim("b1"), 0.001) is Outcome.CLAIMED
    assert world.holder() == "b1"


def test_step_9_the_earliest_claim_wins() -> None:
    world = World()
    assert [world.tell(claim(who)) for who in ("b1", "a1", "c1", "b1")] == [
        Outcome.CLAIMED,
        Outcome.CLAIM_REFUSED,
        Outcome.CLAIM_REFUSED,
        Outcome.CLAIM_REPEATED,
    ]
    assert world.holder() == "b1"
    assert world.claim().token == 0


def test_step_11_the_winners_heartbeat_renews_and_has_the_offset() -> None:
    world = World()
    world.tell(claim("a1"))
    assert world.tell(beat("b1", 99)) is Outcome.HEARTBEAT_REFUSED
    assert world.tell(beat("a1", 7), 1.5) is Outcome.RENEWED
    assert (world.claim().current_offset, world.claim().token) == (7, 0)
    assert world.tell(claim("b1"), 2) is Outcome.CLAIM_REFUSED


def test_a_repeated_claim_does_not_renew() -> None:
    world = World()
    world.tell(claim("a1"))
    world.tell(claim("a1"), 1.9)
    assert world.tell(claim("b1"), 0.2) is Outcome.CLAIMED


def test_a_claim_keeps_the_offset_and_tokens_grow() -> None:
    world = World()
    world.tell(claim("a1"))
    world.tell(beat("a1", 5))
    world.tell(free("a1", 9))
    world.tell(claim("b1"))
    assert (world.claim().current_offset, world.claim().token) == (9, 3)


def test_a_late_heartbeat_of_a_former_holder_is_refused() -> None:
    world = World()
    world.tell(claim("a1"))
    assert world.tell(beat("a1", 5), 2.1) is Outcome.HEARTBEAT_REFUSED  # stale: others may have begun to claim
    world.tell(claim("b1"))
    assert world.tell(beat("a1", 6)) is Outcome.HEARTBEAT_REFUSED
    assert (world.holder(), world.claim().current_offset) == ("b1", 0)


def test_what_nobody_has_claimed_has_no_state() -> None:
    world = World()
    assert world.tell(beat("a1", 5)) is Outcome.HEARTBEAT_REFUSED
    assert world.tell(free("a1", 5)) is Outcome.RELEASE_REFUSED
    assert world.tell(propose("a1", 5)) is Outcome.PROPOSAL_REFUSED
    assert world.state.claims == {}


# ---- "Consuming Recently Used Partitions on Restart"


def test_restart_step_3_only_fresh_heartbeats_are_taken_up() -> None:
    world = World()
    world.tell(claim("a1"))
    assert world.tell(beat("a2", 4), 0.9) is Outcome.TAKEN_OVER
    assert (world.holder(), world.claim().token, world.claim().current_offset) == ("a2", 1, 4)
    assert world.tell(beat("a3", 5), 1) is Outcome.HEARTBEAT_REFUSED
    assert world.tell(beat("a2", 5)) is Outcome.RENEWED


def test_a_replaced_instance_does_not_come_back() -> None:
    world = World()
    world.tell(claim("a1"))
    world.tell(beat("a2", 4), 0.5)
    assert world.tell(beat("a1", 3)) is Outcome.HEARTBEAT_REFUSED  # it was under way
    assert world.tell(free("a1", 3)) is Outcome.RELEASE_REFUSED
    assert world.tell(propose("a1", 3)) is Outcome.PROPOSAL_REFUSED
    assert (world.holder(), world.claim().current_offset) == ("a2", 4)
    world.tell(free("a2", 5))
    assert world.tell(claim("a1")) is Outcome.CLAIMED
    assert world.tell(beat("a1", 5)) is Outcome.RENEWED


def test_what_was_sent_before_the_claim_does_not_count() -> None:
    world = World()
    world.tell(claim("a1", time=100))
    for late in (beat("a1", 1, time=99), free("a1", 1, time=99)):
        assert world.tell(late) in (Outcome.HEARTBEAT_REFUSED, Outcome.RELEASE_REFUSED)
    assert world.holder() == "a1"
    assert world.tell(free("a1", 1, time=100)) is Outcome.RELEASED


def test_another_copy_of_a_released_claim_is_refused() -> None:
    world = World()
    world.tell(claim("a1", time=100))
    world.tell(free("a1", 1, time=100))
    assert world.tell(claim("a1", time=100)) is Outcome.CLAIM_REFUSED
    assert world.tell(claim("a1", time=101)) is Outcome.CLAIMED


# ---- positions


def test_position_does_not_go_back_by_late_appends_of_the_holder() -> None:
    world = World()
    world.tell(claim("a1"))
    world.tell(beat("a1", 9))
    assert world.tell(beat("a1", 4)) is Outcome.RENEWED
    assert world.claim().current_offset == 9
    world.tell(free("a1", 5))
    assert world.claim().current_offset == 9


def test_position_goes_back_by_who_claims_in_a_pause() -> None:
    world = World()
    for message in (claim("a1"), beat("a1", 9), pause(1_000), free("a1", 7)):
        world.tell(message)
    assert world.claim().current_offset == 9  # its claim is older than the pause
    world.tell(claim("x1"))
    world.tell(beat("x1", 2))
    assert world.claim().current_offset == 9  # a heartbeat may have been overtaken
    world.tell(free("x1", 2))
    assert world.claim().current_offset == 2


def test_position_does_not_go_back_by_a_restart_in_a_pause() -> None:
    world = World()
    for message in (claim("a1"), beat("a1", 9), pause(1_000)):
        world.tell(message)
    assert world.tell(beat("a2", 4)) is Outcome.TAKEN_OVER  # late, of another process of the client
    assert world.claim().current_offset == 9


def test_position_goes_back_by_an_admin_whose_pause_was_trimmed() -> None:
    world = World(first_offset=100)
    for message in (beat("x1", 9), free("x1", 2)):
        message.client_id = "kcoord-admin-x1"
        world.tell(message)
    assert world.claim().current_offset == 2


@pytest.mark.parametrize("before", [[], [pause(1_000), pause(0)]])
def test_position_does_not_go_back_without_a_pause(before: list[Any]) -> None:
    world = World()
    for message in (claim("a1"), free("a1", 9), *before, claim("x1"), free("x1", 2)):
        world.tell(message)
    assert world.claim().current_offset == 9


# ---- release, "At Most Once", "Consumer Failure"


def test_only_a_live_holder_releases() -> None:
    world = World()
    world.tell(claim("a1"))
    assert world.tell(free("b1", 8)) is Outcome.RELEASE_REFUSED
    assert world.tell(free("a1", 8), 2) is Outcome.RELEASED
    assert world.state.freshness(world.claim(), world.now) is Freshness.FREE
    assert world.tell(free("a1", 1)) is Outcome.RELEASE_REFUSED  # a duplicate, or late
    assert world.tell(beat("a1", 1)) is Outcome.HEARTBEAT_REFUSED  # was under way when it released
    assert world.claim().current_offset == 8
    assert world.tell(claim("b1")) is Outcome.CLAIMED


def test_a_stale_holder_releases_nothing() -> None:
    world = World()
    world.tell(claim("a1"))
    world.tell(beat("a1", 5))
    assert world.tell(free("a1", 8), 2.1) is Outcome.RELEASE_REFUSED
    assert world.claim().current_offset == 5


def test_most_once_steps_6_and_7_are_seen_in_the_state() -> None:
    world = World()
    world.tell(claim("a1"))
    assert world.tell(propose("b1", 10)) is Outcome.PROPOSAL_REFUSED
    assert world.tell(propose("a1", 20)) is Outcome.PROPOSED
    assert world.claim().proposed_offset == 20
    world.tell(claim("b1"), 2.1)
    assert world.claim().proposed_offset == -1


def test_after_two_silent_intervals_another_consumer_takes_over() -> None:
    world = World()
    world.tell(claim("a1"))
    world.tell(beat("a1", 5), 0.5)
    assert world.tell(claim("b1"), 2.001) is Outcome.CLAIMED
    assert world.claim().current_offset == 5


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


# ---- trimmed logs


def test_a_claim_seen_from_its_heartbeat_is_inferred() -> None:
    world = World(first_offset=100)
    assert world.tell(beat("a1", 5)) is Outcome.TAKEN_OVER
    assert (world.holder(), world.claim().token, world.claim().certainty) == ("a1", -1, Certainty.INFERRED)
    assert world.tell(claim("b1"), 1) is Outcome.CLAIM_REFUSED
    assert world.tell(beat("a1", 6)) is Outcome.RENEWED


def test_a_refused_claim_before_the_cut_does_not_last() -> None:
    """a1 holds the partition when b1's claim, which a full reader refuses, is the first entry that is left."""
    world = World(first_offset=100)
    world.tell(claim("b1"))
    assert world.tell(claim("c1"), 1) is Outcome.CLAIM_REFUSED  # a1 was silent for two intervals: c1 has won
    assert world.tell(beat("c1", 4)) is Outcome.TAKEN_OVER
    assert world.holder() == "c1"
    world.tell(beat("c1", 5), 1.9)
    assert world.tell(beat("c1", 6), 1.9) is Outcome.RENEWED


def test_a_shown_holder_is_not_followed_by_its_late_heartbeat() -> None:
    """Else what a1 sent before its release, and lands after it, hides the next claim from readers that began late."""
    world = World(first_offset=100)
    for _ in range(5):
        world.tell(beat("a1", 5), 0.5)
    assert world.claim().certainty is Certainty.INFERRED
    world.tell(beat("a1", 5), 0.6)
    assert world.claim().certainty is Certainty.SHOWN
    assert world.tell(free("a1", 6)) is Outcome.RELEASED
    assert world.tell(beat("a1", 5)) is Outcome.HEARTBEAT_REFUSED
    assert world.tell(claim("b1")) is Outcome.CLAIMED
    assert world.tell(beat("a1", 5)) is Outcome.HEARTBEAT_REFUSED, "and not while the next claim is live"
    assert world.holder() == "b1"
    assert world.tell(beat("c1", 5), 2.1) is Outcome.TAKEN_OVER, "stale: another's heartbeat shows a holder"


def test_a_stale_heartbeat_shows_no_holder() -> None:
    """a1's last heartbeat lands when its claim is stale: a reader that began late must not take it for the holder's."""
    world = World(first_offset=100)
    world.tell(beat("a1", 5))
    world.tell(beat("a1", 6), 1.7)
    assert world.tell(beat("a1", 7), 2.1) is Outcome.HEARTBEAT_REFUSED
    assert world.tell(claim("b1")) is Outcome.CLAIMED
    assert world.tell(beat("b1", 7)) is Outcome.RENEWED


def test_a_silent_place_is_certain_again() -> None:
    world = World(first_offset=100)
    world.tell(beat("a1", 5))
    world.tell("no message", 3.1)
    assert world.state.is_warm(0)
    assert world.tell(claim("b1")) is Outcome.CLAIMED
    assert world.claim().certainty is Certainty.CERTAIN
    assert world.tell(beat("a1", 5)) is Outcome.HEARTBEAT_REFUSED


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
