"""Whether a log is a coordination topic of Marshal, by its values: the only place that decides it.

A value of Marshal begins with the name of a message, its version and a time, as text, and has no key.
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_START: Final = (
    r"(?:Heartbeat|ClaimingPartition|ReleasingPartition|ClaimingMessages|ReleaseGroup|Presence|HandingOver"
    r"|ClaimingRange|RangeHeartbeat|ReleasingRange)/[+-]?[0-9]{1,19}/[+-]?[0-9]{1,19}/"
)
MARSHAL_PATTERN: Final = f"^{_START}"
"""A regular expression, for Arrow and for Java, that finds a value of Marshal as text."""

_ANYWHERE: Final = re.compile(_START.encode())


def coordination_sources(records: pa.Table) -> pa.Array:
    """Return the names of the sources that have a value of Marshal; all their records count as such.

    :param records: `LogRow`
    """
    without_key = records.filter(pc.is_null(records["key"]))
    is_text = pc.match_substring_regex(without_key["value"], MARSHAL_PATTERN)
    return pc.unique(without_key.filter(pc.fill_null(is_text, False))["source"])


def holds_marshal_text(start: bytes) -> bool:
    """Return whether a message of Marshal begins anywhere in the first bytes of a segment.

    Its members write uncompressed records.
    """
    return _ANYWHERE.search(start) is not None
