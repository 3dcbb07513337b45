"""`make run-central` and `make run-rewrite` go as they should: two takeovers, and no record is missing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("design", [[], ["rewrite"]])
def test_the_demonstrations(design: list[str]) -> None:
    command = [sys.executable, "-m", "tests.demo.central", *design]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"broker \d is elected, epoch [23]: ", done.stdout)) == 2
    assert "has resigned by itself" in done.stdout
    [counts] = re.findall(r"records delivered: (\d+), delivered twice or more: (\d+), missing: 0\n", done.stdout)
    assert int(counts[0]) > 1_000
    assert "2 takeovers; everything is stopped" in done.stdout
