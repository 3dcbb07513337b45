"""Columns from Python values: nulls at every level, uuids as bytes. The parity tests compare whole decoders."""

from __future__ import annotations

from types import SimpleNamespace
from uuid import UUID

import pytest

from kcoord_wire.codec.columns.pure import column
from kcoord_wire.codec.columns.shape import Shape, arrow_type
from kcoord_wire.schema.plan import Op

NUMBER = Shape("n", Op.INT32)
STRUCT = Shape("s", Op.STRUCT, (NUMBER, Shape("numbers", Op.ARRAY, (NUMBER,))))


@pytest.mark.parametrize(
    ("shape", "values", "listed"),
    [
        (NUMBER, [1, None, -1], [1, None, -1]),
        (Shape("u", Op.UUID), [UUID(int=1), None], [bytes(15) + b"\1", None]),
        (Shape("a", Op.ARRAY, (NUMBER,)), [[1, 2], None, [], [3]], [[1, 2], None, [], [3]]),
        (
            STRUCT,
            [SimpleNamespace(n=1, numbers=[2]), None, SimpleNamespace(n=None, numbers=None)],
            [{"n": 1, "numbers": [2]}, None, {"n": None, "numbers": None}],
        ),
        (Shape("e", Op.STRUCT), [SimpleNamespace(), None], [{}, None]),
    ],
    ids=["number", "uuid", "array", "struct", "empty struct"],
)
def test_values_become_columns(shape: Shape, values: list[object], listed: list[object]) -> None:
    made = column(shape, values, arrow_type(shape, views=False))
    made.validate(full=True)
    assert made.to_pylist() == listed
