"""How a bug is planted: a function that stands for an attribute of the code, and is called with the right one first.

@replaces(Holding, "end")
def goes_on_after_the_fence(end: Any, self: Holding, why: LossReason) -> None:
    if why is not LossReason.EXPIRED:
        end(self, why)

goes_on_after_the_fence(monkeypatch)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any

import pytest

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]


def replaces(owner: Any, name: str) -> Callable[[Callable[..., Any]], Plant]:
    """Make a bug of a function: planted, it is called with the original and the arguments of the call."""

    def bug_of(wrong: Callable[..., Any]) -> Plant:
        def plant(patch: Patch) -> None:
            right = getattr(owner, name)
            patch.setattr(owner, name, lambda *arguments, **named: wrong(right, *arguments, **named))

        return update_wrapper(plant, wrong)

    return bug_of


def changes_effects(machine: type) -> Callable[[Callable[[Any, list[Any]], list[Any]]], Plant]:
    """Make a bug of a function of an event and the machine's effects, which returns others."""

    def bug_of(change: Callable[[Any, list[Any]], list[Any]]) -> Plant:
        def wrong(handle: Any, self: Any, event: Any, now: int) -> list[Any]:
            return change(event, handle(self, event, now))

        return replaces(machine, "handle")(update_wrapper(wrong, change))

    return bug_of
