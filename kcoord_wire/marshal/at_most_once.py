"""At most once: a batch is committed before it is delivered. The nine steps of the document, for one tenure. Pure.

Laws, with `Rules.DOCUMENT`:

* A batch is delivered only after a heartbeat with its end was read back from the log as the holder's. So the next
  holder of the partition starts at or above that end, and no record is delivered twice: also where appends fail, land
  late or land twice, and whichever member stops at whichever step. Two things have to hold: a tenure starts at the
  log's position as it was read after the entry that won it, and retention keeps the last position (else the group's
  committed offset stands in for it, which is best effort).
* An append that did not land, or is not known to have, is repeated while the claim is held: nothing of the batch was
  delivered, and to commit the same end twice changes nothing.
* A claim that is lost before the batch was read back as committed drops the batch. If the heartbeat has landed, its
  records are never processed; if not, the next holder fetches them.

With `Rules.LIBRARY` no member can promise this. A heartbeat of any member, however late, overwrites holder and
position: one of a former holder takes the position back behind delivered records, or makes two members pass the check
of step 6. And two readers with different clocks may disagree on who holds the claim. The Go library itself decodes
ClaimingMessages and does nothing.

Source: Marshal PROTOCOL.md, "At Most Once (AMO)".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Final, Protocol

from kcoord_wire.kernel.procedures import Procedure, Sleep
from kcoord_wire.marshal.events import Append, Fetched, ReadToEnd, Tenure
from kcoord_wire.marshal.log import Appended, AppendFailed
from kcoord_wire.marshal.state import Claim
from kcoord_wire.messages.marshal import ClaimingMessages

RETRY_MS: Final = 250
"""How long the procedure waits before it repeats an append."""


class Held(Protocol):
    """A partition as its holder sees it.

    :ivar tenure: which
    :ivar coordination_partition: where its entries are
    """

    tenure: Tenure
    coordination_partition: int

    def claim(self) -> Claim | None:
        """Return the claim as the log was read so far; None once the tenure is over: the log has another holder or
        another token, or no heartbeat has landed for one interval."""

    def message(self, kind: type, **tail: Any) -> Any:
        """Return a message of this member about the partition."""

    def heartbeat(self, offset: int) -> Generator[Any, Any, Appended | AppendFailed]:
        """Append a heartbeat that commits an offset."""

    def deliver(self, end: int) -> None:
        """Let the application process the batch up to `end`."""

    def give_up(self, reason: str) -> None:
        """End the tenure: the batches of this fetch can never be delivered."""


class AtMostOnce:
    """The batches of one tenure, one after the other.

    :param position: of the log after the entry that won the tenure: no record from there on was delivered
    :param start: runs a procedure of the machine
    """

    def __init__(self, held: Held, position: int, start: Callable[[Procedure], Any]) -> None:
        self._held = held
        self._position = position
        self._start = start
        self._batches: deque[Fetched] = deque()

    def fetched(self, batch: Fetched) -> None:
        """Step 2, 3: a batch was fetched, and waits until those before it are done."""
        self._batches.append(batch)
        if len(self._batches) == 1:
            self._start(self._commit_all())

    def _commit_all(self) -> Procedure:
        while self._batches and (yield from self._commit(self._batches[0])):
            self._batches.popleft()

    def _commit(self, batch: Fetched) -> Generator[Any, Any, bool]:
        """Commit a batch and let it be delivered; return False if the tenure is over."""
        held = self._held
        if batch.first < self._position:
            held.give_up(f"the batch starts at offset {batch.first}, and {self._position} is committed")
            return False
        while held.claim() is not None:  # step 1
            if (yield from self._propose(batch.end)):  # steps 4 to 7
                yield from held.heartbeat(batch.end)  # step 8
                yield ReadToEnd(held.coordination_partition)
                if (claim := held.claim()) is None:
                    return False
                if claim.current_offset >= batch.end:
                    self._position = batch.end
                    held.deliver(batch.end)  # step 9
                    return True
            yield Sleep(RETRY_MS)
        return False

    def _propose(self, end: int) -> Generator[Any, Any, bool]:
        """Steps 4 to 7: return whether the claim is held, and the claim of the messages is in the log."""
        held = self._held
        yield Append(held.coordination_partition, held.message(ClaimingMessages, proposed_current_offset=end))  # 4
        yield ReadToEnd(held.coordination_partition)  # step 5
        claim = held.claim()  # step 6
        return claim is not None and claim.proposed_offset == end  # step 7
