"""Refused requests: which errors are findings, how often, and what they say of processes with one instance id.

Outages and moves of the coordinator, as findings.

Errors outside groups: findings of the members' groups, and of clients that are in no group.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcoord_wire.forensics.detectors import detect, history_of_clients
from kcoord_wire.forensics.detectors.brokers import HANDSHAKES, LASTING_MS
from kcoord_wire.forensics.model import TLS, Evidence, Exchange, Outage, Sighting, SightingKind
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.detector_groups import SECOND, exchange, group, life, of
from tests.support.exchange_script import two_members


def refused(api: str, times: int, code: int, start_s: float = 10, client: str = "c1", **more: object) -> list[Exchange]:
    return [
        exchange(api, start_s + at, error_code=code, client_id=client, member_id=f"{client}-id", **more)
        for at in range(times)
    ]


def test_a_client_without_an_acl_is_critical() -> None:
    rows = refused("Heartbeat", 3, 30) + refused("JoinGroup", 4, 30, 13)
    (found,) = of("refused", group(60), rows)
    assert (found.severity, found.subject, found.value) == ("critical", "c1", 7)
    assert (found.from_ns, found.to_ns) == (10 * SECOND + 1000, 16 * SECOND + 1000)
    assert found.text == (
        "c1 (10.0.0.1) was refused with GROUP_AUTHORIZATION_FAILED, 7 times in 6.0 s (4 JoinGroup, 3 Heartbeat): its "
        "principal may not use this group; nothing was accepted afterwards, in 44.0 s"
    )
    assert "kafka-acls.sh" in found.advice
    assert found.evidence[0].text == "Heartbeat of c1 (10.0.0.1) is answered with GROUP_AUTHORIZATION_FAILED"


def test_a_client_that_is_accepted_again_is_a_warning() -> None:
    rows = [*refused("JoinGroup", 4, 30), exchange("JoinGroup", 15)]
    (found,) = of("refused", group(60), rows)
    assert found.severity == "warning"
    assert found.text.endswith("accepted again 2.0 s after the last refusal")


@pytest.mark.parametrize("code", [27, 79, 14, 15, 16])
def test_what_the_protocol_uses_itself_is_normal(code: int) -> None:
    assert of("refused", group(), refused("JoinGroup", 50, code)) == []


@pytest.mark.parametrize("code", [22, 25, 113])
def test_an_error_that_follows_a_removal_is_normal_once(code: int) -> None:
    assert of("refused", group(), refused("Heartbeat", 2, code)) == []
    (found,) = of("refused", group(), refused("Heartbeat", 3, code))
    assert (found.severity, found.threshold) == ("warning", 3)
    slowly = [row for start in (0, 1000, 2000) for row in refused("Heartbeat", 1, code, start)]
    assert of("refused", group(), slowly) == []


@pytest.mark.parametrize("code", sorted(set(map(int, ErrorCode)) - {0, 14, 15, 16, 23, 27, 79, 82}))
def test_every_other_error_is_a_finding_if_it_goes_on(code: int) -> None:
    (found,) = of("refused", group(), refused("JoinGroup", 50, code))
    assert ErrorCode(code).name in found.text
    assert found.advice


def test_an_error_code_that_is_not_known_is_a_finding() -> None:
    (found,) = of("refused", group(), refused("JoinGroup", 5, 999))
    assert "unknown error code" in found.text


def test_a_refused_session_timeout_is_named() -> None:
    (found,) = of("refused", group(), refused("JoinGroup", 1, 26, session_timeout_ms=1000))
    assert "(it asks for 1,000 ms)" in found.text


def test_two_processes_with_one_instance_id_are_both_named() -> None:
    common = {"instance_id": "orders-1"}
    first = exchange("JoinGroup", 1, member_id="", given_member_id="c1-id", **common)
    second = exchange(
        "JoinGroup", 20, client_id="c2", client_host="10.0.0.2", member_id="", given_member_id="c2-id",
        connection="10.0.0.2:7-10.0.0.9:9092#2", **common,
    )  # fmt: skip
    (found,) = of("refused", group(60), [first, second, *refused("Heartbeat", 1, 82, 21, **common)])
    assert (found.severity, found.subject) == ("critical", "orders-1")
    assert found.text == (
        "c1 (10.0.0.1:1) was fenced (FENCED_INSTANCE_ID, 1 time (1 Heartbeat)) when c2 (10.0.0.2:7) joined with the "
        "same group.instance.id (orders-1); a client that is fenced stops for good"
    )


def test_restarted_processes_fence_each_other_in_turns() -> None:
    common = {"instance_id": "orders-1"}
    other = {"client_id": "c2", "client_host": "10.0.0.2", "connection": "10.0.0.2:7-10.0.0.9:9092#2", **common}
    rows = [
        exchange("JoinGroup", 1, member_id="", given_member_id="a-id", **common),
        exchange("JoinGroup", 20, member_id="", given_member_id="b-id", **other),
        exchange("Heartbeat", 21, member_id="a-id", error_code=82, **common),
        exchange("JoinGroup", 30, member_id="", given_member_id="d-id", **common),
        exchange("OffsetCommit", 31, member_id="b-id", error_code=82, **other),
    ]
    (found,) = of("refused", group(60), rows)
    assert found.text.startswith(
        "c1 (10.0.0.1), c2 (10.0.0.2) use one group.instance.id (orders-1) and fence each other"
    )
    assert "do not come back" not in found.advice
    assert of("commit_after_revoke", group(60), rows) == []


def test_processes_that_take_an_instance_id_from_each_other() -> None:
    """As aiokafka: one that was replaced gets UNKNOWN_MEMBER_ID, not FENCED_INSTANCE_ID, and joins again at once."""
    common = {"instance_id": "orders-1", "member_id": ""}
    other = {"connection": "10.0.0.1:7-10.0.0.9:9092#2", **common}
    rows = [
        exchange("JoinGroup", 1, given_member_id="a-id", **common),
        exchange("JoinGroup", 20, given_member_id="b-id", **other),
        exchange("Heartbeat", 21, error_code=25, member_id="a-id"),
        exchange("JoinGroup", 22, given_member_id="c-id", **common),
        exchange("Heartbeat", 24, error_code=25, member_id="b-id"),
        exchange("JoinGroup", 25, given_member_id="d-id", **other),
    ]
    (found,) = of("refused", group(60), rows)
    assert (found.severity, found.subject) == ("critical", "orders-1")
    assert found.text == (
        "c1 (10.0.0.1:1), c1 (10.0.0.1:7) use one group.instance.id (orders-1) and take it from each other: of 4 joins "
        "under it 2 took it back"
    )


def test_a_static_member_that_is_started_again_is_normal() -> None:
    common = {"instance_id": "orders-1", "member_id": ""}
    rows = [
        exchange("JoinGroup", 10 * n, given_member_id=f"{n}-id", connection=f"10.0.0.1:{n}-10.0.0.9:9092#{n}", **common)
        for n in range(1, 6)
    ]
    assert of("refused", group(60), rows) == []


def test_a_static_member_that_repeats_its_join_is_normal() -> None:
    common = {"instance_id": "orders-1"}
    parked = exchange("JoinGroup", 10, error_code=82, member_id="a-id", answered_ns=31 * SECOND, **common)
    again = exchange("JoinGroup", 30, member_id="", given_member_id="b-id", **common)
    assert of("refused", group(), [parked, again]) == []


def test_a_tool_that_sets_offsets_of_a_group_with_members() -> None:
    row = exchange("OffsetCommit", 5, member_id="", generation_id=-1, error_code=25, client_id="ops")
    (found,) = of("refused", group(), [row])
    assert (found.severity, found.subject) == ("info", "ops")
    assert "from outside" in found.text


def test_a_member_that_was_removed_is_no_tool() -> None:
    row = exchange("OffsetCommit", 5, member_id="", generation_id=-1, error_code=25, connection="c")
    assert of("refused", group(), [exchange("JoinGroup", 1, connection="c"), row]) == []
    assert len(of("refused", group(), [exchange("JoinGroup", 1, connection="d"), row])) == 1


def test_a_commit_of_the_own_generation_is_not_from_outside() -> None:
    assert of("refused", group(), [exchange("OffsetCommit", 5, member_id="", generation_id=3, error_code=25)]) == []


def test_a_fenced_epoch_is_a_refusal_at_once() -> None:
    (found,) = of("refused", group(), refused("ConsumerGroupHeartbeat", 1, 110))
    assert (found.severity, found.threshold) == ("warning", 1)


def test_an_instance_id_in_use_names_who_has_it() -> None:
    row = exchange("ConsumerGroupHeartbeat", 5, error_code=111, member_id="late", instance_id="di", client_id="di-2")
    (found,) = of("refused", group(members=[life("di-1", instance_id="di")]), [row])
    assert (found.severity, found.subject) == ("critical", "di-2")
    assert "its group.instance.id is in use by another member (di, held by di-1 (10.0.0.1))" in found.text


def test_leaving_and_commits_after_a_removal_are_not_refusals() -> None:
    assert of("refused", group(), refused("LeaveGroup", 5, 25) + refused("OffsetCommit", 5, 22)) == []


def test_commits_that_are_never_accepted_are_critical() -> None:
    (found,) = of("refused", group(), refused("OffsetCommit", 2, 12))
    assert (found.severity, found.subject) == ("critical", "c1")
    (found,) = of("refused", group(), refused("OffsetFetch", 9, 30))
    assert found.severity == "warning", "a tool that may not describe the group"


def test_a_log_has_no_refusals() -> None:
    assert of("refused", group()) == []
    assert of("refused", group(), []) == []


BROKER = "10.0.9.9:9092"


def outage(kind: str, from_s: float, to_s: float | None, tried_s: float, rebalance: int | None = None) -> Outage:
    seen = [Evidence(int(second * SECOND), "", -1, "it was tried") for second in (from_s, tried_s)]
    end = None if to_s is None else int(to_s * SECOND)
    return Outage("billing", kind, int(from_s * SECOND), end, BROKER, ["c1-id"], "it was away", rebalance, seen)


@pytest.mark.parametrize("kind", ["broker down", "loading", "silence"])
def test_an_outage_that_was_survived_is_a_warning(kind: str) -> None:
    (found,) = of("outage", group(outages=[outage(kind, 10, 40, 39, rebalance=2)]))
    assert (found.severity, found.subject, found.value, found.rebalances) == ("warning", BROKER, 30_000, [2])
    assert found.text == "it was away; rebalance #2 followed"


def test_an_outage_without_end_is_critical() -> None:
    tried = LASTING_MS / 1000 + 10
    (found,) = of("outage", group(outages=[outage("broker down", 10, None, tried)]))
    assert (found.severity, found.to_ns) == ("critical", None)


def test_members_that_have_given_up_are_not_critical() -> None:
    (found,) = of("outage", group(outages=[outage("broker down", 10, None, 12)]))
    assert found.severity == "warning"


def test_a_move_is_a_finding_of_its_own() -> None:
    history = group(outages=[outage("coordinator moved", 10, 11, 10)])
    assert of("outage", history) == []
    (found,) = of("coordinator_move", history)
    assert found.text == "it was away; it cost no rebalance"


def error(at_s: float, api: str, code: int, client: str = "c1", topic: str | None = None) -> Sighting:
    connection = "10.0.0.1:1-10.0.0.9:9092#1"
    return Sighting(
        int(at_s * SECOND), "a.pcap", connection, client, SightingKind.ERROR, topic, api=api, error_code=code
    )


def test_a_topic_that_a_member_may_not_read() -> None:
    history = group(5, members=[life("c1", topics=["orders", "secret"])])
    errors = [error(at, "Metadata", 29, topic="secret") for at in (1, 2)]
    (found,) = detect(history, None, errors)
    assert (found.severity, found.subject, found.detector) == ("critical", "c1", "refused")
    assert found.text == (
        "Metadata of topic secret was refused to c1 (10.0.0.1) with TOPIC_AUTHORIZATION_FAILED, 2 times in 1.0 s: its "
        "principal may not read a topic that it subscribes to or commits for"
    )
    assert detect(history, None, errors[:1])[0].severity == "warning"
    assert detect(group(5, members=[life("c1")]), None, errors) == [], "of another group with its name"
    history.group.last_ns = 60 * SECOND
    (found,) = detect(history, None, errors)
    assert found.severity == "warning"
    assert found.text.endswith("; not again in the 58.0 s after that")
    assert history_of_clients([history], errors) is None


@pytest.mark.parametrize(("by", "what"), [("client", "speaks TLS to"), ("broker", "speaks no TLS to")])
def test_tls_where_the_port_expects_none(by: str, what: str) -> None:
    rows = [
        Sighting(at * SECOND, "a.pcap", f"10.0.0.7:{at}-10.0.0.9:9092#{at}", None, SightingKind.ERROR, by=by, api=TLS)
        for at in range(1, 5)
    ]
    rows += [replace(row, source="b.pcap", connection=f"{(row.connection or '')}9") for row in rows]  # of another host
    history = history_of_clients([group(60, members=[life("c1")])], rows)
    assert history is not None
    (found,) = history.findings
    assert (found.severity, found.subject, found.value) == ("critical", "10.0.0.7", 4)
    assert found.text.startswith(f"10.0.0.7 {what} the port 10.0.0.9:9092, which expects ")
    assert "4 times in 3.0 s" in found.text
    probed = history_of_clients([], rows[:1])
    assert probed is not None
    assert probed.findings[0].severity == "warning", "as a scanner of ports does it"


def test_tls_handshakes_that_fail_again_and_again() -> None:
    rows = [
        Sighting(
            at * SECOND, "a.pcap", f"10.0.0.7:{at}-10.0.0.9:9093#{at}", None, SightingKind.ERROR, api=TLS,
            text="alert 48, unknown_ca, of the client" if at < HANDSHAKES else "",
        )
        for at in range(1, HANDSHAKES + 1)
    ]  # fmt: skip
    history = history_of_clients([group(60, members=[life("c1")])], [*rows, replace(rows[1], source="b.pcap")])
    assert history is not None
    (found,) = history.findings
    assert (found.severity, found.subject, found.value) == ("critical", "10.0.0.7", 5)
    assert found.text.startswith(
        "5 connections of 10.0.0.7 to 10.0.0.9:9093 ended in the TLS handshake in 4.0 s, "
        "alert 48, unknown_ca, of the client (4 times): "
    )
    (found,) = (history_of_clients([], rows[:1]) or group(0)).findings
    assert (found.severity, "1 connection of 10.0.0.7" in found.text) == ("warning", True), "Java's client tries once"
    for said in ("", "an encrypted alert of the broker"):
        silent = [replace(row, text=said) for row in rows]
        assert history_of_clients([], silent[1:]) is None
        rare = [replace(row, time_ns=row.time_ns * 20) for row in silent]
        assert history_of_clients([], rare) is None, "as a check of the port's health does it"
        (found,) = (history_of_clients([], silent) or group(0)).findings
        assert f"{said or 'no alert is in the clear'}" in found.text


def test_a_commit_of_a_member_that_was_removed_is_no_tools() -> None:
    script = two_members()
    script.commit("c2", 5_000, {0: 7}, member_id="", generation_id=-1, error_code=ErrorCode.UNKNOWN_MEMBER_ID)
    assert "refused" not in [found.detector for found in detect(script.history(), script.tables()[0])]


def test_clients_in_no_group_have_a_history_of_their_own() -> None:
    errors = [error(at, "ApiVersions", 35, "new") for at in range(20)]
    errors.append(error(30, "SaslAuthenticate", 58, "other"))
    assert detect(group(60, members=[life("c1")]), None, errors) == []
    history = history_of_clients([group(60, members=[life("c1")])], errors)
    assert history is not None
    assert (history.group.group_id, history.group.origin, history.group.last_ns) == ("", "clients", 30 * SECOND)
    versions, sasl = history.findings
    assert (versions.severity, versions.subject, versions.value) == ("critical", "new", 20)
    assert "older than the client" in versions.text
    assert "credentials" in sasl.text
    assert history_of_clients([], []) is None
