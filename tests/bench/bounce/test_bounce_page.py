"""docs/rolling-bounce.md has what its command writes, and its plots show it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from kcoord_wire.cli.rolling_bounce import throughput_plot
from kcoord_wire.report.page.charts import plot_svg
from kcoord_wire.worlds.consumer_groups.rolling_bounce import simulate_bounce
from tests.bench.bounce.__main__ import DOCS, PAGE, fill, ratios, state_row, with_stores
from tests.bench.bounce.workloads import STATE_STORES

SVG = "{http://www.w3.org/2000/svg}"


def lines_of(svg: str) -> list[str]:
    """The coordinates of the lines and areas of a plot; texts may have other widths on another machine."""
    paths = ElementTree.fromstring(svg).iter(f"{SVG}path")
    return [each.get("d") or "" for each in paths if "mark" in (each.get("aria-roledescription") or "")]


@pytest.mark.slow
def test_the_page_has_what_its_command_writes() -> None:
    """Some of its cells; all of them would take a minute."""
    text = PAGE.read_text("utf-8")
    cooperative, _ = ratios(STATE_STORES)
    [(least, most)] = re.findall(r"^\| cooperative .* \((11\.\d) to (12\.\d)\) \|$", text, re.MULTILINE)
    assert float(least) - 0.05 <= cooperative <= float(most) + 0.05
    [row] = re.findall(r"^\| 10 \| 500 ms \|(.*)\|$", text, re.MULTILINE)
    cooperative, static = ratios(with_stores(10, 500, 15_000))
    assert row.split("|")[2:4] == [f" {cooperative:.1f} ", f" {static:.1f} "]
    assert state_row("memory", 1, True) in text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["eager", "cooperative"])
def test_the_plots_show_the_throughput_of_the_workload(name: str) -> None:
    shown = lines_of((DOCS / f"rolling-bounce-{name}.svg").read_text("utf-8"))
    assert shown == lines_of(plot_svg(throughput_plot([simulate_bounce(STATE_STORES, name)])))
    assert len(shown) == 2
    assert (DOCS / f"rolling-bounce-{name}.png").read_bytes().startswith(b"\x89PNG")


def test_filling_a_table_leaves_the_rest_as_it_is() -> None:
    text = "a\n<!-- t -->\nold\n<!-- end of t -->\nb\n"
    assert fill(text, "t", iter(["x", "y"])) == "a\n<!-- t -->\nx\ny\n<!-- end of t -->\nb\n"
