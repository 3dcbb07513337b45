"""Outages: what no member was answered in, and what is none."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.model import GroupHistory, Outage, SightingKind
from tests.support.exchange_script import Script, at, two_members

OLD, NEW = "10.0.9.9:9092", "10.0.9.8:9092"


def joined(until_ms: int = 5_000) -> Script:
    """Two members that send heartbeats until a time."""
    script = two_members()
    for client in ("c1", "c2"):
        script.beats(client, 1_000, until_ms, 1)
    return script


def only(history: GroupHistory) -> Outage:
    (outage,) = history.outages
    return outage


def both_end(script: Script, ms: int, **fields: Any) -> None:
    for client in ("c1", "c2"):
        script.closed(client, ms, **fields)


def new_connection(client: str, broker: str = OLD) -> str:
    return f"10.0.0.{client[1:]}:5000-{broker}#new-{client}"


def come_back(script: Script, ms: int, generation: int, **fields: Any) -> None:
    """Both join as new members."""
    ids = {client: f"{client}-again" for client in ("c1", "c2")}
    for number, client in enumerate(("c1", "c2")):
        more = {"given_member_id": ids[client], "leader_id": ids["c1"], "connection": new_connection(client)}
        script.join(client, ms + number, ms + 500, generation, member_id="", **more, **fields)
    for client in ("c1", "c2"):
        script.sync(
            client, ms + 510, ms + 520, generation, {}, member_id=ids[client], connection=new_connection(client)
        )


def test_a_broker_that_cannot_be_reached_is_down() -> None:
    script = joined()
    both_end(script, 5_000, by="broker")
    for ms in range(5_100, 20_000, 500):
        script.closed("c1", ms, f"10.0.0.1:{ms}-{OLD}#{ms}", kind=SightingKind.REFUSED)
    come_back(script, 20_000, 3)
    history = script.history()
    outage = only(history)
    assert (outage.kind, outage.broker, outage.from_ns, outage.to_ns) == ("broker down", OLD, at(5_000), at(20_500))
    assert "30 attempts to connect failed" in outage.text
    assert outage.members == ["c1-id", "c2-id"]
    assert script.last().cause == Cause.OUTAGE
    assert not [row for row in history.rebalances if row.cause == Cause.SESSION_EXPIRED]
    assert outage.rebalance is not None


def test_a_broker_that_is_back_within_the_session_costs_nothing() -> None:
    script = joined()
    both_end(script, 5_000, by="broker")
    for client in ("c1", "c2"):
        script.beat(client, 8_000, 1, connection=new_connection(client))
    history = script.history()
    assert (only(history).kind, only(history).rebalance) == ("broker down", None)
    assert len(history.rebalances) == 1


def test_a_reconnection_is_no_outage() -> None:
    script = joined()
    both_end(script, 5_000, by="broker")
    for client in ("c1", "c2"):
        script.beat(client, 5_100, 1, connection=new_connection(client))
    assert script.history().outages == []


def test_clients_that_close_their_connections_are_no_outage() -> None:
    script = joined()
    both_end(script, 4_500, by="client")
    script.saw("c3", 30_000, "orders", 3)
    assert script.history().outages == []


@pytest.mark.parametrize("error", [27, 25, 0])
def test_requests_of_all_members_that_wait_are_a_silence(error: int) -> None:
    script = joined()
    for client in ("c1", "c2"):
        script.add("Heartbeat", client, 5_000, 9_000, generation_id=1, error_code=error)
    outage = only(script.history())
    assert (outage.kind, outage.from_ns, outage.to_ns) == ("silence", at(5_000), at(9_000))
    assert "no member was answered by 10.0.9.9:9092 for 4.0 s" in outage.text


def test_one_member_that_waits_alone_is_no_outage() -> None:
    script = joined()
    script.add("Heartbeat", "c1", 5_000, 9_000, generation_id=1)
    script.beats("c2", 5_000, 12_000, 1)
    assert script.history().outages == []


def test_a_heartbeat_behind_a_parked_request_is_no_sign() -> None:
    script = joined()
    for client in ("c1", "c2"):
        script.join(client, 5_000, 9_000, 2, members=["c1", "c2"] if client == "c1" else ())
        script.add("Heartbeat", client, 5_100, 9_000, generation_id=1)
    assert script.history().outages == []


def test_all_members_silent_at_once_is_an_outage() -> None:
    """No session timeout is reported of a time in which nobody was answered."""
    script = joined()
    script.saw("c3", 30_000, "orders", 3)
    history = script.history()
    assert (only(history).kind, only(history).to_ns) == ("silence", None)
    assert "all 2 members fell silent at once" in only(history).text
    assert len(history.rebalances) == 1


def test_one_silent_member_is_a_session_timeout() -> None:
    script = joined()
    script.beats("c1", 5_000, 15_000, 1)
    script.beat("c1", 15_000, 1, error=27)
    history = script.history()
    assert history.outages == []
    assert script.last().cause == Cause.SESSION_EXPIRED


def test_a_rebalance_that_waits_is_no_silence() -> None:
    script = joined()
    script.join("c1", 5_000, 25_000, 2, members=["c1", "c2"])
    script.join("c2", 24_500, 25_000, 2)
    assert script.history().outages == []


def test_a_gap_between_two_files_is_not_known() -> None:
    script = joined()
    for row in [script.beat(client, 100_000, 1) for client in ("c1", "c2")]:
        row.source = "another day"
    assert script.history().outages == []


def test_a_coordinator_that_moves_is_a_move() -> None:
    script = joined()
    for client in ("c1", "c2"):
        script.beat(client, 5_000, 1, error=16)
        script.closed(client, 5_100, by="client")
        script.beat(client, 5_600 + 1_000 * (client == "c2"), 1, connection=new_connection(client, NEW))
    history = script.history()
    assert (only(history).kind, only(history).broker) == ("coordinator moved", OLD)
    assert f"the coordinator moved from {OLD} to {NEW}" in only(history).text
    assert only(history).from_ns == at(5_000)
    assert len(history.rebalances) == 1


def test_a_coordinator_that_loads_is_loading() -> None:
    script = joined()
    for client in ("c1", "c2"):
        script.beat(client, 5_000, 1, error=14)
        script.beat(client, 7_000, 1)
    outage = only(script.history())
    assert (outage.kind, outage.from_ns, outage.to_ns) == ("loading", at(5_000), at(7_000))
    assert "2 x 14 COORDINATOR_LOAD_IN_PROGRESS" in outage.text


def test_a_first_coordinator_that_is_looked_for_is_no_outage() -> None:
    script = Script()
    script.join("c1", -2_000, -1_990, error_code=15)
    script.form("c1", "c2")
    assert script.history().outages == []


@pytest.mark.parametrize(("host", "end"), [("10.0.0.2", at(12_000)), ("10.0.0.77", None)])
def test_a_broker_is_back_when_a_host_that_lost_it_connects(host: str, end: int | None) -> None:
    """Neither member comes back; another client of the same host does."""
    script = joined()
    both_end(script, 5_000, by="broker")
    for ms in range(5_100, 10_000, 500):
        script.closed("c1", ms, f"10.0.0.1:{ms}-{OLD}#{ms}", kind=SightingKind.REFUSED)
    script.closed("other", 12_000, f"{host}:6000-{OLD}#99", kind=SightingKind.OPENED)
    script.closed("other", 15_000, f"{host}:6000-{OLD}#99")
    assert only(script.history()).to_ns == end
