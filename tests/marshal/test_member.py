"""Whole members over a log in memory, in virtual time: races, pauses, faults, and what they say about themselves."""

from __future__ import annotations

from tests.support.marshal_script import MarshalScript


def test_a_member_claims_and_releases() -> None:
    world = MarshalScript({"orders": 2})
    a = world.start("a")
    assert world.run_until(lambda: world.shares() == {"a": 2}, 5_000), a.effects
    world.shut_down(a)
    world.run(2_000)
    print([e.message for e in world.entries()])
    assert not a.is_alive
