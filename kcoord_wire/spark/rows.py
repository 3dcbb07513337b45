"""The row types of the pipeline as Spark schemas and batches, and back.

Laws:

* Spark's schema follows from the row type's Arrow schema. Every field is nullable, because Spark's Python sources
  require that.
* Converting a batch changes its types, never its values.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any, Final, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from kcoord_wire.forensics.exchanges.sightings import LINK_EVENTS
from kcoord_wire.forensics.model import arrow_schema
from kcoord_wire.spark.versions import arrow_schema_of, spark_schema_of

MODES: Final = ("DROPMALFORMED", "FAILFAST", "PERMISSIVE")
"""What becomes of a bad row: it is left out, it ends the job, it is a row with nulls and its error."""

T = TypeVar("T")
_Make = Callable[[Any], Any]


def checked_mode(given: object) -> str:
    """Return one of `MODES`, given in any case.

    :raises ValueError: it is none of them
    """
    mode = str(given).upper()
    if mode not in MODES:
        raise ValueError(f"mode must be {', '.join(MODES[:-1])} or {MODES[-1]}, not {given!r}")
    return mode


def sound_rows(batch: pa.RecordBatch) -> pa.BooleanArray:
    """Which rows of a source are not damaged; the error of an event of a connection says why it was refused, say."""
    sound = batch.column("error").is_null()
    if "direction" in batch.schema.names:
        sound = pc.or_(sound, pc.is_in(batch.column("direction"), value_set=pa.array(LINK_EVENTS)))
    return sound


@cache
def spark_schema(row: type) -> StructType:
    """The Spark schema of a row type of `kcoord_wire.forensics.model`."""
    return spark_type(arrow_schema(row))


def spark_type(schema: pa.Schema) -> StructType:
    """The Spark schema of an Arrow schema."""
    return spark_schema_of(pa.schema([_nullable(field) for field in schema]))


@cache
def wire_schema(row: type) -> pa.Schema:
    """The Arrow schema in which Spark exchanges rows of a row type."""
    return as_arrow(spark_schema(row))


def as_arrow(schema: StructType) -> pa.Schema:
    """The Arrow schema in which Spark exchanges rows of `schema`."""
    return arrow_schema_of(schema)


def as_spark(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """The columns of `wanted`, cast to its types."""
    columns = (batch[field.name] for field in wanted)
    cast = [c if c.type == field.type else c.cast(field.type) for c, field in zip(columns, wanted, strict=True)]
    return pa.RecordBatch.from_arrays(cast, schema=wanted)


def instances(row: type[T], rows: pa.Table | pa.RecordBatch) -> list[T]:
    """The rows of a table as dataclass instances, the reverse of `kcoord_wire.forensics.model.table_of`."""
    columns = []
    for name, make in _makers(cast(Hashable, row)):
        values = rows.column(name).to_pylist()
        columns.append(values if make is None else list(map(make, values)))
    return list(map(row, *columns))


def _nullable(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _plain(field.type), nullable=True)


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _plain(kind.value_type), nullable=True))
    if pa.types.is_struct(kind):
        return pa.struct([_nullable(field) for field in kind])
    return kind


@cache
def _makers(row: Any) -> list[tuple[str, _Make | None]]:
    """The fields of a dataclass, in order, each with what makes its value; None: a value is taken as it is."""
    hints = typing.get_type_hints(row)
    return [(field.name, _maker(hints[field.name])) for field in dataclasses.fields(row)]


def _maker(hint: Any) -> _Make | None:
    """A function from a plain value to one of the hinted type."""
    if typing.get_origin(hint) is types.UnionType:
        (hint,) = (item for item in typing.get_args(hint) if item is not type(None))
    if typing.get_origin(hint) is list:
        make = _maker(typing.get_args(hint)[0])
        return None if make is None else lambda value: None if value is None else list(map(make, value))
    if dataclasses.is_dataclass(hint):
        return lambda value: None if value is None else _instance(cast(type, hint), value)
    return None


def _instance(row: type[T], item: dict[str, Any]) -> T:
    return row(*(item[name] if make is None else make(item[name]) for name, make in _makers(cast(Hashable, row))))
