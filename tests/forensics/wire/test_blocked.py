"""A host whose SYNs a broker does not answer, while it answers others."""

from __future__ import annotations

import pytest

from kcoord_wire.forensics.detectors import findings_of
from kcoord_wire.forensics.model import SightingKind
from tests.support.exchange_script import Script, at


def group_of_two(until_ms: int = 60_000) -> Script:
    script = Script()
    script.form("c1", "c2", owners={"c1": {"orders": [0]}, "c2": {"orders": [1]}})
    script.beats("c1", 1_000, 20_000, 1)
    script.beats("c2", 1_000, until_ms, 1)
    return script


def tries(script: Script, *seconds: int, syns: int = 3, why: str | None = None) -> None:
    for number, second in enumerate(seconds):
        name = f"10.0.0.1:{5_000 + number}-10.0.9.9:9092#t{number}"
        text = why or f"no answer to {syns} SYNs in 3.0 s"
        script.closed("c1", second * 1_000, kind=SightingKind.REFUSED, connection=name, text=text)


def test_a_host_whose_syns_are_not_answered_is_blocked() -> None:
    script = group_of_two()
    tries(script, 21, 28, 35)
    history = script.history()
    [outage] = [outage for outage in history.outages if outage.kind == "host blocked"]
    assert (outage.broker, outage.members, outage.from_ns) == ("10.0.9.9:9092", ["c1-id"], at(21_000))
    assert outage.text == (
        "c1 (10.0.0.1) could not connect to 10.0.9.9:9092, its coordinator, for 38.0 s, from 22:13:41 UTC to the end "
        "of the source (9 SYNs without an answer), while the broker answered other hosts: a firewall or a route "
        "between them"
    )
    [found] = [each for each in findings_of("host_cut_off", history) if "firewall" in each.text]
    assert "a restart changes nothing" in found.advice


def test_it_ends_with_the_next_connection() -> None:
    script = group_of_two()
    tries(script, 21, 28, 40, 41)
    script.closed("c1", 33_000, kind=SightingKind.OPENED, connection="10.0.0.1:5100-10.0.9.9:9092#5")
    rows = [outage for outage in script.history().outages if outage.kind == "host blocked"]
    assert [(row.from_ns, row.to_ns) for row in rows] == [(at(21_000), at(33_000)), (at(40_000), None)]


def cut_from_a_leader(*fetched: tuple[str, int, int]) -> Script:
    """c1 cannot connect to the leader 10.0.9.8 from second 25 on; `fetched`: who fetches from it, what, and when."""
    script = group_of_two()
    script.beats("c1", 20_000, 60_000, 1)
    for number, second in enumerate((25, 32)):
        name = f"10.0.0.1:{5_000 + number}-10.0.9.8:9092#t{number}"
        text = "no answer to 3 SYNs in 3.0 s"
        script.closed("c1", second * 1_000, kind=SightingKind.REFUSED, connection=name, text=text)
    for client, partition, second in fetched:
        script.fetch(client, second * 1_000, partition, 10, 10)
        script.topics[-1].connection = f"10.0.0.{client[1]}:4002-10.0.9.8:9092#f{client}"
    return script


@pytest.mark.parametrize(
    ("fetched", "unread"),
    [
        ([("c1", 0, 18), ("c2", 1, 40)], ", and did not read orders-0 meanwhile, since 22:13:38 UTC"),
        ([("c2", 1, 40)], ""),
        ([("c1", 0, 18), ("c1", 0, 50), ("c2", 1, 40)], ""),
        ([("c2", 0, 10), ("c2", 1, 40)], ", and did not read orders-0 meanwhile"),
    ],
    ids=["its partition", "another's", "on its old connection", "never read"],
)
def test_a_host_that_does_not_reach_a_leader(fetched: list[tuple[str, int, int]], unread: str) -> None:
    [outage] = cut_from_a_leader(*fetched).history().outages
    assert (outage.kind, outage.broker, outage.from_ns) == ("host blocked", "10.0.9.8:9092", at(25_000))
    assert f" to the end of the source{unread} (6 SYNs without an answer)" in outage.text
    assert outage.text.endswith("a firewall or a route between them")


def test_a_leader_that_serves_none_is_off() -> None:
    assert cut_from_a_leader(("c1", 0, 18), ("c2", 1, 20)).history().outages == []


def test_a_reset_a_lost_syn_or_a_machine_that_is_off_is_none() -> None:
    reset, lost, off = group_of_two(), group_of_two(), group_of_two(20_000)
    tries(reset, 21, 28, 35, why="answered with a reset")
    tries(lost, 21, syns=2)
    tries(off, 21, 28, 35)
    for script in (reset, lost, off):
        assert "host blocked" not in [outage.kind for outage in script.history().outages]
