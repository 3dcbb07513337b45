"""Frames into Arrow columns: from a binary column of frame bodies, apis and versions mixed, to a struct per message.

    decoder = ColumnDecoder(["JoinGroupRequest", "SyncGroupRequest"], columns=["group_id", "member_id"])
    batch = decoder.decode(frames)          # a row for a row

Laws:

* A row holds what `kcoord_wire.decode_request` (`decode_response`, `decode`, `decode_prefixed`) gives for it, field by
  field. Where that raises, the structs are null, and `error` and `error_offset` hold the error's kind and offset.
* A row of an api that was not requested is null, not an error.
* The choice of columns never changes which rows fail, nor why.
* Rows do not affect each other: decoding in pieces gives the same rows as decoding at once.
* Memory is bounded by a multiple of the input's bytes and rows. A batch whose columns outgrow Arrow's 32-bit offsets is
  refused with OverflowError.

The native decoder runs where `KCOORD_WIRE_BACKEND` lets it, see `codec.backend`; the pure one gives the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from kcoord_wire.codec.backend import load_native
from kcoord_wire.codec.columns.pure import Decoder as PythonDecoder
from kcoord_wire.codec.columns.shape import HEADS, Task, arrow, arrow_type, chosen, shape_of
from kcoord_wire.codec.registry import MessageCodec, Registry, registry

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ColumnDecoder", "Form", "decoder_class"]

Form = Literal["request", "response", "message", "prefixed"]


def decoder_class() -> Any:
    """The native decoder where it is built and `KCOORD_WIRE_BACKEND` allows it, else the pure one.

    :raises ImportError: as `load_native`
    """
    native = load_native("kcoord_wire._columns")
    return PythonDecoder if native is None else native.Decoder


class ColumnDecoder:
    """Decodes columns of frames that hold certain messages.

    :param messages: names in `registry`; each gets a nullable struct column of that name
    :param form: what a row holds. ``request``: a request header and the request. ``response``: a response header and
        the response; `decode` needs api keys and versions. ``message``: the message alone; `decode` needs
        versions. ``prefixed``: an int16 and the message: its version (subscriptions, assignments, record values) or,
        for record keys, its record type
    :param columns: dotted paths of the fields to decode, ``JoinGroupRequest.protocols.name``, or ``group_id`` for
        all messages that have one; a message with none of them gets no column, its rows are checked all the same
    :param strict: as in `kcoord_wire.decode`
    :param views: strings and bytes become string_view and binary_view on the bytes of the input, which they keep alive
    :param registry: where the messages are looked up; the package's own by default
    :ivar schema: of the batch that `decode` returns: first the columns of the header, filled wherever it can be read
        (request: api_key, api_version, correlation_id, client_id; response: correlation_id; prefixed: version, or the
        record type); then a struct for each message; then error and error_offset
    :raises KeyError: the registry has no such message
    :raises TypeError: a message has no columns (it is text, or holds a union), has too many, or not this form
    :raises ValueError: a path names no field, or the messages cannot be told apart
    """

    schema: pa.Schema

    def __init__(
        self,
        messages: Sequence[str],
        *,
        form: Form = "request",
        columns: Sequence[str] | None = None,
        strict: bool = True,
        views: bool = False,
        registry: Registry = registry,
    ) -> None:
        if isinstance(messages, str):
            raise TypeError(f"messages is a list of names, not the string {messages!r}")
        pa = arrow()
        self.form = form
        codecs = [registry[name] for name in dict.fromkeys(messages)]
        whole = [shape_of(codec) for codec in codecs]
        self._walk, self._by_key = _routes(codecs, form)
        self._several = len(codecs) > 1
        shapes = chosen(whole, columns)
        heads = [(name, arrow_type(shape, views)) for name, shape in HEADS[self._walk].items()]
        structs = [(shape.name, arrow_type(shape, views)) for shape in shapes]
        self.schema = pa.schema([*heads, *structs, ("error", pa.string()), ("error_offset", pa.int64())])
        task = Task(codecs, shapes, self._by_key, self._walk, self.schema, strict, registry, views)
        self._decoder = decoder_class()(task)

    def decode(
        self, frames: pa.Array, *, keys: pa.Array | int | None = None, versions: pa.Array | int | None = None
    ) -> pa.RecordBatch:
        """A row of columns for each of `frames`.

        :param frames: binary, large_binary or binary_view; null gives a row of nulls
        :param keys: of each row, or of all, the api key (``response``) or what identifies the message: api key or
            record type; one message alone may do without. Null, or the key of none of them: the row is not decoded
        :param versions: of each row, or of all, the version (``response``, ``message``). Null: the row is not decoded
        :raises TypeError: `frames` is not such an array; keys or versions are missing, not wanted here, or not integers
        :raises ValueError: keys or versions are not as many as frames
        :raises OverflowError: the columns outgrow 32-bit offsets; smaller batches do not
        """
        pa = arrow()
        if not isinstance(frames, pa.Array) or not (
            pa.types.is_binary(frames.type)
            or pa.types.is_large_binary(frames.type)
            or pa.types.is_binary_view(frames.type)
        ):
            what = frames.type if isinstance(frames, pa.Array) else type(frames).__name__
            raise TypeError(f"frames is an array of binary, large_binary or binary_view, not {what}")
        needs_keys = self._walk == "response" or (self._walk in ("message", "prefixed") and self._several)
        takes_keys = needs_keys or (self._walk in ("message", "prefixed") and bool(self._by_key))
        needs_versions = self.form in ("response", "message")
        return self._decoder.decode(
            frames,
            self._numbers("keys", keys, needs_keys, takes_keys, len(frames)),
            self._numbers("versions", versions, needs_versions, needs_versions, len(frames)),
        )

    def _numbers(self, name: str, given: pa.Array | int | None, needed: bool, taken: bool, n: int) -> pa.Array | None:
        pa = arrow()
        if (given is None and needed) or (given is not None and not taken):
            raise TypeError(f"decode of the form {self.form!r} {'needs' if needed else 'takes no'} {name} here")
        if given is None:
            return None
        if isinstance(given, int):
            return pa.repeat(pa.scalar(given, pa.int64()), n)
        if not isinstance(given, pa.Array) or not pa.types.is_integer(given.type):
            what = given.type if isinstance(given, pa.Array) else type(given).__name__
            raise TypeError(f"{name} is an array of integers or one int, not {what}")
        if len(given) != n:
            raise ValueError(f"there are {len(given)} {name} for {n} frames")
        return given.cast(pa.int64())


def _routes(codecs: Sequence[MessageCodec], form: str) -> tuple[str, Mapping[int, MessageCodec]]:
    """How a row is walked, and which message a key chooses; none where the one message has no key."""
    if form not in ("request", "response", "message", "prefixed"):
        raise ValueError(f"form is request, response, message or prefixed, not {form!r}")
    if not codecs:
        raise ValueError("no message is named")
    by_key: dict[int, MessageCodec] = {}
    framed = form in ("request", "response")
    for codec in codecs:
        if framed and (codec.type != form or codec.header != "kafka" or codec.family != "kafka"):
            raise TypeError(f"{codec.name} is not a {form} with Kafka's header")
        if codec.api_key is None:
            if len(codecs) > 1:
                raise ValueError(f"{codec.name} has no key that would distinguish it from the other messages")
            return form, {}
        if by_key.setdefault(codec.api_key, codec) is not codec:
            raise ValueError(f"{codec.name} and {by_key[codec.api_key].name} have the same key, {codec.api_key}")
    if form == "prefixed" and all(codec.type == "coordinator-key" for codec in codecs):
        return "typed", by_key
    return form, by_key
