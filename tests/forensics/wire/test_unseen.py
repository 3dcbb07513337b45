"""Starts that no frame shows: candidates that fit what was answered."""

from __future__ import annotations

import pytest

from kcoord_wire.forensics.model import Cause, SightingKind
from tests.support.exchange_script import Script, at, both_join, two_members


def test_an_unanswered_join_may_start_a_rebalance() -> None:
    script = two_members()
    script.join("c3", 5_000, None, member_id="")
    script.rows[-1].api_version = 3
    script.closed("c3", 5_050)
    script.beat("c2", 5_300, 1, error=27)
    script.join("c2", 5_400, 9_000, 2)
    script.join("c1", 5_500, 9_000, 2, members=["c1", "c2"])
    last = script.last()
    assert (last.cause, last.client_id, last.started_ns) == (Cause.NEW_MEMBER, "c3", at(5_000))
    assert last.confidence <= 0.6


def test_a_follower_that_says_so_started_nothing() -> None:
    script = two_members()
    script.beats("c2", 1_000, 2_000, 1)
    script.beats("c1", 1_000, 8_000, 1)
    script.join("c1", 8_100, 8_100, 2, members=["c1"], reason="group is already rebalancing", more=b"x")
    assert (script.last().cause, script.last().client_id) == (Cause.SESSION_EXPIRED, "c2")


def test_an_unchanged_join_of_a_follower_started_nothing() -> None:
    script = two_members()
    both_join(script, "c2")
    assert script.last().cause == Cause.UNKNOWN


def test_a_member_vanishes_whose_timeout_is_not_known() -> None:
    script = Script()
    script.beats("c1", 0, 20_000, 7)
    script.beats("c2", 0, 5_000, 7)
    script.beat("c1", 20_000, 7, error=27)
    script.join("c1", 20_100, 20_100, 8, members=["c1"])
    last = script.last()
    assert (last.cause, last.client_id, last.confidence) == (Cause.SESSION_EXPIRED, "c2", 0.5)


@pytest.mark.parametrize(
    ("session_ms", "returns", "cause", "why"),
    [
        (6_000, False, Cause.SESSION_EXPIRED, "session timeout"),
        (6_000, True, Cause.OUTAGE, "outage"),
        (60_000, False, Cause.GROUP_TOO_LARGE, "rebalance timeout"),
    ],
)
def test_a_session_ends_while_the_broker_is_unreachable(session_ms: int, returns: bool, cause: Cause, why: str) -> None:
    """The first answer of the coordinator that is back shows a rebalance; c2 died with it, or was only cut off."""
    script = Script()
    script.session_ms = session_ms
    script.form("c1", "c2")
    for client in ("c1", "c2"):
        script.beats(client, 1_000, 4_000, 1)
    script.closed("c2", 3_990, by="client")
    script.closed("c1", 4_000, by="broker")
    for ms in range(4_100, 17_000, 500):
        script.closed("c1", ms, f"10.0.0.1:{ms}-10.0.9.9:9092#{ms}", kind=SightingKind.REFUSED)
    again = "10.0.0.1:5000-10.0.9.9:9092#again"
    script.beat("c1", 17_000, 1, error=27, connection=again)
    script.join("c1", 17_010, 17_020, 2, members=["c1"], connection=again)
    script.sync("c1", 17_030, 17_040, 2, {}, {"c1": {}}, connection=again)
    if returns:
        script.beat("c2", 17_100, 1, error=25, connection="10.0.0.2:5000-10.0.9.9:9092#again")
    (rebalance,) = script.history().rebalances[1:]
    assert (rebalance.cause, [each.why for each in rebalance.removed]) == (cause, [why])
