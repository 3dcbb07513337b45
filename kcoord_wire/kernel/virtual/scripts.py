"""Scripts of timed actions on a simulated world: drawn, played, checked, and reduced when they break a law.

An action is a call of one of the world's own methods (`Do`). A protocol says by rows of odds and arguments how random
ones are drawn (`draw_actions`). `run_script` plays a script and lets the world settle. If a law is broken,
`SimulationFailure` has the seed and the shortest script found that still breaks the same law, as Python to paste into a
test.

Laws:

* A script and its seed give the same run on every machine.
* An action that makes no sense at its time does nothing (a crash of a process that does not run), so that any action
  can be left out of a script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from random import Random
from typing import Any, Final, Generic, NamedTuple, Protocol, Self, TypeVar

from kcoord_wire.kernel.virtual.clock import TraceLine

_LAST_LINES: Final = 12  # of the trace, printed with a failure

ChoiceT = TypeVar("ChoiceT")
ItemT = TypeVar("ItemT")


class ViolationError(AssertionError):
    """A simulated system has broken one of its laws.

    :ivar law: the law's name
    """

    def __init__(self, law: str, what: str) -> None:
        super().__init__(f"{law}: {what}")
        self.law = law


class Report(NamedTuple):
    """The result of a run that broke no law.

    :ivar steps: number of events delivered
    :ivar virtual_ms: how long it took on the virtual clock
    :ivar settled_ms: how long after the last fault the system had settled
    :ivar counts: what the world counts, by name: ``rebalances``, ``transactions`` ...
    """

    steps: int
    virtual_ms: int
    settled_ms: int
    counts: Mapping[str, int]


class Playable(Protocol):
    """What a script needs of a world; see `world.World`."""

    @property
    def now(self) -> int:
        """Virtual ms since the start."""

    @property
    def trace(self) -> Sequence[TraceLine]:
        """What has happened, oldest first."""

    def run(self, ms: int) -> None:
        """Let time pass."""

    def settle(self) -> Any:
        """End all faults, wait until the system has settled, and return the report."""


WorldT = TypeVar("WorldT", bound=Playable)


# ---- scripts


@dataclass(frozen=True, init=False, repr=False)
class Do:
    """A call of a method of the world.

    :ivar at: ms after the start
    :ivar call: the method's name
    :ivar arguments: of the call
    """

    at: int
    call: str
    arguments: tuple[Any, ...]

    def __init__(self, at: int, call: str, *arguments: Any) -> None:
        for name, value in (("at", at), ("call", call), ("arguments", arguments)):
            object.__setattr__(self, name, value)

    def play(self, world: Any) -> None:
        """Call it."""
        getattr(world, self.call)(*self.arguments)

    def __repr__(self) -> str:
        return f"Do({', '.join(map(_source, (self.at, self.call, *self.arguments)))})"


@dataclass(frozen=True, repr=False)
class Script(Generic[WorldT]):
    """A run of a simulated system.

    :ivar world: the class of the world, called with the seed and the options
    :ivar seed: decides whatever the actions leave open: latencies, losses, what a crash leaves on a disk
    :ivar options: of the world
    :ivar actions: in any order; each has its time
    """

    world: Callable[..., AbstractContextManager[WorldT]]
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)
    actions: Sequence[Do] = ()

    def with_options(self, **changes: Any) -> Self:
        """Return the same script with other options of the world."""
        return replace(self, options={**self.options, **changes})

    def with_actions(self, actions: Sequence[Do]) -> Self:
        """Return the same script with other actions."""
        return replace(self, actions=actions)

    def open(self) -> AbstractContextManager[WorldT]:
        """Return a new world, at time 0."""
        return self.world(seed=self.seed, **self.options)

    def play(self, world: WorldT) -> None:
        """Let all actions happen in a world, each at its time."""
        for action in sorted(self.actions, key=lambda action: action.at):
            world.run(max(action.at - world.now, 0))
            action.play(world)

    def __repr__(self) -> str:
        lines = "".join(f"    {action!r},\n" for action in self.actions)
        return f"Script({self.world.__name__}, {self.seed}, {_source(dict(self.options))}, [\n{lines}])"


class SimulationFailure(AssertionError):
    """A script has broken a law. The text ends in Python that can be pasted into a test.

    :ivar script: the script
    :ivar seed: of the script
    :ivar violation: what was broken, and how
    :ivar law: the name of the law
    """

    def __init__(self, script: Script[Any], violation: ViolationError, trace: Sequence[TraceLine] = ()) -> None:
        self.script = script
        self.seed: int = script.seed
        self.violation = violation
        self.law: str = violation.law
        last = "".join(f"# {str(line)[:200]}\n" for line in trace[-_LAST_LINES:])
        super().__init__(
            f"{violation}\n{last}# seed {script.seed}; to replay:\n{_imports(script)}\nrun_script({script!r})"
        )


def run_script(script: Script[Any], *, shrink: bool = True) -> Any:
    """Play a script, let the world settle, and return its report.

    :param shrink: look for a shorter script that breaks the same law
    :raises SimulationFailure: a law was broken
    """
    try:
        return _play(script)
    except SimulationFailure as failure:
        if not shrink:
            raise
        raise minimize(failure) from None


def _play(script: Script[Any]) -> Any:
    with script.open() as world:
        try:
            script.play(world)
            return world.settle()
        except ViolationError as violation:
            raise SimulationFailure(script, violation, world.trace) from violation


# ---- shrinking


def minimize(failure: SimulationFailure, tries: int = 300) -> SimulationFailure:
    """Leave out of a script the actions that it does not need to break the same law; see `shrink`."""
    smallest = failure

    def fails(actions: list[Do]) -> bool:
        nonlocal smallest
        try:
            _play(failure.script.with_actions(actions))
        except SimulationFailure as other:
            if other.law == failure.law:
                smallest = other
                return True
        return False

    shrink(failure.script.actions, fails, tries)
    return smallest


def shrink(items: Sequence[ItemT], fails: Callable[[list[ItemT]], bool], tries: int) -> list[ItemT]:
    """Return a part of `items`, in order, that still fails; leaving out any one item of it would not, if tries suffice.

    Source: Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input" (ddmin), complements only: parts
    of half the length are left out first, single items last.

    :param fails: runs the candidate; called at most `tries` times
    """
    kept = list(items)
    size = max(len(kept) // 2, 1)
    while tries > 0:
        start = 0
        shrunk = False
        while start < len(kept) and tries > 0:
            candidate = kept[:start] + kept[start + size :]
            tries -= 1
            if fails(candidate):
                kept, shrunk = candidate, True
            else:
                start += size
        if size == 1 and not shrunk:
            break
        size = max(size // 2, 1)
    return kept


# ---- drawing


class Draw:
    """What the random actions of one script have in common. A protocol derives its own, with what else its rows use.

    :ivar random: the source of the script's draws
    :ivar names: of the processes
    """

    def __init__(self, random: Random, names: Sequence[str] = ()) -> None:
        self.random = random
        self.names = names


Argument = Callable[[Any], Any]
"""Draws an argument of an action: called with the `Draw`."""


class Row(NamedTuple):
    """An action that is drawn at random.

    :ivar odds: how often, in percent
    :ivar call: the world's method
    :ivar arguments: each an `Argument`, or the value itself; `spread` makes several of one
    """

    odds: int
    call: str
    arguments: tuple[Any, ...]


def row(odds: int, call: str, *arguments: Any) -> Row:
    """Return a `Row`."""
    return Row(odds, call, arguments)


def with_odds(rows: Sequence[Row], **odds: int) -> list[Row]:
    """Return rows of these calls alone, the first of each, with other odds."""
    return [next(each for each in rows if each.call == call)._replace(odds=value) for call, value in odds.items()]


class _Several(tuple[Any, ...]):
    """Arguments that are drawn together."""

    __slots__ = ()


def spread(argument: Argument) -> Argument:
    """Return what draws the values of a tuple as so many arguments."""
    return lambda draw: _Several(argument(draw))


def one_of(*values: Any) -> Argument:
    """Return what draws one of the values, each as often as it stands there."""
    return lambda draw: draw.random.choice(values)


def between(least: int, most: int) -> Argument:
    """Return what draws a number, `most` included."""
    return lambda draw: draw.random.randint(least, most)


def process_name(draw: Draw) -> str:
    """Draw the name of a process."""
    return draw.random.choice(draw.names)


losses: Final = spread(one_of((0.02, 0.0), (0.0, 0.05), (0.2, 0.05), (0.05, 0.2)))
"""Draws how lossy a network becomes: `drop` and `reset` of `World.lose`."""


def draw_action(draw: Draw, at: int, rows: Sequence[Row]) -> Do:
    """Return one action, by its odds."""
    _, call, arguments = choose(draw.random, [(each.odds, each) for each in rows])
    return Do(at, call, *draw_arguments(draw, arguments))


def draw_arguments(draw: Draw, arguments: Sequence[Any]) -> list[Any]:
    """Return the arguments of a row as values."""
    values: list[Any] = []
    for argument in arguments:
        value = argument(draw) if callable(argument) else argument
        values += value if isinstance(value, _Several) else [value]
    return values


def draw_actions(draw: Draw, rows: Sequence[Row], count: int, haste_ms: float, start: int = 0) -> list[Do]:
    """Return random actions; see `draw_times`."""
    return [draw_action(draw, at, rows) for at in draw_times(draw.random, count, haste_ms, start)]


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


# ---- source


def source_of(item: Any) -> str:
    """Return a dataclass instance as Python source, without the fields that have their default."""
    parts = [
        f"{each.name}={_source(getattr(item, each.name))}"
        for each in fields(item)
        if getattr(item, each.name) != each.default
    ]
    return f"{type(item).__name__}({', '.join(parts)})"


def _source(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_source(key)}: {_source(each)}' for key, each in value.items())}}}"
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    return source_of(value) if is_dataclass(value) else repr(value)


def _kinds(value: Any) -> Iterator[type[Any]]:
    """Yield the classes that the source of a value names."""
    if isinstance(value, Enum):
        yield type(value)
    elif is_dataclass(value):
        yield type(value)
        for each in fields(value):
            yield from _kinds(getattr(value, each.name))
    elif isinstance(value, dict):
        for part in value.values():
            yield from _kinds(part)


def _imports(script: Script[Any]) -> str:
    """Return the imports that the source of a script needs."""
    names: dict[str, set[str]] = {}
    values = [*script.options.values(), *(value for action in script.actions for value in action.arguments)]
    needed: list[Any] = [run_script, Script, Do, script.world]
    for item in [*needed, *(kind for value in values for kind in _kinds(value))]:
        names.setdefault(item.__module__, set()).add(item.__name__)
    return "".join(f"from {module} import {', '.join(sorted(names[module]))}\n" for module in sorted(names))
