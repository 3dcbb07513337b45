"""The summary of a group: order, durations, clients.

Lag in words: sums, states with their time, the worst first, and what a rebalance added.

Findings that are alike share a card.

A rebalance in a sentence: how its member ended, whom it waited for, what it cost.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.model import Awaited, Finding, GroupHistory, LagStatus, Outage, PartitionState, RemovedMember
from kcoord_wire.report.digest import (
    awaited,
    cards_of,
    digest_of,
    digests,
    growth,
    headline,
    lag_sentence,
    waited_for_dead,
)
from tests.support.detector_groups import SECOND, generation, group, life, rebalance
from tests.support.histories import START, bare, empty, incident, kip_848, typical


def test_groups_are_sorted_worst_first() -> None:
    histories = [empty(), kip_848(), bare(), typical(), incident()]
    order = [digest.history.group.group_id for digest in digests(histories)]
    assert order == ["billing", "incident-84", "next-gen", "bare", "idle"]
    assert [digest.history.group.group_id for digest in digests(histories[::-1])] == order


def test_overlapping_rebalances_count_once() -> None:
    history = typical()
    first, second = history.rebalances[:2]
    first.outcome, first.ended_ns, first.duration_ms = "interrupted", None, None
    digest = digest_of(history)
    assert digest.lengths[1] == (second.started_ns - first.started_ns) / 1e6
    assert digest.unfinished == 1
    second.started_ns, second.duration_ms = START, 20_000.0
    history.rebalances = [first, second]
    assert digest_of(history).rebalancing_ms == 20_000.0


def test_culprits_are_counted_by_name_and_host() -> None:
    culprits = {(c.name, c.host): c for c in digest_of(typical()).culprits}
    late = culprits["billing-2", "10.0.0.5"]
    assert (late.set_off, late.last, late.late_ms, late.removed) == (2, 1, 6480.0, 1)
    assert culprits["billing-1", "10.0.0.4"].set_off == 3


# ---- the headline


def started(*rows: tuple[float, Cause, str], **lists: object) -> GroupHistory:
    """A group that starts with c1 and c2, has these rebalances with a pause of ten seconds, and is shut down."""
    start = [rebalance(1, 0), rebalance(2, 1, client="c2", members_before=1, members_after=2, paused_ms=60_000.0)]
    middle = [
        rebalance(number, at, cause, client, members_before=2, members_after=2, paused_ms=10_000.0, duration_ms=800.0)
        for number, (at, cause, client) in enumerate(rows, start=3)
    ]
    more = {"members_before": 1, "paused_ms": 90_000.0, "outcome": "empty"}
    end = [rebalance(len(rows) + 3, 600, Cause.MEMBER_LEFT, **more)]
    return group(610, rebalances=[*start, *middle, *end], **lists)


def test_nothing_unusual_is_said_with_what_happened() -> None:
    assert headline(group(20)).text == "no member was seen in 20.0 s, only requests that name the group"
    assert headline(group(20, members=[life("c1")])).text == (
        "nothing unusual in 20.0 s: no rebalance, 1 member at work; looked at 1 member, not at lag, of which the "
        "source shows none"
    )
    found = headline(started())
    assert (found.severity, found.text) == (
        "quiet", "nothing unusual in 10 min 10 s: it started with 2 members, and it was shut down; looked at 0 "
        "members, not at lag, of which the source shows none",
    )  # fmt: skip
    found = headline(started((300, Cause.NEW_MEMBER, "c3")))
    assert found.severity == "quiet"
    assert found.text.removesuffix("; looked at 0 members, not at lag, of which the source shows none").endswith(
        "1 rebalance in between (1 new member), and it was shut down; 3 x new member, the costliest of c3 (10.0.0.1) "
        "at +5:00.000: rebalance #3 took 800 ms, 10.0 s of partition time without an owner"
    )


def test_clocks_that_were_corrected_are_a_note() -> None:
    history = started()
    clock = Finding("billing", "source_clocks", "info", 0, None, "b.pcap", "it is ahead", "", 1_600.0, 500.0, [], [])
    history.findings = [clock]
    found = headline(history)
    assert found.severity == "quiet"
    assert found.text.endswith("; the clocks of its sources differ, and were corrected")


def test_a_static_deploy_is_a_note() -> None:
    history = started()
    deploy = Finding("billing", "static_deploy", "info", 0, None, None, "new processes came", "", 2, None, [], [])
    history.findings = [deploy]
    found = headline(history)
    assert found.severity == "quiet"
    assert found.text.endswith("; new processes came")


@pytest.mark.parametrize("cause", [Cause.SESSION_EXPIRED, Cause.POLL_TIMEOUT, Cause.COORDINATOR_FAILOVER])
def test_a_fault_goes_before_what_cost_more(cause: Cause) -> None:
    history = started((300, cause, "c2"), (400, Cause.NEW_MEMBER, "c3"))
    history.rebalances[3].paused_ms = 500_000.0
    found = headline(history)
    assert found.severity == "info"
    assert found.text.startswith(f"{cause} of c2 (10.0.0.1) at +5:00.000: rebalance #3 took 800 ms")
    history.rebalances[2].paused_ms = 30_000.0
    assert headline(history).severity == "warning"


def test_the_order_is_critical_outage_warning_fault_info() -> None:
    history = started((300, Cause.SESSION_EXPIRED, "c2"))
    found = typical().findings[0]
    info, warning, critical = (replace(found, severity=name, text=name) for name in ("info", "warning", "critical"))
    outage = Outage("billing", "broker down", 0, 7 * SECOND, "b:9092", [], "b:9092 was down for 7.0 s", None, [])
    history.findings = [info]
    assert headline(history).text.startswith("session timeout")
    history.findings = [info, warning]
    assert headline(history).text.startswith("session timeout"), "which cost more, and the warning does not name it"
    history.findings = [info, replace(warning, rebalances=[3])]
    assert headline(history).text == "warning"
    history.findings = [info, replace(warning, cost_ms=11_000.0)]
    assert headline(history).text == "warning"
    history.outages = [replace(outage, to_ns=SECOND, text="short"), outage]
    assert (headline(history).severity, headline(history).text) == (
        "warning", "b:9092 was down for 7.0 s (and 1 shorter outage)",
    )  # fmt: skip
    history.findings = [info, warning, critical]
    assert (headline(history).severity, headline(history).text) == ("critical", "critical")
    history.outages, history.findings, history.rebalances = [], [info], []
    assert headline(history).text == "info"


def test_long_or_frequent_rebalances_are_not_called_usual() -> None:
    found = headline(started(*((300 + 10 * at, Cause.NEW_MEMBER, f"c{at}") for at in range(3))))
    assert (found.severity, found.text[:29]) == ("info", "3 rebalances within a minute ")
    history = started((300, Cause.NEW_MEMBER, "c3"))
    history.rebalances[2].duration_ms = 18_000.0
    found = headline(history)
    assert found.severity == "info"
    assert found.text.startswith("1 rebalance of ten seconds or more, the longest #3 by new member, 18.0 s")


@pytest.mark.parametrize(("partitions", "severity"), [([0, 4], "quiet"), ([4, 4], "info"), ([0, 0], "info")])
def test_a_topic_learnt_of_late_is_part_of_the_start(partitions: list[int], severity: str) -> None:
    rows = [rebalance(1, 0)]
    rows += [rebalance(2, 5, Cause.TOPICS_CHANGED, members_before=1)]
    rows += [rebalance(at, 2 * at, client=f"c{at}", members_before=at) for at in range(3, 6)]
    given = [replace(generation(at, 5 * at), partitions=count) for at, count in enumerate(partitions)]
    assert headline(group(rebalances=rows, generations=given)).severity == severity


def test_a_kill_before_the_shutdown_is_no_part_of_it() -> None:
    history = started((550, Cause.SESSION_EXPIRED, "c2"))
    history.rebalances[2].members_after = 1
    assert headline(history).text.startswith("session timeout of c2")


def test_an_unknown_cause_is_not_called_usual() -> None:
    found = headline(started((300, Cause.UNKNOWN, "")))
    assert found.severity == "info"
    assert found.text.startswith("1 rebalance of which the source does not show the cause in 10 min 10 s: it started")


def test_partitions_that_are_not_committed_are_the_headline() -> None:
    stopped = PartitionState("billing", "orders", 3, LagStatus.STOPPED, 41 * SECOND, 0, 1, 2, 3, 30, 35, None)
    found = headline(started(partitions=[stopped]))
    assert (found.severity, found.text) == ("warning", "lag 30 on 1 of 1 partition; orders-3 STOPPED since +0:41.000")
    history = started((300, Cause.SESSION_EXPIRED, "c2"), partitions=[stopped])
    assert headline(history).text.startswith("lag 30")
    history.rebalances[2].paused_ms = 30_000.0
    assert headline(history).text.startswith("session timeout"), "it may be why"


@pytest.mark.parametrize(
    ("detector", "from_s", "is_said"),
    [("deploy", 40, True), ("new_topics", 46, True), ("deploy", 47, False), ("static_deploy", 40, False)],
)
def test_lag_stands_behind_the_change_it_began_in(detector: str, from_s: int, is_said: bool) -> None:
    change = finding(detector, "info", from_s * SECOND, to_ns=60 * SECOND)
    found = headline(started(partitions=[state(3, 30, LagStatus.STOPPED, 41)], findings=[change]))
    lag = "lag 30 on 1 of 1 partition; orders-3 STOPPED since +0:41.000"
    assert (found.severity, found.text) == ("warning", f"{change.text}; since then {lag}" if is_said else lag)


def test_starts_and_shutdowns_are_the_worst_only_alone() -> None:
    worst = digest_of(started((300, Cause.NEW_MEMBER, "c3"))).worst
    assert worst is not None
    assert worst.number == 3
    worst = digest_of(started()).worst
    assert worst is not None
    assert worst.number == 3, "the shutdown, for there is nothing else"


def test_members_that_are_killed_at_the_end_are_a_shutdown() -> None:
    history = started((300, Cause.NEW_MEMBER, "c3"))
    history.rebalances[-1].cause = Cause.SESSION_EXPIRED
    assert headline(history).text.startswith("session timeout")
    history.findings = [replace(typical().findings[0], severity="info", text="a deploy")]
    assert headline(history).text == "a deploy"


def state(number: int, lag: int | None, status: str = "OK", since_s: int | None = None) -> PartitionState:
    since = None if since_s is None else since_s * SECOND
    return PartitionState("billing", "orders", number, status, since, 0, 1, 2, 3, lag, (lag or 0) + 5, None)


def test_lag_is_summed_and_the_worst_states_are_named() -> None:
    rows = [
        state(0, 0),
        state(1, 12_000, LagStatus.WARN, 5),
        state(2, 30, LagStatus.STALLED, 41),
        state(3, 4, LagStatus.STOPPED, 60),
        state(4, 3, LagStatus.WARN, 7),
        state(5, None),
    ]
    assert lag_sentence(group(partitions=rows)) == (
        "lag 12,037 on 4 of 5 partitions; orders-3 STOPPED since +1:00.000, orders-2 STALLED since +0:41.000, "
        "orders-1 WARN since +0:05.000, 1 more"
    )


def test_what_is_not_read_any_more_has_an_age() -> None:
    rows = [state(0, 5), state(1, 7), state(2, 0), state(3, 9)]
    for row, end_s, read_s in zip(rows, (100, 100, 100, 20), (40, 95, 40, 99), strict=True):
        row.end_offset, row.end_ns, row.read_ns = 50, end_s * SECOND, read_s * SECOND
    rows[3].read_ns = 95 * SECOND
    assert lag_sentence(group(100, partitions=rows)) == (
        "lag 21 on 3 of 4 partitions; orders-0 not read since 00:00:40 UTC, orders-3 its end not seen since 00:00:20 "
        "UTC"
    )
    rows[0].fetch_offset = rows[3].fetch_offset = 50
    assert lag_sentence(group(100, partitions=rows)) == "lag 21 on 3 of 4 partitions"


def test_a_group_that_has_read_everything_or_shows_nothing() -> None:
    assert lag_sentence(group(partitions=[state(0, 0)])) == "no lag on 1 partition, 5 at most on one before"
    assert lag_sentence(group(partitions=[state(0, None)])) is None
    assert lag_sentence(group()) is None


def test_what_a_rebalance_added() -> None:
    assert growth(rebalance(1, 10)) == ""
    grown = rebalance(1, 10, lag_grown=1_300)
    assert growth(grown) == "lag grew by 1,300, not caught up"
    grown.caught_up_ns = 22 * SECOND
    assert growth(grown) == "lag grew by 1,300, caught up after 12.0 s"


def finding(detector: str, severity: str, at: int, subject: str | None = None, to_ns: int | None = 9) -> Finding:
    text = f"{detector} of {subject} at {at}"
    return Finding("g", detector, severity, at, to_ns, subject, text, "Do it.", 1.0, 1.0, [at], [])


def test_every_finding_is_in_one_card_worst_first() -> None:
    refused = [finding("refused", "warning", at, f"c-{at}") for at in range(57)]
    others = [finding("storm", "critical", 30), finding("refused", "info", 1), finding("stuck", "warning", 2)]
    cards = cards_of([*reversed(refused), *others])
    found = [(card.first.detector, card.first.severity, len(card.others)) for card in cards]
    assert found == [
        ("storm", "critical", 0),
        ("refused", "warning", 56),
        ("stuck", "warning", 0),
        ("refused", "info", 0),
    ]
    kept = [each.text for card in cards for each in (card.first, *card.others)]
    assert sorted(kept) == sorted(each.text for each in [*refused, *others])


def test_two_alike_keep_their_own_cards() -> None:
    cards = cards_of([finding("refused", "warning", at, f"c-{at}") for at in (1, 2)])
    assert [(card.first.subject, card.more) for card in cards] == [("c-1", ""), ("c-2", "")]


def test_a_card_names_what_the_others_are_about() -> None:
    [card] = cards_of([finding("refused", "warning", at, f"c-{at}", at) for at in range(1, 17)])
    assert card.more == f"15 more like this: {', '.join(f'c-{at}' for at in range(2, 14))} and 3 more."
    assert (card.rebalances, card.to_ns) == (list(range(1, 17)), 16)
    [nameless] = cards_of([finding("storm", "info", at, None, None) for at in range(3)])
    assert (nameless.more, nameless.to_ns) == ("2 more like this.", None)


def expired(end: str | None, *returned: Any, **more: Any) -> GroupHistory:
    """A group of c1 and c2, of which c2 ended at 100 s, and was removed by its session timeout at 145 s."""
    values = {"members_before": 2, "members_after": 1, "paused_ms": 45_000.0, "duration_ms": 800.0, **more}
    dead = life("c2", 0, 145, why_left="session timeout", end=end, died_ns=100 * SECOND if end else None)
    rows = [rebalance(1, 145, Cause.SESSION_EXPIRED, "c2", **values)]
    return group(600, members=[life("c1"), dead, *returned], rebalances=rows)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("process died", "died at 00:01:40 UTC: its connection was closed without LeaveGroup"),
        ("process ended", "ended at 00:01:40 UTC: its connection was closed, and it sends no LeaveGroup"),
        ("silent", "fell silent at 00:01:40 UTC on an open connection, frozen or cut off"),
        ("cut off", "was cut off at 00:01:40 UTC: what it and its broker sent was not acknowledged"),
        ("gone", "was gone at 00:01:40 UTC: its connection was closed, and bytes before that are missing"),
    ],
)
def test_a_death_goes_before_the_session_timeout(end: str, words: str) -> None:
    assert headline(expired(end)).text == (
        f"c2 (10.0.0.1) {words}; the coordinator noticed 45 s later (session timeout, at +2:25.000), and it did not "
        "come back; rebalance #1 took 800 ms, 45 s of partition time without an owner"
    )


def test_a_client_that_came_back_is_said_to_be_back() -> None:
    history = expired("process died", life("c2", 160, member_id="c2-again"))
    assert ", and it was back 60 s after that moment; " in headline(history).text


def test_members_that_ended_together_are_counted() -> None:
    gone = [RemovedMember(f"{name}-id", name, None, "session timeout") for name in ("c2", "c3", "c4")]
    assert " (and 2 other members with it); " in headline(expired("process died", removed=gone)).text


def test_without_a_known_end_the_cause_is_named() -> None:
    assert headline(expired(None)).text.startswith("session timeout of c2 (10.0.0.1) at +2:25.000: rebalance #1 took")


def test_the_last_to_join_is_named_beyond_a_heartbeat() -> None:
    last = {"last_member_id": "c1-id", "last_client_id": "c1", "duration_ms": 4_200.0}
    assert "c1 joined last" not in headline(expired(None, late_ms=2_000.0, **last)).text
    assert (
        "took 4.2 s (c1 joined last, 4.0 s after the others)" in headline(expired(None, late_ms=4_000.0, **last)).text
    )


def test_a_wait_for_a_dead_member_is_a_fault() -> None:
    wait = Awaited("c2-id", "c2", "10.0.0.2", 0, 5_000.0, "process died", 0)
    row = rebalance(1, 3, client="c3", waited_for=[wait], duration_ms=6_000.0, members_before=2)
    waiting = awaited(row)
    assert waiting is not None
    assert (waiting.person, waiting.ms, waited_for_dead(row)) == ("c2 (10.0.0.2)", 5_000.0, True)
    found = headline(group(60, members=[life("c3", 3)], rebalances=[row]))
    assert found.severity == "info"
    assert "because it waited 5.0 s for c2 (10.0.0.2), whose process had died" in found.text
