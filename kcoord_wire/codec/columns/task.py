"""What a column decoder is made for, checked: the one argument of the native decoder and of the pure one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kcoord_wire.codec.columns.shape import Shape
from kcoord_wire.codec.registry import MessageCodec, Registry
from kcoord_wire.codec.registry import registry as built_in
from kcoord_wire.schema.plan import Op

if TYPE_CHECKING:
    import pyarrow as pa

HEADS: Final[Mapping[str, Mapping[str, Shape]]] = {
    "request": {
        "api_key": Shape("request_api_key", Op.INT16),
        "api_version": Shape("request_api_version", Op.INT16),
        "correlation_id": Shape("correlation_id", Op.INT32),
        "client_id": Shape("client_id", Op.STRING),
    },
    "response": {"correlation_id": Shape("correlation_id", Op.INT32)},
    "message": {},
    "prefixed": {"version": Shape("version", Op.INT16)},
    "typed": {"version": Shape("version", Op.INT16)},
}
"""By walk, the columns before the messages: what each holds, under the attribute's name in its header."""


@dataclass(frozen=True, slots=True)
class Task:
    """Which messages, how a row is walked, and what becomes of it.

    :ivar codecs: the messages
    :ivar shapes: the column of each message that has one
    :ivar by_key: which message a key chooses; empty where the one message has no key
    :ivar walk: ``request``, ``response``, ``message``, ``prefixed``, or ``typed`` (prefixed by the record type)
    :ivar schema: of the batches
    :ivar strict: as in `kcoord_wire.decode`
    :ivar registry: where the messages come from
    :ivar views: strings and bytes point into the input
    """

    codecs: Sequence[MessageCodec]
    shapes: Sequence[Shape]
    by_key: Mapping[int, MessageCodec]
    walk: str
    schema: pa.Schema
    strict: bool
    registry: Registry
    views: bool

    @property
    def header(self) -> MessageCodec | None:
        """The codec of the header before each message; None where the rows have none of Kafka's."""
        name = {"request": "RequestHeader", "response": "ResponseHeader"}.get(self.walk)
        return None if name is None else built_in[name]

    @property
    def head(self) -> Shape:
        """The columns before the messages, as the fields of one struct."""
        return Shape("head", Op.STRUCT, tuple(HEADS[self.walk].values()))

    def has_tags_before(self, codec: MessageCodec, version: int) -> bool:
        """Whether the header of that message and version ends with a tag section."""
        header = self.header
        return header is not None and codec.header_version(version) in header.flexible_versions
