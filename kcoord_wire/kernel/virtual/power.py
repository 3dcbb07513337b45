"""Every loss of power, and every kill, that can hit what is done on a disk: at each operation, with all it may leave.

    for loss in losses(play, Image(), stride=7):
        disk = VirtualDisk(Random(0))
        loss.image.write_to(disk)
        ...                                     # start again on it, and compare with loss.ledger

`VirtualDisk` decides by draws what a crash leaves: how far a file reaches, which of its sectors were never written,
which changes of names happened. `Choices` gives each draw every outcome in its turn, so what a random run meets with
some seed is gone through here: each order in which a disk may carry writes, renames and removals out between two
syncs, and each write whole, absent, or torn.

Laws:

* `losses` yields each content of the disk, with what was promised at that time, once.
* Of the places at which a write may be torn the first and the last are among those tried, whatever the stride.
* What is played has no other randomness: it does the same each time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any, Final, NamedTuple, TypeVar

from kcoord_wire.kernel.disk import Disk
from kcoord_wire.kernel.virtual.disk import VirtualDisk

T = TypeVar("T")

_UNLIKELY: Final = 0.999
"""A draw that is not below any probability."""


class Choices(Random):
    """Draws that have each of their outcomes, one run after another.

    :param stride: bytes between the places tried of a range
    :ivar tears: whether a range has all of its places; else it has its last alone
    """

    def __init__(self, stride: int) -> None:
        super().__init__(0)
        self.tears = True
        self._stride = stride
        self._taken: list[int] = []  # the outcome of each draw of this run
        self._counts: list[int] = []
        self._drawn = 0

    def advance(self) -> bool:
        """Begin the next run; return whether there is one."""
        while self._counts and self._taken[-1] + 1 == self._counts[-1]:
            self._taken.pop()
            self._counts.pop()
        self._drawn = 0
        if not self._counts:
            return False
        self._taken[-1] += 1
        return True

    def _choose(self, outcomes: int) -> int:
        if self._drawn == len(self._taken):
            self._taken.append(0)
            self._counts.append(outcomes)
        self._drawn += 1
        return self._taken[self._drawn - 1]

    def random(self) -> float:
        """Return a number below every probability, or above."""
        return 0.0 if self._choose(2) else _UNLIKELY

    def randint(self, a: int, b: int) -> int:
        """Return one of the places from `a` to `b`."""
        if not self.tears:
            return b
        places: list[int] = [*range(a, b, self._stride), b]
        return places[self._choose(len(places))]

    def choice(self, seq: Sequence[T]) -> T:  # type: ignore[override] # of sequences alone
        """Return one of these."""
        return seq[self._choose(len(seq))]

    def randbytes(self, n: int) -> bytes:
        """Return bytes that are no batch and no line."""
        return b"\xa5" * n


class Image(NamedTuple):
    """The content of a disk.

    :ivar files: names with bytes, ascending
    :ivar folders: names with their content, ascending
    """

    files: tuple[tuple[str, bytes], ...] = ()
    folders: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, disk: Disk) -> Image:
        """Return the content of a disk."""
        files = []
        for name in sorted(disk.sizes()):
            with disk.read(name) as source:
                files.append((name, source.read()))
        return cls(tuple(files), tuple((name, cls.of(disk.folder(name))) for name in sorted(disk.folders())))

    def write_to(self, disk: Disk) -> None:
        """Write this to an empty disk, durably."""
        for name, data in self.files:
            file = disk.open(name)
            file.append(data)
            file.sync()
        for name, content in self.folders:
            content.write_to(disk.folder(name))
        disk.sync_names()


@dataclass(slots=True)
class Ledger:
    """What was promised of states that follow one another.

    :param is_kill: whether the process alone ends, so that what was written need not be synced
    :ivar kept: the last that was promised
    :ivar possible: those that may be found instead: they have begun since
    :ivar notes: how often it was written to
    """

    is_kill: bool
    kept: Any = None
    possible: list[Any] = field(default_factory=list)
    notes: int = 0

    def begins(self, state: Any) -> None:
        """Note the state to which a change leads that begins now."""
        self.possible.append(state)
        self.notes += 1

    def acknowledged(self, state: Any, *, synced: bool = True) -> None:
        """Note that a change was acknowledged.

        :param synced: whether that promises that it outlasts a loss of power, not a kill alone
        """
        self.notes += 1
        if synced or self.is_kill:
            self.kept = state
            self.possible.clear()

    def allows(self, found: Any) -> bool:
        """Return whether a state may be found now."""
        return found == self.kept or found in self.possible


class Loss(NamedTuple):
    """What a loss of power has left.

    :ivar operation: which one of the disk was hit, from 0 on
    :ivar image: what is on the disk
    :ivar ledger: what was promised before
    """

    operation: int
    image: Image
    ledger: Ledger


Play = Callable[[VirtualDisk, Ledger], None]


def losses(play: Play, start: Image, *, stride: int, kills: bool = True) -> Iterator[Loss]:
    """Yield what is left of what is played by each loss of power and each kill.

    :param play: uses a disk, and notes what it promises. Its errors pass through, unless the power was lost
    :param start: what is on the disk at first
    :param stride: bytes between two places at which a write is torn
    :param kills: whether the process ends alone, too
    """
    seen: set[tuple[bool, int, Image]] = set()
    for is_kill in (False, True) if kills else (False,):
        for operation in count():
            is_hit = False
            for disk, ledger in _hits(play, start, operation, is_kill, stride):
                is_hit = disk.power_left is not None and disk.power_left < 0
                for image in [_killed(disk)] if is_kill else _crashes(disk, stride):
                    known = (is_kill, ledger.notes, image)
                    if known not in seen:
                        seen.add(known)
                        yield Loss(operation, image, ledger)
            if not is_hit:
                break


def _hits(play: Play, start: Image, operation: int, is_kill: bool, stride: int) -> Iterator[tuple[VirtualDisk, Ledger]]:
    """Yield the disk as it is when power is lost. A write that a kill hits has each length; what a crash leaves of one
    is decided by `VirtualDisk.crash`, to which it is whole."""
    choices = Choices(stride)
    choices.tears = is_kill
    is_new = True
    while is_new:
        disk, ledger = VirtualDisk(choices), Ledger(is_kill)
        start.write_to(disk)
        disk.power_left = operation
        try:
            play(disk, ledger)
        except Exception:
            if disk.power_left >= 0:
                raise
        yield disk, ledger
        is_new = choices.advance()


def _killed(disk: VirtualDisk) -> Image:
    disk.restart()
    return Image.of(disk)


def _crashes(disk: VirtualDisk, stride: int) -> Iterator[Image]:
    choices = Choices(stride)
    is_new = True
    while is_new:
        crashed = copy.deepcopy(disk, {id(disk.random): choices})
        crashed.crash()
        yield Image.of(crashed)
        is_new = choices.advance()
