"""The summary of a group: order, durations, clients."""

from __future__ import annotations

from kcoord_wire.report.digest import digest_of, digests
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
