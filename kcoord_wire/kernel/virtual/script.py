"""Scripts of timed actions on a simulated world: played, checked, and reduced when they break a law.

A protocol derives its actions from `Action` and its scripts from `Script`; the script says how to build the world and
what must hold at the end. `run_script` plays one. If it breaks a law, `SimulationFailure` has the seed and the shortest
script found that still breaks the same law, as Python to paste into a test.

Laws:

* A script and its seed give the same run on every machine.
* An action that makes no sense at its time does nothing (a crash of a process that does not run), so that any action
  can be left out of a script.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from random import Random
from typing import Any, Final, Generic, Protocol, TypeVar

from kcoord_wire.kernel.virtual.clock import TraceLine
from kcoord_wire.kernel.virtual.shrink import shrink
from kcoord_wire.kernel.virtual.violation import ViolationError

_LAST_LINES: Final = 12  # of the trace, printed with a failure

ChoiceT = TypeVar("ChoiceT")
ReportT = TypeVar("ReportT")


class World(Protocol):
    """What a script needs of the simulated system."""

    @property
    def now(self) -> int:
        """Virtual ms since the start."""

    @property
    def trace(self) -> Sequence[TraceLine]:
        """What has happened, oldest first."""

    def run(self, ms: int) -> None:
        """Let time pass."""


WorldT = TypeVar("WorldT", bound=World)


def source_of(item: Any) -> str:
    """Return a dataclass instance as Python source, without the fields that have their default."""
    parts = [
        f"{each.name}={getattr(item, each.name)!r}" for each in fields(item) if getattr(item, each.name) != each.default
    ]
    return f"{type(item).__name__}({', '.join(parts)})"


def _source(value: Any) -> str:
    return f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else repr(value)


@dataclass(frozen=True, kw_only=True)
class Action(Generic[WorldT]):
    """Something that happens to the world.

    :ivar at: ms after the start
    """

    at: int

    def play(self, world: WorldT) -> None:
        """Let it happen now, or do nothing if it makes no sense in the world as it is."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return source_of(self)


@dataclass(frozen=True, kw_only=True, repr=False)
class Do(Action[Any]):
    """A call of a method of the world.

    :ivar call: its name
    :ivar arguments: of the call
    """

    call: str
    arguments: tuple[Any, ...] = ()

    def play(self, world: Any) -> None:
        """Call it."""
        getattr(world, self.call)(*self.arguments)


@dataclass(frozen=True, kw_only=True, repr=False)
class Script(ABC, Generic[WorldT, ReportT]):
    """A run of a simulated system.

    :ivar seed: decides whatever the actions leave open: latencies, losses, what a crash leaves on a disk
    :ivar actions: in any order; each has its time
    """

    seed: int
    actions: Sequence[Action[WorldT]]

    @abstractmethod
    def world(self) -> AbstractContextManager[WorldT]:
        """Return a new world, at time 0."""

    @abstractmethod
    def finish(self, world: WorldT) -> ReportT:
        """End all faults and wait until the system has settled.

        :raises ViolationError: it does not settle
        """

    def __repr__(self) -> str:
        head = ", ".join(
            f"{item.name}={_source(getattr(self, item.name))}" for item in fields(self) if item.name != "actions"
        )
        lines = "".join(f"    {action!r},\n" for action in self.actions)
        return f"{type(self).__name__}({head}, actions=[\n{lines}])"


class SimulationFailure(AssertionError):
    """A script has broken a law. The text ends in Python that can be pasted into a test.

    :ivar script: the script
    :ivar seed: of the script
    :ivar violation: what was broken, and how
    :ivar law: the name of the law
    """

    def __init__(self, script: Script[Any, Any], violation: ViolationError, trace: Sequence[TraceLine] = ()) -> None:
        self.script = script
        self.seed = script.seed
        self.violation = violation
        self.law = violation.law
        last = "".join(f"# {str(line)[:200]}\n" for line in trace[-_LAST_LINES:])
        super().__init__(
            f"{violation}\n{last}# seed {script.seed}; to replay:\n{_imports(script)}\nrun_script({script!r})"
        )


def _imports(script: Script[Any, Any]) -> str:
    """Return the imports that the source of a script needs."""
    names: dict[str, set[str]] = {run_script.__module__: {run_script.__name__}}
    for kind in {type(part) for item in (script, *script.actions) for part in (item, *vars(item).values())}:
        if is_dataclass(kind) or issubclass(kind, Enum):
            names.setdefault(kind.__module__, set()).add(kind.__name__)
    return "".join(f"from {module} import {', '.join(sorted(names[module]))}\n" for module in sorted(names))


def run_script(script: Script[WorldT, ReportT], *, shrink: bool = True) -> ReportT:
    """Play a script, end all its faults, and wait until the system has settled.

    :param shrink: look for a shorter script that breaks the same law
    :raises SimulationFailure: a law was broken
    """
    try:
        return _play(script)
    except SimulationFailure as failure:
        if not shrink:
            raise
        raise minimize(failure) from None


def minimize(failure: SimulationFailure, tries: int = 300) -> SimulationFailure:
    """Leave out of a script the actions that it does not need to break the same law; see `shrink.shrink`."""
    smallest = failure

    def fails(actions: list[Action[Any]]) -> bool:
        nonlocal smallest
        try:
            _play(replace(failure.script, actions=actions))
        except SimulationFailure as other:
            if other.law == failure.law:
                smallest = other
                return True
        return False

    shrink(failure.script.actions, fails, tries)
    return smallest


def _play(script: Script[WorldT, ReportT]) -> ReportT:
    with script.world() as world:
        try:
            for action in sorted(script.actions, key=lambda action: action.at):
                world.run(max(action.at - world.now, 0))
                action.play(world)
            return script.finish(world)
        except ViolationError as violation:
            raise SimulationFailure(script, violation, world.trace) from violation


def draw_times(random: Random, count: int, haste_ms: float, start: int = 0) -> Iterator[int]:
    """Draw when actions happen, in ms: at most `count` of them and at least half as many, on average `haste_ms` apart.

    The times are drawn as they are asked for: what is drawn of each action comes between them.
    """
    for _ in range(random.randint(count // 2, count)):
        start += int(random.expovariate(1 / haste_ms))
        yield start


def choose(random: Random, table: Sequence[tuple[int, ChoiceT]]) -> ChoiceT:
    """Return one entry of a table of weights and entries; the weights are percentages and add up to 100."""
    drawn = random.random()
    total = 0
    for weight, entry in table:
        total += weight
        if drawn < total / 100:
            return entry
    raise ValueError(f"the weights add up to {total}, not to 100")
