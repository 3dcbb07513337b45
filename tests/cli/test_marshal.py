"""`kcoord marshal`: its commands."""

from __future__ import annotations

from collections.abc import Callable


def test_it_needs_a_command(kcoord: Callable[..., tuple[int, str, str]]) -> None:
    status, _, err = kcoord("marshal")
    assert status == 2
    assert "required: COMMAND" in err
