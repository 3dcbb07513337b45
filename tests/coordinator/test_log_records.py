"""What a coordinator knows after it has read its log."""

from __future__ import annotations

from kcoord_wire.protocol.error_codes import ErrorCode as E
from tests.support.group_states import static_group
from tests.support.scripted import Script


def test_a_stable_group_comes_back_stable_with_fresh_sessions() -> None:
    script = Script()
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


def test_a_rebalance_that_the_log_does_not_know_never_was() -> None:
    script = Script()
    leader, follower = script.stable("a", "b")
    script.join(leader)
    script.join(follower)
    assert script.machine.groups["g"].generation_id == 2
    other = script.reloaded()
    assert (other.state(), other.machine.groups["g"].generation_id) == ("Stable", 1)


def test_static_members_are_known_again() -> None:
    script = Script()
    x, _ = static_group(script, "x", "y")
    other = script.reloaded()
    assert other.heartbeat("other", 1, "x") == E.FENCED_INSTANCE_ID
    assert other.heartbeat(x, 1, "x") == 0
