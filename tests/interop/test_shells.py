"""Completion in zsh and fish, and what mandoc says of the manual page."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.shells import COMPLETED, ROOT, completed


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_complete(shell: str) -> None:
    assert completed(shell, list(COMPLETED)) == list(COMPLETED.values())


def test_the_manual_page_has_no_mistake() -> None:
    page = subprocess.run(
        [sys.executable, "-m", "kcoord_wire", "man"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    lint = ["mandoc", "-T", "lint", "-W", "warning"]
    done = subprocess.run(lint, input=page, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    shown = subprocess.run(["mandoc", "-T", "ascii"], input=page, capture_output=True, check=True).stdout.decode()
    assert "kcoord analyze trace.pcap" in shown
