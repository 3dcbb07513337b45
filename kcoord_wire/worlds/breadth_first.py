"""Breadth-first search of a small world: every run, up to its bounds, each state once.

A world says which steps a state allows and where each leads, and checks its laws in each state (`Searched`). When all
states are known it is checked of each that the world comes to its end if nothing fails any more.

Laws:

* A run to a state that breaks a law is a shortest one, as steps are counted in `Searched.delivered`.
* Nothing is hashed away: states are equal or they are not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sized
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from kcoord_wire.kernel.virtual.scripts import ViolationError

S = TypeVar("S", bound=Hashable)


class Step(NamedTuple):
    """One step of a run.

    :ivar what: happens: a name of the world's, perhaps with what it happens to
    :ivar member: to whom; -1 for none
    """

    what: str
    member: int = -1

    def __str__(self) -> str:
        return self.what if self.member < 0 else f"m{self.member + 1} {self.what}"


class Table:
    """Values with equal keys get one number, and the first of them stands for all.

    :ivar items: the values, by number
    """

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._numbers: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self.items)

    def number(self, key: Hashable, item: Any) -> int:
        """Return the number of a value."""
        known = self._numbers.get(key)
        if known is None:
            known = self._numbers[key] = len(self.items)
            self.items.append(item)
        return known


class Searched(Protocol[S]):
    """A world that is searched.

    :ivar trail: the steps of the last `check_converges`
    """

    trail: list[Step]

    @property
    def machines(self) -> Sized:
        """The states that the machine under test was in."""

    def start(self) -> S:
        """Return the first state."""

    def steps(self, state: S) -> Iterator[Step]:
        """Return the steps that a state allows."""

    def after(self, state: S, step: Step) -> S:
        """Return the state after a step. ViolationError: it breaks a law."""

    def delivered(self, state: S, step: Step) -> S:
        """Return a state after a step with what follows from that at once."""

    def check(self, state: S) -> None:
        """Check the laws of a state. ViolationError: with the name of the law."""

    def check_converges(self, state: S) -> None:
        """Check that the world comes to its end from here, if nothing fails. ViolationError: it does not."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """The outcome of a search.

    :ivar states: how many different ones there are within the bounds
    :ivar steps: how many steps lead from one to another
    :ivar depth: the length of the longest of the shortest runs to a state
    :ivar is_whole: whether all states within the bounds were reached, not only those within so many steps
    :ivar machines: how many different states the machine under test was in
    :ivar cpu_s: seconds of the processor
    :ivar violation: the law that was broken, None if none was
    :ivar run: the steps that break it
    """

    states: int
    steps: int
    depth: int
    is_whole: bool
    machines: int
    cpu_s: float
    violation: ViolationError | None = None
    run: tuple[Step, ...] = ()


class _Course(Generic[S]):
    """The states found so far, and how each was reached first."""

    def __init__(self, world: Searched[S]) -> None:
        self.world = world
        first = world.start()
        self.parents: dict[S, tuple[S, Step] | None] = {first: None}
        self.frontier = [first]
        self.depth = self.steps = 0
        self.run: tuple[S, tuple[Step, ...]] = (first, ())  # the state and the steps that are being checked

    def deepen(self) -> None:
        """Find the states that are one step further.

        :raises ViolationError: one of them breaks a law
        """
        found: list[S] = []
        for state in self.frontier:
            for step in self.world.steps(state):
                self.steps += 1
                self.run = state, (step,)
                after = self.world.delivered(self.world.after(state, step), step)
                if after not in self.parents:
                    self.parents[after] = (state, step)
                    found.append(after)
                    self.world.check(after)
        self.frontier = found
        self.depth += 1 if found else 0

    def check_convergence(self) -> None:
        """Check of each state that the world comes to its end.

        :raises ViolationError: it does not, or breaks another law on the way
        """
        for state in self.parents:
            self.world.trail = []
            self.run = state, ()
            self.world.check_converges(state)

    def run_so_far(self) -> tuple[Step, ...]:
        """Return the steps that lead to what is being checked."""
        state, further = self.run
        run: list[Step] = []
        while (came := self.parents[state]) is not None:
            state, step = came
            run.append(step)
        return (*reversed(run), *further, *self.world.trail)


def explore(world: Searched[S], depth: int | None = None, progress: Callable[[int, int], None] | None = None) -> Found:
    """Go through all states of a world, and check its laws in each.

    :param depth: how many steps a run may have; None for as many as there are
    :param progress: called after each depth with it and the number of states so far
    """
    started = time.process_time()
    course = _Course(world)
    violation: ViolationError | None = None
    try:
        world.check(course.frontier[0])
        while course.frontier and (depth is None or course.depth < depth):
            course.deepen()
            if progress is not None:
                progress(course.depth, len(course.parents))
        course.check_convergence()
    except ViolationError as broken:
        violation = broken
    return Found(
        states=len(course.parents),
        steps=course.steps,
        depth=course.depth,
        is_whole=violation is None and not course.frontier,
        machines=len(world.machines),
        cpu_s=time.process_time() - started,
        violation=violation,
        run=() if violation is None else course.run_so_far(),
    )
