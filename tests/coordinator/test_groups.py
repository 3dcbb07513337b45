"""The transitions of a group, the choice of its protocol, and its accounts."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from kcoord_wire.coordinator.core.events import IllegalMoveError
from kcoord_wire.coordinator.core.groups import TRANSITIONS, Group, Move, State
from kcoord_wire.protocol.error_codes import ErrorCode as E
from tests.support.group_states import static_group, versions
from tests.support.scripted import Script


@pytest.mark.parametrize(
    ("offers", "chosen"),
    [
        ([("range",), ("range",)], "range"),
        ([("range", "roundrobin"), ("roundrobin", "range")], "range"),  # one vote each: the first member's wins
        ([("range", "roundrobin"), ("roundrobin", "range"), ("roundrobin", "range")], "roundrobin"),
        ([("sticky", "range"), ("sticky", "range"), ("range",)], "range"),  # all must be able to follow it
        ([("a", "b", "c"), ("b", "c"), ("c", "b"), ("c", "b")], "b"),
    ],
)
def test_the_protocol_that_most_put_first(script: Script, offers: list[tuple[str, ...]], chosen: str) -> None:
    tokens = [script.admit(names=names)[1] for names in offers]
    script.wait(2_000)
    assert {script.answers[token].protocol_name for token in tokens} == {chosen}


def test_a_protocol_listed_twice_counts_once(script: Script) -> None:
    tokens = [script.admit(names=names)[1] for names in (("range", "range", "sticky"), ("sticky", "sticky", "range"))]
    script.wait(2_000)
    assert {script.answers[token].protocol_name for token in tokens} == {"range"}


@pytest.mark.parametrize("version", versions("JoinGroupRequest"))
def test_protocols_that_no_member_shares_are_refused(script: Script, version: int) -> None:
    script.stable("a")
    assert script.answers[script.join(version=version, names=("sticky",))].error_code == E.INCONSISTENT_GROUP_PROTOCOL
    connect = script.join(version=version, protocol_type="connect")
    assert script.answers[connect].error_code == E.INCONSISTENT_GROUP_PROTOCOL
    assert script.answers[connect].member_id == ""


@pytest.mark.parametrize("options", [{"names": ()}, {"protocol_type": ""}])
def test_the_first_member_must_offer_something(script: Script, options: dict[str, Any]) -> None:
    assert script.answers[script.join(**options)].error_code == E.INCONSISTENT_GROUP_PROTOCOL


def test_the_transition_table_is_all_there_is() -> None:
    for state, move in itertools.product(State, Move):
        group = Group("g", 0)
        group.state = state
        if (state, move) in TRANSITIONS:
            group.move(move, 5)
            assert (group.state, group.state_since) == (TRANSITIONS[state, move], 5)
        else:
            with pytest.raises(IllegalMoveError, match=rf"cannot {move} in state {state}"):
                group.move(move, 5)
            assert group.state is state


def test_generations_that_are_used_up_begin_anew(script: Script) -> None:
    """A client can get there within days; what comes after must fit into the answer and into the log."""
    (leader,) = script.stable("a")
    script.machine.groups["g"].generation_id = (1 << 31) - 1
    assert script.answers[script.join(leader)].generation_id == 0
    script.sync(leader, 0)
    assert (script.heartbeat(leader, 0), script.commit(1, member_id=leader, generation=0)) == (0, 0)


# ---- What a coordinator knows after it has read its log


def test_a_stable_group_comes_back_stable_with_fresh_sessions(script: Script) -> None:
    leader, follower = script.stable("a", "b", session_ms=10_000, names=("range", "sticky"))
    script.commit(5, member_id=leader, generation=1)
    script.wait(9_000)
    other = script.reloaded()
    assert other.state() == "Stable"
    group = other.machine.groups["g"]
    assert (group.generation_id, group.leader_id, group.protocol) == (1, leader, "range")
    assert [name for name, _ in group.members[leader].protocols] == ["range"]  # all that the log knows
    other.wait(9_999)
    assert [other.heartbeat(member_id) for member_id in (leader, follower)] == [0, 0]
    assert other.answers[other.sync(follower)].assignment == follower.encode()
    assert other.committed() == 5


def test_a_rebalance_that_the_log_does_not_know_never_was(script: Script) -> None:
    leader, follower = script.stable("a", "b")
    script.join(leader)
    script.join(follower)
    assert script.machine.groups["g"].generation_id == 2
    other = script.reloaded()
    assert (other.state(), other.machine.groups["g"].generation_id) == ("Stable", 1)


def test_static_members_are_known_again(script: Script) -> None:
    x, _ = static_group(script, "x", "y")
    other = script.reloaded()
    assert other.heartbeat("other", 1, "x") == E.FENCED_INSTANCE_ID
    assert other.heartbeat(x, 1, "x") == 0
