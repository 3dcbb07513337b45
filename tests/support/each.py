"""A test over many values under one id: an id for each costs collecting, in every worker, more than a short check."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import pytest


def each(names: str, values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call the test once with each value, or tuple of values, as `pytest.mark.parametrize` would; a failure names it.

    :param names: of the arguments, separated by a comma
    """
    arguments = names.replace(" ", "").split(",")
    rows = list(values)
    assert rows, "nothing would be tried"

    def around(check: Callable[..., None]) -> Callable[..., None]:
        @wraps(check)
        def test(**fixtures: Any) -> None:
            for number, row in enumerate(rows):
                given = dict(zip(arguments, row if len(arguments) > 1 else (row,), strict=True))
                try:
                    check(**fixtures, **given)
                except (Exception, pytest.fail.Exception) as error:
                    shown = {name: getattr(value, "name", value) for name, value in given.items()}
                    error.add_note(f"number {number} of {len(rows)}: {shown!r:.500}")
                    raise

        signature = inspect.signature(check)
        left = [parameter for name, parameter in signature.parameters.items() if name not in arguments]
        test.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]  # pytest reads it
        return test

    return around
