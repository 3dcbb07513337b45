"""Colours of causes and of the style sheet: contrast, and one for each cause."""

from __future__ import annotations

import re

import pytest

from kcoord_wire.forensics.model import Cause
from kcoord_wire.report.page.cause_styles import ABOUT, COLOURS, OTHER
from kcoord_wire.report.page.document import FOLDER


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def themes() -> list[dict[str, str]]:
    style = (FOLDER / "page.css").read_text("utf-8")
    blocks = re.findall(r"^:root(?:\[[^\]]*\])? \{(.*?)^\}", style, re.DOTALL | re.MULTILINE)
    return [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in blocks]


@pytest.mark.parametrize("theme", themes(), ids=["light", "dark"])
def test_colours_contrast_with_their_background(theme: dict[str, str]) -> None:
    for colour in [*COLOURS.values(), OTHER]:
        assert contrast(colour, theme["ground"]) >= 3
    for ink in ("ink", "quiet", "link", "critical", "warning", "info"):
        for ground in ("ground", "panel"):
            assert contrast(theme[ink], theme[ground]) >= 4.5, (ink, ground)
    for severity in ("critical", "warning", "info"):
        assert contrast(theme[severity], theme[f"{severity}-ground"]) >= 4.5
    assert contrast(theme["ink"], theme["warning-ground"]) >= 4.5


def test_every_cause_has_a_colour_and_a_sentence() -> None:
    assert set(COLOURS) == set(ABOUT) == set(Cause)
    assert len(set(COLOURS.values()) - {OTHER}) >= len(Cause) - 1
