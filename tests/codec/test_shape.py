"""Column shapes of schemas that use one struct in many places: bounded work, a bounded number of columns."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from kcoord_wire.codec.columns.shape import MAX_COLUMNS, Shape, chosen, shape_of
from kcoord_wire.codec.registry import Registry, compile_schemas
from tests.support.backends import BACKENDS
from tests.support.column_rows import decoder
from tests.support.doubling import LEVELS, doubling_schema

PATH = ".".join([*["f0"] * LEVELS, "leaf"])


@pytest.fixture
def doubling(tmp_path: Path) -> Registry:
    (tmp_path / "Doubling.json").write_text(doubling_schema())
    return compile_schemas(tmp_path)


def distinct(shape: Shape, seen: set[int]) -> int:
    """How many shapes were made."""
    if id(shape) in seen:
        return 0
    seen.add(id(shape))
    return 1 + sum(distinct(child, seen) for child in shape.children)


def test_fields_of_one_struct_share_their_columns(doubling: Registry) -> None:
    assert distinct(shape_of(doubling["Doubling"]), set()) < 8 * LEVELS


def test_too_many_columns_are_refused(doubling: Registry) -> None:
    shape = shape_of(doubling["Doubling"])
    with pytest.raises(TypeError, match=f"more than {MAX_COLUMNS}"):
        chosen([shape], None)
    with pytest.raises(TypeError, match=f"more than {MAX_COLUMNS}"):
        chosen([shape], ["f1.f0"])


def test_chosen_columns_share_nothing(doubling: Registry) -> None:
    [shape] = chosen([shape_of(doubling["Doubling"])], [PATH.replace("f0.f0", f"f{i}.f0", 1) for i in range(2)])
    seen: set[int] = set()
    total = distinct(shape, seen)
    assert total == len(seen) == 1 + 2 * (2 * LEVELS + 1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_column_of_billions_is_decoded(backend: str, doubling: Registry) -> None:
    message = doubling["Doubling"].cls()
    frames = pa.array([doubling["Doubling"].encode(message, 0)], pa.binary())
    made = decoder(backend, ["Doubling"], form="message", registry=doubling, columns=[PATH])
    assert made.decode(frames, versions=0)["Doubling"].to_pylist() == [{"f0": []}]
