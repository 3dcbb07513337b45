"""The frames on the virtual network, and how they are counted."""

from __future__ import annotations

import pytest

from kcoord_wire.codec.registry import encode_request, encode_response
from kcoord_wire.messages import HeartbeatRequest, HeartbeatResponse
from kcoord_wire.worlds.proposal.proposal_world import Moved
from tests.support.proposals import VARIANTS, settled


def test_each_byte_is_counted_with_size_and_header() -> None:
    with settled("all_members", members=1) as sim:
        member = sim.processes["m1"].machine
        before = sim.to_coordinator["HeartbeatRequest"], sim.to_members["HeartbeatResponse"]
        sim.run(10_000)
        after = sim.to_coordinator["HeartbeatRequest"], sim.to_members["HeartbeatResponse"]
        request = HeartbeatRequest(group_id="group", generation_id=member.generation, member_id=member.member_id)
        sizes = len(encode_request(request, 0, client_id="m1")) + 4, len(encode_response(HeartbeatResponse(), 0)) + 4
        beats = (after[1] - before[1]) // sizes[1]
        assert 9 <= beats <= 10
        assert after == (before[0] + beats * sizes[0], before[1] + beats * sizes[1])
        got = [line.detail for line in sim.trace if line.what == "gets"]
        assert got[-1] == Moved("HeartbeatResponse", sizes[1])


@pytest.mark.parametrize("variant", VARIANTS)
def test_compressed_responses_say_the_same(variant: str) -> None:
    with settled(variant, 12) as plain, settled(variant, 12, compresses_joins=True) as compressed:
        assert plain.owners() == compressed.owners()
        assert plain.to_coordinator == compressed.to_coordinator
        [join] = [name for name in plain.to_members if "JoinGroup" in name]
        assert compressed.to_members[join] < plain.to_members[join] / 1.3


def test_a_coordinator_that_is_down_takes_nothing() -> None:
    with settled("all_members", members=1) as sim:
        sim.crash("coordinator", 60_000)
        received = sim.to_coordinator.copy()
        sim.run(30_000)
        assert sim.to_coordinator == received
        assert sum(line.what == "sends" for line in sim.trace[-100:]) > 5
