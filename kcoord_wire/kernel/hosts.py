"""What the hosts of state machines share: their clock, and their log.

Laws:

* `monotonic_ms` never goes back, and goes on while the machine is suspended: a lease ends meanwhile.
* A line of the log is the phrase of a `LogEvent`, then its facts as ``name=value``, printable whatever a peer has sent.
"""

from __future__ import annotations

import logging
import time
from typing import Final

from kcoord_wire.codec.fields import printable
from kcoord_wire.kernel.machines import LogEvent

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # the former is Linux only


def monotonic_ms() -> int:
    """Return the milliseconds of the clock that every machine of a host gets."""
    return time.clock_gettime_ns(_CLOCK) // 1_000_000


def log_note(log: logging.Logger, note: LogEvent) -> None:
    """Write what a machine has noted to the log.

    The record has the phrase and the facts as attributes `what` and `facts`, for other forms.
    """
    facts = "".join(f" {name}={printable(str(value))}" for name, value in note.facts.items())
    log.log(note.level, "%s%s", note.what, facts, extra={"what": note.what, "facts": dict(note.facts)})
