"""What a consumer has done, as a plain mapping.

Laws:

* Every name is there from the beginning, and a count never goes back.
* Of what takes time there are ``NAME_total`` (how often), ``NAME_ms_total`` and ``NAME_ms_max``; times are the event
  loop's.
"""

from __future__ import annotations

from typing import Final

_COUNTS: Final = (
    "records_consumed_total",
    "bytes_fetched_total",
    "failed_requests_total",
    "failed_commits_total",
    "lost_partitions_total",
)
_TIMES: Final = ("poll", "request", "fetch", "commit", "rebalance")


class Metrics:
    """The numbers of one consumer, or of connections made without one."""

    def __init__(self) -> None:
        self._values: dict[str, float] = dict.fromkeys(_COUNTS, 0)
        for name in _TIMES:
            self._values |= {f"{name}_total": 0, f"{name}_ms_total": 0.0, f"{name}_ms_max": 0.0}

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a count."""
        self._values[name] += amount

    def took(self, name: str, seconds: float) -> None:
        """Add something that took time."""
        values = self._values
        values[f"{name}_total"] += 1
        values[f"{name}_ms_total"] += seconds * 1000
        values[f"{name}_ms_max"] = max(values[f"{name}_ms_max"], seconds * 1000)

    def values(self) -> dict[str, float]:
        """Return all numbers by name."""
        return dict(self._values)
