"""The matcher: whatever the cut of the batches and the mixture of connections; its bounds."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kcoord_wire as kw
from kcoord_wire.forensics.exchanges import matcher as matcher_module
from kcoord_wire.forensics.exchanges import pairing
from kcoord_wire.forensics.exchanges.decode import APIS
from kcoord_wire.forensics.exchanges.matcher import Matcher
from kcoord_wire.forensics.model import Frame, client_host, table_of
from kcoord_wire.forensics.sources.frames import read_frames
from kcoord_wire.protocol.api_keys import ApiKey
from tests.support.conversations import CAPTURES, NAMES, SUBSCRIPTION, heartbeat, of
from tests.support.strategies import filled
from tests.support.wire_samples import Talk, batch, canonical, cut_anywhere, match_all, mixed

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
        asked, reply = filled(kw.registry.request(key), version), filled(kw.registry.response(key), version)
        if key == 11:
            asked.protocol_type = "connect" if number % 5 == 0 else "consumer"
            asked.protocols = [kw.JoinGroupRequestProtocol(name="range", metadata=rng.choice([SUBSCRIPTION, b"x"]))]
        if key == 14:
            asked.protocol_type, reply.error_code = ("consumer" if version >= 5 else None), rng.choice([0, 27])
            reply.assignment = rng.choice([ASSIGNMENT, b"", b"\0"])
        if key == ApiKey.METADATA:
            reply.topics = [topic_of(version, rng)]
        said.append((asked, reply, version))
    waiting: deque[tuple[Any, int, int]] = deque()
    for correlation_id, (asked, reply, version) in enumerate(said):
        talk.ask(asked, version, rng.choice([correlation_id, 3]))
        waiting.append((reply, version, correlation_id))
        while waiting and rng.random() < 0.6:
            reply, version, id_ = waiting.popleft()
            if rng.random() < 0.9:
                talk.answer(reply, version, rng.choice([id_, id_, id_, 3, 99]))
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
def test_rows_do_not_depend_on_batches_or_mixture(seed: int) -> None:
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


def test_a_skipped_request_is_an_exchange_without_response() -> None:
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


def test_a_closed_connection_gives_up_its_requests() -> None:
    talk = Talk(1)
    heartbeat(talk, 1, answered=False)
    talk.close()
    matcher = Matcher()
    exchanges, topics = matcher.feed(batch(mixed([talk], random.Random(0))))
    assert exchanges.column("answered_ns").to_pylist() == [None]
    [seen] = topics.to_pylist()
    assert (seen["time_ns"], seen["connection"], seen["client_id"]) == (1000, talk.name, "client")
    assert (seen["kind"], seen["topic"]) == ("closed", None)
    assert len(matcher.finish()[0]) == 0


def test_pending_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_pending_bytes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairing, "MAX_PENDING_BYTES", 500)
    talk = Talk(1)
    for number in range(5):
        heartbeat(talk, number, answered=False, member="m" * 200)
    matcher = Matcher()
    assert len(matcher.feed(batch(mixed([talk], random.Random(0))))[0]) == 3


def test_pending_bytes_of_all_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher_module, "MAX_HELD", 600)
    talks = [Talk(number) for number in range(1, 6)]
    for talk in talks:
        heartbeat(talk, talk.number, answered=False, member="m" * 200)
    matcher = Matcher()
    frames = [talk.frames[0] for talk in talks]
    given_up = matcher.feed(batch(frames))[0]
    assert given_up.column("generation_id").to_pylist() == [1, 2, 3]
    assert matcher.finish()[0].column("generation_id").to_pylist() == [4, 5]


def test_large_batches_are_cut_into_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    talks = [chatter(number, random.Random(number)) for number in range(1, 6)]
    frames = batch(mixed(talks, random.Random(0)))
    whole = match_all([frames])
    monkeypatch.setattr(matcher_module, "_MAX_BATCH_BYTES", 500)
    pieces = match_all([frames])
    assert [canonical(rows) for rows in pieces[:2]] == [canonical(rows) for rows in whole[:2]]


def test_nulls_and_missing_columns_are_accepted() -> None:
    talk = Talk(1)
    heartbeat(talk, 1)
    frames = batch(mixed([talk], random.Random(0)))
    assert len(Matcher().feed(frames.drop_columns(["error", "lost"]))[0]) == 1
    nulls = [pa.nulls(3, item.type) for item in frames.schema]
    rows = pa.RecordBatch.from_arrays(nulls, names=frames.schema.names)
    assert len(Matcher().feed(rows)[0]) == 0


def test_requests_of_other_apis_are_kept_as_eight_bytes() -> None:
    talk = Talk(1)
    talk.raw("request", b"\0\0\0\x09\0\0\0\x01" + bytes(100_000))
    matcher = Matcher()
    matcher.feed(batch(mixed([talk], random.Random(0))))
    assert matcher._pending.column("frame").to_pylist() == [b"\0\0\0\x09\0\0\0\x01"]


def test_views_and_large_types_are_accepted() -> None:
    talk = Talk(1)
    heartbeat(talk, 1)
    frames = batch(mixed([talk], random.Random(0)))
    large = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    schema = pa.schema([pa.field(item.name, large.get(item.type, item.type)) for item in frames.schema])
    assert len(Matcher().feed(frames.cast(schema))[0]) == 1
    assert len(Matcher().feed(frames.slice(1))[0]) == 0


def test_no_frames_give_no_rows() -> None:
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
def test_any_bytes_are_accepted(said: list[tuple[str, bytes]]) -> None:
    talk = Talk(1)
    for direction, body in said:
        talk.raw(direction, body)
    match_all([batch(mixed([talk], random.Random(0)))])
