"""The charts' specifications.

Line plots: what is in the SVG and the PNG, read back from their bytes.
"""

from __future__ import annotations

import json
import math
import re
import struct
import xml.etree.ElementTree as ElementTree
import zlib
from pathlib import Path
from typing import Any

import pytest

from kcoord_wire.report.page.charts import LinePlot, Series, chart_specs, plot_png, plot_svg, write_plot


def test_charts_contain_no_data_and_no_address() -> None:
    specs = chart_specs()
    assert list(specs) == ["causes", "lanes", "lag", "pauses", "commits"]
    for spec in specs.values():
        assert "datasets" not in spec
        assert "values" not in json.dumps([layer["data"] for layer in spec["layer"]])
        addresses = re.findall(r'https?://[^"]*', json.dumps(spec))
        assert addresses == [spec["$schema"]]


SVG = "{http://www.w3.org/2000/svg}"
RISING = Series("rising", [(0, 0), (1, 25), (2, 50), (4, 100)])
FALLING = Series("falling", [(0, 100), (4, 0)], band=[(0, 80, 100), (4, 0, 20)])


def plot(*series: Series, **changes: Any) -> LinePlot:
    titles = {"title": "Two lines", "x_title": "time (s)", "y_title": "records/s"}
    return LinePlot(series=series or (RISING, FALLING), **titles | changes)


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def paths(svg: str, kind: str) -> dict[str, list[tuple[float, float]]]:
    """The corners of each line or area, by the series that its label names."""
    found = {}
    for element in ElementTree.fromstring(svg).iter(f"{SVG}path"):
        if element.get("aria-roledescription") == f"{kind} mark":
            series = re.findall("series: (\\w+)", element.get("aria-label") or "")[0]
            pairs = re.findall(r"[ML](-?[\d.]+),(-?[\d.]+)", element.get("d") or "")
            found[series] = [(float(x), float(y)) for x, y in pairs]
    return found


def test_svg_has_every_point_of_every_series_in_its_place() -> None:
    """The plot is 640 by 320 and its axes end at the data, so that data and pixels are in proportion."""
    lines = paths(plot_svg(plot()), "line")
    assert lines["rising"] == [(0, 320), (160, 240), (320, 160), (640, 0)]
    assert lines["falling"] == [(0, 0), (640, 320)]


def test_svg_has_title_axis_titles_ticks_and_legend() -> None:
    found = texts(plot_svg(plot()))
    assert {"Two lines", "time (s)", "records/s", "rising", "falling", "0", "100", "4.0"} <= set(found)


def test_one_series_needs_no_legend() -> None:
    assert "rising" not in texts(plot_svg(plot(RISING)))


def test_steps_hold_a_value_until_the_next_point() -> None:
    """A step's corner has the next x and the last y."""
    corners = paths(plot_svg(plot(RISING, steps=True)), "line")["rising"]
    assert corners == [(0, 320), (160, 320), (160, 240), (320, 240), (320, 160), (640, 160), (640, 0)]


def test_a_band_encloses_its_limits() -> None:
    bands = paths(plot_svg(plot()), "area")
    assert bands == {"falling": [(0, 64), (640, 320), (640, 256), (0, 0)]}


def test_logarithmic_axes_space_powers_of_ten_evenly() -> None:
    powers, one = Series("powers", [(1, 10), (10, 100), (100, 1000)]), Series("one", [(1, 1), (100, 1)])
    svg = plot_svg(plot(powers, one, log_x=True, log_y=True))
    assert [round(y) for _, y in paths(svg, "line")["powers"]] == [213, 107, 0]
    assert [round(x) for x, _ in paths(svg, "line")["powers"]] == [0, 320, 640]
    assert "1k" in texts(svg)


def test_marks_are_one_for_each_point() -> None:
    svg = plot_svg(plot(RISING, marks=True))
    labels = [element.get("aria-label") for element in ElementTree.fromstring(svg).iter(f"{SVG}path")]
    assert [label for label in labels if label and "records/s: 25" in label]
    assert svg.count('aria-roledescription="point"') == len(RISING.points)


def test_points_are_connected_in_their_order() -> None:
    back = Series("back", [(4, 100), (0, 0), (2, 100)])
    assert paths(plot_svg(plot(back)), "line")["back"] == [(640, 0), (0, 320), (320, 0)]


def test_the_same_plot_has_the_same_bytes() -> None:
    assert plot_svg(plot()) == plot_svg(plot())
    assert plot_png(plot()) == plot_png(plot())


def test_png_has_its_size_and_the_colours_of_the_lines() -> None:
    small = plot(width=200, height=100)
    svg = ElementTree.fromstring(plot_svg(small))
    size, colours = read_png(plot_png(small))
    assert size == (2 * int(svg.get("width") or 0), 2 * int(svg.get("height") or 0))
    assert {(0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00), (0xFF, 0xFF, 0xFF)} <= colours


def read_png(data: bytes) -> tuple[tuple[int, int], set[tuple[int, int, int]]]:
    """Width and height, and every colour; for 8 bits a channel with alpha and no interlacing, which vl-convert has."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed = 8, b""
    while at < len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        body = data[at + 8 : at + 8 + length]
        assert zlib.crc32(kind + body) == struct.unpack_from(">I", data, at + 8 + length)[0]
        if kind == b"IHDR":
            width, height, depth, colour, *_, interlaced = struct.unpack(">IIBBBBB", body)
            assert (depth, colour, interlaced) == (8, 6, 0)
        if kind == b"IDAT":
            packed += body
        at += 12 + length
    rows, stride = zlib.decompress(packed), 4 * width
    above = bytes(stride)
    colours = set()
    for y in range(height):
        start = y * (stride + 1)
        above = unfilter(rows[start], bytearray(rows[start + 1 : start + 1 + stride]), above)
        colours |= set(zip(above[0::4], above[1::4], above[2::4], strict=True))
    return (width, height), colours


def unfilter(kind: int, row: bytearray, above: bytes) -> bytes:
    """Undo the filter of one row (PNG, section 9)."""
    for at in range(len(row)):
        left, up = (row[at - 4] if at >= 4 else 0), above[at]
        corner = above[at - 4] if at >= 4 else 0
        row[at] = (row[at] + predicted(kind, left, up, corner)) & 0xFF
    return bytes(row)


def predicted(kind: int, left: int, up: int, corner: int) -> int:
    if kind == 4:
        guess = left + up - corner
        return min((left, up, corner), key=lambda value: abs(guess - value))
    return (0, left, up, (left + up) // 2)[kind]


def test_files_are_written_by_their_suffix(tmp_path: Path) -> None:
    write_plot(plot(), tmp_path / "a.svg")
    write_plot(plot(), tmp_path / "a.PNG")
    assert (tmp_path / "a.svg").read_text("utf-8") == plot_svg(plot())
    assert (tmp_path / "a.PNG").read_bytes() == plot_png(plot())
    with pytest.raises(ValueError, match=r"a\.pdf: a plot is written as \.svg or \.png"):
        write_plot(plot(), tmp_path / "a.pdf")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (plot(Series("empty", [])), "series 'empty' has no points"),
        (plot(Series("a", [(0, math.nan)])), "series 'a' has the value nan, which has no place in a plot"),
        (plot(Series("a", [(math.inf, 1)])), "the value inf"),
        (plot(Series("a", [(0, 1)]), log_x=True), "the value 0, which has no place on a logarithmic axis"),
        (plot(Series("a", [(1, 1)], band=[(1, -1, 2)]), log_y=True), "the value -1"),
        (plot(RISING, RISING), r"1 to 8 series with names of their own, not \['rising', 'rising'\]"),
        (LinePlot(title="", x_title="", y_title="", series=()), r"not \[\]"),
    ],
)
def test_a_plot_that_cannot_be_drawn_is_refused(wrong: LinePlot, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        plot_svg(wrong)
