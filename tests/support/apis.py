"""Which messages the tests draw from that read thousands of inputs each.

All plans are made of the same steps. So of the APIs that no part of this package speaks (topics, ACLs, quotas,
transactions, the quorum of controllers ...) these tests draw the newest version alone, or none;
tests/codec/test_kafka_vectors.py reads every version of them.
"""

from __future__ import annotations

from typing import Any

from kcoord_wire.codec.registry import MessageCodec

UNSPOKEN = frozenset({*range(19, 22), 24, 26, 27, *range(29, 36), *range(37, 42), *range(43, 47), *range(48, 68)})
UNSPOKEN |= {*range(70, 76), *range(80, 83), 94}


def spoken(codec: MessageCodec[Any]) -> bool:
    """Whether a part of this package reads or writes the message."""
    framed = codec.family == "kafka" and codec.type in ("request", "response")
    return not framed or codec.api_key not in UNSPOKEN


def drawn_versions(codec: MessageCodec[Any]) -> range:
    """The versions to draw."""
    return codec.valid_versions if spoken(codec) else codec.valid_versions[-1:]
