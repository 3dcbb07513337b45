"""The bytes between members, and the frames of the proposal's JoinGroup, worked out by hand from the drawings."""

from __future__ import annotations

import zlib
from typing import Any

import pytest

from kcoord_wire.codec.registry import registry
from kcoord_wire.messages import proposal as m
from kcoord_wire.worlds.proposal import proposal_world as embedded
from kcoord_wire.worlds.proposal.proposal_world import MemberCodec

SUBSCRIPTION = m.SingleAssignorSubscription(topics=["foo"])
PLAIN = bytes.fromhex("00000001 0003 666f6f ffff")

BY_HAND = [
    (
        m.AllMembersJoinGroupRequest(
            group_id="g",
            session_timeout=6_000,
            protocol_type="consumer",
            group_protocols=[
                m.AllMembersJoinGroupRequestGroupProtocol(
                    protocol="round-robin", protocol_version=1, protocol_metadata=b"\xaa"
                ),
                m.AllMembersJoinGroupRequestGroupProtocol(protocol="round-robin", protocol_metadata=b"\xbb"),
            ],
        ),
        "0001 67 00001770 0000 0008 636f6e73756d6572 00000002"
        "000b 726f756e642d726f62696e 0001 00000001 aa"
        "000b 726f756e642d726f62696e 0000 00000001 bb",
    ),
    (
        m.AllMembersJoinGroupResponse(
            group_generation_id=3,
            group_protocol="range",
            group_protocol_version=2,
            member_id="a",
            members=[m.AllMembersJoinGroupResponseMember(member_id="a", protocol_metadata=b"\xaa\xbb")],
        ),
        "0000 00000003 0005 72616e6765 0002 0001 61 00000001 0001 61 00000002 aabb",
    ),
    (
        m.SingleAssignorJoinGroupRequest(
            group_id="g",
            protocol_type="c",
            phase=m.SingleAssignorJoinGroupRequestSynchronized(
                member_states=[m.SingleAssignorJoinGroupRequestSyncedMember(member_id="a", synced_member_state=b"\x01")]
            ),
        ),
        "0001 67 0001 63 01 0000 00000001 0001 61 00000001 01",
    ),
    (
        m.SingleAssignorJoinGroupResponse(
            group_generation_id=3,
            member_id="a",
            phase=m.SingleAssignorJoinGroupResponseJoined(synced_member_state=b"\x01", group_members=["a", "b"]),
        ),
        "0000 00000003 0001 61 01 00000001 01 00000002 0001 61 0001 62",
    ),
]


@pytest.mark.parametrize(("message", "hexadecimal"), BY_HAND, ids=lambda each: type(each).__name__)
def test_messages_worked_out_by_hand(message: Any, hexadecimal: str) -> None:
    codec = registry.by_class(type(message))
    assert codec.encode(message, 0) == bytes.fromhex(hexadecimal)
    assert codec.decode(bytes.fromhex(hexadecimal), 0) == message


@pytest.mark.parametrize("compresses", [False, True])
def test_what_is_encoded_is_read_again(compresses: bool) -> None:
    codec = MemberCodec(compresses=compresses)
    data = codec.encode(SUBSCRIPTION)
    assert (zlib.decompress(data) if compresses else data) == PLAIN
    assert codec.decode(m.SingleAssignorSubscription, data) == SUBSCRIPTION


@pytest.mark.parametrize("compresses", [False, True])
@pytest.mark.parametrize("data", [b"", b"\x00", PLAIN + b"\x00", zlib.compress(PLAIN)[:-1], zlib.compress(PLAIN[:-1])])
def test_other_bytes_are_an_error(compresses: bool, data: bytes) -> None:
    with pytest.raises(ValueError, match=r"bytes|decompress|cut off"):
        MemberCodec(compresses=compresses).decode(m.SingleAssignorSubscription, data)


def test_what_decompresses_to_too_much_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_LONGEST", 1_000)
    bomb = zlib.compress(bytes(1_001))
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        MemberCodec(compresses=True).decode(m.SingleAssignorSubscription, bomb)
