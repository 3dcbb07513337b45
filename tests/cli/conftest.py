"""The command `kcoord`, run in this process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kcoord_wire.cli.main import main


@pytest.fixture
def kcoord(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command and return its status, stdout and stderr."""

    def run(*argv: str) -> tuple[int, str, str]:
        status = main(argv)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run
