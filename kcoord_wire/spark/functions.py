"""Table functions for SQL: frames decoded into columns, and the rebalances of captures, recordings and logs.

    SELECT group_id, count(*) FROM kcoord_decode(TABLE(captured), 'JoinGroup,Heartbeat', 'group_id') GROUP BY group_id
    SELECT group_id, cause, detail FROM kcoord_rebalances('captures/')

Laws:

* `kcoord_decode` has the rows and columns of `decode_frames`, with flat=True where columns are named.
* `kcoord_rebalances` is the plain analysis in one task, for what one machine can read; else `explain_rebalances`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from kcoord_wire.forensics.analysis import analyze
from kcoord_wire.forensics.model import Rebalance, table_of
from kcoord_wire.spark.decode import DecodePlan, decode_plan, listed
from kcoord_wire.spark.rows import as_arrow, spark_schema
from kcoord_wire.spark.versions import SparkVersionError

try:
    from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult
except ImportError:
    raise SparkVersionError("a table function", "4.0") from None

_FRAME: Final = "frame"
_BATCH_ROWS: Final = 4096
_ARGUMENTS: Final = ("apis", "columns", "mode")


@dataclass(kw_only=True)
class _Analyzed(AnalyzeResult):
    """What is known before the first row.

    :ivar given: the columns of the table
    """

    plan: DecodePlan
    given: StructType


class DecodeFunction:
    """``kcoord_decode(TABLE(frames), apis, columns, mode)``, of which all but the first may be left out or null.

    The table has a column ``frame``; apis and columns are separated by commas; the modes are those of `decode_frames`.
    """

    def __init__(self, analyzed: _Analyzed) -> None:
        self._plan, self._schema = analyzed.plan, as_arrow(analyzed.given)
        self._held: list[Row] = []

    @staticmethod
    def analyze(frames: AnalyzeArgument, *more: AnalyzeArgument, **named: AnalyzeArgument) -> _Analyzed:
        """Check the arguments; Spark shows a ValueError as an AnalysisException."""
        if not frames.isTable or not isinstance(frames.dataType, StructType):
            raise ValueError("the first argument of kcoord_decode is a table: kcoord_decode(TABLE(captured), ...)")
        given = frames.dataType
        if _FRAME not in given.names:
            raise ValueError(f"the table has no column {_FRAME!r}, only {', '.join(given.names)}")
        values = _values({**dict(zip(_ARGUMENTS, more, strict=False)), **named})
        apis, columns = (listed(values[name]) if values.get(name) else None for name in ("apis", "columns"))
        plan = decode_plan(apis, columns, values.get("mode") or "PERMISSIVE", flat=columns is not None)
        return _Analyzed(plan.schema_beside(given, _FRAME, "the table"), plan=plan, given=given)

    def eval(self, row: Row, *_: Any, **__: Any) -> Iterator[tuple[Any, ...]]:
        """Take a row; rows are decoded by the thousand."""
        self._held.append(row)
        if len(self._held) >= _BATCH_ROWS:
            yield from self._decoded()

    def terminate(self) -> Iterator[tuple[Any, ...]]:
        """Decode what is left."""
        if self._held:
            yield from self._decoded()

    def _decoded(self) -> Iterator[tuple[Any, ...]]:
        columns = zip(*self._held, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self._held = []
        selected = self._plan.may_have(batch[_FRAME])
        if "direction" in self._schema.names:
            selected = pc.and_(selected, pc.equal(batch["direction"], "request"))
        names = [name for name in self._schema.names if name != _FRAME]
        decoded = self._plan.beside(batch.filter(selected), _FRAME, names)
        yield from zip(*(column.to_pylist() for column in decoded.columns), strict=True)


def _values(arguments: Mapping[str, AnalyzeArgument]) -> dict[str, Any]:
    for name, argument in arguments.items():
        if name not in _ARGUMENTS:
            raise ValueError(f"kcoord_decode has no argument {name!r}; they are {', '.join(_ARGUMENTS)}")
        if not argument.isConstantExpression:
            raise ValueError(f"the argument {name} of kcoord_decode must be a constant")
    return {name: argument.value for name, argument in arguments.items()}


class RebalancesFunction:
    """``kcoord_rebalances(path)``: rows of `Rebalance` for a file, a folder or a pattern."""

    def eval(self, path: str) -> Iterator[tuple[Any, ...]]:
        """Analyse what is there."""
        found = [each for history in analyze([path]).histories for each in history.rebalances]
        yield from (tuple(row.values()) for row in table_of(Rebalance, found).to_pylist())


def register_functions(spark: SparkSession) -> None:
    """Register the table functions with a session."""
    udtf: Any = F.udtf  # typed as if it could be a decorator here
    spark.udtf.register("kcoord_decode", udtf(DecodeFunction))
    spark.udtf.register("kcoord_rebalances", udtf(RebalancesFunction, returnType=spark_schema(Rebalance)))
