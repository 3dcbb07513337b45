"""What differs between the versions of Spark that the pipeline runs on, 3.5 to 4.3: each difference once.

Laws:

* What a version lacks is found by what pyspark has, not by its number, which vendors choose as they like.
* What a version cannot do ends with `SparkVersionError`, which names the version needed, when it is asked for.

To use what is new in a version: a branch here if an older one has another way to the same rows, else the error.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Final

import pyarrow as pa
import pyspark
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.pandas import functions
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from kcoord_wire.extras import MissingLibraryError

_arrow_udf: Final[Any] = getattr(functions, "arrow_udf", None)
"""None before 4.1."""

_NEW_JAVA: Final = 24  # it has no `Subject.getSubject`, which the Hadoop of Spark 4.0 and older calls at its start

_UTC: Final[dict[str, Any]] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
"""Before 4.2 Arrow's timestamps are UTC without being asked."""


class SparkVersionError(MissingLibraryError):
    """The installed Spark is too old for what is asked for."""

    def __init__(self, purpose: str, oldest: str) -> None:
        ImportError.__init__(
            self, f"{purpose} needs Spark {oldest} or newer, and this is Spark {pyspark.__version__}", name="pyspark"
        )


def check_java(version: int) -> None:
    """Check that this Spark starts on a Java of this major version.

    :raises SparkVersionError: it does not
    """
    if version >= _NEW_JAVA and _arrow_udf is None:
        raise SparkVersionError(f"Java {version}", "4.1")


def check_connect() -> None:
    """Check that the pipeline works with the Spark Connect of this version: what it needs came with the data source.

    :raises SparkVersionError: it does not
    """
    if find_spec("pyspark.sql.datasource") is None:
        raise SparkVersionError("Spark Connect", "4.0")


def spark_schema_of(schema: pa.Schema) -> StructType:
    """The Spark schema of an Arrow schema; a timestamp without a zone stays without one."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """The Arrow schema in which Spark exchanges rows of `schema`; timestamps are UTC."""
    return to_arrow_schema(schema, **_UTC)


def struct_expression(function: Callable[..., pa.StructArray], schema: StructType, columns: list[Column]) -> Column:
    """The expression of a function from Arrow arrays to an array of structs, null where the first array is.

    :param columns: binary the first, integers the others
    """
    if _arrow_udf is None:
        return _pandas_expression(function, schema, columns)

    def on_arrow(*arrays: pa.Array) -> pa.Array:
        return function(*arrays)

    on_arrow.__annotations__ = {"arrays": pa.Array, "return": pa.Array}
    made: Column = _arrow_udf(on_arrow, schema)(*columns)
    return made


def _pandas_expression(function: Callable[..., pa.StructArray], schema: StructType, columns: list[Column]) -> Column:
    """The same through pandas. Integers beside nulls are objects, because floats would round them."""
    import pandas as pd

    def on_pandas(first: pd.Series, *rest: pd.Series) -> pd.DataFrame:
        arrays = [pa.array(first, pa.binary(), from_pandas=True)]
        arrays += [pa.array(each, from_pandas=True).cast(pa.int64()) for each in rest]
        structs = function(*arrays)
        names = [structs.type.field(index).name for index in range(structs.type.num_fields)]
        return pa.table(structs.flatten(), names=names).to_pandas(integer_object_nulls=True)

    on_pandas.__annotations__ = {"first": pd.Series, "rest": pd.Series, "return": pd.DataFrame}
    udf: Any = functions.pandas_udf  # its overloads know no function with further arguments
    decoded = udf(on_pandas, schema)(*columns)
    return F.when(columns[0].isNotNull(), decoded)
