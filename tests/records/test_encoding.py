"""Offsets of records about to be written, and the widths of their fields."""

from __future__ import annotations

import pytest

from kcoord_wire.errors import EncodeError
from kcoord_wire.records import Record
from kcoord_wire.records.limits import check_width, encoding_below, with_offsets


@pytest.mark.parametrize(
    ("given", "base", "assigned", "begins"),
    [
        ([], None, [], 0),
        ([], 7, [], 7),
        ([-1, -1], None, [0, 1], 0),
        ([-1, -1], 7, [7, 8], 7),
        ([5, -1, 9, -1], None, [5, 6, 9, 10], 5),
        ([5], 3, [5], 3),
    ],
)
def test_offsets_are_kept_or_assigned(given: list[int], base: int | None, assigned: list[int], begins: int) -> None:
    placed, base_offset = with_offsets([Record(offset=offset) for offset in given], base)
    assert ([record.offset for record in placed], base_offset) == (assigned, begins)


@pytest.mark.parametrize(("given", "base", "path"), [([5, 5], None, "records[1]"), ([2], 3, "records[0]")])
def test_offsets_must_ascend_from_the_base(given: list[int], base: int | None, path: str) -> None:
    with pytest.raises(EncodeError) as caught:
        with_offsets([Record(offset=offset) for offset in given], base)
    assert (caught.value.kind, caught.value.path) == ("range", f"{path}.offset")


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_widths_are_those_of_signed_fields(bits: int) -> None:
    check_width("field", -(2 ** (bits - 1)), bits)
    check_width("field", 2 ** (bits - 1) - 1, bits)
    for value in (-(2 ** (bits - 1)) - 1, 2 ** (bits - 1)):
        with pytest.raises(EncodeError, match=rf"^field: {value} does not fit {bits} bits \[range\]$"):
            check_width("field", value, bits)


def test_a_value_of_another_type_is_refused() -> None:
    with pytest.raises(EncodeError, match=r"^field: must be int, not str \[type\]$") as caught:
        check_width("field", "1", 8)  # type: ignore[arg-type]
    assert str(encoding_below("batch", caught.value)) == "batch.field: must be int, not str [type]"
