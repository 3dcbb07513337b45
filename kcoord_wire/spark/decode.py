"""Decode frames in a binary column on Spark's workers: `decode_frames`, and the expression `from_kafka_wire`.

    joins = decode_frames(frames, apis=["JoinGroup"], columns=["group_id", "reason"], flat=True)

Laws:

* Each input row has one output row, except nulls and rows of other apis. Built-in SQL drops those by their first two
  bytes (responses by the key column) before any byte crosses to Python, and the source's rows of damage as well.
* A row has the values of `kcoord_wire.codec.columns`, for any batches and partitions.
* FAILFAST ends the job at the first bad row and names it. DROPMALFORMED leaves bad rows out. PERMISSIVE has nulls for
  them, the kind of the `DecodeError` in `_error`, its position in `_error_offset` and the frame in `_corrupt_record`;
  good frames stay in Python.
* Every other column crosses to Python and back: select only what is needed before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any, Final, cast, get_args

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

import kcoord_wire as kw
from kcoord_wire.codec.columns import ColumnDecoder, Form
from kcoord_wire.forensics.model import EPOCH_APIS
from kcoord_wire.protocol.wording import near_names
from kcoord_wire.spark.rows import as_arrow, as_spark, checked_mode, spark_type
from kcoord_wire.spark.versions import struct_expression

GROUP_APIS: Final = (
    "OffsetCommit",
    "OffsetFetch",
    "FindCoordinator",
    "JoinGroup",
    "Heartbeat",
    "LeaveGroup",
    "SyncGroup",
    *EPOCH_APIS,
)
"""The apis that `decode_frames` decodes by default: those that coordinate groups."""

OPTIONS: Final = ("columns", "form", "message", "mode", "strict", "version")
_HEADS: Final = ("api_key", "api_version", "correlation_id", "client_id", "version")
_FAULTS: Final = {"_error": pa.string(), "_error_offset": pa.int64(), "_corrupt_record": pa.binary()}
_SHOWN_BYTES: Final = 24


class BadFrameError(ValueError):
    """A row does not decode, and the mode is FAILFAST."""


@dataclass(frozen=True)
class DecodePlan:
    """What to decode, checked. A worker builds its decoder from it once and keeps it.

    :ivar messages: names of the messages, in the order of their structs
    :ivar form: what surrounds the message in a frame, as in `ColumnDecoder`
    :ivar columns: paths of the fields, and columns of the header; None: all
    :ivar strict: whether to reject what Kafka reads but never writes
    :ivar flat: whether each path is a column, instead of each message a struct
    :ivar mode: one of `rows.MODES`: what becomes of a bad row
    """

    messages: tuple[str, ...]
    form: Form
    columns: tuple[str, ...] | None
    strict: bool
    flat: bool
    mode: str

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the plan without its decoder."""
        return DecodePlan, (self.messages, self.form, self.columns, self.strict, self.flat, self.mode)

    @cached_property
    def decoder(self) -> ColumnDecoder:
        paths = None if self.columns is None else [name for name in self.columns if name not in _HEADS]
        return ColumnDecoder(self.messages, form=self.form, columns=paths, strict=self.strict)

    @cached_property
    def heads(self) -> list[str]:
        """The selected columns of the header."""
        names = [name for name in self.decoder.schema.names if name in _HEADS]
        return [name for name in names if self.columns is None or name in self.columns]

    @cached_property
    def structs(self) -> list[str]:
        return [name for name in self.decoder.schema.names if name in self.messages]

    @cached_property
    def paths(self) -> dict[str, list[tuple[str, list[int]]]]:
        """The sources of each flat column: message, and indices of the fields down to it."""
        found: dict[str, list[tuple[str, list[int]]]] = {}
        for path in self.columns or ():
            head, _, rest = path.partition(".")
            bare = rest if head in self.messages else path
            if bare in _HEADS and bare not in found and bare in self.heads:
                continue
            for message in self.structs:
                if head in (message, *bare.split(".")[:1]) and (place := self._place(message, bare)) is not None:
                    places = found.setdefault(bare.replace(".", "_"), [])
                    if (message, place) not in places:
                        places.append((message, place))
        return found

    def _place(self, message: str, path: str) -> list[int] | None:
        kind, place = self.decoder.schema.field(message).type, []
        for name in path.split("."):
            if not pa.types.is_struct(kind):
                raise ValueError(
                    f"{message}.{path} lies within an array, and flat=True has one value per row: leave flat out"
                )
            index = kind.get_field_index(name)
            if index < 0:
                return None
            place.append(index)
            kind = kind.field(index).type
        return place

    @cached_property
    def schema(self) -> StructType:
        """The Spark schema of the columns of `decoded`."""
        schema = self.decoder.schema
        fields = [schema.field(name) for name in self.heads]
        fields += self._flat_fields() if self.flat else [schema.field(name) for name in self.structs]
        if self.mode == "PERMISSIVE":
            fields += [pa.field(name, kind) for name, kind in _FAULTS.items()]
        return spark_type(pa.schema(fields))

    def schema_beside(self, given: StructType, column: str, what: str) -> StructType:
        """The other columns of a table, then those of `schema`.

        :param column: of frames, which is not in the result
        :param what: the table, for the error
        :raises ValueError: a decoded column has the name of one of the others
        """
        beside = [StructField(field.name, field.dataType) for field in given if field.name != column]
        if clash := {field.name for field in beside} & set(self.schema.names):
            names = ", ".join(sorted(clash))
            raise ValueError(f"{what} has columns with names of decoded ones: {names}; rename or drop them before")
        return StructType([*beside, *self.schema])

    @cached_property
    def api_keys(self) -> list[int]:
        """Those of the messages."""
        return [cast(int, kw.registry[name].api_key) for name in self.messages]

    @cached_property
    def first_bytes(self) -> list[bytes]:
        """What requests of these messages begin with."""
        return [key.to_bytes(2, "big", signed=True) for key in self.api_keys]

    def may_have(self, frames: pa.Array) -> pa.Array:
        """Mark requests that begin as one of the messages does, or are too short for an api key; no null is marked."""
        begins = pc.is_in(pc.binary_slice(frames, 0, 2), value_set=pa.array(self.first_bytes, pa.binary()))
        return pc.and_(frames.is_valid(), pc.or_(begins, pc.fill_null(pc.less(pc.binary_length(frames), 2), False)))

    @cached_property
    def arrow(self) -> pa.Schema:
        """The same schema for Arrow."""
        return as_arrow(self.schema)

    def _flat_fields(self) -> list[pa.Field]:
        fields = []
        for name, places in self.paths.items():
            kinds = {}
            for message, place in places:
                kind = self.decoder.schema.field(message).type
                for index in place:
                    kind = kind.field(index).type
                kinds[message] = kind
            if len(set(kinds.values())) > 1:
                what = ", ".join(f"{kind} in {message}" for message, kind in kinds.items())
                raise ValueError(f"the column {name!r} has several types: {what}; name fewer apis, or leave flat out")
            fields.append(pa.field(name, next(iter(kinds.values()))))
        return fields

    def beside(
        self, batch: pa.RecordBatch, column: str, names: Sequence[str], keys: Any = None, versions: Any = None
    ) -> pa.RecordBatch:
        """Return some columns of a batch, as they are, and those of `schema`, decoded from one of its columns.

        :param column: of frames; the others as for `decoded`
        :param names: of the other columns
        """
        columns, is_sound = self.decoded(batch[column], keys, versions)
        decoded = as_spark(pa.RecordBatch.from_arrays(columns, names=self.arrow.names), self.arrow)
        arrays = [*(batch[name] for name in names), *decoded.columns]
        whole = pa.RecordBatch.from_arrays(arrays, names=[*names, *self.arrow.names])
        return whole.filter(is_sound) if self.mode == "DROPMALFORMED" else whole

    def decoded(self, frames: pa.Array, keys: Any, versions: Any) -> tuple[list[pa.Array], pa.Array]:
        """Decode frames into the columns of `schema`.

        :param keys: their api keys: an array, one for all, or None where a frame contains it
        :param versions: likewise
        :return: the columns; and for each row whether it is sound
        :raises BadFrameError: a row is bad, and the mode is FAILFAST
        """
        batch = self.decoder.decode(frames, keys=keys, versions=versions)
        is_sound = batch["error"].is_null()
        if self.mode == "FAILFAST" and is_sound.false_count:
            row = pc.index(is_sound, pa.scalar(False)).as_py()
            raise BadFrameError(self._fault_text(frames[row].as_py(), batch, row))
        columns = [batch[name] for name in self.heads]
        columns += [self._coalesced(batch, places) for places in self.paths.values()] if self.flat else []
        columns += [] if self.flat else [batch[name] for name in self.structs]
        if self.mode == "PERMISSIVE":
            none = pa.nulls(len(batch), frames.type)
            corrupt = pc.if_else(is_sound, none, frames) if is_sound.false_count else none
            columns += [batch["error"], batch["error_offset"], corrupt]
        return columns, is_sound

    def _coalesced(self, batch: pa.RecordBatch, places: list[tuple[str, list[int]]]) -> pa.Array:
        values = [pc.struct_field(batch[message], place) for message, place in places]
        return values[0] if len(values) == 1 else pc.coalesce(*values)

    def _fault_text(self, frame: bytes, batch: pa.RecordBatch, row: int) -> str:
        shown = frame[:_SHOWN_BYTES].hex() + ("..." if len(frame) > _SHOWN_BYTES else "")
        kind, offset = batch["error"][row].as_py(), batch["error_offset"][row].as_py()
        what = self.messages[0] if len(self.messages) == 1 else f"one of {', '.join(self.messages)}"
        return (
            f"{kind} at byte {offset} of {len(frame)} ({self.form}, {what}): {shown}; "
            "mode PERMISSIVE has nulls for such rows and keeps them in _corrupt_record"
        )


@cache
def _kept(plan: DecodePlan) -> DecodePlan:
    """The equal plan that already has a decoder."""
    return plan


def decode_frames(
    df: DataFrame,
    column: str = "frame",
    apis: Sequence[str | int] | None = None,
    columns: Sequence[str] | None = None,
    mode: str = "PERMISSIVE",
    *,
    form: str = "request",
    keys: str | int | None = None,
    versions: str | int | None = None,
    flat: bool = False,
    strict: bool = True,
) -> DataFrame:
    """Decode the frames in a column, beside the other columns of `df`.

    Frames of other apis are dropped. If `df` has a column ``direction``, as the source ``kcoord`` has it, rows of the
    other direction are dropped too.

    :param column: the column of frames, without their four bytes of size
    :param apis: names (``JoinGroup``), message names (``JoinGroupRequest``) or api keys; None: those of `GROUP_APIS`
    :param columns: what to decode: ``api_key``, ``api_version``, ``correlation_id``, ``client_id`` of the header, and
        dotted paths of fields as in `ColumnDecoder`; other fields are not built. None: all
    :param mode: FAILFAST ends the job at a bad row; DROPMALFORMED leaves it out; PERMISSIVE has nulls for it, with the
        error in further columns
    :param form: ``request``, ``response``, or ``message`` and ``prefixed`` as in `ColumnDecoder`, which need message
        names in `apis`
    :param keys: the column of api keys, or one key for all rows: needed for responses
    :param versions: the column of versions, or one version for all rows: needed for responses and messages
    :param flat: a column for each path, from any message that has it, instead of a struct for each message
    :param strict: whether to reject what Kafka reads but never writes
    :return: the other columns of `df`, then the decoded ones
    :raises ValueError: an argument is wrong, or a decoded column has the name of a column of `df`
    """
    plan = decode_plan(apis, columns, mode, form=form, flat=flat, strict=strict)
    if column not in df.columns:
        raise ValueError(f"there is no column {column!r}, only {', '.join(df.columns)}")
    rows = _of_the_apis(df, column, plan, keys)
    schema = plan.schema_beside(df.schema, column, "df")
    return rows.mapInArrow(partial(_decode_batches, plan, column, keys, versions), schema)


def decode_plan(
    apis: Sequence[str | int] | None,
    columns: Sequence[str] | None,
    mode: str,
    *,
    form: str = "request",
    flat: bool = False,
    strict: bool = True,
) -> DecodePlan:
    """The plan of the arguments of `decode_frames`.

    :raises ValueError: an argument is wrong
    """
    named = GROUP_APIS if apis is None else apis
    messages = tuple(_message(api, form) for api in ([named] if isinstance(named, str | int) else named))
    if flat and not columns:
        raise ValueError("flat=True needs columns: it has a column for each path")
    if isinstance(columns, str):
        raise ValueError(f"columns must be a list of paths, not the string {columns!r}")
    return _checked(messages, form, columns, strict, flat, mode)


def _decode_batches(
    plan: DecodePlan, column: str, keys: str | int | None, versions: str | int | None, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    plan = _kept(plan)
    for batch in batches:
        names = [name for name in batch.schema.names if name != column]
        yield plan.beside(batch, column, names, _per_row(batch, keys), _per_row(batch, versions))


def _per_row(batch: pa.RecordBatch, source: str | int | None) -> Any:
    return batch[source] if isinstance(source, str) else source


def _of_the_apis(df: DataFrame, column: str, plan: DecodePlan, keys: str | int | None) -> DataFrame:
    """The rows that may hold one of the plan's messages."""
    if plan.form not in ("request", "response"):
        return df
    if "direction" in df.columns:
        df = df.where(F.col("direction") == plan.form)
    if plan.form == "request":
        firsts = map(F.lit, plan.first_bytes)
        short = F.octet_length(column) < 2  # a frame too short for an api key is bad for every api
        return df.where(short | F.substring(column, 1, 2).isin(*firsts))
    return df.where(F.col(keys).isin(plan.api_keys)) if isinstance(keys, str) else df


def from_kafka_wire(
    col: Column | str,
    options: Mapping[str, Any] | None = None,
    *,
    keys: Column | str | None = None,
    versions: Column | str | None = None,
) -> Column:
    """An expression that decodes a binary column, with the conventions of Spark's from_avro and from_protobuf.

    Its value is a struct: the columns of the header, a struct for each message, and in PERMISSIVE `_error`,
    `_error_offset` and `_corrupt_record`. Null stays null. For whole DataFrames `decode_frames` is faster.

    :param col: the column of frames or messages

    :param options:
        ``message``: name of the message, or several separated by commas (required);
        ``form``: ``request`` (the default), ``response``, ``message`` or ``prefixed``, as in `ColumnDecoder`;
        ``version``: one for all rows, for the forms response and message;
        ``columns``: dotted paths of the fields to decode, separated by commas; all if left out;
        ``mode``: ``FAILFAST`` (the default) or ``PERMISSIVE``;
        ``strict``: ``true`` (the default) or ``false``, as in `kcoord_wire.decode`
    :param keys: the column of api keys or record types, if several messages are named and the bytes do not say which
    :param versions: the column of versions, instead of the option ``version``
    :raises ValueError: an option is unknown, missing or wrong
    """
    plan, version = _checked_options({str(name).lower(): value for name, value in (options or {}).items()})
    if version is not None and versions is not None:
        raise ValueError("give either the option version or the argument versions, not both")
    if plan.form in ("response", "message") and version is None and versions is None:
        raise ValueError(f"the form {plan.form} needs the option version, or a column of versions")
    is_alone = plan.form == "response" and len(plan.messages) == 1
    key = kw.registry[plan.messages[0]].api_key if is_alone and keys is None else None
    function = _expression(plan, key, version, keys is not None, versions is not None)
    columns = [F.col(c) if isinstance(c, str) else c for c in (col, keys, versions) if c is not None]
    return struct_expression(function, plan.schema, columns)


def _checked_options(options: Mapping[str, Any]) -> tuple[DecodePlan, int | None]:
    """The plan of the options of `from_kafka_wire`, and the version for all rows."""
    for name in options:
        if name not in OPTIONS:
            raise ValueError(f"from_kafka_wire has no option {name!r}; its options are {', '.join(OPTIONS)}")
    if not options.get("message"):
        raise ValueError("from_kafka_wire needs the option message: a name, or several separated by commas")
    form = str(options.get("form", "request"))
    messages = tuple(_message(name, form) for name in listed(options["message"]))
    columns = listed(options["columns"]) if "columns" in options else None
    strict = _boolean(options.get("strict", "true"))
    plan = _checked(messages, form, columns, strict, False, options.get("mode", "FAILFAST"))
    if plan.mode == "DROPMALFORMED":
        raise ValueError("an expression cannot drop rows: mode PERMISSIVE, and where _error is null")
    return plan, _integer(options["version"]) if "version" in options else None


def _expression(
    plan: DecodePlan, key: int | None, version: int | None, has_keys: bool, has_versions: bool
) -> Callable[..., Any]:
    def from_kafka_wire(*columns: pa.Array) -> pa.Array:
        known = _kept(plan)
        rest = list(columns[1:])
        keys = rest.pop(0) if has_keys else key
        versions = rest.pop(0) if has_versions else version
        decoded, _ = known.decoded(columns[0], keys, versions)
        batch = pa.RecordBatch.from_arrays(decoded, names=known.arrow.names)
        fields = list(known.arrow)
        return pa.StructArray.from_arrays(
            as_spark(batch, known.arrow).columns, fields=fields, mask=pc.is_null(columns[0])
        )

    return from_kafka_wire


def _checked(
    messages: tuple[str, ...], form: str, columns: Sequence[str] | None, strict: bool, flat: bool, mode: Any
) -> DecodePlan:
    """The plan, with its decoder built once, so that wrong names are reported here and not by a worker."""
    paths = None if columns is None else tuple(columns)
    plan = DecodePlan(messages, cast(Form, form), paths, strict, flat, checked_mode(mode))
    if not plan.schema:
        raise ValueError(f"none of the columns {', '.join(paths or ())} is one of {', '.join(messages)}")
    return plan


def _message(api: str | int, form: str) -> str:
    """The name of the message with that api name, api key or message name."""
    if form not in get_args(Form):
        raise ValueError(f"form must be one of {', '.join(get_args(Form))}, not {form!r}")
    known = [codec for codec in kw.registry.values() if form not in ("request", "response") or _is_framed(codec, form)]
    names = {codec.name for codec in known}
    for codec in known:
        if api in (codec.api_key, f"{codec.api_key}") and _is_framed(codec, form):
            return codec.name
    for name in (f"{api}{form.title()}", api):
        if name in names:
            return str(name)
    short = {name.removesuffix(form.title()) for name in names}
    near = near_names(str(api), sorted(names | short))
    raise ValueError(f"there is no {form} {api!r}" + (f"; do you mean {near[0]!r}?" if near else ""))


def _is_framed(codec: kw.MessageCodec, form: str) -> bool:
    return codec.type == form and codec.family == "kafka"


def listed(value: Any) -> list[str]:
    """The items of a list, or of a string that separates them by commas."""
    items = value.split(",") if isinstance(value, str) else list(value)
    return [item.strip() for item in items]


def _boolean(value: Any) -> bool:
    if str(value).lower() not in ("true", "false"):
        raise ValueError(f"the option strict must be true or false, not {value!r}")
    return str(value).lower() == "true"


def _integer(value: Any) -> int:
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"the option version must be a number, not {value!r}") from None
