"""Exchanges: what the messages say, whatever their version, their order, the cut of the batches and the damage."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict, deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kcoord_wire as kw
from kcoord_wire.api_keys import API_NAMES, ApiKey
from kcoord_wire.capture import CapturedFrame, read_capture
from kcoord_wire.forensics.exchanges import matcher as matcher_module
from kcoord_wire.forensics.exchanges import pairing
from kcoord_wire.forensics.exchanges.decode import APIS
from kcoord_wire.forensics.exchanges.matcher import Matcher, client_host, name_topics
from kcoord_wire.forensics.model import Exchange, Frame, TopicSighting, arrow_schema, table_of
from kcoord_wire.forensics.sources.frames import read_frames
from tests.support.strategies import filled, messages
from tests.support.wire_samples import Talk, batch, canonical, cut_anywhere, match_all, mixed, pair_rows

CAPTURES = Path(__file__).parents[1] / "data" / "captures"
NAMES = ["aiokafka", "cooperative", "eager_range", "static_bounce"]
GROUP_APIS = [key for key in APIS if key != ApiKey.METADATA]
VERSIONS = [(key, version) for key in GROUP_APIS for version in kw.registry.request(key).valid_versions]


def expected_of_capture(path: Path) -> list[dict[str, Any]]:
    """What `read_capture` says of a capture: the account by objects."""
    frames = list(read_capture(path))
    rows = [row for found in read_frames(path) for row in found.select(["seq", "direction", "frame"]).to_pylist()]
    said = [row for row in rows if row["direction"] in ("request", "response")]
    assert [(row["direction"], row["frame"]) for row in said] == [(frame.direction, frame.raw) for frame in frames]
    waiting: defaultdict[tuple[str, int | None], deque[tuple[CapturedFrame, int]]] = defaultdict(deque)
    pairs = []
    for frame, row in zip(frames, said, strict=True):
        key = (frame.connection, frame.correlation_id)
        if frame.direction == "request":
            waiting[key].append((frame, row["seq"]))
        else:
            pairs.append((*waiting[key].popleft(), frame, row["seq"]))
    pairs += [(*asked, None, None) for queue in waiting.values() for asked in queue]
    return [
        row for asked, seq, answer, answer_seq in pairs for row in pair_rows(asked, answer, seq, answer_seq, str(path))
    ]


@pytest.mark.parametrize("name", NAMES)
def test_captures_hold_the_exchanges_that_their_messages_say(name: str) -> None:
    path = CAPTURES / f"{name}.pcap"
    exchanges, topics, matcher = match_all(read_frames(path))
    assert canonical(exchanges) == canonical(expected_of_capture(path))
    assert matcher.losses == []
    assert len(exchanges) > 40
    assert {row["topic"]: row["partitions"] for row in topics} == {"orders": 4, "payments": 4, "": 0}
    assert matcher.counts["closed"] == sum(row["topic"] == "" for row in topics) == matcher.counts["opened"]
    assert matcher.counts["stray"] == 0


@pytest.mark.parametrize("name", NAMES)
def test_captures_hold_what_the_dissector_counts(name: str) -> None:
    path = CAPTURES / f"{name}.pcap"
    exchanges, _, matcher = match_all(read_frames(path))
    wanted: Counter[tuple[str, str]] = Counter()
    frames: Counter[str] = Counter()
    for row in json.loads((CAPTURES / f"{name}.counts.json").read_text())["counts"]:
        frames[row["direction"]] += row["frames"]
        if row["api_key"] in GROUP_APIS:
            wanted[row["direction"], API_NAMES[row["api_key"]]] += row["frames"]
    found = Counter(("request", row["api"]) for row in exchanges)
    found.update(("response", row["api"]) for row in exchanges if row["answer_seq"] is not None)
    assert found == wanted
    assert (matcher.counts["requests"], matcher.counts["responses"]) == (frames["request"], frames["response"])
    responses = [frame.message for frame in read_capture(path) if frame.direction == "response"]
    accepted = [message for message in responses if getattr(message, "error_code", None) == 0]
    joined = [row["given_member_id"] for row in exchanges if row["api"] == "JoinGroup" and row["error_code"] == 0]
    assert Counter(joined) == Counter(m.member_id for m in accepted if isinstance(m, kw.JoinGroupResponse))
    synced = [row for row in exchanges if row["api"] == "SyncGroup" and row["error_code"] == 0]
    assert len(synced) == sum(isinstance(message, kw.SyncGroupResponse) for message in accepted)


def captured(talk: Talk, direction: str, message: Any, version: int, at: int) -> Any:
    api = type(message).__name__.removesuffix("Request").removesuffix("Response")
    return SimpleNamespace(
        connection=talk.name,
        client_id=talk.client_id,
        api=api,
        api_version=version,
        direction=direction,
        message=message,
        time_ns=1000 * at,
    )


@pytest.mark.parametrize(("key", "version"), VERSIONS, ids=lambda value: str(value))
@pytest.mark.parametrize("answered", [True, False])
def test_every_version_of_every_api(key: int, version: int, answered: bool) -> None:
    check_pair(
        *(filled(codec, version) for codec in (kw.registry.request(key), kw.registry.response(key))), version, answered
    )


def check_pair(asked: Any, told: Any, version: int, answered: bool) -> None:
    talk = Talk(3)
    talk.ask(asked, version, 7)
    if answered:
        talk.answer(told, version, 7)
    exchanges, _, matcher = match_all([batch(mixed([talk], random.Random(0)))])
    answer = captured(talk, "response", told, version, 1) if answered else None
    request = captured(talk, "request", asked, version, 0)
    wanted = pair_rows(request, answer, 0, 1 if answered else None, talk.source)
    assert canonical(exchanges) == canonical(wanted)
    assert matcher.counts["stray"] == 0


@given(st.data())
@settings(max_examples=150)
def test_any_message_of_any_version(data: st.DataObject) -> None:
    key, version = data.draw(st.sampled_from(VERSIONS))
    asked = data.draw(messages(kw.registry.request(key), version))
    told = data.draw(messages(kw.registry.response(key), version))
    if hasattr(asked, "protocol_type"):
        asked.protocol_type = data.draw(st.sampled_from(["consumer", "connect"])) if key == 11 or version >= 5 else None
    if key == 10:
        asked.key_type = data.draw(st.integers(0, 1)) if version else 0
    check_pair(asked, told, version, data.draw(st.booleans()))


# ---- batches and connections


TOPIC = UUID(int=77)
SUBSCRIPTION = kw.encode_prefixed(kw.ConsumerProtocolSubscription(topics=["orders"], generation_id=4), 2)
ASSIGNMENT = kw.encode_prefixed(
    kw.ConsumerProtocolAssignment(
        assigned_partitions=[kw.ConsumerProtocolAssignmentTopicPartition(topic="orders", partitions=[0, 1])]
    ),
    1,
)


def chatter(number: int, rng: random.Random) -> Talk:
    """A connection on which everything happens: losses, strays, pipelining, metadata that names ids, SASL."""
    talk = Talk(number, source=f"source-{number % 2}", client_id=rng.choice(["c", None, f"c{number}"]))
    if rng.random() < 0.7:
        talk.open()
    if rng.random() < 0.3:
        talk.ask(kw.SaslHandshakeRequest(mechanism="PLAIN"), 0, 1)
        talk.answer(kw.SaslHandshakeResponse(mechanisms=["PLAIN"]), 0, 1)
        talk.raw("request", b"\0user\0password")
        talk.raw("response", b"")
        talk.raw("response", b"token")
    said: list[tuple[Any, Any, int]] = []
    for _ in range(rng.randint(0, 30)):
        key = rng.choice([*APIS, 1, 18, 11, 14])
        version = rng.choice(list(kw.registry.request(key).valid_versions))
        asked, told = filled(kw.registry.request(key), version), filled(kw.registry.response(key), version)
        if key == 11:
            asked.protocol_type = "connect" if number % 5 == 0 else "consumer"
            asked.protocols = [kw.JoinGroupRequestProtocol(name="range", metadata=rng.choice([SUBSCRIPTION, b"x"]))]
        if key == 14:
            asked.protocol_type, told.error_code = ("consumer" if version >= 5 else None), rng.choice([0, 27])
            told.assignment = rng.choice([ASSIGNMENT, b"", b"\0"])
        if key == ApiKey.METADATA:
            told.topics = [topic_of(version, rng)]
        said.append((asked, told, version))
    waiting: deque[tuple[Any, int, int]] = deque()
    for correlation_id, (asked, told, version) in enumerate(said):
        talk.ask(asked, version, rng.choice([correlation_id, 3]))
        waiting.append((told, version, correlation_id))
        while waiting and rng.random() < 0.6:
            told, version, id_ = waiting.popleft()
            if rng.random() < 0.9:
                talk.answer(told, version, rng.choice([id_, id_, id_, 3, 99]))
        spoil(talk, rng)
    if rng.random() < 0.6:
        talk.close()
    return talk


def topic_of(version: int, rng: random.Random) -> Any:
    topic = kw.MetadataResponseTopic(
        name=rng.choice(["orders", "payments"]),
        error_code=rng.choice([0, 0, 3, 5]),
        partitions=[kw.MetadataResponsePartition(partition_index=index) for index in range(rng.randint(1, 3))],
    )
    if version >= 10:
        topic.topic_id = UUID(int=1 << 100)
    return topic


def spoil(talk: Talk, rng: random.Random) -> None:
    what = rng.random()
    if what < 0.03:
        talk.raw("damage", b"", "37 bytes were skipped", 37)
    elif what < 0.06:
        talk.raw("request", talk.frames[-1].frame[:-1], "1 of its bytes was not captured", 20)
    elif what < 0.09:
        talk.raw("response", rng.randbytes(rng.randint(0, 30)))
    elif what < 0.12:
        talk.raw("request", rng.randbytes(rng.randint(0, 30)))


@pytest.mark.parametrize("seed", range(50))
def test_neither_batches_nor_the_mixture_of_connections_make_a_difference(seed: int) -> None:
    talks = [chatter(number, random.Random(number)) for number in range(1, 16)]
    mixed(talks, random.Random(0))
    whole = [batch([frame for talk in talks for frame in talk.frames])]
    exchanges, topics, matcher = match_all(whole)
    rng = random.Random(1000 + seed)
    others = match_all(cut_anywhere(mixed(talks, rng), rng))
    assert canonical(others[0]) == canonical(exchanges)
    assert canonical(others[1]) == canonical(topics)
    assert canonical(others[2].losses) == canonical(matcher.losses)
    assert others[2].counts == matcher.counts
    if seed == 0:
        assert len(exchanges) > 80
        assert len(topics) > 10
        assert len(matcher.losses) > 10
        assert matcher.counts["sasl_tokens"] > 2
        assert matcher.counts["unanswered"] > 10


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", NAMES)
def test_captures_in_any_batches(name: str, seed: int) -> None:
    path = CAPTURES / f"{name}.pcap"
    rng = random.Random(seed)
    frames = [Frame(**row) for found in read_frames(path) for row in found.to_pylist()]
    by_connection: defaultdict[str, list[Frame]] = defaultdict(list)
    for frame in frames:
        by_connection[frame.connection].append(frame)
    talks = list(by_connection.values())
    rng.shuffle(talks)
    wanted = match_all(read_frames(path))
    found = match_all(cut_anywhere([frame for talk in talks for frame in talk], rng))
    assert canonical(found[0]) == canonical(wanted[0])
    assert canonical(found[1]) == canonical(wanted[1])


def heartbeat(talk: Talk, id_: int, answered: bool = True, member: str = "m") -> None:
    talk.ask(kw.HeartbeatRequest(group_id="g", member_id=member, generation_id=id_), 0, id_)
    if answered:
        talk.answer(kw.HeartbeatResponse(), 0, id_)


def of(*talks: Talk) -> tuple[list[dict[str, Any]], list[dict[str, Any]], Matcher]:
    return match_all([batch(mixed(talks, random.Random(0)))])


def test_a_request_that_was_passed_over_is_an_exchange_without_response() -> None:
    talk = Talk(1)
    heartbeat(talk, 1, answered=False)
    heartbeat(talk, 2)
    exchanges, _, matcher = of(talk)
    assert {row["generation_id"]: (row["answer_seq"], row["error_code"]) for row in exchanges} == {
        1: (None, None),
        2: (2, 0),
    }
    assert matcher.counts["unanswered"] == 1


def test_a_response_without_request_is_a_loss() -> None:
    talk = Talk(1)
    talk.answer(kw.HeartbeatResponse(), 0, 5)
    heartbeat(talk, 1)
    exchanges, _, matcher = of(talk)
    assert len(exchanges) == 1
    (loss,) = matcher.losses
    assert (loss.source, loss.position, loss.what, loss.bytes, loss.count) == (
        "made.pcap", 0, "its request was not seen", 6, 1,
    )  # fmt: skip


def test_requests_of_a_closed_connection_come_out_at_once_and_the_end_is_a_row() -> None:
    talk = Talk(1)
    heartbeat(talk, 1, answered=False)
    talk.close()
    matcher = Matcher()
    exchanges, topics = matcher.feed(batch(mixed([talk], random.Random(0))))
    assert exchanges.column("answered_ns").to_pylist() == [None]
    assert topics.to_pylist() == [
        {"time_ns": 1000, "source": "made.pcap", "connection": talk.name, "client_id": "client", "topic": "",
         "topic_id": None, "partitions": 0},
    ]  # fmt: skip
    assert len(matcher.finish()[0]) == 0


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairing, "MAX_PENDING", 10)
    talk = Talk(1)
    for number in range(25):
        heartbeat(talk, number, answered=False)
    matcher = Matcher()
    frames = mixed([talk], random.Random(0))
    given_up = [len(matcher.feed(batch([frame]))[0]) for frame in frames]
    assert given_up == [0] * 10 + [1] * 15
    assert len(matcher.finish()[0]) == 10
    together = Matcher()
    assert len(together.feed(batch(frames))[0]) == 15


def test_waiting_bytes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairing, "MAX_PENDING_BYTES", 500)
    talk = Talk(1)
    for number in range(5):
        heartbeat(talk, number, answered=False, member="m" * 200)
    matcher = Matcher()
    assert len(matcher.feed(batch(mixed([talk], random.Random(0))))[0]) == 3


def test_all_that_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher_module, "MAX_HELD", 600)
    talks = [Talk(number) for number in range(1, 6)]
    for talk in talks:
        heartbeat(talk, talk.number, answered=False, member="m" * 200)
    matcher = Matcher()
    frames = [talk.frames[0] for talk in talks]
    given_up = matcher.feed(batch(frames))[0]
    assert given_up.column("generation_id").to_pylist() == [1, 2, 3]
    assert matcher.finish()[0].column("generation_id").to_pylist() == [4, 5]


def test_large_batches_are_taken_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    talks = [chatter(number, random.Random(number)) for number in range(1, 6)]
    frames = batch(mixed(talks, random.Random(0)))
    whole = match_all([frames])
    monkeypatch.setattr(matcher_module, "_MAX_BATCH_BYTES", 500)
    pieces = match_all([frames])
    assert [canonical(rows) for rows in pieces[:2]] == [canonical(rows) for rows in whole[:2]]


def test_nulls_and_missing_columns_are_taken() -> None:
    talk = Talk(1)
    heartbeat(talk, 1)
    frames = batch(mixed([talk], random.Random(0)))
    assert len(Matcher().feed(frames.drop_columns(["error", "lost"]))[0]) == 1
    nulls = [pa.nulls(3, item.type) for item in frames.schema]
    rows = pa.RecordBatch.from_arrays(nulls, names=frames.schema.names)
    assert len(Matcher().feed(rows)[0]) == 0


def test_apis_of_no_interest_wait_as_eight_bytes() -> None:
    talk = Talk(1)
    talk.raw("request", b"\0\0\0\x09\0\0\0\x01" + bytes(100_000))
    matcher = Matcher()
    matcher.feed(batch(mixed([talk], random.Random(0))))
    assert matcher._pending.column("frame").to_pylist() == [b"\0\0\0\x09\0\0\0\x01"]


@pytest.mark.parametrize("seed", range(3))
def test_ids_are_called_by_the_name_that_the_connection_was_told_before(seed: int) -> None:
    def commit(talk: Talk, id_: int) -> None:
        partition = kw.OffsetCommitRequestPartition(partition_index=1, committed_offset=9)
        topic = kw.OffsetCommitRequestTopic(topic_id=TOPIC, partitions=[partition])
        told = kw.OffsetCommitResponseTopic(
            topic_id=TOPIC, partitions=[kw.OffsetCommitResponsePartition(partition_index=1)]
        )
        talk.ask(kw.OffsetCommitRequest(group_id="g", topics=[topic]), 10, id_)
        talk.answer(kw.OffsetCommitResponse(topics=[told]), 10, id_)

    told, deaf = Talk(1), Talk(2)
    commit(told, 1)
    told.ask(kw.MetadataRequest(), 12, 2)
    topic = kw.MetadataResponseTopic(
        name="orders", topic_id=TOPIC, partitions=[kw.MetadataResponsePartition(partition_index=0)]
    )
    told.answer(kw.MetadataResponse(topics=[topic]), 12, 2)
    commit(told, 3)
    owned = kw.ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=TOPIC, partitions=[0])
    told.ask(kw.ConsumerGroupHeartbeatRequest(group_id="g", topic_partitions=[owned]), 0, 4)
    commit(deaf, 1)
    rng = random.Random(seed)
    exchanges, topics, _ = match_all(cut_anywhere(mixed([told, deaf], rng), rng))
    unnamed = f"id:{TOPIC.hex}"
    names = {(row["connection"], row["seq"]): row["offsets"][0]["topic"] for row in exchanges if row["offsets"]}
    assert sorted(names.values()) == [unnamed, unnamed, "orders"]
    assert [row["owned"] for row in exchanges if row["owned"]] == [[{"topic": "orders", "partitions": [0]}]]
    named = name_topics(
        pa.Table.from_pylist(exchanges, arrow_schema(Exchange)),
        pa.Table.from_pylist(topics, arrow_schema(TopicSighting)),
    )
    assert {offset["topic"] for row in named.to_pylist() for offset in row["offsets"] or []} == {"orders"}
    assert named.schema == arrow_schema(Exchange)


def metadata(talk: Talk, id_: int, **topics: int) -> None:
    talk.ask(kw.MetadataRequest(), 1, id_)
    told = [
        kw.MetadataResponseTopic(
            name=name,
            error_code=0 if count else 3,
            partitions=[kw.MetadataResponsePartition(partition_index=index) for index in range(count)],
        )
        for name, count in topics.items()
    ]
    talk.answer(kw.MetadataResponse(topics=told), 1, id_)


def test_topics_are_told_once_and_when_they_change() -> None:
    talk, other = Talk(1), Talk(2)
    metadata(talk, 1, a=3, b=1)
    metadata(talk, 2, a=3)
    metadata(talk, 3, a=6, b=1)
    metadata(talk, 4, a=6, b=0)
    metadata(other, 1, a=6)
    _, topics, _ = of(talk, other)
    seen = [(row["connection"][-1], row["topic"], row["partitions"]) for row in topics]
    assert sorted(seen) == [("1", "a", 3), ("1", "a", 6), ("1", "b", 0), ("1", "b", 1), ("2", "a", 6)]


def test_blobs_of_other_protocols_are_left_alone() -> None:
    talk = Talk(1)
    protocol = kw.JoinGroupRequestProtocol(name="compatible", metadata=b"\x01")
    talk.ask(kw.JoinGroupRequest(group_id="g", protocol_type="connect", protocols=[protocol]), 5, 1)
    talk.answer(kw.JoinGroupResponse(generation_id=1), 5, 1)
    talk.ask(kw.SyncGroupRequest(group_id="g", generation_id=1), 3, 2)
    talk.answer(kw.SyncGroupResponse(assignment=b"\x01"), 3, 2)
    exchanges, _, matcher = of(talk)
    assert matcher.losses == []
    by_api = {row["api"]: row for row in exchanges}
    assert by_api["JoinGroup"]["offered"][0]["subscription"] == {
        "topics": None, "owned": None, "generation_id": None, "rack_id": None, "metadata": b"\x01",
    }  # fmt: skip
    assert by_api["SyncGroup"]["assignment"] is None


def test_blobs_that_do_not_decode_are_losses_and_none() -> None:
    talk = Talk(1)
    protocol = kw.JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION[:-1])
    talk.ask(kw.JoinGroupRequest(group_id="g", protocol_type="consumer", protocols=[protocol]), 5, 1)
    talk.answer(kw.JoinGroupResponse(generation_id=1), 5, 1)
    exchanges, _, matcher = of(talk)
    assert exchanges[0]["offered"][0]["subscription"]["topics"] is None
    assert exchanges[0]["offered"][0]["subscription"]["metadata"] == SUBSCRIPTION[:-1]
    assert [(loss.position, loss.what) for loss in matcher.losses] == [
        (0, "ConsumerProtocolSubscription blob does not decode: truncated")
    ]


def test_frames_that_do_not_decode_are_losses_and_what_is_known_is_kept() -> None:
    talk = Talk(1)
    heartbeat(talk, 1)
    heartbeat(talk, 2)
    talk.frames[1].frame = talk.frames[1].frame[:-1]
    talk.frames[2].frame = talk.frames[2].frame[:-1]
    exchanges, _, matcher = of(talk)
    assert [(row["generation_id"], row["answer_seq"], row["error_code"]) for row in exchanges] == [(1, 1, None)]
    assert sorted((loss.position, loss.what) for loss in matcher.losses) == [
        (1, "Heartbeat response does not decode: truncated"),
        (2, "Heartbeat request does not decode: truncated"),
    ]


def test_a_version_that_is_not_known_is_a_loss() -> None:
    talk = Talk(1)
    talk.raw("request", b"\0\x0c\0\x63\0\0\0\x01\xff\xff")
    talk.raw("response", b"\0\0\0\x01\0\0")
    exchanges, _, matcher = of(talk)
    assert exchanges == []
    assert [loss.what for loss in matcher.losses] == ["Heartbeat request does not decode: version"]


def test_error_codes_are_found_by_topic_and_partition_where_the_broker_changes_the_order() -> None:
    def topic(name: str) -> Any:
        partitions = [
            kw.OffsetCommitRequestPartition(partition_index=index, committed_offset=index) for index in (0, 1)
        ]
        return kw.OffsetCommitRequestTopic(name=name, partitions=partitions)

    def told(name: str, code: int) -> Any:
        partitions = [kw.OffsetCommitResponsePartition(partition_index=index, error_code=code) for index in (1, 0)]
        return kw.OffsetCommitResponseTopic(name=name, partitions=partitions)

    talk = Talk(1)
    talk.ask(kw.OffsetCommitRequest(group_id="g", topics=[topic("a"), topic("b")]), 8, 1)
    talk.answer(kw.OffsetCommitResponse(topics=[told("b", 25), told("a", 0)]), 8, 1)
    (row,), _, _ = of(talk)
    assert row["error_code"] == 25
    assert [(offset["topic"], offset["error_code"]) for offset in row["offsets"]] == [
        ("a", 0), ("a", 0), ("b", 25), ("b", 25),
    ]  # fmt: skip


def test_a_batch_of_another_schema_is_taken_where_the_values_are_the_same() -> None:
    talk = Talk(1)
    heartbeat(talk, 1)
    frames = batch(mixed([talk], random.Random(0)))
    large = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    schema = pa.schema([pa.field(item.name, large.get(item.type, item.type)) for item in frames.schema])
    assert len(Matcher().feed(frames.cast(schema))[0]) == 1
    assert len(Matcher().feed(frames.slice(1))[0]) == 0


def test_nothing_in_is_nothing_out() -> None:
    matcher = Matcher()
    for rows in (*matcher.feed(batch([])), *matcher.finish()):
        assert len(rows) == 0
    assert table_of(Frame, []).num_rows == 0


@pytest.mark.parametrize(
    ("connection", "host"),
    [
        ("10.0.0.1:5000-10.0.0.2:9092#3", "10.0.0.1"),
        ("[2001:db8::1]:5000-[2001:db8::2]:9092#0", "2001:db8::1"),
        ("", ""),
    ],
)
def test_hosts(connection: str, host: str) -> None:
    assert client_host(connection) == host


@given(
    st.lists(
        st.tuples(st.sampled_from(["request", "response", "opened", "closed", "damage", "?"]), st.binary(max_size=40))
    )
)
@settings(max_examples=100)
def test_any_bytes_are_taken(said: list[tuple[str, bytes]]) -> None:
    talk = Talk(1)
    for direction, body in said:
        talk.raw(direction, body)
    match_all([batch(mixed([talk], random.Random(0)))])


@pytest.mark.parametrize("key", APIS, ids=lambda key: API_NAMES[key])
def test_frames_cut_anywhere_and_flipped_anywhere_are_taken(key: int) -> None:
    rng = random.Random(key)
    version = kw.registry.request(key).valid_versions[-1]
    asked, told = Talk(1), Talk(2)
    message = filled(kw.registry.request(key), version)
    if key == 10:
        message.key_type = 0
    asked.ask(message, version, 1)
    asked.answer(filled(kw.registry.response(key), version), version, 1)
    request, response = (frame.frame for frame in asked.frames)
    for side, body in (("request", request), ("response", response)):
        for at in range(len(body)):
            flipped = bytearray(body)
            flipped[at] ^= 1 << rng.randrange(8)
            for spoiled in (body[:at], bytes(flipped)):
                told.raw("request", spoiled if side == "request" else request)
                told.raw("response", spoiled if side == "response" else response)
    exchanges, _, matcher = of(told)
    assert matcher.counts["requests"] + matcher.counts["responses"] + matcher.counts["damage"] == len(told.frames)
    if key != ApiKey.METADATA:
        assert len(exchanges) > len(request) // 4
