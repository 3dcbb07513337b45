"""All runs of a few members of KIP-848 against the real coordinator, breadth first, up to a bound.

Every interleaving is tried of: heartbeats that arrive, their answers, either of them lost, applications that have given
partitions up, members that leave, crash, join again, and change their subscription, sessions and rebalance timeouts
that end, and a coordinator that starts again from its log. Losses, departures, crashes, changes and restarts are
perturbations, of which a run has at most `Bounds.perturbations`; time passes in ticks, half a session each, of which
there are at most `Bounds.ticks`.

In each state the laws of `laws` are checked, and that the coordinator is what its log gives back (``log is complete``).
When all states are known, ``EventuallyConverges`` is checked from each: nothing else fails, whatever is in flight
arrives, members beat in turn, time passes, and the group must converge.

Laws of the search:

* States are those of `states`.
* A run to a state that breaks a law is a shortest one; a heartbeat may arrive in the step that sends it
  (`World.delivered`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from kcoord_wire.kernel.virtual.violation import ViolationError
from kcoord_wire.worlds.consumer_groups.states import Bounds, Step, World, WorldState


@dataclass(frozen=True, kw_only=True)
class Found:
    """The outcome of a search.

    :ivar states: how many different ones there are within the bounds
    :ivar steps: how many steps lead from one to another
    :ivar depth: the length of the longest of the shortest runs to a state
    :ivar is_whole: whether all states within the perturbations and ticks were reached, not only those within `depth`
    :ivar coordinators: how many different states the coordinator was in
    :ivar cpu_s: seconds of the processor
    :ivar violation: the law that was broken, None if none was
    :ivar run: the steps that break it
    """

    states: int
    steps: int
    depth: int
    is_whole: bool
    coordinators: int
    cpu_s: float
    violation: ViolationError | None = None
    run: tuple[Step, ...] = ()


class _Search:
    """The states found so far, and how each was reached first."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.world = World(bounds)
        first = self.world.start()
        self.parents: dict[WorldState, tuple[WorldState, Step] | None] = {first: None}
        self.frontier = [first]
        self.depth = self.steps = 0
        self.run: tuple[WorldState, tuple[Step, ...]] = (first, ())  # the state and the steps that are being checked

    def deepen(self) -> None:
        """Find the states that are one step further.

        :raises ViolationError: one of them breaks a law
        """
        found: list[WorldState] = []
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
        """Check that the group converges from each state.

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


def search(bounds: Bounds, progress: Callable[[int, int], None] | None = None) -> Found:
    """Go through all states within the bounds, and check the laws in each.

    :param progress: called after each depth with it and the number of states so far
    """
    started = time.process_time()
    course = _Search(bounds)
    violation: ViolationError | None = None
    try:
        course.world.check(course.frontier[0])
        while course.frontier and (bounds.depth is None or course.depth < bounds.depth):
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
        coordinators=len(course.world.coordinators.items),
        cpu_s=time.process_time() - started,
        violation=violation,
        run=() if violation is None else course.run_so_far(),
    )
