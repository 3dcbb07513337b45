"""Which rows the source ``kcoord`` is asked for: its option ``where``.

    condition = parse_condition("direction = 'request' AND time_ns >= 1714564800000000000")
    condition.has_file({"source": "captures/a.pcap"})   # before the file is opened
    condition.rows(batch)                               # before rows cross to the JVM

Laws:

* The text is SQL: comparisons of a column with constants, joined by AND. The rows are those of Spark's own ``where``
  with the same text; one whose column is null does not pass a comparison.
* What is the same for all rows of a file (`source`, `partition`, `_metadata`) is asked once, and a file that does not
  pass is not read.

Why the source does not take its filters from Spark (`DataSourceReader.pushFilters`, 4.1 to 4.3): Spark keeps what it
has pushed last with the DataFrame, not with the query. A second query of the same DataFrame, or a second scan of it in
the same query, has the rows of the other's filters. tests/spark/test_conditions.py shows it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

_CONSTANT: Final = r"(?:'(?:[^']|'')*'|-?\d{1,19}|true|false)"
_TERM: Final = re.compile(
    rf"""\s*(?P<column>[a-z_][\w.]*)\s*
    (?: (?P<operator><=|>=|=|<|>)\s*(?P<constant>{_CONSTANT})
      | \bin\s*\(\s*(?P<constants>{_CONSTANT}(?:\s*,\s*{_CONSTANT})*)\s*\)
      | \bis\s+(?P<null>(?:not\s+)?null)\b )
    \s*(?P<more>\band\b|$)""",
    re.IGNORECASE | re.VERBOSE,
)
_COMPARED: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "=": pc.equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


@dataclass(frozen=True)
class Term:
    """One comparison.

    :ivar operator: a key of `_COMPARED`, of which one of the constants has to hold; ``null`` or ``not null``
    """

    column: str
    operator: str
    constants: tuple[str | int | bool, ...] = ()

    def holds(self, values: pa.Array) -> pa.Array:
        """Whether it holds for each value of its column: true, false or null.

        :raises ValueError: the constants are of another type
        """
        if not self.constants:
            return values.is_null() if self.operator == "null" else values.is_valid()
        try:
            return reduce(pc.or_kleene, [_COMPARED[self.operator](values, each) for each in self.constants])
        except (pa.ArrowException, OverflowError):
            shown = ", ".join(map(repr, self.constants))
            raise ValueError(f"where: the column {self.column} is of type {values.type}, unlike {shown}") from None


@dataclass(frozen=True)
class Condition:
    """Terms, all of which a row has to pass."""

    terms: tuple[Term, ...] = ()

    def check(self, schema: pa.Schema) -> None:
        """Refuse what a table of this schema cannot be asked.

        :raises ValueError: it has no such column, or one of another type than the constants
        """
        for term in self.terms:
            if schema.get_field_index(term.column) < 0:
                known = ", ".join(schema.names)
                raise ValueError(f"where: there is no column {term.column!r}; the columns are {known}")
            term.holds(pa.array([], schema.field(term.column).type))

    def has_file(self, known: Mapping[str, Any]) -> bool:
        """Whether a file may have rows that pass, by what is known of all of them."""
        asked = (term.holds(pa.array([known[term.column]])) for term in self.terms if term.column in known)
        return all(found[0].as_py() for found in asked)

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that pass; columns that the batch does not have are those of its file."""
        for term in self.terms:
            if term.column in batch.schema.names:
                batch = batch.filter(term.holds(batch.column(term.column)))
        return batch


def parse_condition(text: str) -> Condition:
    """Parse the text of a condition; an empty one is met by every row.

    :raises ValueError: it is none, with the place from which on it is not understood
    """
    terms: list[Term] = []
    at, goes_on = 0, bool(text.strip())
    while goes_on:
        found = _TERM.match(text, at)
        if found is None:
            raise ValueError(
                f"where is comparisons of a column with constants, joined by AND, such as \"direction = 'request'\"; "
                f"not understood: {text[at:].strip()!r}"
            )
        terms.append(_term(found))
        at, goes_on = found.end(), bool(found["more"])
    return Condition(tuple(terms))


def _term(found: re.Match[str]) -> Term:
    column = found["column"].lower()  # as in Spark, whose names are the same in any case
    if found["null"]:
        return Term(column, " ".join(found["null"].lower().split()))
    constants = re.findall(_CONSTANT, found["constant"] or found["constants"], re.IGNORECASE)
    return Term(column, found["operator"] or "=", tuple(map(_value, constants)))


def _value(constant: str) -> str | int | bool:
    if constant.startswith("'"):
        return constant[1:-1].replace("''", "'")
    return constant.lower() == "true" if constant[0] in "tTfF" else int(constant)
