"""How an input's first two bytes choose what the rest is read as, so that one corpus serves all messages."""

from __future__ import annotations

from kcoord_wire.codec.registry import MessageCodec, registry

SELECTOR = 2
SHAPES: list[tuple[MessageCodec, int]] = [
    (codec, version) for _, codec in sorted(registry.items()) for version in codec.valid_versions
]
_INDEX = {(codec.name, version): index for index, (codec, version) in enumerate(SHAPES)}


def choose(data: bytes) -> tuple[MessageCodec, int, bytes]:
    """The message and version that the first two bytes name, and the bytes after them."""
    codec, version = SHAPES[int.from_bytes(data[:SELECTOR], "big") % len(SHAPES)]
    return codec, version, data[SELECTOR:]


def selector(name: str, version: int) -> bytes:
    """The two bytes that `choose` takes for that message and version."""
    return _INDEX[name, version].to_bytes(SELECTOR, "big")
