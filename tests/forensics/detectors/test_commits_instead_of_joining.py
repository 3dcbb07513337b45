"""The detector commits_instead_of_joining: a member that commits until the rebalance timeout removes it."""

from __future__ import annotations

import pytest

from kcoord_wire.forensics.model import GroupHistory, RemovedMember
from tests.support.detector_groups import exchange, group, life, of, rebalance


def history(why: str = "rebalance timeout") -> GroupHistory:
    gone = RemovedMember("c1-id", "c1", "10.0.0.1", why)
    row = rebalance(1, 100, joined_ns=140_000_000_000, ended_ns=141_000_000_000, removed=[gone])
    return group(members=[life("c1", 0, 140)], rebalances=[row])


TOLD = exchange("Heartbeat", 100.5, error_code=27)


@pytest.mark.parametrize(("commits", "found"), [(2, 0), (3, 1), (9, 1)])
def test_commits_while_the_group_waits_are_counted(commits: int, found: int) -> None:
    rows = [TOLD, *(exchange("OffsetCommit", 101 + n) for n in range(commits))]
    rows += [exchange("OffsetCommit", at) for at in (1, 2, 3, 150)]  # before and after
    rows += [exchange("OffsetCommit", 101 + n, member_id="c2-id") for n in range(9)]
    findings = of("commits_instead_of_joining", history(), rows)
    assert len(findings) == found
    for finding in findings:
        assert finding.subject == "c1"
        assert f"{commits} commits in one rebalance" in finding.text


def test_other_removals_and_refused_commits_do_not_count() -> None:
    rows = [TOLD, *(exchange("OffsetCommit", 101 + n) for n in range(9))]
    assert of("commits_instead_of_joining", history("session timeout"), rows) == []
    refused = [TOLD, *(exchange("OffsetCommit", 101 + n, error_code=25) for n in range(9))]
    assert of("commits_instead_of_joining", history(), refused) == []
    assert of("commits_instead_of_joining", history()) == []


def test_a_member_that_was_not_told_to_rejoin_did_nothing_wrong() -> None:
    rows = [exchange("OffsetCommit", 101 + n) for n in range(9)]
    assert of("commits_instead_of_joining", history(), rows) == []
