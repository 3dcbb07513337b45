"""Row types as Spark schemas and batches, and back."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, StructType

from kcoord_wire.forensics.model import Exchange, Frame, GroupHistory, LogRow, table_of
from kcoord_wire.spark.rows import as_arrow, as_spark, instances, spark_schema, wire_schema
from tests.support.histories import bare, incident, kip_848, typical


def test_rows_return_from_spark_batches_unchanged() -> None:
    histories = [typical(), incident(), kip_848(), bare()]
    batches = table_of(GroupHistory, histories).combine_chunks().to_batches()
    table = pa.Table.from_batches([as_spark(batch, wire_schema(GroupHistory)) for batch in batches])
    assert instances(GroupHistory, table) == histories


@pytest.mark.parametrize("row", [Exchange, Frame, GroupHistory, LogRow])
def test_every_field_is_nullable(row: type) -> None:
    def check(kind: object) -> None:
        if isinstance(kind, ArrayType):
            assert kind.containsNull
            check(kind.elementType)
        elif isinstance(kind, StructType):
            assert all(field.nullable for field in kind)
            for field in kind:
                check(field.dataType)

    check(spark_schema(row))
    assert as_arrow(spark_schema(row)) == wire_schema(row)
