"""How far the clocks of the log's senders are off, by what they write into their messages.

Laws:

* A sender is measured against the broker's append times; where the topic has none, against the reader's clock, by what
  lands while it reads.
* One late landing does not make a clock slow: of a sender's last two messages the one that landed sooner counts.
* Times in messages are whole seconds, rounded down, so a right clock measures between 0 and -1,000 ms less the time to
  land; what is reported is beyond that.

Sources: the Go library reads a claim that was stamped ahead of the reader's clock as none, and judges by the reader's
clock whether one is live.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_ROUNDING_MS: Final = 1_000


@dataclass(slots=True)
class SenderClock:
    """The clock of one instance.

    :ivar ahead_ms: of the log's clock; negative for behind
    :ivar is_reported: it was beyond the limit once
    """

    client_id: str
    instance_id: str
    ahead_ms: int
    is_reported: bool = False
    last_ms: int = 0

    @property
    def off_ms(self) -> int:
        """What rounding cannot explain of `ahead_ms`; 0 for a right clock."""
        return max(self.ahead_ms, 0) + min(self.ahead_ms + _ROUNDING_MS, 0)


class Clocks:
    """The clocks of all senders that were measured.

    :param limit_ms: from this difference on a clock is reported
    :ivar senders: by instance id
    """

    def __init__(self, limit_ms: int) -> None:
        self._limit_ms = limit_ms
        self.senders: dict[str, SenderClock] = {}

    def surely_ahead_ms(self, instance_id: str) -> int:
        """Return how far a sender's clock is ahead at least; 0 if it is not, or was not measured: what looks slow may
        have landed late."""
        sender = self.senders.get(instance_id)
        return 0 if sender is None else max(0, sender.ahead_ms)

    def measure(self, client_id: str, instance_id: str, time_s: int, landed_ms: int) -> SenderClock | None:
        """Take in a message; return its sender if it is to be reported now, which happens once.

        :param time_s: in the message
        :param landed_ms: by the clock to compare with
        """
        measured = time_s * 1_000 - landed_ms
        sender = self.senders.get(instance_id)
        is_second = sender is not None
        if sender is None:
            sender = self.senders[instance_id] = SenderClock(client_id, instance_id, measured, last_ms=measured)
        sender.ahead_ms, sender.last_ms = max(sender.last_ms, measured), measured
        is_slow = is_second and sender.ahead_ms + _ROUNDING_MS <= -self._limit_ms
        if sender.is_reported or not (is_slow or sender.ahead_ms >= self._limit_ms):
            return None
        sender.is_reported = True
        return sender
