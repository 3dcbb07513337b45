"""Errors outside groups: findings of the members' groups, and of clients that are in no group."""

from __future__ import annotations

from kcoord_wire.forensics.detectors import detect, history_of_clients
from kcoord_wire.forensics.model import Sighting, SightingKind
from tests.support.detector_groups import SECOND, group, life


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
