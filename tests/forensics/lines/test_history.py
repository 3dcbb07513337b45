"""Logs recorded from real brokers and clients: their histories say what was done to the group.

In each a member `a` joins, then `b`, then `c`; `c` does not poll for 15 s with max.poll.interval.ms 8 s; `b` is killed
with a session timeout of 6 s (45 s with KIP-848); `c` comes back and leaves, and so does `a`.

A capture and the broker's log of the same incident, real ones: the log is a second witness.
"""

from __future__ import annotations

import pytest

from kcoord_wire.forensics import analyze
from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.model import GroupHistory
from tests.support.text_logs import history_of, parse, recorded

POLL, LEFT, NEW, SESSION = Cause.POLL_TIMEOUT, Cause.MEMBER_LEFT, Cause.NEW_MEMBER, Cause.SESSION_EXPIRED
FOLLOW_UP, UNKNOWN = Cause.COOPERATIVE_FOLLOW_UP, Cause.UNKNOWN


def recorded_history(group: str, *names: str) -> GroupHistory:
    [history] = analyze(recorded(*names), groups=[group]).histories
    return history


def story(history: GroupHistory) -> list[tuple[str, str]]:
    return [(rebalance.cause, (rebalance.client_id or "?")[-1]) for rebalance in history.rebalances]


JAVA = [(NEW, "a"), (NEW, "b"), (NEW, "c"), (POLL, "c"), (NEW, "c"), (LEFT, "c"), (LEFT, "a")]
NO_POLL_LIMIT = [(NEW, "a"), (NEW, "b"), (NEW, "c"), (SESSION, "c"), (NEW, "c"), (LEFT, "c"), (LEFT, "a")]
BROKERS = {
    ("broker-3.9.2", "billing-java"): JAVA,
    # librdkafka and kafka-python state no reason when they leave (KIP-800), the broker cannot know more
    ("broker-3.9.2", "billing-conf"): [(LEFT if cause == POLL else cause, who) for cause, who in JAVA],
    ("broker-3.9.2", "billing-kjs"): NO_POLL_LIMIT,
    ("broker-3.9.2", "billing-aio"): NO_POLL_LIMIT,
    ("broker-2.3.1", "billing-java"): [(LEFT if cause == POLL else cause, who) for cause, who in JAVA],
    # a static member of group.instance.id pod-1 joined besides and was killed; b joined within the same rebalance
    ("broker-2.8.2", "billing-java"): [
        *[(NEW, "a"), (NEW, "1"), (NEW, "c"), (LEFT, "c"), (NEW, "c"), (SESSION, "1"), (LEFT, "c"), (LEFT, "a")]
    ],
    # a cooperative assignor, and the broker was killed before the end
    ("broker-3.6.2", "billing-java"): [
        *[(NEW, "a"), (NEW, "b"), (FOLLOW_UP, "a"), (NEW, "c"), (FOLLOW_UP, "b"), (POLL, "c")]
    ],
    ("broker-4.1.0-kip848", "billing-java"): [(LEFT if cause == POLL else cause, "?") for cause, _ in JAVA],
}


@pytest.mark.parametrize(("name", "group"), BROKERS)
def test_what_a_broker_logged_names_causes_and_clients(name: str, group: str) -> None:
    assert story(recorded_history(group, name)) == BROKERS[name, group]


@pytest.mark.parametrize(
    ("library", "group", "expected"),
    [
        ("java-3.9.2", "billing-java", JAVA),
        ("librdkafka", "billing-conf", JAVA),
        # b was killed in the middle of what c set off, and c itself learned of it 9 s later
        (
            "kafkajs",
            "billing-kjs",
            [(UNKNOWN, "?") if cause == SESSION else (cause, who) for cause, who in NO_POLL_LIMIT],
        ),
        (
            "aiokafka",
            "billing-aio",
            [(UNKNOWN, "?") if cause == SESSION else (cause, who) for cause, who in NO_POLL_LIMIT],
        ),
        ("kafka-python", "billing-kp", [*JAVA[:4], (UNKNOWN, "?"), *JAVA[4:]]),
    ],
)
def test_what_clients_logged_says_what_they_did(library: str, group: str, expected: list[tuple[str, str]]) -> None:
    assert story(recorded_history(group, library)) == expected


def test_a_clients_poll_timeout_explains_why_it_left() -> None:
    history = recorded_history("billing-conf", "broker-3.9.2", "librdkafka")
    assert story(history) == JAVA
    timeout = history.rebalances[3]
    assert any("Application maximum poll interval (8000ms) exceeded" in fact.text for fact in timeout.evidence)


def test_clients_give_names_to_the_members_of_kip_848() -> None:
    assert story(recorded_history("billing-java", "broker-4.1.0-kip848", "java-4.1.0-kip848")) == JAVA


def test_a_release_without_reasons_infers_what_it_can() -> None:
    history = recorded_history("billing-conf", "broker-1.1.1")
    assert [(row.cause, row.confidence) for row in history.rebalances[:2]] == [(NEW, 0.9), (SESSION, 0.95)]
    assert history.rebalances[2].cause == UNKNOWN
    assert "no reason" in " ".join(history.group.blind)


def test_the_oldest_release_shows_when_and_how_long() -> None:
    history = recorded_history("billing-conf", "broker-0.10.2.2")
    assert [row.generation_id for row in history.rebalances] == [1, 2, 3, 4, 5, 6, 7]
    assert [row.outcome for row in history.rebalances] == [*["stable"] * 6, "empty"]
    assert [(row.cause, row.confidence) for row in history.rebalances[:2]] == [(NEW, 0.9), (UNKNOWN, 0.0)]
    assert history.rebalances[3].joining_ms == pytest.approx(3400, abs=100)


def test_times_members_and_generations_are_those_of_the_lines() -> None:
    history = recorded_history("billing-java", "broker-3.9.2")
    third = history.rebalances[2]
    assert (third.generation_id, third.members_before, third.members_after, third.outcome) == (3, 2, 3, "stable")
    assert third.joining_ms == 103.0
    assert third.duration_ms == 114.0
    gone = {(row.client_id, row.why) for rebalance in history.rebalances for row in rebalance.removed}
    assert gone == {("java-c", "poll timeout"), ("java-b", "session timeout"), ("java-c", "left"), ("java-a", "left")}
    states = [state.state for state in history.states[:4]]
    assert states == ["PreparingRebalance", "CompletingRebalance", "Stable", "PreparingRebalance"]
    assert [row.generation_id for row in history.generations] == [1, 2, 3, 4, 5, 6]
    assert history.group.origin == "text"


def test_what_a_log_cannot_say_is_said() -> None:
    history = recorded_history("billing-java", "broker-3.9.2")
    assert all(row.late_ms is None and row.last_member_id is None for row in history.rebalances)
    assert any("how late" in sentence for sentence in history.group.blind)
    assert any("time zone" in sentence for sentence in history.group.blind)


def test_a_zoned_log_needs_no_remark_about_zones() -> None:
    assert not any("zone" in sentence for sentence in recorded_history("billing-kjs", "kafkajs").group.blind)


def test_a_line_in_two_files_counts_once() -> None:
    line = "[2026-11-22 12:00:00,000] INFO [GroupCoordinator 1]: Preparing to rebalance group g with old generation 0"
    history = history_of([*parse(line, source="server.log"), *parse(line, source="server.log.1")])
    assert len(history.rebalances) == 1
    assert history.rebalances[0].evidence[0].source == "server.log"


def test_lines_of_one_moment_are_in_the_order_of_a_coordinator() -> None:
    """What collects the logs of several brokers sorts the lines of a millisecond as text."""
    at = "[2026-11-22 12:00:{:02},117] INFO [GroupCoordinator id=1 topic=__consumer_offsets partition=0] "
    reason = f"(reason: explicit `LeaveGroup` request for ({MEMBER}) members.)"
    lines = [
        at.format(1) + f"Preparing to rebalance group g in state PreparingRebalance with old generation 0 "
        f"(reason: Adding new member {MEMBER} with group instance id null; client reason: not provided).",
        at.format(2)
        + f"Assignment received from leader {MEMBER} for group g for generation 1. The group has 1 members, "
        "0 of which are static.",
        at.format(2) + "Stabilized group g generation 1 with 1 members.",
        at.format(50)
        + f"[Group g] Member {MEMBER} has left group through explicit `LeaveGroup` request; client reason: "
        "not provided",
        at.format(50) + "Group g with generation 2 is now empty.",
        at.format(50) + f"Preparing to rebalance group g in state PreparingRebalance with old generation 1 {reason}.",
    ]
    history = history_of(parse("\n".join(lines)))
    assert [(row.generation_id, row.outcome) for row in history.rebalances] == [(1, "stable"), (2, "empty")]
    assert [state.state for state in history.states][-1] == "Empty"


def test_epochs_of_one_moment_follow_from_the_member_that_came() -> None:
    at = "[2026-11-22 12:00:{:02},117] INFO [GroupCoordinator id=1 topic=__consumer_offsets partition=0] [GroupId g] "
    lines = [
        at.format(second) + line
        for second, epoch in ((1, 1), (5, 2))
        for line in (
            f"Bumped group epoch to {epoch} with metadata hash 12.",
            f"Computed a new target assignment for epoch {epoch} with 'uniform' assignor in 1ms: x.",
            f"Member m-{epoch} joins the consumer group using the consumer protocol.",
        )
    ]
    history = history_of(parse("\n".join(lines)))
    assert [(row.cause, row.members_before, row.members_after) for row in history.rebalances] == [
        (Cause.NEW_MEMBER, 0, 1),
        (Cause.NEW_MEMBER, 1, 2),
    ]


def test_epochs_of_one_moment_follow_each_from_its_own_member() -> None:
    """Kafka 4.1 logs the member or the epoch first; a classic member joins again for each epoch."""
    at = "[2026-11-22 12:00:{},{:03}] INFO [GroupCoordinator id=1 topic=__consumer_offsets partition=0] [GroupId g] "
    joins, bumped = (
        "Member {} joins the consumer group using the {} protocol.",
        "Bumped group epoch to {} with metadata hash {}.",
    )
    left = "Member {} left the consumer group."
    said = [
        (10, 0, joins.format("a", "consumer")), (10, 1, bumped.format(1, 12)),
        (11, 0, bumped.format(2, 12)), (11, 0, joins.format("b", "classic")),
        (12, 0, joins.format("b", "classic")),
        (13, 0, bumped.format(3, 12)), (13, 2, joins.format("c", "consumer")),
        (20, 585, left.format("c")), (20, 586, bumped.format(4, 12)),
        (20, 586, left.format("b")), (20, 587, bumped.format(5, 12)),
        (20, 588, bumped.format(6, 0)), (20, 588, left.format("a")),
        (40, 0, bumped.format(7, 99)),
    ]  # fmt: skip
    history = history_of(parse("\n".join(at.format(second, ms) + text for second, ms, text in said)))
    assert [(row.cause, row.member_id) for row in history.rebalances] == [
        *((Cause.NEW_MEMBER, name) for name in "abc"), *((Cause.MEMBER_LEFT, name) for name in "cba"),
        (Cause.TOPICS_CHANGED, None),
    ]  # fmt: skip


@pytest.mark.parametrize(("later_s", "cause"), [(3, Cause.NEW_MEMBER), (40, Cause.TOPICS_CHANGED)])
def test_the_first_topics_of_a_group_are_no_change(later_s: int, cause: Cause) -> None:
    at = "[2026-11-22 12:00:{:02},117] INFO [GroupCoordinator id=1 topic=__consumer_offsets partition=0] [GroupId g] "
    history = history_of(
        parse(
            at.format(1) + "Member m joins the consumer group using the consumer protocol.\n"
            + at.format(1) + "Bumped group epoch to 1 with metadata hash 0.\n"
            + at.format(1 + later_s) + "Bumped group epoch to 2 with metadata hash 3880333271595468941."
        )
    )  # fmt: skip
    assert [row.cause for row in history.rebalances] == [Cause.NEW_MEMBER, cause]


MEMBER = "app-1-b542b773-d427-4892-9760-92cf58a9215a"
