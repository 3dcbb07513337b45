"""A message as lines for people."""

from __future__ import annotations

import kcoord_wire as kw
from kcoord_wire.codec.fields import fields_of, number_runs, printable


def test_fields_of_shows_unknown_tags_and_nulls() -> None:
    message = kw.HeartbeatRequest(unknown_tags=((7, b"\x01\x02"),))
    shown = dict(fields_of(message, 4))
    assert shown["unknown_tags[7]"] == "0102 (2 bytes)"
    assert shown["group_instance_id"] == "null"
    assert "group_instance_id" not in dict(fields_of(message, 2))
    assert printable("a\tb") == "a\\tb"


def test_nested_blobs_are_decoded_or_shown_as_hex() -> None:
    blob = kw.encode_prefixed(kw.ConsumerProtocolSubscription(topics=["orders"]), 1)
    request = kw.JoinGroupRequest(protocol_type="consumer")
    for data in (blob, b"x"):
        request.protocols.append(kw.JoinGroupRequestProtocol(name="range", metadata=data))
    shown = dict(fields_of(request, 5))
    assert shown["protocols[0].metadata.version"] == "1"
    assert shown["protocols[0].metadata.topics"] == '["orders"]'
    assert shown["protocols[1].metadata"] == "78 (1 bytes)"


def test_numbers_in_runs() -> None:
    assert number_runs([0, 1, 2, 3, 7, 9, 10]) == "0-3, 7, 9-10"
    assert number_runs([]) == ""
