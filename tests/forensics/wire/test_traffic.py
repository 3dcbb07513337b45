"""Exchanges of one group, split into requests and columns."""

from __future__ import annotations

import pyarrow as pa

from kcoord_wire.forensics.wire.traffic import read_sightings
from tests.support.exchange_script import Script, at


def test_quiet_requests_stay_columns() -> None:
    script = Script()
    script.form("c1")
    script.beats("c1", 1_000, 5_000, 1)
    script.beat("c1", 5_000, 1, error=27)
    script.add("OffsetFetch", "c1", 5_100, 5_101)
    script.consumer("c2", 6_000, 3, 3)
    traffic = script.traffic()
    assert [request.api for request in traffic.requests] == ["JoinGroup", "SyncGroup", "Heartbeat"]
    assert (traffic.count, len(traffic.heartbeats.calm), set(traffic.heartbeats.modern)) == (9, 4, {"c2-id"})


def test_a_request_is_due_when_the_one_before_is_answered() -> None:
    script = Script()
    script.join("c1", 0, 3_000, 1)
    script.leave("c1", 1_000, 3_100)
    first, second = script.traffic().requests
    assert (first.due.time_ns, second.asked.time_ns, second.due.time_ns) == (at(0), at(1_000), at(3_000))


def test_a_request_names_its_member_and_those_that_leave() -> None:
    script = Script()
    script.join("c1", 0, 10, 1, member_id="")
    script.leave("c9", 20, 21, left="c2")
    join, leave = script.traffic().requests
    assert (join.who, join.named, leave.named) == ("c1-id", {"c1-id"}, {"c2-id"})
    assert (join.subscribed, join.assignors, join.client) == (("orders",), ["range"], ("c1", "10.0.0.1"))


def test_sightings_are_sizes_and_closed_connections() -> None:
    script = Script()
    script.saw("c1", 2_000, "orders", 6)
    script.saw("c1", 1_000, "orders", 4)
    script.closed("c1", 3_000, "a-b#1")
    sightings = read_sightings(script.tables()[1])
    assert [(each.topic, each.partitions) for each in sightings.sizes.of(["orders"])] == [("orders", 4), ("orders", 6)]
    assert (sightings.links.closed_ns("a-b#1"), sightings.last_ns) == (at(3_000), at(3_000))


def test_the_horizon_includes_what_other_groups_show() -> None:
    script = Script()
    script.form("c1")
    script.saw("c9", 9_000, "orders", 4)
    traffic = script.traffic()
    assert (traffic.last_ns, traffic.horizon_ns) == (at(20), at(9_000))
    assert isinstance(traffic.commits, pa.Table)
