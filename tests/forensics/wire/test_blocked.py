"""A host whose SYNs a broker does not answer, while it answers others."""

from __future__ import annotations

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
        "10.0.0.1 could not connect to 10.0.9.9:9092 for 38.0 s, to the end of the source (9 SYNs without an answer), "
        "while the broker answered other hosts: a firewall or a route between them"
    )
    [found] = [each for each in findings_of("outage", history) if "firewall" in each.text]
    assert "a restart changes nothing" in found.advice


def test_it_ends_with_the_next_connection() -> None:
    script = group_of_two()
    tries(script, 21, 28, 40, 41)
    script.closed("c1", 33_000, kind=SightingKind.OPENED, connection="10.0.0.1:5100-10.0.9.9:9092#5")
    rows = [outage for outage in script.history().outages if outage.kind == "host blocked"]
    assert [(row.from_ns, row.to_ns) for row in rows] == [(at(21_000), at(33_000)), (at(40_000), None)]


def test_a_reset_a_lost_syn_or_a_machine_that_is_off_is_none() -> None:
    reset, lost, off = group_of_two(), group_of_two(), group_of_two(20_000)
    tries(reset, 21, 28, 35, why="answered with a reset")
    tries(lost, 21, syns=2)
    tries(off, 21, 28, 35)
    for script in (reset, lost, off):
        assert "host blocked" not in [outage.kind for outage in script.history().outages]
