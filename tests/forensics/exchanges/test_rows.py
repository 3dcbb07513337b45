"""Rows of exchanges: what the messages say, whatever their version."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict, deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kcoord_wire as kw
from kcoord_wire.capture import CapturedFrame, read_capture
from kcoord_wire.forensics.sources.frames import read_frames
from kcoord_wire.protocol.api_keys import API_NAMES
from tests.support.conversations import CAPTURES, GROUP_APIS, NAMES, VERSIONS, of
from tests.support.strategies import filled, messages
from tests.support.wire_samples import Talk, batch, canonical, match_all, mixed, pair_rows


def expected_of_capture(path: Path) -> list[dict[str, Any]]:
    """What `read_capture` says of a capture: the account by objects."""
    frames = list(read_capture(path))
    names = ["seq", "position", "direction", "frame"]
    rows = [row for found in read_frames(path) for row in found.select(names).to_pylist()]
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
    software = software_of(frames)
    at = {row["seq"]: row["position"] for row in said} | {None: None}
    return [
        row | {"software": software[asked.connection], "position": at[seq], "answer_position": at[answer_seq]}
        for asked, seq, answer, answer_seq in pairs
        for row in pair_rows(asked, answer, seq, answer_seq, str(path))
    ]


def software_of(frames: list[CapturedFrame]) -> dict[str, str | None]:
    """What each connection states in ApiVersions, which clients send first."""
    stated: dict[str, str | None] = {frame.connection: None for frame in frames}
    for frame in frames:
        if isinstance(frame.message, kw.ApiVersionsRequest) and frame.message.client_software_name:
            stated[frame.connection] = f"{frame.message.client_software_name} {frame.message.client_software_version}"
    return stated


@pytest.mark.parametrize("name", NAMES)
def test_exchanges_of_captures_match_their_messages(name: str) -> None:
    path = CAPTURES / f"{name}.pcap"
    exchanges, topics, matcher = match_all(read_frames(path))
    assert canonical(exchanges) == canonical(expected_of_capture(path))
    assert matcher.losses == []
    assert len(exchanges) > 40
    seen = {row["topic"]: row["partitions"] for row in topics if row["kind"] == "topic"}
    assert seen == {"orders": 4, "payments": 4}
    assert {row["kind"] for row in topics} == {"topic", "cluster", "opened", "closed", "fetched"}
    assert matcher.counts["closed"] == sum(row["kind"] == "closed" for row in topics) == matcher.counts["opened"]
    assert matcher.counts["stray"] == 0


@pytest.mark.parametrize("name", NAMES)
def test_captures_have_the_counts_of_a_dissector(name: str) -> None:
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


def test_error_codes_are_matched_in_any_order() -> None:
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
