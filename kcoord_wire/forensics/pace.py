"""How far the sources of an analysis are read, and where reading was stopped.

Law: what a stop leaves unread is a loss, of each source it concerns, so that no result looks complete that is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kcoord_wire.forensics.model import Loss
from kcoord_wire.forensics.sources.files import Source

Progress = Callable[[str, int, int], None]
"""Called with the source, how many bytes of all sources are done, and how many there are."""

Stop = Callable[[], bool]
"""Asked while sources are read: whether to stop, and to analyse what was read."""


class Pace:
    """Passes on how far reading is; the sources are read in their order.

    :ivar total: bytes of all sources
    :ivar losses: a row for each source of which a stop left something unread
    """

    def __init__(self, sources: Sequence[Source], progress: Progress | None, stop: Stop | None) -> None:
        self._sizes = {source.path: source.path.stat().st_size for source in sources}
        self.total = sum(self._sizes.values())
        self.losses: list[Loss] = []
        self._progress = progress
        self._stop = stop
        self._before = self._size = 0
        self._name = self._path = ""

    def begin(self, source: Source) -> bool:
        """Note that a source is read next; return whether to read it."""
        self._before += self._size
        self._name, self._path, self._size = source.path.name, str(source.path), self._sizes[source.path]
        return self.goes_on(0, 1)

    def goes_on(self, done: int, size: int) -> bool:
        """Take in how many bytes of the content of the source are read; return whether to go on."""
        if self._stop is not None and self._stop():
            left = self._size - self._size * done // max(1, size)
            share = f"{left / max(1, self._size):.0%} of this source"
            self.losses.append(
                Loss(self._path, done, f"reading was stopped here on request: {share} was not read", left)
            )
            return False
        if self._progress is not None:
            self._progress(self._name, self._before + self._size * done // max(1, size), self.total)
        return True

    def finish(self) -> None:
        """Note that reading has ended."""
        if self._progress is not None:
            self._progress("", self.total, self.total)
