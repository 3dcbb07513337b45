"""The declared keys of the page's data are those that Python writes and the scripts read."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kcoord_wire.report.page import keys
from kcoord_wire.report.page.data import page_data
from kcoord_wire.report.page.document import FOLDER, SCRIPTS
from tests.support.histories import incident, kip_848, losses, typical

SCRIPT = "\n".join((FOLDER / name).read_text("utf-8") for name in SCRIPTS)
DATA: Any = page_data([typical(), incident(), kip_848()], losses(), title="t", source="s")
GROUPS = DATA["groups"]
OBJECTS = {
    "page": (keys.PageKeys, [DATA]),
    "group": (keys.GroupKeys, GROUPS),
    "lane": (keys.LaneKeys, [lane for group in GROUPS for lane in group["lanes"]]),
    "row": (keys.RebalanceKeys, [row for group in GROUPS for row in group["rebalances"]]),
    "finding": (keys.FindingKeys, [finding for group in GROUPS for finding in group["findings"]]),
    "loss": (keys.LossKeys, DATA["losses"]),
}
MADE_BY_SCRIPTS = {"group": {"measure", "unit", "each"}, "row": {"text"}}
OF_ELEMENTS = {"dataset", "querySelector", "scrollIntoView", "setAttribute"}


@pytest.mark.parametrize("name", OBJECTS)
def test_python_writes_the_declared_keys(name: str) -> None:
    declared, objects = OBJECTS[name]
    assert objects
    for found in objects:
        assert declared.__required_keys__ <= set(found) <= declared.__required_keys__ | declared.__optional_keys__


@pytest.mark.parametrize("name", OBJECTS)
def test_scripts_read_the_declared_keys(name: str) -> None:
    declared, _ = OBJECTS[name]
    read = set(re.findall(rf"\b{name}\.(\w+)", SCRIPT)) - OF_ELEMENTS - MADE_BY_SCRIPTS.get(name, set())
    assert read == declared.__required_keys__ | declared.__optional_keys__


def test_causes_and_totals_have_the_declared_keys() -> None:
    assert set(DATA["lost"]) == keys.TotalKeys.__required_keys__
    [read] = re.findall(r"const \{ (.*?) \} = page\.lost;", SCRIPT)
    assert set(read.split(", ")) == keys.TotalKeys.__required_keys__
    for cause in DATA["causes"].values():
        assert set(cause) == keys.CauseKeys.__required_keys__
