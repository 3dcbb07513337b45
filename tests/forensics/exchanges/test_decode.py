"""Messages and blobs that do not decode."""

from __future__ import annotations

import random

import pytest

import kcoord_wire as kw
from kcoord_wire.forensics.exchanges.decode import APIS
from kcoord_wire.protocol.api_keys import API_NAMES, ApiKey
from tests.support.conversations import SUBSCRIPTION, heartbeat, of
from tests.support.strategies import filled
from tests.support.wire_samples import Talk


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


def test_frames_that_do_not_decode_are_losses() -> None:
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


def test_an_unknown_version_is_a_loss() -> None:
    talk = Talk(1)
    talk.raw("request", b"\0\x0c\0\x63\0\0\0\x01\xff\xff")
    talk.raw("response", b"\0\0\0\x01\0\0")
    exchanges, _, matcher = of(talk)
    assert exchanges == []
    assert [loss.what for loss in matcher.losses] == ["Heartbeat request does not decode: version"]


@pytest.mark.parametrize("key", APIS, ids=lambda key: API_NAMES[key])
def test_cut_and_flipped_frames_are_accepted(key: int) -> None:
    rng = random.Random(key)
    version = kw.registry.request(key).valid_versions[-1]
    asked, talk = Talk(1), Talk(2)
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
                talk.raw("request", spoiled if side == "request" else request)
                talk.raw("response", spoiled if side == "response" else response)
    exchanges, _, matcher = of(talk)
    assert matcher.counts["requests"] + matcher.counts["responses"] + matcher.counts["damage"] == len(talk.frames)
    if key != ApiKey.METADATA:
        assert len(exchanges) > len(request) // 4
