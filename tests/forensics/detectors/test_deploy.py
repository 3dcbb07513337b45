"""Deploys: members replaced one after another or at once, what it cost, and what it would have cost."""

from __future__ import annotations

import pytest

from kcoord_wire.forensics.detectors.deploy import stem
from kcoord_wire.forensics.model import Cause, GroupHistory, MemberLife
from tests.support.detector_groups import group, held, life, of, rebalance


def again(name: str, at_s: float, **more: object) -> MemberLife:
    return life(name, at_s, member_id=f"{name}-again", **more)


def bounced(*names: str, down_s: float = 4) -> GroupHistory:
    """Each of them leaves, ten seconds after the one before, and is back `down_s` later."""
    lives, rows, owned = [], [], []
    for at, name in enumerate(names):
        left = 100 + 10 * at
        lives += [life(name, at, left), again(name, left + down_s)]
        owned += [held(name, at, 1, left)]
        rows += [
            rebalance(2 * at + 1, left, Cause.MEMBER_LEFT, name, paused_ms=1500.0),
            rebalance(2 * at + 2, left + down_s, client=name, paused_ms=500.0),
        ]
    return group(600, members=lives, rebalances=rows, ownership=owned)


def test_a_rolling_restart_with_its_cost() -> None:
    (found,) = of("deploy", bounced("web-1", "web-2", "web-3"))
    assert (found.severity, found.value, found.rebalances) == ("info", 3, [1, 2, 3, 4, 5, 6])
    assert found.text == (
        "a deploy, one after another: 3 of 3 members (web-1, web-2, web-3) were restarted or replaced within 24.0 s, "
        "with 6 rebalances and 6.0 s of partition time without an owner; with static members: no rebalance, and 12.0 s"
    )
    assert "Nothing is wrong" in found.advice


def test_the_text_of_a_log_shows_no_deploy() -> None:
    history = bounced("web-1", "web-2", "web-3")
    history.group.origin = "text"
    assert not list(of("deploy", history))


def test_pods_get_new_names() -> None:
    lives = [life("web-a1", 0, 100), life("web-b2", 0, 120), life("web-c3", 95), life("web-d4", 115)]
    (found,) = of("deploy", group(600, members=lives))
    assert found.value == 2


def test_a_restart_of_all_says_that_the_group_was_empty() -> None:
    history = bounced("a", "b")
    history.rebalances[2].outcome = "empty"
    (found,) = of("deploy", history)
    assert found.text.startswith("a deploy that emptied the group: 2 of 2 members")


def test_what_is_no_deploy() -> None:
    assert of("deploy", bounced("a")) == [], "one member"
    stays = bounced("a", "b")
    stays.members += [life(f"other-{at}") for at in range(3)]
    assert of("deploy", stays) == [], "less than half of the group"
    died = bounced("a", "b")
    for row in died.members:
        row.why_left = row.why_left and "session timeout"
    assert of("deploy", died) == []
    assert of("deploy", group(members=[life("a", 0, 9), life("b", 0, 10)])) == [], "a shutdown"


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("web-7d4f", "web"), ("web-2", "web"), ("web2", "web"), ("web", "web"), (None, ""), ("a.b", "a")],
)
def test_stem_of_a_client_id(name: str | None, wanted: str) -> None:
    assert stem(name) == wanted
