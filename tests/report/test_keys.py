"""The declared keys of the page's data are those that Python writes and the scripts read.

Times relative to the first moment of a group.

Colours of causes and of the style sheet: contrast, and one for each cause.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.model import GroupHistory
from kcoord_wire.report.page import keys
from kcoord_wire.report.page.data import page_data
from kcoord_wire.report.page.document import FOLDER, SCRIPTS
from kcoord_wire.report.page.keys import OTHER, GroupClock
from tests.support.histories import MS, SECOND, START, incident, kip_848, losses, summary, typical

SCRIPT = "\n".join((FOLDER / name).read_text("utf-8") for name in SCRIPTS)
PLAIN = "\n".join((FOLDER / name).read_text("utf-8") for name in ("plain.py", "document.py"))
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
    if name in ("page", "loss"):  # some of a page, and what could not be read, are markup from the start
        names = "page|data" if name == "page" else name
        read |= {key or other for key, other in re.findall(rf"\b(?:{names})\[(?:'(\w+)'|\"(\w+)\")\]", PLAIN)}
    assert read == declared.__required_keys__ | declared.__optional_keys__


def test_causes_and_totals_have_the_declared_keys() -> None:
    assert set(DATA["lost"]) == keys.TotalKeys.__required_keys__
    assert set(re.findall(r"\blost\['(\w+)'\]", PLAIN)) == keys.TotalKeys.__required_keys__
    for cause in DATA["causes"].values():
        assert set(cause) == keys.CauseKeys.__required_keys__


def test_times_are_milliseconds_after_the_first_moment() -> None:
    clock = GroupClock(GroupHistory(summary("g", START + 5 * SECOND)))
    assert [clock.ms(START), clock.ms(START + 7 * MS), clock.ms(START - SECOND)] == [0, 7, -1000]
    assert isinstance(clock.ms(START + 7 * MS), int), "whole numbers are short in JSON"
    assert clock.ms(START + 1_234_567) == 1.235


def test_an_open_interval_ends_with_the_group() -> None:
    clock = GroupClock(GroupHistory(summary("g", START + 5 * SECOND)))
    assert (clock.end(START + SECOND), clock.end(None)) == (1000, 5000)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def themes() -> list[dict[str, str]]:
    style = (FOLDER / "page.css").read_text("utf-8")
    colours = re.findall(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);", style)
    return [{name: pair[at] for name, *pair in colours} for at in (0, 1)]


@pytest.mark.parametrize("theme", themes(), ids=["light", "dark"])
def test_colours_contrast_with_their_background(theme: dict[str, str]) -> None:
    for colour in [*(cause.facts.colour for cause in Cause), OTHER]:
        assert contrast(colour, theme["ground"]) >= 3
    for ink in ("ink", "quiet", "link", "critical", "warning", "info"):
        for ground in ("ground", "panel"):
            assert contrast(theme[ink], theme[ground]) >= 4.5, (ink, ground)
    for severity in ("critical", "warning", "info"):
        assert contrast(theme[severity], theme[f"{severity}-ground"]) >= 4.5
    assert contrast(theme["ink"], theme["warning-ground"]) >= 4.5


def test_every_cause_has_a_colour_and_a_sentence() -> None:
    assert all(cause.facts.about for cause in Cause)
    assert len({cause.facts.colour for cause in Cause} - {OTHER}) >= len(Cause) - 1
