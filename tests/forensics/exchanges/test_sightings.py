"""Fetch and ListOffsets as sightings: sessions, ids, cuts, what passes, and that batches make no difference.

Errors outside groups: of ApiVersions and SASL by their fixed place, of topics in Metadata, once a connection.

Connections as sightings: opened, closed, broken off, refused.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import asdict
from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire.forensics.exchanges.sightings import LINK_EVENTS, MAX_ERRORS, link_sighting
from kcoord_wire.forensics.model import Frame, SightingKind
from kcoord_wire.messages import fetch, list_offsets, metadata, produce
from tests.support.wire_samples import Talk, batch, canonical, cut_anywhere, match_all, mixed

TOPIC_ID = uuid.UUID(int=7)
EPOCH = 3
SECOND_NS = 1_000_000_000


def wanted(offsets: dict[int, int], *, full: bool = True, by_id: bool = False) -> Any:
    topic = {"topic_id": TOPIC_ID} if by_id else {"topic": "orders"}
    partitions = [
        fetch.FetchRequestFetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=1)
        for number, offset in offsets.items()
    ]
    topics = [fetch.FetchRequestFetchTopic(**topic, partitions=partitions)] if offsets else []
    return fetch.FetchRequest(max_wait_ms=500, min_bytes=1, topics=topics, session_epoch=0 if full else EPOCH)


def got(ends: dict[int, int], *, error: int = 0, by_id: bool = False, records: bytes = b"r" * 500) -> Any:
    topic = {"topic_id": TOPIC_ID} if by_id else {"topic": "orders"}
    partitions = [
        fetch.FetchResponsePartitionData(
            partition_index=number, error_code=error, high_watermark=end, log_start_offset=2, records=records
        )
        for number, end in ends.items()
    ]
    topics = [fetch.FetchResponseFetchableTopicResponse(**topic, partitions=partitions)] if ends else []
    return fetch.FetchResponse(session_id=5, responses=topics)


def seen(talk: Talk, step_ns: int = SECOND_NS, seed: int | None = None) -> list[dict[str, Any]]:
    """The FETCHED rows of a connection whose frames come one step after the other."""
    rng = random.Random(seed)
    frames = mixed([talk], rng)
    for frame in frames:
        frame.time_ns = step_ns * frame.seq
    batches = [batch(frames)] if seed is None else cut_anywhere(frames, rng)
    return [row for row in match_all(batches)[1] if row["kind"] == SightingKind.FETCHED]


def numbers(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(r["partition"], r["fetch_offset"], r["end_offset"], r["start_offset"], r["error_code"]) for r in rows]


def talk_of(*pairs: tuple[Any, Any], version: int = 12) -> Talk:
    talk = Talk(1)
    for number, (asked, answered) in enumerate(pairs):
        talk.ask(asked, version, number)
        talk.answer(answered, version, number)
    return talk


def test_a_session_knows_what_later_requests_leave_out() -> None:
    rows = seen(
        talk_of(
            (wanted({0: 10, 1: 20}), got({0: 15, 1: 20})),
            (wanted({0: 15}, full=False), got({1: 23})),
            (wanted({}, full=False), got({})),
            (wanted({1: 23}, full=False), got({0: 16, 1: 23})),
        )
    )
    assert numbers(rows) == [
        (0, 10, 15, 2, 0),
        (1, 20, 20, 2, 0),
        (1, 20, 23, 2, 0),
        (0, 15, 16, 2, 0),
        (1, 23, 23, 2, 0),
    ]
    assert {(row["topic"], row["topic_id"], row["api"], row["client_id"]) for row in rows} == {
        ("orders", None, "Fetch", "client")
    }
    assert [row["time_ns"] for row in rows] == [second * SECOND_NS for second in (1, 1, 3, 7, 7)]


def test_a_partition_has_a_row_a_second() -> None:
    pairs = [(wanted({0: number}, full=number == 0), got({0: 100})) for number in range(100)]
    rows = seen(talk_of(*pairs), step_ns=SECOND_NS // 40)
    assert [row["fetch_offset"] for row in rows] == [0, 20, 40, 60, 80]


def test_an_offset_out_of_range_is_a_row_at_once() -> None:
    pairs = [(wanted({0: 900}), got({0: 900})), (wanted({0: 900}, full=False), got({0: -1}, error=1))]
    assert [row["error_code"] for row in seen(talk_of(*pairs), step_ns=1)] == [0, 1]


def test_a_topic_id_is_named_by_metadata() -> None:
    talk = Talk(1)
    topic = metadata.MetadataResponseTopic(name="orders", topic_id=TOPIC_ID, partitions=[])
    talk.ask(kw.MetadataRequest(topics=None), 12, 99)
    talk.answer(kw.MetadataResponse(topics=[topic]), 12, 99)
    talk.ask(wanted({0: 1}, by_id=True), 16, 1)
    talk.answer(got({0: 2}, by_id=True), 16, 1)
    [row] = seen(talk)
    assert (row["topic"], row["topic_id"]) == ("orders", TOPIC_ID.hex)


def test_a_response_without_its_end_shows_what_it_has() -> None:
    talk = Talk(1)
    talk.ask(wanted({0: 1, 1: 2}), 12, 1)
    whole = kw.encode_response(got({0: 5, 1: 6}), 12, correlation_id=1)
    talk.raw("response", whole[:400], "600 of its bytes were not captured", 600)
    assert numbers(seen(talk)) == [(0, 1, 5, 2, 0)]


def test_followers_and_unanswered_requests_have_no_rows() -> None:
    follower = wanted({0: 1})
    follower.replica_id = 2
    talk = talk_of((follower, got({0: 5})))
    talk.ask(wanted({0: 1}), 12, 7)
    assert seen(talk) == []


@pytest.mark.parametrize("seed", range(5))
def test_batches_make_no_difference(seed: int) -> None:
    pairs = [(wanted({n % 3: n}, full=n % 10 == 0), got({n % 3: n + 5, (n + 1) % 3: n})) for n in range(40)]
    assert canonical(seen(talk_of(*pairs), seed=seed)) == canonical(seen(talk_of(*pairs)))


def listed(timestamp: int, offset: int, *, error: int = 0, isolation: int = 0) -> tuple[Any, Any]:
    asked = list_offsets.ListOffsetsRequestListOffsetsPartition(partition_index=4, timestamp=timestamp)
    found = list_offsets.ListOffsetsResponseListOffsetsPartitionResponse(
        partition_index=4, error_code=error, timestamp=-1, offset=offset
    )
    return (
        list_offsets.ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation,
            topics=[list_offsets.ListOffsetsRequestListOffsetsTopic(name="orders", partitions=[asked])],
        ),
        list_offsets.ListOffsetsResponse(
            topics=[list_offsets.ListOffsetsResponseListOffsetsTopicResponse(name="orders", partitions=[found])]
        ),
    )


def test_ends_and_beginnings_are_seen_in_list_offsets() -> None:
    talk = talk_of(
        listed(-1, 70), listed(-2, 3), listed(1_000, 8), listed(-1, 60, isolation=1), listed(-1, -1, error=6), version=7
    )
    rows = seen(talk)
    assert numbers(rows) == [(4, None, 70, None, 0), (4, None, -1, 3, 0), (4, None, -1, None, 6)]
    assert {row["api"] for row in rows} == {"ListOffsets"}
    assert len(seen(talk_of(*[listed(-1, 70)] * 9, version=7), step_ns=SECOND_NS // 10)) == 2
    talk.raw("request", kw.encode_request(listed(-1, 5)[0], 7, correlation_id=50)[:-3])
    talk.answer(listed(-1, 5)[1], 7, 50)
    assert len(seen(talk)) == 3


def errors_seen(talk: Talk) -> list[dict[str, Any]]:
    _, rows, matcher = match_all([batch(mixed([talk], random.Random(1)))])
    assert matcher.losses == []
    return [row for row in rows if row["kind"] in ("error", "cluster")]


def refuse_versions(talk: Talk, number: int) -> None:
    talk.ask(kw.ApiVersionsRequest(client_software_name="a", client_software_version="1"), 4, number)
    talk.answer(kw.ApiVersionsResponse(error_code=35), 0, number)


@pytest.mark.parametrize(("version", "is_stated"), [(0, False), (1, True), (11, True), (12, True), (16, True)])
def test_a_response_that_throttles_is_an_error(version: int, is_stated: bool) -> None:
    talk = Talk(1, client_id="c")
    talk.ask(fetch.FetchRequest(), version, 1)
    answer = fetch.FetchResponse(throttle_time_ms=9_997 if is_stated else 0)
    talk.answer(answer, version, 1)
    rows = [(row["api"], row["error_code"], row["throttle_ms"], row["client_id"]) for row in errors_seen(talk)]
    assert rows == ([("Fetch", 89, 9_997, "c")] if is_stated else [])


def test_throttling_is_seen_ten_times_a_second() -> None:
    talk = Talk(1)
    for number in range(50):
        talk.ask(kw.HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4, number)
        talk.answer(kw.HeartbeatResponse(throttle_time_ms=30), 4, number)
    frames = mixed([talk], random.Random(1))
    for frame in frames:
        frame.time_ns = SECOND_NS // 100 * frame.seq
    rows = [row for row in match_all([batch(frames)])[1] if row["kind"] == SightingKind.ERROR]
    assert 8 <= len(rows) <= 10
    assert {(row["api"], row["throttle_ms"]) for row in rows} == {("Heartbeat", 30)}


def produced(offsets: dict[int, int], *, error: int = 0, by_id: bool = False) -> tuple[Any, Any]:
    topic = {"topic_id": TOPIC_ID} if by_id else {"name": "orders"}
    parts = [
        produce.ProduceResponsePartitionProduceResponse(index=number, error_code=error, base_offset=offset)
        for number, offset in offsets.items()
    ]
    answer = produce.ProduceResponseTopicProduceResponse(**topic, partition_responses=parts)
    return produce.ProduceRequest(acks=1, timeout_ms=1), produce.ProduceResponse(responses=[answer])


@pytest.mark.parametrize(("version", "by_id"), [(3, False), (9, False), (13, True)])
def test_the_answers_to_produce_are_ends(version: int, by_id: bool) -> None:
    talk = talk_of(
        produced({4: 69, 5: 7}, by_id=by_id), produced({4: -1}, error=6, by_id=by_id), produced({4: 80}, by_id=by_id),
        version=version,
    )  # fmt: skip
    rows = seen(talk)
    assert numbers(rows) == [(4, None, 70, None, 0), (5, None, 8, None, 0), (4, None, 81, None, 0)]
    assert {(row["api"], row["topic"]) for row in rows} == {("Produce", f"id:{TOPIC_ID.hex}" if by_id else "orders")}
    assert len(seen(talk_of(*[produced({4: 69})] * 9, version=3), step_ns=SECOND_NS // 10)) == 2


def test_versions_refused_on_a_connection_of_nothing_else() -> None:
    talk = Talk(1, client_id="new")
    for number in range(3):
        refuse_versions(talk, number)
    rows = errors_seen(talk)
    assert [(row["api"], row["error_code"], row["client_id"]) for row in rows] == [("ApiVersions", 35, "new")] * 3
    for number in range(3, MAX_ERRORS + 20):
        refuse_versions(talk, number)
    assert len(errors_seen(talk)) == MAX_ERRORS


@pytest.mark.parametrize("version", [0, 3])
def test_a_client_that_asks_again_lower_is_normal(version: int) -> None:
    talk = Talk(1)
    refuse_versions(talk, 1)
    talk.ask(kw.ApiVersionsRequest(), version, 2)
    talk.answer(kw.ApiVersionsResponse(), version, 2)
    assert errors_seen(talk) == []


@pytest.mark.parametrize("version", [0, 1, 2])
def test_refused_credentials(version: int) -> None:
    talk = Talk(1)
    talk.ask(kw.SaslHandshakeRequest(mechanism="PLAIN"), 1, 1)
    talk.answer(kw.SaslHandshakeResponse(error_code=33), 1, 1)
    talk.ask(kw.SaslAuthenticateRequest(auth_bytes=b"x"), version, 2)
    talk.answer(kw.SaslAuthenticateResponse(error_code=58, error_message="no"), version, 2)
    assert [(row["api"], row["error_code"]) for row in errors_seen(talk)] == [
        ("SaslHandshake", 33),
        ("SaslAuthenticate", 58),
    ]


def test_topics_and_the_cluster_are_seen_once() -> None:
    talk = Talk(1)
    for number in range(3):
        talk.ask(kw.MetadataRequest(), 4, number)
        topics = [kw.MetadataResponseTopic(error_code=29, name="secret"), kw.MetadataResponseTopic(name="orders")]
        talk.answer(kw.MetadataResponse(cluster_id="abc" if number < 2 else "xyz", topics=topics), 4, number)
    rows = [(row["kind"], row["topic"], row["error_code"], row["text"]) for row in errors_seen(talk)]
    assert sorted(rows, key=str) == [
        ("cluster", None, None, "abc"), ("cluster", None, None, "xyz"), ("error", "secret", 29, None),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", LINK_EVENTS)
def test_what_happens_to_a_connection_is_a_sighting(kind: str) -> None:
    name = "10.0.0.1:4000-10.0.9.9:9092#1"
    frame = Frame("a.pcap", 0, 0, 5, name, kind, b"", by="broker")
    seen = link_sighting(asdict(frame), "billing-1")
    assert (seen.kind, seen.connection, seen.client_id, seen.by, seen.text) == (kind, name, "billing-1", "broker", None)


def test_a_refused_connection_is_seen() -> None:
    name = "10.0.0.1:4000-10.0.9.9:9092#1"
    frame = Frame("a.kcrec", 0, 0, 7, name, "refused", b"", "Connection refused")
    exchanges, seen, matcher = match_all([batch([frame])])
    assert (exchanges, matcher.losses) == ([], [])
    assert [(row["kind"], row["connection"], row["time_ns"], row["text"]) for row in seen] == [
        ("refused", name, 7, "Connection refused")
    ]


def test_bytes_that_are_sent_again_are_seen_and_no_loss() -> None:
    name, text = "10.0.0.1:4000-10.0.9.9:9092#1", "8 bytes sent again 4 times without an acknowledgement"
    frame = Frame("a.pcap", 0, 0, 7, name, "resent", b"", text, by="client", since_ns=3)
    exchanges, seen, matcher = match_all([batch([frame])])
    assert (exchanges, matcher.losses, matcher.counts["damage"]) == ([], [], 0)
    assert [(row["kind"], row["since_ns"], row["time_ns"], row["by"], row["text"]) for row in seen] == [
        ("resent", 3, 7, "client", text)
    ]


def test_tls_on_a_plain_connection_is_an_error_of_it() -> None:
    name, text = (
        "10.0.0.1:4000-10.0.9.9:9092#1",
        "request: frame size 369295616 is above the limit, which looks like TLS",
    )
    frames = [
        Frame("a.pcap", at, 0, at, connection, "damage", b"", text, 1, "client", at)
        for at, connection in ((1, name), (2, ""))
    ]
    _, seen, matcher = match_all([batch(frames)])
    assert [loss.count for loss in matcher.losses] == [2]
    assert [(row["api"], row["by"]) for row in seen if row["kind"] == "error"] == [("TLS", "client")]


@pytest.mark.parametrize(("end", "text"), [("", ""), (": alert 48, unknown_ca, of the client",) * 2])
def test_a_tls_handshake_that_fails_is_an_error(end: str, text: str) -> None:
    name, error = "10.0.0.1:4000-10.0.9.9:9093#1", f"left out: it, which looks like TLS, and its handshake failed{end}"
    _, seen, matcher = match_all([batch([Frame("a.pcap", 1, 1, 7, name, "damage", b"", error, 200)])])
    assert [loss.count for loss in matcher.losses] == [1]
    assert [(row["kind"], row["api"], row["connection"], row["text"]) for row in seen] == [
        ("error", "TLS", name, text.removeprefix(": "))
    ]
    assert matcher.finish()[1].num_rows == 0


def test_missing_bytes_are_seen_unless_they_hide_nothing() -> None:
    name = "10.0.0.1:4000-10.0.9.9:9092#1"
    hole = Frame("a.pcap", 1, 9, 7, name, "damage", b"", "request: bytes were not captured", 50, "client", 3)
    harmless = Frame("a.pcap", 2, 9, 8, name, "damage", b"", "response: bytes of the data", 5000, "broker")
    _, seen, matcher = match_all([batch([hole, harmless])])
    assert [loss.bytes for loss in matcher.losses] == [50, 5000]
    assert [(row["kind"], row["connection"], row["since_ns"], row["time_ns"], row["by"]) for row in seen] == [
        ("hole", name, 3, 7, "client")
    ]
