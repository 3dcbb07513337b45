"""Type checkers know the type of everything public, without inferring what the author may have meant."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.support.processes import ROOT
from tests.support.public_names import PUBLIC, names_of


def is_public(symbol: str, names: set[str]) -> bool:
    """Whether it is one of the names, or a public attribute of one."""
    parts = symbol.split(".")
    owners = (cut for cut in range(len(parts), 0, -1) if ".".join(parts[:cut]) in names)
    return any(all(part[0] != "_" or part[:2] == "__" for part in parts[cut:]) for cut in owners)


@pytest.mark.slow
def test_the_types_of_all_public_names_are_known() -> None:
    command = [sys.executable, "-m", "basedpyright", "--verifytypes", "kcoord_wire", "--ignoreexternal", "--outputjson"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}  # an editable install is no folder that it finds
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=600)
    symbols = {each["name"]: each["isTypeKnown"] for each in json.loads(done.stdout)["typeCompleteness"]["symbols"]}
    names = {
        symbol
        for module in PUBLIC
        for name, value in names_of(module).items()
        for symbol in (
            f"{module}.{name}",
            f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', name)}",
        )
    }
    public = [symbol for symbol in symbols if is_public(symbol, names)]
    assert len(public) > 5_000
    assert [symbol for symbol in public if not symbols[symbol]] == []
