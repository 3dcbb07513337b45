"""The fast path of the pairing of requests and responses gives what the rule gives, frame by frame.

Names of topics: what a connection has received counts from there on.
"""

from __future__ import annotations

import random
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import kcoord_wire as kw
from kcoord_wire.codec.pending import PendingRequests
from kcoord_wire.forensics.exchanges import pairing as memory
from kcoord_wire.forensics.exchanges.matcher import name_topics
from kcoord_wire.forensics.exchanges.pairing import CLOSED, DAMAGE, OPENED, REQUEST, RESPONSE, pair
from kcoord_wire.forensics.model import Exchange, Frame, Sighting, arrow_schema, table_of
from tests.support.conversations import heartbeat, of
from tests.support.wire_samples import Talk, cut_anywhere, match_all, mixed

CONNECTIONS = 3
FRAMES = st.lists(
    st.tuples(
        st.integers(0, CONNECTIONS - 1),
        st.sampled_from([REQUEST] * 5 + [RESPONSE] * 5 + [OPENED, CLOSED, DAMAGE]),
        st.integers(0, 2),
    )
)
Pairs = set[tuple[int, int]]


def by_rule(frames: list[tuple[int, int, int]]) -> tuple[Pairs, set[int], set[int]]:
    """Pairs of request and response, or of request and -1; pending requests; responses to no request."""
    pending: list[PendingRequests[int]] = [PendingRequests() for _ in range(CONNECTIONS)]
    pairs, stray = set(), set()
    for row, (connection, kind, correlation_id) in enumerate(frames):
        if kind == REQUEST:
            pending[connection].add(correlation_id, row)
        elif kind == RESPONSE:
            answered = pending[connection].answer(correlation_id)
            if answered is None:
                stray.add(row)
            else:
                pairs |= {(answered[0], row), *((request, -1) for request in answered[1])}
        elif kind in (OPENED, CLOSED):
            pairs |= {(request, -1) for request in pending[connection].clear()}
    return pairs, {row for each in pending for row in each.clear()}, stray


@given(FRAMES)
@example([(0, REQUEST, 0), (0, REQUEST, 1), (0, RESPONSE, 0), (0, RESPONSE, 1)])
@example([(0, REQUEST, 0), (0, RESPONSE, 0), (0, CLOSED, 0), (1, REQUEST, 0), (1, CLOSED, 0)])
def test_the_fast_path_follows_the_rule(frames: list[tuple[int, int, int]]) -> None:
    codes, kinds, correlation = (np.array([frame[at] for frame in frames], np.int64) for at in range(3))
    found = pair(
        codes,
        kinds.astype(np.int8),
        correlation.astype(np.int32),
        np.ones(len(frames), np.int64),
        CONNECTIONS,
        np.zeros(CONNECTIONS, np.bool_),
        lambda _row, _answers: False,
    )
    pairs, waiting, stray = by_rule(frames)
    assert set(zip(found.requests.tolist(), found.responses.tolist(), strict=True)) == pairs
    assert len(found.requests) == len(pairs)
    assert found.pending.tolist() == sorted(waiting)
    assert set(found.stray.tolist()) == stray
    assert found.tokens.tolist() == []


TOPIC = UUID(int=77)


@pytest.mark.parametrize("seed", range(3))
def test_topic_ids_get_the_name_seen_before_on_the_connection(seed: int) -> None:
    def commit(talk: Talk, id_: int) -> None:
        partition = kw.OffsetCommitRequestPartition(partition_index=1, committed_offset=9)
        topic = kw.OffsetCommitRequestTopic(topic_id=TOPIC, partitions=[partition])
        reply = kw.OffsetCommitResponseTopic(
            topic_id=TOPIC, partitions=[kw.OffsetCommitResponsePartition(partition_index=1)]
        )
        talk.ask(kw.OffsetCommitRequest(group_id="g", topics=[topic]), 10, id_)
        talk.answer(kw.OffsetCommitResponse(topics=[reply]), 10, id_)

    reply, deaf = Talk(1), Talk(2)
    commit(reply, 1)
    reply.ask(kw.MetadataRequest(), 12, 2)
    topic = kw.MetadataResponseTopic(
        name="orders", topic_id=TOPIC, partitions=[kw.MetadataResponsePartition(partition_index=0)]
    )
    reply.answer(kw.MetadataResponse(topics=[topic]), 12, 2)
    commit(reply, 3)
    owned = kw.ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=TOPIC, partitions=[0])
    reply.ask(kw.ConsumerGroupHeartbeatRequest(group_id="g", topic_partitions=[owned]), 0, 4)
    commit(deaf, 1)
    rng = random.Random(seed)
    exchanges, topics, _ = match_all(cut_anywhere(mixed([reply, deaf], rng), rng))
    unnamed = f"id:{TOPIC.hex}"
    names = {(row["connection"], row["seq"]): row["offsets"][0]["topic"] for row in exchanges if row["offsets"]}
    assert sorted(names.values()) == [unnamed, unnamed, "orders"]
    assert [row["owned"] for row in exchanges if row["owned"]] == [[{"topic": "orders", "partitions": [0]}]]
    topics.append({**topics[0], "kind": "fetched", "topic": unnamed, "topic_id": TOPIC.hex})  # on a deaf connection
    named = name_topics(
        pa.Table.from_pylist(exchanges, arrow_schema(Exchange)),
        pa.Table.from_pylist(topics, arrow_schema(Sighting)),
    )
    assert {offset["topic"] for row in named.to_pylist() for offset in row["offsets"] or []} == {"orders"}
    assert named.schema == arrow_schema(Exchange)


def metadata(talk: Talk, id_: int, **topics: int) -> None:
    talk.ask(kw.MetadataRequest(), 1, id_)
    reply = [
        kw.MetadataResponseTopic(
            name=name,
            error_code=0 if count else 3,
            partitions=[kw.MetadataResponsePartition(partition_index=index) for index in range(count)],
        )
        for name, count in topics.items()
    ]
    talk.answer(kw.MetadataResponse(topics=reply), 1, id_)


def test_a_topic_is_a_row_when_first_seen_and_when_changed() -> None:
    talk, other = Talk(1), Talk(2)
    metadata(talk, 1, a=3, b=1)
    metadata(talk, 2, a=3)
    metadata(talk, 3, a=6, b=1)
    metadata(talk, 4, a=6, b=0)
    metadata(other, 1, a=6)
    _, topics, _ = of(talk, other)
    seen = [(row["connection"][-1], row["topic"], row["partitions"]) for row in topics]
    assert sorted(seen) == [("1", "a", 3), ("1", "a", 6), ("1", "b", 0), ("1", "b", 1), ("2", "a", 6)]


def test_losses_beyond_the_limit_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MAX_LOSSES", 2)
    losses = memory.Losses()
    for position in (1, 2, 3, 3, 4):
        losses.add("a.pcap", position, "why", 10)
    losses.add("a.pcap", 1, "why", 5)
    assert [(row.position, row.count, row.bytes) for row in losses.rows()] == [(1, 2, 15), (2, 1, 10), (3, 3, 30)]


def test_names_beyond_the_limit_are_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MAX_NAMES", 1)
    frames = [Frame("a.pcap", seq, seq, seq, "c", "request", b"") for seq in range(3)]
    (rows,) = table_of(Frame, frames).to_batches()
    nothing, connection = np.zeros(3, np.int64), memory.ConnectionMemory("10.0.0.1")
    known = memory.BatchMemory(rows, nothing, [connection], nothing, memory.Losses())
    known.joins_as(0, "g", "consumer")
    known.joins_as(1, "h", "connect")
    assert [known.protocol_type(row, "g") for row in (0, 1, 2)] == [None, "consumer", "consumer"]
    assert known.protocol_type(2, "h") is None


def states(talk: Talk, name: str, version: str, api_version: int = 3) -> None:
    request = kw.ApiVersionsRequest(client_software_name=name, client_software_version=version)
    talk.ask(request if api_version >= 3 else kw.ApiVersionsRequest(), api_version, 1)
    talk.answer(kw.ApiVersionsResponse(), api_version, 1)


@pytest.mark.parametrize("seed", range(3))
def test_software_counts_from_its_apiversions_on(seed: int) -> None:
    early, first, silent, hostile = Talk(1), Talk(2), Talk(3), Talk(4)
    heartbeat(early, 9)
    states(early, "librdkafka", "2.6.0")
    states(first, "apache-kafka-java", "3.9.0", 4)
    states(silent, "", "", 2)
    states(hostile, "<script>", "1.0")
    for talk in (early, first, silent, hostile):
        heartbeat(talk, 2)
    states(first, "another", "1")
    heartbeat(first, 3)
    rng = random.Random(seed)
    exchanges, _, _ = match_all(cut_anywhere(mixed([early, first, silent, hostile], rng), rng))
    found = [[row["software"] for row in exchanges if row["connection"] == talk.name] for talk in (early, first)]
    assert found == [[None, "librdkafka 2.6.0"], ["apache-kafka-java 3.9.0"] * 2]
    assert {row["software"] for row in exchanges if row["connection"] in (silent.name, hostile.name)} == {None}
