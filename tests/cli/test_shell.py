"""Completion in a real bash, and the manual page; other shells and checkers of pages: tests/interop/test_shells.py."""

from __future__ import annotations

from argparse import SUPPRESS
from collections.abc import Callable

from kcoord_wire.cli.main import COMMANDS, make_parser
from tests.support.shells import COMPLETED, completed


def options_of(name: str) -> set[str]:
    """The options of a command that are shown."""
    actions = make_parser(name)._option_string_actions.items()
    return {flag for flag, action in actions if flag.startswith("--") and action.help != SUPPRESS}


def test_bash_completes() -> None:
    assert completed("bash", list(COMPLETED)) == list(COMPLETED.values())


def test_bash_completes_every_command_and_option() -> None:
    names = ["", *COMMANDS]
    wanted = [options_of(name) for name in names]
    assert completed("bash", [f"kcoord {name} --".replace("  ", " ") for name in names]) == wanted


def test_the_manual_page_has_every_command_and_option(kcoord: Callable[..., tuple[int, str, str]]) -> None:
    status, page, _ = kcoord("man")
    assert status == 0
    for name in COMMANDS:
        assert f".SH KCOORD {name.upper()}".replace("-", "\\-") in page
        for flag in options_of(name):
            assert f".B {flag}".replace("-", "\\-") in page
