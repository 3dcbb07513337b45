"""Errors outside groups: of ApiVersions and SASL by their fixed place, of topics in Metadata, once a connection."""

from __future__ import annotations

import random
from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire.forensics.exchanges.errors import MAX_ERRORS
from tests.support.wire_samples import Talk, batch, match_all, mixed


def seen(talk: Talk) -> list[dict[str, Any]]:
    _, rows, matcher = match_all([batch(mixed([talk], random.Random(1)))])
    assert matcher.losses == []
    return [row for row in rows if row["kind"] in ("error", "cluster")]


def refuse_versions(talk: Talk, number: int) -> None:
    talk.ask(kw.ApiVersionsRequest(client_software_name="a", client_software_version="1"), 4, number)
    talk.answer(kw.ApiVersionsResponse(error_code=35), 0, number)


def test_versions_refused_on_a_connection_of_nothing_else() -> None:
    talk = Talk(1, client_id="new")
    for number in range(3):
        refuse_versions(talk, number)
    rows = seen(talk)
    assert [(row["api"], row["error_code"], row["client_id"]) for row in rows] == [("ApiVersions", 35, "new")] * 3
    for number in range(3, MAX_ERRORS + 20):
        refuse_versions(talk, number)
    assert len(seen(talk)) == MAX_ERRORS


@pytest.mark.parametrize("version", [0, 3])
def test_a_client_that_asks_again_lower_is_normal(version: int) -> None:
    talk = Talk(1)
    refuse_versions(talk, 1)
    talk.ask(kw.ApiVersionsRequest(), version, 2)
    talk.answer(kw.ApiVersionsResponse(), version, 2)
    assert seen(talk) == []


@pytest.mark.parametrize("version", [0, 1, 2])
def test_refused_credentials(version: int) -> None:
    talk = Talk(1)
    talk.ask(kw.SaslHandshakeRequest(mechanism="PLAIN"), 1, 1)
    talk.answer(kw.SaslHandshakeResponse(error_code=33), 1, 1)
    talk.ask(kw.SaslAuthenticateRequest(auth_bytes=b"x"), version, 2)
    talk.answer(kw.SaslAuthenticateResponse(error_code=58, error_message="no"), version, 2)
    assert [(row["api"], row["error_code"]) for row in seen(talk)] == [("SaslHandshake", 33), ("SaslAuthenticate", 58)]


def test_topics_and_the_cluster_are_seen_once() -> None:
    talk = Talk(1)
    for number in range(3):
        talk.ask(kw.MetadataRequest(), 4, number)
        topics = [kw.MetadataResponseTopic(error_code=29, name="secret"), kw.MetadataResponseTopic(name="orders")]
        talk.answer(kw.MetadataResponse(cluster_id="abc" if number < 2 else "xyz", topics=topics), 4, number)
    rows = [(row["kind"], row["topic"], row["error_code"], row["text"]) for row in seen(talk)]
    assert sorted(rows, key=str) == [
        ("cluster", None, None, "abc"), ("cluster", None, None, "xyz"), ("error", "secret", 29, None),
    ]  # fmt: skip
