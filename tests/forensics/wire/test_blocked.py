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


# ---- bytes that are sent again

COORDINATOR, LEADER = "10.0.9.9:9092", "10.0.9.8:9092"


def resent(
    script: Script, from_s: int, to_s: int, *, by: str = "client", broker: str = COORDINATOR, idle_s: int = 0
) -> None:
    """What one side sends on a connection between c1 and a broker is not acknowledged."""
    idle = f", after {idle_s} s without a packet" if idle_s else ""
    text = f"96 bytes sent again 7 times without an acknowledgement{idle}"
    script.closed(
        "c1", to_s * 1_000, kind=SightingKind.RESENT, connection=f"10.0.0.1:4900-{broker}#r{broker[7]}{by}", by=by,
        text=text, since_ns=at(from_s * 1_000),
    )  # fmt: skip


def blocked(script: Script) -> list[tuple[str, str]]:
    return [(row.kind, row.text) for row in script.history().outages]


def test_a_member_that_is_cut_off_from_its_coordinator() -> None:
    script = group_of_two()
    resent(script, 20, 40)
    resent(script, 21, 38, by="broker")
    script.fetch("c1", 30_000, 0, 5, 9)
    script.topics[-1].connection = f"10.0.0.1:4002-{LEADER}#leader"
    [(kind, text)] = blocked(script)
    assert (kind, text) == (
        "host blocked",
        "c1 (10.0.0.1) was cut off from 10.0.9.9:9092, its coordinator, for 20.0 s, from 22:13:40 to 22:14:00 UTC "
        "(bytes of it sent again 7 times and bytes to it sent again 7 times without an acknowledgement), while the "
        "broker answered other hosts and other brokers answered it: a firewall or a route between them",
    )
    [lost] = [row for row in script.history().members if row.client_id == "c1"]
    assert lost.end == "cut off"


def test_a_connection_that_goes_on_was_not_forgotten() -> None:
    script = group_of_two()
    script.beats("c1", 20_000, 60_000, 1)
    resent(script, 20, 50)
    script.fetch("c1", 55_000, 0, 5, 9)
    script.topics[-1].connection = f"10.0.0.1:4900-{COORDINATOR}#r9client"
    assert [kind for kind, _ in blocked(script)] == []


def test_a_host_of_which_nothing_comes_may_have_stopped() -> None:
    script = group_of_two()
    resent(script, 20, 40, by="broker")
    [(_, text)] = blocked(script)
    assert text.endswith(
        ": its host, or what lies between (a firewall, a route), for a frozen process still acknowledges"
    )


def test_it_ends_with_an_answer_on_another_connection() -> None:
    script = group_of_two()
    resent(script, 20, 40)
    script.beats("c1", 34_000, 50_000, 1)
    [outage] = script.history().outages
    assert outage.to_ns == at(34_000)


def test_a_connection_that_was_forgotten() -> None:
    alone, idle = group_of_two(), group_of_two()
    for script in (alone, idle):
        script.beats("c1", 20_000, 60_000, 1)
    resent(alone, 20, 50)
    resent(idle, 20, 50, broker=LEADER, idle_s=350)
    idle.fetch("c2", 30_000, 1, 5, 9)
    idle.topics[-1].connection = f"10.0.0.2:4002-{LEADER}#leader"
    idle.closed("c1", 45_000, kind=SightingKind.OPENED, connection=f"10.0.0.1:4901-{LEADER}#new")
    [(kind, text)] = blocked(idle)
    assert kind == "connection forgotten"
    assert "a connection to 10.0.9.8:9092 for 25.0 s, from 22:13:40 to 22:14:05 UTC" in text
    assert "idle for 350 s before" in text
    assert text.endswith("between them had forgotten it")
    assert [kind for kind, _ in blocked(alone)] == ["connection forgotten"]
    [found] = findings_of("host_cut_off", idle.history())
    assert "connections.max.idle.ms" in found.advice


@pytest.mark.parametrize(("lost_s", "kinds"), [(None, ["connection forgotten"]), (14, [])])
def test_a_way_that_loses_packets_has_forgotten_none(lost_s: int | None, kinds: list[str]) -> None:
    """Bytes on another connection of c1 were sent again, until `lost_s`, and got through."""
    script = group_of_two()
    script.beats("c1", 20_000, 60_000, 1)
    resent(script, 20, 50)
    if lost_s is not None:
        resent(script, lost_s - 2, lost_s, by="broker")
        script.beat("c1", 1_000 * lost_s + 500, 1, connection=f"10.0.0.1:4900-{COORDINATOR}#r9broker")
    assert [kind for kind, _ in blocked(script)] == kinds


def test_brokers_out_of_reach_at_once_are_one_outage() -> None:
    script = group_of_two()
    resent(script, 20, 40, by="broker")
    resent(script, 21, 41, by="broker", broker=LEADER)
    [(_, text)] = blocked(script)
    assert "was cut off from 10.0.9.9:9092 and 10.0.9.8:9092, the coordinator among them, for 21.0 s" in text


def test_of_one_host_alone_the_broker_may_be_off() -> None:
    script = group_of_two()
    script.beats("c1", 20_000, 60_000, 1)
    resent(script, 20, 40, broker=LEADER)
    [(_, text)] = blocked(script)
    assert text.endswith(": the machine of that broker is off, or a firewall or a route between them")


def test_a_broker_that_is_off_for_all_is_no_hosts_fault() -> None:
    script = group_of_two(20_000)
    resent(script, 20, 40)
    script.beats("c2", 39_900, 50_000, 1)
    assert "host blocked" not in [kind for kind, _ in blocked(script)]
    short = group_of_two()
    resent(short, 20, 22)
    assert blocked(short) == []
