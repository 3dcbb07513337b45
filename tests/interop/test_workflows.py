"""The workflows that no machine of ours runs: actionlint takes them, and their steps are those of the Makefile."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.support.go_programs import SOURCES, go_command
from tests.support.processes import ROOT, run_tool

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
# What a machine needs before make, what runs where make is not, and what needs the rights of the workflow.
NOT_MAKE = (
    "apt-get ",
    "bash .ci/run",
    "python -m pip install cibuildwheel==",
    "python -m cibuildwheel ",
    "gh release create ",
)


def actionlint(*files: Path) -> str:
    go, environment = go_command()
    return run_tool([go, "tool", "actionlint", *map(str, files)], SOURCES, environment, attempts=1)


def test_actionlint_takes_the_workflows(tmp_path: Path) -> None:
    assert actionlint(*WORKFLOWS) == ""
    wrong = tmp_path / "wheels.yml"
    wrong.write_text((ROOT / ".github" / "workflows" / "wheels.yml").read_text("utf-8").replace("needs:", "need:"))
    with pytest.raises(AssertionError, match='unexpected key "need"'):
        actionlint(wrong)


def test_what_the_workflows_run_is_in_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    jobs = [job for file in WORKFLOWS for job in yaml.safe_load(file.read_text("utf-8"))["jobs"].values()]
    commands = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    made = [command for command in commands if not command.startswith(NOT_MAKE)]
    assert made
    assert [command for command in made if command.split()[0] != "make" or command.split()[1] not in targets] == []
