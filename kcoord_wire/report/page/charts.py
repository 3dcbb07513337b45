"""Charts: five of a group as Vega-Lite (causes, members, lag, pauses, commits), and line plots as SVG and PNG.

Laws:

* A chart contains no data: the page sets its rows, its time span (`t0` to `t1`) and its width, so that the five move
  together and one set of charts serves all groups.
* Their plots are exactly above each other: the space beside a plot is set by the page, not measured.
* Colours of text, grid and background come from the style sheet, so that a change of theme redraws nothing.
* A line plot, of several series over one axis, has the same bytes each time: no random name and no time of writing. The
  fonts are the machine's, so that widths of texts may differ between machines.
* A series keeps its colour, and the legend its order, as the series are listed.
* A plot that could not be drawn whole is an error: a value that is not finite, a value of 0 or less on a logarithmic
  axis, a series without points.
"""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kcoord_wire.extras import require

BAR: Final = "#2f6aa8"  # with white numbers on it
PAUSED: Final = "#d55e00"
LAG: Final = "#8a5fa8"
COMMITTED: Final = "#2f8f5b"
FAILED: Final = "#d1495b"
MEMBER: Final = "#7d8590"
DEAD: Final = "#d1495b"
FONT: Final = (
    "system-ui, Segoe UI, Roboto, Helvetica Neue, Arial, DejaVu Sans, sans-serif"  # the same as in the style sheet
)
CLOCK: Final = (
    "utcFormat(datum.value, {year: '%Y', quarter: '%b %Y', month: '%b %Y', week: '%d %b', date: '%d %b', "
    "hours: '%H:%M', minutes: '%H:%M', seconds: '%H:%M:%S', milliseconds: '%H:%M:%S.%L'})"
)
CROSS: Final = "M-1,-1L1,1M1,-1L-1,1"


def chart_specs() -> dict[str, dict[str, Any]]:
    """The Vega-Lite specification of every chart, by the id of its element in the page.

    :raises MissingLibraryError: altair is not installed
    """
    made = {
        "causes": _chart(_causes(), rows=True),
        "lanes": _chart(_lanes(), rows=True),
        "lag": _chart(_curve(LAG)),
        "pauses": _chart(_curve(PAUSED)),
        "commits": _chart(_commits()),
    }
    return {name: chart.to_dict() for name, chart in made.items()}


def _altair() -> Any:
    return require("altair", "analyze", "the HTML report")


def _chart(layers: list[Any], *, rows: bool = False) -> Any:
    alt = _altair()
    params = {"t0": 0, "t1": 1, "ticks": 8, "shade": 0.2} | ({"labels": [""], "side": 150} if rows else {})
    return (
        alt.layer(*layers)
        .add_params(*(alt.param(name=name, value=value) for name, value in params.items()))
        .properties(width=600, height=80, autosize=alt.AutoSizeParams(type="none"))
        .configure(font=FONT, background="transparent")
        .configure_view(stroke=None)
        .configure_axis(labelFontSize=11, domain=False)
        .configure_mark(invalid=None)
    )


# ---- charts


def _causes() -> list[Any]:
    """Rebalances, one row per cause: dark until the joins were answered, then light until the assignment was."""
    alt = _altair()
    x, y = _time("from", axis="top"), _row("top")
    whole = _mark("bands", "rect", opacity=0.55, cursor="pointer").encode(x=x, x2="to", y=y, y2="bottom:Q")
    joining = _mark("bands", "rect", cursor="pointer").encode(x=x, x2="joined:T", y=y, y2="bottom:Q")
    return [layer.encode(color=alt.Color("colour:N", scale=None), tooltip="tip:N") for layer in (whole, joining)]


def _lanes() -> list[Any]:
    """Members, one lane per client: a line while it was a member, a bar for its partitions, a mark where it left.

    A dashed box: its process was dead, and the coordinator did not know.
    """
    alt = _altair()
    x, y = _time("from", axis=None), _row("top")
    bars = _mark("bars", "rect", color=BAR, cornerRadius=1).encode(x=x, x2="to", y=y, y2="bottom:Q", tooltip="tip:N")
    texts = _mark("figures", "text", color="#ffffff", fontSize=10, baseline="middle").encode(
        x=_time("middle", axis=None), y=_row("row"), text="text:N"
    )
    lives = _mark("lives", "rule", strokeWidth=1.5, color=MEMBER).encode(x=x, x2="to", y=_row("row"), tooltip="tip:N")
    ends = _mark("ends", "point", shape=CROSS, size=45, strokeWidth=2, opacity=1).encode(
        x=_time("at", axis=None), y=_row("row"), color=alt.Color("colour:N", scale=None), tooltip="tip:N"
    )
    dead = _mark(
        "dead", "rect", fill=DEAD, fillOpacity=0.12, stroke=DEAD, strokeDash=[3, 3], strokeWidth=1.2, opacity=1
    ).encode(x=x, x2="to", y=y, y2="bottom:Q", tooltip="tip:N")
    return [_bands(None), lives, bars, texts, ends, dead]


def _curve(colour: str) -> list[Any]:
    curve = _mark("steps", "area", interpolate="step-after", color=colour, opacity=0.9)
    return [_bands(None), curve.encode(x=_time("at", axis=None), y=_amount("value"))]


def _commits() -> list[Any]:
    """Records that the commits advanced by, and marks where commits were refused."""
    x = _time("at", axis="bottom")
    curve = _mark("steps", "area", interpolate="step-after", color=COMMITTED, opacity=0.9)
    refused = _mark("refused", "point", shape=CROSS, size=45, strokeWidth=2, color=FAILED, opacity=1)
    return [
        _bands("bottom"),
        curve.encode(x=x, y=_amount("value")),
        refused.encode(x=x, y=_amount("value"), tooltip="tip:N"),
    ]


# ---- shared parts


def _mark(data: str, mark: str, **look: Any) -> Any:
    """A mark over the rows that the page sets under the name `data`; screen readers get the tables instead."""
    alt = _altair()
    return getattr(alt.Chart(alt.NamedData(name=data)), f"mark_{mark}")(clip=True, aria=False, **look)


def _bands(axis: str | None) -> Any:
    alt = _altair()
    return _mark("bands", "rect", opacity={"expr": "shade"}, cursor="pointer").encode(
        x=_time("from", axis=axis),
        x2="to",
        y=alt.value(0),
        y2=alt.value({"expr": "height"}),
        color=alt.Color("colour:N", scale=None),
        tooltip="tip:N",
    )


def _time(field: str, axis: str | None) -> Any:
    alt = _altair()
    look = alt.Axis(
        title=None,
        grid=True,
        ticks=axis is not None,
        labels=axis is not None,
        orient=axis or "bottom",
        labelExpr=CLOCK,
        tickCount={"expr": "ticks"},
        labelOverlap="greedy",
        labelSeparation=10,
        labelFlush=True,
    )
    scale = alt.Scale(type="utc", domainRaw={"expr": "[t0, t1]"}, nice=False)
    return alt.X(f"{field}:T", scale=scale, axis=look)


def _row(field: str) -> Any:
    """Rows counted from the top; the page sets their names as the signal `labels`."""
    alt = _altair()
    axis = alt.Axis(
        title=None,
        grid=False,
        ticks=False,
        values={"expr": "sequence(0.5, length(labels))"},
        labelExpr="labels[floor(datum.value)]",
        labelLimit={"expr": "side - 12"},
        labelPadding=6,
        labelOverlap=False,
    )
    scale = alt.Scale(domain=[0, {"expr": "length(labels)"}], reverse=True, nice=False, zero=False)
    return alt.Y(f"{field}:Q", scale=scale, axis=axis)


def _amount(field: str) -> Any:
    alt = _altair()
    axis = alt.Axis(title=None, tickCount=3, tickMinStep=1, format=",.0f", labelPadding=6, ticks=False)
    return alt.Y(f"{field}:Q", scale=alt.Scale(zero=True, nice=True), axis=axis, stack=None)


COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6b7280", "#000000")
"""Of Okabe and Ito: distinct with every kind of colour vision."""

PLOT_FONT: Final = "DejaVu Sans, Helvetica Neue, Arial, sans-serif"
LEGEND: Final = {
    "title": None,
    "orient": "bottom",
    "symbolType": "stroke",
    "symbolOpacity": 1,
    "symbolStrokeWidth": 3,
    "labelLimit": 0,
}
_PNG_HEAD: Final = 8  # bytes of the signature
PIXELS: Final = 2  # per unit of length, in PNG


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a plot.

    :ivar name: in the legend
    :ivar points: x and y, in the order in which they are connected
    :ivar band: x, lower and upper y of a shaded area around the line, such as minimum and maximum; empty for none
    """

    name: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float, float]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePlot:
    """A plot of one or more series.

    :ivar title: above the plot
    :ivar x_title: of the horizontal axis, with its unit: ``time (s)``
    :ivar y_title: of the vertical axis, with its unit
    :ivar series: at most 8
    :ivar log_x: whether the horizontal axis is logarithmic
    :ivar log_y: whether the vertical axis is logarithmic; otherwise it begins at 0 or below
    :ivar steps: whether a value holds until the next point, instead of a straight line to it
    :ivar marks: whether each point has a mark
    :ivar width: of the area between the axes, in pixels of SVG
    :ivar height: likewise
    """

    title: str
    x_title: str
    y_title: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False
    steps: bool = False
    marks: bool = False
    width: int = 640
    height: int = 320


def write_plot(plot: LinePlot, path: str | os.PathLike[str]) -> None:
    """Write a plot into a file, as SVG or PNG by its suffix.

    :raises ValueError: another suffix, or a plot that cannot be drawn; see the laws of this module
    :raises MissingLibraryError: altair or vl-convert is not installed
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix == ".svg":
        path.write_text(plot_svg(plot), encoding="utf-8", newline="\n")
    elif suffix == ".png":
        path.write_bytes(plot_png(plot))
    else:
        raise ValueError(f"{path}: a plot is written as .svg or .png")


def plot_svg(plot: LinePlot) -> str:
    """Return a plot as SVG; raises the errors of `write_plot`."""
    svg: str = _converter().vegalite_to_svg(_spec(plot))
    return svg + "\n"


def plot_png(plot: LinePlot) -> bytes:
    """Return a plot as PNG, two pixels for one of SVG; raises the errors of `write_plot`."""
    return _compressed(_converter().vegalite_to_png(_spec(plot), scale=PIXELS))


def _compressed(png: bytes) -> bytes:
    """The same picture in about a ninth of the bytes: vl-convert compresses fast, not well."""
    made, at, pixels = [png[:_PNG_HEAD]], _PNG_HEAD, b""
    while at < len(png):
        length, kind = struct.unpack_from(">I4s", png, at)
        body = png[at + 8 : at + 8 + length]
        at += 12 + length  # length, kind and CRC-32 are four bytes each
        if kind == b"IDAT":
            pixels += body
            continue
        if kind == b"IEND":
            made.append(_chunk(b"IDAT", zlib.compress(zlib.decompress(pixels), 9)))
        made.append(_chunk(kind, body))
    return b"".join(made)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _converter() -> Any:
    return require("vl_convert", "analyze", "a plot")


def _spec(plot: LinePlot) -> dict[str, Any]:
    """The Vega-Lite specification of a plot, with its data."""
    _check(plot)
    alt = require("altair", "analyze", "a plot")
    lines = [
        {"series": series.name, "x": x, "y": y, "order": order}
        for series in plot.series
        for order, (x, y) in enumerate(series.points)
    ]
    bands = [
        {"series": series.name, "x": x, "low": low, "high": high}
        for series in plot.series
        for x, low, high in series.band
    ]
    names = [series.name for series in plot.series]
    legend = None if len(names) == 1 else alt.Legend(**LEGEND)
    colour = alt.Color("series:N", scale=alt.Scale(domain=names, range=COLOURS[: len(names)]), legend=legend)
    x = alt.X("x:Q", title=plot.x_title, **_axis(alt, is_log=plot.log_x, zero=False))
    y = alt.Y("y:Q", title=plot.y_title, **_axis(alt, is_log=plot.log_y, zero=True))
    shape = "step-after" if plot.steps else "linear"
    line = alt.Chart(alt.InlineData(values=lines)).mark_line(interpolate=shape, point=plot.marks, strokeWidth=1.8)
    layers = [line.encode(x=x, y=y, color=colour, order="order:Q")]
    if bands:
        area = alt.Chart(alt.InlineData(values=bands)).mark_area(interpolate=shape, opacity=0.18)
        layers.insert(0, area.encode(x="x:Q", y=alt.Y("low:Q"), y2="high:Q", color=colour))
    chart = (
        alt.layer(*layers)
        .properties(title=plot.title, width=plot.width, height=plot.height, background="#ffffff")
        .configure(font=PLOT_FONT)
        .configure_view(stroke=None)
        .configure_axis(labelFontSize=11, titleFontSize=11, titleFontWeight="normal", gridColor="#e5e7eb")
        .configure_title(fontSize=13, anchor="start", fontWeight="bold")
        .configure_legend(labelFontSize=11)
    )
    spec: dict[str, Any] = chart.to_dict()
    return spec


def _axis(alt: Any, *, is_log: bool, zero: bool) -> dict[str, Any]:
    if is_log:
        return {"scale": alt.Scale(type="log", nice=False), "axis": alt.Axis(format="~s", labelOverlap=True)}
    return {"scale": alt.Scale(zero=zero, nice=zero), "axis": alt.Axis(tickCount=8)}


def _check(plot: LinePlot) -> None:
    names = [series.name for series in plot.series]
    if not 1 <= len(names) <= len(COLOURS) or len(set(names)) < len(names):
        raise ValueError(f"a plot has 1 to {len(COLOURS)} series with names of their own, not {names}")
    for series in plot.series:
        if not series.points:
            raise ValueError(f"series {series.name!r} has no points")
        band = [value for _, *values in series.band for value in values]
        _check_values(series.name, [x for x, *_ in (*series.points, *series.band)], is_log=plot.log_x)
        _check_values(series.name, [*(y for _, y in series.points), *band], is_log=plot.log_y)


def _check_values(name: str, values: Iterable[float], *, is_log: bool) -> None:
    for value in values:
        if not math.isfinite(value) or (is_log and value <= 0):
            where = "on a logarithmic axis" if is_log else "in a plot"
            raise ValueError(f"series {name!r} has the value {value}, which has no place {where}")
