"""Moments of a capture, and the units in which this package counts time.

Law: moments sort by time, then by source and frame number, so that frames of one source that share a time stamp keep
their order and the result does not depend on the order of the input.
"""

from __future__ import annotations

from typing import Final, NamedTuple

NS_PER_S: Final = 1_000_000_000

NEVER_NS: Final = 1 << 62
"""Later than every time stamp of a source (it is the year 2116), and still an int64."""

UNKNOWN_SEQ: Final = 1 << 62
"""In place of a frame number that is not known. It sorts behind the known frames of the same time."""

_AFTER_ALL_SOURCES: Final = "\U0010ffff"


class Moment(NamedTuple):
    """A point in the order of a capture.

    :ivar time_ns: ns since 1970
    :ivar source: the capture that has the frame
    :ivar seq: number of the frame there, or `UNKNOWN_SEQ`
    """

    time_ns: int
    source: str
    seq: int


BEGIN: Final = Moment(0, "", 0)
END: Final = Moment(NEVER_NS, "", 0)


def end_of(time_ns: int) -> Moment:
    """Return the moment behind all frames that carry this time stamp: a timer that ends then loses against them."""
    return Moment(time_ns, _AFTER_ALL_SOURCES, UNKNOWN_SEQ)
