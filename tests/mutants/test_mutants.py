"""The tool that makes mutants: what it changes, that the change takes effect, and what is said of one."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.mutants.__main__ import draw, judged
from tests.mutants.machines import MACHINES
from tests.mutants.operators import changes, plant

SOURCE = """
def note(text): pass

class Counter:
    def __init__(self):
        self.seen = []

    def add(self, number, weight=1):
        note("adds")
        if number > 0 and weight:
            self.seen.append(number * weight)
        return number < 9

    def each(self):
        yield from iter(self.seen)

big = lambda numbers: [each for each in numbers if each > 5]
"""
CHANGES = [
    ("Counter.add", "not: if number > 0 and weight"),
    ("Counter.add", "without number > 0: number > 0 and weight"),
    ("Counter.add", "without weight: number > 0 and weight"),
    ("Counter.add", "without self.seen.append(number * weight)"),
    ("Counter.add", "not: return number < 9"),
    ("Counter.each", "without yield from iter(self.seen)"),
    ("", "not: if each > 5"),
]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    path = tmp_path / "of_mutants.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("of_mutants", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "of_mutants", made)
    spec.loader.exec_module(made)
    return made


def results(module: ModuleType) -> tuple[object, ...]:
    counter = module.Counter()
    answers = [counter.add(number) for number in (0, 3, 9)] + [counter.add(7, 0)]
    return answers, list(counter.each()), module.big([1, 6])


def test_the_changes_of_a_module() -> None:
    assert [(change.where, change.what) for change in changes(ast.parse(SOURCE))] == CHANGES


@pytest.mark.parametrize("number", range(len(CHANGES)), ids=[what for _, what in CHANGES])
def test_a_change_takes_the_place_of_the_function_everywhere(module: ModuleType, number: int) -> None:
    right = results(module)
    assert right == ([True, True, False, True], [3, 9], [6])
    kept = module.Counter.add, module.big
    plant(module, number)
    assert results(module) != right
    assert (module.Counter.add, module.big) == kept, "who has imported them has the change"


def test_each_machine_has_mutants_in_one_order_for_a_seed() -> None:
    for name in MACHINES:
        assert len(draw(name, 1)) > 200
        assert draw(name, 1) == draw(name, 1) != draw(name, 2)


def test_a_mutant_that_breaks_a_law_is_noticed() -> None:
    name = "central.rewrite.membership Membership._park: not: if group.state is not GroupState.PREPARING"
    mutant = next(each for each in draw("rewrite", 1) if each.name == name)
    ((found, verdict),) = judged([mutant], jobs=1)
    assert found == mutant
    assert verdict.startswith("laws: ")
