"""The summary of a group: order, durations, clients."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcoord_wire.forensics.model import Cause, GroupHistory, LagStatus, Outage, PartitionState
from kcoord_wire.report.digest import digest_of, digests, headline
from tests.support.detector_groups import SECOND, group, life, rebalance
from tests.support.histories import START, bare, empty, incident, kip_848, typical


def test_groups_are_sorted_worst_first() -> None:
    histories = [empty(), kip_848(), bare(), typical(), incident()]
    order = [digest.history.group.group_id for digest in digests(histories)]
    assert order == ["billing", "incident-84", "bare", "next-gen", "idle"]
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
    assert headline(group(20, members=[life("c1")])).text == "nothing unusual in 20.0 s: no rebalance, 1 member at work"
    found = headline(started())
    assert (found.severity, found.text) == (
        "quiet", "nothing unusual in 10 min 10 s: it started with 2 members, and it was shut down",
    )  # fmt: skip
    found = headline(started((300, Cause.NEW_MEMBER, "c3")))
    assert found.severity == "quiet"
    assert found.text.endswith(
        "1 rebalance in between (1 new member), and it was shut down; 3 x new member, the costliest of c3 (10.0.0.1) "
        "at +5:00.000: rebalance #3 took 800 ms, 10.0 s of partition time without an owner"
    )


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
    assert headline(history).text == "warning"
    history.outages = [replace(outage, to_ns=SECOND, text="short"), outage]
    assert (headline(history).severity, headline(history).text) == (
        "warning", "b:9092 was down for 7.0 s (and 1 shorter outage)",
    )  # fmt: skip
    history.findings = [info, warning, critical]
    assert (headline(history).severity, headline(history).text) == ("critical", "critical")
    history.outages, history.findings, history.rebalances = [], [info], []
    assert headline(history).text == "info"


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
